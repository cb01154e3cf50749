/* Chooses formats and leaves by a policy. */
#include "calibrate/quantize_plan.h"

#include "base/mem.h"
#include "tensor/leaf.h"

#include <string.h>

enum { WORD_BYTES_MAX = 64 };

static const char *const class_names[QUANTIZE_CLASS_COUNT] = {
#define X(id, name) name,
    QUANTIZE_CLASS_LIST(X)
#undef X
};

/* ---- policies ---- */

static struct status parse_format(const char *word, const char *where, struct quantize_choice *out)
{
    struct quantize_choice c = {.class = out->class};
    c.keep = strcmp(word, "keep") == 0;
    if (!c.keep && !quant_format_parse(word, &c.format)) {
        c.format.kind = QUANT_NONE;
        if (!dtype_parse(word, &c.dtype)) {
            return status_make(STATUS_USAGE,
                               "%s: expected int8, int4, fp8 (with -asym, -g32, -g64, -g128), "
                               "mxfp4, f32, f16, bf16 or keep, found \"%s\"",
                               where, word);
        }
    }
    *out = c;
    return status_ok();
}

/* Reads the next word of a list, up to the character `end`. False: the list has ended, or the word
 * is too long. */
static bool next_word(const char **at, char end, char *word)
{
    const size_t n = strcspn(*at, end == '=' ? "=," : ",");
    if (**at == '\0' || n >= WORD_BYTES_MAX) return false;
    memcpy(word, *at, n);
    word[n] = '\0';
    *at += n;
    if (**at == end) (*at)++;
    return true;
}

static struct status parse_classes(const char *policy, struct quantize_policy *out)
{
    char class[WORD_BYTES_MAX], format[WORD_BYTES_MAX];
    for (const char *at = policy; *at != '\0';) {
        if (!next_word(&at, '=', class) || !next_word(&at, ',', format)) {
            return status_make(STATUS_USAGE, "--policy: expected CLASS=FORMAT,..., found \"%s\"",
                               policy);
        }
        int i = 0;
        while (i < QUANTIZE_CLASS_COUNT && strcmp(class, class_names[i]) != 0) i++;
        if (i == QUANTIZE_CLASS_COUNT) {
            return status_make(STATUS_USAGE,
                               "--policy: expected embedding, attention, ffn, experts, router or "
                               "head, found \"%s\"",
                               class);
        }
        TRY(parse_format(format, "--policy", &out->classes[i]));
    }
    return status_ok();
}

/* Returns the choice that --format implies for a class; quantize_policy_parse gives the reasons. */
static struct quantize_choice default_choice(const struct quantize_choice *all,
                                             enum quantize_class class)
{
    struct quantize_choice c = *all;
    const bool is_codes = !c.keep && c.format.kind != QUANT_NONE;
    const bool is_int8 = is_codes && c.format.kind == QUANT_INT8;
    const bool is_table = class == QUANTIZE_EMBEDDING || class == QUANTIZE_HEAD;
    if (is_codes && class == QUANTIZE_ROUTER) {
        c = (struct quantize_choice){.keep = true};
    } else if (is_codes && is_table && c.format.kind != QUANT_FP8) {
        c.format = (struct quant_format){QUANT_INT8, false, DTYPE_F16, is_int8 ? 32 : 128};
    } else if (is_int8 && c.format.group == 0) {
        c.format.group = class == QUANTIZE_ATTENTION ? 32 : 64;
    }
    c.class = class;
    return c;
}

struct status quantize_policy_parse(const char *format, const char *policy,
                                    struct quantize_policy *out)
{
    struct quantize_choice all = {.class = QUANTIZE_OTHER};
    TRY(parse_format(format, "--format", &all));
    for (int i = 0; i < QUANTIZE_CLASS_COUNT; i++) {
        out->classes[i] = default_choice(&all, (enum quantize_class)i);
    }
    return policy == NULL ? status_ok() : parse_classes(policy, out);
}

/* ---- classes of tensors ---- */

static enum quantize_class quantize_plan_class_of(const struct weight_spec *s)
{
    static const enum quantize_class classes[CLASS_COUNT] = {
        [CLASS_VECTOR] = QUANTIZE_OTHER,    [CLASS_ATTENTION] = QUANTIZE_ATTENTION,
        [CLASS_LATENT] = QUANTIZE_OTHER,    [CLASS_FFN] = QUANTIZE_FFN,
        [CLASS_EXPERTS] = QUANTIZE_EXPERTS, [CLASS_ROUTER] = QUANTIZE_ROUTER,
        [CLASS_EMBED] = QUANTIZE_EMBEDDING, [CLASS_HEAD] = QUANTIZE_HEAD};
    return classes[s->tensor->class];
}

static uint64_t leaves_least(const struct arch_tensor *row)
{
    return row->is_expert ? LEAF_EXPERT_LEAST : LEAF_DENSE_LEAST;
}

/* Chooses smaller groups for a tensor whose inputs are too few to be cut into enough leaves
 * (K-blocks) of whole groups. In o_proj a leaf also has whole heads. */
static void fit_groups(const struct arch *m, const struct weight_spec *s, struct quantize_choice *c)
{
    if (!s->tensor->has_leaves) return;
    const uint32_t group = quant_kernel_group(c->format);
    const uint32_t fit = leaf_fit_group(s->n_cols, arch_dim_unit(m, s->tensor->cols), group,
                                        leaves_least(s->tensor));
    if (fit < group) c->format.group = fit;
}

/* True when both formats have the same name for users; the types of their scales may differ. */
static bool quantize_plan_same_format(struct quant_format a, struct quant_format b)
{
    return a.kind == b.kind && a.has_zeros == b.has_zeros && a.group == b.group;
}

struct choosing {
    const struct ckpt *c;
    const struct arch *m;
    const struct quantize_policy *policy;
    struct quantize_choice *choices;
};

static struct status choose_one(void *ctx, const struct weight_spec *s)
{
    const struct choosing *k = ctx;
    const struct ckpt_tensor *t = ckpt_find(k->c, s->name);
    if (t == NULL) {
        return status_make(STATUS_INPUT, "%s: tensor %s is missing", ckpt_path(k->c), s->name);
    }
    struct quantize_choice *c = &k->choices[t->index];
    if (c->class != QUANTIZE_OTHER) return status_ok(); /* tied: the embedding's class decides */
    const enum quantize_class class = quantize_plan_class_of(s);
    if (class != QUANTIZE_OTHER) *c = k->policy->classes[class];
    c->class = class;
    c->role = s->role;
    if (c->keep || c->format.kind == QUANT_NONE) return status_ok();
    fit_groups(k->m, s, c);
    c->keep = quantize_plan_same_format(t->quant, c->format);
    c->again = !c->keep && t->quant.kind != QUANT_NONE;
    return status_ok();
}

struct status quantize_choose(const struct ckpt *c, const struct arch *m,
                              const struct quantize_policy *policy, struct quantize_choice **out)
{
    struct layout *l = NULL;
    struct layout_model model;
    struct arch all = *m; /* with the prediction layer, if the file has one: it is quantized, too */
    struct choosing k = {.c = c, .m = m, .policy = policy};
    struct status st;
    *out = NULL;
    all.n_predict = weights_may_predict(m, c) ? 1 : 0;
    TRY_GOTO(st, weights_check(&all, c, &model), done);
    TRY_GOTO(st, mem_alloc(&l, 1, sizeof *l, "layout"), done);
    TRY_GOTO(st, mem_alloc(&k.choices, ckpt_tensor_count(c), sizeof *k.choices, "choices"), done);
    for (size_t i = 0; i < ckpt_tensor_count(c); i++) {
        k.choices[i] = (struct quantize_choice){.class = QUANTIZE_OTHER, .keep = true};
    }
    const struct layout_flags one_rank = {.tp = 1, .pp = 1, .ep = 1, .dp = 1};
    TRY_GOTO(st, layout_build(&model, 1, &one_rank, l), done);
    TRY_GOTO(st, weights_list(l, layout_place_of(l, 0), choose_one, &k), done);
    TRY_GOTO(st, quantize_leaves(c, m, k.choices), done);
done:
    mem_free(&l);
    if (status_failed(&st)) mem_free(&k.choices);
    *out = k.choices;
    return st;
}

/* ---- leaves ---- */

/* Returns the number of inputs of a kernel group of the tensor; the length of its leaves (K-blocks)
 * must be a multiple of this number. 0: the tensor is not quantized. */
static uint32_t quantize_plan_group_of(const struct ckpt_tensor *t, const struct quantize_choice *c)
{
    const struct quant_format f = c->keep ? t->quant : c->format;
    return f.kind == QUANT_NONE ? 0 : quant_kernel_group(f);
}

static bool quantize_plan_has_role(const struct quantize_choice *c, enum weight_role role)
{
    return c->class != QUANTIZE_OTHER && c->role == role;
}

/* Returns the leaf length of a quantized tensor of n_cols columns; 0: no length is possible. For
 * o_proj it is chosen for heads of value_dim elements; a layer with heads of another width gets
 * leaves of the same number of heads, if these are whole groups. */
static uint32_t leaf_of_row(const struct arch *m, const struct arch_tensor *row, uint64_t n_cols,
                            uint32_t group)
{
    const bool is_o = row->role == WEIGHT_O;
    const uint32_t dim = is_o ? arch_o_unit(m) : arch_dim_unit(m, row->cols);
    const uint64_t n = is_o ? (uint64_t)m->attn.n_heads * m->attn.value_dim : n_cols;
    const uint32_t leaf = leaf_choose_quantized(n, leaf_common_unit(dim, group), leaves_least(row));
    if (!is_o) return leaf;
    const bool is_one_width = m->attn.n_full_heads > 0;
    const uint32_t head = is_one_width ? m->attn.value_dim : (uint32_t)(n_cols / m->attn.n_heads);
    const uint32_t own = arch_o_leaf(m, leaf, head);
    return group > 0 && own % group != 0 ? 0 : own;
}

static struct status set_role(const struct ckpt *c, const struct arch *m,
                              struct quantize_choice *choices, const struct arch_tensor *row)
{
    uint32_t group = 0;
    bool any_made = false;
    for (size_t i = 0; i < ckpt_tensor_count(c); i++) {
        if (!quantize_plan_has_role(&choices[i], row->role)) continue;
        const uint32_t one = quantize_plan_group_of(ckpt_tensor_at(c, i), &choices[i]);
        if (one > group) group = one;
        any_made = any_made || (!choices[i].keep && one > 0);
    }
    for (size_t i = 0; i < ckpt_tensor_count(c); i++) {
        const struct ckpt_tensor *t = ckpt_tensor_at(c, i);
        if (!quantize_plan_has_role(&choices[i], row->role)) continue;
        choices[i].leaf_elems = t->leaf_elems;
        choices[i].grid_bits = t->grid_bits;
        if (!any_made) continue;
        /* whole groups, and in o_proj whole heads */
        choices[i].leaf_elems = leaf_of_row(m, row, t->n_cols, group);
        if (choices[i].leaf_elems == 0) {
            return status_make(STATUS_INPUT,
                               "%s: tensor %s: %llu columns cannot be cut into leaves",
                               ckpt_path(c), t->name, (unsigned long long)t->n_cols);
        }
    }
    return status_ok();
}

struct status quantize_leaves(const struct ckpt *c, const struct arch *m,
                              struct quantize_choice *choices)
{
    const struct arch_tensor *row;
    for (size_t i = 0; (row = arch_tensor_at(i)) != NULL; i++) {
        if (row->has_leaves) TRY(set_role(c, m, choices, row));
    }
    return status_ok();
}

struct ckpt_tensor_spec quantize_spec(const struct ckpt_tensor *t,
                                      const struct quantize_choice *choice, const char *method)
{
    struct ckpt_tensor_spec spec = {.name = t->name,
                                    .dtype = choice->keep ? t->dtype : choice->dtype,
                                    .n_dims = t->n_dims,
                                    .leaf_elems = choice->leaf_elems,
                                    .grid_bits = choice->grid_bits,
                                    .quant = choice->keep ? t->quant : choice->format,
                                    .method = choice->keep ? t->method : method};
    memcpy(spec.dims, t->dims, sizeof spec.dims);
    return spec;
}

struct status quantize_specs(struct ckpt *list, const struct quantize_policy *policy,
                             struct ckpt_tensor_spec *specs)
{
    struct arch m;
    struct quantize_choice *choices = NULL;
    size_t n;
    const char *config = ckpt_config_json(list, &n);
    TRY(status_wrap(arch_parse(config, n, "config.json", &m), "%s", ckpt_path(list)));
    TRY(quantize_choose(list, &m, policy, &choices));
    for (size_t i = 0; i < ckpt_tensor_count(list); i++) {
        const struct ckpt_tensor *t = ckpt_tensor_at(list, i);
        const struct ckpt_tensor_spec old = specs[i];
        specs[i] = quantize_spec(t, &choices[i], "rtn");
        specs[i].name = old.name; /* t->name belongs to `list`, which may be freed before specs */
        if (choices[i].keep) specs[i].method = old.method;
    }
    mem_free(&choices);
    return status_ok();
}

/* Checks a checkpoint against the model: every tensor that the model needs is there and has its
 * shape, and every other tensor is known to be read by no forward pass. */
#include "weights/weights.h"

#include "base/mem.h"
#include "kernels/act.h"
#include "tensor/dims.h"

#include <stdio.h>
#include <string.h>

struct checking {
    const struct ckpt *c;
    bool *known;                 /* [tensors of the file] */
    struct layout_model *out;    /* gets the leaf lengths */
    const struct ckpt_tensor *o; /* o_proj of the first layer with attention */
};

static void print_dims(char *text, size_t n, const uint64_t *dims, uint32_t n_dims)
{
    size_t used = (size_t)snprintf(text, n, "[");
    for (uint32_t i = 0; i < n_dims && used < n; i++) {
        used += (size_t)snprintf(text + used, n - used, "%s%llu", i > 0 ? ", " : "",
                                 (unsigned long long)dims[i]);
    }
    if (used < n) snprintf(text + used, n - used, "]");
}

static struct status check_tensor_shape(const struct checking *k, const struct weight_spec *s,
                                        const struct ckpt_tensor *t)
{
    uint64_t want[3] = {s->n_outer, s->n_rows, s->n_cols};
    const bool has_rows = !s->is_vector || s->is_expert || s->tensor->rows != DIM_ONE;
    const uint32_t n_dims = s->is_expert && !s->is_vector ? 3 : has_rows ? 2 : 1;
    const uint64_t *dims = want + 3 - n_dims;
    if (t->n_dims == n_dims && memcmp(t->dims, dims, n_dims * sizeof *dims) == 0)
        return status_ok();
    char expected[96], found[96];
    print_dims(expected, sizeof expected, dims, n_dims);
    print_dims(found, sizeof found, t->dims, t->n_dims);
    return status_make(STATUS_INPUT, "%s: tensor %s: config.json asks for %s, found %s",
                       ckpt_path(k->c), s->name, expected, found);
}

/* Records a tensor's leaf length. All row-parallel tensors of a role must have leaves of the same
 * length (of o_proj: of the same number of heads), because a layout has one length for a role. */
static struct status take_leaf(const struct checking *k, const struct weight_spec *s,
                               const struct ckpt_tensor *t)
{
    uint32_t *leaf = s->role == WEIGHT_O             ? &k->out->o_leaf
                     : s->role == WEIGHT_DOWN        ? &k->out->ffn_leaf
                     : s->role == WEIGHT_EXPERT_DOWN ? &k->out->expert_leaf
                     : s->role == WEIGHT_SHARED_DOWN ? &k->out->shared_leaf
                     : s->role == WEIGHT_DELTA_O     ? &k->out->delta_leaf
                                                     : NULL;
    if (leaf == NULL) return status_ok();
    const uint32_t group =
        t->quant.kind == QUANT_NONE ? PANEL_COLUMNS : quant_kernel_group(t->quant);
    if (group > k->out->inner_unit) k->out->inner_unit = group; /* each group divides the largest */
    const struct arch *m = k->out->arch;
    const uint32_t dim = s->role == WEIGHT_O ? arch_dim_unit(m, s->tensor->cols) : 1;
    const bool first = *leaf == 0;
    if (first) *leaf = dim == 1 ? t->leaf_elems : t->leaf_elems / dim * m->attn.value_dim;
    const uint32_t wanted = dim == 1 ? *leaf : arch_o_leaf(m, *leaf, dim);
    if (t->leaf_elems == 0 || t->leaf_elems != wanted || t->grid_bits == 0 || t->grid_bits > 48) {
        return status_make(
            STATUS_INPUT,
            "%s: tensor %s: leaf of %u elements on grid 2^-%u, expected %u and 1 to 48",
            ckpt_path(k->c), s->name, t->leaf_elems, t->grid_bits, wanted);
    }
    const uint32_t head = s->role == WEIGHT_O         ? arch_o_unit(k->out->arch)
                          : s->role == WEIGHT_DELTA_O ? arch_dim_unit(k->out->arch, DIM_DELTA_V)
                                                      : 1;
    if (*leaf % head == 0) return status_ok();
    return status_make(STATUS_INPUT, "%s: tensor %s: leaf of %u is not whole heads of %u",
                       ckpt_path(k->c), s->name, *leaf, head);
}

/* Returns the packed bytes of a group of inputs: codes, scale and zero point. A plain tensor has
 * groups of one element. */
static struct layout_weight weight_of(const struct ckpt_tensor *t)
{
    const struct quant_format f = t->quant;
    if (f.kind == QUANT_NONE)
        return (struct layout_weight){
            .group = 1, .group_bytes = (uint32_t)dtype_bytes(t->dtype), .dtype = t->dtype};
    const uint32_t group = quant_kernel_group(f);
    const size_t n_bytes =
        quant_code_bytes(f.kind, group) + dtype_bytes(quant_scale_dtype(f)) + (f.has_zeros ? 1 : 0);
    return (struct layout_weight){.group = group, .group_bytes = (uint32_t)n_bytes, .kind = f.kind};
}

/* Records the memory format of the tensor's class. If tensors of a class differ, the largest
 * counts, so that plans never ask for too little. */
static struct status take_weight(const struct checking *k, const struct weight_spec *s,
                                 const struct ckpt_tensor *t)
{
    if (s->is_vector && t->quant.kind != QUANT_NONE) {
        return status_make(STATUS_INPUT, "%s: tensor %s: a vector cannot be quantized",
                           ckpt_path(k->c), s->name);
    }
    if (s->role == WEIGHT_KV_B && t->quant.kind != QUANT_NONE) {
        return status_make(STATUS_INPUT,
                           "%s: tensor %s: is turned into two others on loading, so it cannot be "
                           "quantized; convert with --quantized dequantize",
                           ckpt_path(k->c), s->name);
    }
    if (s->is_vector) return status_ok();
    const struct layout_weight found = weight_of(t);
    struct layout_weight *held = &k->out->weights[s->tensor->class];
    /* keeps the larger group_bytes / group */
    if (held->group == 0 ||
        (uint64_t)found.group_bytes * held->group > (uint64_t)held->group_bytes * found.group) {
        *held = found;
    }
    return status_ok();
}

static void take_expert_inputs(const struct checking *k, const struct weight_spec *s,
                               const struct ckpt_tensor *t)
{
    const struct packed w = {.quant = t->quant};
    const uint32_t group = act_codes_alike(&w, &w) ? quant_kernel_group(t->quant) : 0;
    const uint32_t fp8_group = t->quant.kind == QUANT_FP8 ? quant_kernel_group(t->quant) : 0;
    if (s->role == WEIGHT_EXPERT_GATE) {
        k->out->expert_code_group = group;
        k->out->expert_fp8_group = fp8_group;
    }
    if (s->role == WEIGHT_EXPERT_UP && k->out->expert_code_group != group)
        k->out->expert_code_group = 0;
    if (s->role == WEIGHT_EXPERT_UP && k->out->expert_fp8_group != fp8_group)
        k->out->expert_fp8_group = 0;
}

static struct status check_one(void *ctx, const struct weight_spec *s)
{
    struct checking *k = ctx;
    const struct ckpt_tensor *t = ckpt_find(k->c, s->name);
    if (t == NULL) {
        return status_make(STATUS_INPUT, "%s: tensor %s is missing", ckpt_path(k->c), s->name);
    }
    k->known[t->index] = true;
    if (s->role == WEIGHT_O && k->o == NULL) k->o = t;
    TRY(check_tensor_shape(k, s, t));
    TRY(take_weight(k, s, t));
    take_expert_inputs(k, s, t);
    return take_leaf(k, s, t);
}

/* True when a tensor belongs to the prediction layer. */
static bool is_of_prediction(const struct arch *m, const char *name)
{
    char prefix[32];
    snprintf(prefix, sizeof prefix, "model.layers.%u.", m->n_layers);
    return m->may_predict && strncmp(name, prefix, strlen(prefix)) == 0;
}

/* True for tensors that some publishers keep beside the weights and that no forward pass reads, and
 * for those of a prediction layer or a head that this run does not use. */
static bool is_unread(const struct arch *m, const char *name)
{
    if (is_of_prediction(m, name) && m->n_predict == 0) return true;
    const size_t n = strlen(name);
    const char *suffix = "rotary_emb.inv_freq";
    if (n >= strlen(suffix) && strcmp(name + n - strlen(suffix), suffix) == 0) return true;
    if (m->headless && (strncmp(name, "lm_head.", 8) == 0 || strcmp(name, "score.weight") == 0))
        return true;
    if (m->encoder && strncmp(name, "score.", strlen("score.")) == 0) return true;
    return m->tied && strcmp(name, "lm_head.weight") == 0;
}

/* Refuses a tied model's file whose head differs from its embedding, because other programs use one
 * or the other. */
static struct status check_tied(const struct arch *m, const struct ckpt *c)
{
    const struct ckpt_tensor *head = ckpt_find(c, "lm_head.weight");
    const struct ckpt_tensor *embed = ckpt_find(c, "model.embed_tokens.weight");
    if (!m->tied || head == NULL || !ckpt_tensors_differ(c, head, embed)) return status_ok();
    return status_make(
        STATUS_INPUT,
        "%s: tensor lm_head.weight: differs from the embedding, although config.json "
        "says tie_word_embeddings",
        ckpt_path(c));
}

static struct status check_unknown(const struct arch *m, const struct checking *k)
{
    for (size_t i = 0; i < ckpt_tensor_count(k->c); i++) {
        const char *name = ckpt_tensor_at(k->c, i)->name;
        if (k->known[i] || is_unread(m, name)) continue;
        return status_make(STATUS_INPUT, "%s: tensor %s: %s has no such tensor; it is not ignored",
                           ckpt_path(k->c), name, m->family->title);
    }
    return status_ok();
}

bool weights_may_predict(const struct arch *m, const struct ckpt *c)
{
    for (size_t i = 0; i < ckpt_tensor_count(c); i++) {
        if (is_of_prediction(m, ckpt_tensor_at(c, i)->name)) return true;
    }
    return false;
}

struct status weights_check(const struct arch *m, const struct ckpt *c, struct layout_model *out)
{
    struct layout *l = NULL;
    struct checking k = {.c = c, .out = out};
    layout_describe(m, 2, out);
    struct status st;
    TRY_GOTO(st, mem_alloc(&l, 1, sizeof *l, "layout"), done);
    TRY_GOTO(st, mem_alloc(&k.known, ckpt_tensor_count(c), sizeof *k.known, "tensor marks"), done);
    const struct layout_flags one_rank = {.tp = 1, .pp = 1, .ep = 1, .dp = 1};
    TRY_GOTO(st, layout_build(out, 1, &one_rank, l), done);
    out->o_leaf = out->ffn_leaf = out->expert_leaf = out->shared_leaf = out->inner_unit = 0;
    out->delta_leaf = 0;
    TRY_GOTO(st, weights_list(l, layout_place_of(l, 0), check_one, &k), done);
    TRY_GOTO(st, check_unknown(m, &k), done);
    TRY_GOTO(st, check_tied(m, c), done);
    if (m->tied) out->weights[CLASS_HEAD] = out->weights[CLASS_EMBED];
    if (k.o->quant.kind == QUANT_NONE) out->weight_bytes = (uint32_t)dtype_bytes(k.o->dtype);
done:
    mem_free(&k.known);
    mem_free(&l);
    return st;
}

/* Turns a source into the list of tensors to write. The experts of a layer and projection become
 * one tensor, tensors are sorted by name, and each gets its type or format and its leaves. */
#include "arch/arch_rope.h"
#include "arch/arch_tensors.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "checkpoint/convert/convert_private.h"
#include "checkpoint/convert/published.h"
#include "checkpoint/file/ckpt_list.h"
#include "checkpoint/file/ckpt_room.h"
#include "tensor/leaf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DOWN_PROJ_UNIT = 32, EXPERTS_MAX = 1 << 16 };

/* ---- names ---- */

/* Splits "a.experts.7.b" into "a.experts.b" and 7. */
static struct status part_name(const char *name, struct convert_part *out)
{
    const char *found = strstr(name, ".experts.");
    const char *number = found == NULL ? NULL : found + strlen(".experts.");
    out->expert = -1;
    if (strlen(name) >= sizeof out->name) {
        return status_make(STATUS_INPUT, "tensor '%.100s...': its name is too long", name);
    }
    strcpy(out->name, name);
    if (number == NULL) return status_ok();
    if (*number < '0' || *number > '9') {
        const char *suffix = strrchr(name, '.');
        if (strcmp(suffix, ".weight") == 0 || strcmp(suffix, ".bias") == 0) return status_ok();
        return status_make(
            STATUS_INPUT,
            "tensor '%s': fused experts of this kind are not implemented; save the model in its "
            "original format",
            name);
    }
    char *end;
    out->expert = strtol(number, &end, 10);
    if (*end != '.' || out->expert >= EXPERTS_MAX) {
        return status_make(STATUS_INPUT, "tensor '%s': expected an expert's number", name);
    }
    snprintf(out->name, sizeof out->name, "%.*s%s", (int)(number - name), name, end + 1);
    return status_ok();
}

static int part_compare(const void *a, const void *b)
{
    const struct convert_part *x = a, *y = b;
    const int order = strcmp(x->name, y->name);
    if (order != 0) return order;
    return x->expert < y->expert ? -1 : x->expert > y->expert;
}

/* Returns the family of a config; NULL: shoal has none of that name. */
static const struct arch_family *family_of(const struct js_node *config)
{
    return arch_family_find(js_string(js_at(js_get(config, "architectures"), 0), NULL));
}

/* True when a tensor of the first prediction layer is read: all are, except the copies of the
 * embedding and of the head, which publishers repeat there. */
static bool is_read_for_prediction(const char *in_layer)
{
    return strcmp(in_layer, ".embed_tokens.weight") != 0 &&
           strcmp(in_layer, ".shared_head.head.weight") != 0;
}

/* True when no forward pass of shoal reads this tensor:
 *   - multi-token prediction, that is "mtp.", "model.mtp." and the layers from n_layers on; but
 *     families for which it is implemented read layer n_layers (is_read_for_prediction)
 *   - indexers of families whose attention is neither sparse nor compressed
 *   - the poolers and unused heads of encoders
 * n_layers: the model's layers; 0 if the config has no prediction layers. */
static bool is_unused(const char *name, int64_t n_layers, const struct arch_family *family,
                      bool has_classes)
{
    const char *prefix = "model.layers.";
    const bool predicts = family != NULL && family->predicts;
    const bool indexed = family != NULL && (family->indexed || family->compressed);
    char *end;
    if (strstr(name, ".self_attn.indexer.") != NULL && !indexed) return true;
    if (family != NULL && family->encoder && published_encoder_is_unread(name, has_classes))
        return true;
    if (strncmp(name, "mtp.", 4) == 0 || strncmp(name, "model.mtp.", 10) == 0) return true;
    if (n_layers <= 0 || strncmp(name, prefix, strlen(prefix)) != 0) return false;
    const int64_t layer = strtol(name + strlen(prefix), &end, 10);
    if (predicts && layer == n_layers) return !is_read_for_prediction(end);
    return layer >= n_layers;
}

/* Refuses a tensor of a prediction layer if config.json declares no such layer in
 * num_nextn_predict_layers; the layer would be taken for one of the model's. */
static struct status check_prediction(const struct convert *c, const char *name, int64_t n_mtp)
{
    static const char layers[] = "model.layers.", join[] = ".eh_proj.weight";
    const size_t n = strlen(name), n_join = strlen(join);
    if (n_mtp > 0 || n <= n_join || strncmp(name, layers, strlen(layers)) != 0 ||
        strcmp(name + n - n_join, join) != 0)
        return status_ok();
    return status_make(STATUS_INPUT,
                       "%s: tensor '%s' is of a prediction layer: expected "
                       "num_nextn_predict_layers in config.json, found %s",
                       c->options->source, name, n_mtp == 0 ? "0" : "none");
}

static struct status parts_list(struct convert *c)
{
    const size_t n = source_count(c->source);
    const struct js_node *config = source_config(c->source);
    const char *unused = NULL;
    const struct arch_family *family = family_of(config);
    size_t n_unused = 0;
    int64_t n_layers = 0, n_mtp = -1;
    if (js_int(js_get(config, "num_nextn_predict_layers"), &n_mtp) && n_mtp > 0)
        js_int(js_get(config, "num_hidden_layers"), &n_layers);
    bool has_classes = false;
    for (size_t i = 0; i < n; i++)
        has_classes = has_classes || strcmp(source_at(c->source, i)->name, "score.weight") == 0;
    if (n == 0) return status_make(STATUS_INPUT, "%s: no tensors", c->options->source);
    TRY(mem_alloc(&c->parts, n, sizeof c->parts[0], "the list of tensors"));
    for (size_t i = 0; i < n; i++) {
        const char *name = source_at(c->source, i)->name;
        if (!source_is_adapter(c->source) && is_unused(name, n_layers, family, has_classes)) {
            if (n_unused++ == 0) unused = name;
            continue;
        }
        if (!source_is_adapter(c->source)) TRY(check_prediction(c, name, n_mtp));
        c->parts[c->n_parts].source = i;
        TRY(part_name(name, &c->parts[c->n_parts++]));
    }
    if (n_unused > 0 && c->rank == 0) {
        log_line(LOG_WARN,
                 "%s: %zu tensors are left out, because nothing reads them (multi-token "
                 "prediction, an indexer, or an encoder's pooler or head); the first is %s",
                 c->options->source, n_unused, unused);
    }
    qsort(c->parts, c->n_parts, sizeof c->parts[0], part_compare);
    return status_ok();
}

static bool convert_same_format(struct quant_format a, struct quant_format b)
{
    if (a.kind == QUANT_NONE && b.kind == QUANT_NONE) return true;
    return a.kind == b.kind && a.has_zeros == b.has_zeros && a.scale_dtype == b.scale_dtype &&
           a.group == b.group;
}

/* Sets *n to the number of parts, from `first` on, that make one tensor. The parts must be experts
 * 0, 1, ... of one shape and type, or a single part. */
static struct status group_check(const struct convert *c, size_t first, size_t *n)
{
    const struct convert_part *p = c->parts + first;
    const struct source_tensor *t = source_at(c->source, p->source);
    for (*n = 1; first + *n < c->n_parts && strcmp(p[*n].name, p->name) == 0; (*n)++) {
    }
    if (p->expert < 0 && *n == 1) return status_ok();
    for (size_t i = 0; i < *n; i++) {
        const struct source_tensor *other = source_at(c->source, p[i].source);
        if (p[i].expert != (int64_t)i) {
            return status_make(STATUS_INPUT, "tensor '%s': expected expert %zu of %zu, found %lld",
                               p->name, i, *n, (long long)p[i].expert);
        }
        if (other->n_dims != 2 || other->dims[0] != t->dims[0] || other->dims[1] != t->dims[1] ||
            other->dtype != t->dtype ||
            (c->options->keep_codes && !convert_same_format(other->quant, t->quant))) {
            return status_make(STATUS_INPUT,
                               "tensor '%s': expert %zu differs from expert 0 in shape or type",
                               p->name, i);
        }
    }
    return status_ok();
}

/* ---- leaves ---- */

/* Sets the leaves of a tensor, quantized or not, of a source whose quantized values are kept. A
 * leaf is a whole number of groups; the group is c->group for all tensors, so that tensors of one
 * kind have equal leaves. If one group would make too long a leaf for a short tensor, the group is
 * split into shorter groups with the same scale. whole: as in leaf_fit_group. n_cols: the tensor's
 * columns or, if widen_leaf follows, those of as many heads of value_dim. */
static void leaf_of_codes(const struct convert *c, uint64_t n_cols, uint32_t whole,
                          struct ckpt_tensor_spec *spec)
{
    const bool is_expert = spec->n_dims == 3;
    const uint64_t n_least = is_expert ? LEAF_EXPERT_LEAST : LEAF_DENSE_LEAST;
    const uint32_t group = leaf_fit_group(n_cols, whole, c->group, n_least);
    if (spec->quant.kind != QUANT_NONE && quant_kernel_group(spec->quant) > group) {
        spec->quant.group = group;
    }
    spec->leaf_elems = leaf_choose_quantized(n_cols, leaf_common_unit(whole, group), n_least);
}

/* Changes o_proj's leaf from a number of heads of value_dim into the same number of heads of
 * full_dim. Sets it to 0 if these heads are not whole quantization groups. */
static void widen_leaf(const struct convert *c, struct ckpt_tensor_spec *spec)
{
    const uint32_t group = spec->quant.kind == QUANT_NONE ? 1 : quant_kernel_group(spec->quant);
    spec->leaf_elems = spec->leaf_elems / c->value_dim * c->full_dim;
    if (spec->leaf_elems % group != 0) spec->leaf_elems = 0;
}

static struct status leaf_set(const struct convert *c, struct ckpt_tensor_spec *spec)
{
    uint64_t n_cols = spec->dims[spec->n_dims - 1];
    const struct arch_tensor *t = arch_tensor_find(spec->name);
    if (spec->n_dims < 2 || t == NULL || !t->has_leaves) return status_ok();
    const bool is_delta = t->role == WEIGHT_DELTA_O, is_expert = spec->n_dims == 3;
    const bool is_o = t->role == WEIGHT_O || is_delta;
    uint32_t unit = DOWN_PROJ_UNIT;
    if (is_o) {
        unit = is_delta ? arch_delta_unit(source_config(c->source)) : c->value_dim;
        if (unit == 0) {
            return status_make(STATUS_INPUT, "config.json: expected %s, for tensor '%s'",
                               is_delta ? "the numbers of heads of the recurrent layers, and "
                                          "their width"
                                        : "head_dim, or hidden_size and num_attention_heads",
                               spec->name);
        }
    }
    const bool is_wide = is_o && !is_delta && c->full_dim > 0 && n_cols == c->n_heads * c->full_dim;
    if (is_o && !is_delta && c->n_heads > 0) n_cols = c->n_heads * c->value_dim;
    if (c->group == 0) {
        spec->leaf_elems =
            leaf_choose(n_cols, unit, is_expert ? LEAF_EXPERT_LEAST : LEAF_COUNT_LOW);
    } else {
        leaf_of_codes(c, n_cols, is_o ? unit : 1, spec);
    }
    if (is_wide) widen_leaf(c, spec);
    spec->grid_bits = GRID_BITS_DEFAULT;
    if (spec->leaf_elems != 0) return status_ok();
    return status_make(STATUS_INPUT,
                       "tensor '%s': %llu columns cannot be cut into at most %d leaves", spec->name,
                       (unsigned long long)n_cols, LEAF_COUNT_MAX);
}

/* ---- tensors ---- */

static bool convert_has_role(const char *name, enum weight_role role)
{
    const struct arch_tensor *t = arch_tensor_find(name);
    return t != NULL && t->role == role;
}

static bool is_conv(const char *name)
{
    return convert_has_role(name, WEIGHT_CONV_Q) || convert_has_role(name, WEIGHT_CONV_K) ||
           convert_has_role(name, WEIGHT_CONV_V);
}

static bool keeps_codes(const struct convert *c, const struct source_tensor *t)
{
    /* latent attention splits this tensor, so its quantized values are not kept */
    return c->options->keep_codes && t->quant.kind != QUANT_NONE &&
           !convert_has_role(t->name, WEIGHT_KV_B);
}

static struct status spec_make(const struct convert *c, size_t first, size_t n,
                               struct ckpt_tensor_spec *out)
{
    const struct convert_part *p = c->parts + first;
    const struct source_tensor *t = source_at(c->source, p->source);
    const bool merged = p->expert >= 0;
    struct ckpt_tensor_spec spec = {.name = p->name,
                                    .dtype = c->options->keep_dtype ? t->dtype : c->options->dtype};
    /* routing depends on small differences between the selection biases */
    if (convert_has_role(p->name, WEIGHT_SELECT_BIAS) || t->needs_f32) spec.dtype = DTYPE_F32;
    if (keeps_codes(c, t)) {
        spec.quant = t->quant;
        spec.method = t->method;
    }
    spec.n_dims = t->n_dims + (merged ? 1 : 0);
    spec.dims[0] = n;
    memcpy(spec.dims + (merged ? 1 : 0), t->dims, t->n_dims * sizeof t->dims[0]);
    if (is_conv(p->name) && spec.n_dims == 3 && spec.dims[1] == 1) {
        spec.dims[1] = spec.dims[2]; /* [channels, 1, taps]: one group for each channel */
        spec.n_dims = 2;
    }
    TRY(leaf_set(c, &spec));
    *out = spec;
    return status_ok();
}

/* Counts a tensor that is quantized in the source, in the file, or in both. */
static void count_add(struct convert_result *r, enum convert_way way,
                      const struct ckpt_tensor_spec *spec)
{
    char format[sizeof r->counts[0].format];
    snprintf(format, sizeof format, "%s", dtype_name(spec->dtype));
    if (spec->quant.kind != QUANT_NONE) quant_format_name(spec->quant, format, sizeof format);
    size_t i = 0;
    while (i < r->n_counts && (r->counts[i].way != way || strcmp(r->counts[i].format, format) != 0))
        i++;
    if (i == CONVERT_COUNTS_MAX) return;
    struct convert_count *c = &r->counts[i];
    if (i == r->n_counts) {
        *c = (struct convert_count){.way = way};
        memcpy(c->format, format, sizeof c->format);
        snprintf(c->first, sizeof c->first, "%s", spec->name);
        r->n_counts++;
    }
    c->n_tensors++;
}

/* Lists and checks all tensors before the first byte is written. */
static struct status tensors_list(struct convert *c)
{
    size_t n;
    TRY(mem_alloc(&c->tensors, c->n_parts, sizeof c->tensors[0], "the list of tensors"));
    for (size_t i = 0; i < c->n_parts; i++) {
        const struct source_tensor *t = source_at(c->source, c->parts[i].source);
        if (keeps_codes(c, t) && quant_kernel_group(t->quant) > c->group) {
            c->group = quant_kernel_group(t->quant);
        }
    }
    for (size_t first = 0; first < c->n_parts; first += n) {
        struct convert_tensor *t = &c->tensors[c->n_tensors++];
        TRY(group_check(c, first, &n));
        t->first = first;
        t->n_parts = n;
        TRY(spec_make(c, first, n, &t->taken));
        t->spec = t->taken;
    }
    return status_ok();
}

/* Lets the options' callback choose other formats. */
static struct status specs_choose(struct convert *c)
{
    const struct strbuf *config = source_text(c->source, CKPT_TEXT_CONFIG);
    struct ckpt_tensor_spec *specs = NULL;
    struct ckpt *ckpt = NULL;
    struct status st;
    if (c->options->choose == NULL) return status_ok();
    TRY_GOTO(st, mem_alloc(&specs, c->n_tensors, sizeof specs[0], "the list of tensors"), out);
    for (size_t i = 0; i < c->n_tensors; i++) specs[i] = c->tensors[i].taken;
    const struct ckpt_list list = {.path = c->options->source,
                                   .config = config->data,
                                   .n_config = config->n,
                                   .specs = specs,
                                   .n_specs = c->n_tensors};
    TRY_GOTO(st, ckpt_list_create(&list, &ckpt), out);
    TRY_GOTO(st, c->options->choose(c->options->choose_ctx, ckpt, specs), out);
    for (size_t i = 0; i < c->n_tensors; i++) {
        struct convert_tensor *t = &c->tensors[i];
        t->spec = specs[i];
        t->is_made = !convert_same_format(t->spec.quant, t->taken.quant) ||
                     (t->spec.quant.kind == QUANT_NONE && t->spec.dtype != t->taken.dtype);
    }
out:
    ckpt_close(&ckpt);
    mem_free(&specs);
    return st;
}

static void tensors_count(struct convert *c)
{
    for (size_t i = 0; i < c->n_tensors; i++) {
        const struct convert_tensor *t = &c->tensors[i];
        const bool was = source_at(c->source, c->parts[t->first].source)->method != NULL;
        const bool is = t->spec.quant.kind != QUANT_NONE;
        if (!was && !is) continue;
        count_add(&c->result,
                  !is          ? CONVERT_WIDENED
                  : !was       ? CONVERT_ROUNDED
                  : t->is_made ? CONVERT_AGAIN
                               : CONVERT_KEPT,
                  &t->spec);
    }
}

static struct status texts_write(struct convert *c)
{
    for (int i = 0; i < CKPT_TEXT_COUNT; i++) {
        const struct strbuf *text = source_text(c->source, (enum ckpt_text)i);
        if (i == CKPT_TEXT_CONFIG) {
            TRY(ckpt_writer_config(c->writer, text->data, text->n));
        } else {
            TRY(ckpt_writer_text(c->writer, (enum ckpt_text)i, text->data, text->n));
        }
    }
    return status_ok();
}

/* Logs how much disk the file takes; an error if the file system has less free. */
static struct status room_check(const struct convert *c)
{
    const struct convert_options *o = c->options;
    uint64_t n_needed = 0, n_free;
    for (int i = 0; i < CKPT_TEXT_COUNT; i++) {
        n_needed += source_text(c->source, (enum ckpt_text)i)->n;
    }
    for (size_t i = 0; i < c->n_tensors; i++) {
        n_needed += ckpt_room_needed(&c->tensors[i].spec, 1, 0);
    }
    TRY((o->free_bytes != NULL ? o->free_bytes : ckpt_room_free)(o->path, &n_free));
    return ckpt_room_check(o->path, n_needed, n_free);
}

/* Does what each rank does alone before rows are read; rank 0 also begins the file. */
static struct status convert_begin(struct convert *c)
{
    TRY(source_open(c->options->source, &c->source));
    c->value_dim = arch_value_dim(source_config(c->source));
    c->full_dim = arch_full_dim(source_config(c->source), &c->n_heads);
    TRY(status_wrap(parts_list(c), "%s", c->options->source));
    TRY(convert_check_prediction(c));
    TRY(status_wrap(tensors_list(c), "%s", c->options->source));
    TRY(specs_choose(c));
    tensors_count(c);
    if (c->rank != 0) return status_ok();
    TRY(room_check(c));
    TRY(ckpt_writer_create(c->options->path, source_kind(c->source), &c->writer));
    return status_wrap(texts_write(c), "%s", c->options->source);
}

static struct status convert_agree(const struct convert *c, struct status mine)
{
    return c->comm == NULL ? mine : comm_agree(c->comm, mine);
}

struct status convert_run(const struct convert_options *options, struct comm *comm,
                          struct convert_result *result)
{
    struct convert c = {.options = options, .comm = comm, .n_ranks = 1};
    const uint64_t start_ns = clock_ns();
    struct status st;
    if (comm != NULL) {
        c.rank = comm_rank(comm, COMM_WORLD);
        c.n_ranks = comm_size(comm, COMM_WORLD);
    }
    TRY_GOTO(st, convert_agree(&c, convert_begin(&c)), out);
    TRY_GOTO(st, convert_all_rows(&c), out);
    st = convert_agree(&c, c.rank == 0 ? ckpt_writer_finish(&c.writer) : status_ok());
    c.result.n_tensors = c.n_tensors;
    c.result.n_bytes = c.done_bytes;
    c.result.seconds = (double)(clock_ns() - start_ns) * 1e-9;
    if (result != NULL) *result = c.result;
out:
    ckpt_writer_destroy(&c.writer);
    source_close(&c.source);
    mem_free(&c.parts);
    mem_free(&c.tensors);
    mem_free(&c.scratch);
    mem_free(&c.taken);
    mem_free(&c.values);
    return st;
}

/* Conversion: the experts of a layer and projection become one tensor, tensors are written in the
 * order of their names, rows stream through two buffers. */
#include "checkpoint/convert.h"

#include "base/clock.h"
#include "base/mem.h"
#include "checkpoint/ckpt_writer.h"
#include "checkpoint/source.h"
#include "tensor/leaf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 8 << 20, DOWN_PROJ_UNIT = 32, EXPERTS_MAX = 1 << 16 };

/* A source tensor with the name and place it gets: expert -1 is a tensor of its own. */
struct part {
    char name[CKPT_NAME_MAX];
    int64_t expert;
    size_t source;
};

struct convert {
    const struct convert_options *options;
    struct source *source;
    struct ckpt_writer *writer;
    struct part *parts; /* owned [n_parts], sorted by name, then expert */
    size_t n_parts;
    uint32_t head_dim;   /* 0: unknown */
    uint32_t group;      /* the largest of kept codes, in inputs; 0: none are kept */
    char *scratch, *out; /* owned */
    size_t n_scratch_bytes, n_out_bytes;
    char *codes[CKPT_PART_COUNT]; /* owned: rows of a quantized tensor */
    size_t n_codes_bytes[CKPT_PART_COUNT];
    uint64_t done_bytes, total_bytes;
    struct convert_result result;
};

/* ---- names ---- */

/* "a.experts.7.b" becomes "a.experts.b" and 7. */
static struct status part_name(const char *name, struct part *out)
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
        return status_make(STATUS_INPUT,
                           "tensor '%s': fused experts are not implemented; save the model in its "
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
    const struct part *x = a, *y = b;
    const int order = strcmp(x->name, y->name);
    if (order != 0) return order;
    return x->expert < y->expert ? -1 : x->expert > y->expert;
}

static struct status parts_list(struct convert *c)
{
    c->n_parts = source_count(c->source);
    if (c->n_parts == 0) return status_make(STATUS_INPUT, "%s: no tensors", c->options->source);
    TRY(mem_alloc(&c->parts, c->n_parts, sizeof c->parts[0], "the list of tensors"));
    for (size_t i = 0; i < c->n_parts; i++) {
        c->parts[i].source = i;
        TRY(part_name(source_at(c->source, i)->name, &c->parts[i]));
    }
    qsort(c->parts, c->n_parts, sizeof c->parts[0], part_compare);
    return status_ok();
}

static bool same_format(struct quant_format a, struct quant_format b)
{
    return a.kind == b.kind && a.has_zeros == b.has_zeros && a.scale_dtype == b.scale_dtype &&
           a.group == b.group;
}

/* How many parts from `first` on make one tensor; they must be experts 0, 1, ... of one shape. */
static struct status group_check(const struct convert *c, size_t first, size_t *n)
{
    const struct part *p = c->parts + first;
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
            (c->options->keep_codes && !same_format(other->quant, t->quant))) {
            return status_make(STATUS_INPUT,
                               "tensor '%s': expert %zu differs from expert 0 in shape or type",
                               p->name, i);
        }
    }
    return status_ok();
}

/* ---- leaves ---- */

static bool ends_with(const char *name, const char *suffix)
{
    const size_t n = strlen(name), m = strlen(suffix);
    return n >= m && strcmp(name + n - m, suffix) == 0;
}

static void head_dim_find(struct convert *c)
{
    const struct js_node *config = source_config(c->source);
    int64_t head_dim = 0, width = 0, n_heads = 0;
    if (!js_int(js_get(config, "head_dim"), &head_dim) &&
        js_int(js_get(config, "hidden_size"), &width) &&
        js_int(js_get(config, "num_attention_heads"), &n_heads) && n_heads > 0) {
        head_dim = width / n_heads;
    }
    c->head_dim = head_dim > 0 && head_dim <= UINT32_MAX / 2 ? (uint32_t)head_dim : 0;
}

/* Where codes are kept, all leaves are whole groups: a model's tensors of a kind are cut alike. */
static uint32_t leaf_of(const struct convert *c, const char *name, uint64_t n_cols, uint32_t unit)
{
    if (c->group == 0) return leaf_choose(n_cols, unit);
    const bool is_expert = strstr(name, ".experts.") != NULL;
    const uint32_t whole = ends_with(name, ".o_proj.weight") ? unit : 1;
    return leaf_choose_quantized(n_cols, leaf_common_unit(whole, c->group),
                                 is_expert ? LEAF_EXPERT_LEAST : LEAF_DENSE_LEAST);
}

static struct status leaf_set(const struct convert *c, struct ckpt_tensor_spec *spec)
{
    const uint64_t n_cols = spec->dims[spec->n_dims - 1];
    uint32_t unit = 0;
    if (spec->n_dims < 2) return status_ok();
    if (ends_with(spec->name, ".o_proj.weight")) {
        unit = c->head_dim;
        if (unit == 0) {
            return status_make(STATUS_INPUT,
                               "config.json: expected head_dim, or hidden_size and "
                               "num_attention_heads, for tensor '%s'",
                               spec->name);
        }
    } else if (ends_with(spec->name, ".down_proj.weight") ||
               ends_with(spec->name, ".experts.w2.weight")) {
        unit = DOWN_PROJ_UNIT;
    }
    if (unit == 0) return status_ok();
    spec->leaf_elems = leaf_of(c, spec->name, n_cols, unit);
    spec->grid_bits = GRID_BITS_DEFAULT;
    if (spec->leaf_elems != 0) return status_ok();
    return status_make(STATUS_INPUT,
                       "tensor '%s': %llu columns cannot be cut into at most %d leaves", spec->name,
                       (unsigned long long)n_cols, LEAF_COUNT_MAX);
}

/* ---- writing ---- */

static struct status reserve(char **buffer, size_t *n_bytes, size_t n_wanted, const char *what)
{
    if (n_wanted <= *n_bytes) return status_ok();
    mem_free(buffer);
    *n_bytes = 0;
    TRY(mem_alloc(buffer, n_wanted, 1, what));
    *n_bytes = n_wanted;
    return status_ok();
}

static bool keeps_codes(const struct convert *c, const struct source_tensor *t)
{
    return c->options->keep_codes && t->quant.kind != QUANT_NONE;
}

/* Rows read at once. */
static uint64_t chunk_rows(const struct source_tensor *t)
{
    uint64_t n = CHUNK_BYTES / sizeof(float) / t->n_cols;
    n -= n % t->row_group;
    if (n == 0) n = t->row_group;
    return n < t->n_rows ? n : t->n_rows;
}

static void advance(struct convert *c, const char *name, uint64_t n_bytes)
{
    c->done_bytes += n_bytes;
    if (c->options->progress != NULL) {
        c->options->progress(c->options->progress_ctx, name, c->done_bytes, c->total_bytes);
    }
}

static uint64_t code_row_bytes(const struct source_tensor *t)
{
    uint64_t n = 0;
    for (int part = 0; part < CKPT_PART_COUNT; part++) {
        if (part == CKPT_ZEROS && !t->quant.has_zeros) continue;
        n += ckpt_part_columns((enum ckpt_part)part, t->quant, t->n_cols) *
             dtype_bytes(ckpt_part_dtype((enum ckpt_part)part, t->quant));
    }
    return n;
}

/* A quantized part, code by code. */
static struct status part_keep(struct convert *c, size_t index, const char *name)
{
    const struct source_tensor *t = source_at(c->source, index);
    const uint64_t n_chunk = chunk_rows(t);
    TRY(reserve(&c->scratch, &c->n_scratch_bytes, source_scratch_bytes(c->source, index, n_chunk),
                "rows of the source"));
    for (int part = 0; part < CKPT_PART_COUNT; part++) {
        const uint64_t n_cols = ckpt_part_columns((enum ckpt_part)part, t->quant, t->n_cols);
        const size_t n_bytes = dtype_bytes(ckpt_part_dtype((enum ckpt_part)part, t->quant));
        TRY(reserve(&c->codes[part], &c->n_codes_bytes[part], n_chunk * n_cols * n_bytes,
                    "codes to be written"));
    }
    const struct quant_block block = {.codes = c->codes[CKPT_CODES],
                                      .scales = c->codes[CKPT_SCALES],
                                      .zeros = t->quant.has_zeros ? (uint8_t *)c->codes[CKPT_ZEROS]
                                                                  : NULL};
    for (uint64_t row = 0; row < t->n_rows; row += n_chunk) {
        const uint64_t n = t->n_rows - row < n_chunk ? t->n_rows - row : n_chunk;
        TRY(source_codes(c->source, index, row, n, c->scratch, &block));
        TRY(ckpt_writer_quant_rows(c->writer, &block, n));
        advance(c, name, n * code_row_bytes(t));
    }
    return status_ok();
}

static struct status part_write(struct convert *c, size_t index, const char *name, enum dtype dtype)
{
    const struct source_tensor *t = source_at(c->source, index);
    if (keeps_codes(c, t)) return part_keep(c, index, name);
    const uint64_t n_chunk = chunk_rows(t);
    const size_t row_bytes = (size_t)t->n_cols * dtype_bytes(dtype);
    TRY(reserve(&c->scratch, &c->n_scratch_bytes, source_scratch_bytes(c->source, index, n_chunk),
                "rows of the source"));
    TRY(reserve(&c->out, &c->n_out_bytes, n_chunk * row_bytes, "rows to be written"));
    for (uint64_t row = 0; row < t->n_rows; row += n_chunk) {
        const uint64_t n = t->n_rows - row < n_chunk ? t->n_rows - row : n_chunk;
        TRY(source_rows(c->source, index, row, n, dtype, c->scratch, c->out,
                        &c->result.n_overflowed));
        TRY(ckpt_writer_rows(c->writer, c->out, n));
        advance(c, name, n * row_bytes);
    }
    return status_ok();
}

static enum dtype stored_dtype(const struct convert *c, const struct source_tensor *t)
{
    return c->options->keep_dtype ? t->dtype : c->options->dtype;
}

static struct status group_write(struct convert *c, size_t first, size_t n)
{
    const struct part *p = c->parts + first;
    const struct source_tensor *t = source_at(c->source, p->source);
    const bool merged = p->expert >= 0;
    struct ckpt_tensor_spec spec = {.name = p->name, .dtype = stored_dtype(c, t)};
    if (keeps_codes(c, t)) {
        spec.quant = t->quant;
        spec.method = t->method;
    }
    spec.n_dims = t->n_dims + (merged ? 1 : 0);
    spec.dims[0] = n;
    memcpy(spec.dims + (merged ? 1 : 0), t->dims, t->n_dims * sizeof t->dims[0]);
    TRY(leaf_set(c, &spec));
    TRY(ckpt_writer_tensor(c->writer, &spec));
    for (size_t i = 0; i < n; i++) TRY(part_write(c, p[i].source, p->name, spec.dtype));
    c->result.n_tensors++;
    return status_ok();
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

static struct status tensors_write(struct convert *c)
{
    size_t n;
    /* all groups are checked before the first byte is written */
    for (size_t first = 0; first < c->n_parts; first += n) {
        TRY(group_check(c, first, &n));
        for (size_t i = 0; i < n; i++) {
            const struct source_tensor *t = source_at(c->source, c->parts[first + i].source);
            const uint64_t row_bytes = t->n_cols * dtype_bytes(stored_dtype(c, t));
            c->total_bytes += t->n_rows * (keeps_codes(c, t) ? code_row_bytes(t) : row_bytes);
            if (keeps_codes(c, t) && quant_kernel_group(t->quant) > c->group) {
                c->group = quant_kernel_group(t->quant);
            }
        }
    }
    TRY(texts_write(c));
    for (size_t first = 0; first < c->n_parts; first += n) {
        TRY(group_check(c, first, &n));
        TRY(group_write(c, first, n));
    }
    return status_ok();
}

struct status convert_run(const struct convert_options *options, struct convert_result *result)
{
    struct convert c = {.options = options};
    const uint64_t start_ns = clock_ns();
    struct status st;
    TRY_GOTO(st, source_open(options->source, &c.source), out);
    head_dim_find(&c);
    TRY_GOTO(st, status_wrap(parts_list(&c), "%s", options->source), out);
    TRY_GOTO(st, ckpt_writer_create(options->path, source_kind(c.source), &c.writer), out);
    TRY_GOTO(st, status_wrap(tensors_write(&c), "%s", options->source), out);
    st = ckpt_writer_finish(&c.writer);
    c.result.n_bytes = c.done_bytes;
    c.result.seconds = (double)(clock_ns() - start_ns) * 1e-9;
    if (result != NULL) *result = c.result;
out:
    ckpt_writer_destroy(&c.writer);
    source_close(&c.source);
    mem_free(&c.parts);
    mem_free(&c.scratch);
    for (int part = 0; part < CKPT_PART_COUNT; part++) mem_free(&c.codes[part]);
    mem_free(&c.out);
    return st;
}

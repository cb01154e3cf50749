#include "checkpoint/convert/gguf_delta.h"

#include <math.h>

static struct status shape_check(const struct gguf_model *m, const struct gguf_tensor *t,
                                 uint64_t n_rows)
{
    if (t->n_dims == 2 && t->dims[0] == n_rows && t->dims[1] == (uint64_t)m->width)
        return status_ok();
    return status_make(STATUS_INPUT, "%s: tensor '%s': expected [%llu, %lld]", gguf_path(m->file),
                       t->name, (unsigned long long)n_rows, (long long)m->width);
}

struct status gguf_delta_find(const struct gguf_model *m, const struct gguf_tensor *t, bool *found,
                              struct gguf_delta *out)
{
    static const char *const suffixes[] = {"attn_qkv.weight", "attn_gate.weight"};
    struct gguf_pair pair;
    *found = false;
    if (m->family->delta) TRY(gguf_model_pair(m, t, suffixes, found, &pair));
    if (!*found) return status_ok();
    *out = (struct gguf_delta){.qkv = pair.first,
                               .z = pair.second,
                               .layer = pair.layer,
                               .n_heads = (uint64_t)m->delta.n_key_heads,
                               .key = (uint64_t)m->delta.key_dim,
                               .value = (uint64_t)m->delta.value_rows};
    TRY(shape_check(m, out->qkv, out->n_heads * (2 * out->key + out->value)));
    return shape_check(m, out->z, out->n_heads * out->value);
}

uint64_t gguf_delta_row_count(const struct gguf_delta *d)
{
    return 2 * d->n_heads * (d->key + d->value);
}

size_t gguf_delta_scratch_bytes(const struct gguf_delta *d, uint64_t n_rows)
{
    const uint64_t a = d->qkv->row_bytes, b = d->z->row_bytes;
    return (size_t)(n_rows * (a > b ? a : b));
}

/* Rows that lie one after another in one of the halves. */
struct run {
    const struct gguf_tensor *t;
    uint64_t row0, n_rows;
};

/* Returns the run that begins with a row of in_proj_qkvz and has at most n_max rows. */
static struct run run_at(const struct gguf_delta *d, uint64_t row, uint64_t n_max)
{
    const uint64_t n = 2 * (d->key + d->value), head = row / n, k = d->n_heads * d->key;
    const struct {
        const struct gguf_tensor *t;
        uint64_t first, n_rows; /* of this head */
    } parts[] = {{d->qkv, head * d->key, d->key},
                 {d->qkv, k + head * d->key, d->key},
                 {d->qkv, 2 * k + head * d->value, d->value},
                 {d->z, head * d->value, d->value}};
    uint64_t at = row % n;
    size_t i = 0;
    while (at >= parts[i].n_rows) at -= parts[i++].n_rows;
    const uint64_t rest = parts[i].n_rows - at;
    return (struct run){parts[i].t, parts[i].first + at, rest < n_max ? rest : n_max};
}

struct status gguf_delta_rows(const struct gguf *g, const struct gguf_delta *d, uint64_t row0,
                              uint64_t n_rows, void *scratch, float *out)
{
    struct run run;
    for (uint64_t r = 0; r < n_rows; r += run.n_rows) {
        run = run_at(d, row0 + r, n_rows - r);
        TRY(gguf_read_floats(g, run.t, run.row0, run.n_rows, scratch, out + r * run.t->n_cols));
    }
    return status_ok();
}

struct status gguf_delta_codes(const struct gguf *g, const struct gguf_delta *d, uint64_t row0,
                               uint64_t n_rows, void *scratch, const struct quant_block *out,
                               bool *fits)
{
    struct run run;
    struct quant_format f;
    *fits = gguf_quant_format(d->qkv->quant, &f);
    const uint64_t n = d->qkv->n_cols, scale_bytes = dtype_bytes(quant_scale_dtype(f));
    for (uint64_t r = 0; *fits && r < n_rows; r += run.n_rows) {
        run = run_at(d, row0 + r, n_rows - r);
        const struct quant_block part = {
            .codes = (char *)out->codes + r * quant_code_bytes(f.kind, n),
            .scales = (char *)out->scales + r * quant_groups(f, n) * scale_bytes,
        };
        TRY(gguf_read_rows(g, run.t, run.row0, run.n_rows, scratch));
        *fits = gguf_codes(run.t->quant, scratch, run.n_rows, n, &part);
    }
    return status_ok();
}

bool gguf_delta_decays(float *values, size_t n)
{
    static const double rounding = 0x1p-22; /* of f32, and of an exp that is not rounded exactly */
    for (size_t i = 0; i < n; i++) {
        if (!(values[i] < 0) || !isfinite(values[i])) return false;
        const double stored = -(double)values[i];
        const float exact = (float)log(stored);
        uint16_t bits;
        float narrow;
        dtype_from_f32(DTYPE_BF16, &exact, 1, &bits);
        dtype_to_f32(DTYPE_BF16, &bits, 1, &narrow);
        values[i] = fabs(exp(narrow) - stored) <= rounding * stored ? narrow : exact;
    }
    return true;
}

#include "checkpoint/convert/gguf_delta.h"

#include <math.h>
#include <stdio.h>

static struct status shape_check(const struct gguf_model *m, const struct gguf_tensor *t,
                                 uint64_t n_rows)
{
    if (t->n_dims == 2 && t->dims[0] == n_rows && t->dims[1] == (uint64_t)m->width)
        return status_ok();
    return status_make(STATUS_INPUT, "%s: tensor '%s': expected [%llu, %lld]", gguf_path(m->file),
                       t->name, (unsigned long long)n_rows, (long long)m->width);
}

struct status gguf_delta_find(const struct gguf_model *m, const struct gguf_tensor *t, bool *found,
                              struct gguf_join *out)
{
    static const char *const suffixes[] = {"attn_qkv.weight", "attn_gate.weight"};
    struct gguf_pair pair;
    *found = false;
    if (m->family->delta) TRY(gguf_model_pair(m, t, suffixes, found, &pair));
    if (!*found) return status_ok();
    const uint64_t heads = (uint64_t)m->delta.n_key_heads, key = (uint64_t)m->delta.key_dim;
    const uint64_t value = (uint64_t)m->delta.value_rows, n_keys = heads * key;
    *out = (struct gguf_join){
        .halves = {pair.first, pair.second},
        .parts = {{0, key, 0}, {n_keys, key, 0}, {2 * n_keys, value, 0}, {0, value, 1}},
        .n_parts = 4,
        .n_turns = heads,
        .n_dims = 2,
        .dims = {2 * heads * (key + value), pair.first->n_cols}};
    snprintf(out->name, sizeof out->name, "model.layers.%lld.linear_attn.in_proj_qkvz.weight",
             (long long)pair.layer);
    TRY(shape_check(m, pair.first, heads * (2 * key + value)));
    return shape_check(m, pair.second, heads * value);
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

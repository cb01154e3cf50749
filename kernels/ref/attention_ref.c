/* Attention, one row, one head and one tile at a time, as kern.h writes it down. O lives in the
 * row's output until the last tile is folded in. */
#include "kernels/ref/ref.h"

#include "kernels/body.h"
#include "kernels/elementary_body.h"

#include <math.h>

/* The visible part [j0, j1) of a tile (slots counted from its start), its keys and values, and one
 * query row. */
struct tile {
    const float *q;
    const void *keys, *values; /* of slot 0 */
    size_t head_dim, j0, j1;
    float scale;
};

/* A row's running state: M, L; O is in the output row. */
struct state {
    float max, sum;
};

REF_INLINE float tree_sum(float lanes[LANES])
{
    for (size_t half = LANES / 2; half > 0; half /= 2)
        for (size_t i = 0; i < half; i++) lanes[i] += lanes[i + half];
    return lanes[0];
}

REF_INLINE float score(enum dtype t, const struct tile *tile, size_t j)
{
    float lanes[LANES] = {0};
    for (size_t d = 0; d < tile->head_dim; d++) {
        const float k = kern_kv_load(t, tile->keys, tile->head_dim, j, d);
        lanes[d % LANES] = fmaf(tile->q[d], k, lanes[d % LANES]);
    }
    return tree_sum(lanes) * tile->scale;
}

/* e[j] = exp(s_j - m) of the visible slots; returns (m, l). */
REF_INLINE struct state weights(enum dtype t, const struct tile *tile, float e[KV_BLOCK_TOKENS])
{
    struct state s = {-INFINITY, 0.0f};
    float lanes[LANES] = {0};
    for (size_t j = tile->j0; j < tile->j1; j++) {
        e[j] = score(t, tile, j);
        s.max = e[j] > s.max ? e[j] : s.max;
    }
    for (size_t j = tile->j0; j < tile->j1; j++) {
        e[j] = el_exp_body(e[j] - s.max);
        lanes[j % LANES] += e[j];
    }
    s.sum = tree_sum(lanes);
    return s;
}

REF_INLINE float weighted_value(enum dtype t, const struct tile *tile, const float *e, size_t d)
{
    float o = 0.0f;
    for (size_t j = tile->j0; j < tile->j1; j++)
        o = fmaf(e[j], kern_kv_load(t, tile->values, tile->head_dim, j, d), o);
    return o;
}

/* Folds a tile into the row's state; the first one is taken as it is. */
REF_INLINE void fold(enum dtype t, const struct tile *tile, bool first, struct state *total,
                     float *out)
{
    float e[KV_BLOCK_TOKENS];
    const struct state part = weights(t, tile, e);
    if (first) {
        for (size_t d = 0; d < tile->head_dim; d++) out[d] = weighted_value(t, tile, e, d);
        *total = part;
        return;
    }
    const float max = part.max > total->max ? part.max : total->max;
    const float a = el_exp_body(total->max - max), b = el_exp_body(part.max - max);
    for (size_t d = 0; d < tile->head_dim; d++)
        out[d] = fmaf(weighted_value(t, tile, e, d), b, out[d] * a);
    *total = (struct state){max, fmaf(part.sum, b, total->sum * a)};
}

REF_INLINE void row(enum dtype t, const struct attn_args *a, const struct seq_rows *seq,
                    size_t head, size_t i)
{
    const size_t p = seq->pos0 + i, lo = kern_first_visible(p, a->window);
    const size_t hd = a->kv.head_dim, g = a->kv_of_head[head];
    const size_t at = ((seq->row0 + i) * a->n_heads + head) * hd;
    struct tile tile = {.q = a->q + at, .head_dim = hd, .scale = a->scale};
    struct state total = {0};
    for (size_t n = lo / KV_BLOCK_TOKENS; n <= p / KV_BLOCK_TOKENS; n++) {
        const size_t start = n * KV_BLOCK_TOKENS, left = p + 1 - start;
        tile.keys = kern_kv_half(&a->kv, seq->blocks[n], 0, g);
        tile.values = kern_kv_half(&a->kv, seq->blocks[n], 1, g);
        tile.j0 = lo > start ? lo - start : 0;
        tile.j1 = left < KV_BLOCK_TOKENS ? left : KV_BLOCK_TOKENS;
        fold(t, &tile, n == lo / KV_BLOCK_TOKENS, &total, a->out + at);
    }
    const float sum = kern_attention_sum(a, head, total.max, total.sum);
    for (size_t d = 0; d < hd; d++) a->out[at + d] /= sum;
}

#define ATTENTION_REF(name, type)                                                                  \
    REF_CLONES void k_attention_##name##_ref(const struct attn_args *a, size_t seq, size_t head,   \
                                             size_t row0, size_t row1)                             \
    {                                                                                              \
        for (size_t i = row0; i < row1; i++) row(type, a, &a->seqs[seq], head, i);                 \
    }
ATTENTION_REF(f32, DTYPE_F32)
ATTENTION_REF(f16, DTYPE_F16)
ATTENTION_REF(bf16, DTYPE_BF16)
ATTENTION_REF(i8, DTYPE_I8)
ATTENTION_REF(fp8, DTYPE_F8_E4M3)

/* Attention as kern.h defines it, one row, one head and one tile at a time. O accumulates in the
 * row's output. */
#include "kernels/ref/ref.h"

#include "kernels/body.h"
#include "kernels/elementary_body.h"

#include <math.h>

/* One query, the slots [j0, j1) of a tile that it sees, and the tile's keys and values. */
struct tile {
    const float *q;
    const void *keys, *values; /* of slot 0 */
    size_t head_dim, j0, j1;
    float scale, softcap;
};

/* A row's running maximum M and sum L. */
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
    const float s = tree_sum(lanes) * tile->scale;
    return tile->softcap > 0 ? el_softcap_body(s, tile->softcap) : s;
}

/* e[j] = exp(s_j - m) for the visible slots; returns (m, l). */
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

/* The factors by which a fold brings a row's sum and output (`a`) and those of the next tile (`b`)
 * to their common maximum. */
struct factors {
    float a, b;
};

REF_INLINE struct factors fold_state(struct state part, struct state *total)
{
    const float max = part.max > total->max ? part.max : total->max;
    const struct factors f = {el_exp_body(total->max - max), el_exp_body(part.max - max)};
    *total = (struct state){max, fmaf(part.sum, f.b, total->sum * f.a)};
    return f;
}

/* Folds a tile into the row's state and output; the first tile is copied. */
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
    const struct factors f = fold_state(part, total);
    for (size_t d = 0; d < tile->head_dim; d++)
        out[d] = fmaf(weighted_value(t, tile, e, d), f.b, out[d] * f.a);
}

static size_t row_at(const struct attn_args *a, const struct attn_slice *s, size_t head, size_t i)
{
    return ((a->seqs[s->seq].row0 + i) * a->n_heads + head) * a->kv.head_dim;
}

static float *part_at(const struct attn_args *a, const struct attn_slice *s, size_t head, size_t n)
{
    return s->parts + ((n - s->tile0) * a->n_heads + head) * kern_part_floats(a->kv.head_dim);
}

/* Returns the slots of tile n that row i of the sequence sees, for one head; the caller sets q. */
REF_INLINE struct tile seen_tile(const struct attn_args *a, const struct seq_rows *seq, size_t head,
                                 size_t i, size_t n)
{
    const size_t start = n * KV_BLOCK_TOKENS, g = a->kv_of_head[head];
    const size_t left = kern_last_visible(a, seq, i) + 1 - start;
    const size_t lo = kern_first_visible(seq->pos0 + i, a->window);
    return (struct tile){.keys = kern_kv_half(&a->kv, seq->blocks[n], 0, g),
                         .values = kern_kv_half(&a->kv, seq->blocks[n], 1, g),
                         .head_dim = a->kv.head_dim,
                         .j0 = lo > start ? lo - start : 0,
                         .j1 = left < KV_BLOCK_TOKENS ? left : KV_BLOCK_TOKENS,
                         .scale = a->scale,
                         .softcap = a->softcap};
}

REF_INLINE void divide(const struct attn_args *a, size_t head, struct state total, float *out)
{
    const float sum = kern_attention_sum(a, head, total.max, total.sum);
    for (size_t d = 0; d < a->kv.head_dim; d++) out[d] /= sum;
}

REF_INLINE void row(enum dtype t, const struct attn_args *a, const struct attn_slice *s,
                    size_t head, size_t i)
{
    const struct seq_rows *seq = &a->seqs[s->seq];
    const size_t last = kern_last_visible(a, seq, i) / KV_BLOCK_TOKENS;
    const size_t first = kern_first_visible(seq->pos0 + i, a->window) / KV_BLOCK_TOKENS;
    float *out = a->out + row_at(a, s, head, i);
    struct state total = {0};
    for (size_t n = first; n <= last; n++) {
        struct tile tile = seen_tile(a, seq, head, i, n);
        tile.q = a->q + row_at(a, s, head, i);
        fold(t, &tile, n == first, &total, out);
    }
    divide(a, head, total, out);
}

/* Stores the results of the slice's tiles for its row. */
REF_INLINE void row_parts(enum dtype t, const struct attn_args *a, const struct attn_slice *s,
                          size_t head)
{
    const struct seq_rows *seq = &a->seqs[s->seq];
    for (size_t n = s->tile0; n < s->tile1; n++) {
        struct tile tile = seen_tile(a, seq, head, s->row0, n);
        float *part = part_at(a, s, head, n);
        struct state state;
        tile.q = a->q + row_at(a, s, head, s->row0);
        fold(t, &tile, true, &state, part);
        part[tile.head_dim] = state.max;
        part[tile.head_dim + 1] = state.sum;
    }
}

REF_INLINE void slice(enum dtype t, const struct attn_args *a, const struct attn_slice *s)
{
    for (size_t head = s->head0; head < s->head1; head++) {
        if (s->parts != NULL) {
            row_parts(t, a, s, head);
            continue;
        }
        for (size_t i = s->row0; i < s->row1; i++) {
            const struct attn_slice one = {.seq = s->seq + i};
            if (s->n_shared > 0)
                row(t, a, &one, head, 0);
            else
                row(t, a, s, head, i);
        }
    }
}

#define ATTENTION_REF(name, type)                                                                  \
    REF_CLONES void k_attention_##name##_ref(const struct attn_args *a,                            \
                                             const struct attn_slice *s)                           \
    {                                                                                              \
        slice(type, a, s);                                                                         \
    }
ATTENTION_REF(f32, DTYPE_F32)
ATTENTION_REF(f16, DTYPE_F16)
ATTENTION_REF(bf16, DTYPE_BF16)
ATTENTION_REF(i8, DTYPE_I8)
ATTENTION_REF(fp8, DTYPE_F8_E4M3)

REF_CLONES void k_attention_fold_ref(const struct attn_args *a, const struct attn_slice *s)
{
    const size_t p = a->seqs[s->seq].pos0 + s->row0, hd = a->kv.head_dim;
    const size_t first = kern_first_visible(p, a->window) / KV_BLOCK_TOKENS;
    for (size_t head = s->head0; head < s->head1; head++) {
        float *out = a->out + row_at(a, s, head, s->row0);
        struct state total = {s->states[2 * head], s->states[2 * head + 1]};
        for (size_t n = s->tile0; n < s->tile1; n++) {
            const float *part = part_at(a, s, head, n);
            const struct state state = {part[hd], part[hd + 1]};
            struct factors f = {0.0f, 0.0f};
            if (n == first)
                total = state;
            else
                f = fold_state(state, &total);
            for (size_t d = 0; d < hd; d++)
                out[d] = n == first ? part[d] : fmaf(part[d], f.b, out[d] * f.a);
        }
        s->states[2 * head] = total.max;
        s->states[2 * head + 1] = total.sum;
        if (s->tile1 == p / KV_BLOCK_TOKENS + 1) divide(a, head, total, out);
    }
}

void fill_attention_ref(struct kern_table *t)
{
    t->attention[DTYPE_F32] = k_attention_f32_ref;
    t->attention[DTYPE_F16] = k_attention_f16_ref;
    t->attention[DTYPE_BF16] = k_attention_bf16_ref;
    t->attention[DTYPE_I8] = k_attention_i8_ref;
    t->attention[DTYPE_F8_E4M3] = k_attention_fp8_ref;
}

/* Computes the scores of sparse attention's index (struct index_args); shared by the instruction
 * sets. FOLD_ROWS index heads of one row at a time (the last few singly) go through `scores` of
 * attention_fold_body.h as rows do there, against a tile of index keys. Needs the same functions as
 * that file. */
#ifndef SHOAL_KERNELS_INDEX_BODY_H
#define SHOAL_KERNELS_INDEX_BODY_H

#include "kernels/attention_fold_body.h"

/* Where the scores of a tile go. With weights all heads have one list of scores, sum [TILE]. */
struct index_out {
    const float *weights; /* [H]; NULL: each head has a list of its own, sum [H, stride] */
    float *sum;
    size_t stride;
};

/* sum[j] = fma(weight, d > 0 ? d : 0, sum[j]) for n_rows (constant) heads in turn, where d are the
 * scaled dot products of f's rows. */
ALWAYS_INLINE void index_heads(enum dtype t, size_t n_rows, const struct tile_fold *f, float scale,
                               const float *weights, float *sum)
{
    scores(t, n_rows, f);
    for (size_t j = 0; j < f->end; j += 16) {
        struct v16 acc = v16_load(DTYPE_F32, sum, j);
#pragma GCC unroll 4
        for (size_t r = 0; r < n_rows; r++) {
            const struct v16 d = v16_mul(v16_load(DTYPE_F32, f->e[r], j), v16_set1(scale));
            acc = v16_madd(v16_set1(weights[r]), v16_max(d, v16_zero()), acc);
        }
        v16_store(sum + j, acc);
    }
}

/* The same without weights: sum[r * stride + j] = the scaled dot product of row r. */
ALWAYS_INLINE void index_apart(enum dtype t, size_t n_rows, const struct tile_fold *f, float scale,
                               size_t stride, float *sum)
{
    scores(t, n_rows, f);
    for (size_t j = 0; j < f->end; j += 16) {
#pragma GCC unroll 4
        for (size_t r = 0; r < n_rows; r++)
            v16_store(sum + r * stride + j,
                      v16_mul(v16_load(DTYPE_F32, f->e[r], j), v16_set1(scale)));
    }
}

/* One of the two above, for n_rows heads from h on. */
ALWAYS_INLINE void index_rows(enum dtype t, size_t n_rows, const struct tile_fold *f,
                              const struct index_args *a, const struct index_out *out, size_t h)
{
    if (out->weights == NULL)
        index_apart(t, n_rows, f, a->scale, out->stride, out->sum + h * out->stride);
    else
        index_heads(t, n_rows, f, a->scale, out->weights + h, out->sum);
}

/* The scores of the first n_slots slots of a tile, for one row with q [H, Hd]. */
ALWAYS_INLINE void index_tile(enum dtype t, const struct index_args *a, const struct tile *tile,
                              const float *q, size_t n_slots, const struct index_out *out)
{
    float e[FOLD_ROWS][TILE] __attribute__((aligned(64)));
    struct seen_row rows[FOLD_ROWS];
    const struct tile_fold f = {
        .tile = tile, .rows = rows, .end = (n_slots + 15) / 16 * 16, .e = e};
    for (size_t j = 0; out->weights != NULL && j < TILE; j++) out->sum[j] = 0.0f;
    for (size_t h = 0; h < a->n_heads;) {
        const size_t n = a->n_heads - h < FOLD_ROWS ? 1 : FOLD_ROWS;
        for (size_t r = 0; r < n; r++)
            rows[r] = (struct seen_row){.q = q + (h + r) * tile->head_dim, .j1 = n_slots};
        if (n == FOLD_ROWS)
            index_rows(t, FOLD_ROWS, &f, a, out, h);
        else
            index_rows(t, 1, &f, a, out, h);
        h += n;
    }
}

ALWAYS_INLINE void index_scores(enum dtype t, const struct index_args *a,
                                const struct index_slice *s)
{
    const struct seq_rows *seq = &a->seqs[s->seq];
    const size_t row = seq->row0 + s->row, p = seq->pos0 + s->row, hd = a->keys.head_dim;
    for (size_t n = s->tile0; n < s->tile1; n++) {
        const void *keys = kern_kv_half(&a->keys, seq->blocks[n], 0, 0);
        const struct tile tile = {.keys = keys,
                                  .key_scales = t == DTYPE_I8 ? kern_kv_scales(keys, hd) : NULL,
                                  .head_dim = hd};
        const size_t left = p + 1 - n * TILE;
        const struct index_out out = {a->weights == NULL ? NULL : a->weights + row * a->n_heads,
                                      s->scores + n * TILE, s->stride};
        index_tile(t, a, &tile, a->q + row * a->n_heads * hd, left < TILE ? left : TILE, &out);
    }
}

#endif

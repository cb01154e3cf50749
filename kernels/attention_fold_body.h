/* Attention, shared by the instruction sets: the fold of one tile of keys and values into the
 * running states and outputs of up to FOLD_ROWS queries, which share every load. Does not know
 * blocks of queries or which tiles a query sees (attention_body.h). The including file defines
 *     FOLD_ROWS                queries folded at a time, at most 4
 *     VALUE_VECTORS            vectors of 16 outputs held in registers
 *     the functions v16_...    as in its vec.h
 *     kv_load16, dots16        16 cache elements as floats; the scores of 16 slots
 *     rows_max, rows_tree      to[r] = the maximum, or the sum in tree order, of vector r
 *     TURN_KEYS                1: keys may be transposed
 *     FOLD_FOUR                1: fold_four folds the states of four rows */
#ifndef SHOAL_KERNELS_ATTENTION_FOLD_BODY_H
#define SHOAL_KERNELS_ATTENTION_FOLD_BODY_H

#include "kernels/activation_body.h"
#include "kernels/body.h"

enum {
    TILE = KV_BLOCK_TOKENS,
};

/* A tile's keys and values [slot][d], in the cache's type or as floats. Transposed keys are
 * [d][slot]. */
struct tile {
    const void *keys, *values;
    const float *key_scales, *value_scales; /* [slot], for int8 only */
    size_t head_dim;
};

/* For the rows that are folded together, at most eight: a tile's maximum m and sum l, and the
 * factors of the fold: `a` for the old output, `b` for the tile's. */
struct rows_part {
    float max[8], sum[8], a[8], b[8];
} __attribute__((aligned(64)));

/* A query and the slots [j0, j1) of a tile that it sees. Its running state is (max, sum) and the
 * output that accumulates in `out`. Rows that are folded together either all store parts (struct
 * attn_slice), or their maxima are next to each other in memory, and their sums are too; if
 * is_first is set in one row, it is set in all rows after it. */
struct seen_row {
    const float *q;
    float *out, *max, *sum;
    size_t j0, j1;
    bool is_first; /* the tile is the first one folded into the state */
};

/* A tile and the rows that are folded together. The rows see no slots outside [first, end); both
 * are multiples of 16. e[row][slot] is a score at first, later a weight. */
struct tile_fold {
    const struct tile *tile;
    const struct seen_row *rows;
    size_t first, end;
    float (*e)[TILE];
};

/* Part of a tile's keys or values [slot][head_dim]: slots [j0, j1), and of each slot the elements
 * from d on. */
struct tile_slots {
    const void *data;
    const float *scales; /* [slot], for int8 only */
    size_t head_dim, j0, j1, d;
};

/* e[r][j] = the unscaled scores of n_rows (constant) rows, for 16 slots at a time from `first` to
 * `end`. A slot that no row sees gets the score of a slot that is seen. */
ALWAYS_INLINE void scores(enum dtype t, size_t n_rows, const struct tile_fold *f)
{
    const size_t j0 = f->rows[0].j0, last = f->rows[n_rows - 1].j1 - 1;
    for (size_t j = f->first; j < f->end; j += 16) {
        size_t at[16];
        for (size_t i = 0; i < 16; i++) {
            const size_t slot = j + i < last ? j + i : last;
            at[i] = slot > j0 ? slot : j0;
        }
        dots16(t, n_rows, f, at, j);
    }
}

#if TURN_KEYS
/* s[r][i] = lane `lane` plus lane `lane` + 8 of each dot product: the first level of the tree.
 * Vector i covers the 16 slots from j + 16i on. */
ALWAYS_INLINE void lane_pair(size_t n_rows, size_t n_vectors, const struct tile_fold *f, size_t j,
                             size_t lane, struct v16 *s)
{
    const struct tile *tile = f->tile;
    const float *keys = (const float *)tile->keys + j;
    struct v16 low[FOLD_ROWS * 2], high[FOLD_ROWS * 2];
#pragma GCC unroll 8
    for (size_t i = 0; i < n_rows * n_vectors; i++) low[i] = high[i] = v16_zero();
    for (size_t d = lane; d < tile->head_dim; d += 16) {
        struct v16 k[2], l[2];
#pragma GCC unroll 2
        for (size_t i = 0; i < n_vectors; i++) {
            k[i] = v16_load(DTYPE_F32, keys, d * TILE + 16 * i);
            l[i] = v16_load(DTYPE_F32, keys, (d + 8) * TILE + 16 * i);
        }
#pragma GCC unroll 4
        for (size_t r = 0; r < n_rows; r++) {
            const float *x = f->rows[r].q;
            const struct v16 q = v16_set1(x[d]), p = v16_set1(x[d + 8]);
#pragma GCC unroll 2
            for (size_t i = 0; i < n_vectors; i++) {
                low[r * n_vectors + i] = v16_madd(q, k[i], low[r * n_vectors + i]);
                high[r * n_vectors + i] = v16_madd(p, l[i], high[r * n_vectors + i]);
            }
        }
    }
#pragma GCC unroll 8
    for (size_t i = 0; i < n_rows * n_vectors; i++) s[i] = v16_add(low[i], high[i]);
}

/* e[r][j ..] = the scores of 16 * n_vectors slots from transposed keys. n_rows and n_vectors are
 * constant. Lanes are computed in the order in which the tree 8-4-2-1 combines them, so that few
 * sums have to be kept. */
ALWAYS_INLINE void turned_dots(size_t n_rows, size_t n_vectors, const struct tile_fold *f, size_t j)
{
    struct v16 s[FOLD_ROWS * 2], four[FOLD_ROWS * 2], two[FOLD_ROWS * 2], one[FOLD_ROWS * 2];
#pragma GCC unroll 4
    for (size_t half = 0; half < 2; half++) {
#pragma GCC unroll 4
        for (size_t lane = half; lane < half + 4; lane += 2) {
            lane_pair(n_rows, n_vectors, f, j, lane, four);
            lane_pair(n_rows, n_vectors, f, j, lane + 4, s);
#pragma GCC unroll 8
            for (size_t i = 0; i < n_rows * n_vectors; i++) {
                four[i] = v16_add(four[i], s[i]);
                two[i] = lane == half ? four[i] : v16_add(two[i], four[i]);
            }
        }
#pragma GCC unroll 8
        for (size_t i = 0; i < n_rows * n_vectors; i++)
            one[i] = half == 0 ? two[i] : v16_add(one[i], two[i]);
    }
#pragma GCC unroll 8
    for (size_t i = 0; i < n_rows * n_vectors; i++)
        v16_store(f->e[i / n_vectors] + j + i % n_vectors * 16, one[i]);
}

/* Computes the same as `scores`, from transposed keys (floats [d][slot]). */
ALWAYS_INLINE void turned_scores(size_t n_rows, const struct tile_fold *f)
{
    size_t j = f->first;
    for (; j + 32 <= f->end; j += 32) turned_dots(n_rows, 2, f, j);
    if (j < f->end) turned_dots(n_rows, 1, f, j);
}
#endif

/* Scales the scores of n_rows rows and applies the softcap. */
static __attribute__((noinline)) void cap_scores(size_t n_rows, const struct tile_fold *f,
                                                 float scale, float softcap)
{
    for (size_t r = 0; r < n_rows; r++) {
        for (size_t j = f->first; j < f->end; j += 16) {
            const struct v16 s = v16_mul(v16_load(DTYPE_F32, f->e[r], j), v16_set1(scale));
            v16_store(f->e[r] + j, v16_softcap(s, v16_set1(softcap)));
        }
    }
}

/* Turns scores, times `scale`, into weights: e[r][j] = exp(s_j - m), +0 for slots that row r does
 * not see; stores each row's (m, l) in `part`. A NaN score is never the maximum, but makes e, l and
 * the row NaN. */
ALWAYS_INLINE void weights(size_t n_rows, const struct tile_fold *f, float scale,
                           struct rows_part *part)
{
    const struct seen_row *rows = f->rows;
    const size_t first = f->first, end = f->end;
    float(*const e)[TILE] = f->e;
    struct v16 top[FOLD_ROWS], lanes[FOLD_ROWS];
#pragma GCC unroll 8
    for (size_t r = 0; r < n_rows; r++) {
        top[r] = v16_set1(-INFINITY);
        lanes[r] = v16_zero();
    }
    for (size_t j = first; j < end; j += 16) {
#pragma GCC unroll 8
        for (size_t r = 0; r < n_rows; r++) {
            const struct v16 s = v16_mul(v16_load(DTYPE_F32, e[r], j), v16_set1(scale));
            const struct v16 seen = v16_visible(s, j, rows[r].j0, rows[r].j1);
            v16_store(e[r] + j, seen);
            top[r] = v16_max(seen, top[r]);
        }
    }
    rows_max(n_rows, top, part->max);
    for (size_t j = first; j < end; j += 16) {
#pragma GCC unroll 8
        for (size_t r = 0; r < n_rows; r++) {
            const struct v16 s = v16_load(DTYPE_F32, e[r], j);
            const struct v16 v = v16_exp(v16_sub(s, v16_set1(part->max[r])));
            v16_store(e[r] + j, v);
            lanes[r] = v16_add(lanes[r], v);
        }
    }
    rows_tree(n_rows, lanes, part->sum);
}

/* o[n_rows][n_vectors] += weights e [n_rows][slot] times the values of the slots. n_rows and
 * n_vectors are constant. */
ALWAYS_INLINE void add_values(enum dtype t, size_t n_rows, size_t n_vectors, struct tile_slots s,
                              const float (*e)[TILE], struct v16 *o)
{
    for (size_t j = s.j0; j < s.j1; j++) {
        struct v16 v[VALUE_VECTORS];
        const float scale = t == DTYPE_I8 ? s.scales[j] : 1.0f;
#pragma GCC unroll 4
        for (size_t i = 0; i < n_vectors; i++)
            v[i] = kv_load16(t, s.data, scale, j * s.head_dim + s.d + 16 * i);
#pragma GCC unroll 8
        for (size_t r = 0; r < n_rows; r++) {
            const struct v16 weight = v16_set1(e[r][j]);
#pragma GCC unroll 4
            for (size_t i = 0; i < n_vectors; i++)
                o[r * VALUE_VECTORS + i] = v16_madd(weight, v[i], o[r * VALUE_VECTORS + i]);
        }
    }
}

/* Returns slots [j0, j1) of a tile's values, from element d on. */
ALWAYS_INLINE struct tile_slots values_of(const struct tile *tile, size_t j0, size_t j1, size_t d)
{
    return (struct tile_slots){tile->values, tile->value_scales, tile->head_dim, j0, j1, d};
}

/* Folds the tile's values into out[d ..]: out = o for the first tile, then fma(o, b, out * a). The
 * rows see nearly the same slots: slots that all rows see are added for all rows together, the
 * others row by row. */
ALWAYS_INLINE void fold_values(enum dtype t, size_t n_rows, size_t n_vectors,
                               const struct tile_fold *f, const struct rows_part *part, size_t d)
{
    const struct tile *tile = f->tile;
    const struct seen_row *rows = f->rows;
    const float(*const e)[TILE] = (const float(*)[TILE])f->e;
    struct v16 o[FOLD_ROWS * VALUE_VECTORS];
    const size_t j0 = rows[n_rows - 1].j0, j1 = rows[0].j1;
#pragma GCC unroll 16
    for (size_t i = 0; i < n_rows * VALUE_VECTORS; i++) o[i] = v16_zero();
#pragma GCC unroll 8
    for (size_t r = 0; r + 1 < n_rows; r++)
        add_values(t, 1, n_vectors, values_of(tile, rows[r].j0, j0, d), e + r,
                   o + r * VALUE_VECTORS);
    add_values(t, n_rows, n_vectors, values_of(tile, j0, j1, d), e, o);
#pragma GCC unroll 8
    for (size_t r = 1; r < n_rows; r++)
        add_values(t, 1, n_vectors, values_of(tile, j1, rows[r].j1, d), e + r,
                   o + r * VALUE_VECTORS);
#pragma GCC unroll 8
    for (size_t r = 0; r < n_rows; r++) {
#pragma GCC unroll 4
        for (size_t i = 0; i < n_vectors; i++) {
            float *to = rows[r].out + d + 16 * i;
            struct v16 v = o[r * VALUE_VECTORS + i];
            if (!rows[r].is_first) {
                const struct v16 old = v16_mul(v16_load(DTYPE_F32, to, 0), v16_set1(part->a[r]));
                v = v16_madd(v, v16_set1(part->b[r]), old);
            }
            v16_store(to, v);
        }
    }
}

/* Folds a tile's (m, l) of n rows into their states, and sets the factors a and b, in all cases for
 * which fold_states has no fast path. */
ALWAYS_INLINE void fold_some(size_t n, const struct seen_row *rows, struct rows_part *part)
{
    float max[FOLD_ROWS], x[16] = {0.0f};
#pragma GCC unroll 8
    for (size_t r = 0; r < n; r++) {
        const float old = rows[r].is_first ? part->max[r] : *rows[r].max;
        max[r] = part->max[r] > old ? part->max[r] : old;
        x[r] = old - max[r];
        x[8 + r] = part->max[r] - max[r];
    }
    v16_store(x, v16_exp(v16_load(DTYPE_F32, x, 0)));
#pragma GCC unroll 8
    for (size_t r = 0; r < n; r++) {
        part->a[r] = x[r];
        part->b[r] = x[8 + r];
        *rows[r].sum =
            rows[r].is_first ? part->sum[r] : fmaf(part->sum[r], x[8 + r], *rows[r].sum * x[r]);
        *rows[r].max = max[r];
    }
}

/* Folds a tile's (m, l) of n rows into their states, and sets the factors a and b. Takes a fast
 * path where there is one. */
ALWAYS_INLINE void fold_states(size_t n, const struct seen_row *rows, struct rows_part *part)
{
    if (rows[0].is_first) {
#pragma GCC unroll 8
        for (size_t r = 0; r < n; r++) {
            *rows[r].max = part->max[r];
            *rows[r].sum = part->sum[r];
            part->a[r] = part->b[r] = 1.0f; /* not read */
        }
        return;
    }
#if FOLD_FOUR
    if (n == 4 && !rows[3].is_first) {
        fold_four(part, rows[0].max, rows[0].sum);
        return;
    }
#endif
    fold_some(n, rows, part);
}

/* Folds a tile into the states of n_rows (constant) consecutive rows. All of them see at least one
 * common slot. */
ALWAYS_INLINE void fold(enum dtype t, bool turned, size_t n_rows, const struct tile *tile,
                        const struct seen_row *rows, const struct attn_args *a)
{
    float scale = a->scale;
    float e[FOLD_ROWS][TILE] __attribute__((aligned(64)));
    struct rows_part part;
    const struct tile_fold f = {.tile = tile,
                                .rows = rows,
                                .first = rows->j0 / 16 * 16,
                                .end = (rows[n_rows - 1].j1 + 15) / 16 * 16,
                                .e = e};
#if TURN_KEYS
    if (turned) turned_scores(n_rows, &f);
#endif
    if (!turned) scores(t, n_rows, &f);
    if (a->softcap > 0) {
        cap_scores(n_rows, &f, scale, a->softcap);
        scale = 1.0f; /* multiplying by it is exact */
    }
    weights(n_rows, &f, scale, &part);
    fold_states(n_rows, rows, &part);
    size_t d = 0;
    for (; d + 16 * VALUE_VECTORS <= tile->head_dim; d += 16 * VALUE_VECTORS)
        fold_values(t, n_rows, VALUE_VECTORS, &f, &part, d);
    for (; d < tile->head_dim; d += 16) fold_values(t, n_rows, 1, &f, &part, d);
}

#endif

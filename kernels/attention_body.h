/* Attention, shared by the instruction sets. Many rows: a tile's keys and values become floats
 * once, the keys turned so that vectors run across slots and no lane is ever added to another. Few
 * rows: keys and values are read where they are, whatever their type.
 *
 * The including file has defined: SCORE_ROWS and SCORE_VECTORS, rows and vectors of slots whose
 * scores are made at a time; FOLD_ROWS, rows that are folded at a time, a multiple of SCORE_ROWS;
 * VALUE_VECTORS, vectors of an output in registers; the pieces of its vec.h; kv_load16 (elements of
 * the cache as floats), dots16 (16 slots by lanes, tree 8-4-2-1) and transpose16. */
#ifndef SHOAL_KERNELS_ATTENTION_BODY_H
#define SHOAL_KERNELS_ATTENTION_BODY_H

#include "kernels/body.h"

enum {
    BLOCK_ROWS = 64, /* rows that share a turned tile */
    WORTH_ROWS = 4,  /* rows from which turning a tile pays */
    WORTH_DIM = 256, /* and the largest head dimension: 2 x 64 KiB */
    TILE = KV_BLOCK_TOKENS,
};

/* A tile's keys and values in the cache, or turned into floats: keys[d][slot], values[slot][d]. */
struct tile {
    const void *keys, *values;
    const float *key_scales, *value_scales; /* of int8 codes, [slot] */
    size_t head_dim;
};

/* A row's running state; O is in the output row. */
struct state {
    float max, sum;
};

/* A query row and the slots [j0, j1) that it sees of a tile. */
struct seen_row {
    const float *q;
    float *out;
    struct state *total;
    size_t j0, j1;
    bool is_first; /* of the row's tiles */
    float scale;
};

struct scratch {
    float keys[WORTH_DIM * TILE] __attribute__((aligned(64)));
    float values[TILE * WORTH_DIM] __attribute__((aligned(64)));
};

/* Scores of SCORE_VECTORS x 16 slots of up to SCORE_ROWS rows. */
struct score_block {
    struct v16 v[SCORE_ROWS * SCORE_VECTORS];
};

/* The law's lane `lane` of the dots with turned keys from slot j on: d = lane, lane + 16, ... */
ALWAYS_INLINE struct score_block lane_chain(size_t n_rows, const struct tile *tile,
                                            const struct seen_row *rows, size_t j, size_t lane)
{
    struct score_block b;
    const float *keys = (const float *)tile->keys + j;
#pragma GCC unroll 8
    for (size_t i = 0; i < n_rows * SCORE_VECTORS; i++) b.v[i] = v16_zero();
    for (size_t d = lane; d < tile->head_dim; d += LANES) {
        struct v16 k[SCORE_VECTORS];
#pragma GCC unroll 4
        for (size_t s = 0; s < SCORE_VECTORS; s++)
            k[s] = v16_load(DTYPE_F32, keys, d * TILE + 16 * s);
#pragma GCC unroll 8
        for (size_t i = 0; i < n_rows * SCORE_VECTORS; i++)
            b.v[i] = v16_madd(v16_set1(rows[i / SCORE_VECTORS].q[d]), k[i % SCORE_VECTORS], b.v[i]);
    }
    return b;
}

ALWAYS_INLINE struct score_block add_blocks(size_t n_rows, struct score_block a,
                                            struct score_block b)
{
#pragma GCC unroll 8
    for (size_t i = 0; i < n_rows * SCORE_VECTORS; i++) a.v[i] = v16_add(a.v[i], b.v[i]);
    return a;
}

/* The tree 8-4-2-1 over the lanes, whose branches end in chains. */
#define LANE_TREE(name, half, below)                                                               \
    ALWAYS_INLINE struct score_block name(size_t n_rows, const struct tile *tile,                  \
                                          const struct seen_row *rows, size_t j, size_t lane)      \
    {                                                                                              \
        const struct score_block b = below(n_rows, tile, rows, j, lane);                           \
        return add_blocks(n_rows, b, below(n_rows, tile, rows, j, lane + (half)));                 \
    }
LANE_TREE(lane_tree8, 8, lane_chain)
LANE_TREE(lane_tree4, 4, lane_tree8)
LANE_TREE(lane_tree2, 2, lane_tree4)
LANE_TREE(lane_tree1, 1, lane_tree2)
#undef LANE_TREE

/* Scores of the slots from `first` to the last that a row sees; of hidden ones -infinity. */
ALWAYS_INLINE void scores_turned(size_t n_rows, const struct tile *tile,
                                 const struct seen_row *rows, size_t first, size_t end,
                                 float (*e)[TILE])
{
    for (size_t j = first; j < end; j += 16 * SCORE_VECTORS) {
        const struct score_block b = lane_tree1(n_rows, tile, rows, j, 0);
#pragma GCC unroll 8
        for (size_t i = 0; i < n_rows * SCORE_VECTORS; i++) {
            const struct seen_row *row = &rows[i / SCORE_VECTORS];
            const size_t at = j + 16 * (i % SCORE_VECTORS);
            const struct v16 s = v16_mul(b.v[i], v16_set1(row->scale));
            v16_store(e[i / SCORE_VECTORS] + at, v16_visible(s, at, row->j0, row->j1));
        }
    }
}

/* The same of one row from the cache; in place of hidden slots visible ones are read. */
ALWAYS_INLINE void scores_direct(enum dtype t, const struct tile *tile, const struct seen_row *row,
                                 size_t first, size_t end, float e[TILE])
{
    for (size_t j = first; j < end; j += 16) {
        size_t slot[16];
        for (size_t i = 0; i < 16; i++) {
            const size_t s = j + i < row->j1 ? j + i : row->j1 - 1;
            slot[i] = s > row->j0 ? s : row->j0;
        }
        const struct v16 s = v16_mul(dots16(t, tile, row->q, slot), v16_set1(row->scale));
        v16_store(e + j, v16_visible(s, j, row->j0, row->j1));
    }
}

/* e[j] = exp(s_j - m) of the scores in e, +0 for hidden ones beside them; returns (m, l). A NaN
 * score is not the maximum, and makes e, l and the row NaN. */
ALWAYS_INLINE struct state weights(float e[TILE], size_t first, size_t end)
{
    struct v16 top = v16_set1(-INFINITY), lanes = v16_zero();
    for (size_t j = first; j < end; j += 16) top = v16_max(v16_load(DTYPE_F32, e, j), top);
    const float max = v16_max_lane(top);
    for (size_t j = first; j < end; j += 16) {
        const struct v16 v = v16_exp(v16_sub(v16_load(DTYPE_F32, e, j), v16_set1(max)));
        v16_store(e + j, v);
        lanes = v16_add(lanes, v);
    }
    return (struct state){max, v16_tree(lanes)};
}

/* Continues the sums o[n_rows][n_vectors] (constant) over the values of slots [j0, j1). */
ALWAYS_INLINE void add_values(enum dtype t, size_t n_rows, size_t n_vectors,
                              const struct tile *tile, size_t j0, size_t j1, size_t d,
                              const float (*e)[TILE], struct v16 *o)
{
    for (size_t j = j0; j < j1; j++) {
        struct v16 v[VALUE_VECTORS];
        const float scale = t == DTYPE_I8 ? tile->value_scales[j] : 1.0f;
#pragma GCC unroll 4
        for (size_t i = 0; i < n_vectors; i++)
            v[i] = kv_load16(t, tile->values, scale, j * tile->head_dim + d + 16 * i);
#pragma GCC unroll 4
        for (size_t r = 0; r < n_rows; r++) {
            const struct v16 weight = v16_set1(e[r][j]);
#pragma GCC unroll 4
            for (size_t i = 0; i < n_vectors; i++)
                o[r * VALUE_VECTORS + i] = v16_madd(weight, v[i], o[r * VALUE_VECTORS + i]);
        }
    }
}

/* What a fold multiplies the old output (a) and the tile's (b) with. */
struct fold_factors {
    float a, b;
};

/* out[d ..] = o, or fma(o, b, out * a) after the first tile, for n_vectors (constant) vectors.
 * Several rows see nearly the same slots: what some alone see comes before or after. */
ALWAYS_INLINE void fold_values(enum dtype t, size_t n_rows, size_t n_vectors,
                               const struct tile *tile, const struct seen_row *rows,
                               const float (*e)[TILE], const struct fold_factors *f, size_t d)
{
    struct v16 o[FOLD_ROWS * VALUE_VECTORS];
    const size_t j0 = rows[n_rows - 1].j0, j1 = rows[0].j1;
#pragma GCC unroll 16
    for (size_t i = 0; i < n_rows * VALUE_VECTORS; i++) o[i] = v16_zero();
#pragma GCC unroll 4
    for (size_t r = 0; r + 1 < n_rows; r++)
        add_values(t, 1, n_vectors, tile, rows[r].j0, j0, d, e + r, o + r * VALUE_VECTORS);
    add_values(t, n_rows, n_vectors, tile, j0, j1, d, e, o);
#pragma GCC unroll 4
    for (size_t r = 1; r < n_rows; r++)
        add_values(t, 1, n_vectors, tile, j1, rows[r].j1, d, e + r, o + r * VALUE_VECTORS);
#pragma GCC unroll 4
    for (size_t r = 0; r < n_rows; r++) {
#pragma GCC unroll 4
        for (size_t i = 0; i < n_vectors; i++) {
            float *to = rows[r].out + d + 16 * i;
            struct v16 v = o[r * VALUE_VECTORS + i];
            if (!rows[r].is_first) {
                const struct v16 old = v16_mul(v16_load(DTYPE_F32, to, 0), v16_set1(f[r].a));
                v = v16_madd(v, v16_set1(f[r].b), old);
            }
            v16_store(to, v);
        }
    }
}

/* Scores of n_rows (constant) rows that see slots in [first, end). */
ALWAYS_INLINE void scores(enum dtype t, bool is_turned, size_t n_rows, const struct tile *tile,
                          const struct seen_row *rows, size_t first, size_t end, float (*e)[TILE])
{
    if (!is_turned)
        scores_direct(t, tile, rows, first, end, e[0]);
    else if (n_rows < SCORE_ROWS)
        scores_turned(1, tile, rows, first, end, e);
    else
        for (size_t r = 0; r < n_rows; r += SCORE_ROWS)
            scores_turned(SCORE_ROWS, tile, rows + r, first, end, e + r);
}

/* Folds a tile into the states of n_rows (constant; 1 or FOLD_ROWS) consecutive rows, which all see
 * a slot that all see; a row's first tile is taken as it is. */
ALWAYS_INLINE void fold(enum dtype t, bool is_turned, size_t n_rows, const struct tile *tile,
                        const struct seen_row *rows)
{
    float e[FOLD_ROWS][TILE] __attribute__((aligned(64)));
    struct fold_factors f[FOLD_ROWS] = {{0.0f, 0.0f}};
    const size_t step = is_turned ? 16 * SCORE_VECTORS : 16;
    const size_t first = rows->j0 / step * step;
    const size_t end = (rows[n_rows - 1].j1 + step - 1) / step * step;
    scores(t, is_turned, n_rows, tile, rows, first, end, e);
#pragma GCC unroll 4
    for (size_t r = 0; r < n_rows; r++) {
        struct state *total = rows[r].total;
        const struct state part = weights(e[r], first, end);
        if (rows[r].is_first) {
            *total = part;
            continue;
        }
        const float max = part.max > total->max ? part.max : total->max;
        f[r] = (struct fold_factors){el_exp_body(total->max - max), el_exp_body(part.max - max)};
        *total = (struct state){max, fmaf(part.sum, f[r].b, total->sum * f[r].a)};
    }
    size_t d = 0;
    for (; d + 16 * VALUE_VECTORS <= tile->head_dim; d += 16 * VALUE_VECTORS)
        fold_values(t, n_rows, VALUE_VECTORS, tile, rows, e, f, d);
    for (; d < tile->head_dim; d += 16) fold_values(t, n_rows, 1, tile, rows, e, f, d);
}

/* At most BLOCK_ROWS rows of a sequence, one head. */
struct block {
    const struct attn_args *args;
    const struct seq_rows *seq;
    size_t head, row0, n_rows;
    struct state total[BLOCK_ROWS];
};

static size_t output_at(const struct block *b, size_t i)
{
    const size_t row = b->seq->row0 + b->row0 + i;
    return (row * b->args->n_heads + b->head) * b->args->kv.head_dim;
}

/* What row i sees of tile n; false: nothing. */
ALWAYS_INLINE bool row_sees(struct block *b, size_t i, size_t n, struct seen_row *row)
{
    const struct attn_args *a = b->args;
    const size_t start = n * TILE, at = output_at(b, i);
    const size_t p = b->seq->pos0 + b->row0 + i, lo = kern_first_visible(p, a->window);
    *row = (struct seen_row){.q = a->q + at,
                             .out = a->out + at,
                             .total = &b->total[i],
                             .j0 = lo > start ? lo - start : 0,
                             .j1 = p - start < TILE ? p - start + 1 : TILE,
                             .is_first = n == lo / TILE,
                             .scale = a->scale};
    return p >= start && lo < start + TILE;
}

/* Whether FOLD_ROWS rows from row i on all see a slot of tile n that all see. */
ALWAYS_INLINE bool rows_see(struct block *b, size_t i, size_t n, struct seen_row *rows)
{
    if (i + FOLD_ROWS > b->n_rows) return false;
    for (size_t r = 0; r < FOLD_ROWS; r++)
        if (!row_sees(b, i + r, n, &rows[r])) return false;
    return rows[FOLD_ROWS - 1].j0 < rows[0].j1;
}

/* Tile n for the rows of the block that see it. */
ALWAYS_INLINE void block_tile(enum dtype t, bool is_turned, struct block *b, size_t n,
                              const struct tile *tile)
{
    struct seen_row rows[FOLD_ROWS];
    for (size_t i = 0; i < b->n_rows;) {
        if (is_turned && rows_see(b, i, n, rows)) {
            fold(t, is_turned, FOLD_ROWS, tile, rows);
            i += FOLD_ROWS;
            continue;
        }
        if (row_sees(b, i, n, rows)) fold(t, is_turned, 1, tile, rows);
        i++;
    }
}

/* Slots [j0, j1) of a tile as floats; the keys' other slots in the same vectors are zeros. */
ALWAYS_INLINE void turn(enum dtype t, const struct tile *tile, size_t j0, size_t j1,
                        struct scratch *to)
{
    const size_t hd = tile->head_dim, step = 16 * SCORE_VECTORS;
    for (size_t j = j0 / step * step; j < (j1 + step - 1) / step * step; j += 16) {
        for (size_t d = 0; d < hd; d += 16) {
            struct v16 v[16];
#pragma GCC unroll 16
            for (size_t i = 0; i < 16; i++) {
                const bool is_seen = j + i >= j0 && j + i < j1;
                const float scale = t == DTYPE_I8 && is_seen ? tile->key_scales[j + i] : 1.0f;
                v[i] = is_seen ? kv_load16(t, tile->keys, scale, (j + i) * hd + d) : v16_zero();
            }
            transpose16(v);
#pragma GCC unroll 16
            for (size_t i = 0; i < 16; i++) v16_store(to->keys + (d + i) * TILE + j, v[i]);
        }
    }
    for (size_t j = j0; j < j1; j++) {
        const float scale = t == DTYPE_I8 ? tile->value_scales[j] : 1.0f;
        for (size_t i = j * hd; i < (j + 1) * hd; i += 16)
            v16_store(to->values + i, kv_load16(t, tile->values, scale, i));
    }
}

/* Tile n as it stands in the cache. */
ALWAYS_INLINE struct tile cached_tile(enum dtype t, const struct block *b, size_t n)
{
    const struct kv_view *kv = &b->args->kv;
    const size_t g = b->args->kv_of_head[b->head];
    const void *keys = kern_kv_half(kv, b->seq->blocks[n], 0, g);
    const void *values = kern_kv_half(kv, b->seq->blocks[n], 1, g);
    return (struct tile){.keys = keys,
                         .values = values,
                         .key_scales = t == DTYPE_I8 ? kern_kv_scales(keys, kv->head_dim) : NULL,
                         .value_scales =
                             t == DTYPE_I8 ? kern_kv_scales(values, kv->head_dim) : NULL,
                         .head_dim = kv->head_dim};
}

ALWAYS_INLINE void divide_rows(const struct block *b)
{
    for (size_t i = 0; i < b->n_rows; i++) {
        float *out = b->args->out + output_at(b, i);
        const struct v16 sum =
            v16_set1(kern_attention_sum(b->args, b->head, b->total[i].max, b->total[i].sum));
        for (size_t d = 0; d < b->args->kv.head_dim; d += 16)
            v16_store(out + d, v16_div(v16_load(DTYPE_F32, out, d), sum));
    }
}

ALWAYS_INLINE void block_rows(enum dtype t, bool is_turned, struct block *b)
{
    const struct attn_args *a = b->args;
    const size_t p0 = b->seq->pos0 + b->row0, p1 = p0 + b->n_rows - 1;
    const size_t lo = kern_first_visible(p0, a->window);
    for (size_t n = lo / TILE; n <= p1 / TILE; n++) {
        const size_t start = n * TILE;
        struct tile tile = cached_tile(t, b, n);
        if (!is_turned) {
            block_tile(t, false, b, n, &tile);
            continue;
        }
        struct scratch scratch;
        turn(t, &tile, lo > start ? lo - start : 0, p1 - start < TILE ? p1 - start + 1 : TILE,
             &scratch);
        tile.keys = scratch.keys;
        tile.values = scratch.values;
        block_tile(DTYPE_F32, true, b, n, &tile);
    }
    divide_rows(b);
}

ALWAYS_INLINE void attention(enum dtype t, const struct attn_args *a, size_t seq, size_t head,
                             size_t row0, size_t row1)
{
    for (size_t row = row0; row < row1; row += BLOCK_ROWS) {
        struct block b = {.args = a, .seq = &a->seqs[seq], .head = head, .row0 = row};
        b.n_rows = row1 - row < BLOCK_ROWS ? row1 - row : BLOCK_ROWS;
        if (b.n_rows >= WORTH_ROWS && a->kv.head_dim <= WORTH_DIM)
            block_rows(t, true, &b);
        else
            block_rows(t, false, &b);
    }
}

#endif

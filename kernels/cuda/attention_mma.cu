/* Paged attention on tensor cores, an arithmetic of its own (below). A block has rows of one run
 * and the heads of one kv head side by side, a warp 16 or 32 of them; the tile's keys and then its
 * values stand in shared memory, the next keys on their way while values are multiplied, and the
 * other way round. Rows of a run walk their tiles, or (few rows, long contexts) a block leaves the
 * states of some tiles, which attention_mma_fold folds in the same order. */
#include "kernels/cuda/mma.h"

/* For a row at position p and a head, over tiles as in kern.h (struct attn_args), cut to the
 * visible slots:
 *   q and the cache's elements as f16 (f16 and e4m3 exact; i8's (float)code * scale rounded to
 *   nearest even; what lies beyond f16 is infinite, and the row NaN)
 *   x_j = dot(q, k_j) * (scale log2 e)   dot: f32 from +0, by steps of 16 elements, ascending, each
 *                                        added as the tensor core does
 *   m = max x_j; e_j = 2^(x_j - m); l: lane i of 4 adds j = 2i, 2i + 1, 8 + 2i, ... ascending, then
 *       (0 + 1) + (2 + 3); o_d: e_j as f16 times v_jd, f32 from +0, by steps of 16 slots
 *   fold, from (-infinity, 0, 0) on, tiles ascending: M' = max(M, m), a = 2^(M - M'),
 *       b = 2^(m - M'), L' = fma(l, b, L * a), O'_d = fma(o_d, b, O_d * a)
 *   out_d = O_d / L, with a sink  O_d / (L + 2^(sink log2 e - M))
 * Nothing here depends on other rows, on how tiles are split over blocks, or on how heads share a
 * block. With s = scale * max_j sum_d |q_d k_jd| the error is at most
 * max |v_jd| (2^-10 + 2^-10 s), for i8 twice that, beside f32's own. */

enum {
    TILE = KV_BLOCK_TOKENS,
    WARPS = CUDA_THREADS / WARP_THREADS,
    SCORE_TILES = TILE / MMA_N,
    WEIGHT_TILES = TILE / HALF_K,
    ROW_TILES_MAX = 2,
    ROWS_MAX = 2 * ROW_TILES_MAX, /* of a lane */
    VALUE_TILES_MAX = 32,
    PIECE = 8, /* elements of the cache that go to shared memory at once */
};

/* Compiled once for each: the width of rows in shared memory and row tiles of a warp. */
struct mma_kind {
    uint32_t width, row_tiles;
};

/* What a block has. Row i of it: position i / n_heads of the run, head i % n_heads of its heads. */
struct mma_part {
    const struct attention_mma_work *a;
    struct mma_kind kind;
    size_t row0;
    uint32_t position0, n_positions;
    uint32_t head0, n_heads, kv_head;
    uint32_t tile, begin, end; /* the tile of now, and all of them */
    bool is_whole;             /* every row sees all of the tile */
    uint8_t *q, *keys, *values;
    uint32_t *unfinished; /* 1 + the last tile with values that are not finite */
};

struct mma_fold {
    float max, old_factor, factor;
};

/* A lane's rows: those of its row tiles, lane / 4 and 8 below each. */
struct mma_rows {
    uint32_t position[ROWS_MAX];
    float max[ROWS_MAX], sum[ROWS_MAX];           /* of the tiles so far, with this one */
    float tile_max[ROWS_MAX], tile_sum[ROWS_MAX]; /* of this one */
    bool sees[ROWS_MAX];                          /* any of it */
    float old_factor[ROWS_MAX], factor[ROWS_MAX]; /* of what stands in o, and of the tile's */
};

BLOCK_INLINE uint32_t mma_stride(uint32_t width)
{
    return CUDA_ATTENTION_STRIDE(width);
}

/* Whether states of tiles are left, which only blocks of few rows do. */
BLOCK_INLINE bool mma_splits(const struct mma_part *p)
{
    return p->kind.row_tiles == 1 && p->a->n_tiles > 0;
}

BLOCK_INLINE uint32_t mma_first(const struct mma_part *p, uint32_t position)
{
    return (uint32_t)kern_first_visible(position, p->a->window);
}

/* The row's visible slots [*j0, *j1) of the tile. */
BLOCK_INLINE void mma_visible(const struct mma_part *p, uint32_t position, uint32_t *j0,
                              uint32_t *j1)
{
    const uint32_t start = p->tile * TILE, first = mma_first(p, position);
    *j0 = first > start ? first - start : 0;
    *j1 = position < start ? 0 : position - start + 1;
    if (*j1 > TILE) *j1 = TILE;
    if (*j0 > *j1) *j0 = *j1;
}

/* Where a warp's lanes begin in arrays of THREAD_SLOTS. */
BLOCK_INLINE uint32_t mma_slot(uint32_t warp)
{
    return WARP_SLOTS > 1 ? warp * WARP_LANES : 0;
}

BLOCK_INLINE uint32_t mma_row_of(uint32_t warp, uint32_t lane, uint32_t r)
{
    return (warp + r / 2 * WARPS) * MMA_M + r % 2 * (MMA_M / 2) + lane / 4;
}

/* --- into shared memory ---------------------------------------------------------------------- */

/* Slots of a tile that some row sees are loaded, the others zero. */
BLOCK_INLINE void mma_fetch_half(const struct mma_part *p, const void *half, uint32_t start,
                                 uint8_t *to)
{
    const struct kv_view *kv = &p->a->kv;
    const uint32_t pieces = p->kind.width / PIECE;
    const uint32_t first = mma_first(p, p->position0), last = p->position0 + p->n_positions - 1;
    FOR_THREADS(t)
    {
        BLOCK_UNROLL16
        for (uint32_t i = t; i < TILE * pieces; i += CUDA_THREADS) {
            const uint32_t j = i / pieces, d = i % pieces * PIECE;
            const bool is_there = start + j >= first && start + j <= last;
            if (d < kv->head_dim)
                block_fetch16_or_zeros(to + j * mma_stride(p->kind.width) + d * 2,
                                       (const uint16_t *)half + j * kv->head_dim + d, is_there);
        }
    }
}

BLOCK_INLINE void mma_fetch_codes(const struct mma_part *p, const void *half, uint32_t start,
                                  uint8_t *to)
{
    const struct kv_view *kv = &p->a->kv;
    const uint32_t pairs = p->kind.width / 2;
    const uint32_t first = mma_first(p, p->position0), last = p->position0 + p->n_positions - 1;
    FOR_THREADS(t)
    {
        BLOCK_UNROLL16
        for (uint32_t i = t; i < TILE * pairs; i += CUDA_THREADS) {
            const uint32_t j = i / pairs, d = i % pairs * 2;
            uint32_t *place = (uint32_t *)(void *)(to + j * mma_stride(p->kind.width)) + d / 2;
            if (d >= kv->head_dim) continue;
            if (start + j < first || start + j > last)
                *place = 0;
            else if (kv->dtype == DTYPE_I8)
                *place = block_halves(kern_kv_load(DTYPE_I8, half, kv->head_dim, j, d),
                                      kern_kv_load(DTYPE_I8, half, kv->head_dim, j, d + 1));
            else
                *place = block_halves(kern_kv_load(DTYPE_F8_E4M3, half, kv->head_dim, j, d),
                                      kern_kv_load(DTYPE_F8_E4M3, half, kv->head_dim, j, d + 1));
        }
    }
}

/* Keys (what 0) or values (1) of a tile, if the block has it. */
BLOCK_INLINE void mma_fetch(const struct mma_part *p, uint32_t tile, int what)
{
    const struct cuda_rows *rows = &p->a->rows;
    uint8_t *to = what == 0 ? p->keys : p->values;
    if (tile < p->end) {
        const int32_t block = rows->blocks[rows->first_block[p->row0] + (int32_t)tile];
        const void *half = kern_kv_half(&p->a->kv, block, what, p->kv_head);
        if (p->a->kv.dtype == DTYPE_F16)
            mma_fetch_half(p, half, tile * TILE, to);
        else
            mma_fetch_codes(p, half, tile * TILE, to);
    }
    block_fetch_end();
}

/* Queries as f16, zeros where a row tile has no row; and zeros behind the heads' width. */
BLOCK_INLINE void mma_begin(const struct mma_part *p)
{
    const struct attention_mma_work *a = p->a;
    const uint32_t hd = a->kv.head_dim, words = p->kind.width / 2;
    const uint32_t n = p->n_positions * p->n_heads, n_filled = (n + MMA_M - 1) / MMA_M * MMA_M;
    FOR_THREADS(t)
    {
        for (uint32_t i = t / WARP_THREADS; i < n_filled; i += WARPS) {
            const uint32_t head = p->head0 + i % p->n_heads;
            const float *q = a->q + ((p->row0 + i / p->n_heads) * a->n_heads + head) * hd;
            uint32_t *to = (uint32_t *)(void *)(p->q + i * mma_stride(p->kind.width));
            for (uint32_t w = t % WARP_THREADS; w < words; w += WARP_THREADS)
                to[w] = i < n && 2 * w < hd ? block_halves(q[2 * w], q[2 * w + 1]) : 0;
        }
        for (uint32_t i = t; i < 2 * TILE * (words - hd / 2); i += CUDA_THREADS) {
            const uint32_t row = i / (words - hd / 2), w = hd / 2 + i % (words - hd / 2);
            ((uint32_t *)(void *)(p->keys + row * mma_stride(p->kind.width)))[w] = 0;
        }
        if (t == 0) *p->unfinished = 0;
    }
}

/* --- a warp's part of a tile ----------------------------------------------------------------- */

/* The warp's rows see nothing of the tile, or there are none. */
BLOCK_INLINE bool mma_is_idle(const struct mma_part *p, uint32_t warp)
{
    const uint32_t n = p->n_positions * p->n_heads, first = warp * MMA_M;
    const uint32_t behind = ((p->kind.row_tiles - 1) * WARPS + warp + 1) * MMA_M;
    if (first >= n) return true;
    const uint32_t last = (behind < n ? behind : n) - 1;
    return p->position0 + last / p->n_heads < p->tile * TILE ||
           mma_first(p, p->position0 + first / p->n_heads) >= (p->tile + 1) * TILE;
}

/* c += a b, b the first (which 0) or the second of two that were loaded together. */
BLOCK_INLINE void mma_multiply(struct half_sums *c, const struct half_a *a,
                               const struct half_a *two, uint32_t which)
{
    struct half_b b[WARP_LANES];
    for (uint32_t i = 0; i < WARP_LANES; i++) {
        b[i].v[0] = two[i].v[2 * which];
        b[i].v[1] = two[i].v[2 * which + 1];
    }
    warp_mma_half(DTYPE_F16, c, a, b);
}

/* s = q k of all rows and slots, summed from +0 over d by steps of 16, ascending. */
BLOCK_INLINE void mma_scores(const struct mma_part *p, uint32_t warp,
                             struct half_sums (*s)[THREAD_SLOTS])
{
    const uint32_t slot = mma_slot(warp), stride = mma_stride(p->kind.width);
    BLOCK_UNROLL
    for (uint32_t n = 0; n < p->kind.row_tiles * SCORE_TILES; n++)
        for (uint32_t i = 0; i < WARP_LANES; i++) BLOCK_UNROLL
    for (uint32_t v = 0; v < 4; v++) s[n][slot + i].v[v] = 0.0f;
    for (uint32_t k = 0; k < p->kind.width; k += HALF_K) {
        struct half_a q[ROW_TILES_MAX][WARP_LANES], keys[WARP_LANES];
        const void *rows[WARP_LANES];
        BLOCK_UNROLL
        for (uint32_t r = 0; r < p->kind.row_tiles; r++) {
            FOR_LANES(lane, i)
            {
                const uint32_t row = (warp + r * WARPS) * MMA_M + lane % 16;
                rows[i] = p->q + (row < p->a->q_rows ? row : 0) * stride + (k + lane / 16 * 8) * 2;
            }
            warp_load_matrices(q[r], rows);
        }
        BLOCK_UNROLL
        for (uint32_t n = 0; n < SCORE_TILES; n += 2) {
            FOR_LANES(lane, i)
            {
                const uint32_t j = n * MMA_N + lane / 16 * 8 + lane % 8;
                rows[i] = p->keys + j * stride + (k + lane / 8 % 2 * 8) * 2;
            }
            warp_load_matrices(keys, rows);
            BLOCK_UNROLL
            for (uint32_t r = 0; r < 2 * p->kind.row_tiles; r++)
                mma_multiply(&s[r / 2 * SCORE_TILES + n + r % 2][slot], q[r / 2], keys, r % 2);
        }
    }
}

/* Exchanges within the four lanes of a row: each gets the most, or the sum 0 + 1 + (2 + 3). */
BLOCK_INLINE void mma_over_lanes(float *x, bool adds)
{
    BLOCK_UNROLL
    for (uint32_t bit = 1; bit <= 2; bit *= 2) {
        float other[WARP_LANES];
        warp_exchange(other, x, bit);
        for (uint32_t i = 0; i < WARP_LANES; i++)
            x[i] = adds ? x[i] + other[i] : other[i] > x[i] ? other[i] : x[i];
    }
}

/* Scores in units of log 2, -infinity where invisible, to the row's maximum in this tile. */
BLOCK_INLINE float mma_scale(const struct mma_part *p, const struct mma_rows *row, uint32_t lane,
                             uint32_t r, struct half_sums (*s)[THREAD_SLOTS], uint32_t at)
{
    float max = -INFINITY;
    uint32_t j0, j1;
    mma_visible(p, row->position[r], &j0, &j1);
    BLOCK_UNROLL
    for (uint32_t i = 0; i < 2 * SCORE_TILES; i++) {
        float *x = &s[r / 2 * SCORE_TILES + i / 2][at].v[r % 2 * 2 + i % 2];
        const uint32_t j = i / 2 * MMA_N + lane % 4 * 2 + i % 2;
        *x *= p->a->scale_log2;
        if (!p->is_whole && (j < j0 || j >= j1)) *x = -INFINITY;
        max = *x > max ? *x : max;
    }
    return max;
}

BLOCK_INLINE struct mma_fold mma_fold_of(float total_max, float max)
{
    struct mma_fold f;
    f.max = max > total_max ? max : total_max;
    f.old_factor = block_exp2(total_max - f.max);
    f.factor = block_exp2(max - f.max);
    return f;
}

/* The tile's maximum and sum, folded into the row's. */
BLOCK_INLINE void mma_note(const struct mma_part *p, struct mma_rows *row, uint32_t r, float max,
                           float sum)
{
    const struct mma_fold f = mma_fold_of(row->max[r], max);
    uint32_t j0, j1;
    mma_visible(p, row->position[r], &j0, &j1);
    row->sees[r] = j0 < j1;
    row->tile_max[r] = max;
    row->tile_sum[r] = sum;
    row->old_factor[r] = f.old_factor;
    row->factor[r] = f.factor;
    if (row->sees[r]) row->sum[r] = fmaf(sum, f.factor, row->sum[r] * f.old_factor);
    if (row->sees[r]) row->max[r] = f.max;
}

/* Weights 2^(s - max) as f16 for the product with values; their sum is that of the f32. */
BLOCK_INLINE void mma_weights(const struct mma_part *p, uint32_t warp,
                              struct half_sums (*s)[THREAD_SLOTS],
                              struct half_a (*weights)[THREAD_SLOTS], struct mma_rows *rows)
{
    const uint32_t slot = mma_slot(warp);
    BLOCK_UNROLL
    for (uint32_t r = 0; r < 2 * p->kind.row_tiles; r++) {
        float max[WARP_LANES], sum[WARP_LANES];
        FOR_LANES(lane, i)
        {
            max[i] = mma_scale(p, &rows[slot + i], lane, r, s, slot + i);
        }
        mma_over_lanes(max, false);
        for (uint32_t i = 0; i < WARP_LANES; i++) {
            sum[i] = 0.0f;
            BLOCK_UNROLL
            for (uint32_t n = 0; n < SCORE_TILES; n++) {
                float *x = s[r / 2 * SCORE_TILES + n][slot + i].v + r % 2 * 2;
                x[0] = block_exp2(x[0] - max[i]);
                x[1] = block_exp2(x[1] - max[i]);
                sum[i] = sum[i] + x[0] + x[1];
                weights[r / 2 * WEIGHT_TILES + n / 2][slot + i].v[n % 2 * 2 + r % 2] =
                    block_halves(x[0], x[1]);
            }
        }
        mma_over_lanes(sum, true);
        for (uint32_t i = 0; i < WARP_LANES; i++) mma_note(p, &rows[slot + i], r, max[i], sum[i]);
    }
}

/* c = weights times values [d, d + 16), summed over slots by steps of 16. With `visible` slots
 * outside of it, for each row tile, count as zero. */
BLOCK_INLINE void mma_products(const struct mma_part *p, uint32_t d,
                               struct half_a (*weights)[THREAD_SLOTS], uint32_t slot,
                               uint32_t (*visible)[2], struct half_sums (*c)[WARP_LANES])
{
    BLOCK_UNROLL
    for (uint32_t n = 0; n < 2 * p->kind.row_tiles; n++)
        for (uint32_t i = 0; i < WARP_LANES; i++) BLOCK_UNROLL
    for (uint32_t v = 0; v < 4; v++) c[n][i].v[v] = 0.0f;
    BLOCK_UNROLL
    for (uint32_t k = 0; k < WEIGHT_TILES; k++) {
        struct half_a values[WARP_LANES];
        const void *rows[WARP_LANES];
        FOR_LANES(lane, i)
        {
            const uint32_t j = k * HALF_K + lane % 16;
            rows[i] = p->values + j * mma_stride(p->kind.width) + (d + lane / 16 * 8) * 2;
        }
        warp_load_turned(values, rows);
        BLOCK_UNROLL
        for (uint32_t r = 0; r < p->kind.row_tiles; r++) {
            struct half_a seen[WARP_LANES];
            FOR_LANES(lane, i)
            {
                seen[i] = values[i];
                BLOCK_UNROLL
                for (uint32_t v = 0; v < 4 && visible != NULL; v++) {
                    const uint32_t j = k * HALF_K + v % 2 * 8 + lane % 4 * 2;
                    if (j < visible[r][0] || j >= visible[r][1]) seen[i].v[v] &= 0xFFFF0000u;
                    if (j + 1 < visible[r][0] || j + 1 >= visible[r][1]) seen[i].v[v] &= 0xFFFFu;
                }
            }
            mma_multiply(c[2 * r], &weights[r * WEIGHT_TILES + k][slot], seen, 0);
            mma_multiply(c[2 * r + 1], &weights[r * WEIGHT_TILES + k][slot], seen, 1);
        }
    }
}

/* The same where values that some row does not see are not finite: each of the 16 rows by itself,
 * since a weight of zero does not hide those. */
BLOCK_INLINE void mma_products_each(const struct mma_part *p, uint32_t d, uint32_t warp,
                                    struct half_a (*weights)[THREAD_SLOTS],
                                    struct half_sums (*c)[WARP_LANES])
{
    for (uint32_t row = 0; row < MMA_M; row++) {
        struct half_sums one[2 * ROW_TILES_MAX][WARP_LANES];
        uint32_t visible[ROW_TILES_MAX][2];
        BLOCK_UNROLL
        for (uint32_t r = 0; r < p->kind.row_tiles; r++) {
            const uint32_t i = (warp + r * WARPS) * MMA_M + row;
            mma_visible(p, p->position0 + i / p->n_heads, &visible[r][0], &visible[r][1]);
        }
        mma_products(p, d, weights, mma_slot(warp), visible, one);
        FOR_LANES(lane, i)
        {
            BLOCK_UNROLL
            for (uint32_t v = 0; v < 8 * p->kind.row_tiles; v++)
                if (row == lane / 4 + v % 4 / 2 * 8) c[v / 4][i].v[v % 4] = one[v / 4][i].v[v % 4];
        }
    }
}

BLOCK_INLINE float *mma_state(const struct attention_mma_work *a, size_t row, uint32_t head,
                              uint32_t i)
{
    return a->states + ((row * a->n_heads + head) * a->n_tiles + i) * (a->kv.head_dim + 2);
}

/* Two neighbouring elements of a row's part of the tile, from d on: into o, or into its state. */
BLOCK_INLINE void mma_take(const struct mma_part *p, const struct mma_rows *row, uint32_t r,
                           uint32_t d, uint32_t i, const float *x, float *o)
{
    const struct attention_mma_work *a = p->a;
    if (mma_splits(p)) {
        if (i >= p->n_heads || d >= a->kv.head_dim) return;
        const uint32_t first = mma_first(p, p->position0) / TILE + a->tile0;
        float *state = mma_state(a, p->row0 - a->row0, p->head0 + i, p->tile - first);
        state[2 + d] = x[0];
        state[3 + d] = x[1];
        if (d == 0) state[0] = row->tile_max[r];
        if (d == 0) state[1] = row->tile_sum[r];
        return;
    }
    if (row->sees[r]) o[0] = fmaf(x[0], row->factor[r], o[0] * row->old_factor[r]);
    if (row->sees[r]) o[1] = fmaf(x[1], row->factor[r], o[1] * row->old_factor[r]);
}

BLOCK_INLINE void mma_values(const struct mma_part *p, uint32_t warp,
                             struct half_a (*weights)[THREAD_SLOTS], bool each,
                             struct mma_rows *rows, struct half_sums (*o)[THREAD_SLOTS])
{
    const uint32_t slot = mma_slot(warp);
    BLOCK_UNROLL
    for (uint32_t d = 0; d < p->kind.width; d += HALF_K) {
        struct half_sums c[2 * ROW_TILES_MAX][WARP_LANES];
        if (each)
            mma_products_each(p, d, warp, weights, c);
        else
            mma_products(p, d, weights, slot, NULL, c);
        FOR_LANES(lane, i)
        {
            BLOCK_UNROLL
            for (uint32_t n = 0; n < 2 * p->kind.row_tiles; n++) {
                struct half_sums *to =
                    &o[n / 2 * (p->kind.width / MMA_N) + d / MMA_N + n % 2][slot + i];
                BLOCK_UNROLL
                for (uint32_t h = 0; h < 2; h++)
                    mma_take(p, &rows[slot + i], n / 2 * 2 + h, d + n % 2 * MMA_N + lane % 4 * 2,
                             mma_row_of(warp, lane, n / 2 * 2 + h), c[n][i].v + 2 * h,
                             to->v + 2 * h);
            }
        }
    }
}

/* What a row's output is divided by. */
BLOCK_INLINE float mma_total(const struct attention_mma_work *a, uint32_t head, float max,
                             float sum)
{
    return a->sinks != NULL ? sum + block_exp2(a->sinks[head] * CUDA_LOG2_E - max) : sum;
}

BLOCK_INLINE void mma_store(const struct mma_part *p, uint32_t warp, const struct mma_rows *rows,
                            struct half_sums (*o)[THREAD_SLOTS])
{
    const struct attention_mma_work *a = p->a;
    const uint32_t n_rows = p->n_positions * p->n_heads, slot = mma_slot(warp);
    FOR_LANES(lane, i)
    {
        BLOCK_UNROLL
        for (uint32_t r = 0; r < 2 * p->kind.row_tiles; r++) {
            const uint32_t row = mma_row_of(warp, lane, r);
            if (row >= n_rows) continue;
            const uint32_t head = p->head0 + row % p->n_heads;
            const float total = mma_total(a, head, rows[slot + i].max[r], rows[slot + i].sum[r]);
            float *out =
                a->out + ((p->row0 + row / p->n_heads) * a->n_heads + head) * a->kv.head_dim;
            BLOCK_UNROLL
            for (uint32_t n = 0; n < p->kind.width / MMA_N; n++) {
                const uint32_t d = n * MMA_N + lane % 4 * 2;
                const float *x = o[r / 2 * (p->kind.width / MMA_N) + n][slot + i].v + r % 2 * 2;
                if (d >= a->kv.head_dim) continue;
                out[d] = x[0] / total;
                out[d + 1] = x[1] / total;
            }
        }
    }
}

/* --- a block --------------------------------------------------------------------------------- */

/* False when there is nothing to do. */
BLOCK_INLINE bool mma_part_of(const struct attention_mma_work *a, struct cuda_block b,
                              struct mma_kind kind, uint8_t *shared, struct mma_part *p)
{
    p->a = a;
    p->kind = kind;
    p->row0 = a->runs != NULL ? a->runs[b.y].row0 : a->row0 + b.y;
    p->n_positions = a->runs != NULL ? a->runs[b.y].n_rows : 1;
    p->position0 = (uint32_t)a->rows.position[p->row0];
    p->kv_head = b.x / a->n_chunks;
    const uint32_t chunk = b.x % a->n_chunks * CUDA_ATTENTION_HEADS;
    const uint32_t all = p->kv_head * a->heads_per_kv + chunk; /* of whole kv heads */
    uint32_t behind = (p->kv_head + 1) * a->heads_per_kv;
    if (behind > all + CUDA_ATTENTION_HEADS) behind = all + CUDA_ATTENTION_HEADS;
    if (behind > a->n_heads + a->skipped_heads) behind = a->n_heads + a->skipped_heads;
    const uint32_t head0 = all > a->skipped_heads ? all : a->skipped_heads;
    if (head0 >= behind) return false;
    p->head0 = head0 - a->skipped_heads;
    p->n_heads = behind - head0;
    p->begin = mma_first(p, p->position0) / TILE;
    p->end = (p->position0 + p->n_positions - 1) / TILE + 1;
    if (mma_splits(p)) {
        const uint32_t pass_end = p->begin + a->tile0 + a->n_tiles;
        p->begin += a->tile0 + b.z * a->span;
        if (p->end > p->begin + a->span) p->end = p->begin + a->span;
        if (p->end > pass_end) p->end = pass_end;
    }
    p->q = shared;
    p->keys = shared + a->q_rows * mma_stride(kind.width);
    p->values = p->keys + TILE * mma_stride(kind.width);
    p->unfinished = (uint32_t *)(void *)(shared + kind.width * 2); /* between rows */
    return p->begin < p->end;
}

/* Whether values that some row does not see are not finite. */
BLOCK_INLINE void mma_look(const struct mma_part *p)
{
    FOR_THREADS(t)
    {
        for (uint32_t i = t; i < TILE * p->kind.width / 2; i += CUDA_THREADS) {
            const uint32_t j = i / (p->kind.width / 2), w = i % (p->kind.width / 2);
            const uint32_t x =
                ((const uint32_t *)(const void *)(p->values + j * mma_stride(p->kind.width)))[w];
            if ((x & 0x7C00u) == 0x7C00u || (x & 0x7C000000u) == 0x7C000000u)
                block_max_u32(p->unfinished, p->tile + 1);
        }
    }
    BLOCK_SYNC();
}

BLOCK_INLINE void mma_start_rows(const struct mma_part *p, struct mma_rows *rows,
                                 struct half_sums (*o)[THREAD_SLOTS])
{
    const uint32_t last = p->n_positions * p->n_heads - 1;
    FOR_THREADS_AT(t, i)
    {
        BLOCK_UNROLL
        for (uint32_t r = 0; r < 2 * p->kind.row_tiles; r++) {
            const uint32_t row = mma_row_of(t / WARP_THREADS, t % WARP_THREADS, r);
            rows[i].position[r] = p->position0 + (row < last ? row : last) / p->n_heads;
            rows[i].max[r] = -INFINITY;
            rows[i].sum[r] = 0.0f;
        }
        BLOCK_UNROLL
        for (uint32_t n = 0; n < p->kind.row_tiles * p->kind.width / MMA_N; n++) BLOCK_UNROLL
        for (uint32_t v = 0; v < 4; v++) o[n][i].v[v] = 0.0f;
    }
}

BLOCK_INLINE void mma_attention(const struct attention_mma_work *a, struct cuda_block b,
                                void *shared, struct mma_kind kind)
{
    struct mma_part p;
    struct mma_rows rows[THREAD_SLOTS];
    struct half_sums o[VALUE_TILES_MAX][THREAD_SLOTS];
    if (!mma_part_of(a, b, kind, (uint8_t *)shared, &p)) return;
    mma_begin(&p);
    mma_start_rows(&p, rows, o);
    mma_fetch(&p, p.begin, 0);
    mma_fetch(&p, p.begin, 1);
    for (p.tile = p.begin; p.tile < p.end; p.tile++) {
        struct half_sums s[ROW_TILES_MAX * SCORE_TILES][THREAD_SLOTS];
        struct half_a weights[ROW_TILES_MAX * WEIGHT_TILES][THREAD_SLOTS];
        p.is_whole = p.position0 >= p.tile * TILE + TILE - 1 &&
                     mma_first(&p, p.position0 + p.n_positions - 1) <= p.tile * TILE;
        BLOCK_FETCH_WAIT(1); /* the keys */
        BLOCK_SYNC();
        FOR_WARPS(warp)
        {
            if (!mma_is_idle(&p, warp)) mma_scores(&p, warp, s);
        }
        BLOCK_SYNC();
        mma_fetch(&p, p.tile + 1, 0);
        FOR_WARPS(warp)
        {
            if (!mma_is_idle(&p, warp)) mma_weights(&p, warp, s, weights, rows);
        }
        BLOCK_FETCH_WAIT(1); /* the values */
        BLOCK_SYNC();
        if (!p.is_whole) mma_look(&p);
        const bool each = !p.is_whole && *p.unfinished == p.tile + 1;
        FOR_WARPS(warp)
        {
            if (!mma_is_idle(&p, warp)) mma_values(&p, warp, weights, each, rows, o);
        }
        BLOCK_SYNC();
        mma_fetch(&p, p.tile + 1, 1);
    }
    if (mma_splits(&p)) return;
    FOR_WARPS(warp)
    {
        mma_store(&p, warp, rows, o);
    }
}

#define ATTENTION_MMA(name, width, row_tiles)                                                      \
    BLOCK_INLINE void name##_block(const struct attention_mma_work *a, struct cuda_block b,        \
                                   void *shared)                                                   \
    {                                                                                              \
        const struct mma_kind kind = {width, row_tiles};                                           \
        mma_attention(a, b, shared, kind);                                                         \
    }                                                                                              \
    CUDA_KERNEL(name, attention_mma_work)

ATTENTION_MMA(attention_few_64, 64, 1)
ATTENTION_MMA(attention_few_96, 96, 1)
ATTENTION_MMA(attention_few_128, 128, 1)
ATTENTION_MMA(attention_few_192, 192, 1)
ATTENTION_MMA(attention_few_256, 256, 1)
ATTENTION_MMA(attention_many_64, 64, 2)
ATTENTION_MMA(attention_many_96, 96, 2)
ATTENTION_MMA(attention_many_128, 128, 2)

/* States of a pass's tiles, behind those of the passes before, whose total stands in `totals`. */
BLOCK_INLINE void attention_mma_fold_block(const struct attention_mma_work *a, struct cuda_block b,
                                           void *shared)
{
    const size_t row = a->row0 + b.y;
    const uint32_t hd = a->kv.head_dim, position = (uint32_t)a->rows.position[row];
    const uint32_t first = (uint32_t)kern_first_visible(position, a->window) / TILE;
    const uint32_t n = position / TILE - first + 1;
    const uint32_t left = n > a->tile0 ? n - a->tile0 : 0;
    const uint32_t n_now = left < a->n_tiles ? left : a->n_tiles;
    float *total = a->totals + ((size_t)b.y * a->n_heads + b.x) * (hd + 2);
    float *folded = (float *)shared; /* max and sum so far */
    if (n_now == 0) return;
    FOR_THREADS(t)
    {
        if (t < 2) folded[t] = a->tile0 > 0 ? total[t] : t == 0 ? -INFINITY : 0.0f;
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        for (uint32_t d = t; d < hd; d += CUDA_THREADS) {
            const float *state = mma_state(a, b.y, b.x, 0);
            float max = folded[0], sum = folded[1], o = a->tile0 > 0 ? total[2 + d] : 0.0f;
            for (uint32_t i = 0; i < n_now; i++, state += hd + 2) {
                const struct mma_fold f = mma_fold_of(max, state[0]);
                o = fmaf(state[2 + d], f.factor, o * f.old_factor);
                sum = fmaf(state[1], f.factor, sum * f.old_factor);
                max = f.max;
            }
            if (left == n_now) {
                a->out[(row * a->n_heads + b.x) * hd + d] = o / mma_total(a, b.x, max, sum);
            } else {
                total[2 + d] = o;
                if (d == 0) total[0] = max;
                if (d == 0) total[1] = sum;
            }
        }
    }
}
CUDA_KERNEL(attention_mma_fold, attention_mma_work)

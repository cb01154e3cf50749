/* Paged attention on tensor cores, in its own arithmetic (below). A block computes rows of one
 * run, for the heads of one kv head; a warp has up to 16 or 32 of these rows. Shared memory holds a
 * tile's keys and values: the next keys are loaded while values are multiplied, and vice versa. A
 * block walks all tiles of its rows; or, with few rows and long contexts, it stores the states of
 * some tiles, which attention_mma_fold folds in the same order. */
#include "kernels/cuda/attention_tile.h"

/* For a row at position p and a head, over tiles as in kern.h (struct attn_args), clipped to the
 * visible slots:
 *   q and the cache's elements as f16 (f16 and e4m3 exact; i8's (float)code * scale rounded to
 *   nearest even; a value beyond f16 becomes infinite and makes the row NaN, unless it only makes
 *   some scores -infinity)
 *   s_j = dot(q, k_j): f32 from +0, by steps of 16 elements, ascending, each added as the tensor
 *       core does
 *   c = scale log2 e, positive; m = c max s_j; e_j = 2^fma(s_j, c, -m)
 *   l: lane i of 4 adds e_j of j = 2i, 2i + 1, 8 + 2i, ... ascending, then (0 + 1) + (2 + 3)
 *   o_d: e_j as f16 times v_jd, f32 from +0, by steps of 16 slots
 *   fold, from (-infinity, 0, 0) on, tiles ascending: M' = max(M, m), a = 2^(M - M'),
 *       b = 2^(m - M'), L' = fma(l, b, L * a), O'_d = fma(o_d, b, O_d * a)
 *   out_d = O_d / L; with a sink O_d / (L + 2^(sink log2 e - M)); all of them NaN if a value that
 *       the row sees is not finite
 * Nothing here depends on other rows, on how tiles are divided among blocks, or on how heads share
 * a block. With S = scale * max_j sum_d |q_d k_jd| the error is at most max |v_jd| (2^-10 + 2^-10
 * S), for i8 twice that, besides the error of f32 itself. */

struct mma_fold {
    float max, old_factor, factor;
};

/* A lane's rows: rows lane / 4 and lane / 4 + 8 of each of the warp's row tiles. */
struct mma_rows {
    float max[ROWS_MAX], sum[ROWS_MAX];           /* over all tiles so far and the current one */
    float tile_max[ROWS_MAX], tile_sum[ROWS_MAX]; /* of the current tile */
    uint32_t j0[ROWS_MAX], j1[ROWS_MAX]; /* unless the tile is whole: the slots that the row sees */
    float old_factor[ROWS_MAX], factor[ROWS_MAX]; /* factors of the old o; of the tile's o */
};

/* Returns the index of a warp's first lane in arrays of THREAD_SLOTS. */
BLOCK_INLINE uint32_t mma_slot(uint32_t warp)
{
    return WARP_SLOTS > 1 ? warp * WARP_LANES : 0;
}

BLOCK_INLINE uint32_t mma_row_of(uint32_t warp, uint32_t lane, uint32_t r)
{
    return (warp + r / 2 * WARPS) * MMA_M + r % 2 * (MMA_M / 2) + lane / 4;
}

/* c += a * b, where b is one of the two matrices in `two`, which were loaded together; `which`
 * chooses it. */
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

/* Loads the fragments of the warp's queries: 16 inputs from k on, of each row tile. */
BLOCK_INLINE void mma_load_queries(const struct mma_part *p, uint32_t warp, uint32_t k,
                                   struct half_a (*q)[THREAD_SLOTS])
{
    BLOCK_UNROLL
    for (uint32_t r = 0; r < p->kind.row_tiles; r++) {
        const void *rows[WARP_LANES];
        FOR_LANES(lane, i)
        {
            const uint32_t row = (warp + r * WARPS) * MMA_M + lane % 16;
            rows[i] = p->q + (row < p->a->q_rows ? row : 0) * mma_stride(p->kind.width) +
                      (k + lane / 16 * 8) * 2;
        }
        warp_load_matrices(&q[r][mma_slot(warp)], rows);
    }
}

/* s = dot(q, k) for all rows and slots, summed from +0 over d by steps of 16, ascending. */
BLOCK_INLINE void mma_scores(const struct mma_part *p, uint32_t warp,
                             struct half_a (*q)[THREAD_SLOTS], struct half_sums (*s)[THREAD_SLOTS])
{
    const uint32_t slot = mma_slot(warp), n_row_tiles = p->kind.row_tiles;
    BLOCK_UNROLL
    for (uint32_t n = 0; n < n_row_tiles * SCORE_TILES; n++)
        for (uint32_t i = 0; i < WARP_LANES; i++) BLOCK_UNROLL
    for (uint32_t v = 0; v < 4; v++) s[n][slot + i].v[v] = 0.0f;
    BLOCK_UNROLL
    for (uint32_t k = 0; k < p->kind.width; k += HALF_K) {
        struct half_a keys[WARP_LANES], (*of)[THREAD_SLOTS] = q;
        if (mma_holds_queries(p->kind))
            of = q + k / HALF_K * n_row_tiles;
        else
            mma_load_queries(p, warp, k, q);
        BLOCK_UNROLL
        for (uint32_t n = 0; n < SCORE_TILES; n += 2) {
            const void *rows[WARP_LANES];
            FOR_LANES(lane, i)
            {
                const uint32_t j = n * MMA_N + lane / 16 * 8 + lane % 8;
                rows[i] = p->keys + j * mma_stride(p->kind.width) + (k + lane / 8 % 2 * 8) * 2;
            }
            warp_load_matrices(keys, rows);
            BLOCK_UNROLL
            for (uint32_t r = 0; r < 2 * n_row_tiles; r++)
                mma_multiply(&s[r / 2 * SCORE_TILES + n + r % 2][slot], &of[r / 2][slot], keys,
                             r % 2);
        }
    }
}

/* Combines x over the four lanes of a row: each lane gets the maximum, or with `adds` the sum (0 +
 * 1) + (2 + 3). */
BLOCK_INLINE void mma_over_lanes(float *x, bool adds)
{
    BLOCK_UNROLL
    for (uint32_t bit = 1; bit <= 2; bit *= 2) {
        float other[WARP_LANES];
        warp_exchange(other, x, bit);
        for (uint32_t i = 0; i < WARP_LANES; i++)
            x[i] = adds ? x[i] + other[i] : fmaxf(x[i], other[i]);
    }
}

/* Sets row r's scores of invisible slots to -infinity and returns the lane's maximum. */
BLOCK_INLINE float mma_most(const struct mma_part *p, const struct mma_rows *row, uint32_t lane,
                            uint32_t r, struct half_sums (*s)[THREAD_SLOTS], uint32_t at)
{
    float max = -INFINITY;
    BLOCK_UNROLL
    for (uint32_t i = 0; i < 2 * SCORE_TILES; i++) {
        float *x = &s[r / 2 * SCORE_TILES + i / 2][at].v[r % 2 * 2 + i % 2];
        const uint32_t j = i / 2 * MMA_N + lane % 4 * 2 + i % 2;
        if (!p->is_whole && (j < row->j0[r] || j >= row->j1[r])) *x = -INFINITY;
        max = fmaxf(max, *x);
    }
    return max;
}

BLOCK_INLINE struct mma_fold mma_fold_of(float total_max, float max)
{
    struct mma_fold f;
    f.max = fmaxf(total_max, max);
    f.old_factor = block_exp2(total_max - f.max);
    f.factor = block_exp2(max - f.max);
    return f;
}

/* Folds the tile's maximum and sum into those of the row, and notes the factors for o. */
BLOCK_INLINE void mma_note(const struct mma_part *p, struct mma_rows *row, uint32_t r, float max,
                           float sum)
{
    const struct mma_fold f = mma_fold_of(row->max[r], max);
    const bool sees = p->is_whole || row->j0[r] < row->j1[r];
    row->tile_max[r] = max;
    row->tile_sum[r] = sum;
    row->old_factor[r] = f.old_factor;
    row->factor[r] = f.factor;
    const float next = fmaf(sum, f.factor, row->sum[r] * f.old_factor);
    row->sum[r] = sees ? next : row->sum[r];
    row->max[r] = sees ? f.max : row->max[r];
}

/* Computes the weights e_j: rounded to f16 for the product with the values, but summed in
 * f32. */
BLOCK_INLINE void mma_weights(const struct mma_part *p, uint32_t warp,
                              struct half_sums (*s)[THREAD_SLOTS],
                              struct half_a (*weights)[THREAD_SLOTS], struct mma_rows *rows)
{
    const uint32_t slot = mma_slot(warp);
    float max[ROWS_MAX][WARP_LANES], sum[ROWS_MAX][WARP_LANES];
    BLOCK_UNROLL
    for (uint32_t r = 0; r < 2 * p->kind.row_tiles; r++) {
        FOR_LANES(lane, i)
        {
            max[r][i] = mma_most(p, &rows[slot + i], lane, r, s, slot + i);
        }
    }
    BLOCK_UNROLL
    for (uint32_t r = 0; r < 2 * p->kind.row_tiles; r++) {
        mma_over_lanes(max[r], false);
        for (uint32_t i = 0; i < WARP_LANES; i++) max[r][i] *= p->a->scale_log2;
    }
    BLOCK_UNROLL
    for (uint32_t r = 0; r < 2 * p->kind.row_tiles; r++) {
        for (uint32_t i = 0; i < WARP_LANES; i++) {
            sum[r][i] = 0.0f;
            BLOCK_UNROLL
            for (uint32_t n = 0; n < SCORE_TILES; n++) {
                float *x = s[r / 2 * SCORE_TILES + n][slot + i].v + r % 2 * 2;
                x[0] = block_exp2(fmaf(x[0], p->a->scale_log2, -max[r][i]));
                x[1] = block_exp2(fmaf(x[1], p->a->scale_log2, -max[r][i]));
                sum[r][i] = sum[r][i] + x[0] + x[1];
                weights[r / 2 * WEIGHT_TILES + n / 2][slot + i].v[n % 2 * 2 + r % 2] =
                    block_halves(x[0], x[1]);
            }
        }
    }
    BLOCK_UNROLL
    for (uint32_t r = 0; r < 2 * p->kind.row_tiles; r++) {
        mma_over_lanes(sum[r], true);
        for (uint32_t i = 0; i < WARP_LANES; i++)
            mma_note(p, &rows[slot + i], r, max[r][i], sum[r][i]);
    }
}

/* c[n] = the weights of row tile n / COLUMN_TILES times 8 columns of the values, from column
 * d + 8 (n % COLUMN_TILES) on; summed from +0 over the slots, by steps of 16. */
BLOCK_INLINE void mma_products(const struct mma_part *p, uint32_t d,
                               struct half_a (*weights)[THREAD_SLOTS], uint32_t slot,
                               struct half_sums (*c)[WARP_LANES])
{
    BLOCK_UNROLL
    for (uint32_t n = 0; n < COLUMN_TILES * p->kind.row_tiles; n++)
        for (uint32_t i = 0; i < WARP_LANES; i++) BLOCK_UNROLL
    for (uint32_t v = 0; v < 4; v++) c[n][i].v[v] = 0.0f;
    BLOCK_UNROLL
    for (uint32_t k = 0; k < WEIGHT_TILES; k++) {
        struct half_a values[COLUMN_TILES / 2][WARP_LANES];
        BLOCK_UNROLL
        for (uint32_t n = 0; n < COLUMN_TILES; n += 2) {
            const void *rows[WARP_LANES];
            FOR_LANES(lane, i)
            {
                const uint32_t j = k * HALF_K + lane % 16;
                rows[i] =
                    p->values + j * mma_stride(p->kind.width) + (d + n * MMA_N + lane / 16 * 8) * 2;
            }
            warp_load_turned(values[n / 2], rows);
        }
        BLOCK_UNROLL
        for (uint32_t n = 0; n < COLUMN_TILES * p->kind.row_tiles; n++)
            mma_multiply(c[n], &weights[n / COLUMN_TILES * WEIGHT_TILES + k][slot],
                         values[n % COLUMN_TILES / 2], n % 2);
    }
}

BLOCK_INLINE float *mma_state(const struct attention_mma_work *a, size_t row, uint32_t head,
                              uint32_t i)
{
    return a->states + ((row * a->n_heads + head) * a->n_tiles + i) * (a->kv.head_dim + 2);
}

/* Stores two consecutive elements of a row's tile result, from d on, in the tile's state. */
BLOCK_INLINE void mma_put_state(const struct mma_part *p, const struct mma_rows *row, uint32_t r,
                                uint32_t d, uint32_t i, const float *x)
{
    const struct attention_mma_work *a = p->a;
    if (i >= p->n_heads || d >= a->kv.head_dim) return;
    const uint32_t first = p->first / TILE + a->tile0;
    float *state = mma_state(a, p->row0 - a->row0, p->head0 + i, p->tile - first);
    state[2 + d] = x[0];
    state[3 + d] = x[1];
    if (d == 0) state[0] = row->tile_max[r];
    if (d == 0) state[1] = row->tile_sum[r];
}

/* Folds two elements of a row's tile result into o. */
BLOCK_INLINE void mma_take(const struct mma_part *p, const struct mma_rows *row, uint32_t r,
                           const float *x, float *o)
{
    BLOCK_UNROLL
    for (uint32_t k = 0; k < 2; k++) { /* selects: no branch may separate the mma products */
        const float next = fmaf(x[k], row->factor[r], o[k] * row->old_factor[r]);
        o[k] = p->is_whole || row->j0[r] < row->j1[r] ? next : o[k];
    }
}

/* Sets the sum to NaN for rows that see a value that is not finite (mma_hide set it to zero). */
BLOCK_INLINE void mma_spoil(const struct mma_part *p, struct mma_rows *row)
{
    BLOCK_UNROLL
    for (uint32_t r = 0; r < 2 * p->kind.row_tiles; r++) {
        if (mma_was_hidden(p, row->j0[r], row->j1[r]))
            row->sum[r] = row->tile_sum[r] = f32_from_bits(0x7FC00000u);
    }
}

/* Multiplies the weights with the values and folds the results, some columns at a time. */
BLOCK_INLINE void mma_values(const struct mma_part *p, uint32_t warp,
                             struct half_a (*weights)[THREAD_SLOTS], struct mma_rows *rows,
                             struct half_sums (*o)[THREAD_SLOTS])
{
    const uint32_t slot = mma_slot(warp), n_tiles = p->kind.width / MMA_N;
    for (uint32_t i = 0; i < WARP_LANES && !p->is_whole; i++) mma_spoil(p, &rows[slot + i]);
    BLOCK_UNROLL
    for (uint32_t d = 0; d < p->kind.width; d += COLUMN_TILES * MMA_N) {
        struct half_sums c[COLUMN_TILES * ROW_TILES_MAX][WARP_LANES];
        mma_products(p, d, weights, slot, c);
        FOR_LANES(lane, i)
        {
            BLOCK_UNROLL
            for (uint32_t n = 0; n < 2 * COLUMN_TILES * p->kind.row_tiles; n++) {
                const uint32_t tile = n / 2 / COLUMN_TILES, at = d / MMA_N + n / 2 % COLUMN_TILES;
                const float *x = c[n / 2][i].v + n % 2 * 2;
                if (mma_splits(p))
                    mma_put_state(p, &rows[slot + i], 2 * tile + n % 2, at * MMA_N + lane % 4 * 2,
                                  mma_row_of(warp, lane, 2 * tile + n % 2), x);
                else
                    mma_take(p, &rows[slot + i], 2 * tile + n % 2, x,
                             o[tile * n_tiles + at][slot + i].v + n % 2 * 2);
            }
        }
    }
}

/* Returns the divisor of a row's output. */
BLOCK_INLINE float mma_total(const struct attention_mma_work *a, uint32_t head, float max,
                             float sum)
{
    return a->sinks != NULL ? sum + block_exp2(a->sinks[head] * CUDA_LOG2_E - max) : sum;
}

/* odd = 0, or NaN if any element of o in the row is not finite. Added to the divisor, it makes the
 * whole row NaN. */
BLOCK_INLINE void mma_odd(const struct mma_part *p, uint32_t r, uint32_t slot,
                          struct half_sums (*o)[THREAD_SLOTS], float *odd)
{
    const uint32_t n_tiles = p->kind.width / MMA_N;
    for (uint32_t i = 0; i < WARP_LANES; i++) {
        odd[i] = 0.0f;
        BLOCK_UNROLL
        for (uint32_t n = 0; n < 2 * n_tiles; n++)
            odd[i] += o[r / 2 * n_tiles + n / 2][slot + i].v[r % 2 * 2 + n % 2] * 0.0f;
    }
    mma_over_lanes(odd, true);
}

BLOCK_INLINE void mma_store(const struct mma_part *p, uint32_t warp, const struct mma_rows *rows,
                            struct half_sums (*o)[THREAD_SLOTS])
{
    const struct attention_mma_work *a = p->a;
    const uint32_t hd = a->kv.head_dim, slot = mma_slot(warp);
    BLOCK_UNROLL
    for (uint32_t r = 0; r < 2 * p->kind.row_tiles; r++) {
        float odd[WARP_LANES];
        mma_odd(p, r, slot, o, odd);
        FOR_LANES(lane, i)
        {
            const uint32_t row = mma_row_of(warp, lane, r), head = p->head0 + row % p->n_heads;
            if (row >= p->n_positions * p->n_heads) continue;
            const struct mma_rows *of = &rows[slot + i];
            const float total = mma_total(a, head, of->max[r], of->sum[r]) + odd[i];
            float *out = a->out + ((p->row0 + row / p->n_heads) * a->n_heads + head) * hd;
            BLOCK_UNROLL
            for (uint32_t n = 0; n < p->kind.width / MMA_N; n++) {
                const uint32_t d = n * MMA_N + lane % 4 * 2;
                const float *x = o[r / 2 * (p->kind.width / MMA_N) + n][slot + i].v + r % 2 * 2;
                if (d >= hd) continue;
                out[d] = x[0] / total;
                out[d + 1] = x[1] / total;
            }
        }
    }
}

/* --- a block --------------------------------------------------------------------------------- */

BLOCK_INLINE void mma_start_rows(const struct mma_part *p, struct mma_rows *rows,
                                 struct half_sums (*o)[THREAD_SLOTS])
{
    for (uint32_t i = 0; i < THREAD_SLOTS; i++) {
        BLOCK_UNROLL
        for (uint32_t r = 0; r < 2 * p->kind.row_tiles; r++) {
            rows[i].max[r] = -INFINITY;
            rows[i].sum[r] = 0.0f;
        }
        BLOCK_UNROLL
        for (uint32_t n = 0; n < p->kind.row_tiles * p->kind.width / MMA_N; n++) BLOCK_UNROLL
        for (uint32_t v = 0; v < 4; v++) o[n][i].v[v] = 0.0f;
    }
}

/* Finds the slots of the tile that the rows see. Rows past the block's last one count as the last.
 */
BLOCK_INLINE void mma_see(const struct mma_part *p, struct mma_rows *rows)
{
    const uint32_t last = p->n_positions * p->n_heads - 1;
    FOR_THREADS_AT(t, i)
    {
        BLOCK_UNROLL
        for (uint32_t r = 0; r < 2 * p->kind.row_tiles; r++) {
            const uint32_t row = mma_row_of(t / WARP_THREADS, t % WARP_THREADS, r);
            mma_visible(p, p->position0 + (row < last ? row : last) / p->n_heads, &rows[i].j0[r],
                        &rows[i].j1[r]);
        }
        if (t < 2) p->hidden[t] = 0;
    }
}

/* Computes the current tile. is_whole is a constant, so that the code for whole
 * tiles has no masks. */
BLOCK_INLINE void mma_tile(struct mma_part *p, bool is_whole, struct half_a (*q)[THREAD_SLOTS],
                           struct mma_rows *rows, struct half_sums (*o)[THREAD_SLOTS])
{
    struct half_sums s[ROW_TILES_MAX * SCORE_TILES][THREAD_SLOTS];
    struct half_a weights[ROW_TILES_MAX * WEIGHT_TILES][THREAD_SLOTS];
    p->is_whole = is_whole;
    BLOCK_FETCH_WAIT(1); /* the keys have arrived */
    BLOCK_SYNC();
    if (!is_whole) mma_see(p, rows);
    FOR_WARPS(warp)
    {
        if (!mma_is_idle(p, warp)) mma_scores(p, warp, q, s);
    }
    BLOCK_SYNC();
    mma_fetch(p, p->tile + 1, 0);
    FOR_WARPS(warp)
    {
        if (!mma_is_idle(p, warp)) mma_weights(p, warp, s, weights, rows);
    }
    BLOCK_FETCH_WAIT(1); /* the values have arrived */
    BLOCK_SYNC();
    if (!is_whole) mma_hide(p);
    FOR_WARPS(warp)
    {
        if (!mma_is_idle(p, warp)) mma_values(p, warp, weights, rows, o);
    }
    BLOCK_SYNC();
    mma_fetch(p, p->tile + 1, 1);
}

BLOCK_INLINE void mma_attention(const struct attention_mma_work *a, struct cuda_block b,
                                void *shared, struct mma_kind kind)
{
    struct mma_part p;
    struct mma_rows rows[THREAD_SLOTS];
    struct half_a q[QUERY_TILES_MAX][THREAD_SLOTS];
    struct half_sums o[VALUE_TILES_MAX][THREAD_SLOTS];
    if (!mma_part_of(a, b, kind, (uint8_t *)shared, &p)) return;
    mma_fetch(&p, p.begin, 0);
    mma_fetch(&p, p.begin, 1);
    mma_begin(&p);
    mma_start_rows(&p, rows, o);
    if (mma_holds_queries(kind)) {
        BLOCK_SYNC();
        FOR_WARPS(warp)
        {
            BLOCK_UNROLL
            for (uint32_t k = 0; k < kind.width; k += HALF_K)
                mma_load_queries(&p, warp, k, q + k / HALF_K * kind.row_tiles);
        }
    }
    for (p.tile = p.begin; p.tile < p.end; p.tile++) {
        BLOCK_ROLLED /* a loop of its own, which needs no registers for masks */
            for (; p.tile >= p.whole_begin && p.tile < p.whole_end; p.tile++)
                mma_tile(&p, true, q, rows, o);
        if (p.tile < p.end) mma_tile(&p, false, q, rows, o);
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

/* Folds the states of this pass's tiles into the total of earlier passes, which `totals` holds.
 * After a row's last tile, divides the total and writes the output. */
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
    float *folded = (float *)shared; /* earlier maximum and sum; 1 if an o is not finite */
    float *out = a->out + (row * a->n_heads + b.x) * hd;
    if (n_now == 0) return;
    FOR_THREADS(t)
    {
        if (t < 2) folded[t] = a->tile0 > 0 ? total[t] : t == 0 ? -INFINITY : 0.0f;
        if (t == 2) folded[t] = 0.0f;
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
                out[d] = o / mma_total(a, b.x, max, sum);
                if (o - o != 0.0f) folded[2] = 1.0f;
            } else {
                total[2 + d] = o;
                if (d == 0) total[0] = max;
                if (d == 0) total[1] = sum;
            }
        }
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        for (uint32_t d = t; d < hd && left == n_now && folded[2] != 0.0f; d += CUDA_THREADS)
            out[d] = f32_from_bits(0x7FC00000u);
    }
}
CUDA_KERNEL(attention_mma_fold, attention_mma_work)

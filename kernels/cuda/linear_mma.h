/* Linears with quantized weights and quantized activations on tensor cores (mma.sync of int8). The
 * int32 sums of a group are exact and the groups form one chain, so every tile shape gives the
 * bytes of linear_groups.cu. Each file that includes this one defines a shape. cp.async copies the
 * rows' and the weights' values to shared memory some steps ahead, and the scales, zero points and
 * sums of GROUPS groups at a time. Weights stay packed there: a panel holds four inputs of an
 * output side by side, as mma wants its second operand; int4 and mxfp4 are unpacked in registers.
 */
#ifndef SHOAL_KERNELS_CUDA_LINEAR_MMA_H
#define SHOAL_KERNELS_CUDA_LINEAR_MMA_H

#include "kernels/cuda/linear_tile.h"
#include "kernels/cuda/mma.h"

#include <assert.h>

/* The including file defines:
 *     MMA_ROWS, MMA_OUTPUTS   rows and outputs of a block's tile
 *     MMA_WARPS_DOWN          warps that divide the rows; MMA_WARPS_ACROSS divide the outputs
 *     MMA_STEP                inputs fetched per step
 *     MMA_STAGES              steps held in shared memory
 *     MMA_WINDOWS             windows held in shared memory; a window has the scales, zero points
 *                             and sums of GROUPS groups
 *     MMA_FOLDS               1: a block computes all leaves (K-blocks) of its outputs in turn,
 *                             and adds their grid integers in registers;
 *                             0: b.z is the leaf, and blocks add by atomics; with many rows,
 *                             blocks would wait for the atomics
 *     MMA_SHARED              bytes of shared memory */
enum {
    GROUPS = 8,
    PIECE = 16,       /* bytes of one copy */
    LINE_PIECES = 4,  /* pieces of a line */
    LINE_INPUTS = 64, /* a row's inputs in a line. A panel's line holds four inputs of 16 outputs,
                         or eight if they are nibbles */
    QUANT_LEAST = 32, /* inputs of the smallest group */
    MMA_PANELS = MMA_OUTPUTS / PANEL_COLUMNS,
    MMA_WARPS_ACROSS = CUDA_THREADS / WARP_THREADS / MMA_WARPS_DOWN,
    DOWN = MMA_ROWS / MMA_WARPS_DOWN / MMA_M, /* products of a warp over the rows */
    ACROSS = MMA_PANELS / MMA_WARPS_ACROSS,   /* panels of a warp */
    HALVES = 2,                               /* products over a panel's outputs */
    TILES = DOWN * ACROSS * HALVES,
    ROWS_BYTES = MMA_ROWS * MMA_STEP,
    PANEL_BYTES = MMA_STEP * PANEL_COLUMNS,
    STAGE_BYTES = ROWS_BYTES + MMA_PANELS * PANEL_BYTES,
    ROW_STRIDE = MMA_ROWS + 4, /* numbers from group to group, so that banks differ */
    ROW_SUMS = GROUPS * ROW_STRIDE * 4,
    SCALES = 2 * ROW_SUMS, /* byte of a window at which weights' scales begin, up to 4 bytes each */
    ZEROS = SCALES + MMA_PANELS * GROUPS * PANEL_COLUMNS * 4, /* the same for zero points */
    WINDOW_BYTES = ZEROS + MMA_PANELS * GROUPS * PANEL_COLUMNS,
    WINDOW_STEPS = GROUPS * QUANT_LEAST / MMA_STEP, /* steps of a window, at least */
    SUM_ZERO = 0x4B400000, /* where integer sums start: the bits of SUM_ZERO_FLOAT */
};
#define SUM_ZERO_FLOAT 12582912.0f /* 1.5 * 2^23; adding s, |s| < 2^22, to its bits adds s to it */

static_assert(MMA_STAGES * STAGE_BYTES + MMA_WINDOWS * WINDOW_BYTES <= MMA_SHARED,
              "more shared memory than is asked for");
static_assert((MMA_STAGES - 1 + WINDOW_STEPS - 1) / WINDOW_STEPS + 1 <= MMA_WINDOWS,
              "a window is fetched while it is still read");
static_assert(QUANT_GROUP_MAX * 127 * 255 < 1 << 22, "a sum that has no exact float");

/* The work of a block. */
struct mma_part {
    const struct linear_work *a;
    struct linear_part rows;
    uint32_t G, n_inputs;      /* inputs of a group; inputs of the block, in whole groups */
    uint32_t panel0, n_panels; /* first panel of the block; panels from it to the weight's end */
    uint32_t scale_bytes;      /* of one packed scale */
    uint32_t leaf;             /* with MMA_FOLDS: inputs of a leaf, whole groups */
    bool offsets;              /* whether quant_offset can be other than 0 */
    uint8_t *shared;
};

/* Registers of a warp's lanes. */
struct mma_warp {
    struct mma_c sums[TILES][WARP_LANES];
    float chain[TILES][WARP_LANES][4];
    int64_t folded[MMA_FOLDS ? TILES : 1][WARP_LANES][4]; /* sums over the leaves so far */
    uint32_t group;                                       /* counted from the block's first */
};

BLOCK_INLINE uint8_t *mma_stage(const struct mma_part *p, uint32_t step)
{
    return p->shared + step % MMA_STAGES * STAGE_BYTES;
}

BLOCK_INLINE uint8_t *mma_window(const struct mma_part *p, uint32_t group)
{
    return p->shared + MMA_STAGES * STAGE_BYTES + group / GROUPS % MMA_WINDOWS * WINDOW_BYTES;
}

/* Returns the byte offset of piece i of row r in a stage. The XOR avoids bank conflicts: piece i of
 * eight neighbouring rows touches every bank once. */
BLOCK_INLINE uint32_t mma_row_at(uint32_t r, uint32_t i)
{
    const uint32_t line = i / LINE_PIECES * MMA_ROWS + r;
    return (line * LINE_PIECES + (i % LINE_PIECES ^ (r >> 1 & 3))) * PIECE;
}

/* Returns the byte offset of piece i (four outputs) of a panel's line. The XOR lets half a warp
 * read the same eight outputs of four lines without bank conflicts. */
BLOCK_INLINE uint32_t mma_weight_at(uint32_t line, uint32_t i)
{
    return (line * LINE_PIECES + (i ^ (line & 2))) * PIECE;
}

/* --- copies ---------------------------------------------------------------------------------- */

BLOCK_INLINE void mma_fetch_rows(const struct mma_part *p, uint32_t at, uint32_t t, uint8_t *to)
{
    const struct quant_rows *q = &p->a->xq;
    const uint32_t pieces = MMA_STEP / PIECE;
    const size_t stride = q->n_groups * p->G;
    BLOCK_UNROLL
    for (uint32_t i = t; i < MMA_ROWS * pieces; i += CUDA_THREADS) {
        const uint32_t r = i / pieces, k = at + i % pieces * PIECE;
        const bool has = r < p->rows.n_rows && k < p->n_inputs;
        const int8_t *from = q->codes;
        if (has) from += (p->rows.row0 + r) * stride + p->rows.k0 + k;
        block_fetch16_or_zeros(to + mma_row_at(r, i % pieces), from, has);
    }
}

BLOCK_INLINE void mma_fetch_panels(enum quant_kind kind, const struct mma_part *p, uint32_t at,
                                   uint32_t t, uint8_t *to)
{
    const struct packed *w = p->rows.w;
    const uint32_t per_line = QUANT_QUAD * (quant_is_nibbles(kind) ? 2 : 1);
    const uint32_t pieces = MMA_STEP / per_line * LINE_PIECES;
    const size_t panel_bytes = kern_quant_panel_bytes(w->quant, w->n_in);
    const size_t first = (size_t)((p->rows.k0 + at) / per_line) * LINE_PIECES * PIECE;
    BLOCK_UNROLL
    for (uint32_t i = t; i < MMA_PANELS * pieces; i += CUDA_THREADS) {
        const uint32_t panel = i / pieces, piece = i % pieces, line = piece / LINE_PIECES;
        const bool has = panel < p->n_panels && at + line * per_line < p->n_inputs;
        const uint8_t *from = (const uint8_t *)w->data;
        if (has) from += (p->panel0 + panel) * panel_bytes + first + piece * PIECE;
        block_fetch16_or_zeros(to + panel * PANEL_BYTES + mma_weight_at(line, piece % LINE_PIECES),
                               from, has);
    }
}

/* Fetches the scales of the rows' groups, and the sums of their values: group j of row r is number
 * j * ROW_STRIDE + r. */
BLOCK_INLINE void mma_fetch_row_groups(const struct mma_part *p, uint32_t group, uint32_t n,
                                       uint32_t t, uint8_t *to)
{
    const struct quant_rows *q = &p->a->xq;
    const size_t first = p->rows.row0 * q->n_groups + p->rows.k0 / p->G + group;
    BLOCK_ROLLED
    for (uint32_t i = t; i < p->rows.n_rows * GROUPS; i += CUDA_THREADS) {
        const uint32_t r = i / GROUPS, j = i % GROUPS;
        if (j >= n) continue;
        const size_t from = first + r * q->n_groups + j;
        uint8_t *place = to + (j * ROW_STRIDE + r) * sizeof(float);
        block_fetch4(place, q->scales + from);
        if (p->offsets) block_fetch4(place + ROW_SUMS, q->sums + from);
    }
}

/* Fetches `bytes` for each output of a panel and each of n groups, from an array of the weight. */
BLOCK_INLINE void mma_fetch_groups(const struct mma_part *p, const void *array, uint32_t bytes,
                                   uint32_t group, uint32_t n, uint32_t t, uint8_t *to)
{
    const size_t all = kern_quant_groups(p->rows.w->quant, p->rows.w->n_in);
    const size_t first = p->panel0 * all + p->rows.k0 / p->G + group;
    const uint32_t n_panels = p->n_panels < MMA_PANELS ? p->n_panels : MMA_PANELS;
    BLOCK_ROLLED
    for (uint32_t i = t; i < n_panels * GROUPS * bytes; i += CUDA_THREADS) {
        const uint32_t panel = i / (GROUPS * bytes), piece = i % (GROUPS * bytes);
        if (piece >= n * bytes) continue;
        const uint8_t *from = (const uint8_t *)array + (first + panel * all) * bytes * PIECE;
        block_fetch16(to + i * PIECE, from + piece * PIECE);
    }
}

/* Fetches the window that begins with this group. */
BLOCK_INLINE void mma_fetch_window(const struct mma_part *p, uint32_t group, uint32_t t)
{
    const struct packed *w = p->rows.w;
    const uint32_t left = p->n_inputs / p->G - group, n = left < GROUPS ? left : GROUPS;
    uint8_t *to = mma_window(p, group);
    mma_fetch_row_groups(p, group, n, t, to);
    mma_fetch_groups(p, w->scales, p->scale_bytes, group, n, t, to + SCALES);
    if (w->quant.has_zeros) mma_fetch_groups(p, w->zeros, 1, group, n, t, to + ZEROS);
}

BLOCK_INLINE void mma_fetch(enum quant_kind kind, const struct mma_part *p, uint32_t step)
{
    const uint32_t at = step * MMA_STEP;
    FOR_THREADS(t)
    {
        if (at < p->n_inputs) {
            mma_fetch_rows(p, at, t, mma_stage(p, step));
            mma_fetch_panels(kind, p, at, t, mma_stage(p, step) + ROWS_BYTES);
            if ((at & (GROUPS * p->G - 1)) == 0) mma_fetch_window(p, at / p->G, t);
        }
        block_fetch_end();
    }
}

/* --- products -------------------------------------------------------------------------------- */

/* Loads inputs [32 run, 32 run + 32) of a stage for 16 rows, from r0 on: one product's operand. */
BLOCK_INLINE void mma_load_rows(const uint8_t *stage, uint32_t run, uint32_t r0, struct mma_a *a)
{
    const void *rows[WARP_LANES];
    struct half_a pairs[WARP_LANES];
    FOR_LANES(lane, i)
    {
        rows[i] = stage + mma_row_at(r0 + lane % 16, run * 2 + lane / 16);
    }
    warp_load_matrices(pairs, rows);
    for (uint32_t i = 0; i < WARP_LANES; i++) {
        BLOCK_UNROLL
        for (uint32_t v = 0; v < 4; v++) a[i].v[v] = pairs[i].v[v];
    }
}

/* Returns an output's quantized values for the four inputs of quad number `quad`, as signed bytes.
 * `word` is the packed word with this quad; a word of nibbles has two quads. */
BLOCK_INLINE uint32_t mma_codes(enum quant_kind kind, uint32_t word, uint32_t quad)
{
    if (kind == QUANT_INT8) return word ^ 0x80808080u;
    const uint32_t nibbles = word >> 4 * (quad % 2) & 0x0F0F0F0Fu;
    return kind == QUANT_MXFP4 ? quant_doubled(nibbles) : nibbles;
}

/* Loads a panel's weights for both of its products. Column c of product j is output 2 c + j, so
 * that a lane loads both at once. */
BLOCK_INLINE void mma_load_weights(enum quant_kind kind, const uint8_t *panel, uint32_t run,
                                   struct mma_b (*b)[WARP_LANES])
{
    const uint32_t per_line = quant_is_nibbles(kind) ? 2 : 1;
    FOR_LANES(lane, i)
    {
        const uint32_t c = lane / 4;
        BLOCK_UNROLL
        for (uint32_t v = 0; v < 2; v++) {
            const uint32_t quad = run * (MMA_K / QUANT_QUAD) + v * 4 + lane % 4;
            const uint8_t *at = panel + mma_weight_at(quad / per_line, c / 2) + c % 2 * 8;
            const uint64_t two = *(const uint64_t *)(const void *)at;
            b[0][i].v[v] = mma_codes(kind, (uint32_t)two, quad);
            b[1][i].v[v] = mma_codes(kind, (uint32_t)(two >> 32), quad);
        }
    }
}

BLOCK_INLINE void mma_products(enum quant_kind kind, const uint8_t *stage, uint32_t warp,
                               uint32_t run, struct mma_warp *state)
{
    const uint32_t r0 = warp / MMA_WARPS_ACROSS * DOWN * MMA_M;
    const uint8_t *panels = stage + ROWS_BYTES + warp % MMA_WARPS_ACROSS * ACROSS * PANEL_BYTES;
    struct mma_b b[ACROSS * HALVES][WARP_LANES];
    BLOCK_UNROLL
    for (uint32_t j = 0; j < ACROSS; j++)
        mma_load_weights(kind, panels + j * PANEL_BYTES, run, &b[j * HALVES]);
    BLOCK_UNROLL
    for (uint32_t d = 0; d < DOWN; d++) {
        struct mma_a a[WARP_LANES];
        mma_load_rows(stage, run, r0 + d * MMA_M, a);
        BLOCK_UNROLL
        for (uint32_t j = 0; j < ACROSS * HALVES; j++)
            warp_mma_s8(state->sums[d * ACROSS * HALVES + j], a, b[j]);
    }
}

/* --- groups ---------------------------------------------------------------------------------- */

/* Returns scale i of a window, as kern_quant_scale does. */
BLOCK_INLINE float mma_scale(enum quant_kind kind, const struct mma_part *p, const uint8_t *scales,
                             uint32_t i)
{
    if (kind == QUANT_MXFP4) return f32_from_e8m0(scales[i]) * 0.5f;
    return p->scale_bytes == 2 ? block_load_f16(scales, i) : kern_load(DTYPE_F32, scales, i);
}

/* Returns the factor of quant_offset for zero point i of a window. */
BLOCK_INLINE int32_t mma_offset(enum quant_kind kind, const struct mma_part *p,
                                const uint8_t *zeros, uint32_t i)
{
    const int32_t zero = p->rows.w->quant.has_zeros ? zeros[i] : QUANT_INT4_ZERO;
    return kind == QUANT_INT8 ? QUANT_INT8_BIAS - zero : -zero;
}

/* The numbers of one group for the rows that a lane sums: scales, and sums of the values. */
struct mma_row_group {
    float scale[DOWN * 2];
    int32_t sum[DOWN * 2];
};

BLOCK_INLINE void mma_load_row_group(const uint8_t *window, uint32_t group, uint32_t r0,
                                     bool offsets, struct mma_row_group *x)
{
    const float *scales = (const float *)(const void *)window + group % GROUPS * ROW_STRIDE + r0;
    const int32_t *sums = (const int32_t *)(const void *)(window + ROW_SUMS);
    BLOCK_UNROLL
    for (uint32_t r = 0; r < DOWN * 2; r++) {
        const uint32_t at = r / 2 * MMA_M + r % 2 * (MMA_M / 2);
        x->scale[r] = scales[at];
        x->sum[r] = offsets ? sums[group % GROUPS * ROW_STRIDE + r0 + at] : 0;
    }
}

/* Ends a group for output o of the four that a lane has in a panel, for all rows of the lane:
 *     chain = fma((float)(sum + offset * x->sum), scale * x->scale, chain)
 * Then the sums start again at zero. */
BLOCK_INLINE void mma_chain(struct mma_warp *state, uint32_t i, uint32_t panel, uint32_t o,
                            float scale, int32_t offset, const struct mma_row_group *x)
{
    BLOCK_UNROLL
    for (uint32_t r = 0; r < DOWN * 2; r++) {
        const uint32_t tile = (r / 2 * ACROSS + panel) * HALVES + o % 2, v = r % 2 * 2 + o / 2;
        const uint32_t sum = (uint32_t)(state->sums[tile][i].v[v] + offset * x->sum[r]);
        float *chain = &state->chain[tile][i][v];
        *chain = fmaf(f32_from_bits(sum) - SUM_ZERO_FLOAT, scale * x->scale[r], *chain);
        state->sums[tile][i].v[v] = SUM_ZERO;
    }
}

/* Ends a group for all outputs of a warp. `offsets` is p->offsets as a compile-time constant. */
BLOCK_INLINE void mma_end_group(enum quant_kind kind, bool offsets, const struct mma_part *p,
                                uint32_t warp, struct mma_warp *state)
{
    const uint8_t *window = mma_window(p, state->group);
    const uint32_t r0 = warp / MMA_WARPS_ACROSS * DOWN * MMA_M;
    FOR_LANES(lane, i)
    {
        struct mma_row_group x;
        mma_load_row_group(window, state->group, r0 + lane / 4, offsets, &x);
        BLOCK_UNROLL
        for (uint32_t j = 0; j < ACROSS; j++) {
            const uint32_t panel = warp % MMA_WARPS_ACROSS * ACROSS + j;
            const uint32_t n =
                (panel * GROUPS + state->group % GROUPS) * PANEL_COLUMNS + lane % 4 * 4;
            BLOCK_UNROLL
            for (uint32_t o = 0; o < 4; o++) {
                const float scale = mma_scale(kind, p, window + SCALES, n + o);
                const int32_t offset = offsets ? mma_offset(kind, p, window + ZEROS, n + o) : 0;
                mma_chain(state, i, j, o, scale, offset, &x);
            }
        }
    }
}

/* --- leaves ---------------------------------------------------------------------------------- */

/* Returns the row, counted in the block, of value v of a lane's tile t; sets *n to its output. */
BLOCK_INLINE uint32_t mma_place(const struct mma_part *p, uint32_t warp, uint32_t lane, uint32_t t,
                                uint32_t v, uint32_t *n)
{
    const uint32_t down = warp / MMA_WARPS_ACROSS * DOWN + t / (ACROSS * HALVES);
    const uint32_t panel = warp % MMA_WARPS_ACROSS * ACROSS + t / HALVES % ACROSS;
    *n = (p->panel0 + panel) * PANEL_COLUMNS + lane % 4 * 4 + v % 2 * 2 + t % HALVES;
    return down * MMA_M + v / 2 * (MMA_M / 2) + lane / 4;
}

/* Ends a leaf: adds the chains to the integer sums of the leaves and starts them again at zero. A
 * sum beyond the grid is counted instead. */
BLOCK_INLINE void mma_fold(const struct mma_part *p, uint32_t warp, struct mma_warp *state)
{
    const struct packed *w = p->rows.w;
    const float limit = kern_grid_limit(w->grid_bits);
    const double unit = kern_pow2((int)w->grid_bits);
    FOR_LANES(lane, i)
    {
        BLOCK_UNROLL
        for (uint32_t t = 0; t < (MMA_FOLDS ? TILES : 1); t++) {
            BLOCK_UNROLL
            for (uint32_t v = 0; v < 4; v++) {
                const float sum = state->chain[t][i][v];
                uint32_t n;
                state->chain[t][i][v] = 0.0f;
                if (fabsf(sum) < limit) {
                    state->folded[t][i][v] += block_round((double)sum * unit);
                    continue;
                }
                const uint32_t r = mma_place(p, warp, lane, t, v, &n);
                if (r >= p->rows.n_rows || n >= w->n_out) continue;
                const size_t row = p->rows.row0 + r;
                if (p->a->sums == NULL)
                    block_add_i32(&p->a->bad[row], 1);
                else
                    block_add_i64(&p->a->sums[row * (w->n_out + (size_t)1) + w->n_out], 1);
            }
        }
    }
}

/* Writes a sum over all leaves to `sums`; or its value to y, added if a->adds. No other block has
 * this output. */
BLOCK_INLINE void mma_write_sum(const struct mma_part *p, uint32_t r, uint32_t n, int64_t sum)
{
    const struct packed *w = p->rows.w;
    const size_t row = p->rows.row0 + r;
    if (r >= p->rows.n_rows || n >= w->n_out) return;
    if (p->a->sums != NULL) {
        p->a->sums[row * (w->n_out + (size_t)1) + n] = sum;
        return;
    }
    const float x = (float)((double)sum * kern_pow2(-(int)w->grid_bits));
    float *y = &p->a->y[row * p->a->y_stride + n];
    *y = p->a->adds ? *y + x : x;
}

BLOCK_INLINE void mma_store_folded(const struct mma_part *p, uint32_t warp,
                                   const struct mma_warp *state)
{
    FOR_LANES(lane, i)
    {
        BLOCK_UNROLL
        for (uint32_t t = 0; t < (MMA_FOLDS ? TILES : 1); t++) {
            BLOCK_UNROLL
            for (uint32_t v = 0; v < 4; v++) {
                uint32_t n;
                const uint32_t r = mma_place(p, warp, lane, t, v, &n);
                mma_write_sum(p, r, n, state->folded[t][i][v]);
            }
        }
    }
}

/* --- a block --------------------------------------------------------------------------------- */

/* Multiplies the inputs of a step. */
BLOCK_INLINE void mma_step(enum quant_kind kind, const struct mma_part *p, uint32_t step,
                           uint32_t warp, struct mma_warp *state)
{
    if (warp / MMA_WARPS_ACROSS * DOWN * MMA_M >= p->rows.n_rows) return;
    BLOCK_UNROLL
    for (uint32_t run = 0; run < MMA_STEP / MMA_K; run++) {
        const uint32_t end = step * MMA_STEP + (run + 1) * MMA_K;
        if (end > p->n_inputs) break;
        mma_products(kind, mma_stage(p, step), warp, run, state);
        if ((end & (p->G - 1)) != 0) continue;
        if (kind != QUANT_MXFP4 && p->offsets)
            mma_end_group(kind, true, p, warp, state);
        else
            mma_end_group(kind, false, p, warp, state);
        state->group++;
        if (MMA_FOLDS && (end == p->n_inputs || end % p->leaf == 0)) mma_fold(p, warp, state);
    }
}

BLOCK_INLINE void mma_store(const struct mma_part *p, uint32_t warp, const struct mma_warp *state)
{
    FOR_LANES(lane, i)
    {
        BLOCK_UNROLL
        for (uint32_t t = 0; t < TILES; t++) {
            BLOCK_UNROLL
            for (uint32_t v = 0; v < 4; v++) {
                struct linear_part one = p->rows;
                const uint32_t r = mma_place(p, warp, lane, t, v, &one.n);
                if (one.n >= one.w->n_out) continue;
                if (p->a->leafy)
                    linear_store_leaf(p->a, &one, r, state->chain[t][i][v]);
                else
                    linear_store(p->a, &one, r, state->chain[t][i][v]);
            }
        }
    }
}

BLOCK_INLINE void mma_clear(struct mma_warp *state)
{
    state->group = 0;
    for (uint32_t i = 0; i < WARP_LANES; i++) {
        BLOCK_UNROLL
        for (uint32_t t = 0; t < TILES; t++) {
            BLOCK_UNROLL
            for (uint32_t v = 0; v < 4; v++) {
                state->sums[t][i].v[v] = SUM_ZERO;
                state->chain[t][i][v] = 0.0f;
                if (MMA_FOLDS) state->folded[t][i][v] = 0;
            }
        }
    }
}

BLOCK_INLINE void mma_run(enum quant_kind kind, const struct mma_part *p)
{
    struct mma_warp warps[WARP_SLOTS];
    const uint32_t n_steps = (p->n_inputs + MMA_STEP - 1) / MMA_STEP;
    for (uint32_t s = 0; s < WARP_SLOTS; s++) mma_clear(&warps[s]);
    for (uint32_t step = 0; step + 1 < MMA_STAGES; step++) mma_fetch(kind, p, step);
    for (uint32_t step = 0; step < n_steps; step++) {
        BLOCK_FETCH_WAIT(MMA_STAGES - 2);
        BLOCK_SYNC(); /* all threads' copies have arrived; the oldest stage is free */
        mma_fetch(kind, p, step + MMA_STAGES - 1);
        FOR_WARPS_AT(w, s)
        {
            mma_step(kind, p, step, w, &warps[s]);
        }
    }
    FOR_WARPS_AT(w, s)
    {
        if (MMA_FOLDS)
            mma_store_folded(p, w, &warps[s]);
        else
            mma_store(p, w, &warps[s]);
    }
}

BLOCK_INLINE void mma_block(const struct linear_work *a, struct cuda_block b, void *shared)
{
    struct mma_part p;
    p.a = a;
    linear_rows_of(a, b, MMA_ROWS, &p.rows);
    linear_inputs_of(a, b, a->leafy && !MMA_FOLDS, &p.rows);
    const struct packed *w = p.rows.w;
    p.leaf = MMA_FOLDS ? w->leaf : 0;
    if (p.rows.k0 >= w->n_in) return;
    p.G = a->xq.group;
    p.n_inputs = (p.rows.k1 - p.rows.k0 + p.G - 1) / p.G * p.G;
    p.panel0 = b.x * MMA_PANELS;
    p.n_panels = (w->n_out + PANEL_COLUMNS - 1) / PANEL_COLUMNS - p.panel0;
    p.scale_bytes = (uint32_t)kern_quant_scale_bytes(w->quant);
    p.offsets = w->quant.has_zeros || w->quant.kind == QUANT_INT4;
    p.shared = (uint8_t *)shared;
    if (w->quant.kind == QUANT_INT8)
        mma_run(QUANT_INT8, &p);
    else if (w->quant.kind == QUANT_INT4)
        mma_run(QUANT_INT4, &p);
    else
        mma_run(QUANT_MXFP4, &p);
}

#endif

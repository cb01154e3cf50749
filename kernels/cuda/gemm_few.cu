/* Products of few rows with row-major weights on tensor cores, where the library leaves most of the
 * GPU idle. Used only if trials give the library's bits (gemm_trials.c): one chain of m16n8k16
 * products over the inputs, ascending, from +0. A block computes 32 outputs, eight for each warp,
 * of up to sixteen rows; cp.async copies weights and rows to shared memory some steps ahead. Blocks
 * of several linears that read the same rows run side by side.
 *
 *     a stage   [32][64]  weights, then [16][64] rows; 16-byte pieces of a row are permuted (XOR),
 * so that ldmatrix meets every bank once */
#include "kernels/cuda/mma.h"

enum {
    STEP = 64, /* inputs of a step */
    PIECE = 8, /* inputs of one copy, 16 bytes */
    PIECES = STEP / PIECE,
    OUTPUTS = CUDA_GEMM_FEW_OUTPUTS,
    ROWS = CUDA_GEMM_FEW_ROWS,
    STAGES = CUDA_GEMM_FEW_STAGES,
    STAGE = (OUTPUTS + ROWS) * STEP, /* 16-bit elements of a stage */
};

/* The work of a block: outputs [n0, n0 + OUTPUTS) of one product. */
struct few_product {
    const struct gemm_few_work *a;
    const struct gemm_few_part *part;
    const uint16_t *w, *x; /* at the first input of the block's batch */
    float *y;
    uint32_t n0;
    uint16_t *shared;
};

/* Returns piece `piece` of line `line` of a stage: outputs, then rows. */
BLOCK_INLINE uint16_t *few_piece(const struct few_product *p, uint32_t step, uint32_t line,
                                 uint32_t piece)
{
    const uint32_t at = step % STAGES * STAGE + line * STEP + (piece ^ (line % PIECES)) * PIECE;
    return p->shared + at;
}

BLOCK_INLINE void few_fetch(const struct few_product *p, uint32_t step)
{
    FOR_THREADS(t)
    {
        const size_t k0 = (size_t)step * STEP;
        BLOCK_UNROLL
        for (uint32_t i = t; i < (OUTPUTS + ROWS) * PIECES; i += CUDA_THREADS) {
            const uint32_t line = i / PIECES, piece = i % PIECES, row = line - OUTPUTS;
            const size_t k = k0 + piece * PIECE;
            const bool is_row = line >= OUTPUTS;
            if (k0 >= p->a->k || (is_row && row >= p->a->n_rows)) continue;
            const bool has = k < p->a->k && (is_row || p->n0 + line < p->part->n_out);
            const uint16_t *from = p->w;
            if (has)
                from = is_row ? p->x + row * p->a->x_stride + k
                              : p->w + (p->n0 + line) * p->part->w_stride + k;
            block_fetch16_or_zeros(few_piece(p, step, line, piece), from, has);
        }
        block_fetch_end();
    }
}

/* Multiplies 16 inputs, number `run` of the step. */
BLOCK_INLINE void few_multiply(enum dtype type, const struct few_product *p, uint32_t step,
                               uint32_t warp, uint32_t run, struct half_sums *sums)
{
    const void *lines[WARP_LANES];
    struct half_a a[WARP_LANES], pair[WARP_LANES];
    struct half_b b[WARP_LANES];
    FOR_LANES(lane, i)
    {
        const uint32_t row = lane / 8 % 2 * 8 + lane % 8;
        lines[i] = few_piece(p, step, OUTPUTS + row, run * 2 + lane / 16);
    }
    warp_load_matrices(a, lines);
    FOR_LANES(lane, i)
    {
        lines[i] = few_piece(p, step, warp * MMA_N + lane % 8, run * 2 + lane / 8 % 2);
    }
    warp_load_matrices(pair, lines);
    FOR_LANES(lane, i)
    {
        (void)lane;
        b[i].v[0] = pair[i].v[0];
        b[i].v[1] = pair[i].v[1];
    }
    warp_mma_half(type, sums, a, b);
}

BLOCK_INLINE void few_step(enum dtype type, const struct few_product *p, uint32_t step,
                           uint32_t warp, struct half_sums *sums)
{
    BLOCK_UNROLL
    for (uint32_t run = 0; run < STEP / HALF_K; run++) {
        if (step * STEP + run * HALF_K >= p->a->k) break;
        few_multiply(type, p, step, warp, run, sums);
    }
}

BLOCK_INLINE void few_write(const struct few_product *p, uint32_t warp,
                            const struct half_sums *sums)
{
    FOR_LANES(lane, i)
    {
        BLOCK_UNROLL
        for (uint32_t v = 0; v < 4; v++) {
            const uint32_t row = lane / 4 + v / 2 * 8;
            const uint32_t n = p->n0 + warp * MMA_N + lane % 4 * 2 + v % 2;
            if (row < p->a->n_rows && n < p->part->n_out)
                p->y[row * p->part->y_stride + n] = sums[i].v[v];
        }
    }
}

BLOCK_INLINE void few_run(enum dtype type, const struct few_product *p)
{
    struct half_sums sums[WARP_SLOTS][WARP_LANES];
    const uint32_t n_steps = (uint32_t)((p->a->k + STEP - 1) / STEP);
    for (uint32_t s = 0; s < WARP_SLOTS; s++) {
        for (uint32_t i = 0; i < WARP_LANES; i++) {
            BLOCK_UNROLL
            for (uint32_t v = 0; v < 4; v++) sums[s][i].v[v] = 0.0f;
        }
    }
    for (uint32_t step = 0; step + 1 < STAGES; step++) few_fetch(p, step);
    for (uint32_t step = 0; step < n_steps; step++) {
        BLOCK_FETCH_WAIT(STAGES - 2);
        BLOCK_SYNC(); /* all threads' copies have arrived; the oldest stage is free */
        few_fetch(p, step + STAGES - 1);
        FOR_WARPS_AT(w, s)
        {
            few_step(type, p, step, w, sums[s]);
        }
    }
    FOR_WARPS_AT(w, s)
    {
        few_write(p, w, sums[s]);
    }
}

BLOCK_INLINE void gemm_few_block(const struct gemm_few_work *a, struct cuda_block b, void *shared)
{
    uint32_t i = a->n - 1;
    while (b.x < a->part[i].first) i--;
    const struct gemm_few_part *part = &a->part[i];
    const struct few_product p = {.a = a,
                                  .part = part,
                                  .w = (const uint16_t *)part->w + b.z * a->w_step,
                                  .x = (const uint16_t *)a->x + b.z * a->x_step,
                                  .y = part->y + b.z * a->y_step,
                                  .n0 = (b.x - part->first) * OUTPUTS,
                                  .shared = (uint16_t *)shared};
    if (a->dtype == DTYPE_F16)
        few_run(DTYPE_F16, &p);
    else
        few_run(DTYPE_BF16, &p);
}
CUDA_KERNEL(gemm_few, gemm_few_work)

/* Products of few rows with row-major weights on tensor cores, where the library leaves most of the
 * GPU idle. An output is one chain of m16n8k16 products over the inputs, ascending, from +0. Used
 * only if trials (gemm_trials.c) show the library's bits. A block computes 32 outputs, eight per
 * warp, of up to sixteen rows; cp.async copies weights and rows to shared memory some steps ahead.
 * Blocks of several linears that read the same rows run side by side.
 *
 * A stage in shared memory holds the 64 inputs of a step in 48 lines: the weights of 32 outputs,
 * then 16 rows. The 16-byte pieces of a line are permuted (XOR), so that ldmatrix meets each bank
 * once. */
#include "kernels/cuda/mma.h"

enum {
    STEP = 64, /* inputs of a step */
    PIECE = 8, /* inputs of one copy, 16 bytes */
    PIECES = STEP / PIECE,
    OUTPUTS = CUDA_GEMM_FEW_OUTPUTS,
    ROWS = CUDA_GEMM_FEW_ROWS,
    STAGES = CUDA_GEMM_FEW_STAGES,
    STAGE = (OUTPUTS + ROWS) * STEP,   /* 16-bit elements of a stage */
    LINE_STEP = CUDA_THREADS / PIECES, /* lines from one piece of a thread to the next */
    LINES = (OUTPUTS + ROWS) / LINE_STEP,
};

/* The work of a block: outputs [n0, n0 + OUTPUTS) of one product. */
struct few_product {
    const struct gemm_few_work *a;
    const struct gemm_few_part *part;
    const uint16_t *w, *x; /* at the first input of the block's product */
    float *y;
    uint32_t n0;
    uint16_t *shared;
};

/* The copies of one thread. In each step it copies LINES pieces of 16 bytes: first of weights, then
 * of rows. Their addresses are computed once, because computing them in each step would take longer
 * than the step's products. */
struct few_copies {
    const uint16_t *from[LINES]; /* the piece of the next step */
    uint32_t to;                 /* place of the first line's piece in a stage */
    uint32_t k;                  /* the piece's first input */
    bool has[LINES];             /* whether the line exists */
};

/* Returns where a stage holds piece `piece` of line `line`: outputs, then rows. */
BLOCK_INLINE uint32_t few_place(uint32_t line, uint32_t piece)
{
    return line * STEP + (piece ^ (line % PIECES)) * PIECE;
}

BLOCK_INLINE void few_prepare(const struct few_product *p, uint32_t t, struct few_copies *c)
{
    const uint32_t first = t / PIECES;
    c->k = t % PIECES * PIECE;
    c->to = few_place(first, t % PIECES);
    BLOCK_UNROLL
    for (uint32_t j = 0; j < LINES; j++) {
        const uint32_t line = first + j * LINE_STEP, row = line - OUTPUTS, n = p->n0 + line;
        const bool is_row = j * LINE_STEP >= OUTPUTS;
        c->has[j] = is_row ? row < p->a->n_rows : n < p->part->n_out;
        c->from[j] = is_row ? p->x : p->w;
        if (c->has[j]) c->from[j] += c->k + (is_row ? row * p->a->x_stride : n * p->part->w_stride);
    }
}

/* Begins the copies of a step. Inputs, outputs and rows that do not exist become zeros. */
BLOCK_INLINE void few_fetch(const struct few_product *p, uint16_t *stage, struct few_copies *c)
{
    const bool inside = c->k < p->a->k;
    BLOCK_UNROLL
    for (uint32_t j = 0; j < LINES; j++) {
        const bool has = inside && c->has[j];
        block_fetch16_or_zeros(stage + c->to + j * LINE_STEP * STEP, has ? c->from[j] : p->w, has);
        c->from[j] += STEP;
    }
    c->k += STEP;
    block_fetch_end();
}

/* Multiplies the inputs of a step. One load brings the weights of two products of 16 inputs. */
BLOCK_INLINE void few_step(enum dtype type, const uint16_t *stage, uint32_t warp,
                           struct half_sums *sums)
{
    BLOCK_UNROLL
    for (uint32_t run = 0; run < STEP / HALF_K; run += 2) {
        const void *lines[WARP_LANES];
        struct half_a a[2][WARP_LANES], weights[WARP_LANES];
        struct half_b b[2][WARP_LANES];
        FOR_LANES(lane, i)
        {
            lines[i] = stage + few_place(warp * MMA_N + lane % 8, run * 2 + lane / 8);
        }
        warp_load_matrices(weights, lines);
        BLOCK_UNROLL
        for (uint32_t half = 0; half < 2; half++) {
            FOR_LANES(lane, i)
            {
                const uint32_t row = lane / 8 % 2 * 8 + lane % 8;
                lines[i] = stage + few_place(OUTPUTS + row, (run + half) * 2 + lane / 16);
                b[half][i].v[0] = weights[i].v[half * 2];
                b[half][i].v[1] = weights[i].v[half * 2 + 1];
            }
            warp_load_matrices(a[half], lines);
        }
        warp_mma_half(type, sums, a[0], b[0]);
        warp_mma_half(type, sums, a[1], b[1]);
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
    struct few_copies copies[THREAD_SLOTS];
    FOR_THREADS_AT(t, i)
    {
        few_prepare(p, t, &copies[i]);
        for (uint32_t step = 0; step + 1 < STAGES; step++)
            few_fetch(p, p->shared + step * STAGE, &copies[i]);
    }
    uint32_t stage = 0, free = STAGES - 1; /* the oldest stage; the one that is free next */
    for (uint32_t step = 0; step < n_steps; step++) {
        BLOCK_FETCH_WAIT(STAGES - 2);
        BLOCK_SYNC(); /* all threads' copies have arrived; the stage before the oldest is free */
        FOR_THREADS_AT(t, i)
        {
            (void)t;
            few_fetch(p, p->shared + free * STAGE, &copies[i]);
        }
        FOR_WARPS_AT(w, s)
        {
            few_step(type, p->shared + stage * STAGE, w, sums[s]);
        }
        free = stage;
        stage = stage + 1 < STAGES ? stage + 1 : 0;
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

/* Linears with float weights: the exact chains of kern.h, in one launch for the rows of one group
 * or of many groups (the experts of a rank). */
#include "kernels/cuda/linear_tile.h"

/* Computes the chains of one output for R rows; rows beyond the part's n_rows repeat its last. t,
 * the weights' type, and R are compile-time constants. */
BLOCK_INLINE void linear_chains(enum dtype t, int R, const struct linear_work *a,
                                const struct linear_part *p, float *acc)
{
    const float *x[CUDA_LINEAR_ROWS];
    const size_t flat = p->w->flat, step = flat != 0 ? 1 : PANEL_COLUMNS;
    const size_t first =
        flat != 0 ? p->n * flat : (size_t)p->panel * p->w->n_in * PANEL_COLUMNS + p->column;
    BLOCK_UNROLL
    for (int r = 0; r < R; r++) {
        x[r] = a->x + linear_row(p, (uint32_t)r) * a->x_stride;
        acc[r] = 0.0f;
    }
    for (uint32_t k = p->k0; k < p->k1; k++) {
        const float w = block_load(t, p->w->data, first + k * step);
        BLOCK_UNROLL
        for (int r = 0; r < R; r++) acc[r] = fmaf(x[r][k], w, acc[r]);
    }
}

BLOCK_INLINE void linear_rows(int R, const struct linear_work *a, const struct linear_part *p,
                              float *acc)
{
    if (p->w->dtype == DTYPE_F16)
        linear_chains(DTYPE_F16, R, a, p, acc);
    else if (p->w->dtype == DTYPE_BF16)
        linear_chains(DTYPE_BF16, R, a, p, acc);
    else
        linear_chains(DTYPE_F32, R, a, p, acc);
}

BLOCK_INLINE void linear_thread(const struct linear_work *a, struct cuda_block b, uint32_t thread,
                                bool leafy)
{
    struct linear_part p;
    float acc[CUDA_LINEAR_ROWS];
    if (!linear_part_of(a, b, thread, leafy, &p) || (leafy && p.k0 >= p.w->n_in)) return;
    if (p.n_rows == 1)
        linear_rows(1, a, &p, acc);
    else
        linear_rows(CUDA_LINEAR_ROWS, a, &p, acc);
    BLOCK_UNROLL
    for (uint32_t r = 0; r < CUDA_LINEAR_ROWS; r++) {
        if (r >= p.n_rows) break;
        if (leafy)
            linear_store_leaf(a, &p, r, acc[r]);
        else
            linear_store(a, &p, r, acc[r]);
    }
}

BLOCK_INLINE void linear_block(const struct linear_work *a, struct cuda_block b, void *shared)
{
    (void)shared;
    FOR_THREADS(t)
    {
        linear_thread(a, b, t, false);
    }
}
CUDA_KERNEL(linear, linear_work)

BLOCK_INLINE void linear_leaf_block(const struct linear_work *a, struct cuda_block b, void *shared)
{
    (void)shared;
    FOR_THREADS(t)
    {
        linear_thread(a, b, t, true);
    }
}
CUDA_KERNEL(linear_leaf, linear_work)

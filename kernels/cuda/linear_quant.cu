/* Linears that turn quantized weights into floats, in the CPU's order: with float activations
 * (weight-only), and fp8 with many rows. linear_codes*.cu do this on tensor cores. linear_groups.cu
 * and linear_mma.cu multiply quantized weights with quantized activations. */
#include "kernels/cuda/linear_tile.h"

BLOCK_INLINE void quant_floats(const struct linear_work *a, const struct linear_part *p, float *acc)
{
    const float *x[CUDA_LINEAR_ROWS];
    BLOCK_UNROLL
    for (uint32_t r = 0; r < CUDA_LINEAR_ROWS; r++) {
        x[r] = a->x + linear_row(p, r) * a->x_stride;
        acc[r] = 0.0f;
    }
    for (uint32_t k = p->k0; k < p->k1; k++) {
        const float w = kern_quant_float(p->w, p->n, k);
        BLOCK_UNROLL
        for (uint32_t r = 0; r < CUDA_LINEAR_ROWS; r++) acc[r] = fmaf(x[r][k], w, acc[r]);
    }
}

BLOCK_INLINE void quant_thread(const struct linear_work *a, struct cuda_block b, uint32_t thread,
                               bool leafy)
{
    struct linear_part p;
    float acc[CUDA_LINEAR_ROWS];
    if (!linear_part_of(a, b, thread, leafy, &p) || (leafy && p.k0 >= p.w->n_in)) return;
    quant_floats(a, &p, acc);
    BLOCK_UNROLL
    for (uint32_t r = 0; r < CUDA_LINEAR_ROWS; r++) {
        if (r >= p.n_rows) break;
        if (leafy)
            linear_store_leaf(a, &p, r, acc[r]);
        else
            linear_store(a, &p, r, acc[r]);
    }
}

BLOCK_INLINE void linear_quant_block(const struct linear_work *a, struct cuda_block b, void *shared)
{
    (void)shared;
    FOR_THREADS(t)
    {
        quant_thread(a, b, t, false);
    }
}
CUDA_KERNEL(linear_quant, linear_work)

BLOCK_INLINE void linear_quant_leaf_block(const struct linear_work *a, struct cuda_block b,
                                          void *shared)
{
    (void)shared;
    FOR_THREADS(t)
    {
        quant_thread(a, b, t, true);
    }
}
CUDA_KERNEL(linear_quant_leaf, linear_work)

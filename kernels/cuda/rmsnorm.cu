/* RMSNorm: one block a row; sixteen threads keep the law's sixteen chains, all write. */
#include "kernels/cuda/dialect.h"

BLOCK_INLINE void rmsnorm_block(const struct rmsnorm_work *a, struct cuda_block b, void *shared)
{
    float *lanes = (float *)shared; /* [LANES], and the factor */
    const float *x = a->x + (size_t)b.y * a->n;
    float *y = a->y + (size_t)b.y * a->n;
    FOR_THREADS(t)
    {
        if (t < LANES) {
            float chain = 0.0f;
            for (size_t d = t; d < a->n; d += LANES) chain = fmaf(x[d], x[d], chain);
            lanes[t] = chain;
        }
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        if (t == 0) lanes[LANES] = 1.0f / sqrtf(block_tree(lanes) / (float)a->n + a->eps);
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        for (size_t d = t; d < a->n; d += CUDA_THREADS) y[d] = (x[d] * lanes[LANES]) * a->w[d];
    }
}
CUDA_KERNEL(rmsnorm, rmsnorm_work)

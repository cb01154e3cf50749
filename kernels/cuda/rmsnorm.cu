/* RMSNorm and layer norm, one block per row: all threads copy the row to shared memory, because a
 * chain that waits for the GPU's memory at each element takes twenty times as long; sixteen threads
 * compute the sixteen chains of the numerics law, then all threads write the outputs. Also the norm
 * over all heads of a projection, in its two halves (square_sums, norm_whole). */
#include "kernels/cuda/dialect.h"

BLOCK_INLINE void rmsnorm_block(const struct norm_args *a, struct cuda_block b, void *shared)
{
    float *lanes = (float *)shared; /* [LANES] chains, 1 / sqrt(...), the mean, a copy of the row */
    const float *row = a->x + (size_t)b.y * a->n;
    const bool fits = a->n <= CUDA_NORM_MAX;
    const float *x = fits ? lanes + LANES + 2 : row;
    float *y = a->y + (size_t)b.y * a->n;
    FOR_THREADS(t)
    {
        if (t == 0) lanes[LANES + 1] = 0.0f; /* the mean, for a layer norm */
        for (size_t d = t; fits && d < a->n; d += CUDA_THREADS) lanes[LANES + 2 + d] = row[d];
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        if (t < LANES && a->bias != NULL) {
            float chain = 0.0f;
            BLOCK_UNROLL16
            for (size_t d = t; d < a->n; d += LANES) chain += x[d];
            lanes[t] = chain;
        }
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        if (t == 0 && a->bias != NULL) lanes[LANES + 1] = block_tree(lanes) / (float)a->n;
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        if (t < LANES) {
            float chain = 0.0f;
            BLOCK_UNROLL16
            for (size_t d = t; d < a->n; d += LANES) {
                const float c = a->bias != NULL ? x[d] - lanes[LANES + 1] : x[d];
                chain = fmaf(c, c, chain);
            }
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
        const float mean = lanes[LANES + 1], r = lanes[LANES];
        for (size_t d = t; d < a->n; d += CUDA_THREADS)
            y[d] = a->bias != NULL ? fmaf((x[d] - mean) * r, a->w[d], a->bias[d])
                                   : (x[d] * r) * a->w[d];
    }
}
CUDA_KERNEL(rmsnorm, norm_args)

/* Sums each head's squares, for up to CUDA_THREADS / LANES heads of row b.y, from head b.x *
 * (CUDA_THREADS / LANES) on. */
BLOCK_INLINE void square_sums_block(const struct square_sums_args *a, struct cuda_block b,
                                    void *shared)
{
    float *lanes = (float *)shared; /* [CUDA_THREADS] */
    const size_t first = (size_t)b.x * (CUDA_THREADS / LANES);
    FOR_THREADS(t)
    {
        const size_t head = first + t / LANES;
        if (head < a->n_heads) {
            const float *x = a->x + ((size_t)b.y * a->n_heads + head) * a->head_dim;
            float chain = 0.0f;
            for (size_t d = t % LANES; d < a->head_dim; d += LANES) chain = fmaf(x[d], x[d], chain);
            lanes[t] = chain;
        }
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        const size_t head = first + t / LANES;
        if (t % LANES == 0 && head < a->n_heads)
            a->sums[b.y * a->stride + head] = f32_bits(block_tree(lanes + t));
    }
}
CUDA_KERNEL(square_sums, square_sums_args)

BLOCK_INLINE void norm_whole_block(const struct norm_whole *a, struct cuda_block b, void *shared)
{
    float *factor = (float *)shared;
    float *x = a->x + b.y * a->n;
    FOR_THREADS(t)
    {
        if (t == 0) {
            float sum = 0.0f;
            for (size_t i = 0; i < a->n_sums; i++)
                sum += f32_from_bits(a->sums[b.y * a->stride + i]);
            *factor = 1.0f / sqrtf(sum / (float)a->n_whole + a->eps);
        }
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        for (size_t d = t; d < a->n; d += CUDA_THREADS) x[d] = (x[d] * *factor) * a->w[d];
    }
}
CUDA_KERNEL(norm_whole, norm_whole)

/* Helpers around a library's matrix products: they round rows for it, copy its results to another
 * stride, add partial sums to integer sums or to values, and fill operands and compare results for
 * the trials of gemm_trials.c. One thread per element, except in gemm_round. */
#include "kernels/cuda/dialect.h"

BLOCK_INLINE void gemm_store(enum dtype t, void *to, size_t i, float x)
{
    if (t == DTYPE_F32)
        ((float *)to)[i] = x;
    else
        ((uint16_t *)to)[i] = t == DTYPE_F16 ? f16_from_f32(x) : bf16_from_f32(x);
}

/* Four elements for each thread, loaded together where they are aligned. */
BLOCK_INLINE void gemm_round_block(const struct gemm_round_work *a, struct cuda_block b,
                                   void *shared)
{
    const float *x = a->x + b.y * a->x_stride;
    const size_t to = b.y * a->to_stride;
    (void)shared;
    FOR_THREADS(t)
    {
        const size_t i = ((size_t)b.x * CUDA_THREADS + t) * CUDA_ROUND_RUN;
        if (i + CUDA_ROUND_RUN <= a->n && (uintptr_t)(x + i) % 16 == 0) {
            uint32_t bits[CUDA_ROUND_RUN];
            block_load16(bits, x + i);
            BLOCK_UNROLL
            for (size_t j = 0; j < CUDA_ROUND_RUN; j++)
                gemm_store(a->dtype, a->to, to + i + j, f32_from_bits(bits[j]));
        } else {
            for (size_t j = i; j < i + CUDA_ROUND_RUN && j < a->n; j++)
                gemm_store(a->dtype, a->to, to + j, x[j]);
        }
    }
}
CUDA_KERNEL(gemm_round, gemm_round_work)

BLOCK_INLINE void gemm_leaves_block(const struct gemm_leaves_work *a, struct cuda_block b,
                                    void *shared)
{
    (void)shared;
    FOR_THREADS(t)
    {
        const size_t i = (size_t)b.x * CUDA_THREADS + t, row = b.y;
        if (i < a->n_out) {
            int64_t *sums = a->sums + row * (a->n_out + 1), sum = 0, n_bad = 0;
            for (size_t leaf = 0; leaf < a->n_parts; leaf++) {
                const float p = a->parts[leaf * a->step + row * a->stride + i];
                if (fabsf(p) < kern_grid_limit(a->grid_bits))
                    sum += block_round((double)p * kern_pow2((int)a->grid_bits));
                else
                    n_bad++;
            }
            sums[i] += sum;
            if (n_bad > 0) block_add_i64(&sums[a->n_out], n_bad);
        }
    }
}
CUDA_KERNEL(gemm_leaves, gemm_leaves_work)

BLOCK_INLINE void gemm_sums_block(const struct gemm_sums_work *a, struct cuda_block b, void *shared)
{
    const float limit = kern_grid_limit(a->grid_bits);
    const double up = kern_pow2((int)a->grid_bits), down = kern_pow2(-(int)a->grid_bits);
    (void)shared;
    FOR_THREADS(t)
    {
        const size_t i = (size_t)b.x * CUDA_THREADS + t, row = b.y;
        if (i < a->n_out) {
            const float *parts = a->parts + row * a->stride + i;
            float *y = a->y + row * a->n_out + i;
            const float before = a->adds ? *y : 0.0f;
            int64_t sum = 0;
            int32_t n_bad = 0;
            BLOCK_UNROLL16
            for (size_t part = 0; part < a->n_parts; part++) {
                const float p = parts[part * a->step];
                const bool is_good = fabsf(p) < limit;
                sum += is_good ? block_round((double)p * up) : 0;
                n_bad += !is_good;
            }
            const float x = (float)((double)sum * down);
            *y = a->adds ? before + x : x;
            if (n_bad > 0) block_add_i32(&a->bad[row], n_bad);
        }
    }
}
CUDA_KERNEL(gemm_sums, gemm_sums_work)

BLOCK_INLINE void gemm_take_block(const struct gemm_take_work *a, struct cuda_block b, void *shared)
{
    (void)shared;
    FOR_THREADS(t)
    {
        const size_t i = (size_t)b.x * CUDA_THREADS + t, row = b.y;
        if (i < a->n) a->to[row * a->to_stride + i] = a->from[row * a->from_stride + i];
    }
}
CUDA_KERNEL(gemm_take, gemm_take_work)

BLOCK_INLINE void gemm_differ_block(const struct gemm_differ_work *a, struct cuda_block b,
                                    void *shared)
{
    (void)shared;
    FOR_THREADS(t)
    {
        const size_t i = (size_t)b.x * CUDA_THREADS + t, row = b.y;
        if (i < a->n && a->a[row * a->a_stride + i] != a->b[row * a->b_stride + i])
            block_add_i32(a->count, 1);
    }
}
CUDA_KERNEL(gemm_differ, gemm_differ_work)

/* Returns a value in [-1, 1), hashed from the element's position; seven of eight values are
 * divided by eight. */
BLOCK_INLINE float gemm_element(uint32_t seed, uint32_t row, uint32_t i)
{
    uint32_t h = seed * 0x9E3779B9u ^ row * 0x85EBCA6Bu ^ i * 0xC2B2AE35u;
    h = (h ^ h >> 16) * 0x7FEB352Du;
    h = (h ^ h >> 15) * 0x846CA68Bu;
    h ^= h >> 16;
    const float x = (float)(int32_t)h * 0x1p-31f;
    return (h & 7) == 0 ? x : x * 0.125f;
}

BLOCK_INLINE void gemm_pattern_block(const struct gemm_pattern_work *a, struct cuda_block b,
                                     void *shared)
{
    (void)shared;
    FOR_THREADS(t)
    {
        const size_t i = (size_t)b.x * CUDA_THREADS + t, row = b.y;
        if (i < a->n)
            gemm_store(a->dtype, a->to, row * a->stride + i,
                       gemm_element(a->seed, (uint32_t)row, (uint32_t)i));
    }
}
CUDA_KERNEL(gemm_pattern, gemm_pattern_work)

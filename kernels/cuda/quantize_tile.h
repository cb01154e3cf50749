/* Quantizes groups of a row to int8 with all threads of a block. Atomics in shared memory find each
 * group's largest magnitude (the bits of a float, compared as an integer) and the integer sum of
 * its quantized values, so the order of the threads does not matter. */
#ifndef SHOAL_KERNELS_CUDA_QUANTIZE_TILE_H
#define SHOAL_KERNELS_CUDA_QUANTIZE_TILE_H

#include "kernels/cuda/dialect.h"
#include "kernels/quant_body.h"

enum { QUANTIZE_RUN = 4 }; /* elements of a thread, side by side: the bytes of one word */

/* The work of a block: n_groups groups. */
struct quantize_part {
    const float *x; /* [n], in shared or global memory; the last group's other elements are zeros */
    uint32_t n, n_groups;
    const struct quant_rows *out;
    uint32_t shift;   /* a group has 2^shift elements */
    size_t first;     /* the first group's number in out */
    uint32_t *shared; /* [2, n_groups] largest magnitudes, sums */
};

BLOCK_INLINE uint32_t quantize_shift(uint32_t group)
{
    uint32_t shift = 0;
    while (1u << shift < group) shift++;
    return shift;
}

BLOCK_INLINE void quantize_maxima(const struct quantize_part *p, uint32_t t)
{
    BLOCK_UNROLL4
    for (uint32_t i = t * QUANTIZE_RUN; i < p->n; i += CUDA_THREADS * QUANTIZE_RUN) {
        uint32_t most = 0;
        BLOCK_UNROLL
        for (uint32_t j = i; j < i + QUANTIZE_RUN; j++) {
            const uint32_t bits = j < p->n ? f32_bits(p->x[j]) & 0x7FFFFFFFu : 0;
            most = bits > most ? bits : most;
        }
        block_max_u32(&p->shared[i >> p->shift], most);
    }
}

BLOCK_INLINE void quantize_codes(const struct quantize_part *p, uint32_t t)
{
    const uint32_t end = p->n_groups << p->shift;
    int8_t *codes = p->out->codes + (p->first << p->shift);
    for (uint32_t i = t * QUANTIZE_RUN; i < end; i += CUDA_THREADS * QUANTIZE_RUN) {
        float factor;
        uint32_t word = 0;
        int32_t sum = 0;
        (void)kern_quantize_scale(p->shared[i >> p->shift], &factor);
        BLOCK_UNROLL
        for (uint32_t j = 0; j < QUANTIZE_RUN; j++) {
            const bool has = i + j < p->n && factor != 0.0f;
            const int32_t code = has ? block_round_f32(p->x[i + j] * factor) : 0;
            word |= ((uint32_t)code & 0xFFu) << 8 * j;
            sum += code;
        }
        *(uint32_t *)(void *)(codes + i) = word;
        block_add_i32((int32_t *)&p->shared[p->n_groups + (i >> p->shift)], sum);
    }
}

BLOCK_INLINE void quantize_groups(const struct quantize_part *p)
{
    FOR_THREADS(t)
    {
        for (uint32_t i = t; i < 2 * p->n_groups; i += CUDA_THREADS) p->shared[i] = 0;
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        quantize_maxima(p, t);
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        quantize_codes(p, t);
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        for (uint32_t i = t; i < p->n_groups; i += CUDA_THREADS) {
            float factor;
            p->out->scales[p->first + i] = kern_quantize_scale(p->shared[i], &factor);
            p->out->sums[p->first + i] = (int32_t)p->shared[p->n_groups + i];
        }
    }
}

#endif

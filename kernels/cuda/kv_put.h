/* Stores keys or values in the cache's type. */
#ifndef SHOAL_KERNELS_CUDA_KV_PUT_H
#define SHOAL_KERNELS_CUDA_KV_PUT_H

#include "kernels/cuda/dialect.h"
#include "kernels/quant_body.h"

/* Stores x as element `at` of an array of any of the cache's types but i8. */
BLOCK_INLINE void kv_put(enum dtype type, float x, void *to, size_t at)
{
    if (type == DTYPE_F32)
        ((float *)to)[at] = x;
    else if (type == DTYPE_F8_E4M3)
        ((uint8_t *)to)[at] = (f32_bits(x) & 0x7F800000u) == 0x7F800000u ? 0x7F : e4m3_from_f32(x);
    else
        ((uint16_t *)to)[at] = type == DTYPE_F16 ? f16_from_f32(x) : bf16_from_f32(x);
}

/* Returns the i8 code of x for a vector whose largest magnitude has the bits max. */
BLOCK_INLINE int8_t kv_code(float x, uint32_t max)
{
    float factor;
    (void)kern_quantize_scale(max, &factor);
    return factor != 0.0f ? (int8_t)block_round_f32(x * factor) : (int8_t)0;
}

#endif

/* Converts quantized values to floats on AVX-512, sixteen outputs at a time. Included by
 * linear_avx512.c. */
#ifndef SHOAL_KERNELS_AVX512_DEQUANTIZE_H
#define SHOAL_KERNELS_AVX512_DEQUANTIZE_H

#include "kernels/avx512/scales.h"
#include "kernels/quant_body.h"

/* Returns twice the E2M1 number in the low nibble of each lane. */
ALWAYS_INLINE __m512i v16_e2m1(__m512i b)
{
    const __m512i table =
        _mm512_setr_epi32(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    return _mm512_permutexvar_epi32(b, table); /* uses the lowest four bits */
}

enum { LANES_AT_ONCE = 16 };
typedef __m512i lanes_int;
typedef __m512 lanes_f32;

ALWAYS_INLINE lanes_int lanes_load(const uint8_t *codes)
{
    return _mm512_loadu_si512(codes);
}

ALWAYS_INLINE lanes_int lanes_down(lanes_int v, int bits)
{
    return _mm512_srli_epi32(v, (unsigned)bits);
}

ALWAYS_INLINE lanes_int lanes_zeros(const uint8_t *zeros)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)zeros));
}

ALWAYS_INLINE lanes_int lanes_set(int x)
{
    return _mm512_set1_epi32(x);
}

ALWAYS_INLINE lanes_f32 lanes_scales(struct quant_format f, const void *scales, size_t i)
{
    return v16_scales(f, scales, i);
}

ALWAYS_INLINE void lanes_put(float *to, lanes_f32 v)
{
    _mm512_store_ps(to, v);
}

ALWAYS_INLINE lanes_f32 lanes_value(enum quant_kind kind, lanes_int b, lanes_int zero,
                                    lanes_f32 scale)
{
    __m512 v;
    if (kind == QUANT_MXFP4)
        v = _mm512_cvtepi32_ps(v16_e2m1(b));
    else
        v = _mm512_cvtepi32_ps(_mm512_sub_epi32(
            _mm512_and_si512(b, _mm512_set1_epi32(kind == QUANT_INT8 ? 0xFF : 15)), zero));
    return _mm512_mul_ps(v, scale);
}

#include "kernels/dequantize_body.h"

#endif

/* Converts quantized values to floats on AVX2, eight outputs at a time. Included by linear_avx2.c.
 */
#ifndef SHOAL_KERNELS_AVX2_DEQUANTIZE_H
#define SHOAL_KERNELS_AVX2_DEQUANTIZE_H

#include "kernels/avx2/scales.h"
#include "kernels/quant_body.h"

/* Returns twice the E2M1 number in the low nibble of each lane. */
ALWAYS_INLINE __m256i v8_e2m1(__m256i b)
{
    const __m256i table = _mm256_setr_epi32(0, 1, 2, 3, 4, 6, 8, 12);
    const __m256i size = _mm256_permutevar8x32_epi32(table, b); /* uses the lowest three bits */
    const __m256i sign = _mm256_srai_epi32(_mm256_slli_epi32(b, 28), 31);
    return _mm256_sub_epi32(_mm256_xor_si256(size, sign), sign);
}

enum { LANES_AT_ONCE = 8 };
typedef __m256i lanes_int;
typedef __m256 lanes_f32;

ALWAYS_INLINE lanes_int lanes_load(const uint8_t *codes)
{
    return _mm256_loadu_si256((const void *)codes);
}

ALWAYS_INLINE lanes_int lanes_down(lanes_int v, int bits)
{
    return _mm256_srli_epi32(v, bits);
}

ALWAYS_INLINE lanes_int lanes_zeros(const uint8_t *zeros)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)zeros));
}

ALWAYS_INLINE lanes_int lanes_set(int x)
{
    return _mm256_set1_epi32(x);
}

ALWAYS_INLINE lanes_f32 lanes_scales(struct quant_format f, const void *scales, size_t i)
{
    return v8_scales(f, scales, i);
}

ALWAYS_INLINE void lanes_put(float *to, lanes_f32 v)
{
    _mm256_store_ps(to, v);
}

ALWAYS_INLINE lanes_f32 lanes_value(enum quant_kind kind, lanes_int b, lanes_int zero,
                                    lanes_f32 scale)
{
    __m256 v;
    if (kind == QUANT_MXFP4)
        v = _mm256_cvtepi32_ps(v8_e2m1(b));
    else
        v = _mm256_cvtepi32_ps(_mm256_sub_epi32(
            _mm256_and_si256(b, _mm256_set1_epi32(kind == QUANT_INT8 ? 0xFF : 15)), zero));
    return _mm256_mul_ps(v, scale);
}

#include "kernels/dequantize_body.h"

#endif

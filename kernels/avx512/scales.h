/* Converts scales of quantized weights, and E4M3 numbers, to floats on AVX-512. */
#ifndef SHOAL_KERNELS_AVX512_SCALES_H
#define SHOAL_KERNELS_AVX512_SCALES_H

#include "kernels/avx512/vec.h"

/* Returns half of each E8M0 scale 2^(e - 127). For e = 0 and 1 the result is subnormal; e = 255
 * gives NaN. */
ALWAYS_INLINE __m512 v16_half_e8m0(__m512i e)
{
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    const __mmask16 small = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
    const __mmask16 nan = _mm512_cmpeq_epi32_mask(e, _mm512_set1_epi32(255));
    const __m512i subnormal = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    const __m512i v = _mm512_mask_mov_epi32(normal, small, subnormal);
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(v, nan, _mm512_set1_epi32(0x7FC00000)));
}

/* Returns the E4M3 number in the low byte of each lane; the bytes above are ignored. */
ALWAYS_INLINE __m512 v16_e4m3(__m512i b)
{
    const __m512i bits = _mm512_and_si512(b, _mm512_set1_epi32(0x7F));
    const __m512i normal =
        _mm512_add_epi32(_mm512_slli_epi32(bits, 20), _mm512_set1_epi32(120 << 23));
    const __m512 small = _mm512_mul_ps(_mm512_cvtepi32_ps(bits), _mm512_set1_ps(0x1p-9f));
    const __mmask16 is_small = _mm512_cmplt_epi32_mask(bits, _mm512_set1_epi32(8));
    const __mmask16 is_nan = _mm512_cmpeq_epi32_mask(bits, _mm512_set1_epi32(0x7F));
    __m512i v = _mm512_mask_mov_epi32(normal, is_small, _mm512_castps_si512(small));
    v = _mm512_mask_mov_epi32(v, is_nan, _mm512_set1_epi32(0x7FC00000));
    const __m512i sign = _mm512_slli_epi32(_mm512_srli_epi32(b, 7), 31);
    return _mm512_castsi512_ps(_mm512_or_si512(v, sign));
}

/* Loads the packed scales [i, i + 16) of a format, equal to kern_quant_scale. */
ALWAYS_INLINE __m512 v16_scales(struct quant_format f, const void *in, size_t i)
{
    if (f.kind == QUANT_MXFP4)
        return v16_half_e8m0(
            _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)((const uint8_t *)in + i))));
    if (f.scale_dtype == DTYPE_F16)
        return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)((const uint16_t *)in + i)));
    return _mm512_loadu_ps((const float *)in + i);
}

#endif

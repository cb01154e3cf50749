/* Converts scales of quantized weights, and E4M3 numbers, to floats on AVX2. */
#ifndef SHOAL_KERNELS_AVX2_SCALES_H
#define SHOAL_KERNELS_AVX2_SCALES_H

#include "kernels/avx2/vec.h"

/* Returns half of each E8M0 scale 2^(e - 127). For e = 0 and 1 the result is subnormal; e = 255
 * gives NaN. */
ALWAYS_INLINE __m256 v8_half_e8m0(__m256i e)
{
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const __m256i small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
    const __m256i nan = _mm256_cmpeq_epi32(e, _mm256_set1_epi32(255));
    const __m256i subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    const __m256i v = _mm256_blendv_epi8(normal, subnormal, small);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(v, _mm256_set1_epi32(0x7FC00000), nan));
}

/* Returns the E4M3 number in the low byte of each lane; the bytes above are ignored. */
ALWAYS_INLINE __m256 v8_e4m3(__m256i b)
{
    const __m256i bits = _mm256_and_si256(b, _mm256_set1_epi32(0x7F));
    const __m256i normal =
        _mm256_add_epi32(_mm256_slli_epi32(bits, 20), _mm256_set1_epi32(120 << 23));
    const __m256 small = _mm256_mul_ps(_mm256_cvtepi32_ps(bits), _mm256_set1_ps(0x1p-9f));
    const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(8), bits);
    const __m256i is_nan = _mm256_cmpeq_epi32(bits, _mm256_set1_epi32(0x7F));
    __m256i v = _mm256_blendv_epi8(normal, _mm256_castps_si256(small), is_small);
    v = _mm256_blendv_epi8(v, _mm256_set1_epi32(0x7FC00000), is_nan);
    const __m256i sign = _mm256_slli_epi32(_mm256_srli_epi32(b, 7), 31);
    return _mm256_castsi256_ps(_mm256_or_si256(v, sign));
}

/* Loads the packed scales [i, i + 8) of a format, equal to kern_quant_scale. */
ALWAYS_INLINE __m256 v8_scales(struct quant_format f, const void *in, size_t i)
{
    if (f.kind == QUANT_MXFP4)
        return v8_half_e8m0(
            _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)((const uint8_t *)in + i))));
    if (f.scale_dtype == DTYPE_F16)
        return _mm256_cvtph_ps(_mm_loadu_si128((const void *)((const uint16_t *)in + i)));
    return _mm256_loadu_ps((const float *)in + i);
}

#endif

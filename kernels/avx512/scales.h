/* Scales of quantized weights as floats on AVX-512. */
#ifndef SHOAL_KERNELS_AVX512_SCALES_H
#define SHOAL_KERNELS_AVX512_SCALES_H

#include "kernels/avx512/vec.h"

/* Half of an E8M0 scale: exponents 0 and 1 give subnormals, 255 is NaN. */
ALWAYS_INLINE __m512 v16_half_e8m0(__m512i e)
{
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    const __mmask16 small = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
    const __mmask16 nan = _mm512_cmpeq_epi32_mask(e, _mm512_set1_epi32(255));
    const __m512i subnormal = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    const __m512i v = _mm512_mask_mov_epi32(normal, small, subnormal);
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(v, nan, _mm512_set1_epi32(0x7FC00000)));
}

/* Packed scales [i, i + 16) of a format, as kern_quant_scale has them. */
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

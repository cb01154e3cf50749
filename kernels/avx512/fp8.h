/* Converts E4M3 weights to floats on AVX-512, four inputs of sixteen outputs at a time. An E4M3
 * number's bits, moved to their places in a float, are the number times 2^-120, because the
 * exponents' biases are 7 and 127. The scale makes up for it. Numbers with exponent 0 would become
 * subnormal floats, whose products take over 100 cycles on Intel's CPUs; so a vector with such an
 * exponent (even of a zero) or with a NaN takes a longer path. */
#ifndef SHOAL_KERNELS_AVX512_FP8_H
#define SHOAL_KERNELS_AVX512_FP8_H

#include "kernels/avx512/scales.h"
#include "kernels/quant_body.h"

/* Not zero if a scale times 2^120 may overflow. */
typedef __mmask64 fp8_large;

/* Loads scales [i, i + 16) of a packed weight. Sets *large if the magnitude of one
 * of them is 2^8 or more, or if one is NaN. */
ALWAYS_INLINE struct v16 fp8_scales(struct quant_format f, const void *in, size_t i,
                                    fp8_large *large)
{
    const __m512 scale = v16_scales(f, in, i);
    const __mmask16 fits =
        _mm512_cmp_ps_mask(_mm512_abs_ps(scale), _mm512_set1_ps(0x1p8f), _CMP_LT_OQ);
    if (fits != 0xFFFF) *large = ~(fp8_large)0;
    return (struct v16){scale};
}

ALWAYS_INLINE struct v16 fp8_enlarged(struct v16 scale)
{
    return (struct v16){_mm512_mul_ps(scale.v, _mm512_set1_ps(0x1p120f))};
}

/* Does what fp8_quad does, for any values and scales. */
ALWAYS_INLINE void fp8_any_quad(__m512i b, struct v16 scale, fp8_large large, struct v16 *w)
{
    const __m512 s = _mm512_mul_ps(scale.v, _mm512_set1_ps(large != 0 ? 1.0f : 0x1p-120f));
#pragma GCC unroll 4
    for (int j = 0; j < QUANT_QUAD; j++, b = _mm512_srli_epi32(b, 8))
        w[j].v = _mm512_mul_ps(v16_e4m3(b), s);
}

/* w[j] = input j of sixteen outputs times their scale, rounded once. `scale` is enlarged; with
 * `large` it is as stored. `keep` clears the copies of the sign:
 *     16 bits, the upper byte an E4M3 number     s eeee mmm ........
 *     shifted right by 4, the sign following     s ssss eeee mmm ....
 *     the upper half of a float                  s 0000 eeee mmm 0000
 * Twice a byte, without the sign, minus 16, is above 237 only for exponent 0 and for NaN. */
ALWAYS_INLINE void fp8_quad(const uint8_t *codes, struct v16 scale, fp8_large large, struct v16 *w)
{
    const __m512i keep = _mm512_set1_epi16((short)0x87F0), upper = _mm512_set1_epi32(-0x10000);
    const __m512i b = _mm512_loadu_si512(codes);
    const __m512i twice = _mm512_add_epi8(b, _mm512_sub_epi8(b, _mm512_set1_epi8(16)));
    const __mmask64 rare = _mm512_cmpgt_epu8_mask(twice, _mm512_set1_epi8((char)237));
    if (__builtin_expect(!_kortestz_mask64_u8(rare, large), 0)) {
        fp8_any_quad(b, scale, large, w);
        return;
    }
    const __m512i odd = _mm512_and_si512(_mm512_srai_epi16(b, 4), keep);
    const __m512i even = _mm512_and_si512(_mm512_srai_epi16(_mm512_slli_epi16(b, 8), 4), keep);
    w[0].v = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(even, 16)), scale.v);
    w[1].v = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(odd, 16)), scale.v);
    w[2].v = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_and_si512(even, upper)), scale.v);
    w[3].v = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_and_si512(odd, upper)), scale.v);
}

#endif

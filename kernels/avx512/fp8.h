/* Converts E4M3 weights to floats on AVX-512, four inputs of sixteen outputs at a time. An E4M3
 * number's bits, moved to their places in a float, are the number times 2^-120, because the
 * exponents' biases are 7 and 127. The scale makes up for it. Subnormal numbers would become
 * subnormal floats, whose products take over 100 cycles on Intel's CPUs; so a vector with one of
 * them or with a NaN takes a longer path. Zeros do not: rounding to a coarser format before may
 * have made every hundredth weight zero. */
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

/* Returns a bit for each number that is NaN, subnormal, or one of the two least normal ones. Their
 * magnitudes as bytes and the zeros' come last once 118 is added; without bit 1 zeros come earlier:
 *     magnitude   10 to 126   127    0      1 to 9
 *     + 118       0 to 0x74   0x75   0x76   0x77 to 0x7F   without the sign
 *     bit 1 off   0 to 0x74   0x75   0x74   0x75 to 0x7D */
ALWAYS_INLINE __mmask64 fp8_rare(__m512i b)
{
    const __m512i rank = _mm512_and_si512(_mm512_add_epi8(b, _mm512_set1_epi8(118)),
                                          _mm512_set1_epi8(0x7D));
    return _mm512_cmpgt_epu8_mask(rank, _mm512_set1_epi8(0x74));
}

/* w[j] = input j of sixteen outputs times their scale, rounded once. `scale` is enlarged; with
 * `large` it is as stored. `keep` clears the copies of the sign, and the other number below:
 *     16 bits, the upper byte an E4M3 number     s eeee mmm ........
 *     shifted right by 4, the sign following     s ssss eeee mmm ....
 *     the upper half of a float                  s 0000 eeee mmm 0000
 * The lower byte comes to the same places as a product: 16 times a signed byte. */
ALWAYS_INLINE void fp8_quad(const uint8_t *codes, struct v16 scale, fp8_large large, struct v16 *w)
{
    const __m512i keep = _mm512_set1_epi32((int)0x87F00000);
    const __m512i b = _mm512_loadu_si512(codes);
    if (__builtin_expect(!_kortestz_mask64_u8(fp8_rare(b), large), 0)) {
        fp8_any_quad(b, scale, large, w);
        return;
    }
    const __m512i even = _mm512_maddubs_epi16(_mm512_set1_epi16(16), b);
    const __m512i odd = _mm512_srai_epi16(b, 4);
    const __m512i moved[QUANT_QUAD] = {_mm512_slli_epi32(even, 16), _mm512_slli_epi32(odd, 16),
                                       even, odd};
#pragma GCC unroll 4
    for (size_t j = 0; j < QUANT_QUAD; j++) {
        const __m512i bits = _mm512_and_si512(moved[j], keep);
        w[j].v = _mm512_mul_ps(_mm512_castsi512_ps(bits), scale.v);
    }
}

#endif

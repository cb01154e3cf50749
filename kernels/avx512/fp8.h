/* E4M3 weights as floats on AVX-512, four inputs of sixteen outputs at a time. An E4M3 number's
 * bits, moved to where a float has its own, are the number times 2^-120: the exponents' biases are
 * 7 and 127, and subnormal numbers become subnormal floats. The scale makes up for it. */
#ifndef SHOAL_KERNELS_AVX512_FP8_H
#define SHOAL_KERNELS_AVX512_FP8_H

#include "kernels/avx512/scales.h"
#include "kernels/quant_body.h"

/* The largest quantized value without its sign in each byte, and the largest scale's bits in each
 * lane, of all that were read. */
struct fp8_seen {
    __m512i codes, scales;
};

ALWAYS_INLINE struct fp8_seen fp8_nothing(void)
{
    return (struct fp8_seen){_mm512_setzero_si512(), _mm512_setzero_si512()};
}

/* v[j] = input j of sixteen outputs times 2^-120. The sign moves to both ends of the shift:
 *     16 bits, the upper byte an E4M3 number     s eeee mmm ........
 *     shifted right by 4, the sign following     s ssss eeee mmm ....
 *     the upper half of a float                  s 0000 eeee mmm 0000 */
ALWAYS_INLINE void fp8_quad(const uint8_t *codes, struct v16 *v, struct fp8_seen *seen)
{
    const __m512i keep = _mm512_set1_epi16((short)0x87F0), upper = _mm512_set1_epi32(-0x10000);
    const __m512i b = _mm512_loadu_si512(codes);
    const __m512i odd = _mm512_and_si512(_mm512_srai_epi16(b, 4), keep);
    const __m512i even = _mm512_and_si512(_mm512_srai_epi16(_mm512_slli_epi16(b, 8), 4), keep);
    v[0].v = _mm512_castsi512_ps(_mm512_slli_epi32(even, 16));
    v[1].v = _mm512_castsi512_ps(_mm512_slli_epi32(odd, 16));
    v[2].v = _mm512_castsi512_ps(_mm512_and_si512(even, upper));
    v[3].v = _mm512_castsi512_ps(_mm512_and_si512(odd, upper));
    const __m512i sizes = _mm512_and_si512(b, _mm512_set1_epi8(0x7F));
    seen->codes = _mm512_max_epu8(seen->codes, sizes);
}

/* Scales [i, i + 16) times 2^120. */
ALWAYS_INLINE struct v16 fp8_scales(struct quant_format f, const void *in, size_t i,
                                    struct fp8_seen *seen)
{
    const __m512 scale = _mm512_mul_ps(v16_scales(f, in, i), _mm512_set1_ps(0x1p120f));
    const __m512i size = _mm512_and_si512(_mm512_castps_si512(scale), _mm512_set1_epi32(INT32_MAX));
    seen->scales = _mm512_max_epi32(seen->scales, size);
    return (struct v16){scale};
}

/* Whether all products of v and a scale were the weights: no quantized value is NaN, and no scale
 * times 2^120 is NaN or infinite. */
ALWAYS_INLINE bool fp8_is_plain(const struct fp8_seen *seen)
{
    const __m512i infinite = _mm512_set1_epi32(0x7F800000);
    return _mm512_cmpeq_epi8_mask(seen->codes, _mm512_set1_epi8(0x7F)) == 0 &&
           _mm512_cmpge_epi32_mask(seen->scales, infinite) == 0;
}

#endif

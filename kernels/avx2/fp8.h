/* E4M3 weights as floats on AVX2, four inputs of sixteen outputs at a time. An E4M3 number's bits,
 * moved to where a float has its own, are the number times 2^-120: the exponents' biases are 7 and
 * 127, and subnormal numbers become subnormal floats. The scale makes up for it. */
#ifndef SHOAL_KERNELS_AVX2_FP8_H
#define SHOAL_KERNELS_AVX2_FP8_H

#include "kernels/avx2/scales.h"
#include "kernels/quant_body.h"

/* The largest quantized value without its sign in each byte, and the largest scale's bits in each
 * lane, of all that were read. */
struct fp8_seen {
    __m256i codes, scales;
};

ALWAYS_INLINE struct fp8_seen fp8_nothing(void)
{
    return (struct fp8_seen){_mm256_setzero_si256(), _mm256_setzero_si256()};
}

/* v[j] = input j of eight outputs times 2^-120. The sign moves to both ends of the shift:
 *     16 bits, the upper byte an E4M3 number     s eeee mmm ........
 *     shifted right by 4, the sign following     s ssss eeee mmm ....
 *     the upper half of a float                  s 0000 eeee mmm 0000 */
ALWAYS_INLINE void fp8_quad_of_eight(const uint8_t *codes, __m256 *v, struct fp8_seen *seen)
{
    const __m256i keep = _mm256_set1_epi16((short)0x87F0), upper = _mm256_set1_epi32(-0x10000);
    const __m256i b = _mm256_loadu_si256((const void *)codes);
    const __m256i odd = _mm256_and_si256(_mm256_srai_epi16(b, 4), keep);
    const __m256i even = _mm256_and_si256(_mm256_srai_epi16(_mm256_slli_epi16(b, 8), 4), keep);
    v[0] = _mm256_castsi256_ps(_mm256_slli_epi32(even, 16));
    v[1] = _mm256_castsi256_ps(_mm256_slli_epi32(odd, 16));
    v[2] = _mm256_castsi256_ps(_mm256_and_si256(even, upper));
    v[3] = _mm256_castsi256_ps(_mm256_and_si256(odd, upper));
    const __m256i sizes = _mm256_and_si256(b, _mm256_set1_epi8(0x7F));
    seen->codes = _mm256_max_epu8(seen->codes, sizes);
}

/* v[j] = input j of sixteen outputs times 2^-120. */
ALWAYS_INLINE void fp8_quad(const uint8_t *codes, struct v16 *v, struct fp8_seen *seen)
{
    __m256 a[QUANT_QUAD], b[QUANT_QUAD];
    fp8_quad_of_eight(codes, a, seen);
    fp8_quad_of_eight(codes + 8 * QUANT_QUAD, b, seen);
#pragma GCC unroll 4
    for (size_t j = 0; j < QUANT_QUAD; j++) v[j] = (struct v16){a[j], b[j]};
}

ALWAYS_INLINE __m256 fp8_scales_of_eight(struct quant_format f, const void *in, size_t i,
                                         struct fp8_seen *seen)
{
    const __m256 scale = _mm256_mul_ps(v8_scales(f, in, i), _mm256_set1_ps(0x1p120f));
    const __m256i size = _mm256_and_si256(_mm256_castps_si256(scale), _mm256_set1_epi32(INT32_MAX));
    seen->scales = _mm256_max_epi32(seen->scales, size);
    return scale;
}

/* Scales [i, i + 16) times 2^120. */
ALWAYS_INLINE struct v16 fp8_scales(struct quant_format f, const void *in, size_t i,
                                    struct fp8_seen *seen)
{
    return (struct v16){fp8_scales_of_eight(f, in, i, seen),
                        fp8_scales_of_eight(f, in, i + 8, seen)};
}

/* Whether all products of v and a scale were the weights: no quantized value is NaN, and no scale
 * times 2^120 is NaN or infinite. */
ALWAYS_INLINE bool fp8_is_plain(const struct fp8_seen *seen)
{
    const __m256i nan = _mm256_cmpeq_epi8(seen->codes, _mm256_set1_epi8(0x7F));
    const __m256i large = _mm256_cmpgt_epi32(seen->scales, _mm256_set1_epi32(0x7F7FFFFF));
    const __m256i any = _mm256_or_si256(nan, large);
    return _mm256_testz_si256(any, any) != 0;
}

#endif

/* Converts E4M3 weights to floats on AVX2, four inputs of sixteen outputs at a time; see
 * avx512/fp8.h. Here a zero is no rare number: rounding to a coarser format before may have made
 * every hundredth weight zero. */
#ifndef SHOAL_KERNELS_AVX2_FP8_H
#define SHOAL_KERNELS_AVX2_FP8_H

#include "kernels/avx2/scales.h"
#include "kernels/quant_body.h"

/* Not zero if a scale times 2^120 may overflow. */
typedef int fp8_large;

ALWAYS_INLINE bool fp8_scales_fit(__m256 scale)
{
    const __m256 size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), scale);
    return _mm256_movemask_ps(_mm256_cmp_ps(size, _mm256_set1_ps(0x1p8f), _CMP_LT_OQ)) == 0xFF;
}

/* Loads scales [i, i + 16) of a packed weight. Sets *large if the magnitude of one
 * of them is 2^8 or more, or if one is NaN. */
ALWAYS_INLINE struct v16 fp8_scales(struct quant_format f, const void *in, size_t i,
                                    fp8_large *large)
{
    const struct v16 scale = {v8_scales(f, in, i), v8_scales(f, in, i + 8)};
    if (!fp8_scales_fit(scale.a) || !fp8_scales_fit(scale.b)) *large = 1;
    return scale;
}

ALWAYS_INLINE struct v16 fp8_enlarged(struct v16 scale)
{
    const __m256 factor = _mm256_set1_ps(0x1p120f);
    return (struct v16){_mm256_mul_ps(scale.a, factor), _mm256_mul_ps(scale.b, factor)};
}

/* Returns a bit for each place where a number of a or of b is NaN or subnormal. A number doubled as
 * a byte loses its sign: 0 for a zero, 2 to 14 for a subnormal number, 254 for NaN. */
ALWAYS_INLINE int fp8_rare(__m256i a, __m256i b)
{
    const __m256i lowest = _mm256_set1_epi8(126); /* moves 2 to -128, and 0 far from it */
    const __m256i twice_a = _mm256_add_epi8(a, a), twice_b = _mm256_add_epi8(b, b);
    const __m256i least =
        _mm256_min_epi8(_mm256_add_epi8(twice_a, lowest), _mm256_add_epi8(twice_b, lowest));
    const __m256i is_small = _mm256_cmpgt_epi8(_mm256_set1_epi8(-115), least);
    const __m256i is_nan =
        _mm256_cmpeq_epi8(_mm256_max_epu8(twice_a, twice_b), _mm256_set1_epi8((char)254));
    return _mm256_movemask_epi8(_mm256_or_si256(is_small, is_nan));
}

/* Does what fp8_quad does, for any values and scales. */
ALWAYS_INLINE void fp8_any_quad(__m256i a, __m256i b, struct v16 scale, fp8_large large,
                                struct v16 *w)
{
    const __m256 factor = _mm256_set1_ps(large != 0 ? 1.0f : 0x1p-120f);
    const __m256 sa = _mm256_mul_ps(scale.a, factor), sb = _mm256_mul_ps(scale.b, factor);
#pragma GCC unroll 4
    for (int j = 0; j < QUANT_QUAD; j++) {
        w[j].a = _mm256_mul_ps(v8_e4m3(a), sa);
        w[j].b = _mm256_mul_ps(v8_e4m3(b), sb);
        a = _mm256_srli_epi32(a, 8);
        b = _mm256_srli_epi32(b, 8);
    }
}

/* v[j] = input j of eight outputs times their scale, which is enlarged. `keep` clears the copies of
 * the sign, and the other number below:
 *     16 bits, the upper byte an E4M3 number     s eeee mmm ........
 *     shifted right by 4, the sign following     s ssss eeee mmm ....
 *     the upper half of a float                  s 0000 eeee mmm 0000
 * The lower byte comes to the same places as a product: 16 times a signed byte. */
ALWAYS_INLINE void fp8_usual_eight(__m256i b, __m256 scale, __m256 *v)
{
    const __m256i keep = _mm256_set1_epi32((int)0x87F00000);
    const __m256i even = _mm256_maddubs_epi16(_mm256_set1_epi16(16), b);
    const __m256i odd = _mm256_srai_epi16(b, 4);
    const __m256i moved[QUANT_QUAD] = {_mm256_slli_epi32(even, 16), _mm256_slli_epi32(odd, 16),
                                       even, odd};
#pragma GCC unroll 4
    for (size_t j = 0; j < QUANT_QUAD; j++)
        v[j] = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_and_si256(moved[j], keep)), scale);
}

/* w[j] = input j of sixteen outputs times their scale, rounded once. `scale` is enlarged; with
 * `large` it is as stored. */
ALWAYS_INLINE void fp8_quad(const uint8_t *codes, struct v16 scale, fp8_large large, struct v16 *w)
{
    const __m256i a = _mm256_loadu_si256((const void *)codes);
    const __m256i b = _mm256_loadu_si256((const void *)(codes + 8 * QUANT_QUAD));
    if (__builtin_expect((fp8_rare(a, b) | large) != 0, 0)) {
        fp8_any_quad(a, b, scale, large, w);
        return;
    }
    __m256 va[QUANT_QUAD], vb[QUANT_QUAD];
    fp8_usual_eight(a, scale.a, va);
    fp8_usual_eight(b, scale.b, vb);
#pragma GCC unroll 4
    for (size_t j = 0; j < QUANT_QUAD; j++) w[j] = (struct v16){va[j], vb[j]};
}

#endif

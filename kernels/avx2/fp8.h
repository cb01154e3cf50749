/* Converts E4M3 weights to floats on AVX2, four inputs of sixteen outputs at a time; see
 * avx512/fp8.h. */
#ifndef SHOAL_KERNELS_AVX2_FP8_H
#define SHOAL_KERNELS_AVX2_FP8_H

#include "kernels/avx2/scales.h"
#include "kernels/quant_body.h"

/* Not zero if a scale times 2^120 may overflow. */
typedef int fp8_large;

/* FP8_VECTORS: registers of the packed bytes of four inputs of sixteen outputs. FP8_FEW_ROWS: most
 * rows whose sums fit the registers beside converted weights. */
enum { FP8_VECTORS = 2, FP8_FEW_ROWS = 6 };

/* The packed bytes of four inputs of sixteen outputs. */
struct fp8_codes {
    __m256i v[FP8_VECTORS]; /* eight outputs in each */
};

/* One input of the eight outputs of a vector, as floats. */
typedef __m256 fp8_floats;

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

/* Returns bytes above 0x74 for the numbers of b that take the longer path; see fp8_is_rare in
 * avx512/fp8.h. */
ALWAYS_INLINE __m256i fp8_rank(__m256i b)
{
    return _mm256_and_si256(_mm256_add_epi8(b, _mm256_set1_epi8(118)), _mm256_set1_epi8(0x7D));
}

ALWAYS_INLINE struct fp8_codes fp8_load(const uint8_t *codes)
{
    const __m256i *v = (const void *)codes;
    return (struct fp8_codes){{_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)}};
}

/* True when `large` is set or a number needs the longer path, fp8_any. */
ALWAYS_INLINE bool fp8_is_rare(struct fp8_codes c, fp8_large large)
{
    const __m256i most = _mm256_max_epi8(fp8_rank(c.v[0]), fp8_rank(c.v[1]));
    return (_mm256_movemask_epi8(_mm256_cmpgt_epi8(most, _mm256_set1_epi8(0x74))) | large) != 0;
}

/* w[j] = input j of sixteen outputs times their scale, rounded once, for any values and scales.
 * `scale` is enlarged (fp8_enlarged); with `large` it is as stored. */
ALWAYS_INLINE void fp8_any(struct fp8_codes c, struct v16 scale, fp8_large large, struct v16 *w)
{
    const __m256 factor = _mm256_set1_ps(large != 0 ? 1.0f : 0x1p-120f);
    const __m256 sa = _mm256_mul_ps(scale.a, factor), sb = _mm256_mul_ps(scale.b, factor);
#pragma GCC unroll 4
    for (int j = 0; j < QUANT_QUAD; j++) {
        w[j].a = _mm256_mul_ps(v8_e4m3(c.v[0]), sa);
        w[j].b = _mm256_mul_ps(v8_e4m3(c.v[1]), sb);
        c.v[0] = _mm256_srli_epi32(c.v[0], 8);
        c.v[1] = _mm256_srli_epi32(c.v[1], 8);
    }
}

/* v[j] = vector i of input j times `scale`, which is enlarged. No number of c is NaN.
 *     16 bits, the upper byte an E4M3 number     s eeee mmm ........
 *     after an arithmetic shift right by 4       s ssss eeee mmm ....
 *     with `keep`: the upper half of a float     s 0000 eeee mmm 0000
 * `keep` clears the copies of the sign and the bits of all other numbers (dots). A multiplication
 * by 16 brings a lower byte, read as a signed number, to the same bits. */
ALWAYS_INLINE void fp8_usual(struct fp8_codes c, size_t i, struct v16 scale, fp8_floats *v)
{
    const __m256i keep = _mm256_set1_epi32((int)0x87F00000);
    const __m256i even = _mm256_maddubs_epi16(_mm256_set1_epi16(16), c.v[i]);
    const __m256i odd = _mm256_srai_epi16(c.v[i], 4);
    const __m256i moved[QUANT_QUAD] = {_mm256_slli_epi32(even, 16), _mm256_slli_epi32(odd, 16),
                                       even, odd};
#pragma GCC unroll 4
    for (size_t j = 0; j < QUANT_QUAD; j++)
        v[j] = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_and_si256(moved[j], keep)),
                             i == 0 ? scale.a : scale.b);
}

/* Returns input j of all sixteen outputs: element j of each of the FP8_VECTORS rows of v. */
ALWAYS_INLINE struct v16 fp8_joined(fp8_floats v[FP8_VECTORS][QUANT_QUAD], size_t j)
{
    return (struct v16){v[0][j], v[1][j]};
}

ALWAYS_INLINE fp8_floats *fp8_vector(struct v16 *v, size_t i)
{
    return i == 0 ? &v->a : &v->b;
}

ALWAYS_INLINE fp8_floats fp8_fma(float x, fp8_floats w, fp8_floats sum)
{
    return _mm256_fmadd_ps(_mm256_set1_ps(x), w, sum);
}

#endif

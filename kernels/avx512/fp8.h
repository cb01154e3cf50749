/* Converts E4M3 weights to floats on AVX-512, four inputs of sixteen outputs at a time. An E4M3
 * number's bits, moved to their places in a float, are the number times 2^-120, because the
 * exponents' biases are 7 and 127. The scale makes up for it. Subnormal numbers would become
 * subnormal floats, whose products take over 100 cycles on Intel's CPUs; so a vector with one of
 * them or with a NaN takes a longer path (fp8_is_rare). Zeros take the usual path: if the weights
 * were once rounded to a coarser format, one in a hundred may be zero. */
#ifndef SHOAL_KERNELS_AVX512_FP8_H
#define SHOAL_KERNELS_AVX512_FP8_H

#include "kernels/avx512/scales.h"
#include "kernels/quant_body.h"

/* Not zero if a scale times 2^120 may overflow. */
typedef __mmask64 fp8_large;

/* FP8_VECTORS: registers of the packed bytes of four inputs of sixteen outputs. FP8_FEW_ROWS: most
 * rows whose sums fit the registers beside converted weights. */
enum { FP8_VECTORS = 1, FP8_FEW_ROWS = 16 };

/* The packed bytes of four inputs of sixteen outputs. */
struct fp8_codes {
    __m512i v[FP8_VECTORS];
};

/* One input of sixteen outputs, as floats. */
typedef __m512 fp8_floats;

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

ALWAYS_INLINE struct fp8_codes fp8_load(const uint8_t *codes)
{
    return (struct fp8_codes){{_mm512_loadu_si512(codes)}};
}

/* True when `large` is set, or a number is NaN (magnitude 127), subnormal (1 to 7), or one of the
 * two smallest normal numbers (8 and 9). Adding 118 moves these magnitudes and 0 above 0x74;
 * clearing bit 1 then takes 0 out again:
 *     magnitude, 7 bits   10 to 126   127    0      1 to 9
 *     + 118, 7 bits       0 to 0x74   0x75   0x76   0x77 to 0x7F
 *     bit 1 cleared       0 to 0x74   0x75   0x74   0x75 to 0x7D */
ALWAYS_INLINE bool fp8_is_rare(struct fp8_codes c, fp8_large large)
{
    const __m512i rank =
        _mm512_and_si512(_mm512_add_epi8(c.v[0], _mm512_set1_epi8(118)), _mm512_set1_epi8(0x7D));
    return !_kortestz_mask64_u8(_mm512_cmpgt_epu8_mask(rank, _mm512_set1_epi8(0x74)), large);
}

/* w[j] = input j of sixteen outputs times their scale, rounded once, for any values and scales.
 * `scale` is enlarged (fp8_enlarged); with `large` it is as stored. */
ALWAYS_INLINE void fp8_any(struct fp8_codes c, struct v16 scale, fp8_large large, struct v16 *w)
{
    const __m512 s = _mm512_mul_ps(scale.v, _mm512_set1_ps(large != 0 ? 1.0f : 0x1p-120f));
    __m512i b = c.v[0];
#pragma GCC unroll 4
    for (int j = 0; j < QUANT_QUAD; j++, b = _mm512_srli_epi32(b, 8))
        w[j].v = _mm512_mul_ps(v16_e4m3(b), s);
}

/* v[j] = input j times `scale`, which is enlarged. No number of c is NaN.
 *     16 bits, the upper byte an E4M3 number     s eeee mmm ........
 *     after an arithmetic shift right by 4       s ssss eeee mmm ....
 *     with `keep`: the upper half of a float     s 0000 eeee mmm 0000
 * `keep` clears the copies of the sign and the bits of all other numbers (dots). A multiplication
 * by 16 brings a lower byte, read as a signed number, to the same bits. */
ALWAYS_INLINE void fp8_usual(struct fp8_codes c, size_t i, struct v16 scale, fp8_floats *v)
{
    const __m512i keep = _mm512_set1_epi32((int)0x87F00000);
    const __m512i even = _mm512_maddubs_epi16(_mm512_set1_epi16(16), c.v[i]);
    const __m512i odd = _mm512_srai_epi16(c.v[i], 4);
    const __m512i moved[QUANT_QUAD] = {_mm512_slli_epi32(even, 16), _mm512_slli_epi32(odd, 16),
                                       even, odd};
#pragma GCC unroll 4
    for (size_t j = 0; j < QUANT_QUAD; j++)
        v[j] = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_and_si512(moved[j], keep)), scale.v);
}

/* Returns input j of all sixteen outputs: element j of each of the FP8_VECTORS rows of v. */
ALWAYS_INLINE struct v16 fp8_joined(fp8_floats v[FP8_VECTORS][QUANT_QUAD], size_t j)
{
    return (struct v16){v[0][j]};
}

ALWAYS_INLINE fp8_floats *fp8_vector(struct v16 *v, size_t i)
{
    (void)i;
    return &v->v;
}

ALWAYS_INLINE fp8_floats fp8_fma(float x, fp8_floats w, fp8_floats sum)
{
    return _mm512_fmadd_ps(_mm512_set1_ps(x), w, sum);
}

#endif

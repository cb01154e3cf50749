/* Quantizes activations to int8 on AVX-512, to the bits of the reference. Sixteen groups share a
 * vector of maxima, of scales and of sums, so that no group waits for a division or for a sum over
 * lanes. */
#include "kernels/avx512/avx512.h"

#include "kernels/avx512/vec.h"
#include "kernels/quant_body.h"

enum { GROUPS = 16 };

enum fold { FOLD_MAX, FOLD_ADD };

ALWAYS_INLINE __m512i fold2(enum fold f, __m512i a, __m512i b)
{
    return f == FOLD_MAX ? _mm512_max_epu32(a, b) : _mm512_add_epi32(a, b);
}

/* Lane i of the result = the maximum, or the sum, of v[i]'s lanes. */
ALWAYS_INLINE __m512i fold_lanes(enum fold f, const __m512i *v)
{
    __m512i two[8], four[4], eight[2];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        two[i] = fold2(f, _mm512_unpacklo_epi32(v[2 * i], v[2 * i + 1]),
                       _mm512_unpackhi_epi32(v[2 * i], v[2 * i + 1]));
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        four[i] = fold2(f, _mm512_unpacklo_epi64(two[2 * i], two[2 * i + 1]),
                        _mm512_unpackhi_epi64(two[2 * i], two[2 * i + 1]));
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        eight[i] = fold2(f, _mm512_shuffle_i32x4(four[2 * i], four[2 * i + 1], 0x88),
                         _mm512_shuffle_i32x4(four[2 * i], four[2 * i + 1], 0xDD));
    return fold2(f, _mm512_shuffle_i32x4(eight[0], eight[1], 0x88),
                 _mm512_shuffle_i32x4(eight[0], eight[1], 0xDD));
}

/* Loads inputs [i, i + 16) of n. Inputs beyond n are +0, which changes no maximum and quantizes to
 * 0. */
ALWAYS_INLINE __m512 load_below(const float *x, size_t i, size_t n)
{
    if (i + 16 <= n) return _mm512_loadu_ps(x + i);
    return i < n ? _mm512_maskz_loadu_ps(v16_first(n - i), x + i) : _mm512_setzero_ps();
}

/* Returns for each lane the bits of its largest |x|. As integers they are in the order of the
 * numbers, with NaN above infinity. */
ALWAYS_INLINE __m512i largest_bits(const float *x, size_t begin, size_t end, size_t n)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
    __m512i max = _mm512_setzero_si512();
    for (size_t i = begin; i < end; i += 16) {
        const __m512i bits = _mm512_castps_si512(load_below(x, i, n));
        max = _mm512_max_epu32(max, _mm512_and_si512(bits, magnitude));
    }
    return max;
}

/* Computes kern_quantize_scale for sixteen groups. */
ALWAYS_INLINE __m512 scales_of(__m512i max_bits, __m512 *factors)
{
    const __m512 max = _mm512_castsi512_ps(max_bits), most = _mm512_set1_ps(127.0f);
    const __mmask16 strange = _mm512_cmpge_epu32_mask(max_bits, _mm512_set1_epi32(0x7F800000));
    const __mmask16 usual =
        _mm512_cmp_ps_mask(max, _mm512_set1_ps(0x1p-120f), _CMP_GE_OQ) & (__mmask16)~strange;
    const __m512i nan = _mm512_maskz_set1_epi32(strange, 0x7FC00000);
    *factors = _mm512_maskz_div_ps(usual, most, max);
    return _mm512_mask_div_ps(_mm512_castsi512_ps(nan), usual, max, most);
}

/* Quantizes inputs [begin, end). Returns the sums of the quantized values, lane by lane. */
ALWAYS_INLINE __m512i codes_of(const float *x, size_t begin, size_t end, size_t n, float factor,
                               int8_t *codes)
{
    const __mmask16 any = factor != 0.0f ? 0xFFFF : 0; /* 0: all 0, even where x is infinite */
    const __m512 f = _mm512_set1_ps(factor);
    __m512i sum = _mm512_setzero_si512();
    for (size_t i = begin; i < end; i += 16) {
        const __m512i v = _mm512_maskz_cvtps_epi32(any, _mm512_mul_ps(load_below(x, i, n), f));
        _mm_storeu_si128((void *)(codes + i), _mm512_cvtepi32_epi8(v));
        sum = _mm512_add_epi32(sum, v);
    }
    return sum;
}

/* Quantizes n_here groups of x [n]: writes quantized values, scales and sums. */
ALWAYS_INLINE void sixteen_groups(const float *x, size_t n, size_t group, size_t n_here,
                                  int8_t *codes, float *scales, int32_t *sums)
{
    const __mmask16 here = v16_first(n_here);
    __m512i v[GROUPS];
    __m512 factors;
    float factor[GROUPS] __attribute__((aligned(64)));
    for (size_t i = n_here; i < GROUPS; i++) v[i] = _mm512_setzero_si512();
#pragma GCC unroll 16
    for (size_t i = 0; i < n_here; i++) v[i] = largest_bits(x, i * group, (i + 1) * group, n);
    _mm512_mask_storeu_ps(scales, here, scales_of(fold_lanes(FOLD_MAX, v), &factors));
    _mm512_store_ps(factor, factors);
#pragma GCC unroll 16
    for (size_t i = 0; i < n_here; i++)
        v[i] = codes_of(x, i * group, (i + 1) * group, n, factor[i], codes);
    _mm512_mask_storeu_epi32(sums, here, fold_lanes(FOLD_ADD, v));
}

static void k_quantize_row_avx512(const float *x, size_t n, const struct quant_rows *out,
                                  size_t row)
{
    enum { SMALL = 32, WHOLE = GROUPS * SMALL };
    const size_t group = out->group, first = row * out->n_groups;
    for (size_t g = 0; g < out->n_groups; g += GROUPS) {
        const size_t at = g * group, left = out->n_groups - g;
        int8_t *codes = out->codes + first * group + at;
        float *scales = out->scales + first + g;
        int32_t *sums = out->sums + first + g;
        if (group == SMALL && n - at >= WHOLE) /* usual case: constant sizes, no tests inside */
            sixteen_groups(x + at, WHOLE, SMALL, GROUPS, codes, scales, sums);
        else
            sixteen_groups(x + at, n - at, group, left < GROUPS ? left : GROUPS, codes, scales,
                           sums);
    }
}

void fill_quantize_avx512(struct kern_table *t)
{
    t->quantize_row = k_quantize_row_avx512;
}

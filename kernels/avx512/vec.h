/* Vector helpers of the AVX-512 kernels: 16 f32 values in one register, loads of f32, f16 and bf16,
 * exp, the tree sum over 16 lanes, masks for the end of a row. Everything is inlined; element types
 * are constants. */
#ifndef SHOAL_KERNELS_AVX512_VEC_H
#define SHOAL_KERNELS_AVX512_VEC_H

#include "kernels/body.h"

#include <immintrin.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Sixteen f32 lanes. */
struct v16 {
    __m512 v;
};

ALWAYS_INLINE struct v16 v16_zero(void)
{
    return (struct v16){_mm512_setzero_ps()};
}

/* Loads elements [i, i + 16) of an array of type t, in f32. */
ALWAYS_INLINE struct v16 v16_load(enum dtype t, const void *data, size_t i)
{
    const void *at = (const uint16_t *)data + i;
    if (t == DTYPE_F16) return (struct v16){_mm512_cvtph_ps(_mm256_loadu_si256(at))};
    if (t == DTYPE_BF16) {
        const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(at));
        return (struct v16){_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
    }
    return (struct v16){_mm512_loadu_ps((const float *)data + i)};
}

/* Returns a bit for each of the first n lanes. */
ALWAYS_INLINE __mmask16 v16_first(size_t n)
{
    return n < 16 ? (__mmask16)((1u << n) - 1) : (__mmask16)0xFFFFu;
}

ALWAYS_INLINE struct v16 v16_set1(float x)
{
    return (struct v16){_mm512_set1_ps(x)};
}

ALWAYS_INLINE void v16_store(float *y, struct v16 v)
{
    _mm512_storeu_ps(y, v.v);
}

#define V16_EACH(name, instruction)                                                                \
    ALWAYS_INLINE struct v16 name(struct v16 x, struct v16 y)                                      \
    {                                                                                              \
        return (struct v16){instruction(x.v, y.v)};                                                \
    }
V16_EACH(v16_add, _mm512_add_ps)
V16_EACH(v16_sub, _mm512_sub_ps)
V16_EACH(v16_mul, _mm512_mul_ps)
V16_EACH(v16_div, _mm512_div_ps)
V16_EACH(v16_max, _mm512_max_ps) /* gives y if either is NaN, as v16_min does */
V16_EACH(v16_min, _mm512_min_ps)
#undef V16_EACH

/* x * y + z */
ALWAYS_INLINE struct v16 v16_madd(struct v16 x, struct v16 y, struct v16 z)
{
    return (struct v16){_mm512_fmadd_ps(x.v, y.v, z.v)};
}

/* Selects a in the lanes where x > y, and b in all others, also where x or y is NaN. */
ALWAYS_INLINE struct v16 v16_above(struct v16 x, struct v16 y, struct v16 a, struct v16 b)
{
    return (struct v16){_mm512_mask_mov_ps(b.v, _mm512_cmp_ps_mask(x.v, y.v, _CMP_GT_OQ), a.v)};
}

/* Computes el_exp_body of sixteen values, bit for bit. Results outside exp's range are replaced at
 * the end; a NaN stays NaN. */
ALWAYS_INLINE struct v16 v16_exp(struct v16 v)
{
    const __m512 shift = _mm512_set1_ps(EL_SHIFT), one = _mm512_set1_ps(1.0f), x = v.v;
    const __mmask16 not_low = _mm512_cmp_ps_mask(x, _mm512_set1_ps(EL_EXP_LOW), _CMP_NLT_UQ);
    const __mmask16 high = _mm512_cmp_ps_mask(x, _mm512_set1_ps(EL_EXP_HIGH), _CMP_GT_OQ);
    const __m512 shifted = _mm512_fmadd_ps(x, _mm512_set1_ps(EL_LOG2E), shift);
    const __m512 n = _mm512_sub_ps(shifted, shift);
    const __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(EL_LN2_LO),
                                      _mm512_fnmadd_ps(n, _mm512_set1_ps(EL_LN2_HI), x));
    __m512 q = _mm512_set1_ps(EL_EXP_Q4);
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(EL_EXP_Q3));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(EL_EXP_Q2));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(EL_EXP_Q1));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(EL_EXP_Q0));
    const __m512 p = _mm512_fmadd_ps(_mm512_fmadd_ps(q, r, one), r, one);
    const __m512i power = _mm512_slli_epi32(
        _mm512_add_epi32(_mm512_castps_si512(shifted), _mm512_set1_epi32(127)), 23);
    const __m512 y = _mm512_maskz_mul_ps(not_low, p, _mm512_castsi512_ps(power));
    return (struct v16){_mm512_mask_mov_ps(y, high, _mm512_set1_ps(INFINITY))};
}

/* Returns eight integer sums as floats; `unit` is the grid's step. */
ALWAYS_INLINE __m256 grid_eight(__m512i sums, __m512d unit)
{
    return _mm512_cvtpd_ps(_mm512_mul_pd(_mm512_cvtepi64_pd(sums), unit));
}

/* Returns the sum over 16 lanes in the order 8-4-2-1. */
ALWAYS_INLINE float v16_tree(struct v16 v)
{
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v.v), _mm512_extractf32x8_ps(v.v, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

ALWAYS_INLINE float v16_max_lane(struct v16 v)
{
    return _mm512_reduce_max_ps(v.v);
}

/* Lane l stands for index i + l. Sets the lanes whose index is outside [i0, i1) to -infinity. */
ALWAYS_INLINE struct v16 v16_visible(struct v16 v, size_t i, size_t i0, size_t i1)
{
    if (i0 <= i && i + 16 <= i1) return v;
    const unsigned below = i < i0 ? v16_first(i0 - i) : 0, until = i < i1 ? v16_first(i1 - i) : 0;
    const __mmask16 seen = (__mmask16)(until & ~below);
    return (struct v16){_mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), seen, v.v)};
}

#endif

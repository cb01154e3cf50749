/* Vector helpers of the AVX2 kernels: 16 f32 values in two registers, loads of f32, f16 and
 * bf16, exp, the tree sum over 16 lanes, masks for the end of a row. Everything is inlined; element
 * types are constants. */
#ifndef SHOAL_KERNELS_AVX2_VEC_H
#define SHOAL_KERNELS_AVX2_VEC_H

#include "kernels/body.h"
#include "kernels/elementary_body.h"

#include <immintrin.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Sixteen f32 lanes. */
struct v16 {
    __m256 a, b;
};

ALWAYS_INLINE struct v16 v16_zero(void)
{
    return (struct v16){_mm256_setzero_ps(), _mm256_setzero_ps()};
}

/* Loads elements [i, i + 8) of an array of type t, in f32. */
ALWAYS_INLINE __m256 v8_load(enum dtype t, const void *data, size_t i)
{
    if (t == DTYPE_F16)
        return _mm256_cvtph_ps(_mm_loadu_si128((const void *)((const uint16_t *)data + i)));
    if (t == DTYPE_BF16) {
        const __m128i h = _mm_loadu_si128((const void *)((const uint16_t *)data + i));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
    }
    return _mm256_loadu_ps((const float *)data + i);
}

/* Returns a mask of all ones in the first n of 8 lanes. */
ALWAYS_INLINE __m256i v8_first(size_t n)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n < 8 ? (int)n : 8), lane);
}

/* Converts int64 to double, rounded once: hi * 2^32 is built exactly, then the low half is added.
 */
ALWAYS_INLINE __m256d double_from_int64(__m256i v)
{
    const __m256i high = _mm256_xor_si256(_mm256_srli_epi64(v, 32),
                                          _mm256_castpd_si256(_mm256_set1_pd(0x1p84 + 0x1p63)));
    const __m256i low = _mm256_blend_epi32(v, _mm256_castpd_si256(_mm256_set1_pd(0x1p52)), 0xAA);
    const __m256d exact =
        _mm256_sub_pd(_mm256_castsi256_pd(high), _mm256_set1_pd(0x1p84 + 0x1p63 + 0x1p52));
    return _mm256_add_pd(exact, _mm256_castsi256_pd(low));
}

/* Returns four integer sums as floats; `unit` is the grid's step. */
ALWAYS_INLINE __m128 grid_four(const int64_t *sums, __m256d unit)
{
    const __m256i v = _mm256_loadu_si256((const void *)sums);
    return _mm256_cvtpd_ps(_mm256_mul_pd(double_from_int64(v), unit));
}

/* Computes el_exp_body of eight values, bit for bit. */
ALWAYS_INLINE __m256 v8_exp(__m256 x)
{
    const __m256 low = _mm256_set1_ps(EL_EXP_LOW), high = _mm256_set1_ps(EL_EXP_HIGH);
    const __m256 shift = _mm256_set1_ps(EL_SHIFT), one = _mm256_set1_ps(1.0f);
    const __m256 inside = _mm256_min_ps(_mm256_max_ps(x, low), high);
    const __m256 shifted = _mm256_fmadd_ps(inside, _mm256_set1_ps(EL_LOG2E), shift);
    const __m256 n = _mm256_sub_ps(shifted, shift);
    const __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(EL_LN2_LO),
                                      _mm256_fnmadd_ps(n, _mm256_set1_ps(EL_LN2_HI), inside));
    __m256 q = _mm256_set1_ps(EL_EXP_Q4);
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(EL_EXP_Q3));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(EL_EXP_Q2));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(EL_EXP_Q1));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(EL_EXP_Q0));
    const __m256 p = _mm256_fmadd_ps(_mm256_fmadd_ps(q, r, one), r, one);
    const __m256i power = _mm256_slli_epi32(
        _mm256_add_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(127)), 23);
    __m256 y = _mm256_mul_ps(p, _mm256_castsi256_ps(power));
    y = _mm256_andnot_ps(_mm256_cmp_ps(x, low, _CMP_LT_OQ), y);
    y = _mm256_blendv_ps(y, _mm256_set1_ps(INFINITY), _mm256_cmp_ps(x, high, _CMP_GT_OQ));
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

/* Returns the sum over 8 lanes in the order 4-2-1. */
ALWAYS_INLINE float v8_tree(__m256 v)
{
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* Returns the sum over 16 lanes in the order 8-4-2-1. */
ALWAYS_INLINE float v16_tree(struct v16 v)
{
    return v8_tree(_mm256_add_ps(v.a, v.b));
}

ALWAYS_INLINE struct v16 v16_set1(float x)
{
    return (struct v16){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}

/* Loads elements [i, i + 16) of an array of type t, in f32. */
ALWAYS_INLINE struct v16 v16_load(enum dtype t, const void *data, size_t i)
{
    return (struct v16){v8_load(t, data, i), v8_load(t, data, i + 8)};
}

ALWAYS_INLINE void v16_store(float *y, struct v16 v)
{
    _mm256_storeu_ps(y, v.a);
    _mm256_storeu_ps(y + 8, v.b);
}

#define V16_EACH(name, instruction)                                                                \
    ALWAYS_INLINE struct v16 name(struct v16 x, struct v16 y)                                      \
    {                                                                                              \
        return (struct v16){instruction(x.a, y.a), instruction(x.b, y.b)};                         \
    }
V16_EACH(v16_add, _mm256_add_ps)
V16_EACH(v16_sub, _mm256_sub_ps)
V16_EACH(v16_mul, _mm256_mul_ps)
V16_EACH(v16_div, _mm256_div_ps)
V16_EACH(v16_max, _mm256_max_ps) /* gives y if either is NaN, as v16_min does */
V16_EACH(v16_min, _mm256_min_ps)
#undef V16_EACH

/* x * y + z */
ALWAYS_INLINE struct v16 v16_madd(struct v16 x, struct v16 y, struct v16 z)
{
    return (struct v16){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}

/* Selects a in the lanes where x > y, and b in all others, also where x or y is NaN. */
ALWAYS_INLINE struct v16 v16_above(struct v16 x, struct v16 y, struct v16 a, struct v16 b)
{
    return (struct v16){_mm256_blendv_ps(b.a, a.a, _mm256_cmp_ps(x.a, y.a, _CMP_GT_OQ)),
                        _mm256_blendv_ps(b.b, a.b, _mm256_cmp_ps(x.b, y.b, _CMP_GT_OQ))};
}

ALWAYS_INLINE struct v16 v16_exp(struct v16 x)
{
    return (struct v16){v8_exp(x.a), v8_exp(x.b)};
}

ALWAYS_INLINE float v16_max_lane(struct v16 v)
{
    const __m256 eight = _mm256_max_ps(v.a, v.b);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

/* Lane l stands for index i + l. Sets the lanes whose index is outside [i0, i1) to -infinity. */
ALWAYS_INLINE struct v16 v16_visible(struct v16 v, size_t i, size_t i0, size_t i1)
{
    if (i0 <= i && i + 16 <= i1) return v;
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i first = _mm256_set1_epi32((int)i0), last = _mm256_set1_epi32((int)i1 - 1);
    const __m256i a = _mm256_add_epi32(_mm256_set1_epi32((int)i), lane);
    const __m256i b = _mm256_add_epi32(_mm256_set1_epi32((int)i + 8), lane);
    const __m256 none = _mm256_set1_ps(-INFINITY);
    const __m256i hides_a =
        _mm256_or_si256(_mm256_cmpgt_epi32(first, a), _mm256_cmpgt_epi32(a, last));
    const __m256i hides_b =
        _mm256_or_si256(_mm256_cmpgt_epi32(first, b), _mm256_cmpgt_epi32(b, last));
    return (struct v16){_mm256_blendv_ps(v.a, none, _mm256_castsi256_ps(hides_a)),
                        _mm256_blendv_ps(v.b, none, _mm256_castsi256_ps(hides_b))};
}

#endif

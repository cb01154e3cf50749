/* Pieces of the AVX-512 kernels: 16 values in one register, loads of every element type, masks for
 * tails. Everything inlines; element types are constants. */
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

/* Elements [i, i + 16) of an array of type t, in f32. */
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

/* A bit for each of the first n lanes. */
ALWAYS_INLINE __mmask16 v16_first(size_t n)
{
    return n < 16 ? (__mmask16)((1u << n) - 1) : (__mmask16)0xFFFFu;
}

#endif

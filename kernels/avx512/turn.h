/* Transposes across the 128-bit lanes of AVX-512; pack_turn.h does the part inside a lane. Included
 * by files that define ALWAYS_INLINE. */
#ifndef SHOAL_KERNELS_AVX512_TURN_H
#define SHOAL_KERNELS_AVX512_TURN_H

#include <immintrin.h>

#define UNPACK(part, bits, a, b) _mm512_unpack##part##_epi##bits(a, b)
typedef __m512i vec;
#include "kernels/pack_turn.h"

enum { QUARTERS = 4 /* lanes of 128 bits in a register */ };

/* Transposes the 4 x 4 matrix whose elements are the 128-bit lanes of four registers. */
ALWAYS_INLINE void turn_lanes(__m512i r[QUARTERS])
{
    const __m512i a = _mm512_shuffle_i32x4(r[0], r[1], 0x44);
    const __m512i b = _mm512_shuffle_i32x4(r[0], r[1], 0xEE);
    const __m512i c = _mm512_shuffle_i32x4(r[2], r[3], 0x44);
    const __m512i d = _mm512_shuffle_i32x4(r[2], r[3], 0xEE);
    r[0] = _mm512_shuffle_i32x4(a, c, 0x88);
    r[1] = _mm512_shuffle_i32x4(a, c, 0xDD);
    r[2] = _mm512_shuffle_i32x4(b, d, 0x88);
    r[3] = _mm512_shuffle_i32x4(b, d, 0xDD);
}

/* out[j] = word j of each of the 16 rows. */
ALWAYS_INLINE void turn_words(const vec r[16], vec out[16])
{
    vec v[16];
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) turn_four(r + i, v + i);
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        vec q[QUARTERS] = {v[j], v[4 + j], v[8 + j], v[12 + j]};
        turn_lanes(q);
#pragma GCC unroll 4
        for (int lane = 0; lane < QUARTERS; lane++) out[4 * lane + j] = q[lane];
    }
}

#endif

/* Transposes rows in registers, inside each lane of 128 bits. Included by files of an
 * instruction set (pack_*.c, avx512/turn.h), which define ALWAYS_INLINE, the type vec and
 * UNPACK(part, bits, a, b): interleaves the low (lo) or high (hi) elements of a and b in each lane.
 */
#ifndef SHOAL_KERNELS_PACK_TURN_H
#define SHOAL_KERNELS_PACK_TURN_H

/* Transposes four rows of words: lane i of out[j] = word 4i + j of each row. */
ALWAYS_INLINE void turn_four(const vec r[4], vec out[4])
{
    const vec a = UNPACK(lo, 32, r[0], r[1]), b = UNPACK(hi, 32, r[0], r[1]);
    const vec c = UNPACK(lo, 32, r[2], r[3]), d = UNPACK(hi, 32, r[2], r[3]);
    out[0] = UNPACK(lo, 64, a, c);
    out[1] = UNPACK(hi, 64, a, c);
    out[2] = UNPACK(lo, 64, b, d);
    out[3] = UNPACK(hi, 64, b, d);
}

/* Transposes eight rows of two-byte elements: lane i of out[j] = element 8i + j of each row. */
ALWAYS_INLINE void turn_eight(const vec r[8], vec out[8])
{
    vec low[4], high[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        low[i] = UNPACK(lo, 16, r[2 * i], r[2 * i + 1]);
        high[i] = UNPACK(hi, 16, r[2 * i], r[2 * i + 1]);
    }
    turn_four(low, out);
    turn_four(high, out + 4);
}

#endif

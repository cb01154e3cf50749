/* Packs 64-bit integers for the wire: blocks of 64 values, each with as few bytes per value as the
 * block's largest magnitude needs. Sums on a fixed grid of 2^-32 take 4 bytes per value while
 * their magnitudes are below 0.5. No state, no MPI; little-endian machines only.
 *
 *     block: width w in bytes, 0 .. 8 (1 byte) | the values' w low bytes, two's complement
 *
 * The last block has as many values as are left. A block of zeros is its width alone. */
#ifndef SHOAL_PARALLEL_WIRE_WIRE_INTS_H
#define SHOAL_PARALLEL_WIRE_WIRE_INTS_H

#include <stddef.h>
#include <stdint.h>

enum { WIRE_INTS_BLOCK = 64 };

/* Returned for a message that is damaged or too short. */
#define WIRE_INTS_BAD SIZE_MAX

/* Local. Returns the most bytes that packing n values may write: the longest message, and the whole
 * word of the last store. */
static inline size_t wire_ints_bound(size_t n)
{
    return n * sizeof(int64_t) + (n + WIRE_INTS_BLOCK - 1) / WIRE_INTS_BLOCK + sizeof(int64_t);
}

/* Local. Packs values [n] into `to` [wire_ints_bound(n) bytes] and may overwrite up to 7 bytes
 * after the message. Returns the message's length in bytes, at most wire_ints_bound(n). */
size_t wire_ints_pack(const int64_t *values, size_t n, void *to);

/* Local. Read n values of a message from `from` [n_bytes], and nothing after them. wire_ints_unpack
 * stores them in values [n]; wire_ints_add adds them to values [n], wrapping as MPI's sums do.
 * Return the message's length, or WIRE_INTS_BAD, which leaves `values` undefined. */
size_t wire_ints_unpack(const void *from, size_t n_bytes, int64_t *values, size_t n);
size_t wire_ints_add(const void *from, size_t n_bytes, int64_t *values, size_t n);

#endif

/* Shares memory among arrays that are not alive at the same time. Sizes and lifetimes in, offsets
 * out; no state. Called where a workspace is laid out (parallel/layout/workspace.h). */
#ifndef SHOAL_BASE_LIFETIMES_H
#define SHOAL_BASE_LIFETIMES_H

#include <stddef.h>
#include <stdint.h>

/* An array that is alive from step `first` to step `last`, both included. */
struct lifetime {
    uint64_t n_bytes;
    uint32_t first, last;
    uint64_t offset; /* set by lifetimes_place: a multiple of LIFETIME_ALIGN */
};

enum { LIFETIME_ALIGN = 256, LIFETIMES_MAX = 64 };

/* Local. Places n arrays, at most LIFETIMES_MAX, so that no two arrays that are alive in the same
 * step overlap: the largest first, each at the lowest offset that is free during its lifetime.
 * Returns the bytes of memory that hold all arrays; UINT64_MAX on overflow. Source: greedy by size,
 * Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", section 5.2. */
uint64_t lifetimes_place(struct lifetime *arrays, size_t n);

#endif

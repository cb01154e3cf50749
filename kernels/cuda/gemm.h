/* Products of dense weights: shared by gemm_trials.c, which chooses the library's algorithms, and
 * gemm_cuda.c, which runs products. */
#ifndef SHOAL_KERNELS_CUDA_GEMM_H
#define SHOAL_KERNELS_CUDA_GEMM_H

#include "kernels/cuda/device_state.h"

enum {
    GEMM_ALIGN_ELEMENTS = 8, /* row stride of operands: 16 bytes of the smallest type */
    GEMM_ALIGN_FLOATS = 4,   /* row stride of results */
    GEMM_ALIGN_OUTPUTS = PACKED_FLAT_OUTPUTS, /* with other numbers of outputs, the library has been
                                                 seen to add in another order (cuBLASLt 13.1 on an
                                                 H200) */
    GEMM_TRIED_ROWS = 512,                    /* most rows in the trials of an algorithm */
    GEMM_TRIED_MANY_ROWS = 4096, /* most rows in the trials of an algorithm for many rows */
};

/* A part of a flat weight's inputs: `batch` products of k inputs each, from input k0 on. */
struct gemm_part {
    size_t k0, k, batch;
    uint32_t algorithm, many; /* for few rows and for many */
    bool few;                 /* gemm_few multiplies up to CUDA_GEMM_FEW_ROWS rows */
};

/* Local. Describes the part's product with the weight; x, y, rows and y's strides are left out. */
struct cuda_gemm gemm_part_of(const struct packed *w, const struct gemm_part *p);

/* Local. Lists the parts of a weight for which the library has an algorithm, and returns their
 * number, 0 to 2: without leaves (K-blocks), or with DEVICE_FREE, one part with all inputs;
 * otherwise one with the whole leaves, and one with the shorter last leaf. */
size_t gemm_list_parts(struct device *d, const struct packed *w, struct gemm_part parts[2]);

/* Local. Launches one thread for each of `width` elements of each row. */
void gemm_launch_rows(struct device *d, enum cuda_kernel kernel, size_t n_rows, size_t width,
                      const void *args);

/* Local. Runs n products on the kernel gemm_few: up to CUDA_LIST of them, which read the same rows;
 * a batch only if n is 1. rows <= CUDA_GEMM_FEW_ROWS, 16-bit types, k a multiple of 8. */
void gemm_few(struct device *d, const struct cuda_gemm *g, size_t n);

/* Local. True when a product of this many rows and outputs runs on gemm_few. */
bool gemm_takes_few(const struct gemm_part *p, size_t rows, size_t n_out);

static inline size_t gemm_rounded_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static inline size_t gemm_smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

#endif

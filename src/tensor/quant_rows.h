/* The bytes of quantized activations, which kernels/act.c lays out and memory plans count. */
#ifndef SHOAL_TENSOR_QUANT_ROWS_H
#define SHOAL_TENSOR_QUANT_ROWS_H

#include "tensor/quant_format.h"

enum { QUANT_ROWS_ALIGN = 64 /* alignment of each array of quantized activations */ };

/* Local. Returns the bytes of memory for n_rows rows of n activations as int8 values, with a scale
 * and a sum for each group; enough for every group size. SIZE_MAX: overflow. */
static inline size_t quant_rows_bytes(size_t n_rows, size_t n)
{
    const size_t n_codes = (n + QUANT_GROUP_MAX - 1) / QUANT_GROUP_MAX * QUANT_GROUP_MAX;
    const size_t n_groups = (n + QUANT_CODE_ALIGN - 1) / QUANT_CODE_ALIGN;
    size_t row_bytes, all;
    if (__builtin_mul_overflow(n_groups, sizeof(float) + sizeof(int32_t), &row_bytes) ||
        __builtin_add_overflow(row_bytes, n_codes, &row_bytes) ||
        __builtin_mul_overflow(row_bytes, n_rows, &all) ||
        __builtin_add_overflow(all, 3 * (size_t)QUANT_ROWS_ALIGN, &all))
        return SIZE_MAX;
    return all;
}

#endif

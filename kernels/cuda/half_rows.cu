/* Rounds rows of activations to 16-bit operands (to nearest even; beyond f16's range, to
 * infinity), in the order in which linear_half.h reads the weights, padded with zeros. */
#include "kernels/cuda/dialect.h"

/* Returns the index of the input at place i of a row for weights of this kind. For quantized
 * weights, lane q's word of weights holds, for each tensor-core product (two of them with nibbles),
 * the weights at the places 2 q (byte 0), 2 q + 1 (byte 2), 2 q + 8 (byte 1) and 2 q + 9 (byte 3);
 * each place gets the input of its weight. */
BLOCK_INLINE size_t half_input(enum quant_kind kind, size_t i)
{
    const size_t q = i % 8 / 2, byte = i % 2 * 2 + i / 8 % 2;
    if (kind == QUANT_NONE) return i;
    if (quant_is_nibbles(kind)) return i / 32 * 32 + q * 8 + i / 16 % 2 * 4 + byte;
    return i / 16 * 16 + q * 4 + byte;
}

BLOCK_INLINE void half_rows_block(const struct half_rows_work *a, struct cuda_block b, void *shared)
{
    (void)shared;
    FOR_THREADS(t)
    {
        const size_t i = (size_t)b.x * CUDA_THREADS + t, row = b.y;
        if (i < a->stride) {
            const size_t k = half_input(a->kind, i);
            const float x = k < a->n ? a->x[row * a->x_stride + k] : 0.0f;
            a->to[row * a->stride + i] = a->dtype == DTYPE_F16 ? f16_from_f32(x) : bf16_from_f32(x);
        }
    }
}
CUDA_KERNEL(half_rows, half_rows_work)

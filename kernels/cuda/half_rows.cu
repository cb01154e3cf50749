/* Rows of activations as operands of 16 bits: rounded (nearest even, what lies beyond f16
 * infinite), in the order in which a lane of linear_half.h finds its weights, padded with zeros. */
#include "kernels/cuda/dialect.h"

/* The input at place i of a row that meets weights of this kind. Places 2 q and 2 q + 1, 8 + 2 q
 * and 9 + 2 q of a product meet lane q's word: its bytes 0 and 2, 1 and 3. */
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

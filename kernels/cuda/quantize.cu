/* Quantizes rows to int8, with one thread block for each group of a row. Atomics find the group's
 * largest magnitude (the bits of a float, compared as an integer) and the integer sum of its
 * quantized values, so the order of the threads does not matter. */
#include "kernels/cuda/dialect.h"
#include "kernels/quant_body.h"

BLOCK_INLINE void quantize_block(const struct quantize_work *a, struct cuda_block b, void *shared)
{
    uint32_t *max = (uint32_t *)shared;
    int32_t *sum = (int32_t *)shared + 1;
    const size_t group = a->out.group, at = b.x * group, left = a->n - at;
    const size_t length = left < group ? left : group, i = b.y * a->out.n_groups + b.x;
    const float *x = a->x + b.y * a->x_stride + at;
    FOR_THREADS(t)
    {
        if (t == 0) *max = 0;
        if (t == 0) *sum = 0;
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        if (t < length) block_max_u32(max, f32_bits(x[t]) & 0x7FFFFFFFu);
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        float factor;
        const float scale = kern_quantize_scale(*max, &factor);
        if (t < group) {
            const int32_t code = t < length && factor != 0.0f ? block_round_f32(x[t] * factor) : 0;
            a->out.codes[i * group + t] = (int8_t)code;
            if (code != 0) block_add_i32(sum, code);
        }
        if (t == 0) a->out.scales[i] = scale;
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        if (t == 0) a->out.sums[i] = *sum;
    }
}
CUDA_KERNEL(quantize, quantize_work)

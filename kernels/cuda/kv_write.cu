/* Writes the rows' keys and values into their cache slots, in the cache's type, with one block for
 * each row, kv head, and K or V. The scale of i8 needs the largest magnitude; its bits are an
 * integer, so atomics can find it in any order. */
#include "kernels/cuda/kv_put.h"

BLOCK_INLINE void kv_put_codes(const float *x, uint32_t n, int8_t *codes, float *scale,
                               uint32_t *max)
{
    FOR_THREADS(t)
    {
        if (t == 0) *max = 0;
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        for (uint32_t d = t; d < n; d += CUDA_THREADS)
            block_max_u32(max, f32_bits(x[d]) & 0x7FFFFFFFu);
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        float factor;
        for (uint32_t d = t; d < n; d += CUDA_THREADS) codes[d] = kv_code(x[d], *max);
        if (t == 0) *scale = kern_quantize_scale(*max, &factor);
    }
}

BLOCK_INLINE void kv_write_block(const struct kv_write_work *a, struct cuda_block b, void *shared)
{
    const uint32_t hd = a->kv.head_dim;
    const int32_t p = a->rows.position[b.y], slot = p % KV_BLOCK_TOKENS;
    const int32_t block = a->rows.blocks[a->rows.first_block[b.y] + p / KV_BLOCK_TOKENS];
    const float *x = (b.z == 0 ? a->key : a->value) + ((size_t)b.y * a->kv.n_kv_heads + b.x) * hd;
    void *half = kern_kv_half(&a->kv, block, (int)b.z, b.x);
    if (a->kv.dtype == DTYPE_I8) {
        kv_put_codes(x, hd, (int8_t *)half + (size_t)slot * hd, kern_kv_scales(half, hd) + slot,
                     (uint32_t *)shared);
        return;
    }
    FOR_THREADS(t)
    {
        for (uint32_t d = t; d < hd; d += CUDA_THREADS)
            kv_put(a->kv.dtype, x[d], half, (size_t)slot * hd + d);
    }
}
CUDA_KERNEL(kv_write, kv_write_work)

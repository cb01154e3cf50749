/* The rows' keys and values into their cache slots, rounded to the cache's type. One thread an
 * element. */
#include "kernels/cuda/dialect.h"

BLOCK_INLINE void kv_put(const struct kv_view *kv, float x, size_t at)
{
    if (kv->dtype == DTYPE_F32)
        ((float *)kv->base)[at] = x;
    else
        ((uint16_t *)kv->base)[at] = kv->dtype == DTYPE_F16 ? f16_from_f32(x) : bf16_from_f32(x);
}

BLOCK_INLINE void kv_write_block(const struct kv_write_work *a, struct cuda_block b, void *shared)
{
    const size_t hd = a->kv.head_dim, width = a->kv.n_kv_heads * hd, row = b.y;
    const int32_t p = a->rows.position[row];
    const int32_t block = a->rows.blocks[a->rows.first_block[row] + p / KV_BLOCK_TOKENS];
    (void)shared;
    FOR_THREADS(t)
    {
        const size_t i = (size_t)b.x * CUDA_THREADS + t;
        if (i < width) {
            const size_t at = (size_t)(p % KV_BLOCK_TOKENS) * hd + i % hd;
            kv_put(&a->kv, a->key[row * width + i], block_kv_index(&a->kv, block, 0, i / hd) + at);
            kv_put(&a->kv, a->value[row * width + i], block_kv_index(&a->kv, block, 1, i / hd) + at);
        }
    }
}
CUDA_KERNEL(kv_write, kv_write_work)

/* RoPE, one thread per pair: rope_table computes the cosines and sines for a step's rows;
 * rope_tails rotates the rotary parts of heads, for latent attention and its index, into other
 * memory. Heads of other attention are rotated by rope_kv.cu. */
#include "kernels/cuda/dialect.h"
#include "kernels/elementary_body.h"

BLOCK_INLINE void rope_table_block(const struct rope_table_args *a, struct cuda_block b,
                                   void *shared)
{
    const size_t half = a->rot / 2;
    (void)shared;
    FOR_THREADS(t)
    {
        const size_t i = (size_t)b.x * CUDA_THREADS + t;
        if (i < half) {
            float s, c;
            el_sincos_body((float)a->positions[b.y] * a->inv_freq[i], &s, &c);
            a->cos[b.y * half + i] = c * a->scale;
            a->sin[b.y * half + i] = s * a->scale;
        }
    }
}
CUDA_KERNEL(rope_table, rope_table_args)

BLOCK_INLINE void rope_tails_block(const struct rope_tails *a, struct cuda_block b, void *shared)
{
    const size_t half = a->rot / 2;
    (void)shared;
    FOR_THREADS(t)
    {
        const size_t pair = (size_t)b.x * CUDA_THREADS + t, row = b.y;
        if (pair < a->n_heads * half) {
            const size_t i = pair % half, head = row * a->n_heads + pair / half;
            const float c = a->cos[row * half + i], s = a->sin[row * half + i];
            const float *x = a->x + head * a->x_stride;
            float *out = a->out + head * a->out_stride;
            const float x0 = a->pairs ? x[2 * i] : x[i];
            const float x1 = a->pairs ? x[2 * i + 1] : x[half + i];
            out[i] = fmaf(-x1, s, x0 * c);
            out[half + i] = fmaf(x0, s, x1 * c);
        }
    }
}
CUDA_KERNEL(rope_tails, rope_tails)

/* Prepares the heads of projected rows for attention, in one launch: normalizes queries and keys,
 * rotates them, and writes keys and values into their cache slots. A block has up to eight heads of
 * one row of q, k or v, and keeps them in shared memory; each head has sixteen threads for the
 * sixteen chains of its norm. The scale of i8 needs the largest magnitude; its bits are an integer,
 * so atomics can find it in any order.
 *
 *     chains   [8][16]  the norm's chains
 *     numbers  [8]      1 / sqrt(...) of the norm, then the largest magnitudes
 *     heads    [8][Hd]  the heads, as far as they are computed */
#include "kernels/cuda/kv_put.h"

enum { HEAD_LOADS = 8 /* loads of a thread before their values are used */ };

/* The work of a block, and its shared memory. */
struct heads_part {
    const struct rope_kv_args *a;
    const float *from;
    float *to;         /* where q and k are written back; NULL for v */
    const float *norm; /* [Hd] or NULL */
    size_t row;
    uint32_t first, n_heads, hd, n; /* n: elements of the block's heads */
    float *heads, *chains, *numbers;
};

BLOCK_INLINE void heads_load(const struct heads_part *p)
{
    FOR_THREADS(t)
    {
        for (uint32_t i = t; i < p->n; i += HEAD_LOADS * CUDA_THREADS) {
            float x[HEAD_LOADS];
            BLOCK_UNROLL
            for (uint32_t j = 0; j < HEAD_LOADS; j++)
                x[j] = i + j * CUDA_THREADS < p->n ? p->from[i + j * CUDA_THREADS] : 0.0f;
            BLOCK_UNROLL
            for (uint32_t j = 0; j < HEAD_LOADS; j++)
                if (i + j * CUDA_THREADS < p->n) p->heads[i + j * CUDA_THREADS] = x[j];
        }
    }
    BLOCK_SYNC();
}

BLOCK_INLINE void heads_norm(const struct heads_part *p)
{
    if (p->norm == NULL) return;
    FOR_THREADS(t)
    {
        const float *x = p->heads + t / LANES * p->hd;
        float chain = 0.0f;
        for (uint32_t d = t % LANES; t / LANES < p->n_heads && d < p->hd; d += LANES)
            chain = fmaf(x[d], x[d], chain);
        p->chains[t] = chain;
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        if (t % LANES == 0)
            p->numbers[t / LANES] =
                1.0f / sqrtf(block_tree(p->chains + t) / (float)p->hd + p->a->eps);
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        for (uint32_t i = t; i < p->n; i += CUDA_THREADS)
            p->heads[i] = (p->heads[i] * p->numbers[i / p->hd]) * p->norm[i % p->hd];
    }
    BLOCK_SYNC();
}

BLOCK_INLINE void heads_rotate(const struct heads_part *p)
{
    const uint32_t half = (uint32_t)p->a->rot / 2;
    const float *cosines = p->a->cos + p->row * half, *sines = p->a->sin + p->row * half;
    FOR_THREADS(t)
    {
        for (uint32_t pair = t; pair < p->n_heads * half; pair += CUDA_THREADS) {
            const uint32_t i = pair % half;
            float *x = p->heads + pair / half * p->hd + i;
            const float x0 = x[0], x1 = x[half];
            x[0] = fmaf(-x1, sines[i], x0 * cosines[i]);
            x[half] = fmaf(x0, sines[i], x1 * cosines[i]);
        }
    }
    BLOCK_SYNC();
}

BLOCK_INLINE void heads_write_back(const struct heads_part *p)
{
    FOR_THREADS(t)
    {
        for (uint32_t i = t; i < p->n; i += CUDA_THREADS) p->to[i] = p->heads[i];
    }
}

/* The cache slot of a row: its block, and its number in the block. */
struct heads_slot {
    int32_t block;
    uint32_t slot;
    int which; /* keys: 0, values: 1 */
};

BLOCK_INLINE void heads_put_codes(const struct heads_part *p, struct heads_slot s)
{
    uint32_t *maxima = (uint32_t *)(void *)p->numbers;
    FOR_THREADS(t)
    {
        if (t < CUDA_ROPE_HEADS) maxima[t] = 0;
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        for (uint32_t i = t; i < p->n; i += CUDA_THREADS)
            block_max_u32(&maxima[i / p->hd], f32_bits(p->heads[i]) & 0x7FFFFFFFu);
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        for (uint32_t i = t; i < p->n; i += CUDA_THREADS) {
            const uint32_t h = i / p->hd, d = i % p->hd;
            void *half = kern_kv_half(&p->a->kv, s.block, s.which, p->first + h);
            float factor;
            ((int8_t *)half)[(size_t)s.slot * p->hd + d] = kv_code(p->heads[i], maxima[h]);
            if (d == 0)
                kern_kv_scales(half, p->hd)[s.slot] = kern_quantize_scale(maxima[h], &factor);
        }
    }
}

BLOCK_INLINE void heads_put(const struct heads_part *p, struct heads_slot s)
{
    if (p->a->kv.dtype == DTYPE_I8) {
        heads_put_codes(p, s);
        return;
    }
    FOR_THREADS(t)
    {
        for (uint32_t i = t; i < p->n; i += CUDA_THREADS) {
            const uint32_t h = i / p->hd, d = i % p->hd;
            kv_put(p->a->kv.dtype, p->heads[i],
                   kern_kv_half(&p->a->kv, s.block, s.which, p->first + h),
                   (size_t)s.slot * p->hd + d);
        }
    }
}

/* Finds the heads of block b.x: the blocks of q are followed by those of k and of v. Returns 0 for
 * q, 1 for k, 2 for v. */
BLOCK_INLINE int heads_find(const struct rope_kv_args *a, struct cuda_block b, struct heads_part *p)
{
    const uint32_t of_q = ((uint32_t)a->n_heads + CUDA_ROPE_HEADS - 1) / CUDA_ROPE_HEADS;
    const uint32_t of_kv = (a->kv.n_kv_heads + CUDA_ROPE_HEADS - 1) / CUDA_ROPE_HEADS;
    const int which = b.x < of_q ? 0 : b.x < of_q + of_kv ? 1 : 2;
    const uint32_t n_heads = which == 0 ? (uint32_t)a->n_heads : a->kv.n_kv_heads;
    const uint32_t chunk = which == 0 ? b.x : which == 1 ? b.x - of_q : b.x - of_q - of_kv;
    p->a = a;
    p->row = b.y;
    p->hd = a->kv.head_dim;
    p->first = chunk * CUDA_ROPE_HEADS;
    p->n_heads =
        n_heads - p->first < CUDA_ROPE_HEADS ? n_heads - p->first : (uint32_t)CUDA_ROPE_HEADS;
    p->n = p->n_heads * p->hd;
    const size_t at = (p->row * n_heads + p->first) * p->hd;
    p->to = which == 0 ? a->q + at : which == 1 ? a->k + at : NULL;
    p->from = which == 2 ? a->v + at : p->to;
    p->norm = which == 0 ? a->q_norm : which == 1 ? a->k_norm : NULL;
    return which;
}

BLOCK_INLINE void rope_kv_block(const struct rope_kv_work *w, struct cuda_block b, void *shared)
{
    const struct rope_kv_args *a = &w->args;
    struct heads_part p;
    const int which = heads_find(a, b, &p);
    p.chains = (float *)shared;
    p.numbers = p.chains + CUDA_THREADS;
    p.heads = p.numbers + CUDA_ROPE_HEADS;
    heads_load(&p);
    if (!a->norms_last) heads_norm(&p);
    if (which != 2 && a->rot > 0) heads_rotate(&p);
    if (a->norms_last) heads_norm(&p);
    if (which != 2) heads_write_back(&p);
    if (which == 0) return;
    const int32_t position = w->rows.position[p.row];
    const int32_t *blocks = w->rows.blocks + w->rows.first_block[p.row];
    const struct heads_slot s = {blocks[position / KV_BLOCK_TOKENS],
                                 (uint32_t)position % KV_BLOCK_TOKENS, which - 1};
    heads_put(&p, s);
}
CUDA_KERNEL(rope_kv, rope_kv_work)

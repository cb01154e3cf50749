/* RMSNorm and layer norm, one block per row: all threads copy the row to shared memory, because a
 * chain that waits for the GPU's memory at each element takes twenty times as long; sixteen threads
 * compute the sixteen chains of the numerics law, then all threads write the outputs, and quantize
 * them if asked to. Also the norm over all heads of a projection, in its two halves (square_sums,
 * norm_whole). */
#include "kernels/cuda/quantize_tile.h"

enum { NORM_AT_ONCE = 16 /* loads of a thread before their values are used */ };

/* The work of a block, and its shared memory. */
struct norm_part {
    const struct norm_args *a;
    const float *row; /* [n] in global memory */
    const float *x;   /* [n] the row's copy, or row itself if it is too long */
    float *y;         /* [n] in global memory */
    float *lanes;     /* [LANES + 2] the chains, 1 / sqrt(mean square + eps), the mean */
};

/* Loads elements d, d + step, ... below n; those from n on are `rest`. All loads are under way
 * before the first value is used. */
BLOCK_INLINE void norm_load(const float *from, size_t d, size_t step, size_t n, float rest,
                            float *out)
{
    BLOCK_UNROLL
    for (size_t i = 0; i < NORM_AT_ONCE; i++) out[i] = d + i * step < n ? from[d + i * step] : rest;
}

BLOCK_INLINE void norm_copy(const struct norm_part *p, uint32_t t, float *to)
{
    for (size_t d = t; d < p->a->n; d += NORM_AT_ONCE * CUDA_THREADS) {
        float x[NORM_AT_ONCE];
        norm_load(p->row, d, CUDA_THREADS, p->a->n, 0.0f, x);
        BLOCK_UNROLL
        for (size_t i = 0; i < NORM_AT_ONCE; i++) {
            if (d + i * CUDA_THREADS < p->a->n) to[d + i * CUDA_THREADS] = x[i];
        }
    }
}

BLOCK_INLINE void norm_mean(const struct norm_part *p)
{
    FOR_THREADS(t)
    {
        if (t < LANES) {
            float chain = 0.0f, x[NORM_AT_ONCE];
            for (size_t d = t; d < p->a->n; d += NORM_AT_ONCE * LANES) {
                norm_load(p->x, d, LANES, p->a->n, 0.0f, x); /* adding zeros changes no chain */
                BLOCK_UNROLL
                for (size_t i = 0; i < NORM_AT_ONCE; i++) chain += x[i];
            }
            p->lanes[t] = chain;
        }
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        if (t == 0) p->lanes[LANES + 1] = block_tree(p->lanes) / (float)p->a->n;
    }
    BLOCK_SYNC();
}

/* Sums the squares of x - mean; the mean is 0 for an RMS norm. Sets lanes[LANES], the norm's
 * factor. */
BLOCK_INLINE void norm_square_chains(const struct norm_part *p)
{
    FOR_THREADS(t)
    {
        if (t < LANES) {
            const float mean = p->lanes[LANES + 1];
            float chain = 0.0f, x[NORM_AT_ONCE];
            for (size_t d = t; d < p->a->n; d += NORM_AT_ONCE * LANES) {
                norm_load(p->x, d, LANES, p->a->n, mean, x);
                BLOCK_UNROLL
                for (size_t i = 0; i < NORM_AT_ONCE; i++)
                    chain = fmaf(x[i] - mean, x[i] - mean, chain);
            }
            p->lanes[t] = chain;
        }
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        if (t == 0)
            p->lanes[LANES] = 1.0f / sqrtf(block_tree(p->lanes) / (float)p->a->n + p->a->eps);
    }
    BLOCK_SYNC();
}

/* Writes the outputs, also over the row's copy. */
BLOCK_INLINE void norm_write(const struct norm_part *p, uint32_t t, float *copy)
{
    const struct norm_args *a = p->a;
    const float mean = p->lanes[LANES + 1], r = p->lanes[LANES];
    for (size_t d = t; d < a->n; d += NORM_AT_ONCE * CUDA_THREADS) {
        float x[NORM_AT_ONCE], w[NORM_AT_ONCE], bias[NORM_AT_ONCE];
        norm_load(a->w, d, CUDA_THREADS, a->n, 0.0f, w);
        if (a->bias != NULL) norm_load(a->bias, d, CUDA_THREADS, a->n, 0.0f, bias);
        norm_load(p->x, d, CUDA_THREADS, a->n, 0.0f, x);
        BLOCK_UNROLL
        for (size_t i = 0; i < NORM_AT_ONCE; i++) {
            const size_t at = d + i * CUDA_THREADS;
            const float y =
                a->bias != NULL ? fmaf((x[i] - mean) * r, w[i], bias[i]) : (x[i] * r) * w[i];
            if (at < a->n) p->y[at] = y;
            if (at < a->n && copy != NULL) copy[at] = y;
        }
    }
}

BLOCK_INLINE void rmsnorm_block(const struct norm_work *work, struct cuda_block b, void *shared)
{
    const struct norm_args *a = &work->norm;
    float *lanes = (float *)shared, *copy = a->n <= CUDA_NORM_MAX ? lanes + LANES + 2 : NULL;
    const float *row = a->x + (size_t)b.y * a->n;
    const struct norm_part p = {a, row, copy != NULL ? copy : row, a->y + (size_t)b.y * a->n,
                                lanes};
    FOR_THREADS(t)
    {
        if (t == 0) lanes[LANES + 1] = 0.0f; /* the mean of an RMS norm */
        if (copy != NULL) norm_copy(&p, t, copy);
    }
    BLOCK_SYNC();
    if (a->bias != NULL) norm_mean(&p);
    norm_square_chains(&p);
    FOR_THREADS(t)
    {
        norm_write(&p, t, copy);
    }
    if (work->codes.group == 0) return;
    BLOCK_SYNC();
    const struct quantize_part q = {
        .x = copy != NULL ? copy : p.y,
        .n = (uint32_t)a->n,
        .n_groups = (uint32_t)work->codes.n_groups,
        .out = &work->codes,
        .shift = quantize_shift(work->codes.group),
        .first = (size_t)b.y * work->codes.n_groups,
        .shared = (uint32_t *)(lanes + LANES + 2 + (copy != NULL ? a->n : 0))};
    quantize_groups(&q);
}
CUDA_KERNEL(rmsnorm, norm_work)

/* Sums each head's squares, for up to CUDA_THREADS / LANES heads of row b.y, from head b.x *
 * (CUDA_THREADS / LANES) on. */
BLOCK_INLINE void square_sums_block(const struct square_sums_args *a, struct cuda_block b,
                                    void *shared)
{
    float *lanes = (float *)shared; /* [CUDA_THREADS] */
    const size_t first = (size_t)b.x * (CUDA_THREADS / LANES);
    FOR_THREADS(t)
    {
        const size_t head = first + t / LANES;
        if (head < a->n_heads) {
            const float *x = a->x + ((size_t)b.y * a->n_heads + head) * a->head_dim;
            float chain = 0.0f;
            for (size_t d = t % LANES; d < a->head_dim; d += LANES) chain = fmaf(x[d], x[d], chain);
            lanes[t] = chain;
        }
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        const size_t head = first + t / LANES;
        if (t % LANES == 0 && head < a->n_heads)
            a->sums[b.y * a->stride + head] = f32_bits(block_tree(lanes + t));
    }
}
CUDA_KERNEL(square_sums, square_sums_args)

BLOCK_INLINE void norm_whole_block(const struct norm_whole *a, struct cuda_block b, void *shared)
{
    float *factor = (float *)shared;
    float *x = a->x + b.y * a->n;
    FOR_THREADS(t)
    {
        if (t == 0) {
            float sum = 0.0f;
            for (size_t i = 0; i < a->n_sums; i++)
                sum += f32_from_bits(a->sums[b.y * a->stride + i]);
            *factor = 1.0f / sqrtf(sum / (float)a->n_whole + a->eps);
        }
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        for (size_t d = t; d < a->n; d += CUDA_THREADS) x[d] = (x[d] * *factor) * a->w[d];
    }
}
CUDA_KERNEL(norm_whole, norm_whole)

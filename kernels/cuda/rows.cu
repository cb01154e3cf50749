/* Moves and combines rows: gathering, permuting, copying into wider rows, scattering to experts,
 * combining experts' results; adding, scaling, clamping, softcap and bias. Also adds marks to
 * counters (op_take_marks). */
#include "kernels/cuda/dialect.h"
#include "kernels/ops.h"

BLOCK_INLINE void gather_rows_block(const struct gather_work *a, struct cuda_block b, void *shared)
{
    (void)shared;
    FOR_THREADS(t)
    {
        const size_t k = (size_t)b.x * CUDA_THREADS + t;
        if (k < a->width) a->to[b.y * a->width + k] = a->from[(size_t)a->rows[b.y] * a->width + k];
    }
}
CUDA_KERNEL(gather_rows, gather_work)

BLOCK_INLINE void move_rows_block(const struct move_work *a, struct cuda_block b, void *shared)
{
    (void)shared;
    FOR_THREADS(t)
    {
        const size_t k = (size_t)b.x * CUDA_THREADS + t;
        const size_t from = (size_t)a->from_row[b.y], to = (size_t)a->to_row[b.y];
        if (k < a->width) a->to[to * a->to_stride + k] = a->from[from * a->width + k];
        if (k == 0 && a->extra != NULL)
            a->to[to * a->to_stride + a->width] = (uint32_t)a->extra[from];
    }
}
CUDA_KERNEL(move_rows, move_work)

BLOCK_INLINE void place_rows_block(const struct place_args *a, struct cuda_block b, void *shared)
{
    (void)shared;
    FOR_THREADS(t)
    {
        const size_t k = (size_t)b.x * CUDA_THREADS + t;
        const size_t from_stride = a->from_stride > 0 ? a->from_stride : a->width;
        if (k < a->width) a->to[b.y * a->to_stride + k] = a->from[b.y * from_stride + k];
    }
}
CUDA_KERNEL(place_rows, place_args)

BLOCK_INLINE void scatter_rows_block(const struct scatter_args *a, struct cuda_block b,
                                     void *shared)
{
    (void)shared;
    FOR_THREADS(t)
    {
        const size_t k = (size_t)b.x * CUDA_THREADS + t;
        const int32_t slot = a->slots[b.y];
        if (slot >= 0 && k < a->width)
            a->to[(size_t)slot * a->width + k] = a->x[b.y / a->per_row * a->width + k];
    }
}
CUDA_KERNEL(scatter_rows, scatter_args)

/* Adds the sum of column d to the token's integer sums, or stores it as a float. Adds n_bad to the
 * token's counter atomically, because threads of other columns add to that counter too. */
BLOCK_INLINE void combine_store(const struct combine_choices *a, size_t token, size_t d,
                                int64_t sum, int64_t n_bad)
{
    if (a->sums != NULL) {
        int64_t *sums = a->sums + token * (a->width + 1);
        sums[d] += sum;
        if (n_bad != 0) block_add_i64(&sums[a->width], n_bad);
    } else {
        a->out[token * a->width + d] = (float)((double)sum * kern_pow2(-(int)a->grid_bits));
        if (n_bad != 0) block_add_i32(&a->marks[2 * token], (int32_t)n_bad);
    }
}

BLOCK_INLINE void combine_choices_block(const struct combine_choices *a, struct cuda_block b,
                                        void *shared)
{
    const int32_t *slots = a->slots + (size_t)b.y * a->n_chosen;
    const float *weights = a->weights + (size_t)b.y * a->n_chosen;
    (void)shared;
    FOR_THREADS(t)
    {
        const size_t d = (size_t)b.x * CUDA_THREADS + t;
        int64_t sum = 0, n_bad = 0;
        for (size_t i = 0; d < a->width && i < a->n_chosen; i++) {
            if (slots[i] < 0) continue;
            const size_t slot = (size_t)slots[i];
            sum += kern_weigh(weights[i], a->y[slot * a->y_stride + d], a->grid_bits, &n_bad);
            if (d == 0 && a->bad != NULL) n_bad += a->bad[slot * a->bad_stride];
        }
        if (d < a->width) combine_store(a, b.y, d, sum, n_bad);
    }
}
CUDA_KERNEL(combine_choices, combine_choices)

BLOCK_INLINE void take_marks_block(const struct marks_work *a, struct cuda_block b, void *shared)
{
    (void)shared;
    FOR_THREADS(t)
    {
        const size_t i = (size_t)b.y * CUDA_THREADS + t;
        if (i < a->n) {
            a->bad[i] += a->marks[2 * i];
            a->dropped[i] += a->marks[2 * i + 1];
        }
    }
}
CUDA_KERNEL(take_marks, marks_work)

BLOCK_INLINE void add_block(const struct add_work *a, struct cuda_block b, void *shared)
{
    (void)shared;
    FOR_THREADS(t)
    {
        const size_t i = (size_t)b.y * CUDA_THREADS + t;
        if (i < a->n) a->h[i] += a->x[i];
    }
}
CUDA_KERNEL(add, add_work)

BLOCK_INLINE void axpy_block(const struct add_work *a, struct cuda_block b, void *shared)
{
    (void)shared;
    FOR_THREADS(t)
    {
        const size_t i = (size_t)b.y * CUDA_THREADS + t;
        if (i < a->n) a->h[i] = fmaf(a->w, a->x[i], a->h[i]);
    }
}
CUDA_KERNEL(axpy, add_work)

BLOCK_INLINE void scale_block(const struct add_work *a, struct cuda_block b, void *shared)
{
    (void)shared;
    FOR_THREADS(t)
    {
        const size_t i = (size_t)b.y * CUDA_THREADS + t;
        if (i < a->n) a->h[i] = a->h[i] * a->w;
    }
}
CUDA_KERNEL(scale, add_work)

BLOCK_INLINE void clamp_block(const struct add_work *a, struct cuda_block b, void *shared)
{
    (void)shared;
    FOR_THREADS(t)
    {
        const size_t i = (size_t)b.y * CUDA_THREADS + t;
        if (i < a->n && a->h[i] > a->w) a->h[i] = a->w;
        if (i < a->n && a->h[i] < -a->w) a->h[i] = -a->w;
    }
}
CUDA_KERNEL(clamp, add_work)

BLOCK_INLINE void softcap_block(const struct add_work *a, struct cuda_block b, void *shared)
{
    (void)shared;
    FOR_THREADS(t)
    {
        const size_t i = (size_t)b.y * CUDA_THREADS + t;
        if (i < a->n) a->h[i] = el_softcap_body(a->h[i], a->w);
    }
}
CUDA_KERNEL(softcap, add_work)

BLOCK_INLINE void add_bias_block(const struct add_work *a, struct cuda_block b, void *shared)
{
    (void)shared;
    FOR_THREADS(t)
    {
        const size_t i = (size_t)b.y * CUDA_THREADS + t;
        if (i < a->n) a->h[i] += a->x[i % a->width];
    }
}
CUDA_KERNEL(add_bias, add_work)

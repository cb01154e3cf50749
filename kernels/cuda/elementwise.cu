/* Elementwise kernels: filling bytes; SwiGLU or GEGLU, and clamped SwiGLU; xIELU; a sigmoid gate
 * for each row; converting integer grid sums to floats, with the rows' counters. */
#include "kernels/cuda/dialect.h"
#include "kernels/elementary_body.h"

BLOCK_INLINE void fill_block(const struct fill_work *a, struct cuda_block b, void *shared)
{
    const size_t first = (size_t)b.y * CUDA_FILL_SPAN, left = a->n_bytes - first;
    const size_t end = left < CUDA_FILL_SPAN ? a->n_bytes : first + CUDA_FILL_SPAN;
    (void)shared;
    FOR_THREADS(t)
    {
        for (size_t i = first + 4 * (size_t)t; i < end; i += 4 * CUDA_THREADS) {
            uint8_t *p = (uint8_t *)a->p + i;
            if (end - i >= 4)
                *(uint32_t *)(void *)p = (uint32_t)(uint8_t)a->byte * 0x01010101u;
            else
                for (size_t j = 0; j < end - i; j++) p[j] = (uint8_t)a->byte;
        }
    }
}
CUDA_KERNEL(fill, fill_work)

/* Returns a NaN for the gates that no device has, so that their rows fail. */
BLOCK_INLINE float gated(enum gate_kind kind, float gate, float up)
{
    switch (kind) {
    case GATE_SWIGLU:
        return el_swiglu_body(gate, up);
    case GATE_GEGLU:
        return el_geglu_body(gate, up);
    case GATE_RELU2:
    case GATE_GELU:
    case GATE_GEGLU_EXACT:
        break;
    }
    return NAN;
}

BLOCK_INLINE void swiglu_block(const struct swiglu_args *a, struct cuda_block b, void *shared)
{
    (void)shared;
    FOR_THREADS(t)
    {
        const size_t i = (size_t)b.x * CUDA_THREADS + t, at = b.y * a->stride + i;
        if (i < a->n) a->y[b.y * a->y_stride + i] = gated(a->kind, a->gate[at], a->up[at]);
    }
}
CUDA_KERNEL(swiglu, swiglu_args)

BLOCK_INLINE void swiglu_clamped_block(const struct swiglu_clamped_work *a, struct cuda_block b,
                                       void *shared)
{
    (void)shared;
    FOR_THREADS(t)
    {
        const size_t i = (size_t)b.y * CUDA_THREADS + t;
        if (i < a->n) a->gate[i] = el_swiglu_clamped_body(a->gate[i], a->up[i], a->alpha, a->limit);
    }
}
CUDA_KERNEL(swiglu_clamped, swiglu_clamped_work)

BLOCK_INLINE void xielu_block(const struct xielu_work *a, struct cuda_block b, void *shared)
{
    (void)shared;
    FOR_THREADS(t)
    {
        const size_t i = (size_t)b.y * CUDA_THREADS + t;
        if (i < a->n) a->x[i] = el_xielu_body(a->x[i], a->law);
    }
}
CUDA_KERNEL(xielu, xielu_work)

BLOCK_INLINE void sigmoid_rows_block(const struct sigmoid_rows_work *a, struct cuda_block b,
                                     void *shared)
{
    (void)shared;
    FOR_THREADS(t)
    {
        const size_t i = (size_t)b.x * CUDA_THREADS + t;
        if (i < a->n) a->x[b.y * a->n + i] *= 1.0f / (1.0f + el_exp_body(-a->gate[b.y]));
    }
}
CUDA_KERNEL(sigmoid_rows, sigmoid_rows_work)

BLOCK_INLINE void grid_count(int32_t *bad, int64_t n)
{
    const int64_t room = INT32_MAX - (int64_t)*bad;
    *bad = n > room ? INT32_MAX : (int32_t)(*bad + n);
}

BLOCK_INLINE void grid_block(const struct grid_args *a, struct cuda_block b, void *shared)
{
    const double unit = kern_pow2(-(int)a->grid_bits);
    const int64_t *sums = a->sums + b.y * (a->n_out + 1);
    float *y = a->y + b.y * a->n_out;
    (void)shared;
    FOR_THREADS(t)
    {
        const size_t i = (size_t)b.x * CUDA_THREADS + t;
        if (i < a->n_out) {
            const float x = (float)((double)sums[i] * unit);
            y[i] = a->adds ? y[i] + x : x;
        }
        if (i == a->n_out) grid_count(&a->bad[b.y], sums[i]);
    }
}
CUDA_KERNEL(grid, grid_args)

BLOCK_INLINE void grid_words_block(const struct grid_words_args *a, struct cuda_block b,
                                   void *shared)
{
    const double unit = kern_pow2(-(int)a->grid_bits);
    (void)shared;
    FOR_THREADS(t)
    {
        const size_t i = (size_t)b.y * CUDA_THREADS + t;
        if (i < a->n) {
            const int64_t sum = a->sums[i];
            const bool is_counter = (a->first + i) % (a->n_out + 1) == a->n_out;
            const float x = (float)((double)sum * unit);
            const uint32_t n_bad = sum > INT32_MAX ? INT32_MAX : (uint32_t)sum;
            a->words[i] = is_counter ? n_bad : f32_bits(x);
        }
    }
}
CUDA_KERNEL(grid_words, grid_words_args)

BLOCK_INLINE void take_words_block(const struct take_words_args *a, struct cuda_block b,
                                   void *shared)
{
    const uint32_t *words = a->words + b.y * (a->n_out + 1);
    float *y = a->y + b.y * a->n_out;
    (void)shared;
    FOR_THREADS(t)
    {
        const size_t i = (size_t)b.x * CUDA_THREADS + t;
        if (i < a->n_out) {
            const float x = f32_from_bits(words[i]);
            y[i] = a->adds ? y[i] + x : x;
        }
        if (i == a->n_out) grid_count(&a->bad[b.y], words[i]);
    }
}
CUDA_KERNEL(take_words, take_words_args)

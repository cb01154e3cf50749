/* Linears with quantized weights: exact integer sums of a group by four-byte dots, where the
 * activations are codes; else chains over the weights as floats. */
#include "kernels/cuda/linear_tile.h"

/* Where an output's codes stand: words of four inputs, PANEL_COLUMNS words apart. */
BLOCK_INLINE const uint32_t *quant_words(const struct linear_part *p)
{
    const uint8_t *panel = (const uint8_t *)p->w->data +
                           (size_t)p->panel * kern_quant_panel_bytes(p->w->quant, p->w->n_in);
    return (const uint32_t *)(const void *)panel + p->column;
}

/* isum of row codes x over group g of G inputs. */
BLOCK_INLINE int32_t quant_sum(enum quant_kind kind, const uint32_t *words, uint32_t g, uint32_t G,
                               const uint32_t *x)
{
    int32_t sum = 0;
    if (kind == QUANT_INT8) {
        for (uint32_t i = 0; i < G / 4; i++)
            sum = block_dot4(words[(size_t)(g * (G / 4) + i) * PANEL_COLUMNS] ^ 0x80808080u, x[i],
                             sum);
        return sum;
    }
    for (uint32_t i = 0; i < G / 8; i++) {
        const uint32_t v = words[(size_t)(g * (G / 8) + i) * PANEL_COLUMNS];
        uint32_t low = v & 0x0F0F0F0Fu, high = v >> 4 & 0x0F0F0F0Fu;
        if (kind == QUANT_MXFP4) {
            low = quant_doubled(low);
            high = quant_doubled(high);
        }
        sum = block_dot4(low, x[2 * i], sum);
        sum = block_dot4(high, x[2 * i + 1], sum);
    }
    return sum;
}

BLOCK_INLINE void quant_codes(enum quant_kind kind, const struct linear_work *a,
                              const struct linear_part *p, float *acc)
{
    const struct quant_rows *q = &a->xq;
    const uint32_t G = q->group, g1 = (p->k1 + G - 1) / G;
    const uint32_t *words = quant_words(p);
    for (uint32_t r = 0; r < CUDA_LINEAR_ROWS; r++) acc[r] = 0.0f;
    for (uint32_t g = p->k0 / G; g < g1; g++) {
        const float scale = kern_quant_scale(p->w, p->n, g);
        const int32_t offset = quant_offset(p->w, p->n, g);
        BLOCK_UNROLL
        for (uint32_t r = 0; r < CUDA_LINEAR_ROWS; r++) {
            if (r >= p->n_rows) break;
            const size_t i = (p->row0 + r) * q->n_groups + g;
            const uint32_t *x = (const uint32_t *)(const void *)(q->codes + i * G);
            const int32_t sum = quant_sum(kind, words, g, G, x) + offset * q->sums[i];
            acc[r] = fmaf((float)sum, scale * q->scales[i], acc[r]);
        }
    }
}

BLOCK_INLINE void quant_floats(const struct linear_work *a, const struct linear_part *p, float *acc)
{
    const float *x[CUDA_LINEAR_ROWS];
    BLOCK_UNROLL
    for (uint32_t r = 0; r < CUDA_LINEAR_ROWS; r++) {
        x[r] = a->x + linear_row(p, r) * a->x_stride;
        acc[r] = 0.0f;
    }
    for (uint32_t k = p->k0; k < p->k1; k++) {
        const float w = kern_quant_float(p->w, p->n, k);
        BLOCK_UNROLL
        for (uint32_t r = 0; r < CUDA_LINEAR_ROWS; r++) acc[r] = fmaf(x[r][k], w, acc[r]);
    }
}

BLOCK_INLINE void quant_thread(const struct linear_work *a, struct cuda_block b, uint32_t thread,
                               bool leafy)
{
    struct linear_part p;
    float acc[CUDA_LINEAR_ROWS];
    if (!linear_part_of(a, b, thread, leafy, &p) || (leafy && p.k0 >= p.w->n_in)) return;
    if (a->xq.group == 0 || p.w->quant.kind == QUANT_FP8)
        quant_floats(a, &p, acc);
    else if (p.w->quant.kind == QUANT_INT8)
        quant_codes(QUANT_INT8, a, &p, acc);
    else if (p.w->quant.kind == QUANT_INT4)
        quant_codes(QUANT_INT4, a, &p, acc);
    else
        quant_codes(QUANT_MXFP4, a, &p, acc);
    BLOCK_UNROLL
    for (uint32_t r = 0; r < CUDA_LINEAR_ROWS; r++) {
        if (r >= p.n_rows) break;
        if (leafy)
            linear_store_leaf(a, &p, r, acc[r]);
        else
            linear_store(a, &p, r, acc[r]);
    }
}

BLOCK_INLINE void linear_quant_block(const struct linear_work *a, struct cuda_block b, void *shared)
{
    (void)shared;
    FOR_THREADS(t)
    {
        quant_thread(a, b, t, false);
    }
}
CUDA_KERNEL(linear_quant, linear_work)

BLOCK_INLINE void linear_quant_leaf_block(const struct linear_work *a, struct cuda_block b,
                                          void *shared)
{
    (void)shared;
    FOR_THREADS(t)
    {
        quant_thread(a, b, t, true);
    }
}
CUDA_KERNEL(linear_quant_leaf, linear_work)

/* The linear with quantized weights in its simplest form, one element at a time, and the
 * quantization of activations. */
#include "kernels/ref/ref.h"

#include "kernels/quant_body.h"

#include <math.h>

/* Returns one output's chain over the groups [g0, g1), with integer sums. */
REF_INLINE float quant_chain(const struct linear_args *a, const struct packed *w, size_t row,
                             size_t n, size_t g0, size_t g1)
{
    const struct quant_rows *q = a->xq;
    float acc = 0.0f;
    for (size_t g = g0; g < g1; g++) {
        const size_t k0 = g * q->group, left = w->n_in - k0;
        const int8_t *x = q->codes + row * q->n_groups * q->group + k0;
        int32_t sum = 0;
        for (size_t k = 0; k < (left < q->group ? left : q->group); k++)
            sum += kern_quant_int(w, n, k0 + k) * x[k];
        const float scale = kern_quant_scale(w, n, g) * q->scales[row * q->n_groups + g];
        acc = fmaf((float)sum, scale, acc);
    }
    return acc;
}

/* Returns one output's chain over the inputs [k0, k1), with weights as floats. */
REF_INLINE float float_chain(const struct linear_args *a, const struct packed *w, size_t row,
                             size_t n, size_t k0, size_t k1)
{
    float acc = 0.0f;
    for (size_t k = k0; k < k1; k++)
        acc = fmaf(a->x[row * a->x_stride + k], kern_quant_float(w, n, k), acc);
    return acc;
}

REF_INLINE float chain(const struct linear_args *a, const struct packed *w, size_t row, size_t n,
                       size_t k0, size_t k1)
{
    const size_t group = quant_kernel_group(w->quant);
    if (a->xq == NULL || w->quant.kind == QUANT_FP8) return float_chain(a, w, row, n, k0, k1);
    return quant_chain(a, w, row, n, k0 / group, (k1 + group - 1) / group);
}

static inline size_t outputs_end(const struct packed *w, size_t panel1)
{
    const size_t end = panel1 * PANEL_COLUMNS;
    return end < w->n_out ? end : w->n_out;
}

REF_CLONES void k_linear_quant_ref(const struct linear_args *a, const struct linear_slice *s)
{
    const struct linear_group *g = &a->groups[s->group];
    for (size_t row = g->row0 + s->row0; row < g->row0 + s->row1; row++)
        for (size_t n = s->panel0 * PANEL_COLUMNS; n < outputs_end(g->w, s->panel1); n++)
            a->y[(row - a->y_row) * a->y_stride + (n - a->y_panel * PANEL_COLUMNS)] =
                chain(a, g->w, row, n, 0, g->w->n_in);
}

REF_CLONES void k_linear_quant_leaf_ref(const struct linear_args *a, const struct linear_slice *s)
{
    const struct linear_group *g = &a->groups[s->group];
    const struct packed *w = g->w;
    const float limit = kern_grid_limit(w->grid_bits);
    const double scale = kern_pow2((int)w->grid_bits), unit = kern_pow2(-(int)w->grid_bits);
    for (size_t row = g->row0 + s->row0; row < g->row0 + s->row1; row++) {
        int64_t *sums = a->sums != NULL ? a->sums + row * ((size_t)w->n_out + 1) : NULL, n_bad = 0;
        for (size_t n = s->panel0 * PANEL_COLUMNS; n < outputs_end(w, s->panel1); n++) {
            int64_t sum = 0;
            for (size_t k0 = 0; k0 < w->n_in; k0 += w->leaf) {
                const size_t k1 = w->n_in - k0 > w->leaf ? k0 + w->leaf : w->n_in;
                const float p = chain(a, w, row, n, k0, k1);
                if (fabsf(p) < limit)
                    sum += (int64_t)llrint((double)p * scale);
                else
                    n_bad++;
            }
            if (sums != NULL)
                sums[n] = sum;
            else
                a->y[row * a->y_stride + n] = (float)((double)sum * unit);
        }
        if (sums != NULL)
            kern_count_bad(&sums[w->n_out], n_bad);
        else
            kern_mark_bad(&a->bad[row], n_bad);
    }
}

/* Quantizes one group; returns its scale. */
static float quantize_group(const float *x, size_t n, int8_t *codes, int32_t *sum)
{
    uint32_t max = 0;
    for (size_t i = 0; i < n; i++) {
        const uint32_t magnitude = f32_bits(x[i]) & 0x7FFFFFFFu;
        max = magnitude > max ? magnitude : max;
    }
    float factor;
    const float scale = kern_quantize_scale(max, &factor);
    *sum = 0;
    for (size_t i = 0; i < n; i++) {
        codes[i] = factor == 0.0f ? 0 : (int8_t)lrintf(x[i] * factor);
        *sum += codes[i];
    }
    return scale;
}

void k_quantize_row_ref(const float *x, size_t n, const struct quant_rows *out, size_t row)
{
    int8_t *codes = out->codes + row * out->n_groups * out->group;
    for (size_t g = 0; g < out->n_groups; g++) {
        const size_t at = g * out->group, left = n - at;
        const size_t length = left < out->group ? left : out->group, i = row * out->n_groups + g;
        out->scales[i] = quantize_group(x + at, length, codes + at, &out->sums[i]);
        for (size_t k = length; k < out->group; k++) codes[at + k] = 0;
    }
}

void fill_linear_quant_ref(struct kern_table *t)
{
    static const enum quant_kind kinds[] = {QUANT_INT8, QUANT_INT4, QUANT_FP8, QUANT_MXFP4};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        t->linear_quant[kinds[i]] = k_linear_quant_ref;
        t->linear_quant_leaf[kinds[i]] = k_linear_quant_leaf_ref;
    }
    t->quantize_row = k_quantize_row_ref;
}

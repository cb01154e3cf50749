/* The linear with quantized weights in its simplest form, one output at a time, and the
 * quantization of activations. */
#include "kernels/ref/ref.h"

#include "kernels/quant_body.h"

#include <math.h>

enum { MOST_ROWS = 16 /* rows for which a group is unpacked once, the slowest step */ };

/* One output's sums for the rows [row0, row0 + n_rows): an fma chain over the inputs each. */
struct chains {
    const struct linear_args *a;
    const struct packed *w;
    size_t n, row0, n_rows;
    float acc[MOST_ROWS];
};

/* Returns a sum of QUANT_CODE_ALIGN products. The constant length lets the compiler use vectors. */
REF_INLINE int32_t dot(const int16_t *v, const int8_t *x)
{
    int32_t sum = 0;
    for (size_t k = 0; k < QUANT_CODE_ALIGN; k++) sum += v[k] * x[k];
    return sum;
}

/* Continues the chains by group g, with integer sums. */
REF_INLINE void add_group(struct chains *c, size_t g)
{
    const struct quant_rows *q = c->a->xq;
    const size_t k0 = g * q->group, left = c->w->n_in - k0;
    const size_t length = left < q->group ? left : q->group;
    int16_t v[QUANT_GROUP_MAX];
    for (size_t k = 0; k < length; k++) v[k] = (int16_t)kern_quant_int(c->w, c->n, k0 + k);
    for (size_t k = length; k < q->group; k++) v[k] = 0;
    for (size_t i = 0; i < c->n_rows; i++) {
        const size_t at = (c->row0 + i) * q->n_groups + g;
        const int8_t *x = q->codes + at * q->group;
        int32_t sum = 0;
        for (size_t k = 0; k < q->group; k += QUANT_CODE_ALIGN) sum += dot(v + k, x + k);
        const float scale = kern_quant_scale(c->w, c->n, g) * q->scales[at];
        c->acc[i] = fmaf((float)sum, scale, c->acc[i]);
    }
}

/* Continues the chains by the inputs [k0, k1), at most QUANT_GROUP_MAX, with weights as floats. */
REF_INLINE void add_floats(struct chains *c, size_t k0, size_t k1)
{
    float v[QUANT_GROUP_MAX];
    for (size_t k = k0; k < k1; k++) v[k - k0] = kern_quant_float(c->w, c->n, k);
    for (size_t i = 0; i < c->n_rows; i++) {
        const float *x = c->a->x + (c->row0 + i) * c->a->x_stride;
        float acc = c->acc[i];
        for (size_t k = k0; k < k1; k++) acc = fmaf(x[k], v[k - k0], acc);
        c->acc[i] = acc;
    }
}

/* Computes the chains over the inputs [k0, k1). */
REF_INLINE void run_chains(struct chains *c, size_t k0, size_t k1)
{
    const size_t group = quant_kernel_group(c->w->quant);
    for (size_t i = 0; i < c->n_rows; i++) c->acc[i] = 0.0f;
    if (c->a->xq == NULL || c->w->quant.kind == QUANT_FP8) {
        for (size_t k = k0; k < k1; k += QUANT_GROUP_MAX)
            add_floats(c, k, k1 - k < QUANT_GROUP_MAX ? k1 : k + QUANT_GROUP_MAX);
    } else {
        for (size_t g = k0 / group; g < (k1 + group - 1) / group; g++) add_group(c, g);
    }
}

static inline size_t outputs_end(const struct packed *w, size_t panel1)
{
    const size_t end = panel1 * PANEL_COLUMNS;
    return end < w->n_out ? end : w->n_out;
}

/* Returns the chains of the slice's next rows, from `row` on, counted from the group's first row.
 * The caller sets their output n. */
static inline struct chains chains_at(const struct linear_args *a, const struct linear_slice *s,
                                      size_t row)
{
    const struct linear_group *g = &a->groups[s->group];
    const size_t left = s->row1 - row;
    return (struct chains){
        .a = a, .w = g->w, .row0 = g->row0 + row, .n_rows = left < MOST_ROWS ? left : MOST_ROWS};
}

REF_CLONES void k_linear_quant_ref(const struct linear_args *a, const struct linear_slice *s)
{
    for (size_t row = s->row0; row < s->row1; row += MOST_ROWS) {
        struct chains c = chains_at(a, s, row);
        float *y = a->y + (c.row0 - a->y_row) * a->y_stride;
        for (c.n = s->panel0 * PANEL_COLUMNS; c.n < outputs_end(c.w, s->panel1); c.n++) {
            run_chains(&c, 0, c.w->n_in);
            for (size_t i = 0; i < c.n_rows; i++)
                y[i * a->y_stride + (c.n - a->y_panel * PANEL_COLUMNS)] = c.acc[i];
        }
    }
}

/* Adds the leaves of output c->n on the grid, and counts those that are too large. */
REF_INLINE void add_leaves(struct chains *c, int64_t *sums, int64_t *n_bad)
{
    const struct packed *w = c->w;
    const float limit = kern_grid_limit(w->grid_bits);
    const double scale = kern_pow2((int)w->grid_bits);
    for (size_t i = 0; i < c->n_rows; i++) sums[i] = 0;
    for (size_t k0 = 0; k0 < w->n_in; k0 += w->leaf) {
        run_chains(c, k0, w->n_in - k0 > w->leaf ? k0 + w->leaf : w->n_in);
        for (size_t i = 0; i < c->n_rows; i++) {
            if (fabsf(c->acc[i]) < limit)
                sums[i] += (int64_t)llrint((double)c->acc[i] * scale);
            else
                n_bad[i]++;
        }
    }
}

REF_CLONES void k_linear_quant_leaf_ref(const struct linear_args *a, const struct linear_slice *s)
{
    const struct packed *w = a->groups[s->group].w;
    const size_t sums_stride = (size_t)w->n_out + 1;
    const double unit = kern_pow2(-(int)w->grid_bits);
    for (size_t row = s->row0; row < s->row1; row += MOST_ROWS) {
        struct chains c = chains_at(a, s, row);
        int64_t sums[MOST_ROWS], n_bad[MOST_ROWS] = {0};
        for (c.n = s->panel0 * PANEL_COLUMNS; c.n < outputs_end(w, s->panel1); c.n++) {
            add_leaves(&c, sums, n_bad);
            for (size_t i = 0; i < c.n_rows; i++) {
                if (a->sums != NULL)
                    a->sums[(c.row0 + i) * sums_stride + c.n] = sums[i];
                else
                    a->y[(c.row0 + i) * a->y_stride + c.n] = (float)((double)sums[i] * unit);
            }
        }
        for (size_t i = 0; i < c.n_rows; i++) {
            if (a->sums != NULL)
                kern_count_bad(&a->sums[(c.row0 + i) * sums_stride + w->n_out], n_bad[i]);
            else
                kern_mark_bad(&a->bad[c.row0 + i], n_bad[i]);
        }
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

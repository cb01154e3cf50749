/* The linear in its simplest form. An output (with leaves: each leaf of it) is a chain of fmaf
 * calls over the inputs in ascending order, from +0; every other kernel must give the same bits.
 * The sixteen outputs of a panel (packed tile) are computed together because they are neighbours in
 * memory. The compiler may turn fmaf into an FMA instruction: both round correctly. */
#include "kernels/ref/ref.h"

#include "kernels/body.h"

#include <math.h>

/* Computes a panel's chains over the inputs x [n], each from +0. The weights are elements [first,
 * first + 16 n) of `data`. */
REF_INLINE void chains(enum dtype t, const void *data, size_t first, const float *x, size_t n,
                       float acc[PANEL_COLUMNS])
{
    for (size_t j = 0; j < PANEL_COLUMNS; j++) acc[j] = 0.0f;
    for (size_t k = 0; k < n; k++) {
        const size_t i = first + k * PANEL_COLUMNS;
        for (size_t j = 0; j < PANEL_COLUMNS; j++) {
            acc[j] = fmaf(x[k], kern_load(t, data, i + j), acc[j]);
        }
    }
}

/* Returns the index in the weight's data of input k of a panel. */
static inline size_t element_of(const struct packed *w, size_t panel, size_t k)
{
    return (panel * w->n_in + k) * PANEL_COLUMNS;
}

/* Returns the number of outputs that a panel really has; the last panel may be padded. */
static inline size_t outputs_of(const struct packed *w, size_t panel)
{
    const size_t left = w->n_out - panel * PANEL_COLUMNS;
    return left < PANEL_COLUMNS ? left : PANEL_COLUMNS;
}

REF_INLINE void linear(enum dtype t, const struct linear_args *a, const struct linear_slice *s)
{
    const struct linear_group *g = &a->groups[s->group];
    for (size_t row = g->row0 + s->row0; row < g->row0 + s->row1; row++) {
        for (size_t panel = s->panel0; panel < s->panel1; panel++) {
            float acc[PANEL_COLUMNS];
            chains(t, g->w->data, element_of(g->w, panel, 0), a->x + row * a->x_stride, g->w->n_in,
                   acc);
            float *y = a->y + (row - a->y_row) * a->y_stride + (panel - a->y_panel) * PANEL_COLUMNS;
            for (size_t j = 0; j < outputs_of(g->w, panel); j++) y[j] = acc[j];
        }
    }
}

/* Adds one leaf's partial sums to the integer sums. Returns how many real outputs did not fit the
 * grid. */
static inline int64_t add_leaf(const struct packed *w, size_t panel, const float acc[PANEL_COLUMNS],
                               int64_t *sums)
{
    const float limit = kern_grid_limit(w->grid_bits);
    const double scale = kern_pow2((int)w->grid_bits);
    int64_t n_bad = 0;
    for (size_t j = 0; j < outputs_of(w, panel); j++) {
        if (fabsf(acc[j]) < limit)
            sums[j] += (int64_t)llrint((double)acc[j] * scale);
        else
            n_bad++;
    }
    return n_bad;
}

/* Sums the leaves of one panel. Returns how many partial sums did not fit the grid. */
REF_INLINE int64_t add_leaves(enum dtype t, const struct packed *w, size_t panel, const float *x,
                              int64_t *sums)
{
    int64_t n_bad = 0;
    for (size_t j = 0; j < outputs_of(w, panel); j++) sums[j] = 0;
    for (size_t k0 = 0; k0 < w->n_in; k0 += w->leaf) {
        const size_t k1 = k0 + w->leaf < w->n_in ? k0 + w->leaf : w->n_in;
        float acc[PANEL_COLUMNS];
        chains(t, w->data, element_of(w, panel, k0), x + k0, k1 - k0, acc);
        n_bad += add_leaf(w, panel, acc, sums);
    }
    return n_bad;
}

REF_INLINE void linear_leaf(enum dtype t, const struct linear_args *a, const struct linear_slice *s)
{
    const struct linear_group *g = &a->groups[s->group];
    const struct packed *w = g->w;
    const size_t n_out = w->n_out;
    const double unit = kern_pow2(-(int)w->grid_bits);
    for (size_t row = g->row0 + s->row0; row < g->row0 + s->row1; row++) {
        int64_t n_bad = 0;
        for (size_t panel = s->panel0; panel < s->panel1; panel++) {
            const size_t at = panel * PANEL_COLUMNS;
            int64_t own[PANEL_COLUMNS];
            int64_t *sums = a->sums != NULL ? a->sums + row * (n_out + 1) + at : own;
            n_bad += add_leaves(t, w, panel, a->x + row * a->x_stride, sums);
            for (size_t j = 0; a->sums == NULL && j < outputs_of(w, panel); j++)
                a->y[row * a->y_stride + at + j] = (float)((double)sums[j] * unit);
        }
        if (a->sums != NULL)
            kern_count_bad(&a->sums[row * (n_out + 1) + n_out], n_bad);
        else
            kern_mark_bad(&a->bad[row], n_bad);
    }
}

#define LINEAR_REF(name, type)                                                                     \
    REF_CLONES void k_linear_##name##_ref(const struct linear_args *a,                             \
                                          const struct linear_slice *s)                            \
    {                                                                                              \
        linear(type, a, s);                                                                        \
    }                                                                                              \
    REF_CLONES void k_linear_leaf_##name##_ref(const struct linear_args *a,                        \
                                               const struct linear_slice *s)                       \
    {                                                                                              \
        linear_leaf(type, a, s);                                                                   \
    }
LINEAR_REF(f32, DTYPE_F32)
LINEAR_REF(f16, DTYPE_F16)
LINEAR_REF(bf16, DTYPE_BF16)

void fill_linear_ref(struct kern_table *t)
{
    t->linear[DTYPE_F32] = k_linear_f32_ref;
    t->linear[DTYPE_F16] = k_linear_f16_ref;
    t->linear[DTYPE_BF16] = k_linear_bf16_ref;
    t->linear_leaf[DTYPE_F32] = k_linear_leaf_f32_ref;
    t->linear_leaf[DTYPE_F16] = k_linear_leaf_f16_ref;
    t->linear_leaf[DTYPE_BF16] = k_linear_leaf_bf16_ref;
}

/* The linear op, one output at a time: the chain that every other kernel must reproduce. */
#include "kernels/ref/ref.h"

#include "kernels/body.h"

#include <math.h>

/* One output of a group: x points at its row's inputs, column n of the weight. */
struct output {
    const struct packed *w;
    const float *x;
    size_t n;
};

/* The fma chain over inputs [k0, k1), from +0. */
static inline float chain(enum dtype t, struct output o, size_t k0, size_t k1)
{
    const size_t panel = o.n / PANEL_COLUMNS * o.w->n_in;
    float acc = 0.0f;
    for (size_t k = k0; k < k1; k++) {
        const size_t i = (panel + k) * PANEL_COLUMNS + o.n % PANEL_COLUMNS;
        acc = fmaf(o.x[k], kern_load(t, o.w->data, i), acc);
    }
    return acc;
}

/* The integer sum over all leaves; *n_bad grows by the leaves that do not fit the grid. */
static inline int64_t leaf_sum(enum dtype t, struct output o, int64_t *n_bad)
{
    const float limit = kern_grid_limit(o.w->grid_bits);
    const double scale = kern_pow2((int)o.w->grid_bits);
    int64_t sum = 0;
    for (size_t k0 = 0; k0 < o.w->n_in; k0 += o.w->leaf) {
        const size_t left = o.w->n_in - k0;
        const float p = chain(t, o, k0, k0 + (left < o.w->leaf ? left : o.w->leaf));
        if (fabsf(p) < limit)
            sum += (int64_t)llrint((double)p * scale);
        else
            (*n_bad)++;
    }
    return sum;
}

static inline void linear(enum dtype t, const struct linear_args *a, size_t group, size_t panel0,
                          size_t panel1, size_t row0, size_t row1)
{
    const struct linear_group *g = &a->groups[group];
    const size_t n0 = panel0 * PANEL_COLUMNS, n_panels = panel1 * PANEL_COLUMNS;
    const size_t n1 = n_panels < g->w->n_out ? n_panels : g->w->n_out;
    for (size_t row = g->row0 + row0; row < g->row0 + row1; row++) {
        for (size_t n = n0; n < n1; n++) {
            const struct output o = {g->w, a->x + row * a->x_stride, n};
            a->y[row * a->y_stride + n] = chain(t, o, 0, g->w->n_in);
        }
    }
}

static inline void linear_leaf(enum dtype t, const struct linear_args *a, size_t group,
                               size_t panel0, size_t panel1, size_t row0, size_t row1)
{
    const struct linear_group *g = &a->groups[group];
    const size_t n0 = panel0 * PANEL_COLUMNS, n_panels = panel1 * PANEL_COLUMNS;
    const size_t n1 = n_panels < g->w->n_out ? n_panels : g->w->n_out;
    for (size_t row = g->row0 + row0; row < g->row0 + row1; row++) {
        int64_t *sums = a->sums + row * ((size_t)g->w->n_out + 1);
        int64_t n_bad = 0;
        for (size_t n = n0; n < n1; n++) {
            const struct output o = {g->w, a->x + row * a->x_stride, n};
            sums[n] = leaf_sum(t, o, &n_bad);
        }
        kern_count_bad(&sums[g->w->n_out], n_bad);
    }
}

#define LINEAR_REF(name, type)                                                                     \
    void k_linear_##name##_ref(const struct linear_args *a, size_t group, size_t panel0,           \
                               size_t panel1, size_t row0, size_t row1)                            \
    {                                                                                              \
        linear(type, a, group, panel0, panel1, row0, row1);                                        \
    }                                                                                              \
    void k_linear_leaf_##name##_ref(const struct linear_args *a, size_t group, size_t panel0,      \
                                    size_t panel1, size_t row0, size_t row1)                       \
    {                                                                                              \
        linear_leaf(type, a, group, panel0, panel1, row0, row1);                                   \
    }
LINEAR_REF(f32, DTYPE_F32)
LINEAR_REF(f16, DTYPE_F16)
LINEAR_REF(bf16, DTYPE_BF16)

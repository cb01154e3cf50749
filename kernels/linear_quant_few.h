/* Linears with quantized weights and int8 activations, for few rows: one panel (packed tile) after
 * the other, read from the packed weights without unpacking them to memory. Also chooses between
 * few and many rows (linear_quant_body.h). The instruction set defines set_few, as it defines the
 * functions that linear_quant_body.h declares. */
#ifndef SHOAL_KERNELS_LINEAR_QUANT_FEW_H
#define SHOAL_KERNELS_LINEAR_QUANT_FEW_H

#include "kernels/linear_quant_body.h"

enum {
    QUANT_CODES_AHEAD = 3072, /* prefetch distance in the quantized weights, in bytes: as many as a
                                 core can have in flight and its first-level cache holds */
    QUANT_SCALES_AHEAD = 512, /* prefetch distance in the scales, in bytes */
};

/* The operands of the chains of a few rows and one panel. */
struct quant_few {
    struct quant_format format;
    size_t n_rows, n_groups, group;
    const int8_t *x; /* x, x_scales, sums: of the first row's first group */
    size_t x_stride;
    const float *x_scales; /* q_stride to the next row, as for sums */
    const int32_t *sums;
    size_t q_stride;
    const uint8_t *w;
    const void *scales;
    size_t scale; /* index of the first group's scales in `scales` and `zeros` */
    const uint8_t *zeros;
    const char *scales_ahead; /* scales to prefetch meanwhile, scales_step bytes in each group */
    size_t scales_step;
};

/* Defined by the instruction set: acc[row][16] = the chains of n_rows rows, starting at +0. n_rows
 * is constant and at most SET_FEW_ROWS. Slices of up to SET_FEW_MOST rows (SOURCE_BYTES:
 * SET_FEW_BYTES_MOST, which is no smaller) are multiplied this way, in several passes. */
ALWAYS_INLINE void set_few(enum quant_source source, bool has_zeros, size_t n_rows,
                           const struct quant_few *t, float (*acc)[PANEL_COLUMNS]);

/* Sums of a few rows over the leaves of a panel. */
struct quant_few_sums {
    int64_t sums[SET_FEW_ROWS][PANEL_COLUMNS] __attribute__((aligned(64)));
    int64_t n_bad[SET_FEW_ROWS];
};

static inline struct quant_few quant_few_of(const struct quant_slice *s, size_t panel)
{
    const struct packed *w = s->w;
    const struct quant_rows *q = s->xq;
    const size_t scales_step = PANEL_COLUMNS * kern_quant_scale_bytes(w->quant);
    const size_t scale = kern_quant_scale_index(w, panel * PANEL_COLUMNS, 0);
    return (struct quant_few){
        .format = w->quant,
        .n_rows = s->n_rows,
        .group = q->group,
        .x = q->codes + s->row * q->n_groups * q->group,
        .x_stride = q->n_groups * q->group,
        .x_scales = q->scales + s->row * q->n_groups,
        .sums = q->sums + s->row * q->n_groups,
        .q_stride = q->n_groups,
        .w = (const uint8_t *)w->data + panel * kern_quant_panel_bytes(w->quant, w->n_in),
        .scales = w->scales,
        .scale = scale,
        .zeros = w->zeros,
        .scales_step = scales_step,
        .scales_ahead =
            (const char *)w->scales + scale / PANEL_COLUMNS * scales_step + QUANT_SCALES_AHEAD};
}

/* Defines one function for all numbers of rows; cases beyond SET_FEW_ROWS compile to nothing. */
#define QUANT_FEW(name, source, has_zeros)                                                         \
    static void quant_few_##name(const struct quant_few *t, float(*acc)[PANEL_COLUMNS])            \
    {                                                                                              \
        switch (t->n_rows) {                                                                       \
            QUANT_FEW_CASE(1, source, has_zeros)                                                   \
            QUANT_FEW_CASE(2, source, has_zeros)                                                   \
            QUANT_FEW_CASE(3, source, has_zeros)                                                   \
            QUANT_FEW_CASE(4, source, has_zeros)                                                   \
            QUANT_FEW_CASE(5, source, has_zeros)                                                   \
            QUANT_FEW_CASE(6, source, has_zeros)                                                   \
            QUANT_FEW_CASE(7, source, has_zeros)                                                   \
            QUANT_FEW_CASE(8, source, has_zeros)                                                   \
        }                                                                                          \
    }
#define QUANT_FEW_CASE(n, source, has_zeros)                                                       \
    case n:                                                                                        \
        if (n <= SET_FEW_ROWS) set_few(source, has_zeros, n, t, acc);                              \
        break;
QUANT_FEW(bytes, SOURCE_BYTES, false)
QUANT_FEW(bytes_zeros, SOURCE_BYTES, true)
QUANT_FEW(int4, SOURCE_INT4, false)
QUANT_FEW(int4_zeros, SOURCE_INT4, true)
QUANT_FEW(mxfp4, SOURCE_MXFP4, false)
#undef QUANT_FEW
#undef QUANT_FEW_CASE

typedef void quant_few_fn(const struct quant_few *t, float (*acc)[PANEL_COLUMNS]);

static quant_few_fn *quant_few_for(struct quant_format f)
{
    if (f.kind == QUANT_MXFP4) return quant_few_mxfp4;
    if (f.kind == QUANT_INT4) return f.has_zeros ? quant_few_int4_zeros : quant_few_int4;
    return f.has_zeros ? quant_few_bytes_zeros : quant_few_bytes;
}

/* Computes few rows of one panel. Quantized values and scales are two streams from memory, and
 * memory limits the speed. */
static void quant_few_panel(const struct quant_slice *s, size_t panel)
{
    const size_t n_outputs = quant_outputs_of(s->w, panel);
    float acc[SET_FEW_ROWS][PANEL_COLUMNS] __attribute__((aligned(64)));
    struct quant_few t = quant_few_of(s, panel);
    t.n_groups = s->xq->n_groups;
    quant_few_for(t.format)(&t, acc);
    for (size_t r = 0; r < s->n_rows; r++) QUANT_PUT(quant_y_at(s, r, panel), acc[r], n_outputs);
}

/* Writes the sums of all leaves of a panel to their destination. */
static inline void quant_few_put(const struct quant_slice *s, size_t panel,
                                 const struct quant_few_sums *l)
{
    const size_t n_outputs = quant_outputs_of(s->w, panel);
    for (size_t r = 0; r < s->n_rows; r++) {
        if (s->sums == NULL)
            quant_put_rounded(l->sums[r], 1, n_outputs, s->w->grid_bits, quant_y_at(s, r, panel));
        else
            QUANT_PUT(quant_sums_at(s, r, panel), l->sums[r], n_outputs);
    }
    quant_count_bad(s, l->n_bad);
}

/* Computes few rows of one panel of a weight with leaves. A leaf may have only a few groups, so the
 * work between two leaves matters. */
static void quant_few_panel_leaf(const struct quant_slice *s, size_t panel)
{
    const struct packed *w = s->w;
    const uint32_t bits = w->grid_bits;
    const size_t n_rows = s->n_rows, n_groups = s->xq->n_groups,
                 leaf_groups = w->leaf / s->xq->group;
    const size_t group_bytes = kern_quant_panel_bytes(w->quant, s->xq->group);
    float acc[SET_FEW_ROWS][PANEL_COLUMNS] __attribute__((aligned(64)));
    struct quant_few_sums l;
    struct quant_few t = quant_few_of(s, panel);
    quant_few_fn *const chains = quant_few_for(t.format);
    const struct quant_leaf leaf = quant_leaf_start(s);
    for (size_t r = 0; r < n_rows; r++) {
        memcpy(l.sums[r], leaf.start, sizeof leaf.start);
        l.n_bad[r] = 0;
    }
    size_t g = 0;
    do {
        t.n_groups = quant_min(leaf_groups, n_groups - g);
        chains(&t, acc);
        for (size_t r = 0; r < n_rows; r++) {
            if (!set_grid_fits(acc[r], PANEL_COLUMNS, bits))
                l.n_bad[r] += quant_drop(acc[r], quant_outputs_of(w, panel), bits);
            set_grid_add(acc[r], bits, l.sums[r], l.sums[r]);
        }
        g += t.n_groups;
        t.x += t.n_groups * t.group;
        t.x_scales += t.n_groups;
        t.sums += t.n_groups;
        t.w += t.n_groups * group_bytes;
        t.scale += t.n_groups * PANEL_COLUMNS;
        t.scales_ahead += t.n_groups * t.scales_step;
    } while (g < n_groups);
    quant_few_put(s, panel, &l);
}

/* Computes few rows, SET_FEW_ROWS at a time; later passes over a panel find it in a cache. */
static inline void quant_linear_few(bool leafy, const struct linear_args *a,
                                    const struct linear_slice *whole)
{
    const struct linear_group *g = &a->groups[whole->group];
    struct quant_slice s[(SET_FEW_BYTES_MOST + SET_FEW_ROWS - 1) / SET_FEW_ROWS];
    const size_t n_rows = whole->row1 - whole->row0, n = (n_rows + SET_FEW_ROWS - 1) / SET_FEW_ROWS;
    for (size_t i = 0; i < n; i++) {
        const size_t begin = n_rows * i / n, end = n_rows * (i + 1) / n;
        s[i] = quant_slice_of(leafy, a, g, whole->row0 + begin, end - begin);
    }
    for (size_t p = whole->panel0; p < whole->panel1; p++)
        for (size_t i = 0; i < n; i++) (leafy ? quant_few_panel_leaf : quant_few_panel)(&s[i], p);
}

static inline void quant_linear(bool leafy, const struct linear_args *a,
                                const struct linear_slice *s)
{
    const struct packed *w = a->groups[s->group].w;
    assert(a->xq->group == quant_kernel_group(w->quant));
    const bool nibbles = quant_is_nibbles(w->quant.kind);
    if (s->row1 - s->row0 <= (nibbles ? SET_FEW_MOST : SET_FEW_BYTES_MOST)) {
        quant_linear_few(leafy, a, s);
        return;
    }
    quant_linear_many(leafy ? quant_panels_leaf : quant_panels, QUANT_PANELS, leafy, a, s);
}

#endif

/* The way of few rows through a linear with quantized weights and int8 activations: panel after
 * panel, straight from the packed weights; and the choice between few rows and many
 * (linear_quant_body.h), whose rules hold here too. */
#ifndef SHOAL_KERNELS_LINEAR_QUANT_FEW_H
#define SHOAL_KERNELS_LINEAR_QUANT_FEW_H

#include "kernels/linear_quant_body.h"

enum {
    QUANT_CODES_AHEAD = 3072, /* bytes of codes on their way: what a core can wait for at once, and
                                 a first-level cache holds */
    QUANT_SCALES_AHEAD = 512, /* the same of scales */
};

/* What the chains of a few rows and one panel read, straight from the packed weight. */
struct quant_few {
    struct quant_format format;
    size_t n_rows, n_groups, group;
    const int8_t *x; /* codes, scales and sums of the first row's first group */
    size_t x_stride;
    const float *x_scales; /* q_stride to the next row's, as sums */
    const int32_t *sums;
    size_t q_stride;
    const uint8_t *w;
    const void *scales;
    size_t scale; /* index of the first group's in scales and zeros */
    const uint8_t *zeros;
    const char *scales_ahead; /* to fetch meanwhile, scales_step bytes in each group */
    size_t scales_step;
};

/* To be defined by the set: the chains of n_rows (constant, at most SET_FEW_ROWS) rows, from +0:
 * acc[row][16]; more rows are multiplied so up to SET_FEW_MOST, of whole bytes SET_FEW_BYTES_MOST
 * (the larger one). */
ALWAYS_INLINE void set_few(enum quant_source source, bool has_zeros, size_t n_rows,
                           const struct quant_few *t, float (*acc)[PANEL_COLUMNS]);

/* What few rows gather over the leaves of a panel. */
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

/* One set of instructions for each number of rows; those beyond the set's most are no code. */
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

static void quant_few(const struct quant_few *t, float (*acc)[PANEL_COLUMNS])
{
    if (t->format.kind == QUANT_MXFP4)
        quant_few_mxfp4(t, acc);
    else if (t->format.kind == QUANT_INT4)
        (t->format.has_zeros ? quant_few_int4_zeros : quant_few_int4)(t, acc);
    else
        (t->format.has_zeros ? quant_few_bytes_zeros : quant_few_bytes)(t, acc);
}

/* Few rows, one panel after the other: codes and scales are two streams from end to end, and memory
 * is all that limits. */
static void quant_few_panel(const struct quant_slice *s, size_t panel)
{
    const size_t n_outputs = quant_outputs_of(s->w, panel);
    float acc[SET_FEW_ROWS][PANEL_COLUMNS] __attribute__((aligned(64)));
    struct quant_few t = quant_few_of(s, panel);
    t.n_groups = s->xq->n_groups;
    quant_few(&t, acc);
    for (size_t r = 0; r < s->n_rows; r++) QUANT_PUT(quant_y_at(s, r, panel), acc[r], n_outputs);
}

static void quant_few_panel_leaf(const struct quant_slice *s, size_t panel)
{
    const struct packed *w = s->w;
    const size_t group_bytes = kern_quant_panel_bytes(w->quant, s->xq->group);
    float acc[SET_FEW_ROWS][PANEL_COLUMNS] __attribute__((aligned(64)));
    struct quant_few_sums l;
    struct quant_few t = quant_few_of(s, panel);
    struct quant_leaf leaf = quant_leaf_start(s);
    memset(l.n_bad, 0, s->n_rows * sizeof l.n_bad[0]);
    for (;; quant_leaf_next(s, &leaf)) {
        t.n_groups = leaf.n_groups;
        quant_few(&t, acc);
        quant_leaf_end(s, &leaf, panel, 1, acc[0], PANEL_COLUMNS, l.sums[0], PANEL_COLUMNS,
                       l.n_bad);
        if (leaf.is_last) break;
        t.x += t.n_groups * t.group;
        t.x_scales += t.n_groups;
        t.sums += t.n_groups;
        t.w += t.n_groups * group_bytes;
        t.scale += t.n_groups * PANEL_COLUMNS;
        t.scales_ahead += t.n_groups * t.scales_step;
    }
    quant_count_bad(s, l.n_bad);
}

/* Few rows [row0, row1): a panel's later passes find its codes in a cache. */
static inline void quant_linear_few(bool leafy, const struct linear_args *a,
                                    const struct linear_group *g, size_t panel0, size_t panel1,
                                    size_t row0, size_t row1)
{
    struct quant_slice s[(SET_FEW_BYTES_MOST + SET_FEW_ROWS - 1) / SET_FEW_ROWS];
    const size_t n_rows = row1 - row0, n = (n_rows + SET_FEW_ROWS - 1) / SET_FEW_ROWS;
    for (size_t i = 0; i < n; i++) {
        const size_t begin = n_rows * i / n, end = n_rows * (i + 1) / n;
        s[i] = quant_slice_of(leafy, a, g, row0 + begin, end - begin);
    }
    for (size_t p = panel0; p < panel1; p++)
        for (size_t i = 0; i < n; i++) (leafy ? quant_few_panel_leaf : quant_few_panel)(&s[i], p);
}

/* Rows [row0, row1) of a group, panels [panel0, panel1). */
static inline void quant_linear(bool leafy, const struct linear_args *a, size_t group,
                                size_t panel0, size_t panel1, size_t row0, size_t row1)
{
    const struct linear_group *g = &a->groups[group];
    assert(a->xq->group == quant_kernel_group(g->w->quant));
    const bool nibbles = quant_is_nibbles(g->w->quant.kind);
    if (row1 - row0 <= (nibbles ? SET_FEW_MOST : SET_FEW_BYTES_MOST)) {
        quant_linear_few(leafy, a, g, panel0, panel1, row0, row1);
        return;
    }
    quant_linear_many(leafy ? quant_panels_leaf : quant_panels, QUANT_PANELS, leafy, a, g, panel0,
                      panel1, row0, row1);
}

#endif

/* Few rows times fp8 weights. Reading the weights limits them, so weights become floats in
 * registers, once for all rows of a tile:
 *
 *     64 bytes of a panel (packed tile)           4 inputs of 16 outputs
 *       fp8_quad                                  4 vectors: values times 2^-120
 *         times the group's scales times 2^120    4 vectors: weights, rounded once
 *           fma with the inputs of each row
 *
 * The weights are exact unless a value is NaN or a scale is 2^8 or more. The end of a tile finds
 * both; then nothing is stored, and the tile's panels go through the scratch memory. Included by
 * linear_body.h only. The instruction set's fp8.h defines struct fp8_seen and its functions. */
#ifndef SHOAL_KERNELS_LINEAR_FP8_FEW_H
#define SHOAL_KERNELS_LINEAR_FP8_FEW_H

#include "kernels/quant_body.h"

enum {
    FP8_LINE = QUANT_QUAD * PANEL_COLUMNS, /* bytes of four inputs of a panel: a cache line */
    FP8_SCALES_AHEAD = 4 * LINE_BYTES,     /* prefetch distance of a panel's scales */
    FP8_ROWS_MOST = 3 * FEW_ROWS,          /* more rows are faster through the scratch memory */
};

/* A tile's place in one group of inputs, and the largest values and scales that it has read. */
struct fp8_group {
    const float *x; /* [n_rows, x_stride] from the next input */
    size_t x_stride;
    const uint8_t *codes; /* of the first panel from the next input, */
    size_t apart;         /* so many bytes to the next panel's */
    struct v16 scales[FEW_PANELS];
    struct fp8_seen seen;
};

/* The next four inputs of every chain; of the last quad only n. */
ALWAYS_INLINE void fp8_step(size_t n_rows, size_t n_panels, size_t n, struct fp8_group *g,
                            struct v16 *a)
{
    UNROLL(4)
    for (size_t p = 0; p < n_panels; p++) {
        struct v16 v[QUANT_QUAD];
        fp8_quad(g->codes + p * g->apart, v, &g->seen);
        UNROLL(4)
        for (size_t j = 0; j < n; j++) {
            const struct v16 w = v16_mul(v[j], g->scales[p]);
            UNROLL(16)
            for (size_t r = 0; r < n_rows; r++) {
                const float xk = g->x[r * g->x_stride + j];
                a[r * n_panels + p] = v16_fma(xk, w, a[r * n_panels + p]);
            }
        }
    }
    g->x += QUANT_QUAD;
    g->codes += FP8_LINE;
}

/* c[row][panel] = the chains continued over n_k inputs of a group. */
ALWAYS_INLINE void fp8_chains(size_t n_rows, size_t n_panels, size_t n_k, struct fp8_group *g,
                              struct v16 *c)
{
    const size_t ahead = n_panels > FEW_STREAMS ? AHEAD_BYTES / n_panels : AHEAD_BYTES;
    struct v16 a[TILE];
    UNROLL(32)
    for (size_t i = 0; i < n_rows * n_panels; i++) a[i] = c[i];
    for (size_t k = 0; k + QUANT_QUAD <= n_k; k += QUANT_QUAD) {
        UNROLL(4)
        for (size_t p = 0; p < n_panels; p++)
            _mm_prefetch(g->codes + p * g->apart + ahead, _MM_HINT_T0);
        fp8_step(n_rows, n_panels, QUANT_QUAD, g, a);
    }
    if (n_k % QUANT_QUAD != 0) fp8_step(n_rows, n_panels, n_k % QUANT_QUAD, g, a);
    UNROLL(32)
    for (size_t i = 0; i < n_rows * n_panels; i++) c[i] = a[i];
}

/* All rows of the slice (n_rows) in n_panels panels, and the largest values and scales that were
 * read. Both numbers are constant. */
struct fp8_tile {
    const struct slice *s;
    size_t panel, apart; /* as struct streams */
    struct fp8_seen seen;
};

/* c[row][panel] = the chains continued over inputs [k, end), group by group. */
ALWAYS_INLINE void fp8_groups(size_t n_rows, size_t n_panels, size_t k, size_t end,
                              struct fp8_tile *t, struct v16 *c)
{
    const struct packed *w = t->s->w;
    const size_t group = quant_kernel_group(w->quant),
                 scale_bytes = kern_quant_scale_bytes(w->quant);
    const size_t panel_bytes = kern_quant_panel_bytes(w->quant, w->n_in);
    struct fp8_group g = {.x = t->s->x + k,
                          .x_stride = t->s->x_stride,
                          .codes =
                              (const uint8_t *)w->data + t->panel * panel_bytes + k * PANEL_COLUMNS,
                          .apart = t->apart * panel_bytes,
                          .seen = t->seen};
    for (size_t n; k < end; k += n) {
        n = min_size(group - k % group, end - k);
        UNROLL(4)
        for (size_t p = 0; p < n_panels; p++) {
            const size_t at =
                kern_quant_scale_index(w, (t->panel + p * t->apart) * PANEL_COLUMNS, k / group);
            g.scales[p] = fp8_scales(w->quant, w->scales, at, &g.seen);
            _mm_prefetch((const char *)w->scales + at * scale_bytes + FP8_SCALES_AHEAD,
                         _MM_HINT_T0);
        }
        fp8_chains(n_rows, n_panels, n, &g, c);
    }
    t->seen = g.seen;
}

/* Computes the outputs of a tile. Returns false, and stores nothing, when a value was NaN or a
 * scale too large. */
ALWAYS_INLINE bool fp8_tile(bool leafy, size_t n_rows, size_t n_panels, struct fp8_tile *t)
{
    const struct packed *w = t->s->w;
    const size_t leaf = leaf_length(w, leafy);
    const struct grid grid = grid_of(w);
    struct sums16 sums[TILE] = {0};
    int64_t n_bad[TILE] = {0};
    struct v16 c[TILE];
    size_t n_leaves = 0;
    for (size_t i = 0; i < n_rows * n_panels; i++) c[i] = v16_zero();
    for (size_t k = 0; k < w->n_in; k += leaf, n_leaves++) {
        fp8_groups(n_rows, n_panels, k, min_size(k + leaf, w->n_in), t, c);
        if (!leafy) break;
        UNROLL(32)
        for (size_t i = 0; i < n_rows * n_panels; i++)
            n_bad[i / n_panels] += end_leaf(DTYPE_F32, t->s, t->panel + i % n_panels * t->apart,
                                            &grid, &c[i], &sums[i]);
    }
    if (!fp8_is_plain(&t->seen)) return false;
    for (size_t i = 0; i < n_rows * n_panels; i++) {
        const size_t r = i / n_panels, p = t->panel + i % n_panels * t->apart;
        if (leafy)
            store_leaves(DTYPE_F32, t->s, r, p, &grid, n_leaves, &sums[i]);
        else
            store_outputs(DTYPE_F32, c[i], outputs_of(w, p), y_at(t->s, r, p));
    }
    for (size_t r = 0; leafy && r < n_rows; r++) count_bad(t->s, r, n_bad[r]);
    return true;
}

/* One panel through the scratch memory. Not inlined, because it is rare. */
static __attribute__((noinline)) void fp8_by_scratch(bool leafy, const struct slice *s,
                                                     size_t panel)
{
    struct slice one = *s;
    one.panel0 = panel;
    one.panel1 = panel + 1;
    if (leafy)
        many(DTYPE_F32, true, true, 1, &one, panel);
    else
        many(DTYPE_F32, true, false, 1, &one, panel);
}

ALWAYS_INLINE void fp8_panels(bool leafy, size_t n_rows, size_t n_panels, const struct slice *s,
                              struct streams streams)
{
    struct fp8_tile t = {s, streams.first, streams.apart, fp8_nothing()};
    if (fp8_tile(leafy, n_rows, n_panels, &t)) return;
    for (size_t i = 0; i < n_panels; i++)
        fp8_by_scratch(leafy, s, streams.first + i * streams.apart);
}

/* Computes a constant number of rows in the slice's panels, divided into as many streams as a tile
 * has panels. */
ALWAYS_INLINE void fp8_rows(bool leafy, size_t n_rows, const struct slice *s)
{
    size_t p = s->panel0;
    const size_t p1 = s->panel1;
    const size_t fit = TILE / n_rows, wide = fit < FEW_PANELS ? fit : FEW_PANELS;
    const size_t n_panels = n_rows <= FEW_STREAMS ? FEW_STREAMS : wide;
    const size_t each = (p1 - p) / n_panels;
    for (size_t i = 0; i < each; i++)
        fp8_panels(leafy, n_rows, n_panels, s, (struct streams){p + i, each});
    for (p += each * n_panels; p < p1; p++) fp8_panels(leafy, n_rows, 1, s, (struct streams){p, 1});
}

/* At most FEW_ROWS rows. */
static void fp8_few(bool leafy, const struct slice *s)
{
#define FP8_ROWS(n)                                                                                \
    case n:                                                                                        \
        if (leafy)                                                                                 \
            fp8_rows(true, n, s);                                                                  \
        else                                                                                       \
            fp8_rows(false, n, s);                                                                 \
        break;
    switch (s->n_rows) {
        FP8_ROWS(1)
        FP8_ROWS(2)
        FP8_ROWS(3)
        FP8_ROWS(4)
        FP8_ROWS(5)
        FP8_ROWS(6)
    default:
        break;
    }
#undef FP8_ROWS
}

/* Rows [r, r + n) of a slice. */
static struct slice fp8_part(const struct slice *s, size_t r, size_t n)
{
    struct slice part = *s;
    part.n_rows = n;
    part.x += r * s->x_stride;
    if (s->sums != NULL) part.sums = sums_at(s, r, 0);
    if (s->y != NULL) part.y = s->y + r * s->y_stride;
    if (s->bad != NULL) part.bad = s->bad + r;
    return part;
}

/* At most FP8_ROWS_MOST rows, divided evenly into tiles. All tiles read FEW_PANELS panels before
 * the next ones, so that only the first tile loads them from memory. */
static void fp8_some(bool leafy, const struct slice *s)
{
    const size_t n_tiles = (s->n_rows + FEW_ROWS - 1) / FEW_ROWS;
    const size_t step = n_tiles <= 1 ? s->panel1 - s->panel0 : FEW_PANELS;
    for (size_t p = s->panel0; p < s->panel1; p += step) {
        for (size_t r = 0, i = 0, n; i < n_tiles; r += n, i++) {
            n = (s->n_rows - r + n_tiles - i - 1) / (n_tiles - i);
            struct slice part = fp8_part(s, r, n);
            part.panel0 = p;
            part.panel1 = min_size(p + step, s->panel1);
            fp8_few(leafy, &part);
        }
    }
}

#endif

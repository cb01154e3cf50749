/* Few rows times fp8 weights: weights become floats in registers, once for all rows of a tile.
 *
 *     64 bytes of a panel (packed tile)       4 inputs of 16 outputs
 *       fp8_quad, with the group's scales     4 x 16 weights, rounded once
 *         fma with the inputs of each row
 *
 * A chain is the running sum of an output over its inputs, one fma after the other. Included by
 * linear_body.h only. */
#ifndef SHOAL_KERNELS_LINEAR_FP8_FEW_H
#define SHOAL_KERNELS_LINEAR_FP8_FEW_H

enum {
    FP8_SPLIT_ROWS = 2,  /* most rows for which the vectors of a panel are computed one after
                            another, so that all sums fit the registers of AVX2. Each vector then
                            loads the inputs again */
    FP8_LONE_ROWS = 4,   /* from so many rows on, the chains of one panel keep the multiply-adds
                            busy, and more panels only need more registers */
    FP8_PLAIN_ROWS = 3,  /* most rows for which it matters whether each code is looked at */
    FP8_APART_ROWS = 10, /* most rows of a tile, if the rows' inputs share cache sets */
};

/* The position of a register tile in one group of inputs. */
struct fp8_group {
    const float *x; /* [n_rows, x_stride] from the next input */
    size_t x_stride;
    const uint8_t *codes; /* of the first panel, from the next input on */
    size_t apart;         /* bytes from one panel's codes to the next panel's */
    fp8_large large;
    struct v16 scales[FEW_PANELS]; /* enlarged unless `large` */
};

/* Continues vector i of the chains a[row * apart] with the next four inputs, whose weights are v.
 */
ALWAYS_INLINE void fp8_add(size_t n_rows, size_t apart, size_t i, const fp8_floats *v,
                           const struct fp8_group *g, struct v16 *a)
{
    UNROLL(4)
    for (size_t j = 0; j < QUANT_QUAD; j++) {
        UNROLL(4)
        for (size_t r = 0; r < n_rows; r++) {
            fp8_floats *sum = fp8_vector(&a[r * apart], i);
            *sum = fp8_fma(g->x[r * g->x_stride + j], v[j], *sum);
        }
    }
}

/* Continues the chains of one panel with the next four inputs, whose weights c hold no NaN, one
 * vector after the other. */
ALWAYS_INLINE void fp8_add_usual(size_t n_rows, size_t n_panels, struct fp8_codes c,
                                 struct v16 scale, const struct fp8_group *g, struct v16 *a)
{
    fp8_floats v[QUANT_QUAD];
    fp8_usual(c, 0, scale, v);
    fp8_add(n_rows, n_panels, 0, v, g, a);
    if (FP8_VECTORS == 1) return;
    fp8_usual(c, FP8_VECTORS - 1, scale, v);
    fp8_add(n_rows, n_panels, FP8_VECTORS - 1, v, g, a);
}

/* Continues every chain with the next four inputs, without looking at their weights. */
ALWAYS_INLINE void fp8_step_plain(size_t n_rows, size_t n_panels, struct fp8_group *g,
                                  struct v16 *a)
{
    UNROLL(4)
    for (size_t p = 0; p < n_panels; p++) {
        const struct v16 *scale = &g->scales[p];
        /* AVX2 has no registers left for the scales. If the compiler kept them there, it would keep
         * sums in memory */
        if (FP8_VECTORS > 1) __asm__ volatile("" : "+r"(scale) : "m"(*scale));
        fp8_add_usual(n_rows, n_panels, fp8_load(g->codes + p * g->apart), *scale, g, a + p);
    }
    g->x += QUANT_QUAD;
    g->codes += FP8_LINE;
}

/* Continues every chain with the next four inputs; with only n of them in the last quad. */
ALWAYS_INLINE void fp8_step(size_t n_rows, size_t n_panels, size_t n, struct fp8_group *g,
                            struct v16 *a)
{
    UNROLL(4)
    for (size_t p = 0; p < n_panels; p++) {
        const struct fp8_codes c = fp8_load(g->codes + p * g->apart);
        struct v16 w[QUANT_QUAD];
        if (n_rows <= FP8_SPLIT_ROWS && n == QUANT_QUAD &&
            __builtin_expect(!fp8_is_rare(c, g->large), 1)) {
            fp8_add_usual(n_rows, n_panels, c, g->scales[p], g, a + p);
            continue;
        }
        fp8_quad(c, g->scales[p], g->large, w);
        UNROLL(4)
        for (size_t j = 0; j < n; j++) {
            UNROLL(16)
            for (size_t r = 0; r < n_rows; r++) {
                const float xk = g->x[r * g->x_stride + j];
                a[r * n_panels + p] = v16_fma(xk, w[j], a[r * n_panels + p]);
            }
        }
    }
    g->x += QUANT_QUAD;
    g->codes += FP8_LINE;
}

/* c[row][panel] = the chains continued over n_k inputs of a group. plain: no weight is NaN,
 * subnormal ones are fast, and no scale is large. */
ALWAYS_INLINE void fp8_chains(bool plain, size_t n_rows, size_t n_panels, size_t n_k,
                              struct fp8_group *g, struct v16 *c)
{
    const size_t ahead = n_panels > FEW_STREAMS ? AHEAD_BYTES / n_panels : AHEAD_BYTES;
    struct v16 a[TILE];
    UNROLL(32)
    for (size_t i = 0; i < n_rows * n_panels; i++) a[i] = c[i];
    for (size_t k = 0; k + QUANT_QUAD <= n_k; k += QUANT_QUAD) {
        UNROLL(4)
        for (size_t p = 0; p < n_panels; p++)
            _mm_prefetch(g->codes + p * g->apart + ahead, _MM_HINT_T0);
        if (plain)
            fp8_step_plain(n_rows, n_panels, g, a);
        else
            fp8_step(n_rows, n_panels, QUANT_QUAD, g, a);
    }
    if (n_k % QUANT_QUAD != 0) fp8_step(n_rows, n_panels, n_k % QUANT_QUAD, g, a);
    UNROLL(32)
    for (size_t i = 0; i < n_rows * n_panels; i++) c[i] = a[i];
}

/* c[row][panel] = the chains of all rows of the slice (n_rows) in n_panels panels, continued over
 * inputs [k, end), group by group. n_rows and n_panels are constant. */
ALWAYS_INLINE void fp8_groups(size_t n_rows, size_t n_panels, size_t k, size_t end,
                              const struct slice *s, struct streams streams, struct v16 *c)
{
    const struct packed *w = s->w;
    const size_t group = quant_kernel_group(w->quant);
    const size_t panel_bytes = kern_quant_panel_bytes(w->quant, w->n_in);
    struct fp8_group g = {.x = s->x + k,
                          .x_stride = s->x_stride,
                          .codes = (const uint8_t *)w->data + streams.first * panel_bytes +
                                   k * PANEL_COLUMNS,
                          .apart = streams.apart * panel_bytes};
    for (size_t n; k < end; k += n) {
        n = min_size(group - k % group, end - k);
        g.large = fp8_load_scales(w, streams.first, streams.apart, n_panels, k / group, g.scales);
        for (size_t p = 0; g.large == 0 && p < n_panels; p++)
            g.scales[p] = fp8_enlarged(g.scales[p]);
        if (n_rows <= FP8_PLAIN_ROWS && w->fp8_plain && g.large == 0)
            fp8_chains(true, n_rows, n_panels, n, &g, c);
        else
            fp8_chains(false, n_rows, n_panels, n, &g, c);
    }
}

#endif

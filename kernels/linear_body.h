/* The float linear, shared by the instruction sets. Lanes run across the 16 outputs of a panel, so
 * each output keeps its own chain over k. Few rows: weights are converted in registers and the next
 * ones prefetched (bound by memory). Many rows: pieces of panels are converted once into a scratch
 * that all rows use.
 *
 * Quantized weights that meet float activations take the second way whatever the number of rows:
 * their pieces become floats in the scratch.
 *
 * The including file has defined: TILE, FEW_PANELS, SOME_PANELS, MANY_PANELS, PIECE; struct v16
 * with v16_zero, v16_fma, v16_store_aligned; dequantize; load_weights (which may order the lanes as
 * it likes), store_outputs and output_lanes (which know that order); struct grid and struct sums16
 * with grid_of, grid_add, store_sums. */
#ifndef SHOAL_KERNELS_LINEAR_BODY_H
#define SHOAL_KERNELS_LINEAR_BODY_H

#include "kernels/body.h"

/* Constant loops over a register tile disappear. AddressSanitizer checks every access to a tile,
 * and took ten minutes to compile them unrolled: there they stay loops. */
#define UNROLL_WORDS(words) _Pragma(#words)
#ifdef __SANITIZE_ADDRESS__
#define UNROLL(n)
#else
#define UNROLL(n) UNROLL_WORDS(GCC unroll n)
#endif

enum {
    BLOCK_ROWS = 256,   /* rows that share a converted piece */
    AHEAD_BYTES = 8192, /* of weights on their way while few rows are multiplied: what a core can
                           wait for at once, and a first-level cache holds */
    MANY_ROWS = 96,     /* from which MANY_PANELS panels are multiplied at once, not SOME_PANELS */
    MOST_ROWS = 12,     /* of a register tile */
    LINE_FLOATS = 16,   /* of a cache line */
};

/* A rectangle of one group's outputs. */
struct slice {
    const struct packed *w;
    const float *x; /* of the first row */
    size_t x_stride;
    float *y; /* of the first row; or */
    size_t y_stride;
    int64_t *sums; /* of the first row */
    size_t n_rows;
};

/* What a register tile reads. */
struct operands {
    const float *x; /* [n_rows, x_stride] from the first input */
    size_t x_stride;
    const void *w; /* the first input's weights of the first panel */
    size_t panel_stride, n_k;
    const char *ahead; /* weights to fetch meanwhile, laid out like w; any address will do */
    const float *next; /* inputs to fetch meanwhile, laid out like x; any address */
};

/* c[row][panel] = the chain continued over n_k inputs; n_rows * n_panels <= TILE, all constant.
 * ahead_bytes is what one input of a panel takes where `ahead` points; 0: nothing is fetched.
 * fetch_x: `next` is fetched. */
ALWAYS_INLINE void chains(enum dtype t, size_t n_rows, size_t n_panels, size_t ahead_bytes,
                          bool fetch_x, const struct operands *o, struct v16 *c)
{
    struct v16 a[TILE];
    UNROLL(32)
    for (size_t i = 0; i < n_rows * n_panels; i++) a[i] = c[i];
    for (size_t k = 0; k < o->n_k; k++) {
        struct v16 wk[FEW_PANELS];
        if (fetch_x && k % LINE_FLOATS == 0) {
            UNROLL(16)
            for (size_t r = 0; r < n_rows; r++)
                _mm_prefetch((const char *)(o->next + r * o->x_stride + k), _MM_HINT_T0);
        }
        UNROLL(4)
        for (size_t p = 0; p < n_panels; p++) {
            const size_t at = p * o->panel_stride + k * PANEL_COLUMNS;
            wk[p] = load_weights(t, o->w, at);
            if (ahead_bytes > 0)
                _mm_prefetch(o->ahead + at / PANEL_COLUMNS * ahead_bytes, _MM_HINT_T0);
        }
        UNROLL(16)
        for (size_t r = 0; r < n_rows; r++) {
            const float xk = o->x[r * o->x_stride + k];
            UNROLL(4)
            for (size_t p = 0; p < n_panels; p++)
                a[r * n_panels + p] = v16_fma(xk, wk[p], a[r * n_panels + p]);
        }
    }
    UNROLL(32)
    for (size_t i = 0; i < n_rows * n_panels; i++) c[i] = a[i];
}

/* Bytes of 16 weights: one input of a panel. */
ALWAYS_INLINE size_t input_bytes(enum dtype t)
{
    return PANEL_COLUMNS * (t == DTYPE_F32 ? sizeof(float) : sizeof(uint16_t));
}

static size_t leaf_length(const struct packed *w, bool leafy)
{
    return leafy ? w->leaf : w->n_in;
}

/* Outputs of `panel` that exist. */
static size_t outputs_of(const struct packed *w, size_t panel)
{
    const size_t left = w->n_out - panel * PANEL_COLUMNS;
    return left < PANEL_COLUMNS ? left : PANEL_COLUMNS;
}

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Where row r's outputs of a panel go. */
ALWAYS_INLINE float *y_at(const struct slice *s, size_t r, size_t panel)
{
    return s->y + r * s->y_stride + panel * PANEL_COLUMNS;
}

ALWAYS_INLINE int64_t *sums_at(const struct slice *s, size_t r, size_t panel)
{
    return s->sums + r * ((size_t)s->w->n_out + 1) + panel * PANEL_COLUMNS;
}

/* Where input k of a group of panels stands; an input beyond the last one is the next group's, or
 * (at the end) these again. */
static const char *after(const struct slice *s, size_t panel, size_t n_panels, size_t k,
                         size_t n_bytes)
{
    const size_t next = k < s->w->n_in ? panel : panel + n_panels;
    const size_t at = k < s->w->n_in ? k : k - s->w->n_in;
    const size_t last = (s->w->n_out - 1) / PANEL_COLUMNS;
    return (const char *)s->w->data + ((next < last ? next : last) * s->w->n_in + at) * n_bytes;
}

/* Ends a leaf: its partial goes from *c to the grid, the next one starts at +0. Returns how many
 * of the panel's outputs do not fit. */
ALWAYS_INLINE int end_leaf(enum dtype t, const struct slice *s, size_t panel, const struct grid *g,
                           struct v16 *c, struct sums16 *sums)
{
    const unsigned bad = grid_add(g, *c, sums);
    *c = v16_zero();
    return bad == 0 ? 0 : __builtin_popcount(bad & output_lanes(t, outputs_of(s->w, panel)));
}

/* n_rows rows (all of the slice) times n_panels panels, both constant. */
ALWAYS_INLINE void few_tile(enum dtype t, bool leafy, size_t n_rows, size_t n_panels,
                            const struct slice *s, size_t panel)
{
    const struct packed *w = s->w;
    const size_t leaf = leaf_length(w, leafy), n_bytes = input_bytes(t);
    const size_t n_ahead = min_size(AHEAD_BYTES / n_bytes / n_panels, w->n_in);
    const struct grid g = grid_of(w);
    struct sums16 sums[TILE] = {0};
    int64_t n_bad[TILE] = {0};
    struct v16 c[TILE];
    size_t n_leaves = 0;
    for (size_t i = 0; i < n_rows * n_panels; i++) c[i] = v16_zero();
    for (size_t k = 0, left = leaf, n_k; k < w->n_in; k += n_k, left -= n_k) {
        const size_t next = k + n_ahead; /* what is fetched meanwhile: inputs of these panels */
        if (left == 0) left = leaf;      /* as long as there are, then of those that follow */
        n_k = min_size(left, (next < w->n_in ? w->n_in - n_ahead : w->n_in) - k);
        const struct operands o = {.x = s->x + k,
                                   .x_stride = s->x_stride,
                                   .w = (const char *)w->data + (panel * w->n_in + k) * n_bytes,
                                   .panel_stride = (size_t)w->n_in * PANEL_COLUMNS,
                                   .n_k = n_k,
                                   .ahead = after(s, panel, n_panels, next, n_bytes)};
        chains(t, n_rows, n_panels, n_bytes, false, &o, c);
        if (!leafy || (n_k < left && k + n_k < w->n_in)) continue;
        UNROLL(32)
        for (size_t i = 0; i < n_rows * n_panels; i++)
            n_bad[i / n_panels] += end_leaf(t, s, panel + i % n_panels, &g, &c[i], &sums[i]);
        n_leaves++;
    }
    for (size_t i = 0; i < n_rows * n_panels; i++) {
        const size_t r = i / n_panels, p = panel + i % n_panels;
        if (leafy)
            store_sums(t, &sums[i], &g, n_leaves, outputs_of(w, p), sums_at(s, r, p));
        else
            store_outputs(t, c[i], outputs_of(w, p), y_at(s, r, p));
    }
    for (size_t r = 0; leafy && r < n_rows; r++)
        kern_count_bad(sums_at(s, r, 0) + w->n_out, n_bad[r]);
}

/* A constant number of rows over panels [p, p1): as many panels at once as the registers hold. */
ALWAYS_INLINE void few_rows(enum dtype t, bool leafy, size_t n_rows, const struct slice *s,
                            size_t p, size_t p1)
{
    const size_t fit = TILE / n_rows, n_panels = fit < FEW_PANELS ? fit : FEW_PANELS;
    for (; p + n_panels <= p1; p += n_panels) few_tile(t, leafy, n_rows, n_panels, s, p);
    for (; p < p1; p++) few_tile(t, leafy, n_rows, 1, s, p);
}

/* At most FEW_ROWS rows. */
enum { FEW_ROWS = 6 };

ALWAYS_INLINE void few(enum dtype t, bool leafy, const struct slice *s, size_t p0, size_t p1)
{
    switch (s->n_rows) {
    case 1:
        few_rows(t, leafy, 1, s, p0, p1);
        break;
    case 2:
        few_rows(t, leafy, 2, s, p0, p1);
        break;
    case 3:
        few_rows(t, leafy, 3, s, p0, p1);
        break;
    case 4:
        few_rows(t, leafy, 4, s, p0, p1);
        break;
    case 5:
        few_rows(t, leafy, 5, s, p0, p1);
        break;
    case FEW_ROWS:
        few_rows(t, leafy, FEW_ROWS, s, p0, p1);
        break;
    default:
        break;
    }
}

/* Inputs of a piece: as many floats of n_panels panels as the scratch holds. */
ALWAYS_INLINE size_t piece_length(size_t n_panels)
{
    return (size_t)PIECE * MANY_PANELS / n_panels;
}

/* Inputs [k, k + n_k) of n_panels panels in f32: converted into `scratch`, or where they are. */
ALWAYS_INLINE void piece_f32(enum dtype t, bool quantized, const struct packed *w, size_t panel,
                             size_t n_panels, size_t k, struct operands *o, float *scratch)
{
    const size_t stride = (size_t)w->n_in * PANEL_COLUMNS, at = panel * stride + k * PANEL_COLUMNS;
    if (t == DTYPE_F32 && !quantized) {
        o->w = (const float *)w->data + at;
        o->panel_stride = stride;
        return;
    }
    o->w = scratch;
    o->panel_stride = piece_length(n_panels) * PANEL_COLUMNS;
    for (size_t p = 0; p < n_panels; p++) {
        if (quantized) {
            dequantize(w, panel + p, k, o->n_k, scratch + p * o->panel_stride);
            continue;
        }
        for (size_t i = 0; i < o->n_k * PANEL_COLUMNS; i += PANEL_COLUMNS)
            v16_store_aligned(scratch + p * o->panel_stride + i,
                              load_weights(t, w->data, at + p * stride + i));
    }
}

/* A register tile of n rows (1 to TILE / n_panels, at most MOST_ROWS) over pieces of f32 weights.
 */
ALWAYS_INLINE void piece_tile(size_t n, size_t n_panels, size_t ahead_bytes,
                              const struct operands *o, struct v16 *c)
{
#define PIECE_TILE(rows)                                                                           \
    case rows:                                                                                     \
        if (rows * n_panels <= TILE) chains(DTYPE_F32, rows, n_panels, ahead_bytes, true, o, c);   \
        break;
    switch (n) {
        PIECE_TILE(1)
        PIECE_TILE(2)
        PIECE_TILE(3)
        PIECE_TILE(4)
        PIECE_TILE(5)
        PIECE_TILE(6)
        PIECE_TILE(7)
        PIECE_TILE(8)
        PIECE_TILE(9)
        PIECE_TILE(10)
        PIECE_TILE(11)
        PIECE_TILE(12)
    default:
        break;
    }
#undef PIECE_TILE
}

/* Continues the chains of n_rows rows over pieces of f32 weights, in register tiles as even as can
 * be. The first one fetches the weights that come next, each the next one's inputs: the rows of a
 * block are more than a second-level cache holds. */
ALWAYS_INLINE void piece_rows(size_t n_rows, size_t n_panels, size_t ahead_bytes, struct operands o,
                              struct v16 *c)
{
    const size_t most = min_size(TILE / n_panels, MOST_ROWS);
    const float *first = o.x;
    size_t n = 0;
    for (size_t r = 0; r < n_rows; r += n, o.x += n * o.x_stride) {
        const size_t left = n_rows - r, n_tiles = (left + most - 1) / most;
        n = (left + n_tiles - 1) / n_tiles;
        o.next = left > n ? o.x + n * o.x_stride : first + o.n_k;
        if (r == 0)
            piece_tile(n, n_panels, ahead_bytes, &o, c);
        else
            piece_tile(n, n_panels, 0, &o, c + r * n_panels);
    }
}

/* n_panels panels (constant), at most BLOCK_ROWS rows. */
ALWAYS_INLINE void many(enum dtype t, bool quantized, bool leafy, size_t n_panels,
                        const struct slice *s, size_t panel)
{
    const struct packed *w = s->w;
    const size_t piece = piece_length(n_panels), ahead_bytes = quantized ? 0 : input_bytes(t);
    const struct grid g = grid_of(w);
    float scratch[MANY_PANELS * PIECE * PANEL_COLUMNS] __attribute__((aligned(64)));
    struct v16 c[MANY_PANELS * BLOCK_ROWS];
    struct sums16 sums[MANY_PANELS * BLOCK_ROWS];
    int64_t n_bad[BLOCK_ROWS] = {0};
    size_t n_leaves = 0;
    for (size_t i = 0; i < s->n_rows * n_panels; i++) {
        c[i] = v16_zero();
        sums[i] = (struct sums16){0};
    }
    for (size_t k0 = 0; k0 < w->n_in; k0 += leaf_length(w, leafy), n_leaves++) {
        const size_t k1 = k0 + min_size(w->n_in - k0, leaf_length(w, leafy));
        for (size_t k = k0; k < k1; k += piece) {
            struct operands o = {
                .x = s->x + k, .x_stride = s->x_stride, .n_k = min_size(k1 - k, piece)};
            if (!quantized) o.ahead = after(s, panel, n_panels, k + o.n_k, ahead_bytes);
            piece_f32(t, quantized, w, panel, n_panels, k, &o, scratch);
            piece_rows(s->n_rows, n_panels, ahead_bytes, o, c);
        }
        for (size_t i = 0; leafy && i < s->n_rows * n_panels; i++)
            n_bad[i / n_panels] += end_leaf(t, s, panel + i % n_panels, &g, &c[i], &sums[i]);
    }
    for (size_t i = 0; i < s->n_rows * n_panels; i++) {
        const size_t r = i / n_panels, p = panel + i % n_panels;
        if (leafy)
            store_sums(t, &sums[i], &g, n_leaves, outputs_of(w, p), sums_at(s, r, p));
        else
            store_outputs(t, c[i], outputs_of(w, p), y_at(s, r, p));
    }
    for (size_t r = 0; leafy && r < s->n_rows; r++)
        kern_count_bad(sums_at(s, r, 0) + w->n_out, n_bad[r]);
}

/* Rows [row0, row1) of a group as slices of a block of rows. */
ALWAYS_INLINE void linear(enum dtype t, bool quantized, bool leafy, const struct linear_args *a,
                          size_t group, size_t panel0, size_t panel1, size_t row0, size_t row1)
{
    const struct linear_group *g = &a->groups[group];
    for (size_t row = row0; row < row1; row += BLOCK_ROWS) {
        const size_t at = g->row0 + row;
        struct slice s = {.w = g->w,
                          .x = a->x + at * a->x_stride,
                          .x_stride = a->x_stride,
                          .y_stride = a->y_stride,
                          .n_rows = min_size(row1 - row, BLOCK_ROWS)};
        if (leafy)
            s.sums = a->sums + at * ((size_t)g->w->n_out + 1);
        else
            s.y = a->y + at * a->y_stride;
        size_t p = panel0;
        if (s.n_rows <= FEW_ROWS && !quantized) {
            few(t, leafy, &s, panel0, panel1);
            continue;
        }
        if (s.n_rows <= FEW_ROWS) /* so many chains side by side */
            for (; p + FEW_PANELS <= panel1; p += FEW_PANELS)
                many(t, quantized, leafy, FEW_PANELS, &s, p);
        for (; s.n_rows >= MANY_ROWS && p + MANY_PANELS <= panel1; p += MANY_PANELS)
            many(t, quantized, leafy, MANY_PANELS, &s, p);
        for (; SOME_PANELS > 1 && p + SOME_PANELS <= panel1; p += SOME_PANELS)
            many(t, quantized, leafy, SOME_PANELS, &s, p);
        for (; p < panel1; p++) many(t, quantized, leafy, 1, &s, p);
    }
}

#endif

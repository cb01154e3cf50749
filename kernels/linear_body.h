/* The float linear, shared by the instruction sets. Vector lanes run across the 16 outputs of a
 * panel (packed tile), so each output keeps its own chain over k.
 *
 * Few rows (limited by memory): weights are prefetched and converted in registers. The panels of a
 * register tile are far apart in memory; each is part of a stream that the next tile continues.
 *
 * Many rows: K-slices of panels are converted once into scratch memory that all rows read. While
 * the tiles of one slice are multiplied, the next slice is converted.
 *
 * fp8 weights count as a float type here (DTYPE_F8_E4M3), with scales: linear_fp8.h,
 * linear_fp8_few.h. Other quantized weights with float activations are always converted in the
 * scratch memory, however few the rows.
 *
 * The including file defines
 *     TILE, FEW_PANELS, SOME_PANELS, MANY_PANELS    sizes of register tiles
 *     PIECE, SHORT_PIECE                             inputs of a K-slice of MANY_PANELS panels
 *     BLOCK_ROWS, COPY_ROWS                          rows that share a converted K-slice, without
 *                                                    and with copied inputs
 *     GROUP_TILES                                    linear_walk.h
 *     struct v16, v16_zero, v16_fma, v16_store_aligned
 *     dequantize                                     see dequantize_body.h
 *     the types and functions fp8_...                fp8.h
 *     load_weights, store_outputs, output_lanes      load_weights may permute the lanes; the
 *                                                    other two know the permutation
 *     struct grid, struct sums16, grid_of, grid_add, store_sums, store_rounded */
#ifndef SHOAL_KERNELS_LINEAR_BODY_H
#define SHOAL_KERNELS_LINEAR_BODY_H

#include "kernels/body.h"

/* Unrolls the constant loops over a register tile, so that the tile stays in registers. Not with
 * AddressSanitizer: it checks every access to a tile, and compiling took ten minutes. */
#define UNROLL_WORDS(words) _Pragma(#words)
#ifdef __SANITIZE_ADDRESS__
#define UNROLL(n)
#else
#define UNROLL(n) UNROLL_WORDS(GCC unroll n)
#endif

enum {
    FEW_ROWS = 6,       /* most rows for which weights are converted in registers; fp8 weights:
                           rows_in_registers */
    FEW_STREAMS = 2,    /* panels side by side for one or two rows: enough independent chains, and
                           memory delivers two streams faster than one or four */
    AHEAD_BYTES = 6144, /* prefetch distance of a stream; shorter if a tile has more streams */
    MANY_ROWS = 40,     /* fewer rows (but above FEW_ROWS) have short K-slices, because their few
                           tiles must convert all of the next K-slice */
    MOST_ROWS = 12,     /* most rows of a register tile */
    LINE_FLOATS = 16,   /* floats of a cache line */
    LINE_BYTES = 64,    /* bytes of a cache line */
};

/* Returns the bytes of one input of a panel: 16 weights. */
ALWAYS_INLINE size_t input_bytes(enum dtype t)
{
    const size_t each = t == DTYPE_F32       ? sizeof(float)
                        : t == DTYPE_F8_E4M3 ? sizeof(uint8_t)
                                             : sizeof(uint16_t);
    return PANEL_COLUMNS * each;
}

#include "kernels/linear_piece.h"

/* A rectangle of outputs of one group. */
struct slice {
    const struct packed *w;
    const float *x; /* of the first row */
    size_t x_stride;
    float *y;                 /* of the first row; unless sums is given */
    size_t y_stride, y_panel; /* y_panel: the panel with which y begins */
    int64_t *sums;            /* of the first row; NULL with leaves: y gets the sums as floats */
    int32_t *bad;             /* of the first row: the counters, with leaves and sums NULL */
    size_t n_rows, panel0, panel1;
};

/* The operands of a register tile of few rows. */
struct operands {
    const float *x; /* [n_rows, x_stride] from the first input */
    size_t x_stride;
    const char *w; /* weights, from the first input of the first panel on */
    size_t apart;  /* bytes from panel to panel */
    size_t n_k;
};

/* Continues every chain with input k. */
ALWAYS_INLINE void chain_step(enum dtype t, size_t n_rows, size_t n_panels,
                              const struct operands *o, size_t k, struct v16 *a)
{
    struct v16 wk[FEW_PANELS];
    UNROLL(4)
    for (size_t p = 0; p < n_panels; p++)
        wk[p] = load_weights(t, o->w + p * o->apart, k * PANEL_COLUMNS);
    UNROLL(16)
    for (size_t r = 0; r < n_rows; r++) {
        const float xk = o->x[r * o->x_stride + k];
        UNROLL(4)
        for (size_t p = 0; p < n_panels; p++)
            a[r * n_panels + p] = v16_fma(xk, wk[p], a[r * n_panels + p]);
    }
}

/* c[row][panel] = the chains continued over n_k inputs. n_rows * n_panels <= TILE; both are
 * constant. */
ALWAYS_INLINE void chains(enum dtype t, size_t n_rows, size_t n_panels, const struct operands *o,
                          struct v16 *c)
{
    const size_t line_inputs = LINE_BYTES / input_bytes(t);
    const size_t ahead = n_panels > FEW_STREAMS ? AHEAD_BYTES / n_panels : AHEAD_BYTES;
    struct v16 a[TILE];
    UNROLL(32)
    for (size_t i = 0; i < n_rows * n_panels; i++) a[i] = c[i];
    size_t k = 0;
    for (; k + line_inputs <= o->n_k; k += line_inputs) {
        UNROLL(4)
        for (size_t p = 0; p < n_panels; p++)
            _mm_prefetch(o->w + p * o->apart + k * input_bytes(t) + ahead, _MM_HINT_T0);
        UNROLL(2)
        for (size_t i = 0; i < line_inputs; i++) chain_step(t, n_rows, n_panels, o, k + i, a);
    }
    for (; k < o->n_k; k++) chain_step(t, n_rows, n_panels, o, k, a);
    UNROLL(32)
    for (size_t i = 0; i < n_rows * n_panels; i++) c[i] = a[i];
}

static size_t leaf_length(const struct packed *w, bool leafy)
{
    return leafy ? w->leaf : w->n_in;
}

/* Returns the number of outputs that `panel` really has; the last panel may be padded. */
static size_t outputs_of(const struct packed *w, size_t panel)
{
    const size_t left = w->n_out - panel * PANEL_COLUMNS;
    return left < PANEL_COLUMNS ? left : PANEL_COLUMNS;
}

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Returns the bytes from panel to panel. */
ALWAYS_INLINE size_t panel_bytes_of(enum dtype t, const struct packed *w)
{
    if (t == DTYPE_F8_E4M3) return kern_quant_panel_bytes(w->quant, w->n_in);
    return (size_t)w->n_in * input_bytes(t);
}

/* Returns the address of row r's outputs in a panel. */
ALWAYS_INLINE float *y_at(const struct slice *s, size_t r, size_t panel)
{
    return s->y + r * s->y_stride + (panel - s->y_panel) * PANEL_COLUMNS;
}

ALWAYS_INLINE int64_t *sums_at(const struct slice *s, size_t r, size_t panel)
{
    return s->sums + r * ((size_t)s->w->n_out + 1) + panel * PANEL_COLUMNS;
}

/* Stores a row's result, once all its leaves are summed. */
ALWAYS_INLINE void store_leaves(enum dtype t, const struct slice *s, size_t r, size_t panel,
                                const struct grid *g, size_t n_leaves, const struct sums16 *sums)
{
    const size_t n = outputs_of(s->w, panel);
    if (s->sums != NULL)
        store_sums(t, sums, g, n_leaves, n, sums_at(s, r, panel));
    else
        store_rounded(t, sums, g, n_leaves, n, y_at(s, r, panel));
}

static void count_bad(const struct slice *s, size_t r, int64_t n_bad)
{
    if (s->sums != NULL)
        kern_count_bad(sums_at(s, r, 0) + s->w->n_out, n_bad);
    else
        kern_mark_bad(&s->bad[r], n_bad);
}

/* Ends a leaf: adds its partial sums *c to the integer sums and sets *c to +0. Returns the number
 * of outputs whose partial sum does not fit the grid. */
ALWAYS_INLINE int end_leaf(enum dtype t, const struct slice *s, size_t panel, const struct grid *g,
                           struct v16 *c, struct sums16 *sums)
{
    const unsigned bad = grid_add(g, *c, sums);
    *c = v16_zero();
    return bad == 0 ? 0 : __builtin_popcount(bad & output_lanes(t, outputs_of(s->w, panel)));
}

/* The panels of a register tile: `first`, first + apart, first + 2 apart, ... */
struct streams {
    size_t first, apart;
};

#include "kernels/linear_fp8_few.h"

/* c[row][panel] = the chains of all rows of the slice (n_rows) in n_panels panels, continued over
 * inputs [k, end). n_rows and n_panels are constant. */
ALWAYS_INLINE void few_chains(enum dtype t, size_t n_rows, size_t n_panels, size_t k, size_t end,
                              const struct slice *s, struct streams streams, struct v16 *c)
{
    const size_t panel_bytes = panel_bytes_of(t, s->w);
    const struct operands o = {.x = s->x + k,
                               .x_stride = s->x_stride,
                               .w = (const char *)s->w->data + streams.first * panel_bytes +
                                    k * input_bytes(t),
                               .apart = streams.apart * panel_bytes,
                               .n_k = end - k};
    chains(t, n_rows, n_panels, &o, c);
}

/* Computes all rows of the slice (n_rows) in n_panels panels. n_rows and n_panels are constant. */
ALWAYS_INLINE void few_tile(enum dtype t, bool leafy, size_t n_rows, size_t n_panels,
                            const struct slice *s, struct streams streams)
{
    const size_t panel = streams.first, apart = streams.apart;
    const struct packed *w = s->w;
    const size_t leaf = leaf_length(w, leafy);
    const struct grid g = grid_of(w);
    struct sums16 sums[TILE] = {0};
    int64_t n_bad[TILE] = {0};
    struct v16 c[TILE];
    size_t n_leaves = 0;
    for (size_t i = 0; i < n_rows * n_panels; i++) c[i] = v16_zero();
    for (size_t k = 0; k < w->n_in; k += leaf) {
        const size_t end = min_size(k + leaf, w->n_in);
        if (t == DTYPE_F8_E4M3)
            fp8_groups(n_rows, n_panels, k, end, s, streams, c);
        else
            few_chains(t, n_rows, n_panels, k, end, s, streams, c);
        if (!leafy) break;
        UNROLL(32)
        for (size_t i = 0; i < n_rows * n_panels; i++)
            n_bad[i / n_panels] +=
                end_leaf(t, s, panel + i % n_panels * apart, &g, &c[i], &sums[i]);
        n_leaves++;
    }
    for (size_t i = 0; i < n_rows * n_panels; i++) {
        const size_t r = i / n_panels, p = panel + i % n_panels * apart;
        if (leafy)
            store_leaves(t, s, r, p, &g, n_leaves, &sums[i]);
        else
            store_outputs(t, c[i], outputs_of(w, p), y_at(s, r, p));
    }
    for (size_t r = 0; leafy && r < n_rows; r++) count_bad(s, r, n_bad[r]);
}

/* Returns the number of panels of a register tile of few rows. */
ALWAYS_INLINE size_t few_panels(enum dtype t, size_t n_rows)
{
    const size_t fit = TILE / n_rows, wide = fit < FEW_PANELS ? fit : FEW_PANELS;
    if (t == DTYPE_F8_E4M3 && n_rows >= FP8_LONE_ROWS) return 1;
    return n_rows <= FEW_STREAMS ? FEW_STREAMS : wide;
}

/* Computes a constant number of rows in the slice's panels, which are divided into as many streams
 * as a register tile has panels. */
ALWAYS_INLINE void few_rows(enum dtype t, bool leafy, size_t n_rows, const struct slice *s)
{
    size_t p = s->panel0;
    const size_t p1 = s->panel1, n_panels = few_panels(t, n_rows), each = (p1 - p) / n_panels;
    for (size_t i = 0; i < each; i++)
        few_tile(t, leafy, n_rows, n_panels, s, (struct streams){p + i, each});
    for (p += each * n_panels; p < p1; p++)
        few_tile(t, leafy, n_rows, 1, s, (struct streams){p, 1});
}

/* Computes at most FEW_ROWS rows; of fp8 weights at most FP8_FEW_ROWS. */
ALWAYS_INLINE void few(enum dtype t, bool leafy, const struct slice *s)
{
#define FEW_CASE(n)                                                                                \
    case n:                                                                                        \
        if (n <= FEW_ROWS || (t == DTYPE_F8_E4M3 && n <= FP8_FEW_ROWS)) few_rows(t, leafy, n, s);  \
        break;
    switch (s->n_rows) {
        FEW_CASE(1)
        FEW_CASE(2)
        FEW_CASE(3)
        FEW_CASE(4)
        FEW_CASE(5)
        FEW_CASE(6)
        FEW_CASE(7)
        FEW_CASE(8)
        FEW_CASE(9)
        FEW_CASE(10)
        FEW_CASE(11)
        FEW_CASE(12)
        FEW_CASE(13)
        FEW_CASE(14)
        FEW_CASE(15)
        FEW_CASE(16)
    default:
        break;
    }
#undef FEW_CASE
}

#include "kernels/linear_walk.h"

/* The number of vectors in struct sums16. The vectors are copied one by one, because a compiler
 * would copy the whole struct in smaller pieces, and loads that follow would stall. */
#define SUMS_VECTORS (sizeof(struct sums16) / sizeof(((struct sums16 *)NULL)->s[0]))

/* The working memory of `many`: the chains of its rows and their integer sums. */
struct block {
    enum dtype t;
    bool quantized, leafy;
    size_t n_panels;
    const struct slice *s;
    struct grid grid;
    const float *x; /* [n_rows, x_stride] inputs of the K-slice */
    size_t x_stride;
    struct v16 *c;         /* [n_rows, n_panels] chains */
    struct sums16 *sums;   /* [n_rows, n_panels] */
    int64_t *n_bad;        /* [n_rows] */
    struct fp8_piece *fp8; /* of the K-slice that is being converted */
};

/* Prepares the conversion of a K-slice into `scratch`. */
ALWAYS_INLINE struct conversion conversion_of(const struct block *b, const struct piece *p,
                                              float *scratch)
{
    const struct packed *w = b->s->w;
    const size_t panel_bytes = panel_bytes_of(b->t, w);
    struct conversion c = {.t = b->t,
                           .from = (const char *)w->data + p->panel * panel_bytes +
                                   p->k * input_bytes(b->t),
                           .panel_bytes = panel_bytes,
                           .to = scratch,
                           .n_left = p->n_k,
                           .fp8 = b->fp8};
    if (b->t != DTYPE_F8_E4M3) return c;
    c.n_left = (p->n_k + QUANT_QUAD - 1) / QUANT_QUAD * QUANT_QUAD;
    fp8_piece_begin(w, p->panel, b->n_panels, p->k, p->n_k, b->fp8);
    return c;
}

/* Converts a whole K-slice at once: the first one, or any slice of quantized weights, which are
 * not converted while tiles are multiplied. */
ALWAYS_INLINE void piece_whole(const struct block *b, const struct piece *p, float *scratch)
{
    const size_t stride = b->n_panels * PANEL_COLUMNS;
    for (size_t i = 0; b->quantized && i < b->n_panels; i++)
        dequantize(b->s->w, p->panel + i, p->k, p->n_k, stride, scratch + i * PANEL_COLUMNS);
    if (b->quantized) return;
    struct conversion c = conversion_of(b, p, scratch);
    c.n_each = c.n_left;
    convert_as(b->t, b->n_panels, &c);
}

ALWAYS_INLINE struct sums16 sums_so_far(const struct block *b, size_t at, bool first)
{
    struct sums16 sums = {0};
    UNROLL(4)
    for (size_t q = 0; !first && q < SUMS_VECTORS; q++) sums.s[q] = b->sums[at].s[q];
    return sums;
}

/* Adds the partial sums of chains [at, end) to their integer sums. Returns a bit for each lane in
 * which any of them does not fit. */
ALWAYS_INLINE unsigned add_leaf(const struct block *b, bool first, size_t at, size_t end)
{
    unsigned bad = 0;
    for (size_t i = at; i < end; i++) {
        struct sums16 sums = sums_so_far(b, i, first);
        bad |= grid_add(&b->grid, b->c[i], &sums);
        UNROLL(4)
        for (size_t q = 0; q < SUMS_VECTORS; q++) b->sums[i].s[q] = sums.s[q];
    }
    return bad;
}

/* Does what add_leaf does for the last leaf of rows [r, end), and stores the result. */
ALWAYS_INLINE unsigned add_last_leaf(const struct block *b, const struct piece *p, bool first,
                                     size_t r, size_t end)
{
    const struct packed *w = b->s->w;
    const size_t n_leaves = w->n_in > 0 ? (w->n_in + w->leaf - 1) / w->leaf : 1;
    unsigned bad = 0;
    for (; r < end; r++) {
        UNROLL(4)
        for (size_t j = 0; j < b->n_panels; j++) {
            const size_t at = r * b->n_panels + j;
            struct sums16 sums = sums_so_far(b, at, first);
            bad |= grid_add(&b->grid, b->c[at], &sums);
            store_leaves(b->t, b->s, r, p->panel + j, &b->grid, n_leaves, &sums);
        }
    }
    return bad;
}

static void store_rows(const struct block *b, const struct piece *p, size_t r, size_t end)
{
    for (; r < end; r++)
        for (size_t j = 0; j < b->n_panels; j++)
            store_outputs(b->t, b->c[r * b->n_panels + j], outputs_of(b->s->w, p->panel + j),
                          y_at(b->s, r, p->panel + j));
}

/* Ends the chains of n rows from row r on, at the end of a leaf; without leaves, at the end of K.
 */
ALWAYS_INLINE void tile_ends(const struct block *b, const struct piece *p, size_t r, size_t n)
{
    const struct packed *w = b->s->w;
    const size_t at = r * b->n_panels, end = at + n * b->n_panels;
    unsigned bad;
    if (!b->leafy) {
        store_rows(b, p, r, r + n);
        return;
    }
    const bool first = p->k + p->n_k <= w->leaf;
    if (p->k + p->n_k == w->n_in)
        bad = add_last_leaf(b, p, first, r, r + n);
    else
        bad = first ? add_leaf(b, true, at, end) : add_leaf(b, false, at, end);
    for (size_t i = at; bad != 0 && i < end; i++) {
        struct sums16 none = {0};
        const unsigned lanes = output_lanes(b->t, outputs_of(w, p->panel + i % b->n_panels));
        b->n_bad[i / b->n_panels] += __builtin_popcount(lanes & grid_add(&b->grid, b->c[i], &none));
    }
}

/* Prefetches the cache lines of a tile's outputs, before the tile computes them. */
ALWAYS_INLINE void fetch_outputs(const struct block *b, const struct piece *p, size_t r, size_t n)
{
    const bool summed = b->s->sums != NULL;
    const size_t n_bytes = b->n_panels * PANEL_COLUMNS * (summed ? sizeof(int64_t) : sizeof(float));
    for (size_t i = r; i < r + n; i++) {
        const char *to = summed ? (const char *)sums_at(b->s, i, p->panel)
                                : (const char *)y_at(b->s, i, p->panel);
        for (size_t j = 0; j < n_bytes; j += LINE_BYTES) __builtin_prefetch(to + j, 1);
    }
}

/* Prepares the work of the first tile of a K-slice. Each of n_fetches steps prefetches its share
 * of the weights of `behind`, the K-slice after the next one. */
ALWAYS_INLINE struct tile_work piece_work(const struct block *b, const struct piece *p,
                                          const struct piece *behind, const float *now,
                                          size_t n_fetches)
{
    const struct slice *s = b->s;
    const size_t n_bytes = input_bytes(b->t), panel_bytes = panel_bytes_of(b->t, s->w);
    const size_t lines = (behind->n_k * n_bytes + LINE_BYTES - 1) / LINE_BYTES;
    struct tile_work o = {.x = b->x,
                          .x_stride = b->x_stride,
                          .w = now,
                          .n_k = p->n_k,
                          .begins = p->begins,
                          .ahead = s->w->data,
                          .panel_bytes = panel_bytes};
    if (b->quantized) return o;
    o.ahead += behind->panel * panel_bytes + behind->k * n_bytes;
    o.n_ahead = n_fetches > 0 ? (lines + n_fetches - 1) / n_fetches : 0;
    return o;
}

/* Multiplies all rows by a K-slice, in register tiles of about equal size. Each tile prefetches the
 * next tile's inputs (the rows of a block exceed a second-level cache), converts its share of
 * `next` into `then`, and prefetches its share of the weights of `behind`. */
ALWAYS_INLINE void piece_rows(const struct block *b, const struct piece *p,
                              const struct piece *next, const struct piece *behind,
                              const float *now, float *then)
{
    const struct slice *s = b->s;
    piece_tile_fn *tile = b->n_panels == 1   ? piece_tile_1
                          : b->n_panels == 2 ? piece_tile_2
                                             : piece_tile_4;
    const bool copies = copies_inputs(s->x_stride);
    const size_t most = min_size(TILE / b->n_panels, MOST_ROWS);
    const size_t n_tiles = (s->n_rows + most - 1) / most;
    const size_t lines = (p->n_k + LINE_FLOATS - 1) / LINE_FLOATS, n_times = n_tiles * lines;
    struct conversion conversion = conversion_of(b, next, then);
    if (b->quantized || n_times == 0)
        conversion.n_left = 0;
    else
        conversion.n_each = (next->n_k + n_times - 1) / n_times;
    if (b->t == DTYPE_F8_E4M3)
        conversion.n_each = (conversion.n_each + QUANT_QUAD - 1) / QUANT_QUAD * QUANT_QUAD;
    struct tile_work o = piece_work(b, p, behind, now, n_times);
    o.conversion = &conversion;
    const char *ahead_end = o.ahead + behind->n_k * input_bytes(b->t);
    for (size_t r = 0, i = 0, n; i < n_tiles; r += n, i++, o.x = o.next) {
        n = (s->n_rows - r + n_tiles - i - 1) / (n_tiles - i);
        o.next = i + 1 < n_tiles ? o.x + n * o.x_stride : copies ? b->x : s->x + next->k;
        if (p->k + p->n_k == s->w->n_in) fetch_outputs(b, p, r, n);
        tile(n, &o, b->c + r * b->n_panels);
        if (o.n_ahead > 0) {
            o.ahead += o.n_ahead * lines * LINE_BYTES;
            if (o.ahead >= ahead_end) o.n_ahead = 0;
        }
        if (p->ends) tile_ends(b, p, r, n);
    }
}

/* Computes the slice's panels from `panel` on, n_panels (constant) at a time while that many are
 * left, for at most BLOCK_ROWS rows. Returns the first panel not computed. */
ALWAYS_INLINE size_t many(enum dtype t, bool quantized, bool leafy, size_t n_panels,
                          const struct slice *s, size_t panel)
{
    const struct packed *w = s->w;
    const size_t panel1 = s->panel1;
    float scratch[2][MANY_PANELS * PIECE * PANEL_COLUMNS] __attribute__((aligned(64)));
    const bool copies = copies_inputs(s->x_stride);
    float inputs[COPY_FLOATS] __attribute__((aligned(64)));
    struct v16 c[MOST_CHAINS];
    struct sums16 sums[MOST_CHAINS];
    int64_t n_bad[BLOCK_ROWS] = {0};
    struct fp8_piece fp8;
    if (panel + n_panels > panel1) return panel;
    struct block b = {.t = t,
                      .quantized = quantized,
                      .leafy = leafy,
                      .n_panels = n_panels,
                      .s = s,
                      .grid = grid_of(w),
                      .x_stride = copies ? COPY_STRIDE : s->x_stride,
                      .n_bad = n_bad,
                      .fp8 = &fp8};
    struct piece p = piece_at(s, leafy, n_panels, (struct place){panel, panel, 0});
    struct piece next = piece_after(s, leafy, n_panels, &p);
    float *now = scratch[0], *then = scratch[1];
    for (bool whole = true; p.panel + n_panels <= panel1; whole = quantized) {
        const struct piece behind = piece_after(s, leafy, n_panels, &next);
        const size_t at = (p.panel - p.group) * s->n_rows;
        if (copies && p.panel == p.group) copy_inputs(s, &p, inputs);
        b.x = copies ? inputs : s->x + p.k;
        b.c = c + at;
        b.sums = sums + at;
        if (whole) piece_whole(&b, &p, now);
        piece_rows(&b, &p, &next, &behind, now, then);
        float *free = now;
        now = then;
        then = free;
        p = next;
        next = behind;
    }
    for (size_t r = 0; leafy && r < s->n_rows; r++) count_bad(s, r, n_bad[r]);
    return panel + (panel1 - panel) / n_panels * n_panels;
}

/* Returns the most rows for which weights are converted in registers. The conversion of fp8 weights
 * costs several rows' multiply-adds, but storing and loading what was converted costs more. Inputs
 * of more than FP8_APART_ROWS rows a multiple of 4 KiB apart push each other out of the first-level
 * cache. */
ALWAYS_INLINE size_t rows_in_registers(enum dtype t, size_t x_stride)
{
    if (t != DTYPE_F8_E4M3) return FEW_ROWS;
    return x_stride % APART_FLOATS == 0 ? min_size(FP8_FEW_ROWS, FP8_APART_ROWS) : FP8_FEW_ROWS;
}

/* Computes a slice in blocks of about equal size. */
ALWAYS_INLINE void linear(enum dtype t, bool quantized, bool leafy, const struct linear_args *a,
                          const struct linear_slice *whole)
{
    const struct linear_group *g = &a->groups[whole->group];
    const size_t row1 = whole->row1;
    const size_t most = copies_inputs(a->x_stride) ? COPY_ROWS : BLOCK_ROWS;
    size_t n_blocks = (row1 - whole->row0 + most - 1) / most;
    for (size_t row = whole->row0, n; row < row1; row += n, n_blocks--) {
        const size_t at = g->row0 + row;
        n = (row1 - row + n_blocks - 1) / n_blocks;
        struct slice s = {.w = g->w,
                          .x = a->x + at * a->x_stride,
                          .x_stride = a->x_stride,
                          .y_stride = a->y_stride,
                          .n_rows = n,
                          .panel0 = whole->panel0,
                          .panel1 = whole->panel1};
        if (leafy && a->sums != NULL) {
            s.sums = a->sums + at * ((size_t)g->w->n_out + 1);
        } else {
            s.y = a->y + (at - a->y_row) * a->y_stride;
            s.y_panel = a->y_panel;
            s.bad = leafy ? a->bad + at : NULL;
        }
        size_t p = s.panel0;
        if (s.n_rows <= rows_in_registers(t, s.x_stride) && !quantized) {
            few(t, leafy, &s);
            continue;
        }
        if (s.n_rows <= FEW_ROWS) /* quantized weights: FEW_PANELS give enough independent chains */
            p = many(t, quantized, leafy, FEW_PANELS, &s, p);
        else
            p = many(t, quantized, leafy, MANY_PANELS, &s, p);
        if (SOME_PANELS > 1) p = many(t, quantized, leafy, SOME_PANELS, &s, p);
        many(t, quantized, leafy, 1, &s, p);
    }
}

#endif

/* Linears with quantized weights and int8 activations, for many rows, shared by the instruction
 * sets. (For few rows see linear_quant_few.h.) The loops, from the outside in:
 *
 *     block of up to 256 rows                     quant_linear_many
 *       two panels (packed tiles of 16 outputs)   quant_panels, quant_panels_leaf
 *         leaf (K-block), or all of K             quant_chains
 *           K-slice of up to 512 inputs           quant_piece: unpacks weights, prepares scales
 *             register tile of some rows          set_tile
 *
 * This file contains no vector code. The file of an instruction set includes it and defines the
 * functions set_* and the constants SET_* that are declared below. */
#ifndef SHOAL_KERNELS_LINEAR_QUANT_BODY_H
#define SHOAL_KERNELS_LINEAR_QUANT_BODY_H

#include "kernels/quant_body.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* How quantized weights lie in memory: as bytes; as nibbles unpacked to bytes (int4 up to 15,
 * mxfp4 up to 24; with SET_SIGNED less the bias), which register tiles read; or as packed nibbles,
 * which few rows read. */
enum quant_source {
    SOURCE_BYTES,
    SOURCE_UNPACKED_INT4,
    SOURCE_UNPACKED_MXFP4,
    SOURCE_INT4,
    SOURCE_MXFP4
};

enum {
    QUANT_BLOCK_ROWS = 256, /* rows that share a K-slice's bytes, scales and zeros */
    QUANT_PIECE = 512,      /* inputs of a K-slice: 2 x 8 KiB as bytes */
    QUANT_PANELS = 2,       /* panels of a register tile */
    QUANT_PIECE_GROUPS = QUANT_PIECE / QUANT_CODE_ALIGN,
    QUANT_LINE = 64,
    QUANT_MANY_ROWS = 64, /* from this many rows on, outputs exceed a cache and are prefetched */
};

/* The operands of a register tile: n_rows rows and n_panels panels, over whole groups of a
 * K-slice. */
struct quant_tile {
    enum quant_source source;
    bool has_zeros;
    size_t n_rows, n_panels, n_groups, group;
    const int8_t *x; /* quantized values of the first row's first group */
    size_t x_stride;
    const float *x_scales; /* [row][group], q_stride apart */
    size_t q_stride;
    const int32_t *start; /* [row][group], start_stride apart: the values with which integer sums
                             start, -bias * sum. With zero points: the sum itself. NULL with
                             SET_SIGNED and no zero points */
    size_t start_stride;
    const uint8_t *w; /* the first panel's quantized values; w_stride bytes to the next panel */
    size_t w_stride;
    const float (*scales)[QUANT_PIECE_GROUPS][PANEL_COLUMNS];  /* [panel][group] */
    const int32_t (*zeros)[QUANT_PIECE_GROUPS][PANEL_COLUMNS]; /* SET_SIGNED: bias - zero point;
                                                                  else -zero point; in 16 bits */
    /* Quantized values to prefetch meanwhile: ahead_step bytes of each panel in each group; panels
     * are ahead_stride bytes apart. */
    const uint8_t *ahead;
    size_t ahead_stride, ahead_step;
    bool begins;                 /* with SET_ENDS: the chains begin with this K-slice, at +0 */
    const struct quant_end *end; /* SET_ENDS: where to store ended chains; NULL: none end */
};

/* The instruction set also defines these constants:
 *   SET_TILE_ROWS   most rows of a register tile over unpacked nibbles
 *   SET_BYTES_ROWS  most rows of a register tile over SOURCE_BYTES
 *   SET_SIGNED      1: tiles multiply signed bytes. set_unpack then copies SOURCE_BYTES too, and
 *                   subtracts the bias (quant_bias), with zero points as well
 *   SET_ENDS        1: a tile exceeds the first-level cache, so set_tile itself starts chains at
 *                   +0 and calls quant_chains_end when they end */

/* Continues the chains acc[row][panel][16] over the tile's groups. */
static void set_tile(const struct quant_tile *t, float (*acc)[QUANT_PANELS][PANEL_COLUMNS]);

/* Reads n_vectors vectors of 64 bytes. Writes two vectors of bytes for each vector of packed
 * nibbles (mxfp4: doubled and biased), one for each vector of SOURCE_BYTES. */
static void set_unpack(enum quant_source source, const uint8_t *in, size_t n_vectors, uint8_t *out);

/* out[n] = scales [i, i + n) of the array `in`, in f32; n is a multiple of 16. */
static void set_scales(struct quant_format f, const void *in, size_t i, size_t n, float *out);

/* out[n] = bias - zero point, in the lower 16 bits; n is a multiple of 16. */
static void set_zeros(const uint8_t *in, size_t n, int32_t bias, int32_t *out);

/* out[n] = sums[n] * factor; n <= QUANT_PIECE_GROUPS, for which out always has room. */
static void set_starts(const int32_t *sums, size_t n, int32_t factor, int32_t *out);

/* True when all n partial sums of a leaf fit the grid; n is a multiple of 16. */
ALWAYS_INLINE bool set_grid_fits(const float *p, size_t n, uint32_t grid_bits);

/* to[16] = from[16] + p[16] on the integer grid. p fits the grid. As a double, each p is added to
 * a constant so large that the last bits of the sum count grid steps. The constant's bits stay in
 * `to`; quant_leaf_start has already subtracted them. */
ALWAYS_INLINE void set_grid_add(const float *p, uint32_t grid_bits, const int64_t *from,
                                int64_t *to);

/* y[n] = the integer sums as floats; n is a multiple of 16. */
ALWAYS_INLINE void set_grid_round(const int64_t *sums, size_t n, uint32_t grid_bits, float *y);

/* The current leaf (K-block) of a slice. */
struct quant_leaf {
    /* the values from which the first leaf's sums start: minus the constants that all leaves will
     * add (set_grid_add) */
    int64_t start[PANEL_COLUMNS] __attribute__((aligned(64)));
    size_t g, n_groups; /* its first group, and the number of its groups */
    bool is_first, is_last;
};

/* The destination of finished chains. They belong to a slice's rows and to the panels from `panel`
 * on, and become outputs, or partial sums of a K-block (leaf). */
struct quant_end {
    const struct quant_slice *slice;
    size_t panel;
    const struct quant_leaf *leaf; /* NULL: outputs */
    int64_t *sums;                 /* [row][panel][16], sums_row sums from row to row */
    size_t sums_row;
    int64_t *n_bad; /* [row] */
};

/* Chains of a quant_end that end together: rows [row, row + n_rows) of its slice, and n_panels
 * panels from end->panel + panel on. */
struct quant_ended {
    size_t row, n_rows, panel, n_panels;
};

/* A K-slice: the groups [g, g + n_groups). `begins` and `end` are those of struct quant_tile. */
struct quant_piece {
    size_t g, n_groups;
    bool begins;
    const struct quant_end *end;
};

/* A rectangle of one group's outputs: at most QUANT_BLOCK_ROWS rows. */
struct quant_slice {
    const struct packed *w;
    const struct quant_rows *xq;
    size_t row, n_rows; /* row: the first one's index in xq */
    /* Destinations, of the first row. Without leaves y; with leaves y and bad, or sums */
    float *y;
    size_t y_stride, y_panel; /* the panel with which y begins */
    int32_t *bad;
    int64_t *sums;
};

/* Working memory for a block of rows: their chains, and the prepared weights that they share. */
struct quant_work {
    float acc[QUANT_BLOCK_ROWS][QUANT_PANELS][PANEL_COLUMNS] __attribute__((aligned(64)));
    uint8_t bytes[QUANT_PANELS][QUANT_PIECE * PANEL_COLUMNS] __attribute__((aligned(64)));
    float scales[QUANT_PANELS][QUANT_PIECE_GROUPS][PANEL_COLUMNS] __attribute__((aligned(64)));
    int32_t zeros[QUANT_PANELS][QUANT_PIECE_GROUPS][PANEL_COLUMNS] __attribute__((aligned(64)));
    int32_t start[QUANT_BLOCK_ROWS][QUANT_PIECE_GROUPS];
};

struct quant_sums {
    int64_t sums[QUANT_BLOCK_ROWS][QUANT_PANELS][PANEL_COLUMNS] __attribute__((aligned(64)));
    int64_t n_bad[QUANT_BLOCK_ROWS];
};

static inline size_t quant_min(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline size_t quant_outputs_of(const struct packed *w, size_t panel)
{
    return quant_min(w->n_out - panel * PANEL_COLUMNS, PANEL_COLUMNS);
}

static enum quant_source quant_source_of(enum quant_kind kind)
{
    return kind == QUANT_INT8 ? SOURCE_BYTES : kind == QUANT_INT4 ? SOURCE_INT4 : SOURCE_MXFP4;
}

/* Returns the stored value that means 0 in a weight without zero points. */
ALWAYS_INLINE int32_t quant_bias(enum quant_source source)
{
    return source == SOURCE_BYTES  ? QUANT_INT8_BIAS
           : source == SOURCE_INT4 ? QUANT_INT4_ZERO
                                   : QUANT_MXFP4_BIAS;
}

/* Prepares the scales, zero points and starts of the groups [g, g + t->n_groups), and points t to
 * them. */
static void quant_prepare(const struct quant_slice *s, size_t panel, size_t g, struct quant_tile *t,
                          struct quant_work *m)
{
    const struct packed *w = s->w;
    const int32_t bias = quant_bias(quant_source_of(w->quant.kind));
    for (size_t p = 0; p < t->n_panels; p++) {
        const size_t i = kern_quant_scale_index(w, (panel + p) * PANEL_COLUMNS, g);
        const size_t n = t->n_groups * PANEL_COLUMNS;
        set_scales(w->quant, w->scales, i, n, m->scales[p][0]);
        if (t->has_zeros) set_zeros(w->zeros + i, n, SET_SIGNED ? bias : 0, m->zeros[p][0]);
    }
    t->scales = m->scales;
    t->zeros = m->zeros;
    if (t->has_zeros) {
        t->start = s->xq->sums + s->row * s->xq->n_groups + g;
        t->start_stride = s->xq->n_groups;
        return;
    }
    t->start = NULL;
    if (SET_SIGNED) return;
    for (size_t r = 0; r < s->n_rows; r++) {
        const int32_t *sums = s->xq->sums + (s->row + r) * s->xq->n_groups + g;
        set_starts(sums, t->n_groups, -bias, m->start[r]);
    }
    t->start = m->start[0];
    t->start_stride = QUANT_PIECE_GROUPS;
}

/* Returns the weights to prefetch while the groups before g of n_panels panels are multiplied: the
 * next groups; after the last group the next panels; at the weight's end the same panels again. */
static const uint8_t *quant_after(const struct packed *w, size_t panel, size_t n_panels, size_t g,
                                  size_t n_groups, size_t panel_bytes)
{
    const size_t last = (w->n_out - 1) / PANEL_COLUMNS, group_bytes = panel_bytes / n_groups;
    if (g < n_groups) return (const uint8_t *)w->data + panel * panel_bytes + g * group_bytes;
    const size_t next = panel + n_panels <= last ? panel + n_panels : panel;
    return (const uint8_t *)w->data + next * panel_bytes;
}

/* Copies n_outputs elements. For a whole panel, the usual case, the compiler knows the size and
 * makes no call. */
#define QUANT_PUT(to, from, n_outputs)                                                             \
    ((n_outputs) == PANEL_COLUMNS ? memcpy(to, from, PANEL_COLUMNS * sizeof *(from))               \
                                  : memcpy(to, from, (n_outputs) * sizeof *(from)))

/* Sets the partial sums of a panel that do not fit the grid to +0. Returns how many of the
 * n_outputs did not fit. */
static inline int64_t quant_drop(float *p, size_t n_outputs, uint32_t grid_bits)
{
    int64_t n_bad = 0;
    for (size_t i = 0; i < PANEL_COLUMNS; i++) {
        if (fabsf(p[i]) < kern_grid_limit(grid_bits)) continue;
        p[i] = 0;
        n_bad += i < n_outputs;
    }
    return n_bad;
}

/* Return the addresses of row r's sums, and of its outputs, in a panel. */
static inline int64_t *quant_sums_at(const struct quant_slice *s, size_t r, size_t panel)
{
    return s->sums + r * ((size_t)s->w->n_out + 1) + panel * PANEL_COLUMNS;
}

static inline float *quant_y_at(const struct quant_slice *s, size_t r, size_t panel)
{
    return s->y + r * s->y_stride + (panel - s->y_panel) * PANEL_COLUMNS;
}

/* y [n_outputs] = sums [n_panels][16] as floats; n_panels is constant. */
ALWAYS_INLINE void quant_put_rounded(const int64_t *sums, size_t n_panels, size_t n_outputs,
                                     uint32_t grid_bits, float *y)
{
    float all[QUANT_PANELS * PANEL_COLUMNS];
    const bool is_whole = n_outputs == n_panels * PANEL_COLUMNS;
    set_grid_round(sums, n_panels * PANEL_COLUMNS, grid_bits, is_whole ? y : all);
    if (!is_whole) memcpy(y, all, n_outputs * sizeof *y);
}

/* Ends a leaf for all rows and n_panels (constant) neighbouring panels: adds the partial sums acc,
 * acc_row elements from row to row, to e->sums, and after the last leaf writes the result to its
 * destination. Values shared by all rows are copied to locals, because the compiler must assume
 * that the stores change the structs. */
ALWAYS_INLINE void quant_leaf_end(const struct quant_end *e, size_t n_panels, float *acc,
                                  size_t acc_row)
{
    const struct quant_slice *s = e->slice;
    const struct quant_leaf *l = e->leaf;
    const size_t panel = e->panel, sums_row = e->sums_row;
    int64_t *sums = e->sums, *n_bad = e->n_bad;
    const uint32_t bits = s->w->grid_bits;
    const size_t n_rows = s->n_rows, last = panel + n_panels - 1;
    const size_t n_outputs = quant_outputs_of(s->w, last);
    const size_t n = (n_panels - 1) * PANEL_COLUMNS + n_outputs;
    const bool is_first = l->is_first, rounds = l->is_last && s->sums == NULL;
    const bool is_there = l->is_last && !rounds && n_outputs == PANEL_COLUMNS;
    int64_t whole[QUANT_PANELS * PANEL_COLUMNS] __attribute__((aligned(64)));
    const int64_t *from = is_first ? l->start : sums;
    int64_t *to = rounds ? whole : is_there ? quant_sums_at(s, 0, panel) : sums;
    const size_t to_row = rounds ? 0 : is_there ? (size_t)s->w->n_out + 1 : sums_row;
    for (size_t r = 0; r < n_rows; r++) {
        float *p = acc + r * acc_row;
        if (!set_grid_fits(p, n_panels * PANEL_COLUMNS, bits)) {
            for (size_t i = 0; i < n_panels; i++)
                n_bad[r] +=
                    quant_drop(p + i * PANEL_COLUMNS, quant_outputs_of(s->w, panel + i), bits);
        }
#pragma GCC unroll 2
        for (size_t i = 0; i < n_panels; i++)
            set_grid_add(p + i * PANEL_COLUMNS, bits, from + (is_first ? 0 : i * PANEL_COLUMNS),
                         to + i * PANEL_COLUMNS);
        if (rounds) quant_put_rounded(whole, n_panels, n, bits, quant_y_at(s, r, panel));
        from += is_first ? 0 : sums_row;
        to += to_row;
    }
    for (size_t r = 0; l->is_last && !rounds && !is_there && r < n_rows; r++)
        memcpy(quant_sums_at(s, r, panel), sums + r * sums_row, n * sizeof *sums);
}

/* Ends chains [n_rows][16 n_panels], acc_row elements from row to row. n_panels is constant. */
ALWAYS_INLINE void quant_chains_end(const struct quant_end *e, struct quant_ended which,
                                    float *chains, size_t acc_row)
{
    const size_t row = which.row, panel = e->panel + which.panel;
    struct quant_slice s = *e->slice;
    s.n_rows = which.n_rows;
    if (s.y != NULL) s.y += row * s.y_stride;
    if (e->leaf != NULL) {
        if (s.sums != NULL) s.sums = quant_sums_at(e->slice, row, 0);
        const struct quant_end end = {.slice = &s,
                                      .panel = panel,
                                      .leaf = e->leaf,
                                      .sums =
                                          e->sums + row * e->sums_row + which.panel * PANEL_COLUMNS,
                                      .sums_row = e->sums_row,
                                      .n_bad = e->n_bad + row};
        quant_leaf_end(&end, which.n_panels, chains, acc_row);
        return;
    }
    for (size_t r = 0; r < which.n_rows; r++)
        for (size_t i = 0; i < which.n_panels; i++)
            QUANT_PUT(quant_y_at(&s, r, panel + i), chains + r * acc_row + i * PANEL_COLUMNS,
                      quant_outputs_of(s.w, panel + i));
}

/* Ends a leaf of one or two panels; the rows of acc are QUANT_PANELS panels apart. */
static inline void quant_panels_leaf_end(const struct quant_end *e, size_t n_panels, float *acc)
{
    const size_t acc_row = QUANT_PANELS * PANEL_COLUMNS;
    if (n_panels == QUANT_PANELS)
        quant_leaf_end(e, QUANT_PANELS, acc, acc_row);
    else
        quant_leaf_end(e, 1, acc, acc_row);
}

/* Ends the chains of a register tile of one or two panels, while the cache still holds them. */
static void quant_tile_end(const struct quant_end *e, size_t row, size_t n_rows, size_t n_panels,
                           float (*acc)[QUANT_PANELS][PANEL_COLUMNS])
{
    const size_t acc_row = QUANT_PANELS * PANEL_COLUMNS;
    if (n_panels == QUANT_PANELS)
        quant_chains_end(e, (struct quant_ended){row, n_rows, 0, QUANT_PANELS}, acc[0][0], acc_row);
    else
        quant_chains_end(e, (struct quant_ended){row, n_rows, 0, 1}, acc[0][0], acc_row);
}

static inline void quant_tile_begin(size_t n_rows, float (*acc)[QUANT_PANELS][PANEL_COLUMNS])
{
    for (size_t r = 0; r < n_rows; r++) memset(acc[r], 0, sizeof acc[r]); /* fixed size: no call */
}

/* Prefetches a cache line that will be written. */
static inline void quant_fetch_own(const void *line)
{
    __asm__ volatile("prefetchw (%0)" : : "r"(line));
}

/* Prefetches the cache lines to which chains will be written, so that the stores do not wait for
 * memory. */
static inline void quant_fetch_ends(const struct quant_end *e, struct quant_ended which)
{
    const struct quant_slice *s = e->slice;
    const size_t panel = e->panel + which.panel;
    if (s->n_rows < QUANT_MANY_ROWS || (e->leaf != NULL && !e->leaf->is_last)) return;
    for (size_t r = which.row; r < which.row + which.n_rows; r++) {
        for (size_t i = panel; i < panel + which.n_panels; i++) {
            if (s->sums == NULL) {
                quant_fetch_own(quant_y_at(s, r, i));
            } else {
                quant_fetch_own(quant_sums_at(s, r, i));
                quant_fetch_own(quant_sums_at(s, r, i) + PANEL_COLUMNS / 2);
            }
        }
    }
}

/* Continues the chains of all rows and n_panels panels over a K-slice. */
static void quant_piece(const struct quant_slice *s, size_t panel, size_t n_panels,
                        const struct quant_piece *piece, struct quant_work *m)
{
    const size_t g = piece->g, n_groups = piece->n_groups;
    const struct quant_end *end = piece->end;
    const struct packed *w = s->w;
    const struct quant_rows *q = s->xq;
    const size_t panel_bytes = kern_quant_panel_bytes(w->quant, w->n_in);
    const size_t group_bytes = panel_bytes / q->n_groups;
    const enum quant_source source = quant_source_of(w->quant.kind);
    const size_t most = source == SOURCE_BYTES ? SET_BYTES_ROWS : SET_TILE_ROWS;
    const size_t n_tiles = (s->n_rows + most - 1) / most;
    struct quant_tile t = {
        .source = source,
        .has_zeros = w->quant.has_zeros,
        .n_panels = n_panels,
        .n_groups = n_groups,
        .group = q->group,
        .x_stride = q->n_groups * q->group,
        .q_stride = q->n_groups,
        .w = (const uint8_t *)w->data + panel * panel_bytes + g * group_bytes,
        .w_stride = panel_bytes,
        .ahead = quant_after(w, panel, n_panels, g + n_groups, q->n_groups, panel_bytes),
        .ahead_stride = panel_bytes,
        .ahead_step = (group_bytes + n_tiles - 1) / n_tiles,
        .begins = piece->begins,
        .end = end};
    quant_prepare(s, panel, g, &t, m);
    if (source != SOURCE_BYTES || SET_SIGNED) {
        const size_t n_vectors = n_groups * group_bytes / QUANT_LINE;
        for (size_t p = 0; p < n_panels; p++)
            set_unpack(source, t.w + p * t.w_stride, n_vectors, m->bytes[p]);
        if (source == SOURCE_INT4) t.source = SOURCE_UNPACKED_INT4;
        if (source == SOURCE_MXFP4) t.source = SOURCE_UNPACKED_MXFP4;
        t.w = m->bytes[0];
        t.w_stride = sizeof m->bytes[0];
    }
    const int32_t *start = t.start;
    for (size_t i = 0, r = 0; i < n_tiles; i++, r += t.n_rows) {
        t.n_rows = (s->n_rows - r + n_tiles - i - 1) / (n_tiles - i);
        t.x = q->codes + (s->row + r) * t.x_stride + g * q->group;
        t.x_scales = q->scales + (s->row + r) * q->n_groups + g;
        if (start != NULL) t.start = start + r * t.start_stride;
        if (SET_ENDS) {
            set_tile(&t, m->acc + r);
        } else {
            if (piece->begins) quant_tile_begin(t.n_rows, m->acc + r);
            if (end != NULL) quant_fetch_ends(end, (struct quant_ended){r, t.n_rows, 0, n_panels});
            set_tile(&t, m->acc + r);
            if (end != NULL) quant_tile_end(end, r, t.n_rows, n_panels, m->acc + r);
        }
        t.ahead += n_groups * t.ahead_step;
    }
}

/* Computes the chains of a leaf's groups [g0, g1) in n_panels panels, starting at +0, and stores
 * them as `end` says. */
static void quant_chains(const struct quant_end *end, size_t n_panels, size_t g0, size_t g1,
                         struct quant_work *m)
{
    const struct quant_slice *s = end->slice;
    const size_t most = QUANT_PIECE / s->xq->group;
    const size_t n_pieces = (g1 - g0 + most - 1) / most;
    if (n_pieces == 0) {
        quant_tile_begin(s->n_rows, m->acc);
        quant_tile_end(end, 0, s->n_rows, n_panels, m->acc);
    }
    struct quant_piece piece = {.g = g0};
    for (size_t i = 0; i < n_pieces; i++, piece.g += piece.n_groups) {
        piece.n_groups = (g1 - piece.g + n_pieces - i - 1) / (n_pieces - i);
        piece.begins = i == 0;
        piece.end = i + 1 == n_pieces ? end : NULL;
        quant_piece(s, end->panel, n_panels, &piece, m);
    }
}

static void quant_panels(const struct quant_slice *s, size_t panel, size_t n_panels)
{
    struct quant_work m;
    const struct quant_end end = {.slice = s, .panel = panel};
    quant_chains(&end, n_panels, 0, s->xq->n_groups, &m);
}

/* Returns the first leaf. A weight without inputs also has one leaf, of zeros. */
static inline struct quant_leaf quant_leaf_start(const struct quant_slice *s)
{
    const size_t leaf_groups = s->w->leaf / s->xq->group, n_groups = s->xq->n_groups;
    const uint64_t n_leaves = n_groups > 0 ? (n_groups + leaf_groups - 1) / leaf_groups : 1;
    const double magic = 1.5 * kern_pow2(52 - (int)s->w->grid_bits);
    uint64_t bits;
    struct quant_leaf l = {
        .n_groups = quant_min(leaf_groups, n_groups), .is_first = true, .is_last = n_leaves == 1};
    memcpy(&bits, &magic, sizeof bits);
    for (size_t i = 0; i < PANEL_COLUMNS; i++) l.start[i] = (int64_t)(0 - n_leaves * bits);
    return l;
}

static inline void quant_leaf_next(const struct quant_slice *s, struct quant_leaf *l)
{
    const size_t n_groups = s->xq->n_groups;
    l->g += l->n_groups;
    l->n_groups = quant_min(l->n_groups, n_groups - l->g);
    l->is_first = false;
    l->is_last = l->g + l->n_groups == n_groups;
}

static inline void quant_count_bad(const struct quant_slice *s, const int64_t *n_bad)
{
    for (size_t r = 0; r < s->n_rows; r++) {
        if (s->sums == NULL)
            kern_mark_bad(&s->bad[r], n_bad[r]);
        else
            kern_count_bad(quant_sums_at(s, r, 0) + s->w->n_out, n_bad[r]);
    }
}

static void quant_panels_leaf(const struct quant_slice *s, size_t panel, size_t n_panels)
{
    struct quant_work m;
    struct quant_sums l;
    struct quant_leaf leaf = quant_leaf_start(s);
    const struct quant_end end = {.slice = s,
                                  .panel = panel,
                                  .leaf = &leaf,
                                  .sums = l.sums[0][0],
                                  .sums_row = QUANT_PANELS * PANEL_COLUMNS,
                                  .n_bad = l.n_bad};
    memset(l.n_bad, 0, s->n_rows * sizeof l.n_bad[0]);
    for (;; quant_leaf_next(s, &leaf)) {
        quant_chains(&end, n_panels, leaf.g, leaf.g + leaf.n_groups, &m);
        if (leaf.is_last) break;
    }
    quant_count_bad(s, l.n_bad);
}

/* Computes panels [panel, panel + n_panels) for a block of rows. */
typedef void quant_panels_fn(const struct quant_slice *s, size_t panel, size_t n_panels);

/* Returns the slice of rows [row, row + n_rows) of a group. */
static inline struct quant_slice quant_slice_of(bool leafy, const struct linear_args *a,
                                                const struct linear_group *g, size_t row,
                                                size_t n_rows)
{
    const size_t at = g->row0 + row;
    struct quant_slice s = {
        .w = g->w, .xq = a->xq, .row = at, .n_rows = n_rows, .y_stride = a->y_stride};
    if (leafy && a->sums != NULL) {
        s.sums = a->sums + at * ((size_t)g->w->n_out + 1);
        return s;
    }
    s.y = a->y + (at - a->y_row) * a->y_stride;
    s.y_panel = a->y_panel;
    if (leafy) s.bad = a->bad + at;
    return s;
}

/* Computes many rows in blocks of about equal size; each call of `panels` takes n_at_once panels.
 */
static inline void quant_linear_many(quant_panels_fn *panels, size_t n_at_once, bool leafy,
                                     const struct linear_args *a, const struct linear_slice *whole)
{
    const struct linear_group *g = &a->groups[whole->group];
    const size_t panel1 = whole->panel1, row1 = whole->row1;
    const size_t n_blocks = (row1 - whole->row0 + QUANT_BLOCK_ROWS - 1) / QUANT_BLOCK_ROWS;
    for (size_t i = 0, row = whole->row0; i < n_blocks; i++) {
        const size_t n_rows = (row1 - row + n_blocks - i - 1) / (n_blocks - i);
        const struct quant_slice s = quant_slice_of(leafy, a, g, row, n_rows);
        for (size_t p = whole->panel0; p < panel1; p += n_at_once)
            panels(&s, p, quant_min(panel1 - p, n_at_once));
        row += n_rows;
    }
}

#endif

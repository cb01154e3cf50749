/* Register tiles over a K-slice of converted weights, for many rows. While a tile multiplies, it
 * also prefetches inputs and weights and converts a part of the next K-slice. Included only by
 * linear_body.h, which lists the names that the including file defines. */
#ifndef SHOAL_KERNELS_LINEAR_PIECE_H
#define SHOAL_KERNELS_LINEAR_PIECE_H

#include "kernels/linear_fp8.h"

enum {
    ROWS_TOGETHER = 3, /* rows addressed from one register, by multiples of the stride */
    STEPS = 4,         /* inputs of an unrolled loop; divides LINE_FLOATS */
};

/* The conversion of a K-slice from the packed weights to scratch memory [n][n_panels][16]. */
struct conversion {
    enum dtype t;
    const char *from; /* the next input of the first panel */
    size_t panel_bytes;
    float *to;
    size_t n_left, n_each; /* inputs left; inputs of one call of convert. fp8: multiples of 4 */
    struct fp8_piece *fp8; /* fp8 only */
};

/* The operands of a register tile over a K-slice, and the data that the tile prefetches and
 * converts meanwhile. */
struct tile_work {
    const float *x; /* [n_rows, x_stride] from the K-slice's first input */
    size_t x_stride;
    const float *w; /* [n_k][n_panels][16] */
    size_t n_k;
    bool begins;                 /* chains start at +0 instead of c */
    const float *next;           /* inputs to prefetch, laid out like x; any address is allowed */
    const char *ahead;           /* weights to prefetch; any address is allowed */
    size_t panel_bytes, n_ahead; /* bytes from panel to panel; cache lines of each panel to
                                    prefetch per LINE_FLOATS inputs */
    struct conversion *conversion;
};

/* to[n][n_panels][16] = the next n inputs of panels of floats that are panel_bytes apart. */
ALWAYS_INLINE void convert_floats(enum dtype t, size_t n_panels, size_t n, const char *from,
                                  size_t panel_bytes, float *to)
{
    for (const char *end = from + n * input_bytes(t); from < end; from += input_bytes(t)) {
        UNROLL(4)
        for (size_t p = 0; p < n_panels; p++)
            v16_store_aligned(to + p * PANEL_COLUMNS, load_weights(t, from + p * panel_bytes, 0));
        to += n_panels * PANEL_COLUMNS;
    }
}

ALWAYS_INLINE void convert_as(enum dtype t, size_t n_panels, struct conversion *c)
{
    const size_t n = c->n_left < c->n_each ? c->n_left : c->n_each;
    if (t == DTYPE_F8_E4M3)
        fp8_convert(n_panels, n, (const uint8_t *)c->from, c->panel_bytes, c->fp8, c->to);
    else
        convert_floats(t, n_panels, n, c->from, c->panel_bytes, c->to);
    c->from += n * input_bytes(t);
    c->to += n * n_panels * PANEL_COLUMNS;
    c->n_left -= n;
}

/* Converts the next n_each inputs, or those that are left. */
ALWAYS_INLINE void convert(size_t n_panels, struct conversion *c)
{
    if (c->n_left == 0) return;
    if (c->t == DTYPE_BF16)
        convert_as(DTYPE_BF16, n_panels, c);
    else if (c->t == DTYPE_F16)
        convert_as(DTYPE_F16, n_panels, c);
    else if (c->t == DTYPE_F8_E4M3)
        convert_as(DTYPE_F8_E4M3, n_panels, c);
    else
        convert_as(DTYPE_F32, n_panels, c);
}

/* Prefetches and converts the share that belongs to inputs [k, k + LINE_FLOATS) of a K-slice. */
ALWAYS_INLINE void meanwhile(size_t n_rows, size_t n_panels, const struct tile_work *o, size_t k)
{
    UNROLL(16)
    for (size_t r = 0; r < n_rows; r++)
        _mm_prefetch((const char *)(o->next + r * o->x_stride + k), _MM_HINT_T0);
    const char *from = o->ahead + k / LINE_FLOATS * o->n_ahead * LINE_BYTES;
    for (const char *at = from; at < from + o->n_ahead * LINE_BYTES; at += LINE_BYTES) {
        UNROLL(4)
        for (size_t p = 0; p < n_panels; p++) _mm_prefetch(at + p * o->panel_bytes, _MM_HINT_T1);
    }
    convert(n_panels, o->conversion);
}

/* Adds the products of n (constant) more inputs to the sums a[row][panel]. x[i] points to row i *
 * ROWS_TOGETHER. */
ALWAYS_INLINE void multiply(size_t n_rows, size_t n_panels, size_t n, const float *const *x,
                            size_t x_stride, const float *w, struct v16 *a)
{
    UNROLL(4)
    for (size_t k = 0; k < n; k++) {
        struct v16 wk[FEW_PANELS];
        UNROLL(4)
        for (size_t p = 0; p < n_panels; p++)
            wk[p] = load_weights(DTYPE_F32, w, (k * n_panels + p) * PANEL_COLUMNS);
        UNROLL(16)
        for (size_t r = 0; r < n_rows; r++) {
            const float xk = x[r / ROWS_TOGETHER][r % ROWS_TOGETHER * x_stride + k];
            UNROLL(4)
            for (size_t p = 0; p < n_panels; p++)
                a[r * n_panels + p] = v16_fma(xk, wk[p], a[r * n_panels + p]);
        }
    }
}

ALWAYS_INLINE void advance(size_t n_rows, size_t n_panels, size_t n, const float **x,
                           const float **w)
{
    *w += n * n_panels * PANEL_COLUMNS;
    UNROLL(4)
    for (size_t i = 0; i * ROWS_TOGETHER < n_rows; i++) x[i] += n;
}

/* Continues the chains c[row][panel] over a K-slice. n_rows * n_panels <= TILE; both are constant.
 */
ALWAYS_INLINE void tile_chains(size_t n_rows, size_t n_panels, const struct tile_work *o,
                               struct v16 *c)
{
    struct v16 a[TILE];
    const float *x[MOST_ROWS / ROWS_TOGETHER], *w = o->w;
    UNROLL(4)
    for (size_t i = 0; i * ROWS_TOGETHER < n_rows; i++)
        x[i] = o->x + i * ROWS_TOGETHER * o->x_stride;
    UNROLL(32)
    for (size_t i = 0; i < n_rows * n_panels; i++) a[i] = o->begins ? v16_zero() : c[i];
    for (size_t k = 0; k < o->n_k; k += LINE_FLOATS) {
        const size_t left = o->n_k - k, n = left < LINE_FLOATS ? left : LINE_FLOATS;
        meanwhile(n_rows, n_panels, o, k);
        size_t i = 0;
        for (; i + STEPS <= n; i += STEPS) {
            multiply(n_rows, n_panels, STEPS, x, o->x_stride, w, a);
            advance(n_rows, n_panels, STEPS, x, &w);
        }
        for (; i < n; i++) {
            multiply(n_rows, n_panels, 1, x, o->x_stride, w, a);
            advance(n_rows, n_panels, 1, x, &w);
        }
    }
    UNROLL(32)
    for (size_t i = 0; i < n_rows * n_panels; i++) c[i] = a[i];
}

/* Multiplies n rows by a K-slice; n is 1 to TILE / n_panels, and at most MOST_ROWS. */
ALWAYS_INLINE void piece_tile(size_t n, size_t n_panels, const struct tile_work *o, struct v16 *c)
{
#define PIECE_TILE(rows)                                                                           \
    case rows:                                                                                     \
        if (rows * n_panels <= TILE) tile_chains(rows, n_panels, o, c);                            \
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

/* Runs piece_tile for one number of panels; compiled once for all types of weights. */
typedef void piece_tile_fn(size_t n, const struct tile_work *o, struct v16 *c);

#define PIECE_TILES(name, n_panels)                                                                \
    static __attribute__((noinline)) void name(size_t n, const struct tile_work *o, struct v16 *c) \
    {                                                                                              \
        piece_tile(n, n_panels, o, c);                                                             \
    }
PIECE_TILES(piece_tile_1, 1)
PIECE_TILES(piece_tile_2, 2)
PIECE_TILES(piece_tile_4, 4)

#endif

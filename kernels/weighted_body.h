/* The sum of weighted rows on the integer grid (struct weighted_rows in kern.h), tile by tile. The
 * including file defines
 *     WEIGHTED_TILE     columns of a tile, a multiple of WEIGHTED_LEAST
 *     bool weighted_tile(const struct weighted_rows *a, size_t i, size_t n, int64_t *sums)
 *         sums [n] = the sums of columns [i, i + n), with n = WEIGHTED_TILE or WEIGHTED_LEAST;
 *         false if a value may be too large for the grid, and then the sums are undefined */
#ifndef SHOAL_KERNELS_WEIGHTED_BODY_H
#define SHOAL_KERNELS_WEIGHTED_BODY_H

#include "kernels/body.h"

enum { WEIGHTED_LEAST = 16 };

/* Sums columns [i, i + n), one by one. Returns the number of values that are NaN or too large for
 * the grid. */
static int64_t weighted_columns(const struct weighted_rows *a, size_t i, size_t n, int64_t *sums)
{
    int64_t n_bad = 0;
    for (size_t j = 0; j < n; j++) sums[j] = kern_weighted_column(a, i + j, &n_bad);
    return n_bad;
}

/* Returns the width of the next tile: whole tiles first, then short ones, then the rest. */
static size_t weighted_next(size_t n_left)
{
    if (n_left >= WEIGHTED_TILE) return WEIGHTED_TILE;
    return n_left >= WEIGHTED_LEAST ? WEIGHTED_LEAST : n_left;
}

static int64_t weighted_any_tile(const struct weighted_rows *a, size_t i, size_t n, int64_t *sums)
{
    const bool done = n == WEIGHTED_TILE    ? weighted_tile(a, i, WEIGHTED_TILE, sums)
                      : n == WEIGHTED_LEAST ? weighted_tile(a, i, WEIGHTED_LEAST, sums)
                                            : false;
    return done ? 0 : weighted_columns(a, i, n, sums);
}

/* grid_to_f32: the entry of the table. */
static int64_t weighted_to_f32(const struct weighted_rows *a, float *y,
                               void (*grid_to_f32)(const int64_t *sums, size_t n,
                                                   uint32_t grid_bits, float *y))
{
    int64_t tile[WEIGHTED_TILE], n_bad = 0;
    for (size_t i = 0, n; i < a->n; i += n) {
        n = weighted_next(a->n - i);
        n_bad += weighted_any_tile(a, i, n, tile);
        grid_to_f32(tile, n, a->grid_bits, y + i);
    }
    return n_bad;
}

static int64_t weighted_add(const struct weighted_rows *a, int64_t *sums)
{
    int64_t tile[WEIGHTED_TILE], n_bad = 0;
    for (size_t i = 0, n; i < a->n; i += n) {
        n = weighted_next(a->n - i);
        n_bad += weighted_any_tile(a, i, n, tile);
        for (size_t j = 0; j < n; j++) sums[i + j] += tile[j];
    }
    return n_bad;
}

#endif

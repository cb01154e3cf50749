/* The rows, inputs and outputs of a block, shared by the linears of all weight types; b.z is the
 * leaf (K-block). With linear_part_of a block has eight panels (packed tiles) of sixteen outputs
 * and up to eight rows, and each thread computes whole chains of one output in the order of the
 * numerics law. */
#ifndef SHOAL_KERNELS_CUDA_LINEAR_TILE_H
#define SHOAL_KERNELS_CUDA_LINEAR_TILE_H

#include "kernels/cuda/dialect.h"
#include "kernels/quant_body.h"

struct linear_part {
    const struct packed *w;
    size_t row0;        /* first row in x and y */
    uint32_t n_rows;    /* of this block: at least 1, at most at_once (linear_rows_of) */
    uint32_t n, k0, k1; /* the output's number; its inputs [k0, k1) */
    uint32_t panel, column;
};

/* Finds the weight and the rows of block b.y, of up to `at_once` rows. */
BLOCK_INLINE void linear_rows_of(const struct linear_work *a, struct cuda_block b, uint32_t at_once,
                                 struct linear_part *p)
{
    const size_t row = (size_t)b.y * at_once;
    p->w = &a->one;
    p->row0 = a->row0 + row;
    if (a->weights != NULL) {
        const struct linear_tile *tile = &a->tiles[b.y];
        p->w = &a->weights[tile->group];
        p->row0 = tile->row0;
        p->n_rows = tile->n_rows;
    } else {
        p->n_rows = a->n_rows - row < at_once ? (uint32_t)(a->n_rows - row) : at_once;
    }
}

/* Finds the inputs of block b.z: those of its leaf, or all inputs. */
BLOCK_INLINE void linear_inputs_of(const struct linear_work *a, struct cuda_block b, bool leafy,
                                   struct linear_part *p)
{
    p->k0 = leafy ? (a->leaf0 + b.z) * p->w->leaf : 0;
    p->k1 = leafy && p->w->n_in - p->k0 > p->w->leaf ? p->k0 + p->w->leaf : p->w->n_in;
}

/* Finds a thread's output. False: it has none. */
BLOCK_INLINE bool linear_part_of(const struct linear_work *a, struct cuda_block b, uint32_t thread,
                                 bool leafy, struct linear_part *p)
{
    linear_rows_of(a, b, CUDA_LINEAR_ROWS, p);
    linear_inputs_of(a, b, leafy, p);
    p->panel = b.x * (CUDA_THREADS / PANEL_COLUMNS) + thread / PANEL_COLUMNS;
    p->column = thread % PANEL_COLUMNS;
    p->n = p->panel * PANEL_COLUMNS + p->column;
    return p->n < p->w->n_out;
}

/* Returns the index in x and y of row r of the part. An r beyond the part gives its last row, so
 * that loads stay inside. */
BLOCK_INLINE size_t linear_row(const struct linear_part *p, uint32_t r)
{
    return p->row0 + (r < p->n_rows ? r : p->n_rows - 1);
}

BLOCK_INLINE void linear_store(const struct linear_work *a, const struct linear_part *p, uint32_t r,
                               float acc)
{
    if (r < p->n_rows) a->y[(p->row0 + r) * a->y_stride + p->n] = acc;
}

BLOCK_INLINE void linear_store_leaf(const struct linear_work *a, const struct linear_part *p,
                                    uint32_t r, float acc)
{
    if (r >= p->n_rows) return;
    int64_t *sums = a->sums + (p->row0 + r) * ((size_t)p->w->n_out + 1);
    if (fabsf(acc) < kern_grid_limit(p->w->grid_bits))
        block_add_i64(&sums[p->n], block_round((double)acc * kern_pow2((int)p->w->grid_bits)));
    else
        block_add_i64(&sums[p->w->n_out], 1);
}

/* Returns the doubled values, as signed bytes, of four nibbles (E2M1) in the low halves of a
 * word's bytes: 0, 1, 2, 3, 4, 6, 8, 12 and their negatives. */
BLOCK_INLINE uint32_t quant_doubled(uint32_t nibbles)
{
    const uint32_t m = nibbles & 0x07070707u, minus = (nibbles >> 3 & 0x01010101u) * 0xFFu;
    const uint32_t from5 = (m + 0x03030303u) >> 3 & 0x01010101u;
    const uint32_t is7 = (m + 0x01010101u) >> 3 & 0x01010101u;
    const uint32_t size = m + (m & from5 * 3) + is7 * 2;
    return (0x80808080u + size - 2 * (size & minus)) ^ 0x80808080u; /* 128 keeps bytes apart */
}

/* Returns the offset that corrects a group's sum of products for the zero point: the exact sum is
 * that sum plus offset times the sum of the row's quantized values. The products use the weight's
 * stored values (int8: less 128). */
BLOCK_INLINE int32_t quant_offset(const struct packed *w, size_t n, size_t g)
{
    if (w->quant.kind == QUANT_MXFP4) return 0;
    const int32_t zero = kern_quant_zero(w, n, g);
    return w->quant.kind == QUANT_INT8 ? QUANT_INT8_BIAS - zero : -zero;
}

#endif

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
    uint32_t n_rows;    /* 1 to the `at_once` of linear_rows_of */
    uint32_t n, k0, k1; /* the output; its inputs [k0, k1) */
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
 * word's bytes. */
BLOCK_INLINE uint32_t quant_doubled(uint32_t nibbles)
{
    uint32_t v = 0;
    BLOCK_UNROLL
    for (int i = 0; i < 4; i++)
        v |= (uint32_t)(uint8_t)e2m1_doubled((uint8_t)(nibbles >> 8 * i & 15)) << 8 * i;
    return v;
}

/* Returns the integer sum over group g of the row's quantized values times the weight's (int8: less
 * 128; mxfp4: doubled). */
BLOCK_INLINE int32_t quant_sum(enum quant_kind kind, const uint32_t *words, uint32_t g, uint32_t G,
                               const uint32_t *x)
{
    int32_t sum = 0;
    if (kind == QUANT_INT8) {
        for (uint32_t i = 0; i < G / 4; i++)
            sum = block_dot4(words[(size_t)(g * (G / 4) + i) * PANEL_COLUMNS] ^ 0x80808080u, x[i],
                             sum);
        return sum;
    }
    for (uint32_t i = 0; i < G / 8; i++) {
        const uint32_t v = words[(size_t)(g * (G / 8) + i) * PANEL_COLUMNS];
        uint32_t low = v & 0x0F0F0F0Fu, high = v >> 4 & 0x0F0F0F0Fu;
        if (kind == QUANT_MXFP4) {
            low = quant_doubled(low);
            high = quant_doubled(high);
        }
        sum = block_dot4(low, x[2 * i], sum);
        sum = block_dot4(high, x[2 * i + 1], sum);
    }
    return sum;
}

/* Returns the factor with which the sum of the row's quantized values is added to quant_sum, to
 * correct it for the zero point. */
BLOCK_INLINE int32_t quant_offset(const struct packed *w, size_t n, size_t g)
{
    if (w->quant.kind == QUANT_MXFP4) return 0;
    const int32_t zero = kern_quant_zero(w, n, g);
    return w->quant.kind == QUANT_INT8 ? QUANT_INT8_BIAS - zero : -zero;
}

#endif

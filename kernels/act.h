/* Activations of linears, row by row: floats, and the int8 quantized values that are made from them
 * when a linear first needs them. Linears over the same rows share these values if their weights
 * have the same group size. */
#ifndef SHOAL_KERNELS_ACT_H
#define SHOAL_KERNELS_ACT_H

#include "kernels/kern.h"

struct act_rows {
    const float *x; /* [n_rows, stride], borrowed */
    size_t stride, n_rows;
    size_t n;     /* inputs, K of the linears */
    void *memory; /* act_codes_bytes, 64-byte aligned, borrowed; NULL: never quantized (weight-only
                     arithmetic) */
    /* n_all 0: x has all inputs. Else x has only the inputs [first, first + n) of n_all, which are
     * whole groups, and `memory` holds the quantized values of all n_all inputs; other ranks make
     * the rest. */
    size_t first, n_all;
    struct quant_rows codes; /* of all inputs; group 0: not made yet */
    struct quant_rows own;   /* the part that is made from x */
};

/* Local. Returns the bytes of `memory` for n_rows rows of n inputs, whatever the group size.
 * SIZE_MAX: overflow. */
size_t act_codes_bytes(size_t n_rows, size_t n);

/* Local. Returns the rows quantized in groups of w's size. Quantizes at the first call, and again
 * when the group size differs from that of the previous call, whose values are then lost. NULL if
 * the linear reads floats: plain weights, fp8, weight-only arithmetic. */
const struct quant_rows *act_codes(const struct kern_table *k, struct act_rows *rows,
                                   const struct packed *w);

/* Local. Prepares rows->codes like act_codes, but does not quantize: returns rows->own, the part
 * that the caller fills (op_gated) before act_codes is called. NULL as for act_codes. */
const struct quant_rows *act_codes_to_make(struct act_rows *rows, const struct packed *w);

/* Local. Whether linears with a and with b read the same quantized values; false if they read
 * floats. */
bool act_codes_alike(const struct packed *a, const struct packed *b);

/* Local. Makes the quantized rows for w by copying: row slots[i] = row i / per_row of `from`
 * (struct scatter_args in kernels/ops.h). Does not read rows->x; rows->memory is not NULL. */
struct scatter_args;
void act_codes_scatter(const struct kern_table *k, struct act_rows *rows, const struct packed *w,
                       const struct quant_rows *from, const struct scatter_args *slots);

/* Local. Returns `all` from row `row` on; the result borrows the memory of `all`. */
struct quant_rows act_codes_from(const struct quant_rows *all, size_t row);

/* Local. Whether act_codes for w would overwrite values that were made for another group size. */
bool act_codes_replace(const struct act_rows *rows, const struct packed *w);

#endif

/* Rows of activations for linears: floats, and their int8 quantized values, which are made when the
 * first linear needs them. Linears over the same rows share one quantization. */
#ifndef SHOAL_KERNELS_ACT_H
#define SHOAL_KERNELS_ACT_H

#include "kernels/kern.h"

struct act_rows {
    const float *x; /* [n_rows, stride], borrowed */
    size_t stride, n_rows;
    size_t n;     /* inputs, K of the linears */
    void *memory; /* act_codes_bytes, 64-byte aligned, borrowed; NULL: no quantization (weight-
                     only arithmetic) */
    /* n_all 0: x has all inputs. Else x has the inputs [first, first + n) of n_all, cut between
     * groups, and `memory` holds the quantized values of all n_all inputs; other ranks make the
     * rest. */
    size_t first, n_all;
    struct quant_rows codes; /* of all inputs, once act_codes has made them; group 0: not made
                                yet */
    struct quant_rows own;   /* the part that is made from x */
};

/* Local. Bytes of memory for n_rows rows of n inputs, whatever the group. SIZE_MAX: overflow. */
size_t act_codes_bytes(size_t n_rows, size_t n);

/* Local. The rows quantized in groups of w's size. The first call quantizes; later calls with the
 * same group return the same values. NULL if the linear reads floats: plain weights, fp8,
 * weight-only arithmetic. */
const struct quant_rows *act_codes(const struct kern_table *k, struct act_rows *rows,
                                   const struct packed *w);

/* Local. Returns the same memory, but the caller fills it (op_gated) before it calls act_codes. */
const struct quant_rows *act_codes_to_make(struct act_rows *rows, const struct packed *w);

/* Local. Whether linears with a and with b read the same quantized values; false if they read
 * floats. */
bool act_codes_alike(const struct packed *a, const struct packed *b);

/* Local. Quantized rows for w, by copying: row slots[i] becomes row i / per_row of `from` (struct
 * scatter_args in kernels/ops.h). Does not read rows->x. */
struct scatter_args;
void act_codes_scatter(const struct kern_table *k, struct act_rows *rows, const struct packed *w,
                       const struct quant_rows *from, const struct scatter_args *slots);

/* Local. Whether act_codes for w would overwrite values of another group size. */
bool act_codes_replace(const struct act_rows *rows, const struct packed *w);

#endif

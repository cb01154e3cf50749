/* Rows of activations as linears read them: floats, and quantized values (codes) from the first
 * linear on whose weight needs them. Linears of the same rows share one quantization. */
#ifndef SHOAL_KERNELS_ACT_H
#define SHOAL_KERNELS_ACT_H

#include "kernels/kern.h"

struct act_rows {
    const float *x; /* [n_rows, stride], borrowed */
    size_t stride, n_rows;
    size_t n;     /* inputs, K of the linears */
    void *memory; /* act_codes_bytes, 64-byte aligned, borrowed; NULL: weight-only arithmetic */
    /* n_all 0: x has all inputs. Else x has inputs [first, first + n) of n_all, cut at whole
     * groups; `memory` holds the codes of all n_all inputs, and other ranks make the rest of them.
     */
    size_t first, n_all;
    struct quant_rows codes; /* of all inputs, made by act_codes; group 0: not made yet */
    struct quant_rows own;   /* the part of codes that is made from x */
};

/* Local. Bytes of the codes of n_rows rows of n inputs, whatever the group. SIZE_MAX: overflow. */
size_t act_codes_bytes(size_t n_rows, size_t n);

/* Local. The rows as codes in groups of w's size. The first call makes them; later calls with the
 * same group return them. NULL where the linear reads floats: plain weights, fp8, weight-only. */
const struct quant_rows *act_codes(const struct kern_table *k, struct act_rows *rows,
                                   const struct packed *w);

/* Local. The same memory, but the caller makes the codes (op_gated) before it calls act_codes. */
const struct quant_rows *act_codes_to_make(struct act_rows *rows, const struct packed *w);

/* Local. Whether linears with a and with b read the same codes; false where they read floats. */
bool act_codes_alike(const struct packed *a, const struct packed *b);

/* Local. Makes the codes for w by copying: row slots[i] becomes row i / per_row of `from` (struct
 * scatter_args in kernels/ops.h). Does not read rows->x. */
struct scatter_args;
void act_codes_scatter(const struct kern_table *k, struct act_rows *rows, const struct packed *w,
                       const struct quant_rows *from, const struct scatter_args *slots);

/* Local. Whether act_codes for w would overwrite codes of another group size. */
bool act_codes_replace(const struct act_rows *rows, const struct packed *w);

#endif

/* Rows of activations as one or more linears read them: floats, and codes once a quantized weight
 * asks for them. What the rooms above pass instead of quantizing in each of their places. */
#ifndef SHOAL_KERNELS_ACT_H
#define SHOAL_KERNELS_ACT_H

#include "kernels/kern.h"

struct act_rows {
    const float *x; /* [n_rows, stride], borrowed */
    size_t stride, n_rows;
    size_t n;     /* inputs, K of the linears */
    void *memory; /* act_codes_bytes, 64-byte aligned, borrowed; NULL: weight-only arithmetic */
    /* n_all 0: these are all inputs. Else they are inputs [first, first + n) of n_all, cut at whole
     * groups; the codes of all stand in memory, where others make the rest of them. */
    size_t first, n_all;
    struct quant_rows codes; /* made by act_codes; group 0: not yet */
    struct quant_rows own;   /* of the codes, where those of x go */
};

/* Local. Bytes of the codes of n_rows rows of n inputs, whatever the group. SIZE_MAX: overflow. */
size_t act_codes_bytes(size_t n_rows, size_t n);

/* Local. The rows as codes for w's group, made by the first call and kept for the next ones with
 * the same group. NULL where the float arithmetic serves: plain weights, fp8, weight-only. */
const struct quant_rows *act_codes(const struct kern_table *k, struct act_rows *rows,
                                   const struct packed *w);

/* Local. Likewise, but the codes are the caller's to make (op_gated), before act_codes is called.
 */
const struct quant_rows *act_codes_to_make(struct act_rows *rows, const struct packed *w);

/* Local. Whether act_codes makes the same codes for a and b, and makes any. */
bool act_codes_alike(const struct packed *a, const struct packed *b);

/* Local. The rows' codes for w as copies of those of fewer rows: row slots[i] is `from`'s row
 * i / per_row (kernels/ops.h, scatter_args). rows->x is not read. */
struct scatter_args;
void act_codes_scatter(const struct kern_table *k, struct act_rows *rows, const struct packed *w,
                       const struct quant_rows *from, const struct scatter_args *slots);

/* Local. Whether act_codes for w would overwrite codes of another group that linears may still have
 * to read. */
bool act_codes_replace(const struct act_rows *rows, const struct packed *w);

#endif

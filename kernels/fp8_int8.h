/* Converts fp8 weights to int8, so that they can be multiplied with int8 activations: integer sums
 * are exact, and the int8 kernels do the work. A weight is converted once, after it has been
 * loaded. */
#ifndef SHOAL_KERNELS_FP8_INT8_H
#define SHOAL_KERNELS_FP8_INT8_H

#include "kernels/kern.h"

/* Local. True when w is fp8 and its leaves (K-blocks) are whole kernel groups, as those of int8
 * are. */
bool fp8_int8_fits(const struct packed *w);

/* Local. Returns the int8 format that an fp8 weight gets. */
struct quant_format fp8_int8_format(struct quant_format fp8);

/* Local. Threaded. Replaces a packed fp8 weight for which fp8_int8_fits by int8 in its own memory.
 * For each output and kernel group (quant_kernel_group), with its scale s and m = the largest |v|
 * of the group's values:
 *
 *     scale = s * (m / 127), rounded to the scales' type;  code = rne(v * (127 / m))
 *     m = 0:           scale +0 and codes 0
 *     a value is NaN:  scale NaN and codes 0
 *
 * Groups do not depend on each other, so shards of a tensor give the bits of the whole. The weight
 * is on the CPU. */
void op_fp8_to_int8(const struct kern_table *k, struct packed *w);

#endif

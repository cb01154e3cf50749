/* Finds fp8 weights that kernels may decode without looking for special values. A kernel moves the
 * bits of an E4M3 number to their places in a float. That is wrong for NaN, and makes a subnormal
 * number a subnormal float, with which some CPUs multiply slowly; so kernels look for both in each
 * cache line of weights. With one row this search is a sixth of their time. */
#ifndef SHOAL_KERNELS_FP8_PLAIN_H
#define SHOAL_KERNELS_FP8_PLAIN_H

#include "kernels/kern.h"

/* Local. Threaded. Returns whether a code of w is NaN. w is fp8 and on the CPU. Reads all its
 * codes. */
bool op_fp8_has_nan(const struct kern_table *k, const struct packed *w);

/* Local. Threaded. Sets w->fp8_plain: w is fp8, none of its codes is NaN, and this CPU is fast with
 * subnormal floats (cpu.h). w is on the CPU. To be called once its codes are loaded, and again
 * after any of them changed. */
void op_fp8_plain(const struct kern_table *k, struct packed *w);

#endif

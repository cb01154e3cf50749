/* The part of bench_kernels that times quantized linears and prints a table of them. */
#ifndef SHOAL_BENCH_QUANT_H
#define SHOAL_BENCH_QUANT_H

#include "kernels/kern.h"

/* Times quantized linears with the table's team and prints them beside the machine's read bandwidth
 * and its int8 and fma peaks, which it measures. */
void bench_quant(const struct kern_table *k);

#endif

/* The table of attention of bench_kernels. */
#ifndef SHOAL_BENCH_ATTENTION_H
#define SHOAL_BENCH_ATTENTION_H

#include "bench_util.h"

#include "kernels/kern.h"

/* Times attention with the table's team, in decoding and in prefill, and prints it beside the
 * machine's read bandwidth and fma peak. */
void bench_attention(const struct kern_table *k, struct bench_machine m);

#endif

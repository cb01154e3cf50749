/* A node of round numbers for tests of the cost model. */
#ifndef SHOAL_TEST_UTIL_COST_H
#define SHOAL_TEST_UTIL_COST_H

#include "cost/node_file.h"

/* A host of n_threads threads in n_ranks ranks, whose threads together read 10 GB/s and compute
 * 10^12 f32 operations per second. For each weight, a linear of R rows takes R * 2 / 10^12 seconds,
 * or, from memory, the time of reading the weight's bytes if that is longer. */
void util_node(struct node *out, double n_threads, double n_ranks);

#endif

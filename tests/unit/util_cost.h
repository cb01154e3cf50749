/* A node of round numbers for tests of the cost model. */
#ifndef SHOAL_TEST_UTIL_COST_H
#define SHOAL_TEST_UTIL_COST_H

#include "cost/node_file.h"

/* A host of n_threads threads in n_ranks ranks, with 10 GB/s and 10^12 f32 operations per second.
 * Every format's linear takes the larger of reading its bytes and rows * 2 / 10^12 seconds. */
void util_node(struct node *out, double n_threads, double n_ranks);

#endif

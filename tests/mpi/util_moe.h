/* The MoE block under test: one case on every layout of these ranks, compared with the reference.
 */
#ifndef SHOAL_TESTS_UTIL_MOE_H
#define SHOAL_TESTS_UTIL_MOE_H

#include "mpi/util_moe_reference.h"

enum { P_MAX = 4 * E }; /* places of experts, with all copies */

/* **Collective (world)**. Runs the case on every layout, and checks outputs, counters, drops, loads
 * and bytes sent. Returns the reference's answer, valid until the next call. If not NULL,
 * *n_empty_parts gets the number of runs in which this rank has no leaf of an expert. */
const struct moe_answer *util_moe_try(const struct moe_case *c, size_t *n_empty_parts);

#endif

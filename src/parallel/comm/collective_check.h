/* Checks that all ranks of a communicator are about to call the same collective: otherwise they
 * would hang, or mix their data silently. It costs one more small collective each time, so comm
 * uses it in debug builds (SHOAL_DEBUG) only. */
#ifndef SHOAL_PARALLEL_COMM_COLLECTIVE_CHECK_H
#define SHOAL_PARALLEL_COMM_COLLECTIVE_CHECK_H

#include "base/status.h"

#include <mpi.h>
#include <stddef.h>
#include <stdint.h>

enum { COLLECTIVE_SITE_MAX = 96 };

/* One rank's view of a collective. Counts that may differ between ranks are 0. */
struct collective_call {
    char op[24];
    char site[COLLECTIVE_SITE_MAX]; /* "engine.c:310" */
    uint64_t count;                 /* elements */
    uint64_t elem_bytes;
    int64_t root; /* -1: none */
};

/* Local. Fills *out; keeps only the last component of the path `file`. */
void collective_call_init(struct collective_call *out, const char *op, const char *file, int line);

/* **Collective (comm)**. Returns OK when all ranks make the same call from the same place, else
 * STATUS_BUG on all ranks, with a sentence that names rank 0 and the first rank that differs from
 * it, their calls and places. Errors: STATUS_MEMORY, STATUS_LOST when MPI failed. */
struct status collective_check(MPI_Comm comm, const struct collective_call *mine);

#endif

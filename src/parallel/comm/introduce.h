/* The first message between ranks, in a form that every version and build can read. Called by the
 * job before any other communication. */
#ifndef SHOAL_PARALLEL_COMM_INTRODUCE_H
#define SHOAL_PARALLEL_COMM_INTRODUCE_H

#include "parallel/comm/comm.h"

/* **Collective (world)**. Gathers n_bytes of each rank: all [size, n_bytes]. One plain
 * MPI_Allgather, also in debug builds, where other collectives send further messages to check
 * themselves. */
void introduce(struct comm *c, const void *mine, size_t n_bytes, void *all);

#endif

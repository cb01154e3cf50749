/* The first message between ranks, which all versions and kinds of builds can read. Called by the
 * job before anything else is said. */
#ifndef SHOAL_PARALLEL_COMM_INTRODUCE_H
#define SHOAL_PARALLEL_COMM_INTRODUCE_H

#include "parallel/comm/comm.h"

/* **Collective (world)**. n_bytes of each rank: all [size, n_bytes]. One plain MPI_Allgather, in
 * debug builds, too, where other collectives are checked by messages of their own. */
void introduce(struct comm *c, const void *mine, size_t n_bytes, void *all);

#endif

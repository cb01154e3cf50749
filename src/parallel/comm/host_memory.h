/* Memory that the ranks of a communicator share when they stand on one host. It has no name in any
 * file system, so that a killed job leaves nothing behind. Each rank owns lanes in it, which grow
 * in place and which all others can read. Private to comm. */
#ifndef SHOAL_PARALLEL_COMM_HOST_MEMORY_H
#define SHOAL_PARALLEL_COMM_HOST_MEMORY_H

#include "base/team.h"

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>

enum { HOST_LANES = 10 };

struct host_memory {
    int fd, rank;
    char *base; /* the mapping: shared_bytes zeroed bytes for all, then the lanes */
    size_t n_bytes, shared_bytes, lane_bytes; /* lane_bytes: the address space of one lane */
    size_t backed[HOST_LANES];                /* bytes of this rank's lanes that can be used */
    bool is_small[HOST_LANES];                /* the system refused huge pages for some of them */
};

/* **Collective (comm)**. False on all ranks when they do not stand on one host or when it gives no
 * such memory; then *out holds nothing. */
bool host_memory_open(MPI_Comm comm, size_t shared_bytes, struct host_memory *out);
void host_memory_close(struct host_memory *m);

/* Local. The address of a rank's lane; only `backed` bytes of it may be touched. */
char *host_memory_lane(const struct host_memory *m, int rank, unsigned lane);

/* Local. Backs this rank's lane with at least n_bytes, keeping what it holds, where it stands, by
 * the threads of a team (NULL: the caller), for a long lane is long to clear. On false nothing
 * changed. */
bool host_memory_grow(struct host_memory *m, unsigned lane, size_t n_bytes, struct team *team);

/* Local. Gives this rank's lane back, which no other rank may still read; it stays where it is, and
 * is zero when it grows again. */
void host_memory_release(struct host_memory *m, unsigned lane);

#endif

/* Memory that the ranks of a communicator share when they are on one host. It has no name in any
 * file system, so a killed job leaves nothing behind. Each rank owns several segments (lanes) of
 * it, which grow in place and which all other ranks can read. Private to comm.
 *
 *     base: [ shared | rank 0: lane 0, lane 1, .. | rank 1: lane 0, .. | .. ]
 *
 * The mapping is sparse: only the beginning of each lane has memory. */
#ifndef SHOAL_PARALLEL_COMM_HOST_MEMORY_H
#define SHOAL_PARALLEL_COMM_HOST_MEMORY_H

#include "base/team.h"

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>

enum { HOST_LANES = 16 };

struct host_memory {
    int fd, rank;
    char *base; /* the mapping: shared_bytes zeroed bytes for all ranks, then the lanes */
    size_t n_bytes, shared_bytes, lane_bytes; /* lane_bytes: the address space of one lane */
    size_t backed[HOST_LANES];                /* bytes of this rank's lanes that can be used */
    bool is_small[HOST_LANES];                /* the system refused some huge pages */
};

/* **Collective (comm)**. False on all ranks, with *out empty, when the ranks are not on one host or
 * the host has no memory to share. n_in_process: ranks that share this process's address space. */
bool host_memory_open(MPI_Comm comm, size_t shared_bytes, int n_in_process,
                      struct host_memory *out);
void host_memory_close(struct host_memory *m);

/* Local. Returns the address of a rank's lane. Only the bytes that its owner has backed may be
 * touched; m->backed counts those of the caller's own lanes. */
char *host_memory_lane(const struct host_memory *m, int rank, unsigned lane);

/* Local. Gives this rank's lane memory for at least n_bytes; content and address stay. The threads
 * of the team (NULL: the calling thread) share the work of clearing it. False: no memory; the
 * usable bytes are as before. */
bool host_memory_grow(struct host_memory *m, unsigned lane, size_t n_bytes, struct team *team);

/* Local. Frees the memory of this rank's lane; no other rank may read it any more. The address
 * stays, and the lane holds zeros when it grows again. */
void host_memory_release(struct host_memory *m, unsigned lane);

#endif

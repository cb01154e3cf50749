/* Calls MPI directly, with the communicator of the world. */
#include "parallel/comm/introduce.h"

#include <mpi.h>

void introduce(struct comm *c, const void *mine, size_t n_bytes, void *all)
{
    const int n = (int)n_bytes;
    const int failed =
        MPI_Allgather(mine, n, MPI_BYTE, all, n, MPI_BYTE, comm_handle(c, COMM_WORLD));
    if (failed != MPI_SUCCESS) comm_abort(c, status_exit(STATUS_LOST));
}

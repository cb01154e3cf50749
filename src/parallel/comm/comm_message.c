/* Point-to-point messages, for the stages of a pipeline. */
#define COMM_INSIDE /* functions are defined here, not wrapped */
#include "parallel/comm/comm_private.h"

#include "base/clock.h"
#include "base/log.h"

#include <limits.h>

void comm_send_start(struct comm *c, int to, enum comm_tag tag, const void *buf, size_t n_bytes,
                     struct comm_request *r)
{
    if (n_bytes > INT_MAX) {
        log_line(LOG_ERROR, "a message of %zu bytes is larger than 2 GiB", n_bytes);
        comm_abort(c, status_exit(STATUS_BUG));
    }
    comm_begin(c, FLIGHT_SEND, COMM_WORLD, n_bytes);
    comm_check(c, MPI_Isend(buf, (int)n_bytes, MPI_BYTE, to, tag, c->axes[COMM_WORLD], &r->mpi),
               "send", COMM_WORLD);
    comm_end(c, clock_ns());
    r->active = true;
}

void comm_recv_start(struct comm *c, int from, enum comm_tag tag, void *buf, size_t max_bytes,
                     struct comm_request *r)
{
    const int n = max_bytes > INT_MAX ? INT_MAX : (int)max_bytes;
    comm_check(c, MPI_Irecv(buf, n, MPI_BYTE, from, tag, c->axes[COMM_WORLD], &r->mpi), "receive",
               COMM_WORLD);
    r->active = true;
}

size_t comm_wait(struct comm *c, struct comm_request *r)
{
    if (!r->active) return 0;
    const uint64_t since = comm_begin(c, FLIGHT_WAIT, COMM_WORLD, 0);
    MPI_Status status;
    comm_check(c, MPI_Wait(&r->mpi, &status), "wait", COMM_WORLD);
    r->active = false;
    int n = 0;
    MPI_Get_count(&status, MPI_BYTE, &n);
    if (n < 0) n = 0;
    comm_account(c, COMM_WORLD, since, (size_t)n);
    return (size_t)n;
}

void comm_cancel(struct comm *c, struct comm_request *r)
{
    if (!r->active) return;
    comm_check(c, MPI_Cancel(&r->mpi), "cancel", COMM_WORLD);
    comm_check(c, MPI_Wait(&r->mpi, MPI_STATUS_IGNORE), "wait", COMM_WORLD);
    r->active = false;
}

size_t comm_probe(struct comm *c, int from, enum comm_tag tag)
{
    const uint64_t since = comm_begin(c, FLIGHT_PROBE, COMM_WORLD, 0);
    MPI_Status status;
    comm_check(c, MPI_Probe(from, tag, c->axes[COMM_WORLD], &status), "probe", COMM_WORLD);
    int n = 0;
    MPI_Get_count(&status, MPI_BYTE, &n);
    comm_account(c, COMM_WORLD, since, 0);
    return (size_t)n;
}

void comm_recv(struct comm *c, int from, enum comm_tag tag, void *buf, size_t n_bytes)
{
    comm_begin(c, FLIGHT_RECEIVE, COMM_WORLD, n_bytes);
    comm_check(
        c, MPI_Recv(buf, (int)n_bytes, MPI_BYTE, from, tag, c->axes[COMM_WORLD], MPI_STATUS_IGNORE),
        "receive", COMM_WORLD);
    comm_end(c, clock_ns());
}

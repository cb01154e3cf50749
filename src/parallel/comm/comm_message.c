/* Point-to-point messages, such as those between the stages of a pipeline. */
#define COMM_INSIDE /* comm.h then defines no macros that record call sites (debug builds) */
#include "parallel/comm/comm_private.h"

#include "base/clock.h"
#include "base/log.h"

#include <limits.h>

/* A sleep lasts 1/REST_PART of the time waited so far, at most REST_MOST_NS. A wait sleeps only
 * from REST_FROM_NS on: a shorter sleep would hardly be longer than the timer's slack. */
enum { REST_FROM_NS = 5000000, REST_PART = 64, REST_MOST_NS = 2000000 };

void comm_wait_asleep(struct comm *c)
{
    c->waits_asleep = true;
}

void comm_rest(uint64_t since_ns)
{
    const uint64_t waited_ns = clock_ns() - since_ns, rest_ns = waited_ns / REST_PART;
    if (waited_ns < REST_FROM_NS) return;
    const struct timespec rest = {.tv_nsec =
                                      rest_ns < REST_MOST_NS ? (long)rest_ns : (long)REST_MOST_NS};
    nanosleep(&rest, NULL);
}

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
    r->receives = false;
    r->n_sent = n_bytes;
}

void comm_recv_start(struct comm *c, int from, enum comm_tag tag, void *buf, size_t max_bytes,
                     struct comm_request *r)
{
    const int n = max_bytes > INT_MAX ? INT_MAX : (int)max_bytes;
    comm_check(c, MPI_Irecv(buf, n, MPI_BYTE, from, tag, c->axes[COMM_WORLD], &r->mpi), "receive",
               COMM_WORLD);
    r->active = r->receives = true;
}

size_t comm_wait(struct comm *c, struct comm_request *r)
{
    if (!r->active) return 0;
    const uint64_t since = comm_begin(c, FLIGHT_WAIT, COMM_WORLD, 0);
    MPI_Status status;
    comm_check(c, MPI_Wait(&r->mpi, &status), "wait", COMM_WORLD);
    r->active = false;
    size_t n_bytes = r->n_sent;
    int n = 0;
    if (r->receives) { /* MPI defines a count only for receives */
        MPI_Get_count(&status, MPI_BYTE, &n);
        n_bytes = n > 0 ? (size_t)n : 0;
    }
    comm_account(c, COMM_WORLD, since, n_bytes);
    return n_bytes;
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
    int n = 0, found = !c->waits_asleep;
    if (found)
        comm_check(c, MPI_Probe(from, tag, c->axes[COMM_WORLD], &status), "probe", COMM_WORLD);
    while (!found) {
        comm_check(c, MPI_Iprobe(from, tag, c->axes[COMM_WORLD], &found, &status), "probe",
                   COMM_WORLD);
        if (!found) comm_rest(since);
    }
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

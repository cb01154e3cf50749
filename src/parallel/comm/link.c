/* One rank sends and the other answers, so that one clock times each message there and back. */
#include "parallel/comm/link.h"

#include "base/clock.h"

#include <mpi.h>
#include <stdlib.h>

enum { LINK_TAG = 98, PINGS = 200, LARGE_TIMES = 8 };

struct link {
    MPI_Comm world;
    int other;
    bool is_first;
    void *buf;
};

/* Plays this rank's side of n exchanges: a message of n_bytes, answered by one byte. Returns the
 * seconds per exchange. */
static double messages_s(const struct link *l, int n_bytes, int n)
{
    const uint64_t since = clock_ns();
    for (int i = 0; i < n; i++) {
        if (l->is_first) {
            MPI_Send(l->buf, n_bytes, MPI_BYTE, l->other, LINK_TAG, l->world);
            MPI_Recv(l->buf, 1, MPI_BYTE, l->other, LINK_TAG, l->world, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(l->buf, n_bytes, MPI_BYTE, l->other, LINK_TAG, l->world, MPI_STATUS_IGNORE);
            MPI_Send(l->buf, 1, MPI_BYTE, l->other, LINK_TAG, l->world);
        }
    }
    return (double)(clock_ns() - since) * 1e-9 / n;
}

static int compare_times(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Returns the seconds that one byte takes there and back: the lower quartile of many exchanges,
 * because other work on the machine only makes an exchange slower. */
static double ping_s(const struct link *l)
{
    double times[PINGS];
    for (int i = 0; i < PINGS; i++) times[i] = messages_s(l, 1, 1);
    qsort(times, PINGS, sizeof *times, compare_times);
    return times[PINGS / 4];
}

struct link_speed link_measure(struct comm *c, int other, bool is_first, void *buf)
{
    const struct link l = {comm_handle(c, COMM_WORLD), other, is_first, buf};
    messages_s(&l, LINK_BYTES, 1); /* the first message makes the connection */
    const double there_and_back_s = ping_s(&l);
    const double large_s = messages_s(&l, LINK_BYTES, LARGE_TIMES);
    const double wire_s = large_s - there_and_back_s;
    return (struct link_speed){.latency_s = there_and_back_s / 2,
                               .bytes_s = LINK_BYTES / (wire_s > 0 ? wire_s : large_s)};
}

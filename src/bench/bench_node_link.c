/* The link between two hosts: latency and bandwidth of messages between the first rank and the
 * first rank of another host. The other ranks wait. */
#include "bench/bench_node.h"

#include "base/clock.h"
#include "base/mem.h"

#include <stdlib.h>

enum { PAIR_TAG = 7, PINGS = 200, LARGE_BYTES = 4 << 20, LARGE_TIMES = 4 };

/* Runs one side of n messages of n_bytes, each with an answer of one byte. Returns the seconds of
 * one of them. */
static double messages_s(MPI_Comm world, int other, bool is_first, char *buf, int n_bytes, int n)
{
    const uint64_t since = clock_ns();
    for (int i = 0; i < n; i++) {
        if (is_first) {
            MPI_Send(buf, n_bytes, MPI_BYTE, other, PAIR_TAG, world);
            MPI_Recv(buf, 1, MPI_BYTE, other, PAIR_TAG, world, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(buf, n_bytes, MPI_BYTE, other, PAIR_TAG, world, MPI_STATUS_IGNORE);
            MPI_Send(buf, 1, MPI_BYTE, other, PAIR_TAG, world);
        }
    }
    return (double)(clock_ns() - since) * 1e-9 / n;
}

static int compare_times(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Returns the seconds of a message there and back: the lower quartile of many, because only other
 * work disturbs, and only upwards. */
static double ping_s(MPI_Comm world, int other, bool is_first, char *buf)
{
    double times[PINGS];
    for (int i = 0; i < PINGS; i++) times[i] = messages_s(world, other, is_first, buf, 1, 1);
    qsort(times, PINGS, sizeof *times, compare_times);
    return times[PINGS / 4];
}

/* Returns the first rank that is not on the host of rank 0; 0: there is none. */
static int other_host(const struct topo *t)
{
    for (uint32_t r = 1; r < t->n_ranks; r++)
        if (t->ranks[r].host != t->ranks[0].host) return (int)r;
    return 0;
}

struct status bench_node_link(const struct bench_node *b, struct node *out)
{
    const int other = other_host(b->topo), rank = comm_rank(b->comm, COMM_WORLD);
    const MPI_Comm world = comm_handle(b->comm, COMM_WORLD);
    char *buf = NULL;
    if (other == 0) return status_ok();
    TRY(comm_agree(b->comm, mem_alloc(&buf, LARGE_BYTES, 1, "message")));
    if (rank == 0 || rank == other) {
        const int peer = rank == 0 ? other : 0;
        messages_s(world, peer, rank == 0, buf, LARGE_BYTES, 1); /* connects */
        out->network_s = ping_s(world, peer, rank == 0, buf) / 2;
        const double large_s = messages_s(world, peer, rank == 0, buf, LARGE_BYTES, LARGE_TIMES);
        const double wire_s = large_s - 2 * out->network_s;
        out->network_bytes_s = LARGE_BYTES / (wire_s > 0 ? wire_s : large_s);
    }
    comm_barrier(b->comm, COMM_WORLD);
    mem_free(&buf);
    return status_ok();
}

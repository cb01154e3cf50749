/* Collectives between the ranks of one host, through shared memory: each rank posts where its data
 * is, and the others read it there. Waiting ranks spin, then yield, then sleep, and poll MPI
 * before each sleep, because another rank's message may move only while this rank is inside MPI.
 * Private to comm. */
#ifndef SHOAL_PARALLEL_COMM_HOST_GROUP_H
#define SHOAL_PARALLEL_COMM_HOST_GROUP_H

#include "base/team.h"
#include "parallel/comm/comm_args.h"

#include <mpi.h>
#include <stdbool.h>

struct host_group;

/* How a rank waits for others. */
struct host_group_waiting {
    bool crowded; /* the host has more ranks than processing units, so waiting ranks do not spin */
    int n_in_process; /* ranks that may be threads of this process; if more than 1, the others
                         run only during an MPI call, so waiting ranks do nothing but poll MPI */
    void (*poll)(void *ctx); /* called repeatedly during long waits */
    void *ctx;
};

/* **Collective (comm)**. Opens the group; NULL on all ranks when the ranks cannot share memory. */
struct host_group *host_group_open(MPI_Comm comm, struct host_group_waiting w);
void host_group_close(struct host_group **g);

/* Local. Sets the team whose threads share the work of large sums; borrowed. NULL: the calling
 * thread alone. */
void host_group_use_team(struct host_group *g, struct team *team);

/* Local. Returns this rank's shared segment `lane` (enum comm_lane), with memory for n_bytes; NULL
 * when there is no memory. Its address never changes. */
void *host_group_lane(struct host_group *g, unsigned lane, size_t n_bytes);

/* Local. host_group_lane_bytes returns the segment's bytes. host_group_lane_is_huge returns whether
 * the segment lies in huge pages (its last part, shorter than a page, need not).
 * host_group_release_lane frees the segment's memory: no other rank may read it any more, and the
 * next host_group_lane returns zeroed memory. */
size_t host_group_lane_bytes(const struct host_group *g, unsigned lane);
bool host_group_lane_is_huge(const struct host_group *g, unsigned lane);
void host_group_release_lane(struct host_group *g, unsigned lane);

/* Local. Returns the nanoseconds that this rank waited for others since the last call. */
uint64_t host_group_take_wait(struct host_group *g);

/* Local. Returns another rank's shared segment. */
void *host_group_lane_at(const struct host_group *g, unsigned lane, int rank);

enum host_reduction { HOST_SUM_I64, HOST_OR_U32, HOST_MAX_U64, HOST_MIN_U64 };

/* **Collective (group)**. The functions below do what the functions of the same names in comm.h do;
 * host_group_reduce does what comm_sum_i64 to comm_min_u64 do. False: no memory for the data to
 * send; the group must not be used after that. */
bool host_group_reduce(struct host_group *g, enum host_reduction what, void *buf, size_t n);
bool host_group_sum_words(struct host_group *g, const struct comm_sum *s);
bool host_group_gather_words(struct host_group *g, void *all, const int *counts, const int *displs);
bool host_group_gather_bytes(struct host_group *g, const void *mine, size_t n_bytes, void *all);
bool host_group_exchange_i32(struct host_group *g, const int32_t *send, int32_t *recv, size_t n);
bool host_group_exchange_rows(struct host_group *g, const struct comm_exchange *x);
bool host_group_broadcast(struct host_group *g, int root, void *buf, size_t n_bytes);
void host_group_barrier(struct host_group *g);

/* **Collective (group)**. For an operation that the caller builds itself. Until the next operation
 * the other ranks may read this rank's `data` (copied unless it lies in a shared segment) and a
 * room of room_bytes, which this rank may write. The caller needs at least one barrier before the
 * first access and one after the last. False: no memory. */
bool host_group_offer(struct host_group *g, const void *data, size_t n_bytes, size_t room_bytes);

/* Local. Return the data, of n_bytes, that a rank offered, and the rank's room; both are valid
 * until the next operation. */
const void *host_group_offered(const struct host_group *g, int rank);
void *host_group_room(const struct host_group *g, int rank, size_t n_bytes);

#endif

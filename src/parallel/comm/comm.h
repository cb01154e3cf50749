/* Communication along named axes: over MPI, and inside a host through shared memory (stage, tp, ep
 * and etp, when an axis stands on one host). Knows ranks and bytes, never tensors or requests.
 * A failed MPI call inside a step cannot be mended: it is logged with rank, host and operation, and
 * the job is aborted with the status of a lost rank; hence most functions return nothing.
 * Time spent here is added up per axis, so that a run can say where it waited. */
#ifndef SHOAL_PARALLEL_COMM_COMM_H
#define SHOAL_PARALLEL_COMM_COMM_H

#include "base/status.h"
#include "base/team.h"
#include "parallel/comm/comm_args.h"
#include "parallel/layout/layout.h"
#include "parallel/record/flight.h"
#include "parallel/record/trace.h"
#include "parallel/topology/topo.h"

#include <mpi.h>
#include <stddef.h>
#include <stdint.h>

enum comm_axis {
    COMM_WORLD, /* all ranks, in the layout's order; rank 0 is the lead */
    COMM_HOST,  /* ranks that share this host's memory */
    COMM_STAGE, /* the dp x tp ranks of this pipeline stage, dp-major */
    COMM_TP,    /* tensor parallel: same dp, same stage */
    COMM_EP,    /* one replica of all experts: ep x etp ranks of the stage, ep-major */
    COMM_ETP,   /* the ranks that hold parts of the same experts */
    COMM_AXIS_COUNT
};

enum comm_tag {
    COMM_TAG_PLAN = 1,
    COMM_TAG_HIDDEN,
    COMM_TAG_RESULT,
    COMM_TAG_CLOCK,
    COMM_TAG_TRACE,
    COMM_TAG_DEVICE
};

enum { COMM_TAG_POLL = 99 }; /* sent by nobody: probing for it lets MPI move other messages */

struct comm; /* one per process */

/* A point-to-point transfer in flight; zero-initialised means none. */
struct comm_request {
    MPI_Request mpi;
    bool active;
};

/* **Collective (world)**. Starts MPI (funneled threads); a caller that has started MPI itself also
 * ends it. Only COMM_WORLD exists before comm_split. Errors: STATUS_LOST, STATUS_MEMORY. */
struct status comm_start(int *argc, char ***argv, struct comm **out);

/* **Collective (world)**. Gathers every rank's view of the machine, in the launcher's order; *out:
 * topo_destroy. Errors, agreed on: STATUS_USAGE (too many ranks), STATUS_MEMORY. */
struct status comm_gather_topo(struct comm *c, struct topo **out);

/* **Collective (world)**. Makes the axes: launcher rank order[r] becomes rank r of the world.
 * Errors: STATUS_BUG when the layout has another number of ranks, STATUS_MEMORY. */
struct status comm_split(struct comm *c, const struct layout *l, const uint32_t *order);

/* Local. The threads that share the work of large sums inside a host from now on, after comm_split;
 * borrowed until comm_stop or another call. NULL, as at first: the caller alone. */
void comm_use_team(struct comm *c, struct team *team);
/* Local. That team; borrowed. */
struct team *comm_team(const struct comm *c);

/* **Collective (world)**. Ends MPI and frees; accepts NULL. Where the launcher does not answer,
 * since its host gives it no CPU, this rank stays for up to 30 s more: mpirun would count it as
 * failed. */
void comm_stop(struct comm **c);

/* Local. Ends the whole job at once with this exit status. */
void comm_abort(struct comm *c, int exit_status) __attribute__((noreturn));

/* Local. This rank's number within an axis, how many ranks it has, and its communicator for MPI
 * calls of one's own (borrowed). */
int comm_rank(const struct comm *c, enum comm_axis axis);
int comm_size(const struct comm *c, enum comm_axis axis);
MPI_Comm comm_handle(const struct comm *c, enum comm_axis axis);

/* Time and payload of an axis since the start; point-to-point waits count to COMM_WORLD. */
struct comm_stats {
    uint64_t n_calls, n_bytes, ns;
    uint64_t wait_ns; /* part of ns: until the other ranks of this host had come */
};

/* Local. Of one axis; and the sum over the axes that steps use, COMM_STAGE and smaller ones. */
struct comm_stats comm_stats_of(const struct comm *c, enum comm_axis axis);
struct comm_stats comm_stats_of_steps(const struct comm *c);

/* Local. Whether collectives over this axis go through the host's memory; and whether they shall,
 * where they can (on at first): all ranks of the axis switch at the same place. For tests and
 * measurements. */
bool comm_shares_memory(const struct comm *c, enum comm_axis axis);
void comm_use_memory(struct comm *c, enum comm_axis axis, bool on);

/* Local. Zeroed memory of at least n_bytes for one purpose, owned by c, until comm_stop; a later,
 * larger call returns the same address and keeps the content. NULL where the axis shares no memory
 * (then use memory of your own). comm_sum_words and comm_exchange_rows read what stands there
 * without a copy. */
void *comm_lane(struct comm *c, enum comm_axis axis, enum comm_lane lane, size_t n_bytes);

/* Local. Whether such memory, but for what fills no huge page, stands in huge pages; false where
 * there is none. */
bool comm_lane_is_huge(const struct comm *c, enum comm_axis axis, enum comm_lane lane);

/* Local. Gives it back before the end: nobody may read or write it any more. Nothing where there is
 * none. */
void comm_release_lane(struct comm *c, enum comm_axis axis, enum comm_lane lane);

/* Local. What `rank` of an axis that shares memory has in its lane, to be read after a barrier that
 * it entered behind its writing; what it got there is borrowed until it writes again. */
const void *comm_lane_of(const struct comm *c, enum comm_axis axis, enum comm_lane lane, int rank);

/* **Collective (axis)**. The first rank's lane, for at least n_bytes, for all ranks of an axis that
 * shares memory to write and read: who may touch what is theirs to order, by barriers. */
void *comm_common_lane(struct comm *c, enum comm_axis axis, enum comm_lane lane, size_t n_bytes);

/* Local. An operation over an axis begins: recorded, and its time is returned for comm_account,
 * which ends and counts it. For those who move data by a way of their own (kernels/device_comm.h),
 * which may still be under way when it is accounted. */
uint64_t comm_begin(struct comm *c, enum flight_op op, enum comm_axis axis, uint64_t count);
void comm_account(struct comm *c, enum comm_axis axis, uint64_t since, size_t n_bytes);

/* Local. The name of an enum comm_axis, for messages; any number is accepted. */
const char *comm_axis_name(uint32_t axis);

/* Local. What the communication from now on belongs to, for the flight recorder: a step (outside
 * its layers), then one of its layers, numbered as in the model (FLIGHT_NO_LAYER: none). */
void comm_mark_step(struct comm *c, uint64_t step);
void comm_mark_layer(struct comm *c, int32_t layer);

/* Local. Collectives and messages are added to the timeline `t` too from now on (borrowed, outlives
 * c; NULL: none). comm_trace gives it back. */
void comm_trace_in(struct comm *c, struct trace *t);
struct trace *comm_trace(const struct comm *c);

/* Local. This rank's recorder; any thread may read it. Borrowed. */
const struct flight *comm_flight(const struct comm *c);

/* Local. Records in `f` from now on (borrowed, outlives c), which gets what was recorded so far. */
void comm_record_in(struct comm *c, struct flight *f);

/* **Collective (world)**. All ranks return the worst status of all (the first rank's that has it),
 * with the rank named when it is neither this one nor the lead: the end of each start-up phase. */
struct status comm_agree(struct comm *c, struct status mine);

/* All below: **Collective (axis)** unless said otherwise; an axis of one rank costs nothing. */

/* In place, over buf [n]: integer sum (exact in any order); bitwise or; maximum; minimum. */
void comm_sum_i64(struct comm *c, enum comm_axis axis, int64_t *buf, size_t n);
void comm_or_u32(struct comm *c, enum comm_axis axis, uint32_t *buf, size_t n);
void comm_max_u64(struct comm *c, enum comm_axis axis, uint64_t *buf, size_t n);
void comm_min_u64(struct comm *c, enum comm_axis axis, uint64_t *buf, size_t n);

/* Every rank takes all n words. Half the bytes of comm_sum_i64, and the conversion is shared. */
void comm_sum_words(struct comm *c, enum comm_axis axis, const struct comm_sum *s);

/* Every rank's counts[i] words (4 bytes) come to `all` at displs[i], in rank order. In place: this
 * rank's part already stands in `all`. */
void comm_gather_words(struct comm *c, enum comm_axis axis, void *all, const int *counts,
                       const int *displs);

/* Same number of bytes from each rank: all [size, n_bytes]. */
void comm_gather_bytes(struct comm *c, enum comm_axis axis, const void *mine, size_t n_bytes,
                       void *all);

/* All-to-all: n words to and from each rank: send, recv [size, n]. */
void comm_exchange_i32(struct comm *c, enum comm_axis axis, const int32_t *send, int32_t *recv,
                       size_t n);

/* A rank may receive more than 2^31 words in all (the experts of a large job do); what one rank
 * sends to one other stays below 2 GiB. When `send` stands in a lane it must not change before
 * another collective over the axis, to which every rank contributes, has returned. */
void comm_exchange_rows(struct comm *c, enum comm_axis axis, const struct comm_exchange *x);

void comm_broadcast(struct comm *c, enum comm_axis axis, int root, void *buf, size_t n_bytes);
void comm_barrier(struct comm *c, enum comm_axis axis);

/* Local. Point to point in the world; buffers are borrowed until the wait. */
void comm_send_start(struct comm *c, int to, enum comm_tag tag, const void *buf, size_t n_bytes,
                     struct comm_request *r);
void comm_recv_start(struct comm *c, int from, enum comm_tag tag, void *buf, size_t max_bytes,
                     struct comm_request *r);
/* Local. Waits until r is done; the bytes received (0 for sends and inactive requests). */
size_t comm_wait(struct comm *c, struct comm_request *r);

/* Local. Gives up a receive that nothing will match. */
void comm_cancel(struct comm *c, struct comm_request *r);

/* Local. Lets messages under way get on, between two pieces of computing: a message too large for
 * the transport to take it at once moves only while both sides are inside MPI, and a stage that
 * waited for the other's next call would wait for a whole step. Costs nothing without stages. */
void comm_poll(struct comm *c);

/* Local. Waits for a message and tells its size; then receive it with comm_recv. */
size_t comm_probe(struct comm *c, int from, enum comm_tag tag);
void comm_recv(struct comm *c, int from, enum comm_tag tag, void *buf, size_t n_bytes);

#ifdef SHOAL_DEBUG
/* Local. Remembers who calls; returns c. Debug builds compare operation, count, element size and
 * caller over the axis before each collective, and end the job naming both callers when they
 * differ (parallel/comm/collective_check.h). */
struct comm *comm_site(struct comm *c, const char *file, int line);
/* `mine` may come from functions that communicate: the caller is noted after it is known. */
struct status comm_agree_at(struct comm *c, struct status mine, const char *file, int line);
#endif

#if defined SHOAL_DEBUG && !defined COMM_INSIDE
#define COMM_SITE(c)               comm_site(c, __FILE__, __LINE__)
#define comm_gather_topo(c, ...)   comm_gather_topo(COMM_SITE(c), __VA_ARGS__)
#define comm_split(c, ...)         comm_split(COMM_SITE(c), __VA_ARGS__)
#define comm_agree(c, mine)        comm_agree_at(c, mine, __FILE__, __LINE__)
#define comm_sum_i64(c, ...)       comm_sum_i64(COMM_SITE(c), __VA_ARGS__)
#define comm_sum_words(c, ...)     comm_sum_words(COMM_SITE(c), __VA_ARGS__)
#define comm_or_u32(c, ...)        comm_or_u32(COMM_SITE(c), __VA_ARGS__)
#define comm_max_u64(c, ...)       comm_max_u64(COMM_SITE(c), __VA_ARGS__)
#define comm_min_u64(c, ...)       comm_min_u64(COMM_SITE(c), __VA_ARGS__)
#define comm_gather_words(c, ...)  comm_gather_words(COMM_SITE(c), __VA_ARGS__)
#define comm_gather_bytes(c, ...)  comm_gather_bytes(COMM_SITE(c), __VA_ARGS__)
#define comm_exchange_i32(c, ...)  comm_exchange_i32(COMM_SITE(c), __VA_ARGS__)
#define comm_exchange_rows(c, ...) comm_exchange_rows(COMM_SITE(c), __VA_ARGS__)
#define comm_broadcast(c, ...)     comm_broadcast(COMM_SITE(c), __VA_ARGS__)
#define comm_barrier(c, ...)       comm_barrier(COMM_SITE(c), __VA_ARGS__)
#endif

#endif

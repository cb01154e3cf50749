/* Communication along named axes: through shared memory where all ranks of an axis (stage, tp, ep
 * or etp) are on one host, else over MPI; sums over several hosts use both (host_sum.h). Knows
 * ranks and bytes, not tensors or requests. Most functions return nothing: when an MPI call fails,
 * comm logs rank, host and operation and aborts the job with the exit status of a lost rank. comm
 * counts its time per axis, so that a run can report where it waited. */
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
    COMM_TAG_MOVED,
    COMM_TAG_SAVED,
    COMM_TAG_CLOCK,
    COMM_TAG_TRACE,
    COMM_TAG_DEVICE
};

enum { COMM_TAG_POLL = 99 }; /* never sent: probing for it lets MPI move other messages */

struct comm; /* one per process */

/* A point-to-point transfer in flight; zero-initialised means none. */
struct comm_request {
    MPI_Request mpi;
    bool active;
    bool receives;
    size_t n_sent; /* bytes of a send */
};

/* **Collective (world)**. Starts MPI (funneled threads), unless the caller has started it; then the
 * caller also ends it. Only COMM_WORLD exists before comm_split. Errors: STATUS_LOST,
 * STATUS_MEMORY. */
struct status comm_start(int *argc, char ***argv, struct comm **out);

/* **Collective (world)**. Gathers every rank's view of the machine, in the launcher's order; the
 * caller frees *out with topo_destroy. Errors, agreed on: STATUS_USAGE (too many ranks),
 * STATUS_MEMORY. */
struct status comm_gather_topo(struct comm *c, struct topo **out);

/* **Collective (world)**. Makes the other axes, and reorders the world: launcher rank order[r]
 * becomes its rank r. Errors: STATUS_BUG when the layout has another number of ranks,
 * STATUS_MEMORY. */
struct status comm_split(struct comm *c, const struct layout *l, const uint32_t *order);

/* Local, after comm_split. Makes communicators in which this rank is alone on every axis, for
 * another model that it computes by itself. They use the team of `c` and are freed by comm_stop,
 * which does not end MPI then. Errors: STATUS_MEMORY. */
struct status comm_alone(const struct comm *c, struct comm **out);

/* Local, for tests; before comm_split, on all ranks. From then on this rank shares memory only with
 * ranks of its machine that gave the same number, as if each number were a host. */
void comm_pretend_host(struct comm *c, int host);

/* Local. After comm_split: sets the team, borrowed until comm_stop or another call. Its threads
 * share the work of large sums, and it moves mails while it runs jobs (comm_mail.h). NULL, the
 * initial value: the calling thread does this work alone. */
void comm_use_team(struct comm *c, struct team *team);
/* Local, on all ranks alike. From now on a rank that waits long for a plan (comm_probe,
 * comm_broadcast) sleeps between two looks for the message, for at most 1/64 of the time that it
 * has waited and at most 2 ms, so that an idle server leaves its cores to others. Before this call
 * MPI decides how ranks wait, and most libraries spin. */
void comm_wait_asleep(struct comm *c);

/* Local. Returns the team set by comm_use_team; borrowed. */
struct team *comm_team(const struct comm *c);

/* **Collective (world)**. Frees *c, and ends MPI unless the caller started it; if *c is NULL, MPI
 * ends in any case. When the launcher does not answer because its host gives it no CPU, this rank
 * stays for up to 30 s: mpirun would count a rank that exits earlier as failed. */
void comm_stop(struct comm **c);

/* Local. Ends the whole job at once with this exit status. */
void comm_abort(struct comm *c, int exit_status) __attribute__((noreturn));

/* Local. Returns this rank's number within an axis, the axis's number of ranks, and its
 * communicator (borrowed). */
int comm_rank(const struct comm *c, enum comm_axis axis);
int comm_size(const struct comm *c, enum comm_axis axis);
MPI_Comm comm_handle(const struct comm *c, enum comm_axis axis);

/* Calls, payload and time of an axis since the start. Point-to-point waits are counted under
 * COMM_WORLD. */
struct comm_stats {
    uint64_t n_calls, n_bytes, ns;
    uint64_t wait_ns;    /* part of ns: waiting for the other ranks of this host */
    uint64_t wire_bytes; /* sent by this rank to other hosts in sums over hosts and in mails
                            (comm_mail.h); bytes that MPI's own collectives send are not counted */
};

/* Local. Return the counts of one axis; and the sum of the counts of the axes that steps use
 * (COMM_STAGE to COMM_ETP). */
struct comm_stats comm_stats_of(const struct comm *c, enum comm_axis axis);
struct comm_stats comm_stats_of_steps(const struct comm *c);

/* Local. comm_shares_memory returns whether collectives over this axis use the host's shared
 * memory. comm_use_memory, for tests and measurements, allows or forbids shared memory (allowed at
 * first); all ranks of the axis call it between the same two collectives. */
bool comm_shares_memory(const struct comm *c, enum comm_axis axis);
void comm_use_memory(struct comm *c, enum comm_axis axis, bool on);

/* Local. Returns this rank's shared segment for the purpose `lane`: at least n_bytes, zeroed at
 * first, owned by c until comm_stop. A later, larger call returns the same address and keeps the
 * content. Returns NULL when the axis shares no memory or none is left; the caller then allocates
 * memory of its own. comm_exchange_rows, and comm_sum_words for large sums, read a shared segment
 * without copying it. */
void *comm_lane(struct comm *c, enum comm_axis axis, enum comm_lane lane, size_t n_bytes);

/* Local. True when the shared segment lies in huge pages (its last part, shorter than a page, need
 * not); false when the segment does not exist. */
bool comm_lane_is_huge(const struct comm *c, enum comm_axis axis, enum comm_lane lane);

/* Local. Frees this rank's shared segment before comm_stop; no rank may read or write it any more.
 * Does nothing when the segment does not exist. */
void comm_release_lane(struct comm *c, enum comm_axis axis, enum comm_lane lane);

/* Local, when the axis shares memory. Returns the shared segment of `rank`. Read it after a barrier
 * that `rank` entered after writing; its content is valid until `rank` writes again. */
const void *comm_lane_of(const struct comm *c, enum comm_axis axis, enum comm_lane lane, int rank);

/* **Collective (axis)**, when the axis shares memory. Returns the first rank's shared segment, of
 * at least n_bytes, which all ranks of the axis may write and read, with barriers to order their
 * accesses. Ends the job when no memory is left. */
void *comm_common_lane(struct comm *c, enum comm_axis axis, enum comm_lane lane, size_t n_bytes);

/* Local. For callers that move data without comm (src/collective). comm_begin records the start of
 * an operation and returns the time, which the caller hands to comm_account. comm_account records
 * the operation's end and counts it, even if the data is still under way. */
uint64_t comm_begin(struct comm *c, enum flight_op op, enum comm_axis axis, uint64_t count);
void comm_account(struct comm *c, enum comm_axis axis, uint64_t since, size_t n_bytes);

/* Local. Returns the name of an enum comm_axis, for messages; any number is accepted. */
const char *comm_axis_name(uint32_t axis);

/* Local. Sets the step, or the layer, to which the flight recorder assigns communication from now
 * on. Layers are numbered as in the model; FLIGHT_NO_LAYER: outside the layers. */
void comm_mark_step(struct comm *c, uint64_t step);
void comm_mark_layer(struct comm *c, int32_t layer);

/* Local. comm_trace_in: from now on collectives and messages are also added to the timeline `t`
 * (borrowed, must outlive c; NULL: none). comm_trace returns t. */
void comm_trace_in(struct comm *c, struct trace *t);
struct trace *comm_trace(const struct comm *c);

/* Local. Returns this rank's flight recorder, borrowed; any thread may read it. */
const struct flight *comm_flight(const struct comm *c);

/* Local. Copies the flight recorder to `f` and records there from now on (borrowed, must outlive
 * c). */
void comm_record_in(struct comm *c, struct flight *f);

/* **Collective (world)**. Ends a start-up phase: all ranks return the worst status of any rank; if
 * several ranks have it, that of the lowest. The sentence names that rank unless it is the calling
 * rank or the lead. */
struct status comm_agree(struct comm *c, struct status mine);

/* All below: **Collective (axis)** unless said otherwise. On an axis of one rank only
 * comm_gather_bytes and comm_barrier call MPI. */

/* In place, element by element over buf [n]: the integer sum (exact in any order), bitwise or,
 * maximum, minimum. */
void comm_sum_i64(struct comm *c, enum comm_axis axis, int64_t *buf, size_t n);
void comm_or_u32(struct comm *c, enum comm_axis axis, uint32_t *buf, size_t n);
void comm_max_u64(struct comm *c, enum comm_axis axis, uint64_t *buf, size_t n);
void comm_min_u64(struct comm *c, enum comm_axis axis, uint64_t *buf, size_t n);

/* Adds s->sums over the ranks, converts the totals to words, and hands every rank all n words. A
 * word has half the bytes of a total, and each rank converts only a part of a large sum. */
void comm_sum_words(struct comm *c, enum comm_axis axis, const struct comm_sum *s);

/* All-gather: rank i's counts[i] words (4 bytes each) arrive in `all` at displs[i]. This rank's
 * part is already in `all` before the call. */
void comm_gather_words(struct comm *c, enum comm_axis axis, void *all, const int *counts,
                       const int *displs);

/* All-gather of the same number of bytes from each rank: all [size, n_bytes]. */
void comm_gather_bytes(struct comm *c, enum comm_axis axis, const void *mine, size_t n_bytes,
                       void *all);

/* All-to-all: n words to and from each rank: send, recv [size, n]. */
void comm_exchange_i32(struct comm *c, enum comm_axis axis, const int32_t *send, int32_t *recv,
                       size_t n);

/* All-to-all of rows. A rank may receive more than 2^31 words in total, but less than 2 GiB from
 * any one rank. If `send` lies in a shared segment, it must not change until a later
 * collective over the axis, to which every rank contributes, has returned. */
void comm_exchange_rows(struct comm *c, enum comm_axis axis, const struct comm_exchange *x);

void comm_broadcast(struct comm *c, enum comm_axis axis, int root, void *buf, size_t n_bytes);
void comm_barrier(struct comm *c, enum comm_axis axis);

/* Local. Starts a transfer between two ranks of the world; buffers are borrowed until the wait. */
void comm_send_start(struct comm *c, int to, enum comm_tag tag, const void *buf, size_t n_bytes,
                     struct comm_request *r);
void comm_recv_start(struct comm *c, int from, enum comm_tag tag, void *buf, size_t max_bytes,
                     struct comm_request *r);
/* Local. Waits until r is done. Returns the bytes received or sent, 0 for an inactive request. */
size_t comm_wait(struct comm *c, struct comm_request *r);

/* Local. Cancels a receive for which no message will come. */
void comm_cancel(struct comm *c, struct comm_request *r);

/* Local. Lets messages under way make progress; call it between two pieces of computing. A message
 * above the transport's eager limit moves only while both sides are inside MPI, so without these
 * calls a stage could wait for a whole step. Does nothing without pipeline stages, unless a mail is
 * under way (comm_mail.h). */
void comm_poll(struct comm *c);

/* Local. comm_probe waits for a message and returns its size in bytes; comm_recv then receives it.
 */
size_t comm_probe(struct comm *c, int from, enum comm_tag tag);
void comm_recv(struct comm *c, int from, enum comm_tag tag, void *buf, size_t n_bytes);

#ifdef SHOAL_DEBUG
/* Local. Notes the call site; returns c. In debug builds each collective over an axis of several
 * ranks, except comm_split, first compares operation, count, element size, root and call site of
 * all ranks. If they differ it ends the job and names two call sites
 * (parallel/comm/collective_check.h). */
struct comm *comm_site(struct comm *c, const char *file, int line);
/* comm_agree for debug builds. Notes the call site only after `mine` has been evaluated, because
 * computing `mine` may communicate. */
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

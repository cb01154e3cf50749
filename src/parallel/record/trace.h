/* The timeline of a rank (--trace): a ring that keeps the newest spans of time. One thread writes.
 * Adding never waits; memory is allocated only by trace_create. comm, the engine and
 * job/job_trace.c add spans; job/trace_file.h gathers the ranks' timelines and writes them to a
 * file. */
#ifndef SHOAL_PARALLEL_RECORD_TRACE_H
#define SHOAL_PARALLEL_RECORD_TRACE_H

#include "base/status.h"
#include "parallel/record/flight.h"

/* A rank keeps at most TRACE_EVENTS_MAX events, and all ranks together TRACE_EVENTS_ALL. So the
 * file of a job stays below about 100 MB, however long it runs and however many ranks it has. */
enum { TRACE_EVENTS_MAX = 1 << 16, TRACE_EVENTS_ALL = 1 << 19, TRACE_COUNTS = 4 };

/* Columns: the enumerator, the name in the file, the category, the names of the counts. cpu_ns is
 * the CPU time of the writing thread, which does not grow while other ranks use the core. */
#define TRACE_KINDS(X)                                                                             \
    X(STEP, "step", "compute", "rows", "seqs", "cpu_ns", NULL)                                     \
    X(EMBED, "embed", "compute", NULL, NULL, NULL, NULL)                                           \
    X(LAYERS, "layers", "compute", NULL, NULL, NULL, NULL)                                         \
    X(HEAD, "head and sampling", "compute", NULL, NULL, NULL, NULL)                                \
    X(COMM, "communication", "communication", "count", NULL, NULL, NULL)                           \
    X(WAIT_PLAN, "wait for a plan", "waiting", NULL, NULL, NULL, NULL)                             \
    X(WAIT_ROWS, "wait for hidden rows", "waiting", NULL, NULL, NULL, NULL)                        \
    X(WAIT_RESULT, "wait for a result", "waiting", "replica", NULL, NULL, NULL)                    \
    X(WAIT_SENT, "wait for a send", "waiting", NULL, NULL, NULL, NULL)                             \
    X(PLAN, "plan", "lead", "rows", "seqs", "cpu_ns", "admitted")                                  \
    X(COMMIT, "commit", "lead", "replica", NULL, "cpu_ns", NULL)                                   \
    X(LOAD, "requests", "lead", "running", "waiting", NULL, NULL)                                  \
    X(BLOCKS, "KV blocks", "lead", "used", "free", NULL, NULL)

enum trace_kind {
#define X(name, text, category, a, b, c, d) TRACE_##name,
    TRACE_KINDS(X)
#undef X
        TRACE_KIND_COUNT
};

struct trace_event {
    uint64_t begin_ns, end_ns; /* clock_ns; LOAD and BLOCKS are values at begin_ns */
    uint64_t step;             /* FLIGHT_NO_STEP: none */
    uint64_t counts[TRACE_COUNTS];
    uint8_t kind, op, axis; /* enum trace_kind; of COMM: enum flight_op, enum comm_axis */
    int32_t layer;          /* layer of a COMM event; FLIGHT_NO_LAYER: none */
};

struct trace; /* one per rank */

/* Local. Allocates room for one rank's share of TRACE_EVENTS_ALL. n_ranks: 1 to TRACE_EVENTS_ALL.
 * Errors: STATUS_MEMORY. destroy accepts NULL. */
struct status trace_create(uint32_t n_ranks, struct trace **out);
void trace_destroy(struct trace **t);

/* Local, writer. Adds an event; nothing when t is NULL. */
void trace_add(struct trace *t, const struct trace_event *e);

/* Local, writer. Adds the last event of the flight recorder, unless it is a point-to-point wait:
 * the engine adds these itself, because it knows what it waits for. */
void trace_add_comm(struct trace *t, const struct flight *f);

/* Local. Returns the CPU time of this thread in ns; 0 when t is NULL, which saves the system call.
 */
uint64_t trace_cpu_ns(const struct trace *t);

/* Local. Return how many events are kept at most (the same on all ranks), how many are kept now,
 * and how many older ones were overwritten. */
size_t trace_capacity(const struct trace *t);
size_t trace_count(const struct trace *t);
uint64_t trace_n_lost(const struct trace *t);

/* Local. Copies the kept events to out [trace_count], oldest first. */
void trace_copy(const struct trace *t, struct trace_event *out);

/* Local, any thread, while the writer goes on. Like trace_copy, into out [trace_capacity], but
 * leaves out events that the writer overwrites during the copy. Returns the number of events
 * copied. *n_lost: how many older ones are missing. */
size_t trace_copy_beside(const struct trace *t, struct trace_event *out, uint64_t *n_lost);

#endif

/* Writes the timelines of all ranks into one file, on one clock, in Chrome's trace format (JSON),
 * which chrome://tracing and ui.perfetto.dev show. Source: the "Trace Event Format" description.
 * Called by job_trace.c before and after a job's steps, and when the job fails; then a rank writes
 * only its own timeline, to its own file. */
#ifndef SHOAL_JOB_TRACE_FILE_H
#define SHOAL_JOB_TRACE_FILE_H

#include "base/strbuf.h"
#include "parallel/comm/comm.h"
#include "parallel/layout/layout.h"

/* How far this rank's clock is ahead of rank 0's, and when that was measured. */
struct trace_clock {
    uint64_t at_ns;    /* when it was measured, on this rank's clock */
    int64_t offset_ns; /* subtract it to get rank 0's clock */
    uint64_t error_ns; /* bound of the error: half the fastest round trip */
};

/* **Collective (world)**. Measures this rank's clock against rank 0's by round trips, of which the
 * fastest counts. Sets an offset within its error bound, as between ranks of one host, to 0.
 * Source: Mills, RFC 5905, section 8. */
struct trace_clock trace_clock_measure(struct comm *c);

/* Local. Converts a time of this rank to rank 0's clock. The offset was measured twice; it is taken
 * to change linearly between and beyond these two times. */
uint64_t trace_clock_map(const struct trace_clock clocks[2], uint64_t ns);

/* Describes one rank's timeline; its events are sent separately. */
struct trace_part {
    struct trace_clock clocks[2]; /* at the start and at the end */
    uint64_t n_events, n_lost;
};

/* Local. Appends an event as a line of JSON, preceded by a comma, in times from origin_ns on rank
 * 0's clock. Leaves out an event of an unknown kind. */
void trace_event_print(const struct trace_event *e, uint32_t rank,
                       const struct trace_clock clocks[2], uint64_t origin_ns, struct strbuf *out);

/* **Collective (world)**. Rank 0 writes `path` with the events of all ranks, holding those of one
 * rank at a time; a regular file is replaced as a whole. `start` is the result of
 * trace_clock_measure at the start; times count from origin_ns on rank 0's clock. Errors:
 * STATUS_IO, STATUS_MEMORY, the same on all ranks. */
struct status trace_file_write(struct comm *c, const struct layout *l, const struct trace *t,
                               struct trace_clock start, uint64_t origin_ns, const char *path);

/* The input of trace_file_write_alone. */
struct trace_alone {
    const struct trace *trace;
    const struct layout *layout;
    uint32_t rank;
    struct trace_clock start; /* as in trace_file_write; its offset is taken to stay the same */
    uint64_t origin_ns;       /* on rank 0's clock */
    const char *path;         /* of the job's trace file */
};

/* Local, any thread; events may still be added meanwhile. Writes PATH.rankN with this rank's events
 * so far, for when other ranks cannot be waited for. Errors: STATUS_IO, STATUS_MEMORY. */
struct status trace_file_write_alone(const struct trace_alone *a);

#endif

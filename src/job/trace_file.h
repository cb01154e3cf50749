/* The timelines of all ranks in one file, on one clock: Chrome's trace format (JSON), which
 * chrome://tracing and ui.perfetto.dev show. Source: the "Trace Event Format" description. Called
 * by main around a job's steps. */
#ifndef SHOAL_JOB_TRACE_FILE_H
#define SHOAL_JOB_TRACE_FILE_H

#include "base/strbuf.h"
#include "parallel/comm/comm.h"
#include "parallel/layout/layout.h"

/* How far this rank's clock stood before rank 0's, and when. */
struct trace_clock {
    uint64_t at_ns;    /* on this rank's clock */
    int64_t offset_ns; /* subtract it to get rank 0's clock */
    uint64_t error_ns; /* at most: half of the fastest round trip */
};

/* **Collective (world)**. Measures against rank 0 by round trips, of which the fastest counts; an
 * offset below its own error is 0, as between ranks of one host. Source: Mills, RFC 5905, section
 * 8. */
struct trace_clock trace_clock_measure(struct comm *c);

/* Local. A moment of this rank on rank 0's clock: offsets were measured twice, and between (and
 * beyond) them they change evenly. */
uint64_t trace_clock_map(const struct trace_clock clocks[2], uint64_t ns);

/* One rank's timeline, mapped to times from `origin_ns` on rank 0's clock. */
struct trace_part {
    struct trace_clock clocks[2]; /* at the start and at the end */
    uint64_t n_events, n_lost;
};

/* Local. Appends an event as a line of JSON, with its comma before it. */
void trace_event_print(const struct trace_event *e, uint32_t rank,
                       const struct trace_clock clocks[2], uint64_t origin_ns, struct strbuf *out);

/* **Collective (world)**. Rank 0 writes `path` (by way of a temporary file, when it is to be a
 * regular one) with every rank's events; it holds one rank's events at a time. `start` is what
 * trace_clock_measure gave at the start; times count from rank 0's origin_ns. Errors: STATUS_IO,
 * STATUS_MEMORY, the same on all ranks. */
struct status trace_file_write(struct comm *c, const struct layout *l, const struct trace *t,
                               struct trace_clock start, uint64_t origin_ns, const char *path);

/* One rank and its events, for a file of its own when the others cannot be waited for. */
struct trace_alone {
    const struct trace *trace;
    const struct layout *layout;
    uint32_t rank;
    struct trace_clock start; /* as above; rank 0's clock is taken to go on as this one's does */
    uint64_t origin_ns;       /* on rank 0's clock */
    const char *path;         /* of the job's trace */
};

/* Local, any thread, while the trace's writer goes on. Writes PATH.rankN with this rank's events up
 * to now. Errors: STATUS_IO, STATUS_MEMORY. */
struct status trace_file_write_alone(const struct trace_alone *a);

#endif

/* What the files of comm share. Nobody else includes it. */
#ifndef SHOAL_PARALLEL_COMM_COMM_PRIVATE_H
#define SHOAL_PARALLEL_COMM_COMM_PRIVATE_H

#include "parallel/comm/comm.h"

struct host_group;

struct comm {
    bool owns_mpi; /* started here, so ended here */
    MPI_Comm axes[COMM_AXIS_COUNT];
    int ranks[COMM_AXIS_COUNT];
    int sizes[COMM_AXIS_COUNT];
    struct comm_stats stats[COMM_AXIS_COUNT];
    struct host_group
        *groups[COMM_AXIS_COUNT]; /* NULL: over MPI; axes of the same ranks share one */
    bool uses_memory[COMM_AXIS_COUNT];
    int *parts;            /* [2 * world] counts and places of a sum's parts */
    struct flight *flight; /* &own_flight, or borrowed: comm_record_in */
    struct flight own_flight;
    struct team *team;     /* borrowed; NULL: none */
    struct trace *trace;   /* borrowed; NULL: none is kept */
    bool has_stages;       /* ranks send each other messages while they compute */
    const char *site_file; /* debug builds: who calls */
    int site_line;
};

/* No transfer may carry more than this many elements: counts are ints, and some transports want
 * less than 2 GiB at once. */
enum { ELEMS_AT_ONCE = 1 << 27 };

/* Elements from which a sum to words goes as parts: below, the second message costs more than the
 * bytes that it saves (tests/bench/bench_comm.c). At least a part's element for every rank. */
enum { PARTS_FROM = 1 << 15 };

/* Local. Ends the job with a sentence when MPI said that an operation failed, or the host has no
 * memory left for it. */
void comm_check(struct comm *c, int rc, const char *op, enum comm_axis axis);
void comm_check_memory(struct comm *c, bool ok, const char *op, enum comm_axis axis);

/* Local. Ends an operation that is not counted. */
void comm_end(struct comm *c, uint64_t now);

/* **Collective (axis)** in debug builds: all ranks must be about to do the same, or the job ends
 * naming both call sites. Nothing otherwise. */
void comm_agree_on_call(struct comm *c, const char *op, enum comm_axis axis, uint64_t count,
                        size_t elem_bytes, int root);

/* Local. The group that an operation goes through; NULL: MPI. */
struct host_group *comm_group_of(const struct comm *c, enum comm_axis axis);

#endif

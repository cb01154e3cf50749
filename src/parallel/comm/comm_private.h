/* The state of comm, shared by the comm*.c files. */
#ifndef SHOAL_PARALLEL_COMM_COMM_PRIVATE_H
#define SHOAL_PARALLEL_COMM_COMM_PRIVATE_H

#include "parallel/comm/comm.h"

struct comm_hosts;
struct comm_mail;
struct host_group;

enum { MAILS_UNDER_WAY = 2 /* equal to COMM_MAILS */ };

/* This rank's memory for the sums of host_sum.h; zero-initialised means none. */
struct host_sum_memory {
    char *bytes; /* owned */
    size_t n_bytes;
};

struct comm {
    bool owns_mpi; /* comm started MPI, so comm ends MPI */
    MPI_Comm axes[COMM_AXIS_COUNT];
    int ranks[COMM_AXIS_COUNT];
    int sizes[COMM_AXIS_COUNT];
    struct comm_stats stats[COMM_AXIS_COUNT];
    /* For COMM_STAGE to COMM_ETP, the axes that steps use; axes with the same ranks share them.
     * hosts: NULL for an axis of one rank. groups: the group of hosts[axis] if the axis is on one
     * host; NULL: the axis uses MPI. */
    struct comm_hosts *hosts[COMM_AXIS_COUNT];
    struct host_group *groups[COMM_AXIS_COUNT];
    int pretended_host; /* set by comm_pretend_host; -1: the real host */
    bool uses_memory[COMM_AXIS_COUNT];
    struct host_sum_memory sum_memory;
    int *parts;            /* [2 * world] counts, then displacements, of the parts of a sum */
    struct flight *flight; /* &own_flight, or borrowed: comm_record_in */
    struct flight own_flight;
    struct team *team;   /* borrowed; NULL: none */
    struct trace *trace; /* borrowed; NULL: none is kept */
    bool waits_asleep;   /* comm_wait_asleep */
    bool has_stages;     /* pipeline stages send each other messages while they compute */
    struct comm_mail *mails[MAILS_UNDER_WAY]; /* borrowed; NULL: this mail is not under way */
    uint64_t next_poll_ns;                    /* comm_mail_poll does nothing before this time */
    const char *site_file;                    /* debug builds: the call site */
    int site_line;
};

/* MPI's reductions and broadcasts go in parts of at most this many elements, and comm_sum_words in
 * parts of fewer than twice as many, because some transports fail with 2 GiB or more at once. */
enum { ELEMS_AT_ONCE = 1 << 27 };

/* Sums of at least this many elements take two operations, a reduce-scatter and an all-gather. For
 * shorter sums the second operation costs more than the bytes that it saves
 * (tests/bench/bench_comm.c). */
enum { PARTS_FROM = 1 << 15 };

/* Local. comm_check ends the job with a sentence when an MPI call failed (rc); comm_check_memory
 * does when an operation got no memory (ok is false). */
void comm_check(struct comm *c, int rc, const char *op, enum comm_axis axis);
void comm_check_memory(struct comm *c, bool ok, const char *op, enum comm_axis axis);

/* comm_message.c. Local. Called between two looks for a message by a rank that has waited since
 * `since_ns`: returns at once in the first milliseconds of the wait, later sleeps. */
void comm_rest(uint64_t since_ns);

/* Local. Lets MPI make progress; begins to receive messages of mails that have arrived. May be
 * called while the team runs a job. */
void comm_poll_mpi(struct comm *c);

/* comm_mail.c. Local. Begins to receive the messages of mails that have arrived. in_job: the team
 * may be running a job, so a message for which memory would have to grow is left. Returns whether
 * it called MPI. */
bool comm_mail_advance(struct comm *c, bool in_job);

/* comm_mail.c. Local. While a mail is under way, calls comm_mail_advance and, if that did not
 * call MPI, comm_poll_mpi. Does nothing for a time after each poll (POLL_NS, POLL_REST). */
void comm_mail_poll(struct comm *c, bool in_job);

/* Local. Records the end of an operation without counting it. */
void comm_end(struct comm *c, uint64_t now);

/* **Collective (axis)**. In debug builds, ends the job, naming two call sites, unless all ranks
 * make the same call. Does nothing in other builds. */
void comm_agree_on_call(struct comm *c, const char *op, enum comm_axis axis, uint64_t count,
                        size_t elem_bytes, int root);

/* Local. Returns the host group that an operation uses; NULL: it uses MPI. */
struct host_group *comm_group_of(const struct comm *c, enum comm_axis axis);

#endif

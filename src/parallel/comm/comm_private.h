/* The state of comm, shared by the comm*.c files. */
#ifndef SHOAL_PARALLEL_COMM_COMM_PRIVATE_H
#define SHOAL_PARALLEL_COMM_COMM_PRIVATE_H

#include "parallel/comm/comm.h"

struct comm_hosts;
struct comm_mail;
struct host_group;

enum { MAILS_UNDER_WAY = 2 /* at most: COMM_MAILS */ };

/* This rank's memory for the messages of host_sum.h; zero-initialised means none. */
struct host_sum_memory {
    char *bytes; /* owned */
    size_t n_bytes;
};

struct comm {
    bool owns_mpi; /* comm started MPI, so it ends it */
    MPI_Comm axes[COMM_AXIS_COUNT];
    int ranks[COMM_AXIS_COUNT];
    int sizes[COMM_AXIS_COUNT];
    struct comm_stats stats[COMM_AXIS_COUNT];
    /* For the axes that steps use, COMM_STAGE to COMM_ETP; axes with the same ranks share them.
     * hosts: NULL for an axis of one rank. groups: hosts[axis]->group if the axis is on one host,
     * else NULL (MPI). */
    struct comm_hosts *hosts[COMM_AXIS_COUNT];
    struct host_group *groups[COMM_AXIS_COUNT];
    int pretended_host; /* comm_pretend_host; -1: the real one */
    bool uses_memory[COMM_AXIS_COUNT];
    struct host_sum_memory sum_memory;
    int *parts;            /* [2 * world] counts and places of a sum's parts */
    struct flight *flight; /* &own_flight, or borrowed: comm_record_in */
    struct flight own_flight;
    struct team *team;   /* borrowed; NULL: none */
    struct trace *trace; /* borrowed; NULL: none is kept */
    bool waits_asleep;   /* comm_wait_asleep */
    bool has_stages;     /* ranks send each other messages while they compute */
    struct comm_mail *mails[MAILS_UNDER_WAY]; /* borrowed; NULL: that one is not under way */
    uint64_t next_poll_ns;                    /* not before: comm_mail_poll */
    const char *site_file;                    /* debug builds: the call site */
    int site_line;
};

/* Reductions and broadcasts by MPI go in parts of at most this many elements, sums to words in
 * parts of less than twice as many: some transports want less than 2 GiB at once. */
enum { ELEMS_AT_ONCE = 1 << 27 };

/* Sums of at least this many elements go as parts (reduce-scatter and all-gather). Below this, the
 * second message costs more than the bytes that it saves (tests/bench/bench_comm.c). */
enum { PARTS_FROM = 1 << 15 };

/* Local. comm_check ends the job with a sentence when an MPI call failed; comm_check_memory when
 * the host has no memory left for an operation. */
void comm_check(struct comm *c, int rc, const char *op, enum comm_axis axis);
void comm_check_memory(struct comm *c, bool ok, const char *op, enum comm_axis axis);

/* comm_message.c. Local. For a rank that has waited since `since_ns`, between two looks: returns at
 * once in the first milliseconds, later sleeps. */
void comm_rest(uint64_t since_ns);

/* Local. Lets MPI make progress, or begins to receive messages of mails. The team may run a job. */
void comm_poll_mpi(struct comm *c);

/* comm_mail.c. Local. Begins to receive the mails' messages that have arrived. in_job: the team may
 * run a job, so a message for which memory must grow is left. Returns whether it called MPI. */
bool comm_mail_advance(struct comm *c, bool in_job);

/* comm_mail.c. Local. While a mail is under way, calls comm_mail_advance or comm_poll_mpi, unless
 * the last poll was a short time ago; otherwise does nothing. */
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

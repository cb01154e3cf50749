/* Decides when a job ends early: SIGUSR1, SIGTERM, without a launcher SIGHUP (a terminal that was
 * closed), or a margin before the time limit. All threads block these signals, and drain_poll asks
 * for them between steps, so that no handler runs and no call is interrupted. Every rank may get
 * them; in the step loop only the lead acts. Called by job.c and dry_run.c. */
#ifndef SHOAL_JOB_DRAIN_H
#define SHOAL_JOB_DRAIN_H

#include "base/status.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

struct drain {
    sigset_t signals;
    int n_signals;        /* that came so far */
    int signal;           /* the first of them */
    uint64_t deadline_ns; /* on clock_ns; 0: none */
    uint64_t last_ns;     /* of the last drain_poll */
    uint64_t step_ns;     /* the longest time between two of them, of late */
};

enum drain_ask { DRAIN_NOT, DRAIN_ASKED, DRAIN_NOW };

/* Local. The longest step of late, after one of step_ns; longest_ns was it before. A long step is
 * forgotten within 128 times its own time, not after a number of steps: one of a prompt may follow
 * hundreds of short ones, and the time limit must leave room for it. */
uint64_t drain_longest(uint64_t longest_ns, uint64_t step_ns);

/* Local. Blocks the signals, so that they wait for drain_poll. A job's first act: until then they
 * end the process. is_launched: an MPI launcher started this process; SIGHUP is then left to it. An
 * ignored SIGHUP (nohup) stays ignored. */
void drain_hold_signals(bool is_launched);

/* Local. Unblocks them, where there will be no job. */
void drain_let_signals(void);

/* Local. Makes an empty drain and blocks the signals. Call it before MPI starts, so that MPI's
 * threads inherit the mask. */
void drain_init(struct drain *d, bool is_launched);

/* Local. Takes a limit of `seconds` from `start_ns` on; the earliest of several counts. */
void drain_limit(struct drain *d, uint64_t start_ns, uint64_t seconds);

/* Local. "SECONDS", "M:S", "H:M:S", "D-H", "D-H:M" or "D-H:M:S", each number behind the
 * first below 24 (hours) or 60; false when it is none of them. */
bool drain_parse_time(const char *text, uint64_t *seconds);

/* Local. DRAIN_ASKED after the first signal or near the limit, DRAIN_NOW after a second signal.
 * commit_s: how long a commit takes; the margin before the limit is 2 s and four times a step and a
 * commit. */
enum drain_ask drain_poll(struct drain *d, double commit_s);

/* Local. The reason, for people: a signal's name, or "the time limit". */
const char *drain_reason(const struct drain *d);

#endif

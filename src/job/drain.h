/* Decides when a job ends early: after SIGUSR1 or SIGTERM, after SIGHUP if there is no launcher
 * (the terminal was closed), or some time before the time limit. All threads block these signals,
 * and drain_poll takes them between steps, so that no handler runs and no call is interrupted.
 * Every rank may receive them; during the step loop only the lead acts on them. Polled by job.c,
 * dry_run.c and bench_run.c. */
#ifndef SHOAL_JOB_DRAIN_H
#define SHOAL_JOB_DRAIN_H

#include "base/status.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

struct drain {
    sigset_t signals;
    int n_signals;        /* received so far */
    int signal;           /* the first of them */
    uint64_t deadline_ns; /* on clock_ns; 0: none */
    uint64_t last_ns;     /* time of the last drain_poll */
    uint64_t step_ns;     /* longest recent time between two calls (drain_longest) */
};

enum drain_ask { DRAIN_NOT, DRAIN_ASKED, DRAIN_NOW };

/* Local. Returns the time of the longest recent step, from its value before (longest_ns) and the
 * step that just ended (step_ns). A long step fades over 128 times its own time, not over a number
 * of steps: a step of a prompt may follow hundreds of short ones, and the time limit must leave
 * room for it. */
uint64_t drain_longest(uint64_t longest_ns, uint64_t step_ns);

/* Local. Blocks the signals, so that they wait for drain_poll. A job calls it first, because until
 * then they end the process. is_launched: an MPI launcher started this process, so SIGHUP is left
 * to the launcher. An ignored SIGHUP (nohup) stays ignored. */
void drain_hold_signals(bool is_launched);

/* Local. Unblocks the signals; for a process that runs no job after all. */
void drain_let_signals(void);

/* Local. Makes an empty drain and blocks the signals. Call it before MPI starts, so that MPI's
 * threads inherit the mask. */
void drain_init(struct drain *d, bool is_launched);

/* Local. Sets a limit of `seconds` from `start_ns` on (clock_ns); if there are several limits, the
 * earliest counts. */
void drain_limit(struct drain *d, uint64_t start_ns, uint64_t seconds);

/* Local. Parses "SECONDS", "M:S", "H:M:S", "D-H", "D-H:M" or "D-H:M:S". After the first number,
 * hours must be below 24, and minutes and seconds below 60. False for any other text, and for more
 * than 1e9 s. */
bool drain_parse_time(const char *text, uint64_t *seconds);

/* Local. Returns DRAIN_ASKED after the first signal or near the limit, DRAIN_NOW after a second
 * signal. end_s: how long the job takes to end; the margin before the limit is 2 s plus four times
 * the longest recent step plus end_s. */
enum drain_ask drain_poll(struct drain *d, double end_s);

/* Local. Returns the reason of the drain, for messages: a signal's name, or "the time limit". */
const char *drain_reason(const struct drain *d);

#endif

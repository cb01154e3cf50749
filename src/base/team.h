/* A team of threads that runs one job at a time, divided into parts. Thread 0 is the caller. The
 * other threads wait for the next job: they spin for some microseconds, then yield, then sleep, so
 * that teams that share cores do not hold each other up. The compute threads of a rank are one team
 * (kernels/part.h, parallel/comm/comm.h). */
#ifndef SHOAL_BASE_TEAM_H
#define SHOAL_BASE_TEAM_H

#include "base/status.h"

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

struct team;

/* Runs one part of a job, on any thread. */
typedef void team_fn(void *job, uint32_t part);

/* Runs the parts [first, first + n) of a job. */
typedef void team_span_fn(void *job, uint32_t first, uint32_t n);

/* Local. Makes a team of n_threads (at least 1), of which the caller is one: n_threads - 1 are
 * started. Errors: STATUS_MEMORY. */
struct status team_create(uint32_t n_threads, struct team **out);

/* Local. Ends the threads and frees; accepts NULL. */
void team_destroy(struct team **t);

/* Local. From now on only the first n threads (at least 1, at most all) get parts; for
 * measurements. */
void team_use(struct team *t, uint32_t n);

/* Local. Returns the number of threads that get parts; 1 for NULL. */
uint32_t team_size(const struct team *t);

/* Local, by the thread that made the team. True when no thread of the team sleeps between jobs and
 * the caller did not recently lose its core to another process; true for NULL. When it is false,
 * use fewer and larger parts: a thread that takes over a small part may be descheduled in the
 * middle of it, and then all others wait. */
bool team_is_calm(const struct team *t);

/* Local, by the thread that made the team, not from within a part. Runs fn(job, i) once for each
 * part i below team_size(t) * parts_each and returns when all are done; parts_each is below 2^15.
 * Part i belongs to thread i / parts_each. A thread that has finished its own parts takes parts
 * that other threads have not begun, so a thread without a core does not delay the job. t NULL: the
 * caller runs all parts. */
void team_run(struct team *t, uint32_t parts_each, team_fn *fn, void *job);

/* Local. As team_run, for parts so small that claiming each one would take too long: a thread
 * claims its own parts in spans of neighbours, long spans first and single parts last. Other
 * threads still take one part at a time. */
void team_run_spans(struct team *t, uint32_t parts_each, team_span_fn *fn, void *job);

/* Local. As team_run, with exactly one part for each thread, which no other thread takes: for
 * binding threads, first-touching memory, or measuring. */
void team_run_each(struct team *t, team_fn *fn, void *job);

/* Local, by the thread that made the team, between jobs. From now on this thread calls poll(ctx)
 * after each part or span that it runs, so that messages move while the team computes. In a team of
 * one thread only team_run calls poll. poll NULL (the initial value): nothing is called. poll must
 * not start a job. Does nothing when t is NULL. */
void team_poll_with(struct team *t, void (*poll)(void *ctx), void *ctx);

/* Local. True while a function is set by team_poll_with; false for NULL. */
bool team_polls(const struct team *t);

/* Local. As team_run_each. Sets *out to the processing units on which at least one thread of the
 * team may run; the caller binds a further thread to all of them. Errors: STATUS_MEMORY. */
struct status team_cpus(struct team *t, cpu_set_t *out);

#endif

/* A team of threads: one piece of work at a time, cut into parts. Thread 0 is the one that asks;
 * the others wait for it, a few microseconds spinning, then yielding, then asleep, so that teams
 * that share cores do not hold each other up. Knows nothing of what the parts compute. The compute
 * threads of a rank are one team (kernels/part.h, parallel/comm/comm.h). */
#ifndef SHOAL_BASE_TEAM_H
#define SHOAL_BASE_TEAM_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct team;

/* Does one part of a piece of work, on any thread. */
typedef void team_fn(void *job, uint32_t part);

/* The same of the parts [first, first + n). */
typedef void team_span_fn(void *job, uint32_t first, uint32_t n);

/* Local. A team of n_threads (at least 1), the caller among them: n_threads - 1 are started.
 * Errors: STATUS_MEMORY. */
struct status team_create(uint32_t n_threads, struct team **out);

/* Local. Ends the threads and frees; accepts NULL. */
void team_destroy(struct team **t);

/* Local. Only the first n threads (at least 1, at most all) have parts from now on: for measuring.
 */
void team_use(struct team *t, uint32_t n);

/* Local. Threads that have parts; 1 for NULL. */
uint32_t team_size(const struct team *t);

/* Local, by the thread that made the team. Whether all threads wait awake and its own core was not
 * lost to others of late; true for NULL. Where it is false, a thread that takes a small part over
 * may well be put off in the middle of it, and all wait: fewer, larger parts are faster then. */
bool team_is_calm(const struct team *t);

/* Local, by the thread that made the team, not from within a part. Runs fn(job, i) once for each
 * part i below team_size(t) * parts_each and returns when all are done. The parts i / parts_each
 * belong to the thread of that number; a thread that is done takes what others have not begun, so
 * that nobody waits for a thread that has no core. t NULL: all on the caller. */
void team_run(struct team *t, uint32_t parts_each, team_fn *fn, void *job);

/* Local, as team_run, for parts so small that taking each would cost: a thread takes neighbours of
 * its own in spans, long ones first and single parts last; others still take one at a time. */
void team_run_spans(struct team *t, uint32_t parts_each, team_span_fn *fn, void *job);

/* Local, as team_run, with one part for each thread, which that thread itself does: for what is
 * about threads, such as binding them, touching memory first, or measuring. */
void team_run_each(struct team *t, team_fn *fn, void *job);

#endif

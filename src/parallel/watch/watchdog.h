/* Notices a rank that died, stopped or was cut off, names it, and ends this process with the status
 * of a lost rank. A thread on every rank beats; it never calls MPI, whose only user, the main
 * thread, may wait for the lost rank for ever. On one host beats are counters in shared memory;
 * between hosts they are UDP packets between each rank and the lead (IPv4, any interface).
 *
 * What is judged is whether the other's *thread* still beats: a rank that computes or reads for a
 * long time is slow, not lost; so is one of this host whose thread wants to run but gets no CPU
 * (ten times as much patience). Time during which this process itself did not run (a suspended job)
 * counts against nobody. Nothing here enters a result. */
#ifndef SHOAL_PARALLEL_WATCH_WATCHDOG_H
#define SHOAL_PARALLEL_WATCH_WATCHDOG_H

#include "base/status.h"
#include "parallel/comm/comm.h"

#include <stdint.h>

struct watchdog;

/* **Collective (world)**, after comm_split. Starts watching: within `seconds` (six times that where
 * its host gives it no CPU) of a rank's last beat all others have logged its rank, host and last
 * communication and left with the exit status of STATUS_LOST. seconds 0, or a single rank: *out
 * stays NULL, nothing is watched. c records into memory of the watchdog from now on, so
 * comm_stop(c) comes before watchdog_stop. Where shared memory or UDP cannot be had the lead warns
 * and what is left of the watching goes on. Errors, the same on all ranks: STATUS_MEMORY. */
struct status watchdog_start(struct comm *c, uint32_t seconds, struct watchdog **out);

/* Local. What to do before leaving: flush and fsync finished rows. It runs on a thread of its own
 * while the main thread goes on (most likely inside MPI), so what it touches must be complete at
 * any moment (write and fsync of what stands in a file or an append-only buffer); it must not wait
 * for the main thread, and is given two seconds. NULL takes it back. May be called on NULL. */
void watchdog_set_last_words(struct watchdog *w, void (*say)(void *user), void *user);

/* Local. Ends the thread, tells the others that this rank left in peace, frees; accepts NULL. The
 * best place is after comm_stop: then a rank that is lost during the end is noticed too. */
void watchdog_stop(struct watchdog **w);

#endif

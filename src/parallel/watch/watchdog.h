/* Notices a rank that died, stopped or was cut off, names it, and ends this process with the exit
 * status of a lost rank. Every rank has a thread that sends heartbeats. The thread never calls MPI:
 * only the main thread does, and it may wait for the lost rank for ever. Inside a host a heartbeat
 * is a counter in shared memory; between hosts it is a UDP packet between a rank and the lead
 * (IPv4, any interface).
 *
 * A rank is lost when its *thread* stops beating. A rank that computes or reads for a long time
 * still beats: it is slow, not lost. A rank of this host whose thread is ready to run but gets no
 * CPU may be silent ten times as long. Time during which this process itself did not run (a
 * suspended job) is not counted. */
#ifndef SHOAL_PARALLEL_WATCH_WATCHDOG_H
#define SHOAL_PARALLEL_WATCH_WATCHDOG_H

#include "base/status.h"
#include "parallel/comm/comm.h"

#include <stdint.h>

struct watchdog;

/* **Collective (world)**, after comm_split. Starts watching. A rank that is silent for 0.6 *
 * seconds is lost. Within `seconds` of its last heartbeat (up to 6.4 times that when its host gives
 * it no CPU) all other ranks have logged its number, host and last communication, and have exited
 * with the status of STATUS_LOST; last words may take two seconds more. With seconds 0 or a single
 * rank, nothing is watched and *out stays NULL. From now on c's flight recorder lies in the
 * watchdog's memory, so call comm_stop(c) before watchdog_stop. If shared memory or UDP is missing,
 * the lead warns, and only ranks that the other of the two reaches are watched. Errors, the same on
 * all ranks: STATUS_MEMORY; pass *out to watchdog_stop even then. */
struct status watchdog_start(struct comm *c, uint32_t seconds, struct watchdog **out);

/* Local. Sets a callback that flushes and syncs finished rows before this process ends. It runs on
 * a thread of its own while the main thread goes on (most likely inside MPI), so the data that it
 * reads must be complete at any moment, as in an append-only buffer. It must not wait for the main
 * thread and has two seconds. NULL removes it. w may be NULL. */
void watchdog_set_last_words(struct watchdog *w, void (*say)(void *user), void *user);

/* Local. Tells the others that this rank leaves normally, ends the thread, frees; accepts NULL.
 * Call it after comm_stop, so that a rank that is lost while MPI ends is noticed too. */
void watchdog_stop(struct watchdog **w);

#endif

/* Reads the state of a thread of this host from /proc (proc_pid_stat(5)). All functions are Local.
 * Called by the watchdog, to tell a starved process from a lost one; by comm, to wait until the
 * launcher is idle; and by file_lease.c, to see whether the owner of a lease runs. */
#ifndef SHOAL_BASE_PROC_THREAD_H
#define SHOAL_BASE_PROC_THREAD_H

#include <stdbool.h>
#include <stdint.h>

struct proc_thread {
    char state;       /* R: runs or is ready to run; S: sleeps; D, T, Z, ..: see proc_pid_stat(5) */
    int32_t parent;   /* process id; 1, or a reaper's, once the parent has ended */
    uint64_t started; /* in clock ticks since boot; pid and start time together name a process
                         uniquely */
};

/* Reads the state of a thread. False when the thread does not exist or /proc hides it. The main
 * thread's number is the pid. */
bool proc_thread_read(int32_t pid, int32_t thread, struct proc_thread *out);

/* True when any thread of the process is in a state other than S: it runs, is ready to run, waits
 * for a disk, is stopped or is a zombie. False when the process is gone or hidden. */
bool proc_is_busy(int32_t pid);

#endif

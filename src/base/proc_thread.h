/* What Linux shows of the threads of this host's processes (proc_pid_stat(5)). All functions are
 * local. Private to parallel/. */
#ifndef SHOAL_BASE_PROC_THREAD_H
#define SHOAL_BASE_PROC_THREAD_H

#include <stdbool.h>
#include <stdint.h>

struct proc_thread {
    char state;       /* R: runs or wants to; S: sleeps; D, T, Z, ..: as there */
    uint64_t started; /* in ticks since the system did; with a pid it names a process for good */
};

/* False where there is no such thread, or it is hidden. The main thread's number is the pid. */
bool proc_thread_read(int32_t pid, int32_t thread, struct proc_thread *out);

/* Whether a thread of the process does not sleep: it runs, wants to, or is held. False where the
 * process is gone or hidden. */
bool proc_is_busy(int32_t pid);

#endif

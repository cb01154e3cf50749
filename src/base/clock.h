/* Monotonic time, and the CPU time of a thread. No result depends on them. */
#ifndef SHOAL_BASE_CLOCK_H
#define SHOAL_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Local. Returns the CPU time of the calling thread, in nanoseconds. */
static inline uint64_t clock_thread_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Local. Returns nanoseconds since an arbitrary start. */
static inline uint64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#endif

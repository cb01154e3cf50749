/* Included before every source of the preset simulate, after smpicc's own header, which replaces
 * some C library names by SimGrid's. Here the names get their usual meaning back where shoal needs
 * it: the process number (leases and shared memory name this process), the allocator, and all
 * clocks and pauses of threads that are not a simulated rank. */
#ifndef SHOAL_TESTS_SIMULATE_NAMES_H
#define SHOAL_TESTS_SIMULATE_NAMES_H

#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/syscall.h>

#undef getpid
#undef malloc
#undef calloc
#undef realloc
#undef free

/* All simulated ranks run on the process's first thread. */
static inline bool simulate_is_rank(void)
{
    return syscall(SYS_gettid) == getpid();
}

#undef clock_gettime
static inline int simulate_clock_gettime(clockid_t id, struct timespec *out)
{
    return simulate_is_rank() ? smpi_clock_gettime(id, out) : clock_gettime(id, out);
}
#define clock_gettime(id, out) simulate_clock_gettime(id, out)

#undef nanosleep
static inline int simulate_nanosleep(const struct timespec *pause, struct timespec *left)
{
    return simulate_is_rank() ? smpi_nanosleep(pause, left) : nanosleep(pause, left);
}
#define nanosleep(pause, left) simulate_nanosleep(pause, left)

/* The name of the simulated host. */
static inline int simulate_gethostname(char *out, size_t n_bytes)
{
    char name[MPI_MAX_PROCESSOR_NAME];
    int n = 0, has_started = 0;
    if (simulate_is_rank()) MPI_Initialized(&has_started);
    if (!has_started || MPI_Get_processor_name(name, &n) != MPI_SUCCESS)
        return gethostname(out, n_bytes);
    snprintf(out, n_bytes, "%.*s", (int)n_bytes - 1, name);
    return 0;
}
#define gethostname(out, n_bytes) simulate_gethostname(out, n_bytes)

#endif

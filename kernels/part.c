/* Runs an op's shares on the OpenMP threads. */
#include "kernels/part.h"

#include "kernels/fpenv.h"

#include <omp.h>

/* Waking the team costs a few microseconds: about this many multiply-adds of one thread. */
enum { PART_WORTH_WAKING = 1 << 16 };

static struct part share(uint64_t cost, unsigned thread, unsigned n_threads)
{
    const uint64_t each = cost / n_threads, rest = cost % n_threads;
    const uint64_t begin = each * thread + (thread < rest ? thread : rest);
    return (struct part){begin, begin + each + (thread < rest), 0};
}

void part_run(uint64_t cost, part_fn *fn, const void *job)
{
    if (cost < PART_WORTH_WAKING || omp_get_max_threads() == 1 || omp_in_parallel()) {
        fpenv_set();
        fn(job, share(cost, 0, 1));
        return;
    }
#pragma omp parallel
    {
        fpenv_set();
        fn(job, share(cost, (unsigned)omp_get_thread_num(), (unsigned)omp_get_num_threads()));
    }
}

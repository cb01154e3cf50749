/* Arrays, random numbers and times of the tables of bench_kernels. Compares nothing. */
#include "bench_util.h"

#include "base/clock.h"
#include "base/mem.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t random_state = 1;

float bench_random_float(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(random_state >> 32) * 0x1p-31f;
}

void *bench_memory(size_t n_bytes)
{
    void *p;
    const struct status st = mem_alloc(&p, n_bytes, 1, "a benchmark's array");
    if (status_failed(&st)) {
        fprintf(stderr, "%s\n", st.text);
        exit(3);
    }
    return p;
}

float *bench_random_floats(size_t n)
{
    float *x = bench_memory(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = bench_random_float();
    return x;
}

double bench_best_seconds(void (*run)(const void *job), const void *job)
{
    uint64_t best = UINT64_MAX, total = 0;
    for (int i = 0; i < 1000 && (i < 5 || total < BENCH_MIN_NS); i++) {
        const uint64_t start = clock_ns();
        run(job);
        const uint64_t ns = clock_ns() - start;
        total += ns;
        best = ns < best ? ns : best;
    }
    return (double)best * 1e-9;
}

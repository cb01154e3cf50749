/* Shared by the tables of bench_kernels: arrays of random numbers, and the time of a call. */
#ifndef SHOAL_BENCH_UTIL_H
#define SHOAL_BENCH_UTIL_H

#include <stddef.h>

enum { BENCH_MIN_NS = 100000000 }; /* a case is repeated for about this long */

/* The machine's peaks, of which a table prints fractions. */
struct bench_machine {
    double read_gbs, gflops; /* with the table's team */
};

/* An array that the caller frees with mem_free. Ends the program if there is no memory. */
void *bench_memory(size_t n_bytes);

/* The next number of one sequence in [-1, 1), and n of them in an array of bench_memory. */
float bench_random_float(void);
float *bench_random_floats(size_t n);

/* Seconds of the fastest of several calls. */
double bench_best_seconds(void (*run)(const void *job), const void *job);

#endif

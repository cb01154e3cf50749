/* Helpers of the kernel tests: reproducible random arrays that contain special values, packed
 * random weights, comparison of bits, and the tables to compare. */
#ifndef SHOAL_TESTS_UTIL_KERNELS_H
#define SHOAL_TESTS_UTIL_KERNELS_H

#include "kernels/kern.h"

/* A Weyl sequence through a mixer; any start value is good. */
struct rng {
    uint64_t state;
};

uint64_t rng_next(struct rng *r);

/* Returns a distance in floats between rows of n floats: n + 3, or a multiple of 4 KiB, for which
 * kernels have a way of their own. */
size_t rng_stride(struct rng *r, size_t n);

size_t rng_below(struct rng *r, size_t n);       /* in [0, n), n >= 1 */
float rng_float(struct rng *r, float magnitude); /* in (-magnitude, magnitude) */
void rng_floats(struct rng *r, float *x, size_t n, float magnitude);
/* Overwrites about one in `every` elements with NaN, infinities, zeros, subnormals, huge values. */
void rng_specials(struct rng *r, float *x, size_t n, size_t every);

/* Memory of exactly n bytes, so that a sanitizer notices every access past its end; freed with
 * free. */
void *test_memory(size_t n_bytes);
float *test_floats(size_t n);

/* The number of elements whose bits differ. All NaNs count as equal, because the law does not
 * cover their payloads. */
size_t count_different(const float *a, const float *b, size_t n);

/* A random packed weight; `every` > 0 adds special values. packed_memory returns the memory that
 * the caller frees. */
struct packed random_packed(struct rng *r, enum dtype t, size_t n_out, size_t n_in, size_t leaf,
                            uint32_t grid_bits, size_t every);
void *packed_memory(const struct packed *w);
/* Weight (n, k) of a packed matrix, in f32. */
float packed_at(const struct packed *w, size_t n, size_t k);

/* A team of n threads; free it with team_destroy. */
struct team *test_team(uint32_t n);

/* The reference, and the best instruction set of this CPU (perhaps the reference again). */
struct kern_table table_ref(void);
struct kern_table table_best(void);

/* Whether /proc/cpuinfo lists a feature of the CPU ("avx2") and SHOAL_CPU does not hide it. An
 * independent source: kern_select uses CPUID. */
bool system_has(const char *feature);
/* Asserts that an instruction set can be selected by name. */
void check_selected(const char *set);

/* For even i this CPU's best instruction set, for odd i AVX2 (the best one if it lacks AVX2). */
struct kern_table table_in_turn(size_t i);

#endif

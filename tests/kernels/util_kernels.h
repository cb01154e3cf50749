/* Helpers of the kernel tests: reproducible random arrays with special values among them, packed
 * random weights, comparison of bits, the tables to compare. */
#ifndef SHOAL_TESTS_UTIL_KERNELS_H
#define SHOAL_TESTS_UTIL_KERNELS_H

#include "kernels/kern.h"

/* Weyl sequence through a mixer; any start is good. */
struct rng {
    uint64_t state;
};

uint64_t rng_next(struct rng *r);
size_t rng_below(struct rng *r, size_t n);       /* in [0, n), n >= 1 */
float rng_float(struct rng *r, float magnitude); /* in (-magnitude, magnitude) */
void rng_floats(struct rng *r, float *x, size_t n, float magnitude);
/* Overwrites about one in `every` elements with NaN, infinities, zeros, subnormals, huge values. */
void rng_specials(struct rng *r, float *x, size_t n, size_t every);

/* Memory of exactly n bytes (so that a sanitizer sees every step beyond), freed with free. */
void *test_memory(size_t n_bytes);
float *test_floats(size_t n);

/* Elements whose bits differ; a NaN equals every NaN (its payload is outside the law). */
size_t count_different(const float *a, const float *b, size_t n);

/* A random packed weight; `every` > 0 sprinkles special values. Free packed_memory(w). */
struct packed random_packed(struct rng *r, enum dtype t, size_t n_out, size_t n_in, size_t leaf,
                            uint32_t grid_bits, size_t every);
void *packed_memory(const struct packed *w);
/* Weight (n, k) of a packed matrix, in f32. */
float packed_at(const struct packed *w, size_t n, size_t k);

/* A team of n threads; free it with team_destroy. */
struct team *test_team(uint32_t n);

/* The reference, and the best set of this CPU (the reference again where there is nothing else). */
struct kern_table table_ref(void);
struct kern_table table_best(void);

/* Whether the system lists a feature of the CPU ("avx2") and SHOAL_CPU does not hide it: by
 * /proc/cpuinfo and not by CPUID, which is what the selection asks. */
bool system_has(const char *feature);
/* Asserts that a set can be selected by its name. */
void check_selected(const char *set);

/* The fast sets of this CPU in turn. */
struct kern_table table_in_turn(size_t i);

#endif

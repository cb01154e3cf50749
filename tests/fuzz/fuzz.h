/* Fuzzing of shoal's parsers of outside data: what a target is, and the mutation of inputs. A
 * target takes any bytes and must neither crash nor hang: it refuses them with a sentence, or
 * accepts them and its results are consistent. fuzz_main.c runs targets over mutated seeds;
 * fuzz_libfuzzer.c gives the same targets to libFuzzer. */
#ifndef SHOAL_TESTS_FUZZ_H
#define SHOAL_TESTS_FUZZ_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FUZZ_BYTES_MAX = 1 << 20, FUZZ_SEEDS_MAX = 64 };

struct fuzz_bytes {
    char *bytes; /* owned, from malloc */
    size_t n;
};

/* Good inputs of a target, from which all others are made. */
struct fuzz_seeds {
    struct fuzz_bytes items[FUZZ_SEEDS_MAX];
    size_t n;
};

struct fuzz_target {
    const char *name;
    const char *const *words; /* words of the format, NULL-terminated */
    /* Adds the seeds and prepares what `run` needs. Runs once. */
    void (*begin)(struct fuzz_seeds *seeds);
    /* Runs one input. True: accepted. False: refused with a sentence. */
    bool (*run)(const char *bytes, size_t n);
};

/* NULL-terminated. */
extern const struct fuzz_target *const fuzz_targets[];
const struct fuzz_target *fuzz_target_find(const char *name);

/* Checks an expectation of a target; if it fails, prints the sentence and aborts. */
#define FUZZ_CHECK(condition, ...)                                                                 \
    do {                                                                                           \
        if (!(condition)) fuzz_fail(__FILE__, __LINE__, #condition, __VA_ARGS__);                  \
    } while (0)
_Noreturn void fuzz_fail(const char *file, int line, const char *condition, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Checks that a refusal has a status code for outside data and a sentence. Returns false. With
 * `verbose` (inputs named on the command line) it prints the refusal. */
bool fuzz_refused(const struct status *st);
void fuzz_set_verbose(void);

/* Add a copy of the bytes, or a file below tests/, as a seed. */
void fuzz_seed_add(struct fuzz_seeds *seeds, const char *bytes, size_t n);
void fuzz_seed_file(struct fuzz_seeds *seeds, const char *path);
/* The bytes of a file, from malloc, with a NUL after them. A relative path is below tests/. */
struct fuzz_bytes fuzz_read(const char *path);

/* A path in this process's scratch folder, valid until 8 further calls; writing a file there. */
const char *fuzz_scratch(const char *name);
void fuzz_write(const char *path, const char *bytes, size_t n);
void fuzz_scratch_clear(void);

/* FNV-1a over a parser's results, for comparison. */
uint64_t fuzz_mix(uint64_t sum, const void *bytes, size_t n);
enum { FUZZ_MIX_START = 0x811c9dc5 };

/* splitmix64. */
struct fuzz_random {
    uint64_t state;
};
uint64_t fuzz_next(struct fuzz_random *r);
/* A number in [0, n); n > 0. */
size_t fuzz_below(struct fuzz_random *r, size_t n);

/* The input of one case. It depends only on target, seed and number. */
struct fuzz_bytes fuzz_case(const struct fuzz_target *t, const struct fuzz_seeds *seeds,
                            uint64_t seed, uint64_t number);

#endif

/* Targets: a packed copy of experts (shoal pack), damaged; and one whose header and index have the
 * right checksums whatever they say, so that the code after the checksums is reached. */
#include "checkpoint/file/expert_file.h"
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { LAYERS = 3, PARTS = 2, EXPERTS = 2, UNIT = EXPERT_FILE_ALIGN };
/* offsets in the file, and the bytes of its index, as expert_file.h draws it */
enum { AT_INDEX_HASH = 64, AT_HASH = 72, INDEX = LAYERS * PARTS * (1 + EXPERTS) * 8 };

static const uint64_t sizes[LAYERS * PARTS] = {UNIT, 2 * UNIT, 0, 0, UNIT, UNIT};
static const struct expert_file_shape shape = {.digest = {11, 22},
                                               .n_layers = LAYERS,
                                               .n_experts = EXPERTS,
                                               .n_parts = PARTS,
                                               .cut = EXPERT_CUT_OUTPUTS,
                                               .expert_bytes = sizes};
static const char *const words[] = {"shoal experts\n", "\x01\0\0\0\x03", "\x0b\0\0\0\0\0\0\0",
                                    "\0\x10\0\0",      "\0\x20\0\0",     NULL};
static char *expected[LAYERS * PARTS]; /* [EXPERTS] of the part's size */

static void begin(struct fuzz_seeds *seeds)
{
    char path[256];
    struct expert_file_writer *w = NULL;
    strcpy(path, fuzz_scratch("seed.experts"));
    FUZZ_CHECK(expert_file_create(path, &shape, &w).code == STATUS_OK, "create");
    for (uint32_t i = 0; i < LAYERS * PARTS; i++) {
        const size_t n = EXPERTS * sizes[i];
        if (n == 0) continue;
        expected[i] = aligned_alloc(UNIT, n);
        for (size_t k = 0; k < n; k++) expected[i][k] = (char)(17 * i + k * k / 7);
        FUZZ_CHECK(expert_file_write(w, i / PARTS, i % PARTS, 0, EXPERTS, expected[i]).code ==
                       STATUS_OK,
                   "write");
    }
    FUZZ_CHECK(expert_file_finish(w).code == STATUS_OK, "finish");
    expert_file_writer_destroy(&w);
    fuzz_seed_file(seeds, path);
    unlink(path);
}

/* An expert that is read without an error is the one that was written. */
static struct status read_one(const struct expert_file *f, uint32_t i, uint32_t expert)
{
    char bytes[2 * UNIT];
    const struct expert_file_place at = expert_file_find(f, i / PARTS, i % PARTS, expert);
    FUZZ_CHECK(at.n_bytes == sizes[i] && at.offset % UNIT == 0, "place");
    TRY(expert_file_read(f, &at, bytes));
    FUZZ_CHECK(memcmp(bytes, expected[i] + expert * sizes[i], sizes[i]) == 0, "other bytes");
    return status_ok();
}

static bool run(const char *bytes, size_t n)
{
    const char *path = fuzz_scratch("case.experts");
    struct expert_file *f = NULL;
    fuzz_write(path, bytes, n);
    struct status st = expert_file_open(path, &shape, &f);
    if (status_failed(&st)) return fuzz_refused(&st);
    for (uint32_t i = 0; i < LAYERS * PARTS * EXPERTS && !status_failed(&st); i++)
        if (sizes[i / EXPERTS] > 0) st = read_one(f, i / EXPERTS, i % EXPERTS);
    expert_file_close(&f);
    return status_failed(&st) ? fuzz_refused(&st) : true;
}

static bool run_summed(const char *bytes, size_t n)
{
    uint64_t hash;
    char *copy = malloc(n + 1);
    memcpy(copy, bytes, n);
    if (n >= UNIT + INDEX) {
        hash = XXH3_64bits(copy + UNIT, INDEX);
        memcpy(copy + AT_INDEX_HASH, &hash, sizeof hash);
    }
    if (n >= AT_HASH + sizeof hash) {
        hash = XXH3_64bits(copy, AT_HASH);
        memcpy(copy + AT_HASH, &hash, sizeof hash);
    }
    const bool taken = run(copy, n);
    free(copy);
    return taken;
}

extern const struct fuzz_target fuzz_experts, fuzz_experts_summed;
const struct fuzz_target fuzz_experts = {"experts", words, begin, run};
const struct fuzz_target fuzz_experts_summed = {"experts_summed", words, begin, run_summed};

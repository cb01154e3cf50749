/* Targets: a whole checkpoint file with its seal; and the HDF5 part alone, which is sealed again,
 * so that damage reaches the structure's checks and HDF5 itself. */
#include "checkpoint/file/ckpt.h"
#include "checkpoint/file/seal.h"
#include "fuzz/fuzz.h"
#include "unit/util_ckpt.h"

#include <stdlib.h>
#include <unistd.h>

static const char *const words[] = {"\x89HDF\r\n\x1a\n",
                                    "TREE",
                                    "SNOD",
                                    "HEAP",
                                    "weights",
                                    "checksums",
                                    "shoal_format",
                                    "config",
                                    "rope",
                                    "inv_freq",
                                    "model",
                                    "norm",
                                    "weight",
                                    "leaf",
                                    "grid_bits",
                                    "rows_per_block",
                                    "config_json",
                                    "tokenizer",
                                    "source",
                                    "codes",
                                    "scales",
                                    "zeros",
                                    "group_size",
                                    "method",
                                    "format",
                                    "\xff\xff\xff\xff\xff\xff\xff\xff",
                                    NULL};

/* Hashes of the contents of good files, to find an accepted mutant with other contents. */
static uint64_t contents[FUZZ_SEEDS_MAX];
static size_t n_contents;

static void make_seed(uint32_t seed, struct fuzz_seeds *seeds, bool with_seal)
{
    struct seal_info seal;
    const char *path = fuzz_scratch("seed.h5");
    struct status st = small_checkpoint(path, seed);
    if (!status_failed(&st)) st = seal_check(path, &seal);
    if (!status_failed(&st)) st = checkpoint_content(path, &contents[n_contents++]);
    FUZZ_CHECK(!status_failed(&st), "%s", st.text);
    struct fuzz_bytes b = fuzz_read(path);
    fuzz_seed_add(seeds, b.bytes, with_seal ? b.n : (size_t)seal.eoa);
    free(b.bytes);
    unlink(path);
}

static void begin_file(struct fuzz_seeds *seeds)
{
    make_seed(1, seeds, true);
    make_seed(2, seeds, true);
}

static void begin_sealed(struct fuzz_seeds *seeds)
{
    make_seed(1, seeds, false);
    make_seed(2, seeds, false);
}

/* A changed file that is accepted must hold the contents of a sound file. */
static bool run_file(const char *bytes, size_t n)
{
    uint64_t content;
    const char *path = fuzz_scratch("m.h5");
    fuzz_write(path, bytes, n);
    const struct status st = checkpoint_content(path, &content);
    if (status_failed(&st)) return fuzz_refused(&st);
    bool known = false;
    for (size_t i = 0; i < n_contents; i++) known |= contents[i] == content;
    FUZZ_CHECK(known, "a damaged file that is taken and reads differently");
    return true;
}

static bool run_sealed(const char *bytes, size_t n)
{
    struct seal_extent none[1];
    uint64_t content;
    const char *path = fuzz_scratch("m.h5");
    fuzz_write(path, bytes, n);
    struct status st = seal_append(path, none, 0);
    FUZZ_CHECK(!status_failed(&st), "%s", st.text);
    st = checkpoint_content(path, &content);
    return status_failed(&st) ? fuzz_refused(&st) : true;
}

extern const struct fuzz_target fuzz_checkpoint, fuzz_checkpoint_sealed;
const struct fuzz_target fuzz_checkpoint = {"checkpoint", words, begin_file, run_file};
const struct fuzz_target fuzz_checkpoint_sealed = {"checkpoint_sealed", words, begin_sealed,
                                                   run_sealed};

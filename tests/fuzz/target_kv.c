/* Targets: KV blocks as found on a disk. kv_store: a file of --prefix-store, damaged;
 * kv_store_summed: one whose index has the right checksum whatever it says, so that the code after
 * the checksum is reached; kv_tier: the file of --kv-tier, changed below a running job. */
#include "attention/kv_store.h"
#include "attention/kv_tier.h"
#include "fuzz/fuzz.h"

#include "kernels/kern.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

static const char *const words[] = {"shoalkv1",         "\x18\0\0\0\0\0\0\0", "\x02\0\0\0", "\x01",
                                    "\xff\xff\xff\x7f", "\x04\0\0\0\x05",     NULL};

/* --- the store ---------------------------------------------------------------------------- */

/* HEADER: bytes of struct store_header in kv_store.c; AT_COUNTS: offset of its n_layers. */
enum { N_LAYERS = 3, N_HEADS = 2, HALF = 24, HEADER = 48, AT_COUNTS = 24 };
enum { PART = N_LAYERS * 2 * N_HEADS * HALF, HERE = (N_LAYERS - 1) * 2 * (N_HEADS - 1) * HALF };

static const uint32_t layers[N_LAYERS] = {4, 5, 6};

static const struct kv_store_key key = {0x1111, 0x42ull << 56 | 7};
static struct kv_store *store; /* of a rank with the layers and heads from 1 on */
static pid_t store_of;         /* the process whose scratch folder has it */
static char store_file[512];   /* where the cases' bytes go */

/* The bytes that a rank with the layers and heads from `first` on has of the block. */
static void fill(uint32_t first, unsigned char *out)
{
    for (uint32_t l = first; l < N_LAYERS; l++)
        for (uint32_t half = 0; half < 2; half++)
            for (uint32_t head = first; head < N_HEADS; head++)
                for (uint32_t i = 0; i < HALF; i++)
                    *out++ = (unsigned char)(l * 71 + half * 31 + head * 13 + i * i);
}

static struct kv_store *open_store(const char *dir, uint32_t first)
{
    const struct kv_store_part part = {layers + first, N_LAYERS - first, first, N_HEADS, 2, HALF, 0};
    struct kv_store *s = NULL;
    const struct status st = kv_store_create(dir, 1 << 20, false, &part, &s);
    FUZZ_CHECK(!status_failed(&st), "%s", st.text);
    return s;
}

/* Adds the file that a rank with the layers and heads from `first` on writes. */
static void add_file(struct fuzz_seeds *seeds, const char *dir, uint32_t first)
{
    struct kv_store *s = open_store(dir, first);
    unsigned char bytes[PART];
    char path[512];
    const uint64_t hash = XXH3_64bits(layers + first, (N_LAYERS - first) * sizeof *layers);
    fill(first, bytes);
    FUZZ_CHECK(kv_store_put(s, key, bytes), "the seed's file");
    snprintf(path, sizeof path, "%s/42/%016" PRIx64 "%016" PRIx64 ".%016" PRIx64 ".%u-%u", dir,
             key.high, key.low, hash, first, N_HEADS);
    fuzz_seed_file(seeds, path);
    unlink(path);
    kv_store_destroy(&s);
}

static void begin_store(struct fuzz_seeds *seeds)
{
    char dir[256];
    snprintf(dir, sizeof dir, "%s", fuzz_scratch("store"));
    add_file(seeds, dir, 0);
    add_file(seeds, dir, 1);
}

/* Opens the store in this process's scratch folder. */
static void open_here(void)
{
    const char *dir = fuzz_scratch("store");
    kv_store_destroy(&store);
    store = open_store(dir, 1);
    store_of = getpid();
    snprintf(store_file, sizeof store_file, "%s/42/%016" PRIx64 "%016" PRIx64 ".x.0-2", dir,
             key.high, key.low);
}

static bool take_store(const char *bytes, size_t n, unsigned char *got)
{
    if (store_of != getpid()) open_here();
    fuzz_write(store_file, bytes, n);
    const bool found = kv_store_get(store, key, got);
    FUZZ_CHECK(!found || access(store_file, F_OK) == 0, "a file that was read is gone");
    unlink(store_file);
    return found;
}

/* Bytes that pass all checksums are the bytes that were written. */
static bool run_store(const char *bytes, size_t n)
{
    unsigned char got[PART], want[PART];
    if (!take_store(bytes, n, got)) return false;
    fill(1, want);
    FUZZ_CHECK(memcmp(got, want, HERE) == 0, "other bytes than were written");
    return true;
}

/* Sets the index's checksum, if the bytes have an index of the size that they say. */
static void sum_index(char *bytes, size_t n)
{
    uint32_t counts[3]; /* layers, first head, end of heads */
    if (n < HEADER) return;
    memcpy(counts, bytes + AT_COUNTS, sizeof counts);
    const uint64_t heads = (uint64_t)counts[2] - counts[1];
    if (counts[0] > 4096 || counts[2] > 4096 || counts[1] > counts[2]) return;
    const uint64_t at = HEADER + counts[0] * (4 + 8 * heads);
    if (at + sizeof(uint64_t) > n) return;
    const uint64_t sum = XXH3_64bits(bytes, at);
    memcpy(bytes + at, &sum, sizeof sum);
}

static bool run_store_summed(const char *bytes, size_t n)
{
    unsigned char got[PART];
    char *copy = malloc(n + 1);
    memcpy(copy, bytes, n);
    sum_index(copy, n);
    const bool found = take_store(copy, n, got);
    free(copy);
    return found;
}

/* --- the tier ----------------------------------------------------------------------------- */

enum { N_BLOCKS = 3, N_SLOTS = 2, BLOCK = 64 * 8 * 2 };

static struct kv_pool *pool;
static unsigned char block_bytes[BLOCK], other_bytes[BLOCK];

static void begin_tier(struct fuzz_seeds *seeds)
{
    static struct kern_table kern;
    const struct kv_shape shape = {.n_layers = 1,
                                   .n_blocks = N_BLOCKS,
                                   .n_kv_heads = 1,
                                   .head_dim = 8,
                                   .dtype = DTYPE_F16,
                                   .latent = true};
    struct status st = kv_pool_create(&kern, &shape, &pool);
    FUZZ_CHECK(!status_failed(&st), "%s", st.text);
    FUZZ_CHECK(kv_pool_one_bytes(pool) == BLOCK, "%llu bytes",
               (unsigned long long)kv_pool_one_bytes(pool));
    for (int i = 0; i < BLOCK; i++) block_bytes[i] = (unsigned char)(i * i / 7 + 1);
    memset(other_bytes, 0x5a, BLOCK);
    char file[N_SLOTS * BLOCK] = {0};
    memcpy(file + BLOCK, block_bytes, BLOCK);
    fuzz_seed_add(seeds, file, sizeof file);
}

/* Brings slot 1 into a block; returns whether the tier calls it good. */
static bool bring(struct kv_tier *t, uint32_t block, uint64_t read)
{
    const struct status st = kv_tier_in(t, 1, block);
    FUZZ_CHECK(!status_failed(&st), "%s", st.text);
    FUZZ_CHECK(kv_tier_n_ended(t, true) == read + 1, "reads");
    return kv_tier_is_good(t, read);
}

/* A block comes back as it went, or is known to be bad and touches nothing. */
static bool run_tier(const char *bytes, size_t n)
{
    const struct kv_tier_options o = {.dir = fuzz_scratch("."), .n_slots = N_SLOTS, .pool = pool};
    struct kv_tier *t = NULL;
    unsigned char got[BLOCK];
    struct status st = kv_tier_create(&o, &t);
    FUZZ_CHECK(!status_failed(&st), "%s", st.text);
    kv_pool_put_block(pool, 0, block_bytes);
    kv_pool_put_block(pool, 2, other_bytes);
    st = kv_tier_out(t, 0, 1);
    FUZZ_CHECK(!status_failed(&st), "%s", st.text);
    FUZZ_CHECK(bring(t, 1, 0), "a file that nobody changed");
    FUZZ_CHECK(ftruncate(kv_tier_fd(t), 0) == 0 && pwrite(kv_tier_fd(t), bytes, n, 0) == (ssize_t)n,
               "the file cannot be changed");
    const bool good = bring(t, 2, 1);
    kv_pool_get_block(pool, 2, got);
    FUZZ_CHECK(memcmp(got, good ? block_bytes : other_bytes, BLOCK) == 0, "other bytes");
    kv_tier_destroy(&t);
    return good;
}

extern const struct fuzz_target fuzz_kv_store, fuzz_kv_store_summed, fuzz_kv_tier;
const struct fuzz_target fuzz_kv_store = {"kv_store", words, begin_store, run_store};
const struct fuzz_target fuzz_kv_store_summed = {"kv_store_summed", words, begin_store,
                                                 run_store_summed};
const struct fuzz_target fuzz_kv_tier = {"kv_tier", words, begin_tier, run_tier};

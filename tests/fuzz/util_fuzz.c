/* Seeds, scratch files and sentences for the driver and the targets. */
#include "fuzz/fuzz.h"

#include "util_write.h"

#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* AddressSanitizer's options unless the environment sets them. Outside data may request any amount
 * of memory and must then get a status. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1:hard_rss_limit_mb=3072:quarantine_size_mb=16:"
           "max_allocation_size_mb=2048:handle_abort=1:exitcode=23";
}

const char *__lsan_default_options(void);
const char *__lsan_default_options(void)
{
    return "print_suppressions=0";
}

/* HDF5 itself leaks memory when it refuses a damaged file. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libhdf5\n";
}

#define TARGET_LIST(X)                                                                             \
    X(safetensors)                                                                                 \
    X(safetensors_header)                                                                          \
    X(safetensors_index)                                                                           \
    X(peft)                                                                                        \
    X(gguf)                                                                                        \
    X(checkpoint)                                                                                  \
    X(checkpoint_sealed)                                                                           \
    X(tokenizer)                                                                                   \
    X(tiktoken)                                                                                    \
    X(chat)                                                                                        \
    X(request)                                                                                     \
    X(journal)                                                                                     \
    X(journal_summed)                                                                              \
    X(config)                                                                                      \
    X(expert_load)                                                                                 \
    X(call)                                                                                        \
    X(wire_ints)                                                                                   \
    X(compressed)                                                                                  \
    X(embed)                                                                                       \
    X(mail_blocks)                                                                                 \
    X(kv_store)                                                                                    \
    X(kv_store_summed)                                                                             \
    X(kv_tier)                                                                                     \
    X(experts)                                                                                     \
    X(experts_summed)                                                                              \
    X(node)

#define X(name) extern const struct fuzz_target fuzz_##name;
TARGET_LIST(X)
#undef X

const struct fuzz_target *const fuzz_targets[] = {
#define X(name) &fuzz_##name,
    TARGET_LIST(X)
#undef X
        NULL};

const struct fuzz_target *fuzz_target_find(const char *name)
{
    for (size_t i = 0; fuzz_targets[i] != NULL; i++) {
        if (strcmp(fuzz_targets[i]->name, name) == 0) return fuzz_targets[i];
    }
    return NULL;
}

void fuzz_fail(const char *file, int line, const char *condition, const char *format, ...)
{
    va_list args;
    fprintf(stderr, "%s:%d: expected %s: ", file, line, condition);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    abort();
}

static bool is_verbose;

void fuzz_set_verbose(void)
{
    is_verbose = true;
}

bool fuzz_refused(const struct status *st)
{
    if (is_verbose) printf("%s: %s\n", status_name(st->code), st->text);
    FUZZ_CHECK(st->code == STATUS_INPUT || st->code == STATUS_REQUEST || st->code == STATUS_USAGE ||
                   st->code == STATUS_MEMORY,
               "%s: %s", status_name(st->code), st->text);
    FUZZ_CHECK(strlen(st->text) > 8, "\"%s\" is no sentence", st->text);
    return false;
}

void fuzz_seed_add(struct fuzz_seeds *seeds, const char *bytes, size_t n)
{
    FUZZ_CHECK(seeds->n < FUZZ_SEEDS_MAX && n <= FUZZ_BYTES_MAX, "seed %zu of %zu bytes", seeds->n,
               n);
    char *copy = malloc(n + 1);
    memcpy(copy, bytes, n);
    copy[n] = '\0';
    seeds->items[seeds->n++] = (struct fuzz_bytes){copy, n};
}

struct fuzz_bytes fuzz_read(const char *path)
{
    char whole[1024];
    snprintf(whole, sizeof whole, "%s%s", path[0] == '/' ? "" : TEST_DATA_DIR "/", path);
    FILE *f = fopen(whole, "rb");
    FUZZ_CHECK(f != NULL, "%s cannot be opened", whole);
    char *bytes = malloc(FUZZ_BYTES_MAX + 1);
    const size_t n = fread(bytes, 1, FUZZ_BYTES_MAX, f);
    fclose(f);
    bytes[n] = '\0';
    return (struct fuzz_bytes){bytes, n};
}

void fuzz_seed_file(struct fuzz_seeds *seeds, const char *path)
{
    struct fuzz_bytes read = fuzz_read(path);
    fuzz_seed_add(seeds, read.bytes, read.n);
    free(read.bytes);
}

/* One folder per process, so that a child that is killed leaves no files to another. */
static char folder[64];
static pid_t folder_of;

const char *fuzz_scratch(const char *name)
{
    static char paths[8][256];
    static unsigned at;
    if (folder_of != getpid()) {
        const char *base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
        snprintf(folder, sizeof folder, "%s/shoal-fuzz-XXXXXX", base);
        FUZZ_CHECK(mkdtemp(folder) != NULL, "%s cannot be made", folder);
        folder_of = getpid();
    }
    char *path = paths[at++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

void fuzz_write(const char *path, const char *bytes, size_t n)
{
    FUZZ_CHECK(util_write(path, bytes, n), "%s cannot be written", path);
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at)
{
    (void)info;
    (void)kind;
    (void)at;
    remove(path);
    return 0;
}

void fuzz_scratch_clear(void)
{
    if (folder_of != getpid()) return;
    nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    folder_of = 0;
}

uint64_t fuzz_mix(uint64_t sum, const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    for (size_t i = 0; i < n; i++) sum = (sum ^ p[i]) * 0x100000001b3u;
    return sum;
}

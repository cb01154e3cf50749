/* KV blocks of shared prefixes: written by one layout and read by another; damage; the bound on
 * their bytes. Also the index of blocks on disk. */
#include "attention/kv_store.h"

#include "base/mem.h"
#include "serve/schedule/tier_index.h"

#include <CUnit/CUnit.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    N_LAYERS = 4,
    N_HEADS = 4,
    HALF = 48,
    BESIDE = 10, /* a layer's index keys */
    PART_MOST = N_LAYERS * (N_HEADS * 2 * HALF + BESIDE),
};

static char folder[64];

static void make_folder(void)
{
    strcpy(folder, "/tmp/shoal-store-XXXXXX");
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder));
}

static void remove_folder(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", folder);
    CU_ASSERT_EQUAL(system(command), 0);
}

/* A rank with some layers and the heads [head_begin, head_end). */
struct rank {
    uint32_t layers[N_LAYERS], n_layers, head_begin, head_end;
    struct kv_store *store;
};

/* A rank with the layers `first`, `first + stride`, ... */
static struct rank rank_with(uint32_t first, uint32_t stride, uint32_t head_begin,
                             uint32_t head_end, uint64_t n_bytes, bool sweeps)
{
    struct rank r = {.head_begin = head_begin, .head_end = head_end};
    for (uint32_t l = first; l < N_LAYERS; l += stride) r.layers[r.n_layers++] = l;
    const struct kv_store_part part = {r.layers, r.n_layers, head_begin, head_end, 2, HALF, BESIDE};
    const struct status st = kv_store_create(folder, n_bytes, sweeps, &part, &r.store);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    return r;
}

/* As rank_with; sweeps when it opens the folder. */
static struct rank rank_of(uint32_t first, uint32_t stride, uint32_t head_begin, uint32_t head_end,
                           uint64_t n_bytes)
{
    return rank_with(first, stride, head_begin, head_end, n_bytes, true);
}

static size_t part_bytes(const struct rank *r)
{
    const uint32_t heads = r->head_end - r->head_begin;
    return heads == 0 ? 0 : r->n_layers * (2 * heads * HALF + BESIDE);
}

/* Writes the bytes that this rank has of a block. Each depends on its block, layer, half, head and
 * place; those of a layer's index keys on no head, so that all ranks have the same. */
static void fill(const struct rank *r, uint64_t block, unsigned char *out)
{
    const uint32_t heads = r->head_end - r->head_begin;
    for (uint32_t l = 0; l < r->n_layers && heads > 0; l++) {
        const uint64_t seed = block * 91 + r->layers[l] * 50;
        for (uint32_t w = 0; w < 2; w++)
            for (uint32_t g = 0; g < heads; g++)
                for (uint32_t i = 0; i < HALF; i++)
                    *out++ = (unsigned char)(seed + w * 7 + (r->head_begin + g) * 13 + i);
        for (uint32_t i = 0; i < BESIDE; i++) *out++ = (unsigned char)(seed + 201 + i);
    }
}

static struct kv_store_key key_of(uint64_t block)
{
    return (struct kv_store_key){block, block << 56 | 5};
}

static bool put(const struct rank *r, uint64_t block)
{
    unsigned char bytes[PART_MOST];
    fill(r, block, bytes);
    return kv_store_put(r->store, key_of(block), bytes);
}

static bool get(const struct rank *r, uint64_t block)
{
    unsigned char want[PART_MOST], got[PART_MOST] = {0};
    fill(r, block, want);
    return kv_store_get(r->store, key_of(block), got) && memcmp(want, got, part_bytes(r)) == 0;
}

static void heads_are_cut_when_read(void)
{
    make_folder();
    struct rank a = rank_of(0, 2, 0, 2, 1 << 20), b = rank_of(0, 2, 2, 4, 1 << 20);
    struct rank c = rank_of(1, 2, 0, 3, 1 << 20), d = rank_of(1, 2, 3, 4, 1 << 20);
    struct rank whole = rank_of(0, 1, 0, 4, 1 << 20), some = rank_of(0, 1, 1, 3, 1 << 20);
    struct rank none = rank_of(0, 1, 2, 2, 1 << 20);
    CU_ASSERT_FALSE(kv_store_has(whole.store, key_of(7)));
    CU_ASSERT(put(&a, 7) && put(&b, 7) && put(&c, 7));
    CU_ASSERT(kv_store_has(whole.store, key_of(7)));
    CU_ASSERT_FALSE(get(&whole, 7)); /* head 3 of layers 1 and 3 is missing */
    CU_ASSERT(get(&some, 7));
    CU_ASSERT(put(&d, 7));
    CU_ASSERT(get(&whole, 7) && get(&a, 7) && get(&d, 7));
    CU_ASSERT(put(&none, 7) && get(&none, 7)); /* a rank without heads */
    CU_ASSERT_FALSE(get(&whole, 8));
    struct rank *all[] = {&a, &b, &c, &d, &whole, &some, &none};
    for (int i = 0; i < 7; i++) kv_store_destroy(&all[i]->store);
    remove_folder();
}

/* Sets path [400] to the only file of a block; "" if there is none. */
static void find_file(uint64_t block, char *path)
{
    char inner[80];
    snprintf(inner, sizeof inner, "%s/%02x", folder, (unsigned)(block & 255));
    DIR *d = opendir(inner);
    const struct dirent *e;
    path[0] = '\0';
    while (d != NULL && (e = readdir(d)) != NULL)
        if (e->d_name[0] != '.') snprintf(path, 400, "%s/%s", inner, e->d_name);
    if (d != NULL) closedir(d);
}

/* Returns the size of the file of a block. */
static uint64_t file_bytes_of(uint64_t block)
{
    char path[400];
    struct stat found;
    find_file(block, path);
    CU_ASSERT_EQUAL_FATAL(stat(path, &found), 0);
    return (uint64_t)found.st_size;
}

/* A file with a changed byte, every third time also cut there, is a miss: get returns false, never
 * other bytes, and removes the file. */
static void damaged_files_are_misses(void)
{
    make_folder();
    struct rank r = rank_of(0, 1, 0, 4, 1 << 20);
    char path[400];
    CU_ASSERT_FATAL(put(&r, 3));
    find_file(3, path);
    struct stat whole;
    CU_ASSERT_EQUAL_FATAL(stat(path, &whole), 0);
    for (off_t at = 0; at < whole.st_size; at++) {
        const int fd = open(path, O_RDWR);
        unsigned char byte;
        CU_ASSERT_EQUAL_FATAL(pread(fd, &byte, 1, at), 1);
        byte ^= (unsigned char)(1 << (at % 8));
        CU_ASSERT_EQUAL(pwrite(fd, &byte, 1, at), 1);
        if (at % 3 == 0) CU_ASSERT_EQUAL(ftruncate(fd, at), 0);
        close(fd);
        CU_ASSERT_FALSE(get(&r, 3));
        CU_ASSERT_FALSE(kv_store_has(r.store, key_of(3)));
        CU_ASSERT(put(&r, 3) && get(&r, 3));
    }
    kv_store_destroy(&r.store);
    remove_folder();
}

static bool is_at(const char *path)
{
    struct stat found;
    return lstat(path, &found) == 0;
}

/* A FIFO, a symlink or a socket with a block's name is a miss: get does not wait and removes it,
 * and the block can be stored again. */
static void other_kinds_of_files_are_misses(void)
{
    enum { FIFO, LINK, SOCKET, N_KINDS };
    make_folder();
    struct rank r = rank_of(0, 1, 0, 4, 1 << 20);
    char path[400], kept[96];
    alarm(60); /* kills the test if a read waits */
    snprintf(kept, sizeof kept, "%s/kept", folder);
    for (int kind = 0; kind < N_KINDS; kind++) {
        CU_ASSERT_FATAL(put(&r, 3));
        find_file(3, path);
        CU_ASSERT_EQUAL_FATAL(kind == LINK ? rename(path, kept) : unlink(path), 0);
        CU_ASSERT_EQUAL_FATAL(kind == FIFO   ? mkfifo(path, 0600)
                              : kind == LINK ? symlink(kept, path)
                                             : mknod(path, S_IFSOCK | 0600, 0),
                              0);
        CU_ASSERT_FALSE(get(&r, 3));
        CU_ASSERT_FALSE(is_at(path));
        CU_ASSERT(put(&r, 3) && get(&r, 3));
    }
    CU_ASSERT(is_at(kept));
    alarm(0);
    kv_store_destroy(&r.store);
    remove_folder();
}

/* A read without memory for a file's index (its layers and checksums), or for the list of heads, is
 * a miss; the file stays. */
static void a_read_without_memory_removes_nothing(void)
{
    make_folder();
    struct rank r = rank_of(0, 1, 0, 4, 1 << 20);
    CU_ASSERT_FATAL(put(&r, 3));
    for (uint64_t n = 1; n <= 2; n++) {
        mem_fail_after(n);
        CU_ASSERT_FALSE(get(&r, 3));
        mem_fail_after(0);
        CU_ASSERT(kv_store_has(r.store, key_of(3)));
    }
    CU_ASSERT(get(&r, 3));
    kv_store_destroy(&r.store);
    remove_folder();
}

/* A folder with a block's name is no block: it is not read, it stays, and its bytes do not count.
 */
static void a_folder_is_no_block(void)
{
    make_folder();
    struct rank r = rank_of(0, 1, 0, 4, 1 << 20);
    char path[400];
    CU_ASSERT_FATAL(put(&r, 3));
    find_file(3, path);
    CU_ASSERT_EQUAL_FATAL(unlink(path) + mkdir(path, 0700), 0);
    CU_ASSERT_FALSE(kv_store_has(r.store, key_of(3)));
    CU_ASSERT_FALSE(get(&r, 3));
    CU_ASSERT(put(&r, 4));
    const uint64_t one = file_bytes_of(4);
    kv_store_destroy(&r.store);
    r = rank_of(0, 1, 0, 4, 2 * one); /* sweeps: the one file is smaller than the bound */
    CU_ASSERT(is_at(path));
    CU_ASSERT(kv_store_has(r.store, key_of(4)));
    kv_store_destroy(&r.store);
    remove_folder();
}

/* A FIFO or a symlink in place of the store's counter of written bytes is neither waited for nor
 * written to. Without the counter, a store counts only its own writes. */
static void a_counter_of_another_kind_is_left_alone(void)
{
    char path[96], kept[96];
    make_folder();
    snprintf(path, sizeof path, "%s/written", folder);
    snprintf(kept, sizeof kept, "%s/kept", folder);
    alarm(60);
    CU_ASSERT_EQUAL_FATAL(mkfifo(path, 0600), 0);
    struct rank r = rank_of(0, 1, 0, 4, 1 << 20);
    CU_ASSERT(put(&r, 1) && get(&r, 1));
    FILE *f = fopen(kept, "w");
    CU_ASSERT_FATAL(f != NULL && fputs("text", f) >= 0 && fclose(f) == 0);
    CU_ASSERT_EQUAL_FATAL(unlink(path) + symlink(kept, path), 0);
    CU_ASSERT(put(&r, 2));
    kv_store_sweep(r.store);
    struct stat found;
    CU_ASSERT(stat(kept, &found) == 0 && found.st_size == 4);
    alarm(0);
    kv_store_destroy(&r.store);
    remove_folder();
}

static void the_longest_unused_go(void)
{
    make_folder();
    struct rank r = rank_of(0, 1, 0, 4, 1 << 20);
    CU_ASSERT(put(&r, 1));
    const uint64_t one = file_bytes_of(1);
    kv_store_destroy(&r.store);
    r = rank_of(0, 1, 0, 4, 8 * one);
    for (uint64_t b = 2; b < 6; b++) {
        usleep(20000); /* the time of a file is its last use */
        CU_ASSERT(put(&r, b));
    }
    usleep(20000);
    CU_ASSERT(get(&r, 1)); /* used again */
    for (uint64_t b = 6; b < 9; b++) {
        usleep(20000);
        CU_ASSERT(put(&r, b));
    }
    CU_ASSERT(kv_store_has(r.store, key_of(1)));
    CU_ASSERT_FALSE(kv_store_has(r.store, key_of(2)));
    CU_ASSERT(kv_store_has(r.store, key_of(8)));
    kv_store_destroy(&r.store);
    remove_folder();
}

/* Returns how many of the blocks [0, n) the folder has. */
static uint64_t n_kept(const struct rank *r, uint64_t n)
{
    uint64_t kept = 0;
    for (uint64_t b = 0; b < n; b++) kept += kv_store_has(r->store, key_of(b));
    return kept;
}

/* No writer alone writes enough to sweep, but all together exceed the bound. Only the first one
 * sweeps when it opens the folder. */
static void all_writers_keep_the_bound(void)
{
    enum { WRITERS = 32, MOST = 64, EACH = 3, N = WRITERS * EACH };
    struct rank r[WRITERS];
    make_folder();
    r[0] = rank_of(0, 1, 0, 4, 1 << 20);
    CU_ASSERT(put(&r[0], 0));
    const uint64_t n_bytes = MOST * file_bytes_of(0);
    kv_store_destroy(&r[0].store);
    for (int i = 0; i < WRITERS; i++) r[i] = rank_with(0, 1, 0, 4, n_bytes, i == 0);
    uint64_t n_most = 0;
    for (uint64_t b = 0; b < N; b++) {
        CU_ASSERT(put(&r[b % WRITERS], b));
        const uint64_t n = n_kept(&r[0], N);
        if (n > n_most) n_most = n;
    }
    CU_ASSERT(n_most <= MOST);
    CU_ASSERT(n_most > MOST / 2);
    for (int i = 0; i < WRITERS; i++) kv_store_destroy(&r[i].store);
    remove_folder();
}

/* The list of the files grows twice; if it cannot grow, no file is removed. */
static void a_list_without_memory_removes_nothing(void)
{
    enum { N = 100 };
    make_folder();
    struct rank r = rank_of(0, 1, 0, 4, 1 << 20);
    for (uint64_t b = 0; b < N; b++) CU_ASSERT(put(&r, b));
    const uint64_t one = file_bytes_of(0);
    kv_store_destroy(&r.store);
    r = rank_with(0, 1, 0, 4, 16 * one, false);
    for (uint64_t n = 1; n <= 2; n++) {
        mem_fail_after(n);
        kv_store_sweep(r.store);
        mem_fail_after(0);
        CU_ASSERT_EQUAL(n_kept(&r, N), N);
    }
    kv_store_sweep(r.store);
    CU_ASSERT_EQUAL(n_kept(&r, N), 14);
    kv_store_destroy(&r.store);
    remove_folder();
}

static void the_index_forgets_the_longest_unused(void)
{
    struct tier_index x;
    int32_t tokens[3][PLAN_BLOCK_TOKENS] = {{1}, {2}, {3}};
    const struct status st = tier_index_init(&x, 4, 2);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    const int32_t a = tier_index_get(&x, 10, 0, tokens[0]);
    CU_ASSERT(tier_index_place(&x, a, 0) >= 0 && tier_index_place(&x, a, 1) >= 0);
    const int32_t b = tier_index_get(&x, 10, 0, tokens[1]); /* the same key, other tokens */
    CU_ASSERT(a != b && tier_index_place(&x, b, 0) >= 0 && tier_index_place(&x, b, 1) >= 0);
    CU_ASSERT_EQUAL(tier_index_find(&x, 10, 0, tokens[0]), a);
    CU_ASSERT_EQUAL(tier_index_find(&x, 10, 9, tokens[0]), -1);
    tier_index_touch(&x, a);
    const int32_t c = tier_index_get(&x, 12, 10, tokens[2]);
    CU_ASSERT(tier_index_place(&x, c, 0) >= 0); /* b goes */
    CU_ASSERT_EQUAL(tier_index_find(&x, 10, 0, tokens[1]), -1);
    CU_ASSERT_EQUAL(tier_index_find(&x, 10, 0, tokens[0]), a);
    CU_ASSERT_EQUAL(x.n_free_slots, 1);
    tier_index_forget(&x, a);
    tier_index_forget(&x, c);
    CU_ASSERT_EQUAL(x.n_free_slots, 4);
    tier_index_fini(&x);
}

void suite_kv_store(CU_pSuite suite);
void suite_kv_store(CU_pSuite suite)
{
    CU_add_test(suite, "heads are cut when read", heads_are_cut_when_read);
    CU_add_test(suite, "damaged files are misses", damaged_files_are_misses);
    CU_add_test(suite, "other kinds of files are misses", other_kinds_of_files_are_misses);
    CU_add_test(suite, "a read without memory removes nothing",
                a_read_without_memory_removes_nothing);
    CU_add_test(suite, "a folder is no block", a_folder_is_no_block);
    CU_add_test(suite, "a counter of another kind is left alone",
                a_counter_of_another_kind_is_left_alone);
    CU_add_test(suite, "the longest unused go", the_longest_unused_go);
    CU_add_test(suite, "all writers keep the bound", all_writers_keep_the_bound);
    CU_add_test(suite, "a list without memory removes nothing",
                a_list_without_memory_removes_nothing);
    CU_add_test(suite, "the index forgets the longest unused",
                the_index_forgets_the_longest_unused);
}

/* Tests the parallel loader with a random file and random overlapping slabs: each rank gets exactly
 * its elements, each block is read once per host, and a failure anywhere ends all ranks together.
 */
#include "base/mem.h"
#include "checkpoint/file/ckpt_writer.h"
#include "checkpoint/load/loader.h"
#include "mpi/util_mpi.h"

#include <CUnit/CUnit.h>
#include <fcntl.h>
#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_TENSORS = 6, N_WANTS = 24, ROWS_MAX = 4096 /* rows of a want */ };

static const struct ckpt_tensor_spec specs[N_TENSORS] = {
    {.name = "a.experts.w", .dtype = DTYPE_F16, .n_dims = 3, .dims = {5, 300, 4096}},
    {.name = "a.small.experts.w", .dtype = DTYPE_BF16, .n_dims = 3, .dims = {7, 12, 16}},
    {.name = "b.odd.experts.w", .dtype = DTYPE_F32, .n_dims = 3, .dims = {3, 1009, 700}},
    {.name = "c.bias", .dtype = DTYPE_F32, .n_dims = 1, .dims = {257}},
    {.name = "c.o_proj.weight",
     .dtype = DTYPE_BF16,
     .n_dims = 2,
     .dims = {900, 4096},
     .leaf_elems = 512,
     .grid_bits = 32},
    {.name = "d.weight", .dtype = DTYPE_F32, .n_dims = 2, .dims = {64, 4096}},
};

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static uint64_t below(uint32_t *state, uint64_t n)
{
    return n == 0 ? 0 : next_random(state) % n;
}

/* Byte j of tensor i. */
static unsigned char byte_of(size_t i, uint64_t j)
{
    return (unsigned char)((j * 2654435761u >> 7) + i * 31 + (j >> 16));
}

static void file_write(const char *path)
{
    struct ckpt_writer *w = NULL;
    struct status st = ckpt_writer_create(path, "loader test", &w);
    CU_ASSERT_EQUAL_FATAL(st.code, STATUS_OK);
    ckpt_writer_config(w, "{}", 2);
    for (size_t i = 0; i < N_TENSORS; i++) {
        uint64_t n_rows = 1;
        for (uint32_t d = 0; d + 1 < specs[i].n_dims; d++) n_rows *= specs[i].dims[d];
        const uint64_t n =
            n_rows * specs[i].dims[specs[i].n_dims - 1] * dtype_bytes(specs[i].dtype);
        unsigned char *bytes = malloc(n);
        for (uint64_t j = 0; j < n; j++) bytes[j] = byte_of(i, j);
        ckpt_writer_tensor(w, &specs[i]);
        ckpt_writer_rows(w, bytes, n_rows);
        free(bytes);
    }
    st = ckpt_writer_finish(&w);
    CU_ASSERT_EQUAL_FATAL(st.code, STATUS_OK);
}

/* The file, the ranks and the wants of a test. */
struct place {
    int rank, n_ranks; /* of the world */
    char path[256];
    struct ckpt *c;
    struct slab_want whole[N_TENSORS]; /* wants for all of every tensor */
};

/* Rank 0 writes the file and all ranks open it. */
static void place_open(struct place *p)
{
    *p = (struct place){.rank = 0};
    MPI_Comm_rank(MPI_COMM_WORLD, &p->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &p->n_ranks);
    util_shared_path("loader", p->path, sizeof p->path);
    if (p->rank == 0) file_write(p->path);
    MPI_Barrier(MPI_COMM_WORLD);
    CU_ASSERT_EQUAL_FATAL(ckpt_open(p->path, &p->c).code, STATUS_OK);
    for (size_t i = 0; i < N_TENSORS; i++) p->whole[i] = slab_whole(ckpt_tensor_at(p->c, i));
}

static void place_close(struct place *p)
{
    ckpt_close(&p->c);
    MPI_Barrier(MPI_COMM_WORLD);
    if (p->rank == 0) unlink(p->path);
    MPI_Barrier(MPI_COMM_WORLD);
}

static uint64_t inner_of(const struct ckpt_tensor *t)
{
    return t->n_dims == 3 ? t->dims[1] : t->n_rows;
}

static struct slab_want want_random(const struct ckpt *c, uint32_t *state)
{
    const struct ckpt_tensor *t = ckpt_tensor_at(c, below(state, N_TENSORS));
    struct slab_want want = slab_whole(t);
    if (below(state, 8) == 0) return want;
    want.outer0 = below(state, want.n_outer);
    want.n_outer = below(state, want.n_outer - want.outer0 + 1);
    want.row0 = below(state, want.n_rows);
    want.n_rows = below(state, want.n_rows - want.row0 + 1);
    want.col0 = below(state, want.n_cols);
    want.n_cols = below(state, want.n_cols - want.col0 + 1);
    return want;
}

/* The pieces that the sink expects, and how often each came; threads deliver them concurrently. */
struct expectation {
    const struct slab_want *wants;
    _Atomic unsigned char came[N_WANTS][ROWS_MAX]; /* rows of each want, over its outer range */
    _Atomic uint64_t n_wrong;
    int fail_at; /* the piece at which the sink fails; -1: never */
    _Atomic int n_pieces;
    bool is_serial;
    enum loader_cache cache;
    pthread_t caller;
};

static struct status piece_check(void *ctx, const struct slab_piece *p)
{
    struct expectation *x = ctx;
    const struct slab_want *want = &x->wants[p->want];
    const struct ckpt_tensor *t = want->tensor;
    const size_t elem = dtype_bytes(t->dtype);
    if (atomic_fetch_add(&x->n_pieces, 1) == x->fail_at)
        return status_make(STATUS_MEMORY, "the sink has enough");
    const uint64_t place = (p->outer - want->outer0) * want->n_rows + (p->row - want->row0);
    for (uint64_t r = 0; r < p->n_rows; r++)
        x->n_wrong += atomic_fetch_add(&x->came[p->want][place + r], 1) != 0;
    if (x->is_serial && !pthread_equal(pthread_self(), x->caller)) x->n_wrong++;
    for (uint64_t r = 0; r < p->n_rows; r++) {
        const unsigned char *row = (const unsigned char *)p->data + r * p->stride_bytes;
        const uint64_t flat = p->outer * inner_of(t) + p->row + r;
        const uint64_t first = (flat * t->n_cols + want->col0) * elem;
        for (uint64_t j = 0; j < want->n_cols * elem; j++) {
            x->n_wrong += row[j] != byte_of(t->index, first + j);
        }
    }
    return status_ok();
}

/* The number of blocks that any rank's wants touch. All ranks can compute all wants. */
static uint64_t blocks_expected(const struct slab_want *all, size_t n)
{
    uint64_t n_expected = 0;
    unsigned char *seen = calloc(N_TENSORS * 4096, 1);
    for (size_t i = 0; i < n; i++) {
        const struct ckpt_tensor *t = all[i].tensor;
        for (uint64_t e = 0; e < all[i].n_outer && all[i].n_cols > 0; e++) {
            for (uint64_t r = 0; r < all[i].n_rows; r++) {
                const uint64_t flat = (all[i].outer0 + e) * inner_of(t) + all[i].row0 + r;
                unsigned char *s = &seen[t->index * 4096 + flat / t->rows_per_block];
                n_expected += *s == 0;
                *s = 1;
            }
        }
    }
    free(seen);
    return n_expected;
}

/* Loads on all ranks, with a team of n_threads each; 0: without a team. */
static struct status load(struct ckpt *c, uint32_t n_threads, const struct slab_want *wants,
                          size_t n_wants, struct expectation *x, struct loader_stats *stats)
{
    struct team *team = NULL;
    if (n_threads > 0) CU_ASSERT_EQUAL_FATAL(team_create(n_threads, &team).code, STATUS_OK);
    const struct loader_job job = {.c = c,
                                   .host = MPI_COMM_WORLD,
                                   .team = team,
                                   .wants = wants,
                                   .n_wants = n_wants,
                                   .sink = piece_check,
                                   .ctx = x,
                                   .sink_is_serial = x->is_serial,
                                   .cache = x->cache};
    x->caller = pthread_self();
    const struct status st = loader_run(&job, stats);
    team_destroy(&team);
    return st;
}

/* The number of rows of a want that came; none may come twice. */
static uint64_t rows_that_came(const struct expectation *x, size_t want)
{
    uint64_t n = 0;
    for (size_t r = 0; r < ROWS_MAX; r++) n += x->came[want][r];
    return n;
}

static struct expectation *expectation_new(const struct slab_want *wants)
{
    struct expectation *x = calloc(1, sizeof *x);
    CU_ASSERT_PTR_NOT_NULL_FATAL(x);
    x->wants = wants;
    x->fail_at = -1;
    return x;
}

static void random_slabs_arrive_and_blocks_are_read_once(void)
{
    struct place p;
    place_open(&p);
    for (uint32_t turn = 0; turn < 12; turn++) {
        const uint32_t round = turn % 6;
        struct slab_want *all = calloc((size_t)p.n_ranks * N_WANTS, sizeof *all);
        uint32_t state = 77 + turn;
        for (size_t i = 0; i < (size_t)p.n_ranks * N_WANTS; i++) all[i] = want_random(p.c, &state);
        struct expectation *x = expectation_new(all + (size_t)p.rank * N_WANTS);
        x->cache = turn < 6 ? LOADER_CACHE_ON : LOADER_CACHE_OFF;
        const size_t n_mine = round == 5 && p.rank == 0 ? 0 : N_WANTS;
        struct loader_stats stats;
        /* one thread more on the last rank: the smallest team decides the number of lanes */
        const uint32_t n_lanes = round % 3 + 1, more = p.rank + 1 == p.n_ranks ? 1 : 0;
        x->is_serial = round == 4 && p.rank == 0; /* other ranks' sinks are not serial */
        const struct status st =
            load(p.c, round == 3 ? 0 : n_lanes + more, x->wants, n_mine, x, &stats);
        CU_ASSERT_EQUAL(st.code, STATUS_OK);
        CU_ASSERT_EQUAL(x->n_wrong, 0);
        for (size_t i = 0; i < n_mine; i++) {
            const bool empty = x->wants[i].n_cols == 0;
            CU_ASSERT_EQUAL(rows_that_came(x, i),
                            empty ? 0 : x->wants[i].n_outer * x->wants[i].n_rows);
        }
        if (round < 5) {
            const uint64_t n = blocks_expected(all, (size_t)p.n_ranks * N_WANTS);
            CU_ASSERT(n > 0 && stats.n_blocks_host == n);
        }
        free(x);
        free(all);
    }
    place_close(&p);
}

static void nothing_wanted_is_nothing_read(void)
{
    struct place p;
    place_open(&p);
    struct expectation *x = expectation_new(NULL);
    struct loader_stats stats;
    for (int off = 0; off < 2; off++) {
        x->cache = off ? LOADER_CACHE_OFF : LOADER_CACHE_ON;
        CU_ASSERT_EQUAL(load(p.c, 2, NULL, 0, x, &stats).code, STATUS_OK);
        CU_ASSERT(stats.n_blocks_host == 0 && x->n_pieces == 0);
    }
    free(x);
    place_close(&p);
}

/* One rank's sink fails at its first, a middle or its last piece: all ranks return the same
 * sentence. */
static void a_failing_sink_ends_all_ranks_together(void)
{
    struct place p;
    place_open(&p);
    int n_pieces = 0;
    for (int turn = 0; turn < 8; turn++) {
        const int step = turn % 4, fail_at[4] = {-1, 0, n_pieces / 2, n_pieces - 1};
        struct expectation *x = expectation_new(p.whole);
        x->cache = turn < 4 ? LOADER_CACHE_ON : LOADER_CACHE_OFF;
        if (p.rank == p.n_ranks - 1) x->fail_at = fail_at[step];
        const struct status st = load(p.c, 2, p.whole, N_TENSORS, x, NULL);
        CU_ASSERT_EQUAL(st.code, step == 0 ? STATUS_OK : STATUS_MEMORY);
        if (step > 0) CU_ASSERT_STRING_EQUAL(st.text, "the sink has enough");
        if (step == 0) n_pieces = x->n_pieces;
        free(x);
    }
    p.whole[0].n_rows++;
    struct expectation *x = expectation_new(p.whole);
    CU_ASSERT_EQUAL(load(p.c, 2, p.whole, p.rank == 0 ? 1 : 0, x, NULL).code, STATUS_BUG);
    free(x);
    place_close(&p);
}

/* Rank 0 flips a bit of one byte, or flips it back. */
static void byte_flip(const char *path, int rank, uint64_t at)
{
    unsigned char byte;
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        const int fd = open(path, O_RDWR);
        CU_ASSERT_EQUAL(pread(fd, &byte, 1, (off_t)at), 1);
        byte ^= 0x10;
        CU_ASSERT_EQUAL(pwrite(fd, &byte, 1, (off_t)at), 1);
        close(fd);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* A flipped byte in the last row of a block is found by the thread that reads the block, on any
 * rank, whether all ranks want it or only one; all ranks name the tensor and the block. */
static void a_damaged_block_is_named_by_all_ranks(void)
{
    struct place p;
    char name[300];
    place_open(&p);
    for (size_t i = 0; i < 4 * N_TENSORS; i++) {
        const struct ckpt_tensor *t = ckpt_tensor_at(p.c, i / 4);
        const uint64_t block = t->n_blocks / 2;
        const uint64_t end = block * t->rows_per_block + ckpt_block_rows(t, block);
        const uint64_t at = t->offset + end * t->n_cols * dtype_bytes(t->dtype) - 1;
        struct expectation *x = expectation_new(p.whole);
        x->cache = i / 2 % 2 == 0 ? LOADER_CACHE_ON : LOADER_CACHE_OFF;
        byte_flip(p.path, p.rank, at);
        const bool all = i % 2 == 0, mine = p.rank == (int)(i / 4) % p.n_ranks;
        const struct status st = load(p.c, 2, p.whole, all || mine ? N_TENSORS : 0, x, NULL);
        byte_flip(p.path, p.rank, at);
        snprintf(name, sizeof name, "tensor %s: block %llu of", t->name, (unsigned long long)block);
        CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
        CU_ASSERT_PTR_NOT_NULL(strstr(st.text, name));
        CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "damaged"));
        free(x);
    }
    place_close(&p);
}

/* A file that became shorter after it was opened. */
static void a_file_that_ends_is_named_by_all_ranks(void)
{
    for (int turn = 0; turn < 4; turn++) {
        struct place p;
        char name[300];
        place_open(&p);
        const struct ckpt_tensor *t = ckpt_tensor_at(p.c, N_TENSORS - 1);
        const off_t end = (off_t)(t->offset + t->n_bytes / 2 + 100);
        MPI_Barrier(MPI_COMM_WORLD);
        if (p.rank == 0) CU_ASSERT_EQUAL(truncate(p.path, end), 0);
        MPI_Barrier(MPI_COMM_WORLD);
        struct expectation *x = expectation_new(p.whole);
        x->cache = turn < 2 ? LOADER_CACHE_ON : LOADER_CACHE_OFF;
        const bool mine = turn % 2 == 0 || p.rank == p.n_ranks - 1;
        const struct status st = load(p.c, 2, p.whole, mine ? N_TENSORS : 0, x, NULL);
        snprintf(name, sizeof name, "%s: tensor %s: byte %llu of the file: the file ends", p.path,
                 t->name, (unsigned long long)end);
        CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
        CU_ASSERT_STRING_EQUAL(st.text, name);
        free(x);
        place_close(&p);
    }
}

static void drop_cached_pages(const char *path)
{
    const int fd = open(path, O_RDONLY);
    CU_ASSERT_EQUAL(fsync(fd), 0);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

/* Drops the file's pages from the system's cache. Returns false if the file system keeps them, as
 * one in memory does. */
static bool forget_file(const struct place *p)
{
    int is_forgotten = 0;
    if (p->rank == 0) {
        drop_cached_pages(p->path);
        is_forgotten = !ckpt_is_cached(p->c);
        drop_cached_pages(p->path);
    }
    MPI_Bcast(&is_forgotten, 1, MPI_INT, 0, MPI_COMM_WORLD);
    return is_forgotten != 0;
}

/* Forgets the file, and loads it as if free_bytes of memory were free. Returns whether the loader
 * read past the cache; *can_forget: the result of forget_file. */
static bool reads_past_cache(const struct place *p, uint64_t free_bytes, bool *can_forget)
{
    struct loader_stats stats = {.is_direct = false};
    struct expectation *x = expectation_new(p->whole);
    const struct loader_job job = {.c = p->c,
                                   .host = MPI_COMM_WORLD,
                                   .wants = p->whole,
                                   .n_wants = N_TENSORS,
                                   .sink = piece_check,
                                   .ctx = x,
                                   .free_bytes = free_bytes};
    *can_forget = forget_file(p);
    CU_ASSERT_EQUAL(loader_run(&job, &stats).code, STATUS_OK);
    free(x);
    return stats.is_direct;
}

/* A file is read past the cache if it is not cached and would not fit beside the weights. The
 * loader probes 64 bytes of a file, each of which may bring neighbouring pages into the cache, so a
 * file as small as this one sometimes looks cached before all are probed: then it is tried again.
 */
static void the_cache_is_used_where_it_lasts(void)
{
    enum { TRIES = 50 };
    struct place p;
    place_open(&p);
    bool can_forget = true, is_direct = false;
    for (int i = 0; i < TRIES && !is_direct; i++) {
        is_direct = reads_past_cache(&p, 1, &can_forget);
        if (!can_forget && i > 2) break;
    }
    CU_ASSERT(is_direct || !can_forget);
    CU_ASSERT_FALSE(reads_past_cache(&p, UINT64_MAX, &can_forget));
    CU_ASSERT_FALSE(reads_past_cache(&p, 0, &can_forget));
    place_close(&p);
}

/* The last rank opens another file: all ranks name that rank. */
static void ranks_with_different_files_are_named(void)
{
    struct place p;
    char other[300], name[64];
    place_open(&p);
    CU_ASSERT_EQUAL(loader_check_same(p.c, MPI_COMM_WORLD).code, STATUS_OK);
    if (p.n_ranks > 1 && p.rank == p.n_ranks - 1) {
        struct ckpt_writer *w = NULL;
        ckpt_close(&p.c);
        snprintf(other, sizeof other, "%s.other", p.path);
        CU_ASSERT_EQUAL_FATAL(ckpt_writer_create(other, "loader test", &w).code, STATUS_OK);
        ckpt_writer_config(w, "{\"another\":1}", 13);
        CU_ASSERT_EQUAL(ckpt_writer_finish(&w).code, STATUS_OK);
        CU_ASSERT_EQUAL_FATAL(ckpt_open(other, &p.c).code, STATUS_OK);
        unlink(other);
    }
    if (p.n_ranks > 1) {
        const struct status st = loader_check_same(p.c, MPI_COMM_WORLD);
        snprintf(name, sizeof name, "rank %d opened another", p.n_ranks - 1);
        CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
        CU_ASSERT_PTR_NOT_NULL(strstr(st.text, name));
    }
    place_close(&p);
}

static struct status piece_drop(void *ctx, const struct slab_piece *p)
{
    _Atomic uint64_t *n_bytes = ctx;
    atomic_fetch_add(n_bytes, p->n_rows * p->stride_bytes);
    return status_ok();
}

/* Resets the peak of the process's memory, if the system allows it. */
static void peak_reset(void)
{
    const int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
    if (fd < 0) return;
    if (write(fd, "5", 1) != 1) perror("/proc/self/clear_refs");
    close(fd);
}

/* The bytes of the read buffers of a load on two threads, through the cache or past it. */
static uint64_t loader_bytes(enum loader_cache cache)
{
    return cache == LOADER_CACHE_ON ? (uint64_t)2 * CKPT_READ_BYTES_MAX
                                    : (uint64_t)LOADER_DIRECT_READS * (2 << 20);
}

/* Slabs that only one rank wants pass through a few buffers, whatever their size. */
static void memory_does_not_grow(struct place p, enum loader_cache cache)
{
    struct team *team = NULL;
    uint64_t n_all = 0;
    _Atomic uint64_t n_came = 0;
    for (size_t i = 0; i < N_TENSORS; i++) n_all += p.whole[i].tensor->n_bytes;
    CU_ASSERT_EQUAL_FATAL(team_create(2, &team).code, STATUS_OK);
    const struct loader_job job = {.c = p.c,
                                   .host = MPI_COMM_WORLD,
                                   .team = team,
                                   .wants = p.whole,
                                   .n_wants = p.rank == p.n_ranks - 1 ? N_TENSORS : 0,
                                   .sink = piece_drop,
                                   .ctx = &n_came,
                                   .cache = cache};
    peak_reset();
    const uint64_t before = mem_peak_bytes(), bound = loader_bytes(cache) + CKPT_READ_BYTES_MAX;
    CU_ASSERT_EQUAL(loader_run(&job, NULL).code, STATUS_OK);
    CU_ASSERT_EQUAL(n_came, p.rank == p.n_ranks - 1 ? n_all : 0);
    CU_ASSERT(n_all > bound + bound / 4);
    CU_ASSERT(mem_peak_bytes() - before <= bound);
    team_destroy(&team);
}

static void memory_does_not_grow_with_the_file(void)
{
    struct place p;
    place_open(&p);
    memory_does_not_grow(p, LOADER_CACHE_ON);
    memory_does_not_grow(p, LOADER_CACHE_OFF);
    place_close(&p);
}

void suite_loader(CU_pSuite suite);
void suite_loader(CU_pSuite suite)
{
    CU_add_test(suite, "random slabs arrive, blocks are read once",
                random_slabs_arrive_and_blocks_are_read_once);
    CU_add_test(suite, "nothing wanted is nothing read", nothing_wanted_is_nothing_read);
    CU_add_test(suite, "a failing sink ends all ranks together",
                a_failing_sink_ends_all_ranks_together);
    CU_add_test(suite, "a damaged block is named by all ranks",
                a_damaged_block_is_named_by_all_ranks);
    CU_add_test(suite, "a file that ends is named by all ranks",
                a_file_that_ends_is_named_by_all_ranks);
    CU_add_test(suite, "the cache is used where it lasts", the_cache_is_used_where_it_lasts);
    CU_add_test(suite, "ranks with different files are named",
                ranks_with_different_files_are_named);
    CU_add_test(suite, "memory does not grow with the file", memory_does_not_grow_with_the_file);
}

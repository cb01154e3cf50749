/* Collectives over a host's shared memory. Each rank has a counter of posts; to meet, a rank posts
 * and waits until the other ranks' counters have reached the same number. */
#define COMM_INSIDE
#include "parallel/comm/host_group.h"

#include "base/add.h"
#include "base/clock.h"
#include "base/mem.h"
#include "parallel/comm/host_memory.h"

#include <assert.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    /* two staging segments, used in turn: other ranks may still read the data of one operation when
     * the next operation begins */
    STAGING_LANES = 2,
    /* a rank that reads at most this much from the others adds all elements itself, so the ranks
     * meet once instead of twice */
    ALL_READ_BYTES = 2048,
    /* a thread works on this many sums at a time; they stay in its first-level cache */
    BLOCK_ELEMS = 1024,
    BLOCKS_WORTH_WAKING = 32,
    SPINS = 50, /* reads of a counter, about a microsecond in total, before the first yield */
    YIELD_NS = 100000, /* after the spins, the thread yields between two reads for this time */
    SLEEP_NS = 200000, /* after that it sleeps, at most this long at a time, and polls MPI
                          between two sleeps */
};

/* The part of a rank's state that the other ranks read. `posted` only grows (and wraps), and all
 * ranks make the same number of posts in an operation. */
struct slot {
    _Alignas(128) _Atomic uint32_t posted; /* how many posts this rank has made */
    _Atomic uint32_t n_sleepers;           /* ranks that sleep on `posted` */
    uint64_t at[STAGING_LANES];            /* offset of the rank's data from the start of its
                                              segments */
};

struct host_group {
    struct host_memory memory;
    int n_ranks, rank;
    struct slot *slots; /* [n_ranks], shared */
    uint64_t *tables;   /* [n_ranks, STAGING_LANES, n_ranks] offsets of the rows of an exchange,
                           shared */
    uint32_t posted;    /* posts of this rank */
    uint32_t opened;    /* the number of the first post of the operation that began last */
    unsigned turn;      /* which staging segment this operation uses */
    int n_spins;
    bool only_polls;   /* waiting ranks poll MPI and do not spin or sleep */
    uint64_t wait_ns;  /* time waited that host_group_take_wait has not yet returned */
    struct team *team; /* borrowed; NULL: this thread alone */
    void (*poll)(void *ctx);
    void *poll_ctx;
};

struct host_group *host_group_open(MPI_Comm comm, struct host_group_waiting w)
{
    int n;
    MPI_Comm_size(comm, &n);
    const size_t table_bytes = (size_t)n * STAGING_LANES * (size_t)n * sizeof(uint64_t);
    struct host_memory memory;
    if (!host_memory_open(comm, (size_t)n * sizeof(struct slot) + table_bytes, w.n_in_process,
                          &memory)) {
        return NULL;
    }
    struct host_group *g = NULL;
    const struct status st = mem_alloc(&g, 1, sizeof *g, "shared memory of a host");
    int ok = !status_failed(&st);
    if (MPI_Allreduce(MPI_IN_PLACE, &ok, 1, MPI_INT, MPI_MIN, comm) != MPI_SUCCESS) ok = 0;
    if (!ok) {
        host_memory_close(&memory);
        mem_free(&g);
        return NULL;
    }
    *g = (struct host_group){.memory = memory,
                             .n_ranks = n,
                             .rank = memory.rank,
                             .slots = (struct slot *)(void *)memory.base,
                             .n_spins = w.crowded ? 0 : SPINS,
                             .only_polls = w.n_in_process > 1,
                             .poll = w.poll,
                             .poll_ctx = w.ctx};
    g->tables = (uint64_t *)(void *)(g->slots + n);
    return g;
}

void host_group_close(struct host_group **g)
{
    if (*g == NULL) return;
    host_memory_close(&(*g)->memory);
    mem_free(g);
}

void host_group_use_team(struct host_group *g, struct team *team)
{
    g->team = team;
}

void *host_group_lane(struct host_group *g, unsigned lane, size_t n_bytes)
{
    assert(lane + STAGING_LANES < HOST_LANES);
    if (!host_memory_grow(&g->memory, STAGING_LANES + lane, n_bytes, g->team)) return NULL;
    return host_memory_lane(&g->memory, g->rank, STAGING_LANES + lane);
}

size_t host_group_lane_bytes(const struct host_group *g, unsigned lane)
{
    return g->memory.backed[STAGING_LANES + lane];
}

bool host_group_lane_is_huge(const struct host_group *g, unsigned lane)
{
    return g->memory.backed[STAGING_LANES + lane] > 0 && !g->memory.is_small[STAGING_LANES + lane];
}

void host_group_release_lane(struct host_group *g, unsigned lane)
{
    host_memory_release(&g->memory, STAGING_LANES + lane);
}

uint64_t host_group_take_wait(struct host_group *g)
{
    const uint64_t ns = g->wait_ns;
    g->wait_ns = 0;
    return ns;
}

void *host_group_lane_at(const struct host_group *g, unsigned lane, int rank)
{
    return host_memory_lane(&g->memory, rank, STAGING_LANES + lane);
}

/* --- meeting ------------------------------------------------------------------------------ */

static bool has_posted(const struct slot *s, uint32_t n)
{
    return (int32_t)(atomic_load_explicit(&s->posted, memory_order_acquire) - n) >= 0;
}

static void host_group_pause_once(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Sleeps until the slot's counter reaches n. The sleeper increments n_sleepers before it reads the
 * counter again, and the poster increments the counter before it reads n_sleepers, so at least one
 * of them sees the other. */
static void sleep_until(struct host_group *g, struct slot *s, uint32_t n)
{
    const struct timespec limit = {.tv_nsec = SLEEP_NS};
    while (!has_posted(s, n)) {
        g->poll(g->poll_ctx);
        atomic_fetch_add(&s->n_sleepers, 1);
        const uint32_t seen = atomic_load(&s->posted);
        if ((int32_t)(seen - n) < 0) {
            syscall(SYS_futex, &s->posted, FUTEX_WAIT, seen, &limit, NULL, 0);
        }
        atomic_fetch_sub(&s->n_sleepers, 1);
    }
}

static void look_for(struct host_group *g, struct slot *s, uint32_t n, uint64_t since)
{
    for (int i = 0; i < g->n_spins; i++) {
        host_group_pause_once();
        if (has_posted(s, n)) return;
    }
    do {
        sched_yield();
        if (has_posted(s, n)) return;
    } while (clock_ns() - since < YIELD_NS);
    sleep_until(g, s, n);
}

static void wait_for(struct host_group *g, int rank, uint32_t n)
{
    struct slot *s = &g->slots[rank];
    if (has_posted(s, n)) return;
    const uint64_t since = clock_ns();
    if (g->only_polls) {
        while (!has_posted(s, n)) g->poll(g->poll_ctx);
    } else {
        look_for(g, s, n, since);
    }
    g->wait_ns += clock_ns() - since;
}

static void wait_all(struct host_group *g, uint32_t n)
{
    for (int r = 0; r < g->n_ranks; r++) {
        if (r != g->rank) wait_for(g, r, n);
    }
}

static void post(struct host_group *g)
{
    struct slot *mine = &g->slots[g->rank];
    atomic_store(&mine->posted, ++g->posted);
    if (atomic_load(&mine->n_sleepers) == 0) return;
    syscall(SYS_futex, &mine->posted, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* --- where data lies ---------------------------------------------------------------------- */

/* Begins an operation. Waits until all ranks have begun the previous operation: then they have
 * finished the operation before that, and no other rank reads the staging segment that it used,
 * which is returned. NULL: no memory. */
static char *begin_staging(struct host_group *g, size_t n_bytes)
{
    wait_all(g, g->opened);
    g->opened = g->posted + 1;
    g->turn = 1 - g->turn;
    if (!host_memory_grow(&g->memory, g->turn, n_bytes, g->team)) return NULL;
    char *staging = host_memory_lane(&g->memory, g->rank, g->turn);
    g->slots[g->rank].at[g->turn] = (uint64_t)g->turn * g->memory.lane_bytes;
    return staging;
}

/* True when `data` lies in one of this rank's shared segments, where the other ranks can read it.
 */
static bool host_group_in_lane(const struct host_group *g, const void *data)
{
    const uintptr_t first = (uintptr_t)host_memory_lane(&g->memory, g->rank, STAGING_LANES);
    const size_t n_bytes = (HOST_LANES - STAGING_LANES) * g->memory.lane_bytes;
    return (uintptr_t)data >= first && (uintptr_t)data - first < n_bytes;
}

/* From the next post on, the others read `data`, which lies in a segment of this rank, instead of
 * the staging segment. */
static void publish(struct host_group *g, const void *data)
{
    const uintptr_t lanes = (uintptr_t)host_memory_lane(&g->memory, g->rank, 0);
    g->slots[g->rank].at[g->turn] = (uintptr_t)data - lanes;
}

/* Returns the data that a rank posted; valid once that rank has posted. */
static char *data_of(const struct host_group *g, int rank)
{
    return host_memory_lane(&g->memory, rank, 0) + g->slots[rank].at[g->turn];
}

static char *staging_of(const struct host_group *g, int rank)
{
    return host_memory_lane(&g->memory, rank, g->turn);
}

static uint64_t *table_of(const struct host_group *g, int rank)
{
    return g->tables + ((size_t)rank * STAGING_LANES + g->turn) * (size_t)g->n_ranks;
}

/* Computes which of n elements, of 4 or 8 bytes, are rank r's part; parts are whole cache lines. */
static void host_group_part_of(const struct host_group *g, int r, size_t n, size_t *begin,
                               size_t *end)
{
    const size_t unit = 16, n_units = (n + unit - 1) / unit, ranks = (size_t)g->n_ranks;
    *begin = n_units * (size_t)r / ranks * unit;
    *end = n_units * ((size_t)r + 1) / ranks * unit;
    if (*end > n) *end = n;
    if (*begin > n) *begin = n;
}

static bool is_small(const struct host_group *g, size_t n_bytes)
{
    return n_bytes * (size_t)(g->n_ranks - 1) <= ALL_READ_BYTES;
}

/* --- reductions --------------------------------------------------------------------------- */

static void host_group_combine(enum host_reduction what, void *acc, const void *x, size_t n)
{
    uint32_t *a32 = acc;
    const uint32_t *x32 = x;
    uint64_t *a64 = acc;
    const uint64_t *x64 = x;
    switch (what) {
    case HOST_SUM_I64:
        add_i64_to(acc, acc, x, n);
        break;
    case HOST_OR_U32:
        for (size_t i = 0; i < n; i++) a32[i] |= x32[i];
        break;
    case HOST_MAX_U64:
        for (size_t i = 0; i < n; i++) a64[i] = a64[i] > x64[i] ? a64[i] : x64[i];
        break;
    case HOST_MIN_U64:
        for (size_t i = 0; i < n; i++) a64[i] = a64[i] < x64[i] ? a64[i] : x64[i];
        break;
    }
}

bool host_group_reduce(struct host_group *g, enum host_reduction what, void *buf, size_t n)
{
    const size_t elem = what == HOST_OR_U32 ? sizeof(uint32_t) : sizeof(uint64_t);
    char *staging = begin_staging(g, n * elem);
    if (staging == NULL) return false;
    if (n > 0) memcpy(staging, buf, n * elem);
    post(g);
    wait_all(g, g->posted);
    if (is_small(g, n * elem)) {
        for (int r = 0; r < g->n_ranks; r++) {
            if (r != g->rank) host_group_combine(what, buf, data_of(g, r), n);
        }
        return true;
    }
    size_t begin, end;
    host_group_part_of(g, g->rank, n, &begin, &end);
    for (int r = 0; r < g->n_ranks; r++) { /* before the next post, no other rank reads this part
                                              of the staging segment */
        if (r == g->rank) continue;
        host_group_combine(what, staging + begin * elem, data_of(g, r) + begin * elem, end - begin);
    }
    post(g);
    wait_all(g, g->posted);
    for (int r = 0; r < g->n_ranks; r++) {
        host_group_part_of(g, r, n, &begin, &end);
        memcpy((char *)buf + begin * elem, data_of(g, r) + begin * elem, (end - begin) * elem);
    }
    return true;
}

/* --- sums that become words ---------------------------------------------------------------- */

bool host_group_offer(struct host_group *g, const void *data, size_t n_bytes, size_t room_bytes)
{
    const bool in_place = host_group_in_lane(g, data);
    char *staging = begin_staging(g, (in_place ? 0 : n_bytes) + room_bytes);
    if (staging == NULL) return false;
    if (in_place) publish(g, data);
    if (!in_place && n_bytes > 0) memcpy(staging, data, n_bytes);
    return true;
}

const void *host_group_offered(const struct host_group *g, int rank)
{
    return data_of(g, rank);
}

/* A rank's room is in its staging segment, after the data if the data was copied there. */
void *host_group_room(const struct host_group *g, int rank, size_t n_bytes)
{
    char *staging = staging_of(g, rank);
    return data_of(g, rank) == staging ? staging + n_bytes : staging;
}

struct words_job {
    const struct host_group *g;
    const struct comm_sum *s;
    size_t begin, end;
    uint32_t *words; /* [n] results; NULL: s->take gets each block at once */
};

/* Adds one block of sums over the ranks and converts the totals. */
static void sum_block(const struct words_job *j, size_t block)
{
    int64_t acc[BLOCK_ELEMS];
    uint32_t local[BLOCK_ELEMS];
    const size_t first = j->begin + block * BLOCK_ELEMS, left = j->end - first;
    const size_t n = left < BLOCK_ELEMS ? left : BLOCK_ELEMS;
    const int64_t *sums = j->s->sums + first;
    for (int r = 0; r < j->g->n_ranks; r++) {
        if (r == j->g->rank) continue;
        add_i64_to(acc, sums, (const int64_t *)(const void *)data_of(j->g, r) + first, n);
        sums = acc;
    }
    uint32_t *words = j->words != NULL ? j->words + first : local;
    j->s->convert(j->s->ctx, sums, first, n, words);
    if (j->words == NULL) j->s->take(j->s->ctx, words, first, n);
}

static void take_sum_block(const struct words_job *j, size_t block)
{
    const size_t first = j->begin + block * BLOCK_ELEMS, left = j->end - first;
    j->s->take(j->s->ctx, j->words + first, first, left < BLOCK_ELEMS ? left : BLOCK_ELEMS);
}

struct blocks_job {
    const struct words_job *words;
    void (*work)(const struct words_job *j, size_t block);
    size_t n_blocks, n_parts;
};

static void work_on_part(void *job, uint32_t part)
{
    const struct blocks_job *j = job;
    const size_t end = (part + 1) * j->n_blocks / j->n_parts;
    for (size_t i = part * j->n_blocks / j->n_parts; i < end; i++) j->work(j->words, i);
}

static void for_blocks(const struct words_job *j,
                       void (*work)(const struct words_job *j, size_t block))
{
    const size_t n = (j->end - j->begin + BLOCK_ELEMS - 1) / BLOCK_ELEMS;
    struct team *team = n < BLOCKS_WORTH_WAKING ? NULL : j->g->team;
    struct blocks_job blocks = {j, work, n, team_size(team)};
    team_run(team, 1, work_on_part, &blocks);
}

bool host_group_sum_words(struct host_group *g, const struct comm_sum *s)
{
    const size_t n = s->n, sum_bytes = n * sizeof *s->sums, word_bytes = n * sizeof(uint32_t);
    /* Another rank may read a small sum after this rank has returned and its caller has overwritten
     * s->sums, so a small sum is always copied to the staging segment. */
    const bool small = is_small(g, sum_bytes);
    if (small) {
        char *staging = begin_staging(g, sum_bytes);
        if (staging == NULL) return false;
        memcpy(staging, s->sums, sum_bytes);
    } else if (!host_group_offer(g, s->sums, sum_bytes, word_bytes)) {
        return false;
    }
    post(g);
    wait_all(g, g->posted);
    struct words_job j = {.g = g, .s = s, .end = n};
    if (small) {
        for_blocks(&j, sum_block);
        return true;
    }
    host_group_part_of(g, g->rank, n, &j.begin, &j.end);
    j.words = host_group_room(g, g->rank, sum_bytes);
    for_blocks(&j, sum_block);
    post(g);
    wait_all(g, g->posted);
    for (int i = 0; i < g->n_ranks; i++) {
        /* each rank starts with a different rank's words, so that not all read the same memory at
         * once */
        const int r = (g->rank + i) % g->n_ranks;
        host_group_part_of(g, r, n, &j.begin, &j.end);
        j.words = host_group_room(g, r, sum_bytes);
        for_blocks(&j, take_sum_block);
    }
    return true;
}

/* --- gathers, exchanges ------------------------------------------------------------------- */

bool host_group_gather_words(struct host_group *g, void *all, const int *counts, const int *displs)
{
    uint32_t *words = all;
    const size_t n_bytes = (size_t)counts[g->rank] * sizeof *words;
    char *staging = begin_staging(g, n_bytes);
    if (staging == NULL) return false;
    if (n_bytes > 0) memcpy(staging, words + displs[g->rank], n_bytes);
    post(g);
    for (int i = 1; i < g->n_ranks; i++) {
        const int r = (g->rank + i) % g->n_ranks;
        wait_for(g, r, g->posted);
        const size_t n = (size_t)counts[r] * sizeof *words;
        if (n > 0) memcpy(words + displs[r], data_of(g, r), n);
    }
    return true;
}

bool host_group_gather_bytes(struct host_group *g, const void *mine, size_t n_bytes, void *all)
{
    char *staging = begin_staging(g, n_bytes);
    if (staging == NULL) return false;
    if (n_bytes > 0) memcpy(staging, mine, n_bytes);
    post(g);
    wait_all(g, g->posted);
    for (int r = 0; r < g->n_ranks && n_bytes > 0; r++) {
        memcpy((char *)all + (size_t)r * n_bytes, data_of(g, r), n_bytes);
    }
    return true;
}

bool host_group_exchange_i32(struct host_group *g, const int32_t *send, int32_t *recv, size_t n)
{
    const size_t n_bytes = n * sizeof *send;
    char *staging = begin_staging(g, n_bytes * (size_t)g->n_ranks);
    if (staging == NULL) return false;
    if (n > 0) memcpy(staging, send, n_bytes * (size_t)g->n_ranks);
    post(g);
    wait_all(g, g->posted);
    for (int r = 0; r < g->n_ranks && n > 0; r++) {
        memcpy(recv + (size_t)r * n, data_of(g, r) + (size_t)g->rank * n_bytes, n_bytes);
    }
    return true;
}

/* Returns the bytes that an exchange copies to the staging segment: the rows for other ranks. */
static size_t sent_bytes(const struct host_group *g, const struct comm_exchange *x)
{
    size_t n_rows = 0;
    for (int r = 0; r < g->n_ranks; r++) n_rows += r == g->rank ? 0 : (size_t)x->send_counts[r];
    return n_rows * x->row_words * 4;
}

/* Writes the offset of each rank's rows to the table, and copies the rows to the staging segment
 * unless they lie in a shared segment. */
static void offer_rows(struct host_group *g, const struct comm_exchange *x, char *staging)
{
    const size_t row_bytes = x->row_words * 4;
    const bool in_place = host_group_in_lane(g, x->send);
    if (in_place) publish(g, x->send);
    uint64_t *table = table_of(g, g->rank);
    size_t at = 0;
    for (int r = 0; r < g->n_ranks; r++) {
        const size_t from = (size_t)x->send_displs[r] * row_bytes;
        table[r] = in_place ? from : at;
        if (in_place || r == g->rank) continue;
        const size_t n_bytes = (size_t)x->send_counts[r] * row_bytes;
        if (n_bytes > 0) memcpy(staging + at, (const char *)x->send + from, n_bytes);
        at += n_bytes;
    }
}

bool host_group_exchange_rows(struct host_group *g, const struct comm_exchange *x)
{
    const size_t row_bytes = x->row_words * 4;
    char *staging = begin_staging(g, host_group_in_lane(g, x->send) ? 0 : sent_bytes(g, x));
    if (staging == NULL) return false;
    offer_rows(g, x, staging);
    post(g);
    for (int i = 0; i < g->n_ranks; i++) {
        const int r = (g->rank + i) % g->n_ranks;
        const char *from = (const char *)x->send + (size_t)x->send_displs[r] * row_bytes;
        if (r != g->rank) {
            wait_for(g, r, g->posted);
            from = data_of(g, r) + table_of(g, r)[g->rank];
        }
        const size_t n_bytes = (size_t)x->recv_counts[r] * row_bytes;
        if (n_bytes > 0) {
            memcpy((char *)x->recv + (size_t)x->recv_displs[r] * row_bytes, from, n_bytes);
        }
    }
    return true;
}

bool host_group_broadcast(struct host_group *g, int root, void *buf, size_t n_bytes)
{
    char *staging = begin_staging(g, g->rank == root ? n_bytes : 0);
    if (staging == NULL) return false;
    if (g->rank == root) {
        if (n_bytes > 0) memcpy(staging, buf, n_bytes);
        post(g);
        return true;
    }
    wait_for(g, root, g->posted + 1);
    if (n_bytes > 0) memcpy(buf, data_of(g, root), n_bytes);
    post(g);
    return true;
}

void host_group_barrier(struct host_group *g)
{
    post(g);
    wait_all(g, g->posted);
}

/* Keeps KV blocks on local disk. */
#include "attention/kv_tier.h"

#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

static const uint64_t WAITING_BYTES_MOST = 256 << 20; /* copies that wait to be written */

/* An order to write a block, or to read one. */
struct tier_order {
    uint32_t block, slot;
    bool is_stored; /* in the store, by `key`; else in `slot` of the file */
    struct kv_store_key key;
    char *copy; /* of the block to write, owned; NULL: a read */
};

struct kv_tier {
    const struct kv_pool *pool;
    struct kv_store *store;
    struct failpoint *failpoint;
    uint64_t block_bytes;
    uint32_t n_slots;
    int fd;
    uint64_t *sums;   /* [n_slots]; used by the thread only */
    bool *is_written; /* [n_slots] written without an error; used by the thread only */
    char *buffer;     /* [block_bytes]; used by the thread only */

    pthread_t thread;
    bool runs;
    pthread_mutex_t lock; /* guards all members below */
    pthread_cond_t ordered, ended;
    struct tier_order *orders; /* [capacity] a ring: [n_begun, n_ordered) */
    size_t capacity, n_begun, n_ordered;
    uint64_t waiting_bytes;
    uint64_t n_reads, n_reads_ended;
    bool *is_good;      /* [KV_TIER_READS] entry i % KV_TIER_READS: whether read i succeeded */
    uint32_t *n_on_way; /* [n_blocks] reads into the block that have not ended */
    bool stops;
    struct kv_tier_stats stats;
};

/* Opens a file that goes away with its last descriptor. */
static struct status open_tier_file(const char *dir, int *fd)
{
    char path[4096];
    if (snprintf(path, sizeof path, "%s/shoal-kv-XXXXXX", dir) >= (int)sizeof path)
        return status_make(STATUS_USAGE, "--kv-tier: the name of the folder is too long");
    *fd = mkostemp(path, O_CLOEXEC);
    if (*fd < 0) return status_make(STATUS_IO, "--kv-tier: %s: %s", dir, strerror(errno));
    unlink(path);
    return status_ok();
}

static bool write_fully(int fd, const char *from, uint64_t n, uint64_t at)
{
    while (n > 0) {
        const ssize_t done = pwrite(fd, from, n, (off_t)at);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return false;
        from += done;
        at += (uint64_t)done;
        n -= (uint64_t)done;
    }
    return true;
}

static bool read_fully(int fd, char *to, uint64_t n, uint64_t at)
{
    while (n > 0) {
        const ssize_t done = pread(fd, to, n, (off_t)at);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return false;
        to += done;
        at += (uint64_t)done;
        n -= (uint64_t)done;
    }
    return true;
}

/* Writes a block's copy, on the thread. */
static void do_write(struct kv_tier *t, const struct tier_order *o)
{
    const uint64_t since = clock_ns();
    if (o->is_stored) {
        (void)kv_store_put(t->store, o->key,
                           o->copy); /* if this fails, a later job computes the block */
    } else {
        t->sums[o->slot] = XXH3_64bits(o->copy, t->block_bytes);
        t->is_written[o->slot] =
            write_fully(t->fd, o->copy, t->block_bytes, o->slot * t->block_bytes);
    }
    const uint64_t ns = clock_ns() - since;
    pthread_mutex_lock(&t->lock);
    t->waiting_bytes -= t->block_bytes;
    t->stats.n_out++;
    t->stats.out_bytes += t->block_bytes;
    t->stats.out_ns += ns;
    pthread_mutex_unlock(&t->lock);
}

/* Reads a block from its slot or the store, on the thread. If that fails, the block keeps its old
 * content: nobody reads it before it is computed again. */
static void do_read(struct kv_tier *t, const struct tier_order *o)
{
    const uint64_t since = clock_ns();
    bool good;
    if (o->is_stored)
        good = kv_store_get(t->store, o->key, t->buffer);
    else
        good = t->is_written[o->slot] &&
               read_fully(t->fd, t->buffer, t->block_bytes, o->slot * t->block_bytes) &&
               XXH3_64bits(t->buffer, t->block_bytes) == t->sums[o->slot];
    if (failpoint_pass(t->failpoint, FAILPOINT_TIER_READ) != 0) good = false;
    if (good) kv_pool_put_block(t->pool, o->block, t->buffer);
    const uint64_t ns = clock_ns() - since;
    pthread_mutex_lock(&t->lock);
    t->is_good[t->n_reads_ended++ % KV_TIER_READS] = good;
    t->n_on_way[o->block]--;
    t->stats.n_in++;
    t->stats.in_bytes += t->block_bytes;
    t->stats.in_ns += ns;
    t->stats.n_failed += !good;
    pthread_mutex_unlock(&t->lock);
}

static void *run_thread(void *user)
{
    struct kv_tier *t = user;
    pthread_mutex_lock(&t->lock);
    for (;;) {
        while (t->n_begun == t->n_ordered && !t->stops) pthread_cond_wait(&t->ordered, &t->lock);
        if (t->stops) break;
        struct tier_order o = t->orders[t->n_begun++ % t->capacity];
        pthread_mutex_unlock(&t->lock);
        if (o.copy != NULL)
            do_write(t, &o);
        else
            do_read(t, &o);
        mem_free(&o.copy);
        pthread_mutex_lock(&t->lock);
        pthread_cond_broadcast(&t->ended);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

static struct status make_tier_arrays(struct kv_tier *t)
{
    const size_t n = t->n_slots + 1u;
    TRY(mem_alloc(&t->sums, n, sizeof *t->sums, "KV tier"));
    TRY(mem_alloc(&t->is_written, n, sizeof *t->is_written, "KV tier"));
    TRY(mem_alloc(&t->buffer, t->block_bytes, 1, "KV tier"));
    TRY(mem_alloc(&t->is_good, KV_TIER_READS, sizeof *t->is_good, "KV tier"));
    TRY(mem_alloc(&t->n_on_way, t->pool->shape.n_blocks, sizeof *t->n_on_way, "KV tier"));
    t->capacity = 64;
    return mem_alloc(&t->orders, t->capacity, sizeof *t->orders, "KV tier");
}

struct status kv_tier_create(const struct kv_tier_options *o, struct kv_tier **out)
{
    *out = NULL;
    struct kv_tier *t = NULL;
    TRY(mem_alloc(&t, 1, sizeof *t, "KV tier"));
    *t = (struct kv_tier){.pool = o->pool,
                          .store = o->store,
                          .failpoint = o->failpoint,
                          .block_bytes = kv_pool_one_bytes(o->pool),
                          .n_slots = o->n_slots,
                          .fd = -1};
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->ordered, NULL);
    pthread_cond_init(&t->ended, NULL);
    struct status st = o->n_slots > 0 ? open_tier_file(o->dir, &t->fd) : status_ok();
    if (!status_failed(&st)) st = make_tier_arrays(t);
    if (!status_failed(&st)) {
        t->runs = pthread_create(&t->thread, NULL, run_thread, t) == 0;
        if (!t->runs) st = status_make(STATUS_MEMORY, "KV tier: no thread could be started");
    }
    if (status_failed(&st)) kv_tier_destroy(&t);
    *out = t;
    return st;
}

void kv_tier_destroy(struct kv_tier **tier)
{
    struct kv_tier *t = *tier;
    if (t == NULL) return;
    if (t->runs) {
        pthread_mutex_lock(&t->lock);
        t->stops = true;
        pthread_cond_signal(&t->ordered);
        pthread_mutex_unlock(&t->lock);
        pthread_join(t->thread, NULL);
    }
    for (size_t i = t->n_begun; i < t->n_ordered; i++) mem_free(&t->orders[i % t->capacity].copy);
    if (t->fd >= 0) close(t->fd);
    pthread_cond_destroy(&t->ended);
    pthread_cond_destroy(&t->ordered);
    pthread_mutex_destroy(&t->lock);
    mem_free(&t->sums);
    mem_free(&t->is_written);
    mem_free(&t->buffer);
    mem_free(&t->is_good);
    mem_free(&t->n_on_way);
    mem_free(&t->orders);
    mem_free(tier);
}

/* Appends an order; the lock is held. */
static struct status put_order(struct kv_tier *t, struct tier_order o)
{
    const size_t n = t->n_ordered - t->n_begun;
    if (n == t->capacity) {
        struct tier_order *more = NULL;
        TRY(mem_alloc(&more, 2 * n, sizeof *more, "KV tier"));
        for (size_t i = 0; i < n; i++) more[i] = t->orders[(t->n_begun + i) % n];
        mem_free(&t->orders);
        t->orders = more;
        t->capacity = 2 * n;
        t->n_begun = 0;
        t->n_ordered = n;
    }
    t->orders[t->n_ordered++ % t->capacity] = o;
    pthread_cond_signal(&t->ordered);
    return status_ok();
}

static struct status check_order(const struct kv_tier *t, const struct tier_order *o)
{
    const bool has_place = o->is_stored ? t->store != NULL : o->slot < t->n_slots;
    if (o->block < t->pool->shape.n_blocks && has_place) return status_ok();
    return status_make(STATUS_BUG, "KV tier: block %u of %u, slot %u of %u", o->block,
                       t->pool->shape.n_blocks, o->slot, t->n_slots);
}

static struct status order_out(struct kv_tier *t, struct tier_order o)
{
    TRY(check_order(t, &o));
    const uint32_t block = o.block;
    kv_tier_await_block(t, block);
    TRY(mem_alloc(&o.copy, t->block_bytes, 1, "KV tier"));
    kv_pool_get_block(t->pool, block, o.copy);
    const uint64_t since = clock_ns();
    pthread_mutex_lock(&t->lock);
    while (t->waiting_bytes + t->block_bytes > WAITING_BYTES_MOST && t->waiting_bytes > 0)
        pthread_cond_wait(&t->ended, &t->lock);
    t->stats.wait_ns += clock_ns() - since;
    const struct status st = put_order(t, o);
    if (!status_failed(&st)) t->waiting_bytes += t->block_bytes;
    pthread_mutex_unlock(&t->lock);
    if (status_failed(&st)) mem_free(&o.copy);
    return st;
}

static struct status order_in(struct kv_tier *t, const struct tier_order *o)
{
    TRY(check_order(t, o));
    pthread_mutex_lock(&t->lock);
    const struct status st = put_order(t, *o);
    if (!status_failed(&st)) t->n_on_way[o->block]++;
    if (!status_failed(&st)) t->n_reads++;
    pthread_mutex_unlock(&t->lock);
    return st;
}

struct status kv_tier_out(struct kv_tier *t, uint32_t block, uint32_t slot)
{
    return order_out(t, (struct tier_order){.block = block, .slot = slot});
}

struct status kv_tier_in(struct kv_tier *t, uint32_t slot, uint32_t block)
{
    return order_in(t, &(struct tier_order){.block = block, .slot = slot});
}

struct status kv_tier_put(struct kv_tier *t, uint32_t block, struct kv_store_key key)
{
    return order_out(t, (struct tier_order){.block = block, .is_stored = true, .key = key});
}

struct status kv_tier_get(struct kv_tier *t, struct kv_store_key key, uint32_t block)
{
    return order_in(t, &(struct tier_order){.block = block, .is_stored = true, .key = key});
}

void kv_tier_await_block(struct kv_tier *t, uint32_t block)
{
    pthread_mutex_lock(&t->lock);
    if (t->n_on_way[block] > 0) {
        const uint64_t since = clock_ns();
        while (t->n_on_way[block] > 0) pthread_cond_wait(&t->ended, &t->lock);
        t->stats.wait_ns += clock_ns() - since;
    }
    pthread_mutex_unlock(&t->lock);
}

uint64_t kv_tier_n_ended(struct kv_tier *t, bool all)
{
    pthread_mutex_lock(&t->lock);
    const uint64_t since = clock_ns();
    while (all && t->n_reads_ended < t->n_reads) pthread_cond_wait(&t->ended, &t->lock);
    if (all) t->stats.wait_ns += clock_ns() - since;
    const uint64_t n = t->n_reads_ended;
    pthread_mutex_unlock(&t->lock);
    return n;
}

bool kv_tier_is_good(struct kv_tier *t, uint64_t i)
{
    pthread_mutex_lock(&t->lock);
    const bool good = t->is_good[i % KV_TIER_READS];
    pthread_mutex_unlock(&t->lock);
    return good;
}

int kv_tier_fd(const struct kv_tier *t)
{
    return t->fd;
}

struct kv_tier_stats kv_tier_stats_of(struct kv_tier *t)
{
    pthread_mutex_lock(&t->lock);
    const struct kv_tier_stats s = t->stats;
    pthread_mutex_unlock(&t->lock);
    return s;
}

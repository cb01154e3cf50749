/* shoal bench --load: loads the weights and reads the same file plainly, in turns. The plain read
 * copies the file into fresh memory with all threads and does nothing with it. With --cold it
 * measures the disk: large direct reads (O_DIRECT), always into the same memory. */
#include "bench/bench_private.h"

#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    READ_BYTES = 8 << 20, /* bytes of one read */
    DIRECT_BYTES =
        16 << 20, /* bytes of one direct read; the system divides it into many requests */
};

/* A plain read of this rank's part of the file, without verifying or packing. */
struct plain {
    int fd;
    bool is_cold;
    char *to; /* owned, mapped: [end - begin]; cold: [n_threads][read_bytes] */
    size_t n_bytes;
    uint64_t begin, end, read_bytes;
    _Atomic uint64_t next;
    _Atomic int error;
};

static void plain_read(void *ctx, uint32_t part)
{
    struct plain *p = ctx;
    uint64_t at;
    while ((at = atomic_fetch_add(&p->next, p->read_bytes)) < p->end) {
        char *to = p->to + (p->is_cold ? part * p->read_bytes : at - p->begin);
        const uint64_t end = p->end - at < p->read_bytes ? p->end : at + p->read_bytes;
        while (at < end) {
            /* direct reads must ask for whole sectors, even at the file's end */
            const ssize_t got =
                pread(p->fd, to, (size_t)(p->is_cold ? p->read_bytes : end - at), (off_t)at);
            if (got < 0 && errno == EINTR) continue;
            if (got <= 0) {
                atomic_store(&p->error, got < 0 ? errno : EIO);
                return;
            }
            at += (uint64_t)got;
            to += p->is_cold ? 0 : got;
        }
    }
}

/* Opens the file and allocates the memory for it. */
static struct status plain_open(struct plain *p, const char *path, uint32_t n_threads)
{
    const size_t n_bytes = p->is_cold ? n_threads * p->read_bytes : (size_t)(p->end - p->begin);
    p->fd = open(path, O_RDONLY | O_CLOEXEC | (p->is_cold ? O_DIRECT : 0));
    if (p->fd < 0 && errno == EINVAL) /* a file system without direct reads */
        p->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (p->fd < 0) return status_make(STATUS_IO, "%s: %s", path, strerror(errno));
    TRY(mem_map(&p->to, n_bytes, "a plain read"));
    p->n_bytes = n_bytes;
    if (p->is_cold)
        memset(p->to, 1, n_bytes); /* so that no page is allocated during the measurement */
    return status_ok();
}

/* **Collective (world)**. Returns the time of the slowest rank in seconds. */
static double slowest(struct job *j, uint64_t ns)
{
    comm_max_u64(j->comm, COMM_WORLD, &ns, 1);
    return (double)ns * 1e-9;
}

/* **Collective (world)**. Asks the system of each host to drop the file's pages from its cache.
 * Pages that are not yet on the disk stay (posix_fadvise(3)). */
static struct status bench_load_forget(struct job *j)
{
    const char *path = ckpt_path(j->ckpt);
    struct status st = status_ok();
    if (comm_rank(j->comm, COMM_HOST) == 0) {
        const int fd = open(path, O_RDONLY | O_CLOEXEC);
        const int error = fd < 0 ? errno : posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        if (error != 0) st = status_make(STATUS_IO, "%s: %s", path, strerror(error));
        if (fd >= 0) close(fd);
    }
    return comm_agree(j->comm, st);
}

/* **Collective (world)**. Reads the whole file plainly on each host, whose ranks share the work. */
static struct status turn_plain(struct job *j, double *seconds)
{
    const uint64_t n = ckpt_file_bytes(j->ckpt);
    const uint64_t n_ranks = (uint64_t)comm_size(j->comm, COMM_HOST);
    const uint64_t rank = (uint64_t)comm_rank(j->comm, COMM_HOST);
    const uint64_t part = (n + n_ranks - 1) / n_ranks;
    const uint64_t share = (part + DIRECT_BYTES - 1) / DIRECT_BYTES * DIRECT_BYTES;
    struct plain p = {.is_cold = j->o->bench->flags.cold,
                      .begin = share * rank < n ? share * rank : n,
                      .end = share * (rank + 1) < n ? share * (rank + 1) : n};
    p.read_bytes = p.is_cold ? DIRECT_BYTES : READ_BYTES;
    p.next = p.begin;
    struct status st = plain_open(&p, ckpt_path(j->ckpt), team_size(j->compute.team));
    comm_barrier(j->comm, COMM_WORLD);
    const uint64_t since = clock_ns();
    if (!status_failed(&st)) team_run(j->compute.team, 1, plain_read, &p);
    *seconds = slowest(j, clock_ns() - since);
    if (p.error != 0) st = status_make(STATUS_IO, "%s: %s", ckpt_path(j->ckpt), strerror(p.error));
    mem_unmap(&p.to, p.n_bytes);
    if (p.fd >= 0) close(p.fd);
    return comm_agree(j->comm, st);
}

/* **Collective (world)**. Loads the weights once more; the job's own have been destroyed before the
 * turns. */
static struct status turn_load(struct job *j, double *seconds)
{
    struct layout own = *j->layout;
    struct weights *copy = NULL;
    struct loader_stats stats = {0};
    own.lends_experts = false; /* each turn allocates its own memory */
    const struct weights_source source = job_weights_source(j, &own);
    const struct status st = weights_load(&source, &copy, &stats);
    *seconds = slowest(j, (uint64_t)(stats.seconds * 1e9));
    weights_destroy(&copy);
    return st;
}

static int bench_load_ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, uint32_t n)
{
    qsort(values, n, sizeof *values, bench_load_ascending);
    return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static void print(const struct job *j, uint32_t n, double *plain, double *load, double *fraction)
{
    const double gb = (double)ckpt_file_bytes(j->ckpt) / 1e9;
    const double p = median(plain, n), l = median(load, n), f = median(fraction, n);
    printf("file %.3f GB, %s, %u turns, medians\n", gb,
           j->o->bench->flags.cold ? "not cached" : "cached where there is room", n);
    printf("plain read %.3f s, %.2f GB/s; from %.3f to %.3f s\n", p, gb / p, plain[0],
           plain[n - 1]);
    printf("load       %.3f s, %.2f GB/s; from %.3f to %.3f s\n", l, gb / l, load[0], load[n - 1]);
    printf("speed of load / plain read, turn by turn: %.2f; from %.2f to %.2f\n", f, fraction[0],
           fraction[n - 1]);
}

struct status bench_load_run(struct job *j)
{
    const struct bench_options *o = j->o->bench;
    const uint32_t n = o->flags.n_repetitions;
    double *seconds = NULL; /* [3][n]: plain read, load, plain read / load */
    struct status st = mem_alloc(&seconds, (size_t)3 * n, sizeof *seconds, "turns");
    TRY(comm_agree(j->comm, st));
    weights_destroy(&j->weights); /* a host need not hold two copies of a large model */
    comm_barrier(j->comm, COMM_WORLD);
    for (uint32_t i = 0; i < o->flags.n_warmup + n; i++) {
        double plain = 0, load = 0;
        if (o->flags.cold) TRY_GOTO(st, bench_load_forget(j), out);
        TRY_GOTO(st, turn_plain(j, &plain), out);
        if (o->flags.cold) TRY_GOTO(st, bench_load_forget(j), out);
        TRY_GOTO(st, turn_load(j, &load), out);
        if (i < o->flags.n_warmup) continue;
        seconds[i - o->flags.n_warmup] = plain;
        seconds[n + i - o->flags.n_warmup] = load;
        seconds[2 * n + i - o->flags.n_warmup] = load > 0 ? plain / load : 0;
    }
    if (comm_rank(j->comm, COMM_WORLD) == 0)
        print(j, n, seconds, seconds + n, seconds + (size_t)2 * n);
out:
    mem_free(&seconds);
    return st;
}

/* Makes the measurements one after another: other processes first, while nothing of ours runs. */
#include "diagnose/measure.h"

#include "base/clock.h"
#include "base/mem.h"
#include "kernels/peak.h"
#include "parallel/comm/link.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    QUIET_MS = 700, /* how long other processes are watched */
    READ_BYTES = 512 << 20,
    READ_BYTES_MIN = 64 << 20,
    READ_PASSES = 6,
    FILE_BYTES = 256 << 20,
    CHUNK_BYTES = 8 << 20,
    CHUNK_ALIGN = 4096,
    CPU_FIELDS = 8, /* user nice system idle iowait irq softirq steal */
};

/* --- other processes ------------------------------------------------------------------------ */

/* Seconds of all cores so far: `busy` by processes and the kernel, `stolen` by the hypervisor. */
struct cpu_times {
    double busy, stolen;
};

static struct cpu_times cpu_times_now(void)
{
    unsigned long long v[CPU_FIELDS] = {0};
    FILE *f = fopen("/proc/stat", "re");
    const int n = f != NULL ? fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &v[0], &v[1],
                                     &v[2], &v[3], &v[4], &v[5], &v[6], &v[7])
                            : 0;
    if (f != NULL) fclose(f);
    if (n < CPU_FIELDS) return (struct cpu_times){0, 0};
    const double ticks = (double)sysconf(_SC_CLK_TCK);
    return (struct cpu_times){(double)(v[0] + v[1] + v[2] + v[5] + v[6]) / ticks,
                              (double)v[7] / ticks};
}

/* **Collective (world)**. Measures how busy the cores are while every rank sleeps, i.e. with other
 * processes. */
static void watch_others(struct comm *c, struct facts_measured *out)
{
    comm_barrier(c, COMM_WORLD);
    const struct cpu_times before = cpu_times_now();
    const uint64_t since = clock_ns();
    nanosleep(&(struct timespec){.tv_nsec = QUIET_MS * 1000000L}, NULL);
    const double s = (double)(clock_ns() - since) * 1e-9;
    const struct cpu_times after = cpu_times_now();
    out->others_cores = (after.busy - before.busy) / s;
    out->stolen_cores = (after.stolen - before.stolen) / s;
    comm_barrier(c, COMM_WORLD);
}

/* --- memory and frequency ------------------------------------------------------------------- */

static double cpufreq(int core, const char *file)
{
    char path[128];
    double khz = 0;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cpufreq/%s", core, file);
    FILE *f = fopen(path, "re");
    if (f == NULL) return 0;
    if (fscanf(f, "%lf", &khz) != 1) khz = 0;
    fclose(f);
    return khz;
}

/* Returns the frequency of the core on which this thread runs, as a fraction of its highest one. */
static double frequency_part(void)
{
    const int core = sched_getcpu();
    const double most = cpufreq(core, "cpuinfo_max_freq");
    return most > 0 ? cpufreq(core, "scaling_cur_freq") / most : 0;
}

/* **Collective (world)**. Measures reads: all ranks read their own memory at the same time. Then
 * measures the frequency of a core. */
static struct status measure_reads(const struct machine *m, struct facts_measured *out)
{
    struct peak_memory memory;
    struct comm *c = m->comm;
    const struct topo_rank *me = &m->topo->ranks[comm_rank(c, COMM_WORLD)];
    size_t n_bytes = READ_BYTES / me->n_local_ranks;
    if (n_bytes < READ_BYTES_MIN) n_bytes = READ_BYTES_MIN;
    const struct status mine = peak_memory_init(&memory, m->team, n_bytes);
    TRY(comm_agree(c, mine));
    uint64_t best = UINT64_MAX;
    double amount = 0;
    for (int i = 0; i < READ_PASSES * PEAK_READS; i++) {
        comm_barrier(c, COMM_WORLD);
        const uint64_t since = clock_ns();
        amount = peak_read(&memory, m->team, i % PEAK_READS);
        const uint64_t ns = clock_ns() - since;
        if (ns < best) best = ns;
    }
    out->mhz_part = frequency_part();
    peak_memory_fini(&memory);
    out->read_gbs = amount / (double)best;
    return status_ok();
}

/* **Collective (world)**. Replaces the read rate by the sum over the ranks of the host. */
static struct status add_host_reads(const struct machine *m, struct facts_measured *out)
{
    double *all;
    const struct topo *t = m->topo;
    const int rank = comm_rank(m->comm, COMM_WORLD);
    TRY(comm_agree(m->comm, mem_alloc(&all, t->n_ranks, sizeof *all, "read rates")));
    comm_gather_bytes(m->comm, COMM_WORLD, &out->read_gbs, sizeof *all, all);
    out->read_gbs = 0;
    for (uint32_t r = 0; r < t->n_ranks; r++)
        if (t->ranks[r].host == t->ranks[rank].host) out->read_gbs += all[r];
    mem_free(&all);
    return status_ok();
}

/* --- links ---------------------------------------------------------------------------------- */

/* **Collective (world)**. Measures the links between the first host and each other host, one at a
 * time. */
static struct status measure_links(const struct machine *m, struct facts_measured *out)
{
    char *buf;
    const uint32_t rank = (uint32_t)comm_rank(m->comm, COMM_WORLD), first = m->first[0];
    TRY(comm_agree(m->comm, mem_alloc(&buf, LINK_BYTES, 1, "message")));
    for (uint32_t h = 1; h < m->topo->n_nodes; h++) {
        const uint32_t other = m->first[h];
        if (rank == first) link_measure(m->comm, (int)other, true, buf);
        if (rank == other) {
            const struct link_speed speed = link_measure(m->comm, (int)first, false, buf);
            out->link_us = speed.latency_s * 1e6;
            out->link_gbit = speed.bytes_s * 8e-9;
        }
        comm_barrier(m->comm, COMM_WORLD);
    }
    mem_free(&buf);
    return status_ok();
}

/* --- a folder ------------------------------------------------------------------------------- */

/* Moves FILE_BYTES through fd, in chunks. Returns the seconds, negative after an error. */
static double move_file(int fd, char *chunk, bool is_write)
{
    const uint64_t since = clock_ns();
    for (size_t at = 0; at < FILE_BYTES;) {
        const ssize_t n = is_write ? pwrite(fd, chunk, CHUNK_BYTES, (off_t)at)
                                   : pread(fd, chunk, CHUNK_BYTES, (off_t)at);
        if (n <= 0) return -1;
        at += (size_t)n;
    }
    if (is_write && fdatasync(fd) != 0) return -1;
    return (double)(clock_ns() - since) * 1e-9;
}

/* Opens a file so that reads and writes bypass the page cache, if the file system allows that. */
static int open_past_cache(const char *path, int flags)
{
    const int fd = open(path, flags | O_DIRECT | O_CLOEXEC, 0600);
    return fd >= 0 || errno != EINVAL ? fd : open(path, flags | O_CLOEXEC, 0600);
}

static struct status move_through(const char *path, char *chunk, struct facts_measured *out)
{
    for (int is_write = 1; is_write >= 0; is_write--) {
        const int fd = open_past_cache(path, is_write ? O_WRONLY | O_CREAT | O_TRUNC : O_RDONLY);
        const double s = fd >= 0 ? move_file(fd, chunk, is_write) : -1;
        const int error = errno;
        if (fd >= 0) close(fd);
        if (s < 0) return status_make(STATUS_IO, "--directory: %s: %s", path, strerror(error));
        *(is_write ? &out->write_mbs : &out->read_mbs) = FILE_BYTES / s * 1e-6;
    }
    return status_ok();
}

static struct status measure_directory(const char *directory, uint32_t rank,
                                       struct facts_measured *out)
{
    char path[4096];
    char *chunk = aligned_alloc(CHUNK_ALIGN, CHUNK_BYTES); /* O_DIRECT wants whole blocks */
    const int n = snprintf(path, sizeof path, "%s/shoal-diagnose.%u", directory, rank);
    struct status st = status_ok();
    if (n >= (int)sizeof path) st = status_make(STATUS_USAGE, "--directory: the path is too long");
    if (chunk == NULL) st = status_make(STATUS_MEMORY, "no memory to measure a folder");
    if (!status_failed(&st)) {
        memset(chunk, 'x', CHUNK_BYTES);
        st = move_through(path, chunk, out);
        unlink(path);
    }
    free(chunk);
    return st;
}

struct status diagnose_measure(const struct machine *m, const char *directory,
                               struct facts_measured *out)
{
    const uint32_t rank = (uint32_t)comm_rank(m->comm, COMM_WORLD);
    struct status mine = status_ok();
    *out = (struct facts_measured){0};
    watch_others(m->comm, out);
    TRY(measure_reads(m, out));
    TRY(add_host_reads(m, out));
    TRY(measure_links(m, out));
    if (directory != NULL && m->first[m->topo->ranks[rank].host] == rank)
        mine = measure_directory(directory, rank, out);
    return comm_agree(m->comm, mine);
}

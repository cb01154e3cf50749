/* Opens or writes the file to read, and reads it (bench_disk.h). */
#include "bench/bench_disk.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/file/ckpt_room.h"
#include "checkpoint/file/direct_reads.h"
#include "checkpoint/file/expert_file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

static const uint64_t read_ns = 1000000000; /* time after which no further read begins */
enum { PASSES = 8 };                        /* passes over the file after which none begins */

static struct status disk_error(const char *path, const char *what)
{
    return status_make(STATUS_IO, "--disk %s: %s%s", path, what, strerror(errno));
}

/* --- the file ----------------------------------------------------------------------------- */

/* Opens a file that goes away with its descriptor, however the program ends. */
static struct status open_unnamed(const char *dir, int *fd)
{
    char *name = NULL;
    *fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (*fd >= 0) return status_ok();
    TRY(file_join(dir, "shoal-disk-XXXXXX", &name)); /* a file system without O_TMPFILE */
    *fd = mkostemp(name, O_CLOEXEC);
    const struct status st = *fd < 0 ? disk_error(dir, "") : status_ok();
    if (*fd >= 0) unlink(name);
    mem_free(&name);
    return st;
}

/* Fills a block with bytes that no file system can compress. */
static void fill_random(uint64_t *words, size_t n, uint64_t *state)
{
    for (size_t i = 0; i < n; i++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        words[i] = *state ^ *state >> 29;
    }
}

static struct status write_blocks(const char *path, const struct bench_disk_file *f, char *block)
{
    uint64_t state = (uint64_t)f->begin + 1;
    for (uint64_t at = 0; at < f->n_bytes;) {
        const size_t skip = at % BENCH_DISK_BLOCK;
        if (skip == 0)
            fill_random((uint64_t *)(void *)block, BENCH_DISK_BLOCK / sizeof state, &state);
        const ssize_t done = pwrite(f->fd, block + skip, BENCH_DISK_BLOCK - skip, (off_t)at);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return disk_error(path, "cannot be written: ");
        at += (uint64_t)done;
    }
    if (fsync(f->fd) != 0) return disk_error(path, "cannot be written: ");
    (void)posix_fadvise(f->fd, 0, 0, POSIX_FADV_DONTNEED);
    return status_ok();
}

/* Refuses to fill a disk: all_bytes are those of all ranks of the host. */
static struct status check_disk_room(const char *dir, uint64_t all_bytes)
{
    char *name = NULL;
    uint64_t n_free = 0;
    TRY(file_join(dir, "shoal-disk", &name));
    const struct status st = ckpt_room_free(name, &n_free);
    mem_free(&name);
    TRY(st);
    if (n_free > all_bytes) return status_ok();
    return status_make(
        STATUS_IO,
        "--disk %s: needs %.2f GB for a while, and its file system has %.2f GB free; "
        "give a smaller --disk-size",
        dir, (double)all_bytes / 1e9, (double)n_free / 1e9);
}

static struct status write_own(const char *dir, uint64_t all_bytes, struct bench_disk_file *f)
{
    char *block = NULL;
    TRY(check_disk_room(dir, all_bytes));
    TRY(open_unnamed(dir, &f->fd));
    TRY(mem_map(&block, BENCH_DISK_BLOCK, "bytes to write"));
    f->is_own = true;
    const struct status st = write_blocks(dir, f, block);
    mem_unmap(&block, BENCH_DISK_BLOCK);
    f->begin = 0;
    return st;
}

/* Asks the system how a file can be read. */
static enum bench_disk_way reading_way_of(int fd)
{
    struct statfs where;
    struct direct_reads *direct = NULL;
    if (fstatfs(fd, &where) == 0 && (where.f_type == TMPFS_MAGIC || where.f_type == RAMFS_MAGIC))
        return BENCH_DISK_MEMORY; /* some kernels let it be read "directly" */
    const struct status st = direct_reads_create(fd, 0, 1, &direct);
    direct_reads_destroy(&direct);
    return status_failed(&st) ? BENCH_DISK_CACHED : BENCH_DISK_DIRECT;
}

struct status bench_disk_open(const char *path, uint64_t all_bytes, uint32_t rank, uint32_t n_ranks,
                              struct bench_disk_file *out)
{
    struct stat found;
    *out = (struct bench_disk_file){.fd = -1};
    /* O_NONBLOCK: opening a FIFO must not hang */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return disk_error(path, "");
    const bool is_known = fstat(fd, &found) == 0;
    const bool is_folder = is_known && S_ISDIR(found.st_mode);
    if (is_folder)
        close(fd);
    else
        out->fd = fd;
    if (!is_folder && (!is_known || !S_ISREG(found.st_mode)))
        return status_make(STATUS_USAGE, "--disk %s: expected a folder or a regular file", path);
    if (!is_folder && (uint64_t)found.st_size < all_bytes) all_bytes = (uint64_t)found.st_size;
    out->n_bytes = all_bytes / n_ranks / BENCH_DISK_BLOCK * BENCH_DISK_BLOCK;
    out->begin = rank * out->n_bytes;
    if (out->n_bytes == 0)
        return status_make(STATUS_USAGE,
                           "--disk %s: expected at least 16 MiB for each of the host's %u ranks, "
                           "found %llu bytes",
                           path, n_ranks, (unsigned long long)all_bytes);
    if (is_folder) TRY(write_own(path, n_ranks * out->n_bytes, out));
    out->way = reading_way_of(out->fd);
    return status_ok();
}

void bench_disk_close(struct bench_disk_file *f)
{
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
}

/* --- reading ------------------------------------------------------------------------------ */

/* Reads in flight: the blocks [n_ended, n_begun), block i in slot i % depth. */
struct disk_run {
    const struct bench_disk_file *file;
    const struct bench_disk_read *how;
    struct direct_reads *direct; /* NULL: plain reads */
    char *memory;
    uint64_t n_begun, n_ended;
};

static uint64_t block_offset(const struct disk_run *r, uint64_t block)
{
    return r->file->begin + block * r->how->block_bytes % r->file->n_bytes;
}

static void begin_block(struct disk_run *r)
{
    const uint32_t slot = (uint32_t)(r->n_begun % r->how->depth);
    if (r->direct != NULL)
        direct_reads_start_into(r->direct, slot, r->memory + slot * r->how->block_bytes,
                                block_offset(r, r->n_begun), r->how->block_bytes);
    r->n_begun++;
}

static struct status read_plainly(const struct disk_run *r, char *to, uint64_t offset)
{
    const size_t n = r->how->block_bytes;
    for (size_t at = 0; at < n;) {
        const ssize_t got = pread(r->file->fd, to + at, n - at, (off_t)(offset + at));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0)
            return status_make(STATUS_IO, "--disk: reading at byte %llu: %s",
                               (unsigned long long)(offset + at),
                               got < 0 ? strerror(errno) : "the file ends there");
        at += (size_t)got;
    }
    (void)posix_fadvise(r->file->fd, (off_t)offset, (off_t)n, POSIX_FADV_DONTNEED);
    return status_ok();
}

/* Ends the oldest read and computes its checksum. */
static struct status end_block(struct disk_run *r, struct bench_disk_speed *out)
{
    const uint32_t slot = (uint32_t)(r->n_ended % r->how->depth);
    char *bytes = r->memory + slot * r->how->block_bytes;
    const bool arrived = r->direct != NULL && direct_reads_wait(r->direct, slot, &bytes);
    if (!arrived) TRY(read_plainly(r, bytes, block_offset(r, r->n_ended)));
    const uint64_t since = clock_thread_ns();
    const struct expert_file_place place = {.n_bytes = r->how->block_bytes};
    (void)expert_file_matches(&place, bytes); /* these bytes have no checksum to compare with */
    out->sum_cpu_s += (double)(clock_thread_ns() - since) * 1e-9;
    out->n_bytes += r->how->block_bytes;
    r->n_ended++;
    return status_ok();
}

struct status bench_disk_measure(const struct bench_disk_file *f, const struct bench_disk_read *how,
                                 char *memory, struct bench_disk_speed *out)
{
    struct disk_run r = {.file = f, .how = how, .memory = memory};
    struct status st = status_ok();
    *out = (struct bench_disk_speed){0};
    if (f->way == BENCH_DISK_DIRECT) TRY(direct_reads_create(f->fd, 0, how->depth, &r.direct));
    const uint64_t since = clock_ns(), cpu = clock_thread_ns();
    const uint32_t depth = r.direct != NULL ? how->depth : 1;
    do {
        const bool goes_on =
            r.n_begun < depth ||
            (clock_ns() - since < read_ns && r.n_begun * how->block_bytes / PASSES < f->n_bytes);
        while (goes_on && r.n_begun < r.n_ended + depth) begin_block(&r);
        st = end_block(&r, out);
    } while (!status_failed(&st) && r.n_ended < r.n_begun);
    out->seconds = (double)(clock_ns() - since + 1) * 1e-9;
    out->cpu_s = (double)(clock_thread_ns() - cpu) * 1e-9;
    direct_reads_destroy(&r.direct);
    return st;
}

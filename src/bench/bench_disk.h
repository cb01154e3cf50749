/* Opens or writes the file of `shoal bench --disk`, and reads one rank's part of it as streamed
 * experts are read (weights/expert_stream_read.c): by one thread, with several blocks in flight
 * past the system's file cache. Computes checksums, but has none to compare them with. Knows no
 * other rank. Called by bench_disk.c. */
#ifndef SHOAL_BENCH_BENCH_DISK_H
#define SHOAL_BENCH_BENCH_DISK_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BENCH_DISK_BLOCK = 16 << 20 /* the largest block */ };

/* How a file is read: from the disk past the file cache; from the disk through it; or from memory
 * (tmpfs, ramfs), so no disk is measured. */
enum bench_disk_way { BENCH_DISK_DIRECT, BENCH_DISK_CACHED, BENCH_DISK_MEMORY };

/* A rank's part of a file, a multiple of BENCH_DISK_BLOCK. */
struct bench_disk_file {
    int fd; /* owned; -1: not open */
    uint64_t begin, n_bytes;
    bool is_own; /* written by bench_disk_open; it has no name and goes away with its descriptor */
    enum bench_disk_way way;
};

/* One way of reading. */
struct bench_disk_read {
    size_t block_bytes; /* divides BENCH_DISK_BLOCK */
    uint32_t depth;     /* reads in flight */
};

struct bench_disk_speed {
    /* elapsed; CPU time of the reading thread; its part for checksums */
    double seconds, cpu_s, sum_cpu_s;
    uint64_t n_bytes;
};

/* Local. Opens the part of rank `rank` of the host's n_ranks ranks; all parts: at most all_bytes.
 * `path` is a regular file, of which each rank reads a part, or a folder, into which each rank
 * writes a file of its own. The caller calls bench_disk_close, also after an error. Errors:
 * STATUS_USAGE (neither a folder nor a regular file; less than a block for each rank), STATUS_IO,
 * STATUS_MEMORY. */
struct status bench_disk_open(const char *path, uint64_t all_bytes, uint32_t rank, uint32_t n_ranks,
                              struct bench_disk_file *out);
void bench_disk_close(struct bench_disk_file *f);

/* Local. Reads the part again and again in this way: for about a second or for eight passes,
 * whichever is shorter, but at least `depth` blocks. memory: depth * block_bytes, 4096-byte
 * aligned. Files that are not BENCH_DISK_DIRECT are read plainly, one block at a time, and leave
 * the file cache again. Errors: STATUS_IO, STATUS_MEMORY. */
struct status bench_disk_measure(const struct bench_disk_file *f, const struct bench_disk_read *how,
                                 char *memory, struct bench_disk_speed *out);

#endif

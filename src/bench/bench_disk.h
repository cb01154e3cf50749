/* What `shoal bench --disk` reads, and reading it on one rank as streamed experts are read
 * (weights/expert_stream_read.c): several blocks in flight past the system's file cache, one
 * thread, checksums verified. Knows no other rank. Called by bench_disk.c. */
#ifndef SHOAL_BENCH_BENCH_DISK_H
#define SHOAL_BENCH_BENCH_DISK_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BENCH_DISK_BLOCK = 16 << 20 /* the largest block */ };

/* Why reads do not reach a disk, or not past the file cache; BENCH_DISK_DIRECT: they do. */
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
    double seconds, cpu_s, sum_cpu_s; /* elapsed; of the reading thread; of that for checksums */
    uint64_t n_bytes;
};

/* Local. Opens rank `rank` of n_ranks' part of a regular file, at most all_bytes for all of them;
 * if `path` is a folder, writes a file of that part in it. *out is closed with bench_disk_close,
 * also after an error. Errors: STATUS_USAGE (neither a folder nor a regular file; less than a block
 * for each rank), STATUS_IO, STATUS_MEMORY. */
struct status bench_disk_open(const char *path, uint64_t all_bytes, uint32_t rank, uint32_t n_ranks,
                              struct bench_disk_file *out);
void bench_disk_close(struct bench_disk_file *f);

/* Local. Reads the part again and again in this way, for about a second or eight passes, and at
 * least `depth` blocks. memory: depth * block_bytes, 4096-byte aligned. Files that are not
 * BENCH_DISK_DIRECT are read plainly, one block at a time, and leave the file cache again. Errors:
 * STATUS_IO, STATUS_MEMORY. */
struct status bench_disk_measure(const struct bench_disk_file *f, const struct bench_disk_read *how,
                                 char *memory, struct bench_disk_speed *out);

#endif

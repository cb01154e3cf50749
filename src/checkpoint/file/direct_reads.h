/* Reads one file while the calling thread does other work. The reads bypass the system's file cache
 * (O_DIRECT, Linux's io_submit(2)), so no byte is copied and the cache takes no memory from the
 * weights. Knows bytes and offsets, no tensors. Called by ckpt_reader.c, by the stream of
 * experts (weights/expert_stream.c) and by bench_disk_read.c. */
#ifndef SHOAL_CHECKPOINT_FILE_DIRECT_READS_H
#define SHOAL_CHECKPOINT_FILE_DIRECT_READS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct direct_reads; /* used by one thread at a time */

/* Local. Opens the file behind fd once more, for n_slots reads at a time (1 to 64), each of at most
 * read_bytes. Memory: at most read_bytes + 8 KiB for each slot; with read_bytes 0 none, and only
 * direct_reads_start_into may be used. Errors: STATUS_IO when the system or the file system does
 * not support such reads, STATUS_MEMORY. */
struct status direct_reads_create(int fd, size_t read_bytes, uint32_t n_slots,
                                  struct direct_reads **out);
/* Local. Waits for the reads in flight, then frees; accepts NULL. */
void direct_reads_destroy(struct direct_reads **d);

/* Local. Starts to read n bytes at `offset` into a slot without a read in flight. */
void direct_reads_start(struct direct_reads *d, uint32_t slot, uint64_t offset, size_t n);
/* Local. As direct_reads_start, into `memory`. memory, offset and n are multiples of 4,096. */
void direct_reads_start_into(struct direct_reads *d, uint32_t slot, char *memory, uint64_t offset,
                             size_t n);
/* Local. Waits for the slot's read. *bytes points to its n bytes until the next read starts in the
 * slot. False when not all bytes arrived: the caller then reads them into *bytes with pread, which
 * succeeds or says why not. */
bool direct_reads_wait(struct direct_reads *d, uint32_t slot, char **bytes);

#endif

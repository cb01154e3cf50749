/* Reads of one file that go on while their thread does other work. They pass by the system's file
 * cache (O_DIRECT, Linux's io_submit(2)), so no byte is copied and no page is taken from the
 * weights. Knows bytes and offsets, no tensors. Called by ckpt_reader.c and by the stream of
 * experts (weights/expert_stream.c). */
#ifndef SHOAL_CHECKPOINT_FILE_DIRECT_READS_H
#define SHOAL_CHECKPOINT_FILE_DIRECT_READS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct direct_reads; /* used by one thread at a time */

/* Local. Opens the file behind fd once more, for n_slots reads at a time (at least 1), each of at
 * most read_bytes. Memory: read_bytes + 8 KiB for each slot; read_bytes 0: none, for
 * direct_reads_start_into alone. Errors: STATUS_IO when the system or the file system does not
 * support such reads, STATUS_MEMORY. */
struct status direct_reads_create(int fd, size_t read_bytes, uint32_t n_slots,
                                  struct direct_reads **out);
/* Local. Waits for the reads that go on, then frees; accepts NULL. */
void direct_reads_destroy(struct direct_reads **d);

/* Local. Starts to read n bytes at `offset` into a slot that has no read going on. */
void direct_reads_start(struct direct_reads *d, uint32_t slot, uint64_t offset, size_t n);
/* Local. The same into the caller's memory. Memory, offset and n are multiples of 4,096. */
void direct_reads_start_into(struct direct_reads *d, uint32_t slot, char *memory, uint64_t offset,
                             size_t n);
/* Local. Waits for the slot's read. *bytes is where its n bytes stand until the slot's next start.
 * False when they did not all arrive: the caller then reads them into *bytes in the plain way,
 * which succeeds or says why not. */
bool direct_reads_wait(struct direct_reads *d, uint32_t slot, char **bytes);

#endif

/* Computes how much disk space a checkpoint file will take, and compares it with the free space.
 * Called by convert, quantize, expert_pack.c and bench_disk_read.c. */
#ifndef SHOAL_CHECKPOINT_FILE_CKPT_ROOM_H
#define SHOAL_CHECKPOINT_FILE_CKPT_ROOM_H

#include "checkpoint/file/ckpt_writer.h"

/* Local. Returns the bytes of a file with these tensors and n_text_bytes of texts. Counts the
 * weights with their alignment, their checksums and the texts; not HDF5's metadata (about 4 KiB per
 * dataset), the attributes or the vectors of /rope. */
uint64_t ckpt_room_needed(const struct ckpt_tensor_spec *specs, size_t n_specs,
                          uint64_t n_text_bytes);

/* Local. Sets *n_free to the free bytes of the file system on which a file at `path` would be;
 * UINT64_MAX if they are unknown. Errors: STATUS_MEMORY, STATUS_IO (a loop of links). */
struct status ckpt_room_free(const char *path, uint64_t *n_free);

/* Local. Refuses a checkpoint at `path` that needs more than n_free bytes; otherwise logs both
 * numbers (n_free only if it is known). Errors: STATUS_IO names both. */
struct status ckpt_room_check(const char *path, uint64_t n_needed, uint64_t n_free);

#endif

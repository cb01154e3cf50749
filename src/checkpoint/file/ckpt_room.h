/* Computes the disk space that a checkpoint file takes before it is written. Called by convert,
 * quantize, expert_pack.c and bench_disk_read.c. */
#ifndef SHOAL_CHECKPOINT_FILE_CKPT_ROOM_H
#define SHOAL_CHECKPOINT_FILE_CKPT_ROOM_H

#include "checkpoint/file/ckpt_writer.h"

/* Local. Returns the bytes of a file with these tensors and n_text_bytes of texts. Exact for
 * weights, their alignment, their checksums and the texts; the HDF5 metadata that names them (about
 * 4 KiB per dataset) is not counted. */
uint64_t ckpt_room_needed(const struct ckpt_tensor_spec *specs, size_t n_specs,
                          uint64_t n_text_bytes);

/* Local. Sets *n_free to the free bytes of the file system on which a file at `path` would be;
 * UINT64_MAX when it does not say. Errors: STATUS_MEMORY, STATUS_IO (a loop of links). */
struct status ckpt_room_free(const char *path, uint64_t *n_free);

/* Local. Logs how many bytes the checkpoint at `path` will take, and n_free. Errors: STATUS_IO
 * names both numbers when n_free is too small. */
struct status ckpt_room_check(const char *path, uint64_t n_needed, uint64_t n_free);

#endif

/* The disk that a checkpoint file takes, known before it is written. Called by convert and by
 * quantize. */
#ifndef SHOAL_CHECKPOINT_FILE_CKPT_ROOM_H
#define SHOAL_CHECKPOINT_FILE_CKPT_ROOM_H

#include "checkpoint/file/ckpt_writer.h"

/* Local. Bytes of the file with these tensors and n_text_bytes of texts. Weights, their alignment,
 * their checksums and the texts are exact; what HDF5 writes to name them (about 4 KiB a dataset) is
 * not counted. */
uint64_t ckpt_room_needed(const struct ckpt_tensor_spec *specs, size_t n_specs,
                          uint64_t n_text_bytes);

/* Local. *n_free: free bytes of the file system that a file at `path` would be on; UINT64_MAX when
 * it does not say. Errors: STATUS_MEMORY, STATUS_IO (a loop of links). */
struct status ckpt_room_free(const char *path, uint64_t *n_free);

/* Local. Logs how many bytes the checkpoint at `path` will take and how many of n_free there are.
 * Errors: STATUS_IO names both numbers when there are too few. */
struct status ckpt_room_check(const char *path, uint64_t n_needed, uint64_t n_free);

#endif

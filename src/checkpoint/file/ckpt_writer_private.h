/* The state of a checkpoint writer, shared by ckpt_writer.c (the file, texts) and
 * ckpt_writer_tensor.c (tensors, blocks, checksums). ckpt_list.c uses ckpt_spec_shape, ckpt_room.c
 * CKPT_ALIGN_BYTES. */
#ifndef SHOAL_CHECKPOINT_FILE_CKPT_WRITER_PRIVATE_H
#define SHOAL_CHECKPOINT_FILE_CKPT_WRITER_PRIVATE_H

#include "checkpoint/file/ckpt_private.h"
#include "checkpoint/file/ckpt_writer.h"
#include "checkpoint/file/seal.h"

enum {
    CKPT_STREAMS_MAX = CKPT_PART_COUNT,
    CKPT_ALIGN_BYTES = 4096, /* alignment of large datasets in the file */
};

/* A dataset that is being written. */
struct ckpt_stream {
    struct ckpt_tensor shape; /* without a name */
    char name[CKPT_NAME_MAX];
    hid_t dataset; /* -1: none */
    hid_t type;
    uint64_t row;      /* rows received */
    uint64_t n_filled; /* how many of these rows are in the block buffer */
    uint64_t *sums;    /* owned [n_blocks][2] */
    char *block;       /* owned [n_block_bytes]; outlives the dataset */
    size_t n_block_bytes;
};

struct ckpt_writer {
    char *path;      /* owned */
    char *temporary; /* owned */
    bool created;    /* the temporary file exists and is ours to remove */
    hid_t file;
    hid_t group_plist;   /* no time stamps */
    hid_t dataset_plist; /* no time stamps, contiguous, allocated early */
    struct ckpt_stream streams[CKPT_STREAMS_MAX];
    uint32_t n_streams; /* streams of the tensor being written: 0 none, 1 plain, 2 or 3 quantized */
    bool is_quantized;
    struct seal_extent *raw; /* owned [n_raw]: the extents of the weights' bytes */
    size_t n_raw, n_raw_capacity;
};

/* Errors of all functions below: STATUS_IO names the file and the object; STATUS_INPUT when the
 * caller's rows or names do not fit. */

/* Local. Fills t's type, shape, sizes and leaves. Errors: STATUS_INPUT for a shape that cannot be
 * stored. */
struct status ckpt_spec_shape(const struct ckpt_tensor_spec *spec, struct ckpt_tensor *t);

/* Local. Creates a dataset (*out: the caller closes it) and the groups above it. HDF5 could create
 * these groups itself, but only with time stamps, which would change the bytes. */
struct status ckpt_dataset_create(struct ckpt_writer *w, const char *path, hid_t type, int n_dims,
                                  const hsize_t *dims, hid_t *out);
/* Local. Creates the groups above the last component of `path`. */
struct status ckpt_groups_create(struct ckpt_writer *w, const char *path);

/* Local. Ends the current tensor; all its rows must have been written. */
struct status ckpt_tensor_end(struct ckpt_writer *w);
/* Local. Closes the HDF5 objects of the current tensor. */
void ckpt_streams_close(struct ckpt_writer *w);

#endif

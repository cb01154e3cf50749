/* The packed copy of a checkpoint's experts: each expert in one piece, in the layout that the
 * kernels read, so that a job that streams experts reads one with one direct read. Made from a
 * checkpoint, and safe to delete. Knows bytes, no tensors: weights/expert_pack.c fills it,
 * weights/expert_stream.c reads it.
 *
 *   [0, 4096)  header: magic[16], u32 version, n_layers, n_experts, n_parts, cut, 0; u64 digest
 *              low, high, file bytes, hash of the index, hash of the header's bytes before it
 *   index      u64 expert_bytes [n_layers, n_parts], u64 hash [n_layers, n_parts, n_experts],
 *              padded to 4096
 *   experts    [n_layers][n_parts][n_experts] of expert_bytes, multiples of 4096
 *
 * Numbers are little endian, hashes XXH3-64. The header is written last, before the rename. */
#ifndef SHOAL_CHECKPOINT_FILE_EXPERT_FILE_H
#define SHOAL_CHECKPOINT_FILE_EXPERT_FILE_H

#include "base/status.h"
#include "checkpoint/file/ckpt.h"

#include <stdint.h>

enum {
    EXPERT_FILE_ALIGN = 4096,
    EXPERT_FILE_VERSION =
        1, /* also of the packed layout: one more when kernels/kern.h changes it */
};

/* How the experts of a copy are cut between the ranks that share one. */
enum expert_cut { EXPERT_CUT_INPUTS, EXPERT_CUT_OUTPUTS }; /* of the down projection */

/* The content of a copy. */
struct expert_file_shape {
    struct ckpt_digest digest;             /* of the checkpoint */
    uint32_t n_layers, n_experts, n_parts; /* n_parts: the ranks that share an expert */
    enum expert_cut cut;                   /* INPUTS with one part */
    const uint64_t *expert_bytes; /* [n_layers, n_parts] multiples of EXPERT_FILE_ALIGN; 0: a layer
                                     without experts; borrowed during the call */
};

/* One expert's part. */
struct expert_file_place {
    uint64_t offset, n_bytes, hash;
};

struct expert_file_writer;
struct expert_file;

/* Local. Begins PATH.tmp; waits while another process of this host writes it. Errors: STATUS_IO,
 * STATUS_MEMORY. */
struct status expert_file_create(const char *path, const struct expert_file_shape *shape,
                                 struct expert_file_writer **out);
/* Local. Writes n experts of a layer's part from `expert` on: bytes [n, expert_bytes], aligned to
 * EXPERT_FILE_ALIGN. Errors: STATUS_IO. */
struct status expert_file_write(struct expert_file_writer *w, uint32_t layer, uint32_t part,
                                uint32_t expert, uint32_t n, const void *bytes);
/* Local. Writes index and header, makes all of it durable and renames it to PATH. Errors:
 * STATUS_IO. */
struct status expert_file_finish(struct expert_file_writer *w);
/* Local. Removes the temporary file if expert_file_finish did not succeed. Accepts NULL. */
void expert_file_writer_destroy(struct expert_file_writer **w);

/* Local. Opens a copy and compares it with the shape. *out stays NULL, without an error, where
 * there is no file. Errors: STATUS_INPUT (another checkpoint's, cut, damaged, of another version),
 * STATUS_IO, STATUS_MEMORY. */
struct status expert_file_open(const char *path, const struct expert_file_shape *shape,
                               struct expert_file **out);
/* Local. Accepts NULL. */
void expert_file_close(struct expert_file **f);

/* Local. The open file's descriptor, its name, and where an expert stands. */
int expert_file_descriptor(const struct expert_file *f);
const char *expert_file_path(const struct expert_file *f);
struct expert_file_place expert_file_find(const struct expert_file *f, uint32_t layer,
                                          uint32_t part, uint32_t expert);

/* Local. Whether these bytes are the expert's. */
bool expert_file_matches(const struct expert_file_place *place, const void *bytes);

/* Local. Reads an expert in the plain way and verifies it. Errors: STATUS_IO, STATUS_INPUT (cut, or
 * damaged). */
struct status expert_file_read(const struct expert_file *f, const struct expert_file_place *place,
                               void *bytes);

#endif

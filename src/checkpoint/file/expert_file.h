/* The packed copy of a checkpoint's experts. Each expert, or the part of it that one rank computes,
 * is one piece in the layout that the kernels read, so a rank that streams experts needs one direct
 * read for each. The copy is made from a checkpoint and can be made again. Knows bytes, no tensors:
 * weights/expert_pack.c fills it, weights/expert_stream_read.c reads it.
 *
 *   [0, 4096)  header: magic[16], u32 version, n_layers, n_experts, n_parts, cut, 0; u64 digest
 *              low, high, file bytes, hash of the index, hash of the header's bytes before it
 *   index      u64 expert_bytes [n_layers, n_parts], u64 hash [n_layers, n_parts, n_experts],
 *              padded to 4096
 *   experts    [n_layers][n_parts][n_experts] of expert_bytes, multiples of 4096
 *
 * Numbers are little endian, hashes XXH3-64. Header and index are written last, just before the
 * rename. */
#ifndef SHOAL_CHECKPOINT_FILE_EXPERT_FILE_H
#define SHOAL_CHECKPOINT_FILE_EXPERT_FILE_H

#include "base/status.h"
#include "checkpoint/file/ckpt.h"

#include <stdint.h>

enum {
    EXPERT_FILE_ALIGN = 4096,
    EXPERT_FILE_VERSION =
        1, /* covers the packed layout too: add one when kernels/kern.h changes it */
};

/* How the ranks that share an expert divide its down projection: by inputs or by outputs. */
enum expert_cut { EXPERT_CUT_INPUTS, EXPERT_CUT_OUTPUTS };

/* The shape of a copy. */
struct expert_file_shape {
    struct ckpt_digest digest;             /* the checkpoint's digest */
    uint32_t n_layers, n_experts, n_parts; /* n_parts: how many ranks share an expert */
    enum expert_cut cut;                   /* INPUTS if n_parts is 1 */
    const uint64_t *expert_bytes; /* [n_layers, n_parts] bytes of one expert's part, a multiple of
                                     EXPERT_FILE_ALIGN; 0: the layer has no experts, or the part
                                     holds nothing; borrowed during the call */
};

/* Where one part of one expert is in the file. */
struct expert_file_place {
    uint64_t offset, n_bytes, hash;
};

struct expert_file_writer;
struct expert_file;

/* Local. Begins PATH.tmp; waits while another process of this host is writing it. Errors:
 * STATUS_USAGE (PATH exists and is no regular file), STATUS_IO, STATUS_MEMORY. */
struct status expert_file_create(const char *path, const struct expert_file_shape *shape,
                                 struct expert_file_writer **out);
/* Local. Writes one part of n experts of a layer, from `expert` on: bytes [n, expert_bytes],
 * aligned to EXPERT_FILE_ALIGN. Errors: STATUS_IO. */
struct status expert_file_write(struct expert_file_writer *w, uint32_t layer, uint32_t part,
                                uint32_t expert, uint32_t n, const void *bytes);
/* Local. Writes the index and the header, makes the file durable and renames it to PATH. Errors:
 * STATUS_IO, STATUS_MEMORY. */
struct status expert_file_finish(struct expert_file_writer *w);
/* Local. Removes the temporary file if expert_file_finish did not succeed. Accepts NULL. */
void expert_file_writer_destroy(struct expert_file_writer **w);

/* Local. Opens a copy and compares it with the shape. If there is no file, *out is NULL and the
 * status OK. Errors: STATUS_INPUT (another kind of file, or a copy of another checkpoint, shape or
 * version, or one that is truncated or damaged), STATUS_IO, STATUS_MEMORY. */
struct status expert_file_open(const char *path, const struct expert_file_shape *shape,
                               struct expert_file **out);
/* Local. Accepts NULL. */
void expert_file_close(struct expert_file **f);

/* Local. Return the open file's descriptor, its name, and where an expert's part is. */
int expert_file_descriptor(const struct expert_file *f);
const char *expert_file_path(const struct expert_file *f);
struct expert_file_place expert_file_find(const struct expert_file *f, uint32_t layer,
                                          uint32_t part, uint32_t expert);

/* Local. True when the bytes have the hash of the expert's part. */
bool expert_file_matches(const struct expert_file_place *place, const void *bytes);

/* Local. Reads one part of an expert with pread and verifies it. Errors: STATUS_IO, STATUS_INPUT
 * (truncated, or damaged). */
struct status expert_file_read(const struct expert_file *f, const struct expert_file_place *place,
                               void *bytes);

#endif

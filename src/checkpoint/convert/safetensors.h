/* Reads Hugging Face's safetensors: one file, or shards with model.safetensors.index.json.
 * The bytes are untrusted: lengths, offsets, shapes, names and file types are checked before use.
 * Reads ranges of a tensor; never maps a file and never holds a whole tensor. Called by convert.
 * Format: https://github.com/huggingface/safetensors, README "Format". */
#ifndef SHOAL_CHECKPOINT_CONVERT_SAFETENSORS_H
#define SHOAL_CHECKPOINT_CONVERT_SAFETENSORS_H

#include "base/status.h"
#include "tensor/dtype.h"

#include <stddef.h>
#include <stdint.h>

enum {
    SAFETENSORS_DIMS_MAX = 8,
    SAFETENSORS_HEADER_MAX = 100 * 1000 * 1000, /* bytes; the format's own limit */
    SAFETENSORS_INDEX_MAX = 256 << 20,
};

struct safetensors_tensor {
    const char *name; /* borrowed from the reader */
    enum dtype dtype;
    uint32_t n_dims; /* 0..SAFETENSORS_DIMS_MAX */
    uint64_t dims[SAFETENSORS_DIMS_MAX];
    uint64_t n_bytes;
    uint64_t offset; /* byte offset in its file */
    uint32_t shard;  /* index of its file */
};

struct safetensors;

/* Local. Opens `path`, a .safetensors file, or a folder with model.safetensors or
 * model.safetensors.index.json. Errors: STATUS_INPUT names file, tensor and offset;
 * STATUS_MEMORY. */
struct status safetensors_open(const char *path, struct safetensors **out);
void safetensors_close(struct safetensors **s);

/* Local. Return the number of tensors, a tensor by its place (sorted by name), and a tensor by its
 * name (NULL if unknown). */
size_t safetensors_count(const struct safetensors *s);
const struct safetensors_tensor *safetensors_at(const struct safetensors *s, size_t i);
const struct safetensors_tensor *safetensors_find(const struct safetensors *s, const char *name);
/* Local. Returns the path of the file that holds a tensor, for messages. */
const char *safetensors_path(const struct safetensors *s, const struct safetensors_tensor *t);

/* Local. Reads n bytes of a tensor from its byte `first` on. Errors: STATUS_INPUT. */
struct status safetensors_read(const struct safetensors *s, const struct safetensors_tensor *t,
                               uint64_t first, size_t n, void *out);

#endif

/* Writes shoal's checkpoint file: streaming, in bounded memory, all or nothing. The same calls make
 * the same bytes. Called by convert and by quantize. Order of calls: create, config, texts, then
 * for each tensor `tensor` and its rows (`rows`, or `quant_rows` for a quantized tensor), then
 * finish. */
#ifndef SHOAL_CHECKPOINT_FILE_CKPT_WRITER_H
#define SHOAL_CHECKPOINT_FILE_CKPT_WRITER_H

#include "checkpoint/file/ckpt.h"

struct ckpt_writer;

/* A tensor to be written. */
struct ckpt_tensor_spec {
    const char *name; /* dots become slashes below /weights */
    enum dtype dtype;
    uint32_t n_dims;
    uint64_t dims[CKPT_DIMS_MAX];
    uint32_t leaf_elems; /* 0: not row-parallel; grid_bits is then ignored */
    uint32_t grid_bits;
    struct quant_format quant; /* QUANT_NONE: rows of dtype; else dtype is ignored, dims are the
                                  weight's, and leaves are whole kernel groups */
    const char *method;        /* quantization method ("rtn"); quantized only */
};

/* Local. Creates a file under a temporary name beside the file to which `path` leads (symlinks are
 * followed); ckpt_writer_finish renames it to that file. `source`, cut after 4096 bytes, becomes
 * the root attribute of that name. Errors: STATUS_USAGE when `path` exists and is no regular file,
 * STATUS_IO, STATUS_MEMORY. */
struct status ckpt_writer_create(const char *path, const char *source, struct ckpt_writer **out);

/* Local. Writes the config: its text as a dataset, one typed attribute per field of the object, and
 * the vectors of /rope as arch/arch_rope.h makes them. Errors: STATUS_INPUT for bad JSON or a bad
 * RoPE, STATUS_IO, STATUS_MEMORY. */
struct status ckpt_writer_config(struct ckpt_writer *w, const char *json, size_t n);

/* Local. Writes one of the other texts; an empty text is left out. Errors: STATUS_INPUT for a text
 * above 256 MiB, STATUS_IO. */
struct status ckpt_writer_text(struct ckpt_writer *w, enum ckpt_text which, const char *text,
                               size_t n);

/* Local. Begins a tensor; all rows of the previous one must have been written. Names must be new,
 * and no name may be a parent of another. Errors: STATUS_INPUT names the tensor; STATUS_IO,
 * STATUS_MEMORY. */
struct status ckpt_writer_tensor(struct ckpt_writer *w, const struct ckpt_tensor_spec *spec);

/* Local. Writes the next n_rows rows [n_rows][last dimension] of the current tensor. Errors:
 * STATUS_INPUT (more rows than the tensor has), STATUS_BUG (the tensor is quantized), STATUS_IO. */
struct status ckpt_writer_rows(struct ckpt_writer *w, const void *rows, uint64_t n_rows);

/* Local. Writes the codes, scales and zeros of the next n_rows rows of the current, quantized
 * tensor. Errors: STATUS_INPUT (more rows than the tensor has), STATUS_BUG (the tensor is plain, or
 * `rows` has zeros and its format not, or the reverse), STATUS_IO. */
struct status ckpt_writer_quant_rows(struct ckpt_writer *w, const struct quant_block *rows,
                                     uint64_t n_rows);

/* Local. Writes the last tensor's checksums and the seal, fsyncs, renames the file to its final
 * name, fsyncs the folder. *w is NULL afterwards in any case, and after a failure the temporary
 * file is gone. Errors: STATUS_INPUT when rows are missing or the file cannot be read back,
 * STATUS_IO, STATUS_MEMORY. */
struct status ckpt_writer_finish(struct ckpt_writer **w);

/* Local. Closes and removes the temporary file, and frees *w. Accepts NULL. */
void ckpt_writer_destroy(struct ckpt_writer **w);

/* Local. Return the bytes of a tensor's weights: of one row in one dataset, and of all its datasets
 * together. The only dataset of a plain tensor counts as CKPT_CODES; a dataset that the tensor
 * lacks has 0 bytes. */
uint64_t ckpt_spec_row_bytes(const struct ckpt_tensor_spec *spec, enum ckpt_part part);
uint64_t ckpt_spec_bytes(const struct ckpt_tensor_spec *spec);

/* Local. Returns the number of rows of a block for a tensor of dtype and dims: as many as fit 8
 * MiB, so that the ranks of a host can hold one block each, but at least 1. A block of experts [E,
 * out, in] is a whole expert, or a whole fraction of one that has at least 1 MiB; only if there is
 * no such fraction, blocks span experts. */
uint64_t ckpt_rows_per_block(const struct ckpt_tensor_spec *spec);

#endif

/* Reads shoal's checkpoint file (HDF5; docs/checkpoint.md). The file is not trusted: its seal is
 * checked before HDF5 opens it, then all its links and objects, and each block that is read is
 * compared with its checksum. Knows no models, ranks or layouts. */
#ifndef SHOAL_CHECKPOINT_FILE_CKPT_H
#define SHOAL_CHECKPOINT_FILE_CKPT_H

#include "base/status.h"
#include "tensor/dtype.h"
#include "tensor/quant_format.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CKPT_FORMAT = 1,
    CKPT_DIMS_MAX = 3,
    CKPT_BLOCK_BYTES_MAX = 64 << 20,      /* largest block, and so the largest row */
    CKPT_READ_BYTES_MAX = 4 << 20,        /* bytes of rows read at once, unless one row is longer */
    CKPT_DIRECT_BYTES = (2 << 20) - 4096, /* the same for one direct read (ckpt_reader.h) */
    CKPT_NAME_MAX = 512,                  /* bytes of a tensor's name */
};

/* The texts of a checkpoint. CKPT_TEXT_CONFIG is always present, the others may be absent. */
#define CKPT_TEXT_LIST(X)                                                                          \
    X(CONFIG, "config", "config_json")                                                             \
    X(GENERATION_CONFIG, "config", "generation_config_json")                                       \
    X(TOKENIZER, "tokenizer", "tokenizer_json")                                                    \
    X(TOKENIZER_CONFIG, "tokenizer", "tokenizer_config_json")                                      \
    X(CHAT_TEMPLATE, "tokenizer", "chat_template")                                                 \
    X(EMBEDDING, "config", "embedding_json")

enum ckpt_text {
#define X(id, group, dataset) CKPT_TEXT_##id,
    CKPT_TEXT_LIST(X)
#undef X
        CKPT_TEXT_COUNT
};

/* The datasets of a quantized tensor's group. */
enum ckpt_part { CKPT_CODES, CKPT_SCALES, CKPT_ZEROS, CKPT_PART_COUNT };

/* Local. Return the name of a part ("codes", "scales", "zeros"), its element type, and the number
 * of elements in its row when the weight has n_in inputs. */
const char *ckpt_part_name(enum ckpt_part part);
enum dtype ckpt_part_dtype(enum ckpt_part part, struct quant_format f);
uint64_t ckpt_part_columns(enum ckpt_part part, struct quant_format f, uint64_t n_in);

/* One tensor of /weights, seen as n_rows rows of n_cols elements (row-major; the last dimension is
 * a row, and a vector is one row). [out, in] has `out` rows; experts [E, out, in] have E * out
 * rows, and row r of expert e is row e * out + r. */
struct ckpt_tensor {
    const char *name; /* borrowed; the source's name with dots: "model.norm.weight" */
    uint32_t index;   /* its index in ckpt_tensor_at */
    enum dtype dtype;
    uint32_t n_dims; /* 1..CKPT_DIMS_MAX */
    uint64_t dims[CKPT_DIMS_MAX];
    uint64_t n_rows;
    uint64_t n_cols;
    uint64_t n_bytes;
    uint32_t leaf_elems; /* columns per leaf of a row-parallel weight; 0: not row-parallel */
    uint32_t grid_bits;  /* g of the numerics law; 0 when leaf_elems is 0 */
    uint64_t offset;     /* the first byte in the file; undefined when quantized */
    uint64_t rows_per_block;
    uint64_t n_blocks;         /* 0 when quantized: its parts have the blocks */
    struct quant_format quant; /* QUANT_NONE: plain; else dtype is undefined and n_bytes is the sum
                                  over the parts */
    const char *method;        /* quantized: the quantization method; borrowed */
    const struct ckpt_tensor *parts[CKPT_PART_COUNT]; /* quantized: its datasets; zeros NULL if the
                                                         format has none; all NULL without a file
                                                         (ckpt_list.h) */
};

struct ckpt; /* an open file */

/* Local. Call before MPI starts. Otherwise HDF5 cleans up inside MPI_Finalize, and crashes there
 * after a file that it could not finish writing. */
void ckpt_before_mpi(void);

/* Local. Opens a checkpoint for reading. Checks its whole structure and reads no weights.
 * Errors: STATUS_INPUT names the file and what is wrong with it, STATUS_MEMORY. */
struct status ckpt_open(const char *path, struct ckpt **out);
/* Local. Closes and frees; accepts NULL. */
void ckpt_close(struct ckpt **c);

/* Local. The results of all functions below are borrowed and live until ckpt_close. */
const char *ckpt_path(const struct ckpt *c);
const char *ckpt_source(const struct ckpt *c); /* root attribute `source` */
uint64_t ckpt_file_bytes(const struct ckpt *c);

/* Local. Returns a text, NUL-terminated after *n bytes (n may be NULL); NULL: the file has none. */
const char *ckpt_text(const struct ckpt *c, enum ckpt_text which, size_t *n);
const char *ckpt_config_json(const struct ckpt *c, size_t *n);
const char *ckpt_tokenizer_json(const struct ckpt *c, size_t *n);
const char *ckpt_tokenizer_config_json(const struct ckpt *c, size_t *n);
const char *ckpt_generation_config_json(const struct ckpt *c, size_t *n);
const char *ckpt_chat_template(const struct ckpt *c, size_t *n);

/* Local. Returns /rope/inv_freq [*n]: rotary frequencies in radians per position, made by convert
 * (arch/arch_rope.h). NULL and 0 when the file has none: the config has no attention heads, or
 * names a scaling that convert does not know. */
const float *ckpt_rope_inv_freq(const struct ckpt *c, size_t *n);

/* Local. Returns /rope/local_inv_freq [*n]: the frequencies of layers with a window, if the family
 * has others for these layers; else NULL and 0. */
const float *ckpt_rope_local_inv_freq(const struct ckpt *c, size_t *n);

/* Local. Returns the two factors that go with the frequencies. Both are 1, except for YaRN (both)
 * and LongRoPE (`attention`). */
struct ckpt_rope_factors {
    float attention; /* cos and sin are multiplied by it */
    float softmax;   /* the scale of q.k is multiplied by it */
};
struct ckpt_rope_factors ckpt_rope_factors(const struct ckpt *c);

/* Local. Access tensors in the byte order of their names; ckpt_find returns NULL for an unknown
 * name. ckpt_tensor_at has ckpt_stored_count entries: the tensors, then the parts of quantized
 * tensors (named "X.codes" and so on) in the same order. */
size_t ckpt_tensor_count(const struct ckpt *c);
size_t ckpt_stored_count(const struct ckpt *c);
const struct ckpt_tensor *ckpt_tensor_at(const struct ckpt *c, size_t i);
const struct ckpt_tensor *ckpt_find(const struct ckpt *c, const char *name);

/* Local. True when two tensors differ in type, number of rows or columns, or checksums. False if
 * this is unknown, because one is quantized or c has no checksums (ckpt_list.h). */
bool ckpt_tensors_differ(const struct ckpt *c, const struct ckpt_tensor *a,
                         const struct ckpt_tensor *b);

/* Local. Returns the checkpoint's digest: the XXH3-128 of its seal, which covers everything except
 * the weights' bytes (config, tokenizer, names, shapes, the weights' checksums). Ranks that opened
 * the same checkpoint have the same digest. */
struct ckpt_digest {
    uint64_t low, high;
};
struct ckpt_digest ckpt_digest(const struct ckpt *c);

/* Local. Returns the number of rows of a block, which begins at row block * rows_per_block. */
uint64_t ckpt_block_rows(const struct ckpt_tensor *t, uint64_t block);
/* Local. Returns the number of bytes of a block, at most CKPT_BLOCK_BYTES_MAX. */
size_t ckpt_block_bytes(const struct ckpt_tensor *t, uint64_t block);

/* Local. Reads block `block` of t into buf [ckpt_block_rows][n_cols] in the stored dtype and
 * verifies its checksum. Errors: STATUS_INPUT names file, tensor and the damaged block, or the byte
 * that could not be read; STATUS_MEMORY. Threads may read different blocks at once. */
struct status ckpt_read_block(const struct ckpt *c, const struct ckpt_tensor *t, uint64_t block,
                              void *buf);
/* Local. Returns how many of the rows [row, end) to read at once: as many as fit 256 KiB of a
 * core's cache, at least 1; or 16, the rows of a panel, if fewer fit the cache and 16 fit
 * CKPT_READ_BYTES_MAX. A number of 16 or more is reduced so that the rows end at the end of a
 * panel, or at `end`. */
uint64_t ckpt_rows_at_once(const struct ckpt_tensor *t, uint64_t row, uint64_t end);

/* Local. Tells the system that n blocks from `block` on will be read soon, so that it may read them
 * ahead. */
void ckpt_advise_blocks(const struct ckpt *c, const struct ckpt_tensor *t, uint64_t block,
                        uint64_t n);

/* Local. Estimates whether the system's file cache holds most of the file, by sampling bytes. */
bool ckpt_is_cached(const struct ckpt *c);

/* Local. For tests: reads a small tensor as a whole into dst [n_rows][n_cols] in the stored dtype;
 * it must be plain, or a part of a quantized tensor. Errors: as ckpt_read_block. */
struct status ckpt_read_tensor(struct ckpt *c, const struct ckpt_tensor *t, void *dst);

#endif

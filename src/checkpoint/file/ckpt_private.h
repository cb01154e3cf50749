/* The state of an open checkpoint, shared by ckpt.c (opening, accessors), ckpt_list.c (a list of
 * tensors without a file), ckpt_blocks.c and ckpt_reader.c (reading), ckpt_walk.c and ckpt_quant.c
 * (checking the structure). The writer uses its limits, ckpt_tensor_path and ckpt_slab_of_rows. */
#ifndef SHOAL_CHECKPOINT_FILE_CKPT_PRIVATE_H
#define SHOAL_CHECKPOINT_FILE_CKPT_PRIVATE_H

#include "checkpoint/file/ckpt.h"
#include "checkpoint/file/h5.h"
#include "checkpoint/file/seal.h"

enum {
    CKPT_TENSORS_MAX = 1 << 20,
    CKPT_TEXT_BYTES_MAX = 256 << 20,
    CKPT_OBJECTS_MAX = 1 << 22, /* most links that are walked */
    CKPT_DEPTH_MAX = 64,        /* most nested groups */
    CKPT_PATH_MAX = CKPT_NAME_MAX + 32,
};

struct ckpt_entry {
    struct ckpt_tensor tensor;
    char *name;     /* owned */
    char *method;   /* owned; of quantized tensors only */
    uint64_t *sums; /* owned [n_blocks][2]: low, high; NULL: quantized, or without a file */
    bool is_part;   /* a dataset of a quantized tensor */
};

struct ckpt {
    char *path;   /* owned */
    char *source; /* owned */
    struct seal_info seal;
    hid_t file;
    struct {
        char *text; /* owned, NULL when absent */
        size_t n;
    } texts[CKPT_TEXT_COUNT];
    float *inv_freq; /* owned [n_inv_freq] */
    size_t n_inv_freq;
    float *local_inv_freq; /* owned [n_local_inv_freq] */
    size_t n_local_inv_freq;
    float *rope_factors;        /* owned [2]: attention, softmax; NULL: both are 1 */
    struct ckpt_entry *entries; /* owned [n_entries]; once opened: n_tensors tensors, then the parts
                                   of quantized ones, both sorted by name */
    size_t n_entries, n_entries_capacity, n_tensors;
    int fd; /* HDF5's own descriptor, to read weights without HDF5 */
};

/* Local. Writes "/weights/a/b" for "a.b" to out [CKPT_PATH_MAX]; root is "/weights" or
 * "/checksums". */
void ckpt_tensor_path(const char *root, const char *name, char *out);

/* A series of blocks that is read in pieces, with the checksum so far of the current block. */
struct ckpt_sum {
    const struct ckpt *c;
    const struct ckpt_tensor *t;
    uint64_t block;
    struct XXH3_state_s *state; /* owned */
};

/* Local. Allocates the state. Errors: STATUS_MEMORY. */
struct status ckpt_sum_create(struct ckpt_sum *s);
void ckpt_sum_destroy(struct ckpt_sum *s);
/* Local. Begins the checksum of a block. */
void ckpt_sum_begin(struct ckpt_sum *s, const struct ckpt *c, const struct ckpt_tensor *t,
                    uint64_t block);
/* Local. Adds rows [row, row + n_rows) of the tensor. They begin in the current block and may end
 * in a later one; each block that ends is checked. Errors: STATUS_INPUT names the damaged block. */
struct status ckpt_sum_rows(struct ckpt_sum *s, uint64_t row, uint64_t n_rows, const char *rows);

/* Local. Reads n bytes of the file through the system's cache. Errors: STATUS_INPUT names file,
 * tensor and byte. */
struct status ckpt_read_bytes(const struct ckpt *c, const struct ckpt_tensor *t, uint64_t offset,
                              size_t n, char *out);

/* Local. Returns how many of n_rows rows from `row` on fit n_bytes, at least 1. If 16 or more fit,
 * the returned rows end at the end of a panel (16 rows) or with the last of the n_rows. */
uint64_t ckpt_rows_within(const struct ckpt_tensor *t, uint64_t row, uint64_t n_rows,
                          size_t n_bytes);

/* Local. Finds the largest hyperslab that starts at flattened row `row` and has at most n_rows
 * rows; sets start and count per dimension; returns its number of rows. Rows of [E, out, in] are a
 * slab only inside one expert or as whole experts. */
uint64_t ckpt_slab_of_rows(const struct ckpt_tensor *t, uint64_t row, uint64_t n_rows,
                           hsize_t *start, hsize_t *count);

/* Errors of all functions below: STATUS_INPUT names the file, the object and what was expected;
 * STATUS_MEMORY. */

/* Local. Reads an integer attribute of at most `max` into *out, which is unchanged if the object
 * has no such attribute. */
struct status ckpt_int_attribute(const struct ckpt *c, const char *path, hid_t object,
                                 const char *name, uint64_t max, uint64_t *out);
/* Local. Reads a string attribute of 1 to max bytes into new memory, *out (mem_free). */
struct status ckpt_string_attribute(const struct ckpt *c, const char *path, hid_t object,
                                    const char *name, size_t max, char **out);
/* Local. Reads the attributes leaf and grid_bits of a dataset or group into t. */
struct status ckpt_leaf_read(const struct ckpt *c, const char *path, hid_t object,
                             struct ckpt_tensor *t);
/* Local. Appends a tensor, whose name follows from its path below /weights. */
struct status ckpt_entry_add(struct ckpt *c, const char *path, const struct ckpt_tensor *t);

/* Local. If a group below /weights is a quantized tensor, adds it and reads its attributes. */
struct status ckpt_quant_read(struct ckpt *c, const char *path);
/* Local. Sorts the entries and links quantized tensors to their parts; call it once all entries are
 * added. Refuses parts whose type or shape does not fit. */
struct status ckpt_quant_link(struct ckpt *c);

/* Local. Walks all links, checks every object, and gathers tensors, texts and checksums in c. */
struct status ckpt_walk(struct ckpt *c);

#endif

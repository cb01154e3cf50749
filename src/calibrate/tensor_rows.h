/* Reads rows of a checkpoint's tensor, as floats or as stored, across the file's blocks. Memory
 * holds one verified block of each dataset at a time, so read the rows in ascending order. */
#ifndef SHOAL_CALIBRATE_TENSOR_ROWS_H
#define SHOAL_CALIBRATE_TENSOR_ROWS_H

#include "base/team.h"
#include "checkpoint/file/ckpt.h"

/* A dataset and its block in memory. */
struct tensor_block {
    const struct ckpt_tensor *stored;
    char *bytes;    /* owned, mapped: [ckpt_block_bytes of the first block] */
    uint64_t block; /* its number, if has_block */
    bool has_block;
};

struct tensor_rows {
    struct ckpt *c;                              /* borrowed, as are the next two */
    const struct ckpt_tensor *t;                 /* plain or quantized */
    struct team *team;                           /* dequantizes; may be NULL */
    struct tensor_block blocks[CKPT_PART_COUNT]; /* a plain tensor uses the first */
    struct quant_block scratch;                  /* owned; rows to be dequantized */
    uint64_t n_scratch;
};

/* Local. tensor_rows_fini also accepts the result of a failed init. Errors: STATUS_MEMORY. */
struct status tensor_rows_init(struct tensor_rows *r, struct ckpt *c, const struct ckpt_tensor *t,
                               struct team *team);
void tensor_rows_fini(struct tensor_rows *r);

/* Local. Reads rows [row0, row0 + n_rows) as f32, dequantized if need be, into out [n_rows,
 * n_cols]. Errors: STATUS_INPUT, STATUS_MEMORY. */
struct status tensor_rows_f32(struct tensor_rows *r, uint64_t row0, uint64_t n_rows, float *out);

/* Local. Reads rows [row0, row0 + n_rows) of one dataset as stored: of a part of a quantized
 * tensor, or (part 0) of the plain tensor itself. Errors: STATUS_INPUT, STATUS_MEMORY. */
struct status tensor_rows_stored(struct tensor_rows *r, enum ckpt_part part, uint64_t row0,
                                 uint64_t n_rows, void *out);

#endif

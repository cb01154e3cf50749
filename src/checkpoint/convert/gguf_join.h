/* A Hugging Face tensor that a GGUF file stores as two tensors, its halves. A part is a range of
 * rows of one half. The tensor is made in n_turns turns: in each turn, every part gives its next
 * rows. Called by source.c; gguf_delta.c and gguf_experts.c find the halves.
 *
 *     Hugging Face   | part 0 | part 1 | .. | part 0 | part 1 | .. |     n_turns times
 *     halves         a part's rows lie one after another, from its `first` on */
#ifndef SHOAL_CHECKPOINT_CONVERT_GGUF_JOIN_H
#define SHOAL_CHECKPOINT_CONVERT_GGUF_JOIN_H

#include "checkpoint/convert/gguf_model.h"
#include "checkpoint/file/ckpt.h"

enum { GGUF_JOIN_PARTS_MAX = 4 };

struct gguf_join_part {
    uint64_t first, n_rows; /* the first row in its half; the rows of one turn */
    uint32_t half;          /* 0 or 1 */
};

struct gguf_join {
    const struct gguf_tensor *halves[2]; /* borrowed; equal numbers of columns */
    struct gguf_join_part parts[GGUF_JOIN_PARTS_MAX];
    size_t n_parts;
    uint64_t n_turns;
    char name[CKPT_NAME_MAX]; /* Hugging Face's */
    uint32_t n_dims;
    uint64_t dims[CKPT_DIMS_MAX];
};

/* Local. Returns the bytes of scratch for reading n_rows rows. */
size_t gguf_join_scratch_bytes(const struct gguf_join *j, uint64_t n_rows);

/* Local. Sets *out to the format of both halves. False when their formats differ, or
 * gguf_quant_format has none for them. */
bool gguf_join_format(const struct gguf_join *j, struct quant_format *out);

/* Local. Read rows [row0, row0 + n_rows): as floats, out [n_rows][n_cols]; or, if gguf_join_format
 * gives a format, as quantized values; *fits is false if gguf_codes refuses some of these. Errors:
 * STATUS_INPUT when the file cannot be read. */
struct status gguf_join_rows(const struct gguf *g, const struct gguf_join *j, uint64_t row0,
                             uint64_t n_rows, void *scratch, float *out);
struct status gguf_join_codes(const struct gguf *g, const struct gguf_join *j, uint64_t row0,
                              uint64_t n_rows, void *scratch, const struct quant_block *out,
                              bool *fits);

#endif

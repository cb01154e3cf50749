/* Writes the HDF5 file of --save-logprobs: tokens and their k most likely candidates, for training
 * another model on them. Row after row in one pass, once their number is known; the same rows give
 * the same bytes. Called by serve/output/logprobs_part.c. docs/distill.md describes the file.
 *
 *   tokens          i32 [T]     T: the tokens of all rows, prompt and answer
 *   is_generated    u8  [T]     1: of the answer
 *   token_logprobs  f32 [T]     of the token itself, given those before it; NaN: first of its row
 *   top_ids         i32 [T, k]  most likely first, equal ones by ascending id; -1: none
 *   top_logprobs    f16 or u8 [T, k]
 *   row_offsets     i64 [N + 1] row i has the tokens [row_offsets[i], row_offsets[i + 1])
 *   custom_id       string [N];  choice  i32 [N]: which of a line's answers
 *
 * Datasets are contiguous: compressed bytes would depend on the version of zlib. No time stamps. */
#ifndef SHOAL_CHECKPOINT_FILE_LOGPROBS_FILE_H
#define SHOAL_CHECKPOINT_FILE_LOGPROBS_FILE_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

enum logprobs_type {
    LOGPROBS_F16, /* IEEE binary16, to nearest even; -infinity: none */
    LOGPROBS_U8   /* c stands for c * LOGPROBS_U8_SCALE; LOGPROBS_U8_NONE: none */
};

#define LOGPROBS_TYPE_WORDS                                                                        \
    {"f16", LOGPROBS_F16},                                                                         \
    {                                                                                              \
        "u8", LOGPROBS_U8                                                                          \
    }

enum { LOGPROBS_VERSION = 1, LOGPROBS_K_MAX = 256, LOGPROBS_U8_NONE = 255 };
#define LOGPROBS_U8_SCALE (-0.0625)

/* Local. Returns the bytes of one stored log-probability. */
size_t logprobs_bytes(enum logprobs_type type);

/* Local. out [n] = the stored form of x [n], which are at most 0; -INFINITY means none. Finite
 * values below the type's range become its lowest one. out is aligned for the type. */
void logprobs_encode(enum logprobs_type type, const float *x, size_t n, void *out);

/* The sizes and attributes of a new file. The texts are borrowed until logprobs_file_close. */
struct logprobs_shape {
    const char *model, *checkpoint; /* its name, and a digest of its bytes */
    uint32_t k, vocab;
    enum logprobs_type type;
    uint64_t n_rows, n_tokens;
};

/* Everything is borrowed for the call. */
struct logprobs_row {
    const char *custom_id; /* NUL-terminated UTF-8 */
    int32_t choice;
    size_t n, n_prompt;          /* tokens, and how many of them are the prompt's */
    const int32_t *tokens;       /* [n] */
    const float *token_logprobs; /* [n] */
    const int32_t *top_ids;      /* [n, k] */
    const void *top_logprobs;    /* [n, k] as logprobs_encode wrote them */
};

struct logprobs_file;

/* Local. Creates (truncates) the file. Errors of all functions: STATUS_IO, STATUS_MEMORY. */
struct status logprobs_file_create(const char *path, const struct logprobs_shape *shape,
                                   struct logprobs_file **out);

/* Local. Writes the next row. In total there must be shape->n_rows rows with n_tokens tokens
 * (assert). */
struct status logprobs_file_add(struct logprobs_file *f, const struct logprobs_row *row);

/* Local. Completes and closes the file, does not sync it; after an error only closes it. Accepts
 * NULL. */
struct status logprobs_file_close(struct logprobs_file **f);

#endif

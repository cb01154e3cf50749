/* Writes the HDF5 file of --save-logprobs: tokens and their k most likely candidates, and with
 * --save-hidden hidden rows of some layers, for training another model on them. The numbers of rows
 * and tokens must be known before the first row is written. The same rows give the same bytes.
 * Called by serve/output/logprobs_part.c. docs/distill.md describes the file.
 *
 *   tokens          i32 [T]     T: the tokens of all rows, prompt and answer
 *   is_generated    u8  [T]     1: of the answer
 *   token_logprobs  f32 [T]     of the token itself, given those before it; NaN: first of its row
 *   top_ids         i32 [T, k]  most likely first, equal ones by ascending id; -1: none
 *   top_logprobs    f16 or u8 [T, k]
 *   row_offsets     i64 [N + 1] row i has the tokens [row_offsets[i], row_offsets[i + 1])
 *   custom_id       string [N];  choice  i32 [N]: which of a line's answers
 *
 * with --save-hidden also (H: the hidden rows of all N rows):
 *
 *   hidden          f16, bf16 or f32 [H, layers, D]
 *   hidden_offsets  i64 [N + 1] row i has the hidden rows [hidden_offsets[i],
 *                               hidden_offsets[i + 1])
 *   hidden_first    i32 [N]     which token of row i its first hidden row belongs to
 *
 * Datasets are contiguous: compressed bytes would depend on the version of zlib. No time stamps. */
#ifndef SHOAL_CHECKPOINT_FILE_LOGPROBS_FILE_H
#define SHOAL_CHECKPOINT_FILE_LOGPROBS_FILE_H

#include "arch/hidden_layers.h"
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

/* Local. out [n] = the stored form of x [n], each at most 0; -INFINITY means none. Finite
 * values below the type's range become its lowest one. out is aligned for the type. */
void logprobs_encode(enum logprobs_type type, const float *x, size_t n, void *out);

/* The hidden rows that are saved; none if layers.n is 0. */
struct logprobs_hidden {
    struct hidden_layers layers;
    uint32_t n_layers, width; /* of the model */
    uint64_t n_rows;          /* H; must be set when logprobs_file_create is called */
};

/* The sizes and attributes of a new file. The texts are borrowed until logprobs_file_close. */
struct logprobs_shape {
    const char *model, *checkpoint; /* the model's name, and its checkpoint's digest */
    uint32_t k, vocab;
    enum logprobs_type type;
    uint64_t n_rows, n_tokens;
    struct logprobs_hidden hidden;
};

/* Local. Returns the bytes of the hidden rows of one token; 0: none are saved. */
static inline size_t logprobs_hidden_bytes(const struct logprobs_shape *shape)
{
    return hidden_layers_bytes(&shape->hidden.layers, shape->hidden.width);
}

/* A row of the file: a prompt and one answer. Everything is borrowed for the call. */
struct logprobs_row {
    const char *custom_id; /* NUL-terminated UTF-8 */
    int32_t choice;
    size_t n, n_prompt;          /* tokens, and how many of them are the prompt's */
    const int32_t *tokens;       /* [n] */
    const float *token_logprobs; /* [n] */
    const int32_t *top_ids;      /* [n, k] */
    const void *top_logprobs;    /* [n, k] as logprobs_encode wrote them */
    int32_t hidden_first;        /* index of the token to which the first hidden row belongs */
};

struct logprobs_file;

/* Local. Creates (truncates) the file. Errors of all functions: STATUS_IO, STATUS_MEMORY. */
struct status logprobs_file_create(const char *path, const struct logprobs_shape *shape,
                                   struct logprobs_file **out);

/* Local. Writes the next n hidden rows, [n, layers, D] of shape->hidden.layers.type, of the row
 * that logprobs_file_add adds next. In total there must be shape->hidden.n_rows (assert: no more).
 */
struct status logprobs_file_add_hidden(struct logprobs_file *f, const void *rows, size_t n);

/* Local. Writes the next row. In total there must be shape->n_rows rows with shape->n_tokens tokens
 * (assert: no more). */
struct status logprobs_file_add(struct logprobs_file *f, const struct logprobs_row *row);

/* Local. Writes the rows that are still in memory, closes the file without a sync and frees *f.
 * Accepts NULL. */
struct status logprobs_file_close(struct logprobs_file **f);

#endif

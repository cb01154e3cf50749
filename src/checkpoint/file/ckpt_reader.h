/* Reads many blocks of a checkpoint one after another and verifies them. If the reads bypass the
 * system's file cache, several are in flight while the caller works on rows that were read before.
 * Called by the loader. */
#ifndef SHOAL_CHECKPOINT_FILE_CKPT_READER_H
#define SHOAL_CHECKPOINT_FILE_CKPT_READER_H

#include "checkpoint/file/ckpt.h"

/* Consecutive blocks of a stored tensor. */
struct ckpt_series {
    const struct ckpt_tensor *tensor; /* borrowed, of the open checkpoint */
    uint64_t block, n_blocks;
    uint64_t tag; /* free for the caller */
};

/* Sets *out to the next series to read; false: there is none. The reader asks for later series
 * while it gives the rows of earlier ones. */
typedef bool ckpt_series_fn(void *ctx, struct ckpt_series *out);

/* Takes rows [row, row + n_rows), counted in the whole tensor: [n_rows][n_cols] in the stored
 * dtype. */
typedef struct status ckpt_rows_fn(void *ctx, uint64_t row, uint64_t n_rows, const void *rows);

/* A reader's arguments; all borrowed. */
struct ckpt_reader_job {
    const struct ckpt *c;
    size_t longest_row;   /* bytes of the longest row of all series */
    uint32_t n_direct;    /* reads in flight that bypass the system's file cache; 0: through the
                             cache, one after another */
    ckpt_series_fn *next; /* called by the thread that calls the reader */
    void *ctx;
};

struct ckpt_reader; /* used by one thread at a time */

/* Local. If the system has no reads that bypass its cache, the reader reads through it. Memory:
 * CKPT_DIRECT_BYTES (or the longest row) for each of n_direct; through the cache
 * CKPT_READ_BYTES_MAX (or the longest row). Errors: STATUS_MEMORY. */
struct status ckpt_reader_create(const struct ckpt_reader_job *job, struct ckpt_reader **out);
/* Local. Waits for the reads in flight; accepts NULL. */
void ckpt_reader_destroy(struct ckpt_reader **r);

/* Local. True when the reader bypasses the system's file cache. */
bool ckpt_reader_is_direct(const struct ckpt_reader *r);

/* Local. Sets *out to the series whose rows come next; false: all are read. */
bool ckpt_reader_next(struct ckpt_reader *r, struct ckpt_series *out);
/* Local. Gives fn all rows of the series that ckpt_reader_next returned, in pieces of
 * ckpt_rows_at_once rows, which may span blocks. A block's checksum is verified only with its last
 * piece, so after an error discard all rows of the series, and call only ckpt_reader_destroy.
 * Errors: as ckpt_read_block, for the first bad block; and fn's. */
struct status ckpt_reader_rows(struct ckpt_reader *r, ckpt_rows_fn *fn, void *ctx);

#endif

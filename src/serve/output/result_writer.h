/* Writes result lines in input order and bounded memory: lines that are done wait in a window for
 * slower earlier ones, and reading stops while the window is full. The file grows while the job
 * runs. Knows nothing of what the lines say. Called by the lead. */
#ifndef SHOAL_SERVE_OUTPUT_RESULT_WRITER_H
#define SHOAL_SERVE_OUTPUT_RESULT_WRITER_H

#include "base/failpoint.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct result_writer;

/* A line that is done. */
struct result_row {
    const char *text; /* borrowed for the call, its newline included */
    size_t n;
    bool is_error;
    double sum_logprob; /* summed up in input order (perplexity) */
    uint64_t n_scored;
};

struct result_totals {
    uint64_t n_rows, n_error_rows; /* written */
    double sum_logprob;
    uint64_t n_scored;
};

/* Local. Creates or truncates `path`; "-" is stdout. window_rows >= 1: rows that may be open at
 * once; window_bytes: memory above which no further row is opened. Locks the file before it changes
 * it. Errors: STATUS_USAGE (another process has it locked), STATUS_IO, STATUS_MEMORY. */
struct status result_writer_create(const char *path, size_t window_rows, size_t window_bytes,
                                   struct result_writer **out);

/* Local. A writer for a job with a journal: the file is kept, and rows that are flushed before
 * result_writer_settle are compared with what stands in it; from the first difference on the file
 * is written anew. Rows behind it reach the file only in result_writer_flush, so that the caller
 * can make them durable elsewhere first. failpoint: borrowed, NULL: none. Errors: as
 * result_writer_create. */
struct status result_writer_resume(const char *path, size_t window_rows, size_t window_bytes,
                                   struct failpoint *failpoint, struct result_writer **out);

/* Local. Flushes; what stands behind the rows so far is cut off. *n_bytes: the file's size then;
 * *was_equal: rows and file were equal, and nothing stood behind them. Errors: STATUS_IO. */
struct status result_writer_settle(struct result_writer *w, uint64_t *n_bytes, bool *was_equal);

/* Local. Closes without flushing; NULL is accepted. */
void result_writer_destroy(struct result_writer **w);

/* Local. True when a row may be opened: always, when none is open. */
bool result_writer_has_room(const struct result_writer *w);

/* Local. Opens the next row in order; cost_bytes counts against the window until the row is put,
 * then its own length does. *index counts up from 0. There must be room for a row (assert). */
void result_writer_open(struct result_writer *w, size_t cost_bytes, uint64_t *index);

/* Local. The line of an open row. It and what waited for it go to the output's buffer.
 * Errors: STATUS_IO (file, bytes, reason), STATUS_MEMORY; as result_writer_flush. */
struct status result_writer_put(struct result_writer *w, uint64_t index,
                                const struct result_row *row);

/* Local. Writes the buffer out. Errors: STATUS_IO; STATUS_DRAINED when it is a pipe that nobody
 * reads any more, as behind `| head`: nobody wants the rest. */
struct status result_writer_flush(struct result_writer *w);

/* Local. Flushes, fsyncs (once; a failed fsync is not retried) and closes. Errors: as flush. */
struct status result_writer_close(struct result_writer *w);

/* Local. Bytes in the file. */
uint64_t result_writer_offset(const struct result_writer *w);

/* Local. Rows that are open; those of them that are done and wait for an earlier row; the sums over
 * all written rows. */
size_t result_writer_n_open(const struct result_writer *w);
size_t result_writer_n_waiting(const struct result_writer *w);
struct result_totals result_writer_totals(const struct result_writer *w);

#endif

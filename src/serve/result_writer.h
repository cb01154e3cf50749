/* Writes result lines in input order and bounded memory: lines that are done wait in a window for
 * slower earlier ones, and reading stops while the window is full. The file grows while the job
 * runs. Knows nothing of what the lines say. Called by the lead. */
#ifndef SHOAL_SERVE_RESULT_WRITER_H
#define SHOAL_SERVE_RESULT_WRITER_H

#include "base/status.h"

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
 * once; window_bytes: memory above which no further row is opened. Errors: STATUS_IO,
 * STATUS_MEMORY. */
struct status result_writer_create(const char *path, size_t window_rows, size_t window_bytes,
                                   struct result_writer **out);

/* Local. Closes without flushing; NULL is accepted. */
void result_writer_destroy(struct result_writer **w);

/* Local. True when a row may be opened: always, when none is open. */
bool result_writer_has_room(const struct result_writer *w);

/* Local. Opens the next row in order; cost_bytes counts against the window until the row is put,
 * then its own length does. *index counts up from 0. There must be room for a row (assert). */
void result_writer_open(struct result_writer *w, size_t cost_bytes, uint64_t *index);

/* Local. The line of an open row. It and what waited for it go to the output's buffer.
 * Errors: STATUS_IO (file, bytes, reason), STATUS_MEMORY. */
struct status result_writer_put(struct result_writer *w, uint64_t index,
                                const struct result_row *row);

/* Local. Writes the buffer out. */
struct status result_writer_flush(struct result_writer *w);

/* Local. Flushes, fsyncs (once; a failed fsync is not retried) and closes. */
struct status result_writer_close(struct result_writer *w);

/* Local. Rows opened and not yet written, and what was written. */
size_t result_writer_n_open(const struct result_writer *w);
struct result_totals result_writer_totals(const struct result_writer *w);

#endif

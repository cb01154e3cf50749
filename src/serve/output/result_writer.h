/* Writes result lines in input order and in bounded memory. Finished rows wait in a window for
 * slower earlier rows; no row is opened while the window is full. The file grows while the job
 * runs, by rows or, if its name asks for compression, by frames of rows (row_frames.h). Does not
 * look into the lines. Called by the lead and the server.
 *
 *   input order   0 1 2 3 4 5 6 7 8 9 ...
 *                 w w w . d d . .            w: written  d: done, waits  .: open, runs
 *                       |------------| window_rows, window_bytes */
#ifndef SHOAL_SERVE_OUTPUT_RESULT_WRITER_H
#define SHOAL_SERVE_OUTPUT_RESULT_WRITER_H

#include "base/failpoint.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct result_writer;

/* A finished result line. */
struct result_row {
    const char *text; /* borrowed for the call, with its newline */
    size_t n;
    bool is_error;
    double sum_logprob; /* summed in input order, for the perplexity */
    uint64_t n_scored;
};

struct result_totals {
    uint64_t n_rows, n_error_rows; /* written */
    double sum_logprob;
    uint64_t n_scored;
};

/* Everything is borrowed; path and failpoint outlive the writer. */
struct result_writer_options {
    const char *path;            /* "-" is stdout; the ending of the name chooses the compression */
    size_t window_rows;          /* rows that may be open at once, at least 1 */
    size_t window_bytes;         /* above this memory no further row is opened */
    size_t frame_bytes;          /* rows in a compressed frame, in bytes; 0: ROW_FRAMES_BYTES */
    struct failpoint *failpoint; /* NULL: none */
};

/* Local. Creates the file, or locks and then empties an existing one. Errors: STATUS_USAGE (another
 * process has it locked), STATUS_IO, STATUS_MEMORY. */
struct status result_writer_create(const struct result_writer_options *options,
                                   struct result_writer **out);

/* Local. Makes a writer for a job with a journal; does not empty the file. Until
 * result_writer_settle, the writer compares flushed rows with the file's bytes, and rewrites the
 * file from the first difference on (a compressed file: from the frame with the difference on).
 * After that, rows reach the file only in result_writer_flush, _show and _close, so that the caller
 * can first make them durable in the journal. Errors: as result_writer_create. */
struct status result_writer_resume(const struct result_writer_options *options,
                                   struct result_writer **out);

/* Local. Ends the comparison: flushes, and truncates the file after the rows so far. *n_bytes: the
 * file's size. *was_equal: the file already held exactly these rows. Errors: STATUS_IO,
 * STATUS_MEMORY. */
struct status result_writer_settle(struct result_writer *w, uint64_t *n_bytes, bool *was_equal);

/* Local. Closes without flushing; NULL is accepted. */
void result_writer_destroy(struct result_writer **w);

/* Local. True when the window has room for another row; always true when no row is open. */
bool result_writer_has_room(const struct result_writer *w);

/* Local. Opens the next row. cost_bytes, an estimate, counts against the window until the row is
 * put; then its length counts. *index counts up from 0. There must be room for a row (assert). */
void result_writer_open(struct result_writer *w, size_t cost_bytes, uint64_t *index);

/* Local. Sets the text of an open row; call it once per row. Moves the row to the buffer when all
 * earlier rows are there, and with it the rows that waited for it. Errors: STATUS_MEMORY, and those
 * of result_writer_flush. */
struct status result_writer_put(struct result_writer *w, uint64_t index,
                                const struct result_row *row);

/* Local. Writes the buffer to the file. Rows that do not fill a compressed frame go to a regular
 * file at most every ten seconds, in a short frame, which the next frame replaces. Errors:
 * STATUS_IO (names file, byte and reason), STATUS_MEMORY; STATUS_DRAINED when the output is a pipe
 * whose reader has gone, as with `| head`. */
struct status result_writer_flush(struct result_writer *w);

/* Local. As result_writer_flush, but writes the short frame at once. Errors: as flush. */
struct status result_writer_show(struct result_writer *w);

/* Local. Flushes, writes the last frame, calls fsync once (a failed fsync is not tried again) and
 * closes the file. Errors: as flush. */
struct status result_writer_close(struct result_writer *w);

/* Local. Returns the number of bytes written to the file, without a short frame; after
 * result_writer_close, all of them. */
uint64_t result_writer_offset(const struct result_writer *w);

/* Local. Return the number of open rows; the number of open rows that are done and wait for an
 * earlier row; and the sums over all written rows. */
size_t result_writer_n_open(const struct result_writer *w);
size_t result_writer_n_waiting(const struct result_writer *w);
struct result_totals result_writer_totals(const struct result_writer *w);

#endif

/* Collects what --save-logprobs FILE.h5 saves, in FILE.h5.part, until the job's last row is
 * written; then makes the HDF5 file from it, in the order of the lines. Knows rows only as finished
 * requests. Called by the lead.
 *
 *   part    records, in the order in which lines finish; if hidden rows are saved, also `rows`
 *           between them
 *   record  struct part_head
 *           u64 number of hidden rows, if these are saved
 *           answers of the line, each:
 *             u32 bytes of the id, n, prompt tokens, choice
 *             id, padded to 4 bytes
 *             i32 tokens [n]
 *             f32 log-probabilities [n]
 *             i32 top ids [n, k]
 *             their log-probabilities, encoded [n, k], padded to 4 bytes
 *             if hidden rows are saved: u32 places, struct stored_rows [places]
 *   rows    struct rows_head
 *           the hidden rows of a step, as its result has them
 *
 * Why rows are written step by step: those of a token may take a hundred KiB, so the rows of
 * unfinished lines would not fit the lead's memory. Rows of lines that never finished stay unused.
 *
 * Why a file of its own: an HDF5 file that is being written does not survive a kill, and a journal
 * should stay as small as the output, because every start reads all of it.
 *
 * Why nothing is lost: a line's record is written before its row goes to the journal, and
 * logprobs_part_sync comes before each commit, so each committed row without an error has its
 * record. A line that runs again writes another record; of several records of a line the last
 * counts. Those of an unchanged line differ only in the places of its hidden rows. */
#ifndef SHOAL_SERVE_OUTPUT_LOGPROBS_PART_H
#define SHOAL_SERVE_OUTPUT_LOGPROBS_PART_H

#include "base/failpoint.h"
#include "checkpoint/file/logprobs_file.h"
#include "serve/request/request.h"

/* Everything is borrowed and outlives the part. */
struct logprobs_options {
    const char *path;            /* FILE.h5 */
    struct logprobs_shape shape; /* n_rows, n_tokens and hidden.n_rows are not used */
    enum hidden_span span; /* tokens whose hidden rows are saved, if shape.hidden has layers */
    struct failpoint *failpoint; /* NULL: none */
};

struct logprobs_part;

/* All functions are Local. Errors: STATUS_IO, STATUS_MEMORY, and those that are named. */

/* Opens or makes FILE.h5.part. resumes: keeps the whole records of earlier runs; false: empties the
 * file. Errors: also STATUS_USAGE if FILE.h5 is a device, a pipe or a folder. */
struct status logprobs_part_open(const struct logprobs_options *options, bool resumes,
                                 struct logprobs_part **out);

/* Closes the part; its file stays. Accepts NULL. */
void logprobs_part_destroy(struct logprobs_part **p);

/* Appends the record of a finished request without an error. At each token with a log-probability
 * the request has at least n_saved_tops (struct request_rules) likely tokens, or the whole
 * vocabulary if that is smaller. */
struct status logprobs_part_put(struct logprobs_part *p, const struct request *r);

/* Appends the hidden rows of a step; *at is the place of the first in the file. Must come before
 * the records of the lines that they belong to, so that logprobs_part_sync makes both durable. */
struct status logprobs_part_put_rows(struct logprobs_part *p, const char *rows, size_t n_bytes,
                                     uint64_t *at);

/* Checks that the part has the record of this line, which an earlier run finished, with this
 * digest; logprobs_part_finish then uses it. Errors: also STATUS_INPUT if the record is missing. */
struct status logprobs_part_check(struct logprobs_part *p, uint64_t line, const uint64_t digest[2]);

/* Any thread. Makes all records so far durable. A failed sync is not retried: all later calls fail
 * too. */
struct status logprobs_part_sync(struct logprobs_part *p);

/* Writes FILE.h5 from the records that were put or checked and makes it durable; it appears under
 * its name only when it is whole. Errors: also STATUS_INPUT for a damaged record, and STATUS_USAGE
 * as logprobs_part_open. */
struct status logprobs_part_finish(struct logprobs_part *p);

/* logprobs_part_exists is true when FILE.h5 (path) has a part; logprobs_part_remove removes it. */
bool logprobs_part_exists(const char *path);
void logprobs_part_remove(const char *path);

#endif

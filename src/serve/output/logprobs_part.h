/* Collects what --save-logprobs FILE.h5 saves, in FILE.h5.part, until the job's last row is
 * written; then makes the HDF5 file from it, in the order of the lines. Knows rows only as finished
 * requests. Called by the lead.
 *
 *   part    records, in the order in which lines finish:
 *   record  struct part_head | answers of the line, each: u32 bytes of the id, n, prompt tokens,
 *           choice | id, padded to 4 bytes | i32 tokens [n] | f32 log-probabilities [n] |
 *           i32 top ids [n, k] | codes [n, k], padded to 4 bytes
 *
 * A file of its own because neither of the other two places would do: HDF5 has no state in which it
 * survives a kill at any moment, and a journal, which is read as a whole at every start, should
 * stay as small as the output. The order of the steps loses nothing: a line's record is written
 * before its row goes to the journal, and logprobs_part_sync comes before each commit. So each
 * committed row has its record, and what the part has beside these is replaced: of several records
 * of a line the last counts. A row's record depends on its line and the settings alone, as its row
 * does. */
#ifndef SHOAL_SERVE_OUTPUT_LOGPROBS_PART_H
#define SHOAL_SERVE_OUTPUT_LOGPROBS_PART_H

#include "base/failpoint.h"
#include "checkpoint/file/logprobs_file.h"
#include "serve/request/request.h"

/* Everything is borrowed and outlives the part. */
struct logprobs_options {
    const char *path;            /* FILE.h5 */
    struct logprobs_shape shape; /* n_rows and n_tokens are not used */
    struct failpoint *failpoint; /* NULL: none */
};

struct logprobs_part;

/* All functions are Local. Errors: STATUS_IO, STATUS_MEMORY, and those that are named. */

/* Opens or makes FILE.h5.part. resumes: keeps the whole records of earlier runs; otherwise empties
 * the file. Errors: also STATUS_USAGE if FILE.h5 is a device, a pipe or a folder. */
struct status logprobs_part_open(const struct logprobs_options *options, bool resumes,
                                 struct logprobs_part **out);

/* Closes the part; its file stays. Accepts NULL. */
void logprobs_part_destroy(struct logprobs_part **p);

/* Appends the record of a finished request without error, which has rules->n_saved_tops likely
 * tokens (or the whole vocabulary) at each token. */
struct status logprobs_part_put(struct logprobs_part *p, const struct request *r);

/* Checks that the part has the record of a line with this digest, which an earlier run finished.
 * Errors: also STATUS_INPUT. */
struct status logprobs_part_check(struct logprobs_part *p, uint64_t line, const uint64_t digest[2]);

/* Any thread. Makes all records so far durable. A failed sync is not retried: all later calls fail
 * too. */
struct status logprobs_part_sync(struct logprobs_part *p);

/* Makes FILE.h5, durable and as a whole. Errors: also STATUS_INPUT for a damaged record. */
struct status logprobs_part_finish(struct logprobs_part *p);

/* Removes the part of FILE.h5, if there is one. */
void logprobs_part_remove(const char *path);

#endif

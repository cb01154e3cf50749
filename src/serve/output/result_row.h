/* Makes the result line of a finished request. The line does not depend on time, layout or batch.
 * Called by the lead, audit, merge, the server, and the files of this room that write its parts. */
#ifndef SHOAL_SERVE_OUTPUT_RESULT_ROW_H
#define SHOAL_SERVE_OUTPUT_RESULT_ROW_H

#include "serve/request/request.h"

/* Local. Appends r's result line, including its newline: an error row, a score row (rules->score),
 * a plain result row, or an OpenAI batch result line for a batch line. model_name: the "model" of
 * batch results; NULL: the request's own. Errors: STATUS_MEMORY. */
struct status result_row_write(const struct request *r, const struct request_rules *rules,
                               const char *model_name, struct strbuf *out);

/* Local. Append parts of a batch result to `out`, which also keeps errors; for a server's answers.
 * result_row_body: the body of r's batch result line (errors: STATUS_MEMORY). result_row_head: the
 * beginning of the body, from "id" to "model", without a comma at its end. result_row_usage: the
 * member "usage", which counts prompt tokens once for all answers. */
struct status result_row_body(const struct request *r, const struct request_rules *rules,
                              const char *model_name, struct strbuf *out);
void result_row_head(const struct request *r, const char *object, const char *model_name,
                     struct strbuf *out);
void result_row_usage(const struct request *r, struct strbuf *out);

/* Local. Returns the finish_reason of a finished answer: "stop" or "length". */
const char *result_row_finish(const struct request *r);

/* Local. Copies the decoded custom_id of a row that result_row_write wrote into new memory, which
 * the caller owns. Errors: STATUS_INPUT if the row does not begin with a custom_id, STATUS_MEMORY.
 */
struct status result_row_id(const char *text, size_t n, char **id, size_t *n_id);

/* Local. True when the row is an OpenAI batch result. */
bool result_row_is_batch(const char *text, size_t n);

/* Local. Appends the given row [n] with the custom_id `id` in place of its own, as result_row_write
 * would have written it. Errors: STATUS_INPUT if the row has no id at its start (result_row_id),
 * STATUS_MEMORY. */
struct status result_row_rename(const char *text, size_t n, const char *id, struct strbuf *out);

/* Local. Returns the sum of a scored request's log-probabilities, added in order of position;
 * *n_scored = their number. */
double result_row_sum(const struct request *r, uint64_t *n_scored);

/* Local. Returns answer i of a finished request, borrowed; NULL if r is an error row without it. */
const struct request *result_row_choice(const struct request *r, int32_t i);

/* Local. Returns the number of generated tokens of all answers together. */
size_t result_row_n_generated(const struct request *r);

#endif

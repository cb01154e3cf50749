/* The grammar constraint of a request (serve/request/guide.h): reading it from the line, the tokens
 * that may come next, and the state of the answer. Called by request parsing, request.c and the
 * scheduler.
 */
#ifndef SHOAL_SERVE_REQUEST_REQUEST_GUIDE_H
#define SHOAL_SERVE_REQUEST_REQUEST_GUIDE_H

#include "base/json.h"
#include "serve/request/request.h"

/* Local. Reads response_format, guided_regex, guided_choice, guided_json, guided_json_object and
 * structured_outputs of a line, after its other sampling fields. Errors: STATUS_REQUEST,
 * STATUS_MEMORY. */
struct status request_read_guide(struct request *r, const struct request_rules *rules,
                                 const struct js_node *fields);

/* Local. r has a guide. allowed [ceil(vocab_size / 32)] = a bit for each token that may come next,
 * after the draft tokens `ahead` (NULL: none); end tokens are among them where the text may end.
 * Errors: STATUS_MEMORY. */
struct status request_guide_allow(const struct request *r, const struct request_rules *rules,
                                  const struct request_ahead *ahead, uint32_t *allowed);

/* Local. Follows the token that was just appended, which is no end token. *is_done: the text is
 * complete and nothing may follow. Makes r an error row when the grammar does not allow the token,
 * or when the text is not complete and no token of the vocabulary may follow. Nothing without a
 * guide. Errors: STATUS_MEMORY. */
struct status request_guide_take(struct request *r, int32_t token, bool *is_done);

#endif

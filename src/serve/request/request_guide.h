/* A request whose answer has a form (serve/request/guide.h): reading it from the line, what its
 * next token may be, and where the answer stands. Called by request parsing, request.c and the
 * scheduler. */
#ifndef SHOAL_SERVE_REQUEST_REQUEST_GUIDE_H
#define SHOAL_SERVE_REQUEST_REQUEST_GUIDE_H

#include "base/json.h"
#include "serve/request/request.h"

/* Local. response_format, guided_regex, guided_choice, guided_json, structured_outputs of a line,
 * behind all else of its sampling. Errors: STATUS_REQUEST, STATUS_MEMORY. */
struct status request_read_guide(struct request *r, const struct request_rules *rules,
                                 const struct js_node *fields);

/* Local. For a request with a guide: allowed [ceil(vocab_size / 32)] = a bit for each token that
 * fits next (behind the draft tokens `ahead`; NULL: none), end tokens where its text may end.
 * Errors: STATUS_MEMORY. */
struct status request_guide_allow(const struct request *r, const struct request_rules *rules,
                                  const struct request_ahead *ahead, uint32_t *allowed);

/* Local. The token that was just appended, no end token; *is_done: nothing can follow. Makes r an
 * error row where it does not fit, or where no token can follow. Errors: STATUS_MEMORY. */
struct status request_guide_take(struct request *r, int32_t token, bool *is_done);

#endif

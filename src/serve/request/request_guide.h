/* Finds the tokens that may come next in a request with a guide (guide.h), and follows its answer
 * through the guide's states. Called by request_answer.c. */
#ifndef SHOAL_SERVE_REQUEST_REQUEST_GUIDE_H
#define SHOAL_SERVE_REQUEST_REQUEST_GUIDE_H

#include "serve/request/request.h"

/* Local. r must have a guide. Sets allowed [ceil(vocab_size / 32)] to a bit for each token, 1 if it
 * may come next, after the draft tokens `ahead` (NULL: none). End tokens may come where the text
 * may end. Errors: STATUS_MEMORY. */
struct status request_guide_allow(const struct request *r, const struct request_rules *rules,
                                  const struct request_ahead *ahead, uint32_t *allowed);

/* Local. Advances the guide by the token that was just appended, which is not an end token.
 * *is_done: the text is complete and nothing may follow. Makes r an error row when the grammar does
 * not allow the token, or when the text is not complete and no token of the vocabulary may follow.
 * Does nothing for a request without a guide. Errors: STATUS_MEMORY. */
struct status request_guide_take(struct request *r, int32_t token, bool *is_done);

#endif

/* Finds the tokens that a request may draw next: those that its guide (grammar constraint), its
 * allowed_token_ids, its bad_words and min_tokens leave. They depend only on the line and the
 * tokens so far. Called by request parsing, the scheduler and the result cache. request_answer.c
 * also has request_take_token (request.h). */
#ifndef SHOAL_SERVE_REQUEST_REQUEST_ANSWER_H
#define SHOAL_SERVE_REQUEST_REQUEST_ANSWER_H

#include "serve/request/request.h"

/* Local. True when r has a guide, allowed_token_ids or bad_words; otherwise r needs no mask. */
bool request_is_narrowed(const struct request *r);

/* Local. Needs request_is_narrowed(r). Sets allowed [ceil(vocab_size / 32)] to a bit for each
 * token, 1 if r may draw it next, after the draft tokens `ahead` (NULL: none). Errors:
 * STATUS_MEMORY. */
struct status request_allow(const struct request *r, const struct request_rules *rules,
                            const struct request_ahead *ahead, uint32_t *allowed);

/* Local. Needs request_is_narrowed(r). *none: r may draw no token at all. Errors: STATUS_MEMORY. */
struct status request_allows_none(struct request *r, const struct request_rules *rules, bool *none);

/* Local. Returns a hash of allowed_token_ids and bad_words; 0 when there are none. */
uint64_t request_words_hash(const struct request *r);

#endif

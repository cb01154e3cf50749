/* Which tokens a request may draw next: the form it asks for (request_guide.h), the tokens that its
 * line allows, and the words that it must not say. Follows from the line and the tokens alone.
 * Called by request parsing, request.c, the scheduler and the result cache. */
#ifndef SHOAL_SERVE_REQUEST_REQUEST_WORDS_H
#define SHOAL_SERVE_REQUEST_REQUEST_WORDS_H

#include "base/json.h"
#include "serve/request/request.h"

/* Local. allowed_token_ids and bad_words of a line, behind all else of its sampling. A word is
 * banned as its tokens, with and without a blank before it, as vLLM does: its last token cannot
 * come behind the others. Errors: STATUS_REQUEST, STATUS_MEMORY. */
struct status request_read_words(struct request *r, const struct request_rules *rules,
                                 const struct js_node *fields);

/* Local. False: r may draw any token, always. */
bool request_is_narrowed(const struct request *r);

/* Local. allowed [ceil(vocab_size / 32)] = a bit for each token that r, which is narrowed, may draw
 * next; behind the draft tokens `ahead`, where they are not NULL. Errors: STATUS_MEMORY. */
struct status request_allow(const struct request *r, const struct request_rules *rules,
                            const struct request_ahead *ahead, uint32_t *allowed);

/* Local. For a request that goes on: where no token is left, *is_done when its form is whole, else
 * r becomes an error row. Errors: STATUS_MEMORY. */
struct status request_words_check(struct request *r, const struct request_rules *rules,
                                  bool *is_done);

/* Local. The same for equal lists, and for others not; 0: there are none. */
uint64_t request_words_hash(const struct request *r);

/* Local. Bytes of the lists, shared by a line's answers. */
size_t request_words_bytes(const struct request *r);
void request_words_fini(struct request_words *words);

#endif

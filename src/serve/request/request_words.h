/* Which tokens a request may draw next: those that its grammar constraint (request_guide.h),
 * allowed_token_ids and bad_words leave. Follows from the line and the tokens alone. Called by
 * request parsing, request.c, the scheduler and the result cache. */
#ifndef SHOAL_SERVE_REQUEST_REQUEST_WORDS_H
#define SHOAL_SERVE_REQUEST_REQUEST_WORDS_H

#include "base/json.h"
#include "serve/request/request.h"

/* Local. Reads allowed_token_ids and bad_words of a line, after its other sampling fields. A word
 * is banned as in vLLM, as its tokens with and without a blank before it: its last token cannot
 * follow the others. Errors: STATUS_REQUEST, STATUS_MEMORY. */
struct status request_read_words(struct request *r, const struct request_rules *rules,
                                 const struct js_node *fields);

/* Local. Whether any token may be excluded for r. False: r may always draw any token. */
bool request_is_narrowed(const struct request *r);

/* Local. r is narrowed. allowed [ceil(vocab_size / 32)] = a bit for each token that r may draw
 * next, after the draft tokens `ahead` (NULL: none). Errors: STATUS_MEMORY. */
struct status request_allow(const struct request *r, const struct request_rules *rules,
                            const struct request_ahead *ahead, uint32_t *allowed);

/* Local. r goes on. If no token is left that it may draw, *is_done is set when its grammar lets the
 * text end; else r becomes an error row. Errors: STATUS_MEMORY. */
struct status request_words_check(struct request *r, const struct request_rules *rules,
                                  bool *is_done);

/* Local. A hash of both lists; 0 when there are none. */
uint64_t request_words_hash(const struct request *r);

/* Local. Memory of the lists in bytes; a line's answers share them. */
size_t request_words_bytes(const struct request *r);
void request_words_fini(struct request_words *words);

#endif

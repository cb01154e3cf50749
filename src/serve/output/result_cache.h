/* What finished requests came to, for others that must come to the same: equal prompts, sampling
 * values and keys (greedy ones need no key). Of two that are on their way at once the later one
 * waits. Exact, since tokens depend on nothing else; so it must be off where they depend on the
 * batch. Bounded memory, least recently used results go first. Called by the lead. */
#ifndef SHOAL_SERVE_OUTPUT_RESULT_CACHE_H
#define SHOAL_SERVE_OUTPUT_RESULT_CACHE_H

#include "serve/request/request.h"

struct result_cache;

/* Local. max_bytes bounds what is kept of finished requests; 0: 64 MiB. Errors: STATUS_MEMORY. */
struct status result_cache_create(size_t max_bytes, struct result_cache **out);

/* Local. Destroys the requests that wait, too. NULL is accepted. */
void result_cache_destroy(struct result_cache **c);

enum result_answer {
    RESULT_RUN,   /* r is to run; result_cache_end when it is finished */
    RESULT_DONE,  /* r has its tokens and is finished */
    RESULT_WAITS, /* an equal request runs: the cache owns r, until result_cache_take gives it back
                     and it asks again */
};

/* Local. r has no error and is not finished. Tokens that are known are taken over; where r allows
 * more of them than its equal did, it goes on behind them. A request does not wait for one of a
 * later priority. Errors: STATUS_MEMORY. */
struct status result_cache_ask(struct result_cache *c, const struct request_rules *rules,
                               struct request *r, enum result_answer *answer);

/* Local. r, which was told to run, is finished; its tokens are kept unless it is an error row.
 * Errors: STATUS_MEMORY. */
struct status result_cache_end(struct result_cache *c, struct request *r);

/* Local. A request that need not wait any longer, in order of asking, or NULL. Owner: the caller.
 */
struct request *result_cache_take(struct result_cache *c);

#endif

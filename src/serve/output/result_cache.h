/* Keeps the tokens of finished requests for later requests that must get the same tokens: those
 * with equal prompts, sampling values and random keys (greedy requests need no equal key). While
 * one of two equal requests runs, the other waits for it. This is exact, because tokens depend on
 * nothing else; the cache must be off if they depend on the batch. Memory is bounded: the least
 * recently used results are evicted first; the newest stays, however large. Called by the lead. */
#ifndef SHOAL_SERVE_OUTPUT_RESULT_CACHE_H
#define SHOAL_SERVE_OUTPUT_RESULT_CACHE_H

#include "serve/request/request.h"

struct result_cache;

/* Local. Makes an empty cache. max_bytes: bound on the memory of finished results; 0: 64 MiB.
 * Errors: STATUS_MEMORY. */
struct status result_cache_create(size_t max_bytes, struct result_cache **out);

/* Local. Destroys the cache and the requests that wait in it. Accepts NULL. */
void result_cache_destroy(struct result_cache **c);

enum result_answer {
    RESULT_RUN,   /* the caller runs r, and calls result_cache_end when it is finished */
    RESULT_DONE,  /* r has been given its tokens and is finished */
    RESULT_WAITS, /* an equal request runs. The cache owns r until result_cache_take returns it;
                     then the caller asks again */
};

/* Local. Looks up r, which has no error and is not finished, and copies the known tokens into it.
 * If r allows more tokens than the known answer has, r goes on after them. r does not wait for an
 * equal request that has a larger priority number, because that runs later. Errors: STATUS_MEMORY.
 */
struct status result_cache_ask(struct result_cache *c, const struct request_rules *rules,
                               struct request *r, enum result_answer *answer);

/* Local. For a finished r that got RESULT_RUN: keeps its tokens, unless it is an error row, and
 * releases the requests that waited for it. Errors: STATUS_MEMORY. */
struct status result_cache_end(struct result_cache *c, struct request *r);

/* Local. Returns the next released request, which the caller then owns; NULL: none. Requests that
 * waited for the same result come in the order of asking. */
struct request *result_cache_take(struct result_cache *c);

#endif

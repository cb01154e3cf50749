/* The order in which a window of requests runs. Results do not depend on it; how much is computed
 * twice, and how evenly the rows of steps are used, does. Knows tokens and counts only. Called by
 * the lead. */
#ifndef SHOAL_SERVE_SCHEDULE_ORDER_H
#define SHOAL_SERVE_SCHEDULE_ORDER_H

#include "serve/request/request.h"

enum order_kind {
    ORDER_AUTO,   /* mixed: single requests, or runs with a common prefix where the KV pool is too
                     small for the prefixes of all */
    ORDER_INPUT,  /* as they were read */
    ORDER_PREFIX, /* sorted by tokens, so requests with a common prefix are neighbours */
    ORDER_KIND_COUNT
};
#define ORDER_WORDS                                                                                \
    {"auto", ORDER_AUTO}, {"input", ORDER_INPUT},                                                  \
    {                                                                                              \
        "prefix", ORDER_PREFIX                                                                     \
    }

/* Local. Puts requests[n], which are in order of reading, into the order in which they shall run,
 * and gives their `order` numbers out anew in it; smaller priorities always come first.
 * n_blocks: of a replica's KV pool.
 *
 * Mixed: what a request costs is estimated as the prompt tokens that it does not share with its
 * neighbour in order of tokens (prefill) and as max_tokens (decode). Those with more prefill than
 * the average and those with more decode take turns, so that the ratio stays near the average; of
 * each kind the largest and the smallest take turns, so that the blocks in use do. While a quarter
 * of the pool holds all blocks that several of the window share, single requests are mixed, 256 at
 * a time, so that the output's first rows do not wait for long; else all runs of requests with the
 * same first block, which stay together. Errors: STATUS_MEMORY. */
struct status order_requests(enum order_kind kind, int32_t n_blocks, struct request **requests,
                             size_t n);

#endif

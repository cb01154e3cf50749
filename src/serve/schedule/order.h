/* The order in which a window of requests runs. Results do not depend on it; the order decides how
 * much is computed twice, and how evenly the rows of steps are used. Knows tokens and counts only.
 * Called by the lead. */
#ifndef SHOAL_SERVE_SCHEDULE_ORDER_H
#define SHOAL_SERVE_SCHEDULE_ORDER_H

#include "serve/request/request.h"

enum order_kind {
    ORDER_AUTO,   /* mixed: single requests or, if the KV pool is too small for all their
                     prefixes, runs with a common prefix */
    ORDER_INPUT,  /* in the order of reading */
    ORDER_PREFIX, /* sorted by tokens, so requests with a common prefix are neighbours */
    ORDER_KIND_COUNT
};
#define ORDER_WORDS                                                                                \
    {"auto", ORDER_AUTO}, {"input", ORDER_INPUT},                                                  \
    {                                                                                              \
        "prefix", ORDER_PREFIX                                                                     \
    }

/* Local. Puts requests[n] into the order in which they will run, and reassigns their `order`
 * numbers accordingly, ascending; smaller priority numbers always come first. n_blocks: the size of
 * a replica's KV pool.
 *
 * Mixed: a request's cost has two estimates: prefill, the tokens that it does not share with the
 * request before it in order of tokens; and decode, the tokens that it may still sample. Requests
 * with more prefill than average take turns with requests with more decode, so that the ratio of
 * the two stays near the average. Within each kind the largest and the smallest take turns, so that
 * the number of blocks in use stays near the average too. If a quarter of the pool can hold all
 * blocks that several requests (of one priority) share, single requests are mixed, 256 at a time,
 * so that the output's first rows do not wait for long. Otherwise runs of requests with the same
 * first block are mixed, and each run stays together. Errors: STATUS_MEMORY. */
struct status order_requests(enum order_kind kind, int32_t n_blocks, struct request **requests,
                             size_t n);

#endif

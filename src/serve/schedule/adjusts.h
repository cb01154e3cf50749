/* Changes to the logits of a request's next draw, in the form that the plan carries: logit_bias,
 * penalties, and end tokens that are forbidden before min_tokens. They depend only on the request
 * and its tokens, so they are the same after a preemption or a resume. Called by the scheduler. */
#ifndef SHOAL_SERVE_SCHEDULE_ADJUSTS_H
#define SHOAL_SERVE_SCHEDULE_ADJUSTS_H

#include "serve/request/request.h"

/* All zeros before its first use. */
struct adjusts {
    struct plan_adjust *entries; /* [n] of capacity, one for each id, ids ascending; owned */
    size_t n, capacity;
    size_t n_counted; /* tokens of the request counted so far, with the prompt's; 0: none yet */
    bool forbids;     /* the entries forbid end tokens */
};

/* Local. Counts those of r's tokens that have not been counted yet. A sampled token costs a binary
 * search and, if it is new, a move of the entries after it; the prompt is sorted once. Errors:
 * STATUS_MEMORY. */
struct status adjusts_update(struct adjusts *a, const struct request *r,
                             const struct request_rules *rules);

/* Local. Counts one more sampled token, even if r does not have it yet. Errors: STATUS_MEMORY. */
struct status adjusts_add(struct adjusts *a, const struct request *r, int32_t token);

/* Local. Copies `from` into *to, whose memory is reused. Errors: STATUS_MEMORY, with *to unchanged.
 */
struct status adjusts_copy(const struct adjusts *from, struct adjusts *to);
void adjusts_fini(struct adjusts *a);

#endif

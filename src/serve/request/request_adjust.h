/* What a request's own history and wishes do to the logits of its next draw, as the plan carries
 * it: logit_bias, the penalties, and end tokens that may not come yet. Follows from the request's
 * tokens alone, so a preempted or resumed request comes to the same. Called by the scheduler. */
#ifndef SHOAL_SERVE_REQUEST_REQUEST_ADJUST_H
#define SHOAL_SERVE_REQUEST_REQUEST_ADJUST_H

#include "serve/request/request.h"

/* Local. Brings r->adjusts [r->n_adjusts] up to date with r->tokens. Each token costs a search and,
 * when it is new, a move of what is behind it; the prompt is sorted once. Errors: STATUS_MEMORY. */
struct status request_adjust(struct request *r, const struct request_rules *rules);

/* What r->adjusts were, to come back to when r's last tokens are taken away again. All zeros before
 * its first use. */
struct request_adjusts {
    struct plan_adjust *entries; /* [n] of capacity, owned */
    size_t n, capacity, n_counted;
    bool forbids;
};

/* Local. Keeps r's, in place of what was kept before; and gives them back to the same r. Errors:
 * STATUS_MEMORY, which keeps nothing. */
struct status request_adjust_save(const struct request *r, struct request_adjusts *to);
void request_adjust_restore(struct request *r, const struct request_adjusts *from);
void request_adjusts_fini(struct request_adjusts *a);

#endif

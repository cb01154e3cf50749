/* What a request's own history and wishes do to the logits of its next draw, as the plan carries
 * it: logit_bias, the penalties, and end tokens that may not come yet. Follows from the request's
 * tokens alone, so a preempted or resumed request comes to the same. Called by the scheduler. */
#ifndef SHOAL_SERVE_REQUEST_ADJUST_H
#define SHOAL_SERVE_REQUEST_ADJUST_H

#include "serve/request.h"

/* Local. Brings r->adjusts [r->n_adjusts] up to date with r->tokens. Each token costs a search and,
 * when it is new, a move of what is behind it; the prompt is sorted once. Errors: STATUS_MEMORY. */
struct status request_adjust(struct request *r, const struct request_rules *rules);

#endif

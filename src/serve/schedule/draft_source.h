/* A second, smaller model that proposes draft tokens (--draft), as the scheduler sees it. Its
 * tokens are drafts like any others: the model checks each of them, so they change only the time.
 * Implemented by draft/draft_model.h. */
#ifndef SHOAL_SERVE_SCHEDULE_DRAFT_SOURCE_H
#define SHOAL_SERVE_SCHEDULE_DRAFT_SOURCE_H

#include "base/status.h"
#include "plan/step_plan.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The drafts that are wanted for one sequence. Pointers are borrowed for the call. */
struct draft_ask {
    int32_t id;            /* of the sequence */
    const int32_t *tokens; /* [n_tokens] its tokens so far, at least one */
    size_t n_tokens;
    struct plan_seq draw; /* the request's temperature, top_k, top_p, min_p, key and choice, with
                             which the draft model draws, because drafts drawn in the same way are
                             right more often; penalties are off */
    int32_t n_most;       /* how many drafts are wanted, above 0 */
    int32_t *drafts;      /* [n_most] the result: the first `n` are set */
    int32_t n;
    bool is_late; /* set by propose: n is 0 because the draft model has not yet computed the rows of
                     all tokens; it goes on when it is asked again */
};

/* All functions are Local. `user` is their first argument. */
struct draft_source {
    /* Answers asks [n], each of a different sequence. An ask gets fewer drafts, or none, where the
     * draft model's memory or context ends, or where a token is not in both vocabularies. A call
     * computes only so many tokens that it takes no longer than a few steps. Errors: STATUS_MEMORY
     * and the engine's. NULL: there is no draft model. */
    struct status (*propose)(void *user, struct draft_ask *asks, size_t n);
    /* Returns how many of the ask's first tokens need not be computed again. */
    size_t (*n_known)(void *user, const struct draft_ask *ask);
    /* Returns the nanoseconds that a step of one row of the draft model takes, as measured. */
    double (*step_ns)(void *user);
    uint32_t context; /* an ask with more tokens gets no drafts */
    void *user;
};

#endif

/* The requests for rows of logits, and their results, for vocab_parallel.h, and for draw_device.h
 * when the logits are on a device. */
#ifndef SHOAL_SAMPLE_VOCAB_ROWS_H
#define SHOAL_SAMPLE_VOCAB_ROWS_H

#include "plan/step_plan.h"
#include "sample/adjust.h"
#include "sample/pick.h"

enum { VOCAB_ROWS_AT_ONCE = 64 };

/* The request for one row. */
struct vocab_want {
    int32_t want;             /* plan_want bits */
    int32_t target;           /* PLAN_SCORE: the token whose log-probability is wanted; -1: none */
    struct pick_options pick; /* PLAN_SAMPLE; temperature 0: greedy */
    struct adjust adjust;     /* PLAN_SAMPLE: changes of the logits, for the draw only */
    int32_t n_top;            /* number of largest log-probabilities that are wanted */
    struct plan_top *tops;    /* [n_top] the result, written on tp rank 0; the ids are -1 where the
                                 vocabulary has fewer, and all of them in a row with n_bad > 0 */
};

/* The result of one row; equal on all tp ranks. */
struct vocab_got {
    int32_t token;       /* PLAN_SAMPLE; -1: not wanted, or n_bad > 0 */
    float logprob;       /* of the target */
    float token_logprob; /* PLAN_LOGPROB: of the sampled token */
    int32_t n_bad;       /* logits of the row that are NaN or infinite */
};

#endif

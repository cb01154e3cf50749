/* What a caller wants of each row of logits and what it gets: the rows of vocab_parallel.h, which
 * draw_device.h serves where the logits stand on a device. */
#ifndef SHOAL_SAMPLE_VOCAB_ROWS_H
#define SHOAL_SAMPLE_VOCAB_ROWS_H

#include "plan/step_plan.h"
#include "sample/adjust.h"
#include "sample/pick.h"

enum { VOCAB_ROWS_AT_ONCE = 64 };

/* What is wanted of one row. */
struct vocab_want {
    int32_t want;             /* plan_want bits */
    int32_t target;           /* PLAN_SCORE: the token whose log-probability is wanted; -1: none */
    struct pick_options pick; /* PLAN_SAMPLE; temperature 0: greedy */
    struct adjust adjust;  /* PLAN_SAMPLE: done to the logits before the draw, and for it alone */
    int32_t n_top;         /* how many of the row's largest log-probabilities are wanted */
    struct plan_top *tops; /* [n_top]: they go there, on tp rank 0; fewer than n_top in a smaller
                              vocabulary: ids of -1 behind them */
};

/* What came of it; equal on all tp ranks. */
struct vocab_got {
    int32_t token;       /* PLAN_SAMPLE, else -1 */
    float logprob;       /* of the target */
    float token_logprob; /* PLAN_LOGPROB: of the sampled token */
    int32_t n_bad;       /* logits of the row that are NaN or infinite */
};

#endif

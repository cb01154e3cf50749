/* The end of the way: rows of the last hidden state to tokens and log-probabilities, with the
 * vocabulary split over the tp ranks. Everything that crosses ranks is an integer or moved bytes,
 * so where the vocabulary was cut never shows. */
#ifndef SHOAL_SAMPLE_VOCAB_PARALLEL_H
#define SHOAL_SAMPLE_VOCAB_PARALLEL_H

#include "kernels/kern.h"
#include "parallel/comm.h"
#include "parallel/layout.h"
#include "plan/step_plan.h"
#include "sample/adjust.h"
#include "sample/pick.h"

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

struct vocab_parallel; /* buffers for VOCAB_ROWS_AT_ONCE rows */

enum { VOCAB_ROWS_AT_ONCE = 64 };

/* Local. head_reads_codes: a quantized head meets activations as int8 codes, not as floats.
 * destroy accepts NULL. Errors: STATUS_MEMORY. */
struct status vocab_parallel_create(const struct kern_table *kern, struct comm *comm,
                                    const struct layout *layout, bool head_reads_codes,
                                    struct vocab_parallel **out);
void vocab_parallel_destroy(struct vocab_parallel **v);

/* **Collective (TP)**. x [n_rows, D] (normed), equal on all tp ranks; head: this rank's rows of the
 * vocabulary. got [n_rows]. PLAN_LOGITS rows are appended to `logits` on tp rank 0, in order.
 * Errors: STATUS_MEMORY. */
struct status vocab_parallel_run(struct vocab_parallel *v, const struct packed *head,
                                 const float *x, const struct vocab_want *wants, size_t n_rows,
                                 struct vocab_got *got, struct step_result *logits);

#endif

/* Turns rows of the last hidden state into tokens and log-probabilities, with the vocabulary split
 * over the tp ranks. Only integers and copied bytes cross ranks, so the result does not depend on
 * where the vocabulary is cut. */
#ifndef SHOAL_SAMPLE_VOCAB_PARALLEL_H
#define SHOAL_SAMPLE_VOCAB_PARALLEL_H

#include "kernels/kern.h"
#include "parallel/comm/comm.h"
#include "parallel/layout/layout.h"
#include "sample/vocab_rows.h"

struct vocab_parallel; /* buffers for VOCAB_ROWS_AT_ONCE rows */

/* Local. head_reads_codes: a quantized head is multiplied with int8 activations, not with floats.
 * head_bias: [this rank's part of the vocabulary], borrowed, or NULL. destroy accepts NULL. Errors:
 * STATUS_MEMORY. */
struct status vocab_parallel_create(const struct kern_table *kern, struct comm *comm,
                                    const struct layout *layout, bool head_reads_codes,
                                    const float *head_bias, struct vocab_parallel **out);
void vocab_parallel_destroy(struct vocab_parallel **v);

/* **Collective (TP)**. Computes the results got [n_rows]. x [n_rows, D] (normed), equal on all tp
 * ranks; head: this rank's rows of the vocabulary. The logits of PLAN_LOGITS rows are appended to
 * `logits` on tp rank 0, in order. vocab_want.adjust changes only what is drawn: log-probabilities
 * and appended logits are those of the model. Errors: STATUS_MEMORY, the device's. */
struct status vocab_parallel_run(struct vocab_parallel *v, const struct packed *head,
                                 const float *x, const struct vocab_want *wants, size_t n_rows,
                                 struct vocab_got *got, struct step_result *logits);

#endif

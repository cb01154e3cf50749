/* Beam search over one prompt: keeps the running and the ended hypotheses. Each step needs the most
 * likely next tokens of every running hypothesis, from a request of its own ("probe") that shares
 * the prefix cache. Knows no scheduler and no ranks; lead_choices.c runs the probes.
 *
 * The search is that of transformers' generate (num_beams, length_penalty, early_stopping, versions
 * 4.50 to 5.2), without logits processors: candidates rank by the sum of log-probabilities of their
 * tokens; those among the first `width` that end become answers, scored by that sum over
 * length^length_penalty, where length counts sampled tokens, the end token too; the best `width`
 * that do not end go on. Ours alone: sums are in double, and equal candidates rank by token id,
 * then by the rank of their hypothesis; transformers leaves ties open. */
#ifndef SHOAL_SERVE_REQUEST_BEAM_H
#define SHOAL_SERVE_REQUEST_BEAM_H

#include "serve/request/request.h"

struct beam_search;

/* Local. Makes a search with one hypothesis, which is the prompt. r and rules are borrowed. Errors:
 * STATUS_MEMORY. */
struct status beam_create(struct request *r, const struct request_rules *rules,
                          struct beam_search **out);
void beam_destroy(struct beam_search **b);

/* Local. The number of most likely tokens that a step needs, at most PLAN_TOPS_MAX: enough for all
 * that continue, plus all end tokens. */
int64_t beam_n_tops(const struct request *r, const struct request_rules *rules);

/* Local. The number of running hypotheses; each needs a probe. 0: the search has ended. */
int32_t beam_n_running(const struct beam_search *b);

/* Local. The request that finds the most likely tokens after hypothesis i. Owner of *out: the
 * caller. Errors: STATUS_MEMORY. */
struct status beam_make_probe(const struct beam_search *b, int32_t i, struct request **out);

/* Local. Takes one step from the probes [beam_n_running], which have finished without errors and
 * are in the order of the hypotheses. Errors: STATUS_MEMORY. */
struct status beam_advance(struct beam_search *b, struct request *const *probes);

/* Local. The number of steps so far, which is the number of sampled tokens of each running
 * hypothesis. */
size_t beam_n_steps(const struct beam_search *b);

/* Local. Appends the search's state between two steps, at least one made, and takes it back into a
 * search just made. *taken is false for bytes that are no state of such a search; it is to be
 * destroyed then. Little-endian. Errors: STATUS_MEMORY. */
void beam_pack(const struct beam_search *b, struct strbuf *out);
struct status beam_unpack(struct beam_search *b, const char *bytes, size_t n, bool *taken);

/* Local. After the search: the i-th best answer, finished, i below the request's n_choices. Stop
 * strings end its text here; they do not guide the search. Errors: STATUS_MEMORY. */
struct status beam_make_answer(const struct beam_search *b, int32_t i, struct request **out);

#endif

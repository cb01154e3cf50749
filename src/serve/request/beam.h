/* Beam search over one prompt: keeps the running and the ended hypotheses. Each step needs the most
 * likely next tokens of every running hypothesis; a separate request for each hypothesis (a
 * "probe"), which shares the prefix cache, finds them. Knows no scheduler and no ranks;
 * lead_choices.c runs the probes.
 *
 * The search is that of transformers' generate (num_beams, length_penalty, early_stopping, versions
 * 4.50 to 5.2), with min_tokens as its only logits processor. Candidates rank by the sum of their
 * tokens' log-probabilities. Of the first `width` candidates those that end compete for the `width`
 * answers; their score is the sum over length^length_penalty, where length counts sampled tokens
 * with the end token. The best `width` candidates that do not end go on. Two rules are shoal's own:
 * sums are in double, and equal candidates rank by token id, then by the rank of their hypothesis
 * (transformers leaves ties open). */
#ifndef SHOAL_SERVE_REQUEST_BEAM_H
#define SHOAL_SERVE_REQUEST_BEAM_H

#include "serve/request/request.h"

struct beam_search;

/* Local. Makes a search with one hypothesis, which is the prompt. r and rules are borrowed. Errors:
 * STATUS_MEMORY. */
struct status beam_create(struct request *r, const struct request_rules *rules,
                          struct beam_search **out);
void beam_destroy(struct beam_search **b);

/* Local. Returns how many of the most likely tokens a step needs at each hypothesis: one for each
 * hypothesis that may go on (the width) and for each end token, at most the whole vocabulary. For a
 * parsed line at most PLAN_TOPS_MAX. */
int64_t beam_n_tops(const struct request *r, const struct request_rules *rules);

/* Local. Returns the number of running hypotheses; each needs a probe. 0: the search has ended. */
int32_t beam_n_running(const struct beam_search *b);

/* Local. Makes the request that finds the most likely tokens after hypothesis i. Owner of *out: the
 * caller. Errors: STATUS_MEMORY. */
struct status beam_make_probe(const struct beam_search *b, int32_t i, struct request **out);

/* Local. Advances the search by one step with the results of the probes [beam_n_running], which
 * have finished without errors and are in the order of the hypotheses. Errors: STATUS_MEMORY. */
struct status beam_advance(struct beam_search *b, struct request *const *probes);

/* Local. Returns the number of steps so far, which is the number of sampled tokens of each running
 * hypothesis; 0 once the search has ended. */
size_t beam_n_steps(const struct beam_search *b);

/* Local. beam_pack appends the search's state after one or more steps to `out`, little-endian;
 * beam_unpack restores it into a newly made search. *taken is false if the bytes are not such a
 * state; the caller must then destroy the search. Errors: STATUS_MEMORY. */
void beam_pack(const struct beam_search *b, struct strbuf *out);
struct status beam_unpack(struct beam_search *b, const char *bytes, size_t n, bool *taken);

/* Local. After the search, makes the answer in place i (0: the best; i is below the request's
 * n_choices) as a finished request. Stop strings end its text here; they do not guide the search.
 * Errors: STATUS_MEMORY. */
struct status beam_make_answer(const struct beam_search *b, int32_t i, struct request **out);

#endif

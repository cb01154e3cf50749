/* What an answer's text may be: a pattern, one of some texts, JSON, JSON of a schema; compiled once
 * for all requests that ask for the same, with the tokens that each state allows. Which tokens
 * these are follows from the spec, the vocabulary and the tokens before, so no batch and no layout
 * shows. Called by request_guide.c and request.c. Token masks over automata: Willard and Louf 2023.
 */
#ifndef SHOAL_SERVE_REQUEST_GUIDE_H
#define SHOAL_SERVE_REQUEST_GUIDE_H

#include "base/json.h"
#include "base/status.h"
#include "text/tokenizer/tokenizer.h"

#include <stdbool.h>
#include <stdint.h>

struct guides; /* the compiled ones, by what they were made of */
struct guide;

enum guide_kind { GUIDE_REGEX, GUIDE_CHOICE, GUIDE_OBJECT, GUIDE_SCHEMA };

/* Local. The tokenizer is borrowed. destroy accepts NULL; no request has a guide any more.
 * Errors: STATUS_MEMORY. */
struct status guides_create(const struct tokenizer *t, int32_t vocab_size, struct guides **out);
void guides_destroy(struct guides **guides);

/* Local. The guide of a pattern (a string), of texts (a list of strings), of any JSON object (node
 * is not looked at) or of a schema. Give it back by guide_release. Errors: STATUS_REQUEST says what
 * is not understood or too large, STATUS_MEMORY. */
struct status guides_get(struct guides *g, enum guide_kind kind, const struct js_node *node,
                         struct guide **out);

/* Local. Steps of compiling (text/grammar/automaton.h) and of making masks, a token each, that were
 * done so far. */
uint64_t guides_steps(const struct guides *g);

/* Local. One user more; one less (accepts NULL, sets it to NULL). */
struct guide *guide_share(struct guide *guide);
void guide_release(struct guide **guide);

/* Local. Its memory without masks, shared by its users. */
size_t guide_cost_bytes(const struct guide *guide);

/* Local. The same for equal specs, and for others not. */
uint64_t guide_hash(const struct guide *guide);

/* Local. The state before the first token; the state behind a token (`begins`: the first one), 0
 * when it does not fit. */
enum { GUIDE_START = 1, GUIDE_LOST = 0 };
uint16_t guide_next(const struct guide *guide, uint16_t state, int32_t token, bool begins);

/* Local. Whether the text may end here, and whether it may go on. */
bool guide_accepts(const struct guide *guide, uint16_t state);
bool guide_goes_on(const struct guide *guide, uint16_t state);

/* Local. The tokens that fit next, a bit each, [ceil(vocab_size / 32)] words, borrowed until the
 * next call for this guide; *n_tokens is how many. Errors: STATUS_MEMORY. */
struct status guide_mask(struct guide *guide, uint16_t state, bool begins, const uint32_t **mask,
                         size_t *n_tokens);

#endif

/* Grammar constraints ("guides") on an answer's text: a pattern, a choice of texts, any JSON
 * object, or JSON of a schema. Requests with the same grammar share one compiled guide. The tokens
 * that it allows depend only on the grammar, the vocabulary and the answer's tokens so far, never
 * on batch or layout. The token masks over automata follow Willard and Louf (2023). */
#ifndef SHOAL_SERVE_REQUEST_GUIDE_H
#define SHOAL_SERVE_REQUEST_GUIDE_H

#include "base/json.h"
#include "base/status.h"
#include "text/tokenizer/tokenizer.h"

#include <stdbool.h>
#include <stdint.h>

struct guides; /* the compiled guides, found by their grammar */
struct guide;

enum guide_kind { GUIDE_REGEX, GUIDE_CHOICE, GUIDE_OBJECT, GUIDE_SCHEMA };

/* Local. Makes an empty list of guides; the tokenizer is borrowed. guides_destroy accepts NULL; all
 * guides must have been released. Errors: STATUS_MEMORY. */
struct status guides_create(const struct tokenizer *t, int32_t vocab_size, struct guides **out);
void guides_destroy(struct guides **guides);

/* Local. Sets *out to the guide of a pattern (node is a string), a choice (a list of strings), any
 * JSON object (node is not read) or a schema. Release it with guide_release. Errors: STATUS_REQUEST
 * says why the grammar cannot be compiled (a value of another type, bad syntax, an unsupported
 * keyword, an exceeded bound); STATUS_MEMORY. */
struct status guides_get(struct guides *g, enum guide_kind kind, const struct js_node *node,
                         struct guide **out);

/* Local. Returns the work done so far in steps: those of compiling (text/grammar/automaton.h), and
 * one for each token of the vocabulary each time that a mask is made. */
uint64_t guides_steps(const struct guides *g);

/* Local. guide_share adds a user and returns the guide. guide_release removes a user and sets the
 * pointer to NULL. Both accept NULL. */
struct guide *guide_share(struct guide *guide);
void guide_release(struct guide **guide);

/* Local. Returns the guide's memory in bytes, without masks, divided by the number of its users. */
size_t guide_cost_bytes(const struct guide *guide);

/* Local. Returns a hash of the grammar. */
uint64_t guide_hash(const struct guide *guide);

/* Local. Returns the state after a token; GUIDE_LOST when the grammar does not allow the token. An
 * answer starts in GUIDE_START. begins: the token is the answer's first. */
enum { GUIDE_START = 1, GUIDE_LOST = 0 };
uint16_t guide_next(const struct guide *guide, uint16_t state, int32_t token, bool begins);

/* Local. guide_accepts is true when the text may end in this state, guide_goes_on when it may
 * continue. */
bool guide_accepts(const struct guide *guide, uint16_t state);
bool guide_goes_on(const struct guide *guide, uint16_t state);

/* Local. Sets *mask [ceil(vocab_size / 32)] to a bit for each token, 1 if the grammar allows it
 * next; borrowed until the next call for any guide. *n_tokens: the number of allowed tokens.
 * Errors: STATUS_MEMORY. */
struct status guide_mask(struct guide *guide, uint16_t state, bool begins, const uint32_t **mask,
                         size_t *n_tokens);

#endif

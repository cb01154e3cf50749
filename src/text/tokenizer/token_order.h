/* The vocabulary's texts in the order of their bytes, and which tokens an automaton takes next.
 * Knows nothing of requests. Called by serve/request/guide.c. */
#ifndef SHOAL_TEXT_TOKENIZER_TOKEN_ORDER_H
#define SHOAL_TEXT_TOKENIZER_TOKEN_ORDER_H

#include "text/grammar/automaton.h"
#include "text/tokenizer/tokenizer.h"

struct token_order;

/* Local. Of the ids below vocab_size those that are text: no special tokens, no holes, nothing
 * empty. The tokenizer is borrowed. Owner of *out: the caller. Errors: STATUS_MEMORY. */
struct status token_order_create(const struct tokenizer *t, int32_t vocab_size,
                                 struct token_order **out);
void token_order_destroy(struct token_order **order);

/* Local. The bytes that a token adds to an answer; `begins`: as its first one, which some decoders
 * take a blank from. Borrowed; *n is 0 where it adds none, or is not one of these tokens. */
const char *token_order_text(const struct token_order *o, int32_t id, bool begins, size_t *n);

/* Local. Sets bit id of mask [ceil(vocab_size / 32)], zeroed before, for each token whose text the
 * automaton takes in `state`. Returns how many these are. */
size_t token_order_mask(const struct token_order *o, const struct dfa *d, uint16_t state,
                        bool begins, uint32_t *mask);

#endif

/* Sorts the tokens of a vocabulary by their bytes, to make masks of the tokens that an automaton
 * accepts next. Knows nothing of requests. Called by serve/request/guide.c. */
#ifndef SHOAL_TEXT_TOKENIZER_TOKEN_ORDER_H
#define SHOAL_TEXT_TOKENIZER_TOKEN_ORDER_H

#include "text/grammar/automaton.h"
#include "text/tokenizer/tokenizer.h"

struct token_order;

/* Local. Sorts the tokens with ids below vocab_size, except special tokens and tokens without
 * bytes. The tokenizer is borrowed until token_order_destroy. Owner of *out: the caller. Errors:
 * STATUS_MEMORY. */
struct status token_order_create(const struct tokenizer *t, int32_t vocab_size,
                                 struct token_order **out);
void token_order_destroy(struct token_order **order);

/* Local. Returns the bytes that a token adds to an answer; borrowed. begins: the token is the
 * answer's first, from whose front some decoders strip blanks. *n is 0 when the token adds no
 * bytes, is not one of the sorted tokens, or comes first and the decoder would remove blanks inside
 * it too. */
const char *token_order_text(const struct token_order *o, int32_t id, bool begins, size_t *n);

/* Local. Sets bit id of mask [ceil(vocab_size / 32)], which the caller has zeroed, for each token
 * whose text leads the automaton from `state` to a state other than DFA_DEAD. Returns the number of
 * these tokens. Takes at most as many automaton steps as the vocabulary has bytes. */
size_t token_order_mask(const struct token_order *o, const struct dfa *d, uint16_t state,
                        bool begins, uint32_t *mask);

#endif

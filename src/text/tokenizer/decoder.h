/* Turns tokens into text by the rules of tokenizer.json's "decoder". Rules for single tokens are
 * applied once, when a tokenizer is loaded; detokenizer.h applies the rules that depend on earlier
 * tokens. Called by the tokenizer, the detokenizer and token_order.c. */
#ifndef SHOAL_TEXT_TOKENIZER_DECODER_H
#define SHOAL_TEXT_TOKENIZER_DECODER_H

#include "base/json.h"
#include "base/status.h"
#include "base/strbuf.h"
#include "text/tokenizer/replacer.h"

#include <stdbool.h>
#include <stddef.h>

enum decoder_kind {
    DECODER_BYTE_LEVEL, /* printable characters represent bytes */
    DECODER_METASPACE,  /* one character represents the blank; the first token loses its blanks,
                           unless keeps_first */
    DECODER_CHAIN,      /* Replace and Strip on tokens, ByteFallback, Fuse, Strip on the text; or
                           WordPiece */
};

/* Removes up to n_max copies of one character from the front. */
struct decoder_strip {
    char bytes[4];
    size_t n_bytes; /* bytes of the character; 0: removes nothing */
    size_t n_max;
};

struct decoder_step {
    struct replacer replacer; /* owned; unused when strip.n_bytes > 0 */
    struct decoder_strip strip;
};

enum { DECODER_STEPS_MAX = 8 };

struct decoder {
    enum decoder_kind kind;
    struct decoder_step steps[DECODER_STEPS_MAX]; /* applied to each token by itself */
    size_t n_steps;
    bool byte_fallback; /* a token like <0xE9> is a byte; a run of such tokens becomes text if it is
                           well-formed UTF-8, else one U+FFFD for each byte */
    bool fused;
    struct decoder_strip front; /* applied to the whole text */
    char joint[16]; /* WordPiece: the prefix of tokens that continue a word, [n_joint]; other
                       tokens, except the first, get a blank before them */
    size_t n_joint;
    bool cleans;   /* WordPiece: removes blanks before punctuation and contractions */
    char blank[4]; /* METASPACE: the character, [n_blank] */
    size_t n_blank;
    bool keeps_first; /* METASPACE: the first token keeps its blanks, because the encoder has added
                         none */
};

/* Local. Reads the JSON node; `what` names the file. Errors: STATUS_INPUT names the rule that is
 * not supported; STATUS_MEMORY. */
struct status decoder_init(struct decoder *d, const struct js_node *node, const char *what);
void decoder_fini(struct decoder *d);

/* Local. Appends the text of a single token of n bytes; not for BYTE_LEVEL. *byte: the byte for
 * which the token stands by ByteFallback, or -1. Errors: STATUS_MEMORY; STATUS_REQUEST when a
 * pattern's match limit is reached. */
struct status decoder_token(struct decoder *d, const char *token, size_t n, struct strbuf *out,
                            int *byte);

/* Local. Returns how many of the n bytes the strip removes from the front. *taken: how many
 * characters the strip has removed from this text so far; grows by those removed now. */
size_t decoder_strip_front(const struct decoder_strip *s, const char *text, size_t n,
                           size_t *taken);

#endif

/* Token ids to text, piece by piece, never splitting a UTF-8 sequence.
 * The joined pieces are the whole decoding: bytes of all tokens in a row, special tokens skipped,
 * one U+FFFD per maximal ill-formed part. Called by the lead for every running request. */
#ifndef SHOAL_TEXT_DETOKENIZER_H
#define SHOAL_TEXT_DETOKENIZER_H

#include "base/status.h"
#include "base/strbuf.h"
#include "text/tokenizer.h"

/* Plain data: copying it copies the state. Zero-initialised is a fresh one that skips nothing. */
struct detokenizer {
    bool skip_special;
    unsigned char n_held; /* 0..3 bytes that may still become a UTF-8 sequence */
    char held[4];
};

/* Local. A fresh state; skip_special leaves special tokens out of the text. */
void detokenizer_init(struct detokenizer *d, bool skip_special);

/* Local. Appends to `out` the text that token `id` completes: always whole UTF-8 sequences, perhaps
 * nothing. Ids that are holes or out of range have no text. Errors: STATUS_MEMORY. */
struct status detokenizer_feed(struct detokenizer *d, const struct tokenizer *t, int32_t id,
                               struct strbuf *out);

/* Local. Ends the text: what is held back becomes U+FFFD. The state is fresh again. */
struct status detokenizer_flush(struct detokenizer *d, struct strbuf *out);

#endif

/* Token ids to text, piece by piece, never splitting a UTF-8 sequence.
 * The joined pieces are the whole decoding as the tokenizers library has it, special tokens
 * skipped. Called by the lead for every running request. */
#ifndef SHOAL_TEXT_TOKENIZER_DETOKENIZER_H
#define SHOAL_TEXT_TOKENIZER_DETOKENIZER_H

#include "base/status.h"
#include "base/strbuf.h"
#include "text/tokenizer/tokenizer.h"

/* One text's state. Zero-initialised is a fresh one that skips nothing; detokenizer_fini frees. */
struct detokenizer {
    bool skip_special;
    bool begun;           /* a token with text has been fed */
    bool run_broken;      /* the run is no UTF-8, whatever comes */
    unsigned char n_held; /* byte level: 0..3 bytes that may still become a UTF-8 sequence */
    char held[4];         /* of these, one U+FFFD per maximal ill-formed part */
    size_t n_stripped;    /* characters taken from the front of the text */
    struct strbuf run;    /* owned: bytes that tokens fell back to; text, or one U+FFFD each */
    size_t n_run_valid;   /* of these, whole sequences at the front */
};

/* Local. A fresh state; skip_special leaves special tokens out of the text. */
void detokenizer_init(struct detokenizer *d, bool skip_special);
void detokenizer_fini(struct detokenizer *d);

/* Local. Appends to `out` the text that token `id` completes: always whole UTF-8 sequences, perhaps
 * nothing. Ids that are holes or out of range have no text. Errors: STATUS_MEMORY. */
struct status detokenizer_feed(struct detokenizer *d, const struct tokenizer *t, int32_t id,
                               struct strbuf *out);

/* Local. What a flush would append now, as far as it is whole UTF-8 sequences: only more tokens can
 * tell whether these bytes are text, but a stop string may end in them. Borrowed, *n bytes; while
 * nothing is fed to `out`, a longer one begins with a shorter one. */
const char *detokenizer_pending(const struct detokenizer *d, const struct tokenizer *t, size_t *n);

/* Local. Ends the text: what is held back becomes text or U+FFFD. The state is fresh again. */
struct status detokenizer_flush(struct detokenizer *d, const struct tokenizer *t,
                                struct strbuf *out);

#endif

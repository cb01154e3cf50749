/* Turns token ids into text, piece by piece, in whole UTF-8 sequences. The pieces joined are the
 * text that Hugging Face's tokenizers library decodes from the same ids, with or without special
 * tokens. Called on the lead, by serve/request for answers and echoed prompts and by serve/http for
 * ids to decode. */
#ifndef SHOAL_TEXT_TOKENIZER_DETOKENIZER_H
#define SHOAL_TEXT_TOKENIZER_DETOKENIZER_H

#include "base/status.h"
#include "base/strbuf.h"
#include "text/tokenizer/tokenizer.h"

/* The state of one text. Zeroed, it is a fresh state that keeps special tokens. detokenizer_fini
 * frees it. */
struct detokenizer {
    bool skip_special;
    bool begun;           /* a token of the vocabulary has been fed */
    bool run_broken;      /* the bytes in `run` cannot become UTF-8, whatever follows */
    unsigned char n_held; /* byte level: 0..3 bytes that may still become a UTF-8 sequence */
    char held[4];         /* [n_held]; each ill-formed maximal part becomes one U+FFFD */
    size_t n_stripped;    /* characters that decoder.front has stripped so far; its n_max once other
                             text has come */
    struct strbuf run;  /* owned: the bytes of the current run of byte-fallback tokens; they become
                           text, or one U+FFFD for each */
    size_t n_run_valid; /* how many of the run's first bytes are whole sequences */
};

/* Local. Makes a fresh state; skip_special leaves special tokens out of the text. */
void detokenizer_init(struct detokenizer *d, bool skip_special);
void detokenizer_fini(struct detokenizer *d);

/* Local. Appends the text that token `id` completes: whole UTF-8 sequences, or nothing. Ids that
 * are out of range or have no token have no text. Errors: STATUS_MEMORY. */
struct status detokenizer_feed(struct detokenizer *d, const struct tokenizer *t, int32_t id,
                               struct strbuf *out);

/* Local. Returns the current run of byte-fallback tokens, *n bytes, as a flush would append them,
 * if they are whole UTF-8 sequences; otherwise *n is 0. Borrowed. Later tokens decide whether the
 * run becomes text, but a stop string may already end in it. While the run lasts, each result that
 * is not empty begins with all results before it. */
const char *detokenizer_pending(const struct detokenizer *d, const struct tokenizer *t, size_t *n);

/* Local. Ends the text: appends the bytes of `held` and `run`, as text or as U+FFFD, and makes the
 * state fresh again, with the same skip_special. Errors: STATUS_MEMORY. */
struct status detokenizer_flush(struct detokenizer *d, const struct tokenizer *t,
                                struct strbuf *out);

#endif

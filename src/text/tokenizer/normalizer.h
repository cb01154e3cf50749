/* Normalizes text by tokenizer.json's "normalizer", and tracks which bytes come from a user. Knows
 * no tokens. Called by the tokenizer for the text between added tokens, and for the added
 * tokens. */
#ifndef SHOAL_TEXT_TOKENIZER_NORMALIZER_H
#define SHOAL_TEXT_TOKENIZER_NORMALIZER_H

#include "base/json.h"
#include "base/status.h"
#include "base/strbuf.h"
#include "text/tokenizer/precompiled.h"
#include "text/tokenizer/replacer.h"
#include "text/unicode/unicode.h"

#include <stdbool.h>
#include <stddef.h>

enum normalizer_kind {
    NORMALIZER_FORM,
    NORMALIZER_LOWERCASE,
    NORMALIZER_STRIP,
    NORMALIZER_STRIP_ACCENTS,
    NORMALIZER_REPLACE,
    NORMALIZER_PREPEND,
    NORMALIZER_BERT_CLEAN,      /* drops control characters; whitespace becomes U+0020 */
    NORMALIZER_BERT_ACCENTS,    /* drops accents, after NFD */
    NORMALIZER_BERT_IDEOGRAPHS, /* puts blanks around ideographs */
    NORMALIZER_PRECOMPILED,
};

struct normalizer_step {
    enum normalizer_kind kind;
    enum unicode_form form;   /* FORM */
    bool left, right;         /* STRIP */
    struct replacer replacer; /* owned; for REPLACE, and for PREPEND, which inserts its content */
    struct precompiled precompiled; /* owned */
};

enum { NORMALIZER_STEPS_MAX = 16 };

struct normalizer {
    struct normalizer_step steps[NORMALIZER_STEPS_MAX]; /* owned */
    size_t n_steps;
    struct strbuf bytes[2], marks[2]; /* owned scratch: steps write them in turn */
};

/* A text before the first step, between two steps or after the last. */
struct normal_text {
    const char *bytes;         /* borrowed: the caller's, then the normalizer's scratch */
    const unsigned char *user; /* [n]: 1 where the byte comes from a user; NULL: not tracked */
    size_t n;
    bool at_start; /* the whole text begins with this text, and no step has removed its first
                      character */
};

/* Local. Reads the JSON node (NULL or null: no steps); `what` names the file in errors. Errors:
 * STATUS_INPUT names the step that is not supported; STATUS_MEMORY. */
struct status normalizer_init(struct normalizer *z, const struct js_node *node, const char *what);
void normalizer_fini(struct normalizer *z);

/* Local. Replaces *text by its normal form, as Hugging Face's tokenizers library makes it; the
 * input must be well-formed UTF-8. A character made from bytes of both the template and a user
 * counts as the user's. The result is valid until the next call. Errors: STATUS_MEMORY;
 * STATUS_REQUEST when a pattern's match limit is reached. */
struct status normalizer_run(struct normalizer *z, struct normal_text *text);

#endif

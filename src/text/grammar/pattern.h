/* A compiled pattern that finds matches one after another, as pre-tokenizers need. tokenizer.json
 * uses Oniguruma's notation, and matches are found by PCRE2. Constructs that the two libraries do
 * not read alike are translated, or refused by name. Called by the pre-tokenizer and, for the
 * normalizer and the decoder, by the replacer. */
#ifndef SHOAL_TEXT_GRAMMAR_PATTERN_H
#define SHOAL_TEXT_GRAMMAR_PATTERN_H

#include "base/status.h"
#include "base/strbuf.h"

#include <stdbool.h>
#include <stddef.h>

struct pattern;

/* Local. Compiles a pattern of n bytes (1 to 65,536). literal: the bytes are the text to find, not
 * a pattern. Error messages begin with `what`. Owner of *out: the caller, pattern_destroy. Errors:
 * STATUS_INPUT names the construct; STATUS_MEMORY. */
struct status pattern_create(const char *notation, size_t n, bool literal, const char *what,
                             struct pattern **out);
void pattern_destroy(struct pattern **p);

/* Local. Translates the notation into PCRE2's and appends it to `out`. Errors: as pattern_create.
 */
struct status pattern_translate(const char *notation, size_t n, const char *what,
                                struct strbuf *out);

/* A walk over the matches in one text. */
struct pattern_walk {
    const char *text; /* borrowed, well-formed UTF-8 */
    size_t n;
    size_t at;       /* where the next search starts */
    size_t last_end; /* end of the last match; n + 1 before the first match */
};

/* Local. Starts a walk. */
void pattern_walk_init(struct pattern_walk *w, const char *text, size_t n);

/* Local. Finds the next match, text[*start, *end); *found is false when no match is left. Skips an
 * empty match directly after the last match. Errors: STATUS_REQUEST when the search reaches its
 * limit of steps or memory. */
struct status pattern_next(struct pattern *p, struct pattern_walk *w, size_t *start, size_t *end,
                           bool *found);

#endif

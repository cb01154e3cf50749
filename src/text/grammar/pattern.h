/* A compiled pattern that cuts text into pieces, as pre-tokenizers do.
 * Takes the notation that tokenizer.json files use (Oniguruma's) and gives it to PCRE2 only where
 * both mean the same; the rest is refused by name. Called by the pre-tokenizer. */
#ifndef SHOAL_TEXT_GRAMMAR_PATTERN_H
#define SHOAL_TEXT_GRAMMAR_PATTERN_H

#include "base/status.h"
#include "base/strbuf.h"

#include <stdbool.h>
#include <stddef.h>

struct pattern;

/* Local. Compiles n bytes of notation; with `literal` they are the text to find. `what` is where it
 * stands, for errors. Owner of *out: the caller, pattern_destroy. Errors: STATUS_INPUT names the
 * construct; STATUS_MEMORY. */
struct status pattern_create(const char *notation, size_t n, bool literal, const char *what,
                             struct pattern **out);
void pattern_destroy(struct pattern **p);

/* Local. Translates the notation into PCRE2's and appends it to `out`. Pure. */
struct status pattern_translate(const char *notation, size_t n, const char *what,
                                struct strbuf *out);

/* A walk over the matches in one text. */
struct pattern_walk {
    const char *text; /* borrowed, well-formed UTF-8 */
    size_t n;
    size_t at;       /* where the next search starts */
    size_t last_end; /* end of the last match, n + 1 before the first */
};

/* Local. Starts a walk. */
void pattern_walk_init(struct pattern_walk *w, const char *text, size_t n);

/* Local. The next match as [*start, *end); *found is false at the end of the text. An empty match
 * right behind the last match is passed over. Errors: STATUS_REQUEST when the match limit is hit.
 */
struct status pattern_next(struct pattern *p, struct pattern_walk *w, size_t *start, size_t *end,
                           bool *found);

#endif

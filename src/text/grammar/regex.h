/* Regular expressions as paths of an automaton: literals, ., classes, \d \w \s and their opposites,
 * groups, |, *, +, ?, {m,n}. No look-around, back-references, flags or word borders: those are
 * refused by name. Characters are code points; \d \w \s are ASCII. Called by serve/request/guide.c
 * and json_schema.c; tokenizers have PCRE (pattern.h), which makes no automata. */
#ifndef SHOAL_TEXT_GRAMMAR_REGEX_H
#define SHOAL_TEXT_GRAMMAR_REGEX_H

#include "text/grammar/automaton.h"

struct regex_options {
    bool in_string; /* of JSON: what would need an escape there never comes */
    bool searches;  /* anything may stand before and behind, unless ^ and $ say no */
};

/* Local. Adds paths from `from` to *end for the texts of pattern [n_bytes]. ^ may stand at the
 * start and $ at the end of each alternative of the whole. Errors: STATUS_REQUEST says what at
 * which byte; what sticks to n. */
struct status regex_add(struct nfa *n, uint32_t from, const char *pattern, size_t n_bytes,
                        struct regex_options options, uint32_t *end);

#endif

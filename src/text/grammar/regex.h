/* Adds paths for regular expressions to an automaton's graph: literals, ., classes, \d \w \s \D \W
 * \S, groups, |, *, +, ?, {m,n}. Look-around, back-references, flags and word boundaries are
 * refused. Characters are code points; \d \w \s are ASCII. Called by guide.c, json_scalar.c and
 * json_value.c. Tokenizers use PCRE2 instead (pattern.h), which makes no automata. */
#ifndef SHOAL_TEXT_GRAMMAR_REGEX_H
#define SHOAL_TEXT_GRAMMAR_REGEX_H

#include "text/grammar/automaton.h"

struct regex_options {
    bool in_string; /* the text is inside a JSON string, so characters that need an escape in it
                       are left out */
    bool searches;  /* any text may come before the match, unless its alternative begins with ^, and
                       after it, unless its alternative ends with $ */
};

/* Local. Adds paths from `from` to *end for the texts that match the pattern [n_bytes]. Each
 * top-level alternative may begin with ^ and end with $. Errors: STATUS_REQUEST names the byte and
 * what is wrong there; the error of n (nfa_status). */
struct status regex_add(struct nfa *n, uint32_t from, const char *pattern, size_t n_bytes,
                        struct regex_options options, uint32_t *end);

#endif

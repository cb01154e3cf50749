/* Compares a pattern or a schema with texts that match it and texts that do not, for tests of
 * automata. */
#ifndef SHOAL_TESTS_UTIL_FORMS_H
#define SHOAL_TESTS_UTIL_FORMS_H

#include "text/grammar/automaton.h"

enum { UTIL_TEXTS_MAX = 12 };

/* A pattern or schema, texts that match it, and texts that do not. Unused places are NULL. */
struct util_form {
    const char *spec;
    const char *fit[UTIL_TEXTS_MAX], *other[UTIL_TEXTS_MAX];
};

/* Adds the paths of a pattern or a schema to an automaton. */
typedef struct status util_add_paths(struct nfa *n, uint32_t from, const char *spec, uint32_t *end);
util_add_paths util_of_pattern, util_of_schema;

/* Compiles spec to an automaton, which the caller destroys. */
struct status util_compile(util_add_paths *add, const char *spec, struct dfa **out);

/* As util_compile, and counts the steps of compiling in *work. */
struct status util_compile_counting(util_add_paths *add, const char *spec,
                                    struct grammar_work *work, struct dfa **out);
bool util_accepts(const struct dfa *d, const char *text);

/* util_expect_forms checks that each spec accepts its matching texts and none of its other texts.
 * util_expect_refused checks that each specs[i][0] is refused with an error that contains
 * specs[i][1]. */
void util_expect_forms(util_add_paths *add, const struct util_form *forms, size_t n);
void util_expect_refused(util_add_paths *add, const char *const (*specs)[2], size_t n);

#endif

/* What json_schema.c, json_nested.c, json_scalar.c, json_bounds.c and json_value.c share. Each adds
 * paths from state `from` and gives the state they end in. Failures stick in n: nfa_status is
 * STATUS_REQUEST when it became too large, or STATUS_MEMORY. */
#ifndef SHOAL_TEXT_GRAMMAR_JSON_SCHEMA_PRIVATE_H
#define SHOAL_TEXT_GRAMMAR_JSON_SCHEMA_PRIVATE_H

#include "text/grammar/json_schema.h"

/* Single values, without schemas. */

/* Local. A path for a text that ends with NUL. */
uint32_t json_word(struct nfa *n, uint32_t from, const char *text);

/* Local. `text`, and one blank or none. */
uint32_t json_mark(struct nfa *n, uint32_t from, const char *text);

/* Local. A string's characters, least to most of them (-1: without end), without its quotes. */
uint32_t json_chars(struct nfa *n, uint32_t from, int64_t least, int64_t most);

/* Local. Any string, number (18 digits, 17 behind the point, an exponent of 2), boolean or null. */
uint32_t json_string(struct nfa *n, uint32_t from);
struct status json_number(struct nfa *n, uint32_t from, uint32_t *end);
uint32_t json_boolean(struct nfa *n, uint32_t from);

/* Local. The integers of [low, high], of 18 digits at most. */
uint32_t json_integer(struct nfa *n, uint32_t from, int64_t low, int64_t high);

enum { JSON_INTEGER_DIGITS = 18 };

/* Local. Any value, object or array, with so many levels in it. */
struct status json_any(struct nfa *n, uint32_t from, int depth, uint32_t *end);
struct status json_any_object(struct nfa *n, uint32_t from, int depth, uint32_t *end);
struct status json_any_array(struct nfa *n, uint32_t from, int depth, uint32_t *end);

/* Bounds of numbers: those that are not given are infinite. A bound that is `out` is no value. */
struct json_bounds {
    double low, high;
    bool low_is_out, high_is_out;
};

/* Local. The numbers between bounds, as decimals of JSON_BOUND_DIGITS digits at most and without
 * exponents: as doubles they are on the same side of a bound as in decimals. */
struct status json_bounded(struct nfa *n, uint32_t from, const struct json_bounds *b,
                           uint32_t *end);

enum { JSON_BOUND_DIGITS = 15 };

/* Schemas: what holds at one place is a list of parts, each an object whose keywords count as far
 * as they are no $ref, allOf, anyOf or oneOf, which stand in the list themselves. */

enum { JSON_PARTS_MAX = 32, JSON_CHOICES_MAX = 16 };

struct json_parts {
    const struct js_node *part[JSON_PARTS_MAX];
    size_t n;
    const struct js_node *choice[JSON_CHOICES_MAX]; /* lists; of each, one schema holds as well */
    uint32_t chain[JSON_CHOICES_MAX];               /* the parts that led to it, as bits */
    size_t n_choices;
    bool is_void; /* nothing can be all of it */
};

struct json_walk; /* json_schema.c */

/* Local. The graph that a walk adds to. */
struct nfa *json_walk_nfa(struct json_walk *w);

/* Local. The texts that all schemas [n] accept. */
struct status json_add_all(struct json_walk *w, uint32_t from, const struct js_node *const *schema,
                           size_t n, uint32_t *end);

/* Local. The same for parts whose type is known. Keywords that belong to no allowed type were
 * refused before. */
struct status json_add_object(struct json_walk *w, uint32_t from, const struct json_parts *all,
                              uint32_t *end);
struct status json_add_array(struct json_walk *w, uint32_t from, const struct json_parts *all,
                             uint32_t *end);
struct status json_add_string(struct nfa *n, uint32_t from, const struct json_parts *all,
                              uint32_t *end);
struct status json_add_number(struct nfa *n, uint32_t from, const struct json_parts *all,
                              bool is_integer, uint32_t *end);

/* Local. Whether some part has the keyword. */
bool json_has(const struct json_parts *all, const char *key);

/* Local. A count that a keyword may narrow: the largest of all parts (`is_least`), or the smallest
 * (*out < 0: none yet). */
struct status json_read_count(const struct json_parts *all, const char *key, bool is_least,
                              int64_t *out);

/* Local. What nothing can be: a sentence where one schema says so itself, else no path, as other
 * choices may be left. */
struct status json_contradiction(struct nfa *n, const struct json_parts *all, const char *sentence,
                                 uint32_t *end);

#endif

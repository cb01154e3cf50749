/* Shared by json_schema.c, json_nested.c, json_scalar.c, json_bounds.c and json_value.c. Functions
 * with `from` add paths from that state and return the state in which the paths end, or set *end to
 * it. Errors of the graph stick to n (nfa_status): STATUS_REQUEST when it is too large, or
 * STATUS_MEMORY. */
#ifndef SHOAL_TEXT_GRAMMAR_JSON_SCHEMA_PRIVATE_H
#define SHOAL_TEXT_GRAMMAR_JSON_SCHEMA_PRIVATE_H

#include "text/grammar/json_schema.h"

/* --- json_value.c: strings, numbers, and values without a schema --- */

/* Local. Adds a path for `text`, which is NUL-terminated. */
uint32_t json_word(struct nfa *n, uint32_t from, const char *text);

/* Local. Adds paths for `text` followed by one blank or none. */
uint32_t json_mark(struct nfa *n, uint32_t from, const char *text);

/* Local. Adds paths for `least` to `most` characters (most -1: no limit), without quotes. */
uint32_t json_chars(struct nfa *n, uint32_t from, int64_t least, int64_t most);

/* Local. Add paths for any string, number or boolean. A number has at most 18 digits before the
 * point, 17 after it and 2 in its exponent. */
uint32_t json_string(struct nfa *n, uint32_t from);
struct status json_number(struct nfa *n, uint32_t from, uint32_t *end);
uint32_t json_boolean(struct nfa *n, uint32_t from);

/* Local. Adds paths for the integers in [low, high] of at most JSON_INTEGER_DIGITS digits. */
uint32_t json_integer(struct nfa *n, uint32_t from, int64_t low, int64_t high);

enum { JSON_INTEGER_DIGITS = 18 };

/* Local. Add paths for any value, object or array with at most `depth` levels of nesting; an array
 * of numbers has one. */
struct status json_any(struct nfa *n, uint32_t from, int depth, uint32_t *end);
struct status json_any_object(struct nfa *n, uint32_t from, int depth, uint32_t *end);
struct status json_any_array(struct nfa *n, uint32_t from, int depth, uint32_t *end);

/* --- json_bounds.c --- */

/* Bounds on numbers; a missing bound is infinite. low_is_out, high_is_out: the bound itself is
 * excluded. */
struct json_bounds {
    double low, high;
    bool low_is_out, high_is_out;
};

/* Local. Adds paths for the numbers between the bounds, as decimals without exponents and with at
 * most JSON_BOUND_DIGITS digits in all. Read as a double, such a decimal is never beyond a bound
 * and never equal to an excluded one, because different decimals of 15 digits are different doubles
 * (DBL_DIG). */
struct status json_bounded(struct nfa *n, uint32_t from, const struct json_bounds *b,
                           uint32_t *end);

enum { JSON_BOUND_DIGITS = 15 };

/* --- json_schema.c, json_nested.c, json_scalar.c: schemas --- */

/* The schemas that must all hold at one place ("parts"): the schema itself, and those that its $ref
 * and allOf add. All keywords of all parts must hold, and at least one schema of each anyOf and
 * oneOf. */

enum { JSON_PARTS_MAX = 32, JSON_CHOICES_MAX = 16 };

struct json_parts {
    const struct js_node *part[JSON_PARTS_MAX];
    size_t n;
    const struct js_node *choice[JSON_CHOICES_MAX]; /* the lists of anyOf and oneOf */
    uint32_t chain[JSON_CHOICES_MAX];               /* the parts that led to each list, as bits */
    size_t n_choices;
    bool is_void; /* no value fulfils all parts */
};

struct json_walk; /* json_schema.c */

/* Local. Returns the graph to which the walk adds. */
struct nfa *json_walk_nfa(struct json_walk *w);

/* Local. Adds paths for the texts that all schemas [n] accept. */
struct status json_add_all(struct json_walk *w, uint32_t from, const struct js_node *const *schema,
                           size_t n, uint32_t *end);

/* Local. Add paths for the values of one type (object, array, string or number) that all parts
 * accept. The caller has refused keywords that belong to no allowed type. */
struct status json_add_object(struct json_walk *w, uint32_t from, const struct json_parts *all,
                              uint32_t *end);
struct status json_add_array(struct json_walk *w, uint32_t from, const struct json_parts *all,
                             uint32_t *end);
struct status json_add_string(struct nfa *n, uint32_t from, const struct json_parts *all,
                              uint32_t *end);
struct status json_add_number(struct nfa *n, uint32_t from, const struct json_parts *all,
                              bool is_integer, uint32_t *end);

/* Local. True when any part has the keyword. */
bool json_has(const struct json_parts *all, const char *key);

/* Local. Reads a count that several parts may give. With is_least raises *out to the largest of
 * their values; otherwise lowers *out to the smallest. *out below 0: no value yet. Errors:
 * STATUS_REQUEST for a value that is not a count. */
struct status json_read_count(const struct json_parts *all, const char *key, bool is_least,
                              int64_t *out);

/* Local. Call it when no value fulfils the parts. With a single part, which contradicts itself:
 * STATUS_REQUEST with the sentence. With several parts: OK and no path to *end, because another
 * choice of an anyOf may be possible. */
struct status json_contradiction(struct nfa *n, const struct json_parts *all, const char *sentence,
                                 uint32_t *end);

#endif

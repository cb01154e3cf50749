/* What json_schema.c and json_value.c share: single values, without schemas. Each adds paths from
 * state `from` and gives the state they end in. Failures stick in n: nfa_status is STATUS_REQUEST
 * when it became too large, or STATUS_MEMORY. */
#ifndef SHOAL_TEXT_JSON_SCHEMA_PRIVATE_H
#define SHOAL_TEXT_JSON_SCHEMA_PRIVATE_H

#include "text/json_schema.h"

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

#endif

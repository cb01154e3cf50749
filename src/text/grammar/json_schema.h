/* JSON Schema (2020-12, a part of it) as paths of an automaton: texts that parse as JSON and that
 * the schema accepts. What a finite automaton cannot hold, or is not here, is refused by name.
 * Called by serve/request/guide.c. */
#ifndef SHOAL_TEXT_GRAMMAR_JSON_SCHEMA_H
#define SHOAL_TEXT_GRAMMAR_JSON_SCHEMA_H

#include "base/json.h"
#include "text/grammar/automaton.h"

/* How deep arrays and objects stand in each other where no schema says what is in them, and a
 * schema in itself. */
enum { JSON_ANY_DEPTH = 4 };

/* Local. Adds paths from `from` to *end. Understood: true, {}; type (one or several), enum, const,
 * anyOf, oneOf (as anyOf), allOf, $ref within the schema, into itself JSON_ANY_DEPTH deep; of
 * objects properties, required, additionalProperties (alone, a schema of all values); of arrays
 * items, prefixItems (none but those of items follow), minItems, maxItems; of strings minLength,
 * maxLength, pattern, format (date, time, date-time, uuid; others say nothing); of numbers minimum,
 * maximum, exclusiveMinimum, exclusiveMaximum; annotations. All that stands in one schema, and in
 * the members of its allOf, holds together, so an object has the properties of all of them. Members
 * come in the schema's order, no others than it names; one blank or none may follow a comma or
 * colon. Errors: STATUS_REQUEST names the keyword; what sticks to n. */
struct status json_schema_add(struct nfa *n, uint32_t from, const struct js_node *schema,
                              uint32_t *end);

/* Local. The same for any object, JSON_ANY_DEPTH deep. */
struct status json_schema_any_object(struct nfa *n, uint32_t from, uint32_t *end);

#endif

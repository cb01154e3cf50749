/* Adds paths for a JSON Schema to an automaton's graph: the JSON texts that the schema accepts.
 * Supports a part of JSON Schema 2020-12; other keywords are refused by name. Called by
 * serve/request/guide.c. */
#ifndef SHOAL_TEXT_GRAMMAR_JSON_SCHEMA_H
#define SHOAL_TEXT_GRAMMAR_JSON_SCHEMA_H

#include "base/json.h"
#include "text/grammar/automaton.h"

/* How deeply arrays and objects may be nested in a value without a schema, and how often a schema
 * may refer to itself. */
enum { JSON_ANY_DEPTH = 4 };

/* Local. Adds paths from `from` to *end for the texts of a schema.
 * Schemas: true, {}, and objects with the keywords below. Annotations have no effect.
 * Any value: type (one or several), enum, const, anyOf, oneOf (read as anyOf), allOf, $ref into the
 *   same schema (into itself up to JSON_ANY_DEPTH times).
 * Objects: properties, required, additionalProperties (without properties: the schema of the value
 *   of every member).
 * Arrays: items, prefixItems (more elements may follow only if there is "items"), minItems,
 *   maxItems.
 * Strings: minLength, maxLength, pattern, format (date, time, date-time, uuid; others are ignored).
 * Numbers: minimum, maximum, exclusiveMinimum, exclusiveMaximum.
 * All keywords of a schema and of its allOf's schemas must hold; an object then has the properties
 * of all these schemas. If there are properties, an object's members come in the order of the
 * schema, and no others are allowed. One blank or none may follow a comma or colon, except in the
 * values of enum and const. Errors: STATUS_REQUEST names the keyword; and those of nfa_status. */
struct status json_schema_add(struct nfa *n, uint32_t from, const struct js_node *schema,
                              uint32_t *end);

/* Local. Adds paths for any object with at most JSON_ANY_DEPTH levels of nesting, itself
 * included. */
struct status json_schema_any_object(struct nfa *n, uint32_t from, uint32_t *end);

#endif

/* Reading the fields of tokenizer.json with errors that name them. Called by the tokenizer's
 * loaders alone. */
#ifndef SHOAL_TEXT_JSON_READ_H
#define SHOAL_TEXT_JSON_READ_H

#include "base/json.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

/* Local. Refuses fields that are not in the NULL-terminated list: an unknown field may change ids.
 * `where` names the object. Errors: STATUS_INPUT. */
struct status json_known_fields(const struct js_node *object, const char *where,
                                const char *const *known);

/* Local. A boolean field, or the default when it is missing or null. Errors: STATUS_INPUT. */
struct status json_bool_field(const struct js_node *object, const char *key, const char *where,
                              bool absent, bool *out);

/* Local. A string that must be there; borrowed from the document. Errors: STATUS_INPUT. */
struct status json_string_field(const struct js_node *object, const char *key, const char *where,
                                const char **out, size_t *n);

/* Local. The "type" of a component: a string without NULs. Errors: STATUS_INPUT. */
struct status json_type_field(const struct js_node *object, const char *where, const char **out);

#endif

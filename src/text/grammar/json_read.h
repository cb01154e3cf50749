/* Reads fields of tokenizer.json; errors name the field. Called only by the tokenizer's loaders. */
#ifndef SHOAL_TEXT_GRAMMAR_JSON_READ_H
#define SHOAL_TEXT_GRAMMAR_JSON_READ_H

#include "base/json.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

/* Local. Refuses fields that are not in the NULL-terminated list, because an unknown field may
 * change ids. `where` names the object in errors, here and below. Errors: STATUS_INPUT. */
struct status json_known_fields(const struct js_node *object, const char *where,
                                const char *const *known);

/* Local. Reads a boolean field; *out is `absent` when the field is missing or null. Errors:
 * STATUS_INPUT. */
struct status json_bool_field(const struct js_node *object, const char *key, const char *where,
                              bool absent, bool *out);

/* Local. Reads a required string, borrowed from the document. Errors: STATUS_INPUT. */
struct status json_string_field(const struct js_node *object, const char *key, const char *where,
                                const char **out, size_t *n);

/* Local. Reads the "type" of a component, a string without NULs. Errors: STATUS_INPUT. */
struct status json_type_field(const struct js_node *object, const char *where, const char **out);

/* Local. Reads a string of exactly one code point into bytes[4] and *n. Errors: STATUS_INPUT. */
struct status json_char_field(const struct js_node *object, const char *key, const char *where,
                              char bytes[4], size_t *n);

enum json_prepend { JSON_PREPEND_ALWAYS, JSON_PREPEND_FIRST, JSON_PREPEND_NEVER };

/* The fields of a Metaspace, which is a pre-tokenizer and also a decoder. */
struct json_metaspace {
    char blank[4]; /* [n_blank]: the character that represents a blank */
    size_t n_blank;
    enum json_prepend prepend; /* before which pieces the character is put */
    bool split;                /* each such character begins a new piece */
};

/* Local. Reads the fields of a Metaspace object. Errors: STATUS_INPUT. */
struct status json_metaspace_fields(const struct js_node *object, const char *where,
                                    struct json_metaspace *out);

#endif

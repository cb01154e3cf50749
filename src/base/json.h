/* Reads JSON. Wraps the JSON library (jansson) in one file, so that it can be replaced. Refuses
 * duplicate keys, bad UTF-8 and nesting deeper than the library's limit (2048). Named js_ because
 * the library owns json_. Nodes are borrowed from their document. Object members keep the order of
 * the text. */
#ifndef SHOAL_BASE_JSON_H
#define SHOAL_BASE_JSON_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

enum js_type {
    JS_NULL,
    JS_BOOL,
    JS_INT,
    JS_REAL,
    JS_STRING,
    JS_ARRAY,
    JS_OBJECT,
};

struct js_doc;  /* owns a parsed text */
struct js_node; /* borrowed, lives as long as its document */

/* Local. Parses n bytes; `what` names them in the error. Errors: STATUS_INPUT, STATUS_MEMORY. */
struct status js_parse(const char *text, size_t n, const char *what, struct js_doc **out);

/* Local. As js_parse, but a number too large is no error: an integer beyond 64 bits becomes the
 * nearest real number, a number beyond the range of doubles the largest double of its sign.
 * *is_rounded says whether any did. Errors: as js_parse. */
struct status js_parse_rounding(const char *text, size_t n, const char *what, struct js_doc **out,
                                bool *is_rounded);
void js_destroy(struct js_doc **doc);
const struct js_node *js_root(const struct js_doc *doc);

/* Local. All accept a NULL node: its type is null, js_get and js_at return NULL, counts are 0. */
enum js_type js_type(const struct js_node *node);
const struct js_node *js_get(const struct js_node *object, const char *key);
const struct js_node *js_at(const struct js_node *array, size_t i);
size_t js_count(const struct js_node *array_or_object);

/* Local. Gives the next member of an object, in the order of the text; start with *it = NULL. False
 * at the end. */
bool js_next(const struct js_node *object, const void **it, const char **key,
             const struct js_node **value);

/* Local. Read a value; false when the node has another type. js_number takes ints and reals. */
bool js_int(const struct js_node *node, int64_t *out);
bool js_number(const struct js_node *node, double *out);
bool js_bool(const struct js_node *node, bool *out);
/* Returns NULL, without setting *n, when the node is no string. The bytes may contain NULs; n may
 * be NULL. */
const char *js_string(const struct js_node *node, size_t *n);

/* Local. Sets *out to the compact text of a node (object members in their order), to be freed with
 * mem_free. Errors: STATUS_MEMORY. */
struct status js_dump(const struct js_node *node, char **out, size_t *n);

#endif

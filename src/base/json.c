/* Reads JSON with jansson. */
#include "base/json.h"

#include "base/mem.h"
#include "base/strbuf.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A js_node is a json_t of jansson; a js_doc is the root node, and owns its only reference. */
static json_t *as_json(const struct js_node *node)
{
    union {
        const struct js_node *node;
        json_t *json;
    } u = {.node = node};
    return u.json;
}

static const struct js_node *as_node(const json_t *json)
{
    return (const struct js_node *)json;
}

/* Set when an allocation of the library failed. The library reports some failed allocations as bad
 * JSON and ignores others; its allocator takes no context, so this is kept per thread. */
static _Thread_local bool has_failed;

static void *json_allocate(size_t n)
{
    void *p = malloc(n);
    has_failed |= p == NULL;
    return p;
}

static struct status json_parse(const char *text, size_t n, const char *what, struct js_doc **out,
                                bool *has_large_number)
{
    *out = NULL;
    *has_large_number = false;
    json_error_t error;
    json_set_alloc_funcs(json_allocate, free);
    has_failed = false;
    json_t *root =
        json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, &error);
    if (has_failed) {
        json_decref(root);
        return status_make(STATUS_MEMORY, "%s: %zu bytes of JSON: no memory for their values", what,
                           n);
    }
    if (root == NULL) {
        *has_large_number = json_error_code(&error) == json_error_numeric_overflow;
        if (memchr(text, '\n', n) == NULL) /* one line: its caller knows the line number */
            return status_make(STATUS_INPUT, "%s: column %d: %s", what, error.column, error.text);
        return status_make(STATUS_INPUT, "%s: line %d, column %d: %s", what, error.line,
                           error.column, error.text);
    }
    *out = (struct js_doc *)root;
    return status_ok();
}

struct status js_parse(const char *text, size_t n, const char *what, struct js_doc **out)
{
    bool ignored;
    return json_parse(text, n, what, out, &ignored);
}

static const char *skip_digits(const char *c)
{
    while (*c >= '0' && *c <= '9') c++;
    return c;
}

/* True when the NUL-terminated text is a JSON number (RFC 8259, section 6). */
static bool is_number(const char *c)
{
    if (*c == '-') c++;
    const char *end = *c == '0' ? c + 1 : skip_digits(c);
    if (end == c) return false;
    c = end;
    if (*c == '.') {
        end = skip_digits(c + 1);
        if (end == c + 1) return false;
        c = end;
    }
    if (*c == 'e' || *c == 'E') {
        c += c[1] == '+' || c[1] == '-' ? 2 : 1;
        end = skip_digits(c);
        if (end == c) return false;
        c = end;
    }
    return *c == '\0';
}

/* Appends the number (n bytes) in a form that the library accepts: unchanged, with ".0", or the
 * real number that is largest in magnitude, with its sign. A malformed number stays unchanged. */
static struct status add_number(struct strbuf *out, const char *number, size_t n)
{
    char *copy = NULL;
    TRY(mem_strndup(&copy, number, n));
    errno = 0;
    (void)strtoll(copy, NULL, 10);
    const bool is_large = errno == ERANGE;
    if (!is_number(copy)) {
        strbuf_add(out, number, n);
    } else if (isfinite(strtod(copy, NULL))) {
        strbuf_add(out, number, n);
        if (is_large && strpbrk(copy, ".eE") == NULL) strbuf_puts(out, ".0");
    } else {
        strbuf_puts(out, number[0] == '-' ? "-1.7976931348623157e308" : "1.7976931348623157e308");
    }
    mem_free(&copy);
    return strbuf_status(out);
}

/* Copies the text, with every number rewritten by add_number. Invalid JSON stays invalid. */
static struct status round_numbers(const char *text, size_t n, struct strbuf *out)
{
    bool in_string = false;
    for (size_t i = 0; i < n;) {
        if (!in_string && (text[i] == '-' || (text[i] >= '0' && text[i] <= '9'))) {
            const size_t begin = i;
            while (i < n && text[i] != '\0' && strchr("+-.0123456789eE", text[i]) != NULL) i++;
            TRY(add_number(out, text + begin, i - begin));
            continue;
        }
        if (text[i] == '"') in_string = !in_string;
        const size_t n_bytes = in_string && text[i] == '\\' && i + 1 < n ? 2 : 1;
        strbuf_add(out, text + i, n_bytes);
        i += n_bytes;
    }
    return strbuf_status(out);
}

struct status js_parse_rounding(const char *text, size_t n, const char *what, struct js_doc **out,
                                bool *is_rounded)
{
    const struct status st = json_parse(text, n, what, out, is_rounded);
    if (!*is_rounded) return st;
    struct strbuf rounded;
    bool ignored;
    strbuf_init(&rounded);
    struct status again = round_numbers(text, n, &rounded);
    if (!status_failed(&again)) again = json_parse(rounded.data, rounded.n, what, out, &ignored);
    strbuf_fini(&rounded);
    return again;
}

void js_destroy(struct js_doc **doc)
{
    if (*doc != NULL) json_decref((json_t *)*doc);
    *doc = NULL;
}

const struct js_node *js_root(const struct js_doc *doc)
{
    return (const struct js_node *)doc;
}

enum js_type js_type(const struct js_node *node)
{
    if (node == NULL) return JS_NULL;
    switch (json_typeof(as_json(node))) {
    case JSON_OBJECT:
        return JS_OBJECT;
    case JSON_ARRAY:
        return JS_ARRAY;
    case JSON_STRING:
        return JS_STRING;
    case JSON_INTEGER:
        return JS_INT;
    case JSON_REAL:
        return JS_REAL;
    case JSON_TRUE:
    case JSON_FALSE:
        return JS_BOOL;
    default:
        return JS_NULL;
    }
}

const struct js_node *js_get(const struct js_node *object, const char *key)
{
    return as_node(json_object_get(as_json(object), key));
}

const struct js_node *js_at(const struct js_node *array, size_t i)
{
    return as_node(json_array_get(as_json(array), i));
}

size_t js_count(const struct js_node *node)
{
    if (node == NULL) return 0;
    return json_is_object(as_json(node)) ? json_object_size(as_json(node))
                                         : json_array_size(as_json(node));
}

bool js_next(const struct js_node *object, const void **it, const char **key,
             const struct js_node **value)
{
    json_t *o = as_json(object);
    void *next = *it == NULL ? json_object_iter(o) : json_object_iter_next(o, (void *)*it);
    *it = next;
    if (next == NULL) return false;
    *key = json_object_iter_key(next);
    *value = as_node(json_object_iter_value(next));
    return true;
}

bool js_int(const struct js_node *node, int64_t *out)
{
    if (js_type(node) != JS_INT) return false;
    *out = json_integer_value(as_json(node));
    return true;
}

bool js_number(const struct js_node *node, double *out)
{
    const enum js_type t = js_type(node);
    if (t != JS_INT && t != JS_REAL) return false;
    *out = json_number_value(as_json(node));
    return true;
}

bool js_bool(const struct js_node *node, bool *out)
{
    if (js_type(node) != JS_BOOL) return false;
    *out = json_is_true(as_json(node));
    return true;
}

const char *js_string(const struct js_node *node, size_t *n)
{
    if (js_type(node) != JS_STRING) return NULL;
    if (n != NULL) *n = json_string_length(as_json(node));
    return json_string_value(as_json(node));
}

struct status js_dump(const struct js_node *node, char **out, size_t *n)
{
    *out = NULL;
    char *text = json_dumps(as_json(node), JSON_COMPACT | JSON_ENCODE_ANY);
    if (text == NULL) return status_make(STATUS_MEMORY, "JSON text: could not be written");
    *n = strlen(text);
    const struct status st = mem_strndup(out, text, *n);
    free(text);
    return st;
}

/* Reads and checks fields of tokenizer.json. */
#include "text/grammar/json_read.h"

#include "base/utf8.h"

#include <assert.h>
#include <string.h>

struct status json_known_fields(const struct js_node *object, const char *where,
                                const char *const *known)
{
    if (js_type(object) != JS_OBJECT) {
        return status_make(STATUS_INPUT, "%s: expected an object", where);
    }
    const void *it = NULL;
    const char *key;
    const struct js_node *value;
    while (js_next(object, &it, &key, &value)) {
        size_t i = 0;
        while (known[i] != NULL && strcmp(known[i], key) != 0) i++;
        if (known[i] == NULL) {
            return status_make(STATUS_INPUT, "%s: the field '%.80s' is not understood", where, key);
        }
    }
    return status_ok();
}

struct status json_bool_field(const struct js_node *object, const char *key, const char *where,
                              bool absent, bool *out)
{
    const struct js_node *value = js_get(object, key);
    *out = absent;
    if (js_type(value) == JS_NULL) return status_ok();
    if (js_bool(value, out)) return status_ok();
    return status_make(STATUS_INPUT, "%s: '%s' must be true or false", where, key);
}

struct status json_string_field(const struct js_node *object, const char *key, const char *where,
                                const char **out, size_t *n)
{
    *out = js_string(js_get(object, key), n);
    if (*out != NULL) return status_ok();
    return status_make(STATUS_INPUT, "%s: '%s' is missing or no string", where, key);
}

struct status json_type_field(const struct js_node *object, const char *where, const char **out)
{
    size_t n;
    TRY(json_string_field(object, "type", where, out, &n));
    assert(*out != NULL);
    if (strlen(*out) == n) return status_ok();
    return status_make(STATUS_INPUT, "%s: 'type' holds a NUL", where);
}

struct status json_char_field(const struct js_node *object, const char *key, const char *where,
                              char bytes[4], size_t *n)
{
    const char *text;
    size_t step;
    TRY(json_string_field(object, key, where, &text, n));
    if (*n == 0 || *n > 4 || !utf8_sequence(text, *n, &step) || step != *n) {
        return status_make(STATUS_INPUT, "%s: '%s' must be one character", where, key);
    }
    memcpy(bytes, text, *n);
    return status_ok();
}

static struct status prepend_field(const struct js_node *object, const char *where,
                                   enum json_prepend *out)
{
    static const char *const NAMES[] = {"always", "first", "never"};
    const char *name;
    size_t n;
    bool blank;
    *out = JSON_PREPEND_ALWAYS;
    if (js_get(object, "prepend_scheme") != NULL) {
        TRY(json_string_field(object, "prepend_scheme", where, &name, &n));
        int i = 0;
        while (i < 3 && strcmp(NAMES[i], name) != 0) i++;
        if (i == 3) {
            return status_make(STATUS_INPUT, "%s: the prepend_scheme '%.40s' is not known", where,
                               name);
        }
        *out = (enum json_prepend)i;
    }
    TRY(json_bool_field(object, "add_prefix_space", where, true, &blank));
    if (blank || *out == JSON_PREPEND_NEVER) return status_ok();
    return status_make(STATUS_INPUT, "%s: add_prefix_space is false, prepend_scheme is not 'never'",
                       where);
}

struct status json_metaspace_fields(const struct js_node *object, const char *where,
                                    struct json_metaspace *out)
{
    static const char *const KNOWN[] = {
        "type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep", NULL};
    TRY(json_known_fields(object, where, KNOWN));
    TRY(json_char_field(object, "replacement", where, out->blank, &out->n_blank));
    TRY(json_bool_field(object, "split", where, true, &out->split));
    return prepend_field(object, where, &out->prepend);
}

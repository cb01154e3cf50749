/* Fields of tokenizer.json, checked. */
#include "text/json_read.h"

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

/* Single fields of a line, with sentences that name the field, what was expected and found. */
#include "serve/request/request_parse.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

struct status request_bad(struct request *r, const char *code, const char *format, ...)
{
    char text[STATUS_TEXT_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    r->error_code = code;
    return status_make(STATUS_REQUEST, "%s", text);
}

const char *request_type_name(const struct js_node *node)
{
    double number;
    switch (js_type(node)) {
    case JS_BOOL:
        return "a boolean";
    case JS_INT:
        return "an integer";
    case JS_REAL:
        return js_number(node, &number) && fabs(number) >= 0x1p63 ? "a number beyond 64 bits"
                                                                  : "a real number";
    case JS_STRING:
        return "a string";
    case JS_ARRAY:
        return "a list";
    case JS_OBJECT:
        return "an object";
    default:
        return "null";
    }
}

struct status request_read_int(struct request *r, const struct js_node *fields, const char *key,
                               int64_t low, int64_t high, int64_t *value)
{
    const struct js_node *node = js_get(fields, key);
    if (js_type(node) == JS_NULL) return status_ok();
    int64_t found;
    if (!js_int(node, &found)) {
        return request_bad(r, "invalid_request", "%s: expected an integer, found %s", key,
                           request_type_name(node));
    }
    if (found < low || found > high) {
        return request_bad(r, "invalid_request", "%s: expected %lld to %lld, found %lld", key,
                           (long long)low, (long long)high, (long long)found);
    }
    *value = found;
    return status_ok();
}

struct status request_check_id(struct request *r, const struct request_rules *rules,
                               const char *key, int64_t id)
{
    if (id >= 0 && id < rules->vocab_size) return status_ok();
    return request_bad(r, "invalid_request", "%s: expected token ids of 0 to %d, found %lld", key,
                       rules->vocab_size - 1, (long long)id);
}

struct status request_read_id(struct request *r, const struct request_rules *rules, const char *key,
                              const struct js_node *node, int32_t *id)
{
    int64_t found;
    if (!js_int(node, &found)) {
        return request_bad(r, "invalid_request", "%s: expected token ids, found %s", key,
                           request_type_name(node));
    }
    TRY(request_check_id(r, rules, key, found));
    *id = (int32_t)found;
    return status_ok();
}

struct status request_read_real(struct request *r, const struct js_node *fields, const char *key,
                                const char *range, double low, double high, double *value)
{
    const struct js_node *node = js_get(fields, key);
    if (js_type(node) == JS_NULL) return status_ok();
    double found;
    if (!js_number(node, &found)) {
        return request_bad(r, "invalid_request", "%s: expected a number, found %s", key,
                           request_type_name(node));
    }
    if (!isfinite(found) || found < low || found > high) {
        return request_bad(r, "invalid_request", "%s: expected %s, found %g", key, range, found);
    }
    *value = found;
    return status_ok();
}

struct status request_read_bool(struct request *r, const struct js_node *fields, const char *key,
                                bool *value)
{
    const struct js_node *node = js_get(fields, key);
    if (js_type(node) == JS_NULL || js_bool(node, value)) return status_ok();
    return request_bad(r, "invalid_request", "%s: expected a boolean, found %s", key,
                       request_type_name(node));
}

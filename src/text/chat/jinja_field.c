/* Finds the field of a request from which a template's value came. Each value carries the number
 * that jfrom_json gave it. After a failure the JSON is walked again, in the same order, to find the
 * path of the value with that number. */
#include "text/chat/jinja_run.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { PATH_BYTES = 200 };

struct walk {
    uint32_t number, wanted;
    char path[PATH_BYTES];
    size_t n;
};

/* Appends to the path; cuts what does not fit. */
static void append(struct walk *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void append(struct walk *w, const char *format, ...)
{
    const size_t left = sizeof w->path - w->n;
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(w->path + w->n, left, format, args);
    va_end(args);
    if (n > 0) w->n += (size_t)n < left ? (size_t)n : left - 1;
}

/* True when this node is the wanted value or contains it; w->path is then that value's path. */
static bool jinja_field_find(struct walk *w, const struct js_node *node)
{
    const size_t n = w->n;
    const void *it = NULL;
    const char *key;
    const struct js_node *value;
    if (++w->number == w->wanted) return true;
    for (size_t i = 0; js_type(node) == JS_ARRAY && i < js_count(node); i++) {
        append(w, "[%zu]", i);
        if (jinja_field_find(w, js_at(node, i))) return true;
        w->n = n;
    }
    while (js_type(node) == JS_OBJECT && js_next(node, &it, &key, &value)) {
        append(w, ".%.60s", key);
        if (jinja_field_find(w, value)) return true;
        w->n = n;
    }
    w->path[n] = '\0';
    return false;
}

static bool find_in_vars(const struct jrun *r, struct walk *w)
{
    for (size_t i = 0; i < r->n_vars; i++) {
        const struct jinja_var *v = &r->vars[i];
        if (v->kind != JINJA_VAR_JSON || !jhas_var(r, v->name)) continue;
        w->n = 0;
        append(w, "%.60s", v->name);
        if (jinja_field_find(w, v->node)) return true;
    }
    return false;
}

/* Returns the name of a value's JSON type, for a sentence ("nothing" for undefined); NULL if JSON
 * has no such type. */
static const char *json_type(const struct jvalue *v)
{
    switch ((enum jvalue_type)v->type) {
    case JV_UNDEFINED:
        return "nothing";
    case JV_NONE:
        return "null";
    case JV_BOOL:
        return "a boolean";
    case JV_INT:
    case JV_FLOAT:
        return "a number";
    case JV_TEXT:
        return "a string";
    case JV_LIST:
        return "a list";
    case JV_DICT:
        return "an object";
    default:
        return NULL;
    }
}

bool jfail_field(struct jrun *r, const struct jvalue *v, const struct jvalue *other)
{
    struct walk w = {.wanted = v->json};
    const char *expected = json_type(other), *found = json_type(v);
    const bool says_type = other->type != JV_UNDEFINED && other->type != JV_NONE;
    if (v->json == 0 || expected == NULL || found == NULL || !says_type) return false;
    if (status_failed(&r->st) || !find_in_vars(r, &w)) return false;
    if (v->type == JV_UNDEFINED) append(&w, ".%.60s", v->u.name);
    r->st =
        status_make(STATUS_REQUEST, "%s: this template takes %s, found %s (chat template, line %d)",
                    w.path, expected, found, r->line);
    return true;
}

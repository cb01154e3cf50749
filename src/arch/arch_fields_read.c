/* Reads config.json's fields by the table in arch_fields.c. */
#include "arch/arch_fields_private.h"

#include <stdio.h>
#include <string.h>

bool arch_field_is_off(const struct js_node *node)
{
    bool flag;
    double number;
    size_t n;
    if (js_bool(node, &flag)) return !flag;
    if (js_number(node, &number)) return number == 0;
    if (js_string(node, &n) != NULL) return n == 0;
    return js_count(node) == 0;
}

struct status arch_refuse_fields(const struct arch_reading *r, const char *const *keys, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (arch_field_is_off(js_get(r->root, keys[i]))) continue;
        return status_make(STATUS_INPUT, "%s: %s is not implemented for %s", r->what, keys[i],
                           r->m.family->title);
    }
    return status_ok();
}

static bool applies(const struct arch_field *f, const struct arch_family *family)
{
    return f->only == 0 || *((const bool *)family + f->only);
}

/* Returns the key's first row that applies to the family; if there is none, another row of the key;
 * NULL: the key has no row. */
static const struct arch_field *field_of(const char *key, const struct arch_family *family)
{
    const struct arch_field *found = NULL;
    for (size_t i = 0; arch_field_at(i) != NULL; i++) {
        const struct arch_field *f = arch_field_at(i);
        if (strcmp(key, f->key) != 0) continue;
        if (applies(f, family)) return f;
        found = f;
    }
    return found;
}

static struct status wrong_count(const struct arch_reading *r, const struct arch_field *f,
                                 const char *found)
{
    return status_make(STATUS_INPUT,
                       "%s: field \"%s\": expected an integer from %d to %.0f, found "
                       "%s",
                       r->what, f->key, f->may_be_zero ? 0 : 1, f->most, found);
}

static struct status field_missing(const struct arch_reading *r, const struct arch_field *f)
{
    if (f->type == FIELD_COUNT) return wrong_count(r, f, "nothing");
    return status_make(STATUS_INPUT, "%s: field \"%s\": expected %s, found nothing", r->what,
                       f->key, f->type == FIELD_SWITCH ? "true or false" : "a number");
}

struct status arch_field_missing(const struct arch_reading *r, const char *key)
{
    return field_missing(r, field_of(key, r->m.family));
}

static struct status arch_fields_read_count(struct arch_reading *r, const struct arch_field *f,
                                            const struct js_node *node, void *to)
{
    int64_t value;
    char found[32];
    if (!js_int(node, &value)) return wrong_count(r, f, "another type");
    snprintf(found, sizeof found, "%lld", (long long)value);
    if (value < (f->may_be_zero ? 0 : 1) || (double)value > f->most)
        return wrong_count(r, f, found);
    *(uint32_t *)to = (uint32_t)value;
    return status_ok();
}

static struct status arch_fields_read_number(struct arch_reading *r, const struct arch_field *f,
                                             const struct js_node *node, void *to)
{
    double value;
    if (!js_number(node, &value)) {
        return status_make(STATUS_INPUT, "%s: field \"%s\": expected a number, found another type",
                           r->what, f->key);
    }
    if (!(value > f->above && value <= f->most) && !(f->may_be_zero && value == 0)) {
        return status_make(STATUS_INPUT,
                           "%s: field \"%s\": expected a number above %g, at most %g, found %g",
                           r->what, f->key, f->above, f->most, value);
    }
    if (f->type == FIELD_FLOAT) *(float *)to = (float)value;
    if (f->type == FIELD_DOUBLE) *(double *)to = value;
    return status_ok();
}

static struct status read_true(const struct arch_reading *r, const struct arch_field *f,
                               const struct js_node *node)
{
    bool is_true;
    if (js_bool(node, &is_true) && is_true) return status_ok();
    return status_make(STATUS_INPUT, "%s: %s: expected true for %s, found another value", r->what,
                       f->key, r->m.family->title);
}

static struct status read_ones(const struct arch_reading *r, const struct arch_field *f,
                               const struct js_node *node)
{
    if (js_type(node) != JS_ARRAY) {
        return status_make(STATUS_INPUT, "%s: field \"%s\": expected a list, found another type",
                           r->what, f->key);
    }
    for (size_t i = 0; i < js_count(node); i++) {
        int64_t value;
        if (js_int(js_at(node, i), &value) && value == 1) continue;
        return status_make(STATUS_INPUT, "%s: %s: entry %zu is not 1, which is not implemented",
                           r->what, f->key, i);
    }
    return status_ok();
}

static struct status read_field(struct arch_reading *r, const struct arch_field *f,
                                const struct js_node *node)
{
    void *to = (char *)r + f->at;
    switch (f->type) {
    case FIELD_COUNT:
        return arch_fields_read_count(r, f, node, to);
    case FIELD_FLOAT:
    case FIELD_DOUBLE:
        return arch_fields_read_number(r, f, node, to);
    case FIELD_SWITCH:
        if (js_bool(node, to)) return status_ok();
        return status_make(STATUS_INPUT,
                           "%s: field \"%s\": expected true or false, found another type", r->what,
                           f->key);
    case FIELD_WORD: {
        const char *word = js_string(node, NULL);
        if (word != NULL && strcmp(word, f->word) == 0) return status_ok();
        return status_make(STATUS_INPUT, "%s: %s \"%s\" is not implemented", r->what, f->key,
                           word == NULL ? "(no text)" : word);
    }
    case FIELD_TRUE:
        return read_true(r, f, node);
    case FIELD_ONES:
        return read_ones(r, f, node);
    case FIELD_NODE:
        *(const struct js_node **)to = node;
        return status_ok();
    default:
        return status_ok();
    }
}

/* Refuses a field that does not apply to the family, if its row says so (refused_elsewhere) and its
 * value has an effect elsewhere. */
static struct status check_elsewhere(const struct arch_reading *r, const struct arch_field *f,
                                     const struct js_node *node)
{
    double value;
    const bool is_neutral = f->otherwise == 1 && js_number(node, &value) && value == 1;
    if (!f->refused_elsewhere || arch_field_is_off(node) || is_neutral) return status_ok();
    return status_make(STATUS_INPUT, "%s: %s is not implemented for %s", r->what, f->key,
                       r->m.family->title);
}

static void set_default(struct arch_reading *r, const struct arch_field *f)
{
    void *to = (char *)r + f->at;
    if (f->otherwise == 0) return;
    if (f->type == FIELD_COUNT) *(uint32_t *)to = (uint32_t)f->otherwise;
    if (f->type == FIELD_FLOAT) *(float *)to = (float)f->otherwise;
    if (f->type == FIELD_DOUBLE) *(double *)to = f->otherwise;
}

static struct status read_member(struct arch_reading *r, const char *key,
                                 const struct js_node *node)
{
    const struct arch_field *f = field_of(key, r->m.family);
    const bool is_ignored = r->m.family->encoder && arch_encoder_ignores(r->m.family, key);
    if (js_type(node) == JS_NULL || key[0] == '_' || is_ignored) return status_ok();
    if (f == NULL && !arch_field_is_off(node)) {
        return status_make(STATUS_INPUT,
                           "%s: field \"%s\" is set, and shoal does not know whether it changes "
                           "the arithmetic; it is not implemented",
                           r->what, key);
    }
    if (f == NULL) return status_ok();
    return applies(f, r->m.family) ? read_field(r, f, node) : check_elsewhere(r, f, node);
}

struct status arch_fields_read(struct arch_reading *r)
{
    const void *it = NULL;
    const char *key;
    const struct js_node *value;
    for (size_t i = 0; arch_field_at(i) != NULL; i++) {
        const struct arch_field *f = arch_field_at(i);
        if (applies(f, r->m.family)) set_default(r, f);
    }
    while (js_next(r->root, &it, &key, &value)) TRY(read_member(r, key, value));
    for (size_t i = 0; arch_field_at(i) != NULL; i++) {
        const struct arch_field *f = arch_field_at(i);
        if (f->required && field_of(f->key, r->m.family) == f && applies(f, r->m.family) &&
            js_type(js_get(r->root, f->key)) == JS_NULL)
            return field_missing(r, f);
    }
    return status_ok();
}

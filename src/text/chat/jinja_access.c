/* Evaluates attributes, subscripts and slices, as far as Jinja's sandbox allows them. */
#include "text/chat/jinja_value.h"

#include <stdlib.h>
#include <string.h>

static bool undefined_in(struct jrun *r, const struct jvalue *v)
{
    return jfail(r, "'%.60s' is undefined, so it has no attributes or elements", v->u.name);
}

/* Returns the undefined value for a member that v lacks. Copies the first 60 bytes of the name,
 * because the undefined value may outlive it. */
static struct jvalue missing(struct jrun *r, const struct jvalue *v, const struct jtext *name)
{
    const size_t n = name->n < 60 ? name->n : 60;
    char *copy = jget(r, n + 1, 1);
    if (copy != NULL && n > 0) memcpy(copy, name->p, n);
    struct jvalue undefined = jundefined(copy != NULL ? copy : "");
    if (v->type == JV_DICT) undefined.json = v->json;
    return undefined;
}

static bool loop_attr(const struct jloop *l, const struct jtext *name, struct jvalue *out)
{
    static const char *const NAMES[] = {"index",    "index0", "revindex", "revindex0",
                                        "first",    "last",   "length",   "previtem",
                                        "nextitem", "depth",  "depth0"};
    size_t i = 0;
    const size_t n_names = sizeof NAMES / sizeof NAMES[0];
    while (i < n_names &&
           !(strlen(NAMES[i]) == name->n && memcmp(NAMES[i], name->p, name->n) == 0)) {
        i++;
    }
    const int64_t at = (int64_t)l->index0, n = (int64_t)l->n;
    switch (i) {
    case 0:
        *out = jint(at + 1);
        return true;
    case 1:
        *out = jint(at);
        return true;
    case 2:
        *out = jint(n - at);
        return true;
    case 3:
        *out = jint(n - at - 1);
        return true;
    case 4:
        *out = jbool(at == 0);
        return true;
    case 5:
        *out = jbool(at == n - 1);
        return true;
    case 6:
        *out = jint(n);
        return true;
    case 7:
        *out = at > 0 ? l->v[at - 1] : jundefined("loop.previtem");
        return true;
    case 8:
        *out = at + 1 < n ? l->v[at + 1] : jundefined("loop.nextitem");
        return true;
    case 9:
        *out = jint(1);
        return true;
    case 10:
        *out = jint(0);
        return true;
    default:
        return false;
    }
}

static const struct jfunction *method_of(const struct jvalue *v, const struct jtext *name)
{
    const unsigned type = 1u << v->type;
    if (v->type == JV_TEXT) return jfunction_find(JINJA_TEXT_METHODS, name->p, name->n, type);
    return jfunction_find(JINJA_METHODS, name->p, name->n, type);
}

/* Sets *out to a method of v, as a value. False: v has no such method, or memory ran out. */
static bool bind_method(struct jrun *r, const struct jvalue *v, const struct jtext *name,
                        struct jvalue *out)
{
    const struct jfunction *fn = method_of(v, name);
    struct jmethod *m = fn == NULL ? NULL : jget(r, 1, sizeof *m);
    if (m == NULL) return false;
    *m = (struct jmethod){.fn = fn, .self = *v};
    *out = (struct jvalue){.type = JV_METHOD, .u.method = m};
    return true;
}

bool jattr(struct jrun *r, const struct jvalue *v, const struct jtext *name, struct jvalue *out)
{
    if (v->type == JV_UNDEFINED) return undefined_in(r, v);
    if (v->type == JV_LOOP && loop_attr(v->u.loop, name, out)) return true;
    if (bind_method(r, v, name, out)) return true;
    if (status_failed(&r->st)) return false;
    const struct jvalue *found = NULL;
    if (v->type == JV_DICT || v->type == JV_NAMESPACE) {
        const struct jvalue key = {.type = JV_TEXT, .u.text = name};
        found = jdict_get(r, v->u.dict, &key);
    }
    *out = found != NULL ? *found : missing(r, v, name);
    return !status_failed(&r->st);
}

/* Sets *out to the position of index i in n elements; a negative index counts from the end. False:
 * outside [0, n). */
static bool place(int64_t i, size_t n, size_t *out)
{
    if (i < 0) i += (int64_t)n;
    if (i < 0 || i >= (int64_t)n) return false;
    *out = (size_t)i;
    return true;
}

static bool char_item(struct jrun *r, const struct jtext *t, int64_t i, struct jvalue *out)
{
    size_t at;
    if (!jsteps(r, t->n / 16)) return false;
    if (!place(i, jchars(t), &at)) {
        *out = jundefined("a character");
        return true;
    }
    const size_t from = jchar_at(t, at);
    size_t to = from + 1;
    while (to < t->n && ((unsigned char)t->p[to] & 0xC0) == 0x80) to++;
    return jtext_cut(r, t, from, to, out);
}

bool jitem(struct jrun *r, const struct jvalue *v, const struct jvalue *key, struct jvalue *out)
{
    int64_t i;
    size_t at;
    if (v->type == JV_UNDEFINED) return undefined_in(r, v);
    if (v->type == JV_DICT) {
        const struct jvalue *found = jdict_get(r, v->u.dict, key);
        if (status_failed(&r->st)) return false;
        if (found != NULL) {
            *out = *found;
            return true;
        }
    } else if (jas_int(key, &i)) {
        if (v->type == JV_TEXT) return char_item(r, v->u.text, i, out);
        *out = jundefined("an element");
        if (jis_seq(v) && place(i, v->u.seq->n, &at)) *out = v->u.seq->v[at];
        return true;
    }
    if (key->type == JV_TEXT) {
        if (v->type != JV_DICT) return jattr(r, v, key->u.text, out);
        if (bind_method(r, v, key->u.text, out)) return true;
        *out = missing(r, v, key->u.text);
        return !status_failed(&r->st);
    }
    *out = jundefined("an element");
    return true;
}

struct slice {
    int64_t start, stop, step;
};

static int64_t jinja_access_clamp(int64_t i, int64_t low, int64_t high)
{
    return i < low ? low : i > high ? high : i;
}

/* Sets *out to the bounds of a slice of n elements, by Python's rules. */
static bool slice_bounds(struct jrun *r, const struct jvalue part[3], int64_t n, struct slice *out)
{
    int64_t value[3] = {0, 0, 1};
    for (size_t i = 0; i < 3; i++) {
        if (part[i].type == JV_NONE || jas_int(&part[i], &value[i])) continue;
        return jfail(r, "a slice wants integers, not %s", jtype_name(&part[i]));
    }
    const bool back = value[2] < 0;
    if (value[2] == 0) return jfail(r, "a slice with the step 0");
    const int64_t low = back ? -1 : 0, high = back ? n - 1 : n;
    for (size_t i = 0; i < 2; i++) {
        if (part[i].type == JV_NONE) {
            value[i] = (i == 0) == back ? high : low;
            continue;
        }
        if (value[i] < 0) value[i] = value[i] < -n ? low : value[i] + n;
        value[i] = jinja_access_clamp(value[i], low, high);
    }
    const int64_t step = jinja_access_clamp(value[2], -n - 1, n + 1);
    *out = (struct slice){.start = value[0], .stop = value[1], .step = step};
    return true;
}

static size_t slice_length(const struct slice *s)
{
    if (s->step > 0 && s->start < s->stop) {
        return (size_t)((s->stop - s->start - 1) / s->step + 1);
    }
    if (s->step < 0 && s->start > s->stop) {
        return (size_t)((s->start - s->stop - 1) / -s->step + 1);
    }
    return 0;
}

static bool slice_text(struct jrun *r, const struct jtext *t, const struct slice *s,
                       struct jvalue *out)
{
    const size_t n = slice_length(s);
    if (!jsteps(r, t->n / 16)) return false;
    if (s->step == 1 || n == 0) {
        const size_t from = n == 0 ? 0 : jchar_at(t, (size_t)s->start);
        const struct jtext rest = {.p = t->p + from, .n = t->n - from};
        return jtext_cut(r, t, from, from + (n == 0 ? 0 : jchar_at(&rest, n)), out);
    }
    const struct jvalue whole = {.type = JV_TEXT, .u.text = t};
    const struct jvalue *chars;
    size_t n_chars;
    struct jbuild b;
    jbuild_init(&b, r);
    if (!jiterate(r, &whole, &chars, &n_chars)) return false;
    for (size_t i = 0; i < n; i++) {
        if (!jbuild_text(&b, chars[s->start + (int64_t)i * s->step].u.text)) return false;
    }
    return jbuild_end(&b, out);
}

bool jslice(struct jrun *r, const struct jvalue *v, const struct jvalue part[3], struct jvalue *out)
{
    struct slice s;
    if (v->type == JV_UNDEFINED) return undefined_in(r, v);
    if (v->type == JV_TEXT) {
        return slice_bounds(r, part, (int64_t)jchars(v->u.text), &s) &&
               slice_text(r, v->u.text, &s, out);
    }
    if (!jis_seq(v)) {
        *out = jundefined("a slice");
        return true;
    }
    struct jvalue *items;
    if (!slice_bounds(r, part, (int64_t)v->u.seq->n, &s)) return false;
    const size_t n = slice_length(&s);
    if (!jseq_new(r, (enum jvalue_type)v->type, n, &items, out)) return false;
    for (size_t i = 0; i < n; i++) items[i] = v->u.seq->v[s.start + (int64_t)i * s.step];
    return true;
}

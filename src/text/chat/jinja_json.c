/* Converts JSON into values, all marked as a user's, and values into JSON text (the filter
 * tojson). */
#include "text/chat/jinja_json.h"

#include "base/utf8.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static bool from_string(struct jrun *r, const char *p, size_t n, struct jvalue *out)
{
    const struct jtext whole = {.p = p, .user = jones(r, n), .n = n};
    return whole.user != NULL && jtext_cut(r, &whole, 0, n, out);
}

static bool from_array(struct jrun *r, const struct js_node *node, struct jvalue *out)
{
    struct jvalue *v;
    const size_t n = js_count(node);
    if (!jseq_new(r, JV_LIST, n, &v, out)) return false;
    for (size_t i = 0; i < n; i++) {
        if (!jfrom_json(r, js_at(node, i), &v[i])) return false;
    }
    return true;
}

static bool from_object(struct jrun *r, const struct js_node *node, struct jvalue *out)
{
    const void *it = NULL;
    const char *key;
    const struct js_node *value;
    const size_t n = js_count(node);
    if (!jdict_new(r, n, JV_DICT, out) || !jsteps(r, n)) return false;
    struct jdict *d = out->u.dict;
    while (js_next(node, &it, &key, &value)) { /* the parser has already refused duplicate keys */
        struct jpair *p = &d->pairs[d->n++];
        if (!from_string(r, key, strlen(key), &p->key)) return false;
        if (!jfrom_json(r, value, &p->value)) return false;
    }
    return true;
}

static bool from_json(struct jrun *r, const struct js_node *node, struct jvalue *out)
{
    bool b = false;
    int64_t i = 0;
    double f = 0;
    size_t n;
    const char *p;
    switch (js_type(node)) {
    case JS_BOOL:
        js_bool(node, &b);
        *out = jbool(b);
        break;
    case JS_INT:
        js_int(node, &i);
        *out = jint(i);
        break;
    case JS_REAL:
        js_number(node, &f);
        *out = jfloat(f);
        break;
    case JS_STRING:
        p = js_string(node, &n);
        return from_string(r, p, n, out);
    case JS_ARRAY:
        return from_array(r, node, out);
    case JS_OBJECT:
        return from_object(r, node, out);
    default:
        *out = jnone();
        break;
    }
    out->user = true;
    return true;
}

bool jfrom_json(struct jrun *r, const struct js_node *node, struct jvalue *out)
{
    if (!jenter(r)) return false;
    const uint32_t number = ++r->n_json;
    const bool ok = jsteps(r, 1) && from_json(r, node, out);
    out->json = number;
    jleave(r);
    return ok;
}

struct dump {
    struct jbuild b;
    bool ascii, sorted, lines;
    const struct jtext *indent; /* the indentation of one level; used if `lines` */
    const struct jtext *comma, *colon;
    int level;
};

static bool dump_value(struct dump *d, const struct jvalue *v);

/* Writes the escape of c to `out`, or an empty string if c needs none. */
static void json_escape(uint32_t c, bool ascii, char out[16])
{
    out[0] = '\0';
    const char *at = c != 0 && c < 0x80 ? strchr("\"\\\b\f\n\r\t", (int)c) : NULL;
    if (at != NULL) {
        snprintf(out, 16, "\\%c", "\"\\bfnrt"[at - "\"\\\b\f\n\r\t"]);
    } else if (c < 0x20 || (ascii && c > 0x7E && c < 0x10000)) {
        snprintf(out, 16, "\\u%04x", (unsigned)c);
    } else if (ascii && c >= 0x10000) {
        snprintf(out, 16, "\\u%04x\\u%04x", (unsigned)(0xD800 + ((c - 0x10000) >> 10)),
                 (unsigned)(0xDC00 + ((c - 0x10000) & 0x3FF)));
    }
}

static bool dump_text(struct dump *d, const struct jtext *t)
{
    size_t good = 0, step;
    bool ok = jbuild_puts(&d->b, "\"", false);
    for (size_t i = 0; i < t->n && ok; i += step) {
        char escaped[16];
        json_escape(utf8_decode(t->p + i, t->n - i, &step), d->ascii, escaped);
        if (escaped[0] == '\0') continue;
        ok = jbuild_cut(&d->b, t, good, i) && jbuild_puts(&d->b, escaped, jtext_user(t, i));
        good = i + step;
    }
    return ok && jbuild_cut(&d->b, t, good, t->n) && jbuild_puts(&d->b, "\"", false);
}

static bool new_line(struct dump *d)
{
    if (!d->lines) return true;
    bool ok = jbuild_puts(&d->b, "\n", false);
    for (int i = 0; i < d->level && ok; i++) ok = jbuild_text(&d->b, d->indent);
    return ok;
}

static bool dump_seq(struct dump *d, const struct jseq *s)
{
    if (s->n == 0) return jbuild_puts(&d->b, "[]", false);
    d->level++;
    bool ok = jbuild_puts(&d->b, "[", false) && new_line(d);
    for (size_t i = 0; i < s->n && ok; i++) {
        if (i > 0) ok = jbuild_text(&d->b, d->comma) && new_line(d);
        ok = ok && dump_value(d, &s->v[i]);
    }
    d->level--;
    return ok && new_line(d) && jbuild_puts(&d->b, "]", false);
}

static bool dump_key(struct dump *d, const struct jvalue *key)
{
    if (key->type == JV_TEXT) return dump_text(d, key->u.text);
    if (key->type != JV_NONE && !jis_number(key)) {
        return jfail(d->b.r, "tojson: a key that is %s", jtype_name(key));
    }
    return jbuild_puts(&d->b, "\"", false) && dump_value(d, key) && jbuild_puts(&d->b, "\"", false);
}

/* Sets *out to the pairs, sorted by key. */
static bool sorted_pairs(struct jrun *r, const struct jdict *from, const struct jpair **out)
{
    struct jpair *p = jget(r, from->n, sizeof *p);
    if (p == NULL) return false;
    for (size_t i = 0; i < from->n; i++) {
        size_t at = i;
        for (; at > 0; at--) { /* insertion sort: objects are small */
            int order;
            if (!jsteps(r, 1) || !jcompare(r, &from->pairs[i].key, &p[at - 1].key, &order)) {
                return false;
            }
            if (order >= 0) break;
            p[at] = p[at - 1];
        }
        p[at] = from->pairs[i];
    }
    *out = p;
    return true;
}

static bool dump_dict(struct dump *d, const struct jdict *dict)
{
    const struct jpair *p = dict->pairs;
    if (dict->n == 0) return jbuild_puts(&d->b, "{}", false);
    if (d->sorted && !sorted_pairs(d->b.r, dict, &p)) return false;
    d->level++;
    bool ok = jbuild_puts(&d->b, "{", false) && new_line(d);
    for (size_t i = 0; i < dict->n && ok; i++) {
        if (i > 0) ok = jbuild_text(&d->b, d->comma) && new_line(d);
        ok = ok && dump_key(d, &p[i].key) && jbuild_text(&d->b, d->colon) &&
             dump_value(d, &p[i].value);
    }
    d->level--;
    return ok && new_line(d) && jbuild_puts(&d->b, "}", false);
}

static bool dump_float(struct dump *d, const struct jvalue *v)
{
    char text[48];
    jfloat_text(v->u.f, text);
    if (isnan(v->u.f)) snprintf(text, sizeof text, "NaN");
    if (isinf(v->u.f)) snprintf(text, sizeof text, v->u.f > 0 ? "Infinity" : "-Infinity");
    return jbuild_puts(&d->b, text, v->user);
}

static bool dump_inner(struct dump *d, const struct jvalue *v)
{
    switch ((enum jvalue_type)v->type) {
    case JV_NONE:
        return jbuild_puts(&d->b, "null", v->user);
    case JV_BOOL:
        return jbuild_puts(&d->b, v->u.b ? "true" : "false", v->user);
    case JV_INT:
        return jprint(&d->b, v);
    case JV_FLOAT:
        return dump_float(d, v);
    case JV_TEXT:
        return dump_text(d, v->u.text);
    case JV_LIST:
    case JV_TUPLE:
        return dump_seq(d, v->u.seq);
    case JV_DICT:
        return dump_dict(d, v->u.dict);
    default:
        return jfail(d->b.r, "tojson: %s is not JSON", jtype_name(v));
    }
}

static bool dump_value(struct dump *d, const struct jvalue *v)
{
    if (!jenter(d->b.r)) return false;
    const bool ok = jsteps(d->b.r, 1) && dump_inner(d, v);
    jleave(d->b.r);
    return ok;
}

static bool set_indent(struct jrun *r, struct dump *d, const struct jvalue *v)
{
    static const char BLANKS[] = "                ";
    struct jvalue text;
    int64_t n = 0;
    d->lines = v->type == JV_TEXT || jas_int(v, &n);
    if (v->type == JV_TEXT) {
        d->indent = v->u.text;
        return true;
    }
    if (n < 0) n = 0;
    if (n > 16) return jfail(r, "tojson: an indent of more than 16");
    if (!jtext_literal(r, BLANKS + 16 - n, &text)) return false;
    d->indent = text.u.text;
    return true;
}

static bool set_separators(struct jrun *r, struct dump *d, const struct jvalue *v)
{
    struct jvalue comma, colon;
    if (v->type == JV_ABSENT || v->type == JV_NONE) {
        if (!jtext_literal(r, d->lines ? "," : ", ", &comma)) return false;
        if (!jtext_literal(r, ": ", &colon)) return false;
    } else if (jis_seq(v) && v->u.seq->n == 2) {
        comma = v->u.seq->v[0];
        colon = v->u.seq->v[1];
    } else {
        comma = colon = jnone();
    }
    if (comma.type != JV_TEXT || colon.type != JV_TEXT) {
        return jfail(r, "tojson: the separators are two strings");
    }
    d->comma = comma.u.text;
    d->colon = colon.u.text;
    return true;
}

bool jinja_filter_tojson(struct jrun *r, const struct jvalue *self, const struct jvalue *a,
                         struct jvalue *out)
{
    struct dump d = {.ascii = jtruth(&a[0]), .sorted = jtruth(&a[3])};
    jbuild_init(&d.b, r);
    if (!set_indent(r, &d, &a[1]) || !set_separators(r, &d, &a[2])) return false;
    return dump_value(&d, self) && jbuild_end(&d.b, out);
}

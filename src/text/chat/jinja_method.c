/* The methods of strings, mappings, sequences and loops that templates may call. */
#include "text/chat/jinja_value.h"

#include "base/utf8.h"

#include <string.h>
#include <utf8proc.h>

#define METHOD(name)                                                                               \
    static bool name(struct jrun *r, const struct jvalue *self, const struct jvalue *a,            \
                     struct jvalue *out)

static bool given(const struct jvalue *a)
{
    return a->type != JV_ABSENT && a->type != JV_NONE;
}

/* Sets *out to an argument that must be a string; to NULL if the argument is absent or none. */
static bool text_arg(struct jrun *r, const char *method, const struct jvalue *a,
                     const struct jtext **out)
{
    *out = NULL;
    if (!given(a)) return true;
    if (a->type != JV_TEXT) return jfail(r, "'%s' wants a string, not %s", method, jtype_name(a));
    *out = a->u.text;
    return true;
}

static bool int_arg(struct jrun *r, const char *method, const struct jvalue *a, int64_t *out)
{
    if (!given(a) || jas_int(a, out)) return true;
    return jfail(r, "'%s' wants an integer, not %s", method, jtype_name(a));
}

static bool jinja_method_strip(struct jrun *r, const struct jvalue *self, const struct jvalue *a,
                               bool left, bool right, struct jvalue *out)
{
    const struct jtext *chars;
    return text_arg(r, "strip", &a[0], &chars) && jstrip(r, self->u.text, chars, left, right, out);
}

METHOD(text_strip)
{
    return jinja_method_strip(r, self, a, true, true, out);
}

METHOD(text_lstrip)
{
    return jinja_method_strip(r, self, a, true, false, out);
}

METHOD(text_rstrip)
{
    return jinja_method_strip(r, self, a, false, true, out);
}

METHOD(text_upper)
{
    (void)a;
    return jcased(r, self->u.text, JCASE_UPPER, out);
}

METHOD(text_lower)
{
    (void)a;
    return jcased(r, self->u.text, JCASE_LOWER, out);
}

METHOD(text_title)
{
    (void)a;
    return jcased(r, self->u.text, JCASE_TITLE, out);
}

METHOD(text_capitalize)
{
    (void)a;
    return jcased(r, self->u.text, JCASE_CAPITALIZE, out);
}

METHOD(text_replace)
{
    const struct jtext *old, *new;
    int64_t count = -1;
    if (!text_arg(r, "replace", &a[0], &old) || !text_arg(r, "replace", &a[1], &new)) return false;
    if (old == NULL || new == NULL) return jfail(r, "'replace' wants two strings");
    return int_arg(r, "replace", &a[2], &count) && jreplace(r, self->u.text, old, new, count, out);
}

static bool affix(const struct jtext *t, const struct jtext *part, bool end)
{
    if (part->n > t->n) return false;
    return part->n == 0 || memcmp(end ? t->p + t->n - part->n : t->p, part->p, part->n) == 0;
}

static bool has_affix(struct jrun *r, const struct jvalue *self, const struct jvalue *a, bool end,
                      struct jvalue *out)
{
    const struct jvalue *v = a;
    size_t n = 1;
    if (a->type == JV_TUPLE) {
        v = a->u.seq->v;
        n = a->u.seq->n;
    }
    *out = jbool(false);
    for (size_t i = 0; i < n; i++) {
        if (v[i].type != JV_TEXT) {
            return jfail(r, "startswith and endswith want strings, not %s", jtype_name(&v[i]));
        }
        if (affix(self->u.text, v[i].u.text, end)) *out = jbool(true);
    }
    return true;
}

METHOD(text_startswith)
{
    return has_affix(r, self, &a[0], false, out);
}

METHOD(text_endswith)
{
    return has_affix(r, self, &a[0], true, out);
}

METHOD(text_removeprefix)
{
    const struct jtext *t = self->u.text, *part;
    if (!text_arg(r, "removeprefix", &a[0], &part)) return false;
    const bool has = part != NULL && affix(t, part, false);
    return jtext_cut(r, t, has ? part->n : 0, t->n, out);
}

METHOD(text_removesuffix)
{
    const struct jtext *t = self->u.text, *part;
    if (!text_arg(r, "removesuffix", &a[0], &part)) return false;
    const bool has = part != NULL && affix(t, part, true);
    return jtext_cut(r, t, 0, has ? t->n - part->n : t->n, out);
}

/* Returns the number of characters before a byte offset. */
static int64_t chars_before(const struct jtext *t, size_t at)
{
    const struct jtext head = {.p = t->p, .n = at};
    return (int64_t)jchars(&head);
}

/* Returns the offset of the last `part` that ends at or before `to`, or SIZE_MAX. */
static size_t find_back(const struct jtext *t, size_t to, const struct jtext *part)
{
    if (part->n > to) return SIZE_MAX;
    for (size_t at = to - part->n + 1; at-- > 0;) {
        if (part->n == 0 || memcmp(t->p + at, part->p, part->n) == 0) return at;
    }
    return SIZE_MAX;
}

static bool jinja_method_find(struct jrun *r, const struct jvalue *self, const struct jvalue *a,
                              bool back, struct jvalue *out)
{
    const struct jtext *t = self->u.text, *part;
    int64_t from = 0;
    if (!text_arg(r, "find", &a[0], &part) || part == NULL)
        return jfail(r, "'find' wants a string");
    if (!int_arg(r, "find", &a[1], &from) || !jsteps(r, t->n / (back ? 1 : 16))) return false;
    if (from < 0 || given(&a[2]) || (back && from != 0)) {
        return jfail(r, "'find': bounds that are not supported");
    }
    const size_t start = jchar_at(t, (size_t)from);
    size_t at = back ? find_back(t, t->n, part) : jfind(t, start, part);
    if (from > (int64_t)jchars(t)) at = SIZE_MAX;
    *out = jint(at == SIZE_MAX ? -1 : chars_before(t, at));
    return true;
}

METHOD(text_find)
{
    return jinja_method_find(r, self, a, false, out);
}

METHOD(text_rfind)
{
    return jinja_method_find(r, self, a, true, out);
}

METHOD(text_index)
{
    if (!jinja_method_find(r, self, a, false, out)) return false;
    return out->u.i >= 0 || jfail(r, "'index': the string is not there");
}

METHOD(text_count)
{
    const struct jtext *t = self->u.text, *part;
    if (!text_arg(r, "count", &a[0], &part) || part == NULL) {
        return jfail(r, "'count' wants a string");
    }
    int64_t n = 0;
    if (part->n == 0) {
        *out = jint((int64_t)jchars(t) + 1);
        return true;
    }
    for (size_t at = jfind(t, 0, part); at != SIZE_MAX; at = jfind(t, at + part->n, part)) n++;
    *out = jint(n);
    return jsteps(r, t->n / 16);
}

/* ---- splitting: the pieces are collected in a growing list, by rsplit from the last one ---- */

struct pieces {
    struct jrun *r;
    struct jvalue *v;
    size_t n, capacity;
};

static bool jinja_method_add_piece(struct pieces *p, const struct jtext *t, size_t from, size_t to)
{
    if (p->n == p->capacity) {
        const size_t capacity = p->capacity < 8 ? 8 : p->capacity * 2;
        struct jvalue *v = jget(p->r, capacity, sizeof *v);
        if (v == NULL) return false;
        if (p->n > 0) memcpy(v, p->v, p->n * sizeof *v);
        p->v = v;
        p->capacity = capacity;
    }
    return jsteps(p->r, 1) && jtext_cut(p->r, t, from, to, &p->v[p->n++]);
}

static bool end_pieces(struct pieces *p, bool backwards, struct jvalue *out)
{
    struct jvalue *to;
    if (!jseq_new(p->r, JV_LIST, p->n, &to, out)) return false;
    for (size_t i = 0; i < p->n; i++) to[i] = p->v[backwards ? p->n - 1 - i : i];
    return true;
}

/* Returns the end of the run of blanks that starts at `at`; blanks false: of other characters. */
static size_t run_end(const struct jtext *t, size_t at, bool blanks)
{
    size_t step;
    while (at < t->n && jspace(utf8_decode(t->p + at, t->n - at, &step)) == blanks) at += step;
    return at;
}

/* Returns the start of the run that ends at `at`. */
static size_t run_start(const struct jtext *t, size_t at, bool blanks)
{
    while (at > 0) {
        size_t before = at - 1, step;
        while (before > 0 && ((unsigned char)t->p[before] & 0xC0) == 0x80) before--;
        if (jspace(utf8_decode(t->p + before, at - before, &step)) != blanks) break;
        at = before;
    }
    return at;
}

static bool split_words(struct pieces *p, const struct jtext *t, int64_t max, bool back)
{
    size_t at = back ? run_start(t, t->n, true) : run_end(t, 0, true);
    while (back ? at > 0 : at < t->n) {
        size_t from = at, to = at;
        if (max == 0) { /* the rest keeps its blanks, also at its far end */
            return jinja_method_add_piece(p, t, back ? 0 : at, back ? at : t->n);
        }
        if (back) {
            from = run_start(t, at, false);
        } else {
            to = run_end(t, at, false);
        }
        if (!jinja_method_add_piece(p, t, from, to)) return false;
        at = back ? run_start(t, from, true) : run_end(t, to, true);
        max -= max > 0;
    }
    return true;
}

static bool split_by(struct pieces *p, const struct jtext *t, const struct jtext *by, int64_t max,
                     bool back)
{
    size_t low = 0, high = t->n;
    while (max != 0) {
        const size_t at = back ? find_back(t, high, by) : jfind(t, low, by);
        if (at == SIZE_MAX) break;
        if (!jinja_method_add_piece(p, t, back ? at + by->n : low, back ? high : at)) return false;
        if (back) {
            high = at;
        } else {
            low = at + by->n;
        }
        max -= max > 0;
    }
    return jinja_method_add_piece(p, t, low, high);
}

static bool jinja_method_split(struct jrun *r, const struct jvalue *self, const struct jvalue *a,
                               bool back, struct jvalue *out)
{
    const struct jtext *t = self->u.text, *by;
    int64_t max = -1;
    struct pieces p = {.r = r};
    if (!text_arg(r, "split", &a[0], &by) || !int_arg(r, "split", &a[1], &max)) return false;
    if (by != NULL && by->n == 0) return jfail(r, "'split' by an empty string");
    if (max < 0) max = -1;
    if (!jsteps(r, t->n / (back ? 1 : 8))) return false;
    const bool ok = by == NULL ? split_words(&p, t, max, back) : split_by(&p, t, by, max, back);
    return ok && end_pieces(&p, back, out);
}

METHOD(text_split)
{
    return jinja_method_split(r, self, a, false, out);
}

METHOD(text_rsplit)
{
    return jinja_method_split(r, self, a, true, out);
}

METHOD(text_splitlines)
{
    return jsplit_lines(r, self->u.text, jtruth(&a[0]), out);
}

METHOD(text_partition)
{
    const struct jtext *t = self->u.text, *by;
    struct jvalue *v;
    if (!text_arg(r, "partition", &a[0], &by) || by == NULL || by->n == 0) {
        return jfail(r, "'partition' wants a string");
    }
    const size_t at = jfind(t, 0, by);
    const size_t end = at == SIZE_MAX ? t->n : at;
    const size_t rest = at == SIZE_MAX ? t->n : at + by->n;
    return jsteps(r, t->n / 16) && jseq_new(r, JV_TUPLE, 3, &v, out) &&
           jtext_cut(r, t, 0, end, &v[0]) && jtext_cut(r, t, end, rest, &v[1]) &&
           jtext_cut(r, t, rest, t->n, &v[2]);
}

METHOD(text_join)
{
    const struct jvalue *v;
    size_t n;
    struct jbuild b;
    jbuild_init(&b, r);
    if (!jiterate(r, &a[0], &v, &n)) return false;
    for (size_t i = 0; i < n; i++) {
        if (v[i].type != JV_TEXT) return jfail(r, "'join' of %s", jtype_name(&v[i]));
        if (i > 0 && !jbuild_text(&b, self->u.text)) return false;
        if (!jbuild_text(&b, v[i].u.text)) return false;
    }
    return jbuild_end(&b, out);
}

/* Sets *out to true if the text is not empty and all its characters are blanks (if `blanks`) or in
 * one of the categories (bits 1 << utf8proc_category_t). */
static bool all_chars(struct jrun *r, const struct jtext *t, unsigned categories, bool blanks,
                      struct jvalue *out)
{
    size_t step;
    bool all = t->n > 0;
    for (size_t i = 0; i < t->n && all; i += step) {
        const uint32_t c = utf8_decode(t->p + i, t->n - i, &step);
        const unsigned bit = 1u << utf8proc_category((utf8proc_int32_t)c);
        all = blanks ? jspace(c) : (categories & bit) != 0;
    }
    *out = jbool(all);
    return jsteps(r, t->n / 8);
}

#define LETTERS                                                                                    \
    (1u << UTF8PROC_CATEGORY_LU | 1u << UTF8PROC_CATEGORY_LL | 1u << UTF8PROC_CATEGORY_LT |        \
     1u << UTF8PROC_CATEGORY_LM | 1u << UTF8PROC_CATEGORY_LO)

METHOD(text_isalpha)
{
    (void)a;
    return all_chars(r, self->u.text, LETTERS, false, out);
}

METHOD(text_isdecimal)
{
    (void)a;
    return all_chars(r, self->u.text, 1u << UTF8PROC_CATEGORY_ND, false, out);
}

METHOD(text_isspace)
{
    (void)a;
    return all_chars(r, self->u.text, 0, true, out);
}

/* ---- mappings and lists ---- */

METHOD(dict_get)
{
    const struct jvalue *found = jdict_get(r, self->u.dict, &a[0]);
    *out = found != NULL ? *found : a[1].type == JV_ABSENT ? jnone() : a[1];
    return !status_failed(&r->st);
}

static bool jinja_method_view(struct jrun *r, const struct jdict *d, bool keys, bool values,
                              struct jvalue *out)
{
    struct jvalue *v, *pair;
    if (!jseq_new(r, JV_VIEW, d->n, &v, out)) return false;
    for (size_t i = 0; i < d->n; i++) {
        v[i] = keys ? d->pairs[i].key : d->pairs[i].value;
        if (!keys || !values) continue;
        if (!jseq_new(r, JV_TUPLE, 2, &pair, &v[i])) return false;
        pair[0] = d->pairs[i].key;
        pair[1] = d->pairs[i].value;
    }
    return true;
}

METHOD(dict_items)
{
    (void)a;
    return jinja_method_view(r, self->u.dict, true, true, out);
}

METHOD(dict_keys)
{
    (void)a;
    return jinja_method_view(r, self->u.dict, true, false, out);
}

METHOD(dict_values)
{
    (void)a;
    return jinja_method_view(r, self->u.dict, false, true, out);
}

METHOD(value_copy)
{
    (void)r;
    (void)a;
    *out = *self; /* no copy: values never change */
    return true;
}

METHOD(seq_count)
{
    int64_t n = 0;
    bool same;
    for (size_t i = 0; i < self->u.seq->n; i++) {
        if (!jsteps(r, 1) || !jequal(r, &self->u.seq->v[i], &a[0], &same)) return false;
        n += same;
    }
    *out = jint(n);
    return true;
}

METHOD(seq_index)
{
    bool same = false;
    for (size_t i = 0; i < self->u.seq->n; i++) {
        if (!jsteps(r, 1) || !jequal(r, &self->u.seq->v[i], &a[0], &same)) return false;
        if (!same) continue;
        *out = jint((int64_t)i);
        return true;
    }
    return jfail(r, "'index': the element is not there");
}

static bool loop_cycle(struct jrun *r, const struct jvalue *self, const struct jargs *args,
                       struct jvalue *out)
{
    if (args->n == 0) return jfail(r, "'cycle' wants values");
    *out = args->v[self->u.loop->index0 % args->n];
    return true;
}

#define TEXT .types = 1u << JV_TEXT
#define DICT .types = 1u << JV_DICT
#define SEQ  .types = 1u << JV_LIST | 1u << JV_TUPLE | 1u << JV_RANGE
/* a parameter named by a digit can only be given by its position */
#define ONE  .params = {"1"}, .n_required = 1

const struct jfunction JINJA_TEXT_METHODS[] = {
    {.name = "strip", .fn = text_strip, .params = {"chars"}, TEXT},
    {.name = "lstrip", .fn = text_lstrip, .params = {"chars"}, TEXT},
    {.name = "rstrip", .fn = text_rstrip, .params = {"chars"}, TEXT},
    {.name = "upper", .fn = text_upper, TEXT},
    {.name = "lower", .fn = text_lower, TEXT},
    {.name = "title", .fn = text_title, TEXT},
    {.name = "capitalize", .fn = text_capitalize, TEXT},
    {.name = "replace",
     .fn = text_replace,
     .params = {"old", "new", "count"},
     .n_required = 2,
     TEXT},
    {.name = "startswith", .fn = text_startswith, ONE, TEXT},
    {.name = "endswith", .fn = text_endswith, ONE, TEXT},
    {.name = "removeprefix", .fn = text_removeprefix, ONE, TEXT},
    {.name = "removesuffix", .fn = text_removesuffix, ONE, TEXT},
    {.name = "find", .fn = text_find, .params = {"1", "2", "3"}, .n_required = 1, TEXT},
    {.name = "rfind", .fn = text_rfind, .params = {"1", "2", "3"}, .n_required = 1, TEXT},
    {.name = "index", .fn = text_index, .params = {"1", "2", "3"}, .n_required = 1, TEXT},
    {.name = "count", .fn = text_count, ONE, TEXT},
    {.name = "split", .fn = text_split, .params = {"sep", "maxsplit"}, TEXT},
    {.name = "rsplit", .fn = text_rsplit, .params = {"sep", "maxsplit"}, TEXT},
    {.name = "splitlines", .fn = text_splitlines, .params = {"keepends"}, TEXT},
    {.name = "partition", .fn = text_partition, ONE, TEXT},
    {.name = "join", .fn = text_join, ONE, TEXT},
    {.name = "isalpha", .fn = text_isalpha, TEXT},
    {.name = "isdecimal", .fn = text_isdecimal, TEXT},
    {.name = "isdigit", .fn = text_isdecimal, TEXT},
    {.name = "isspace", .fn = text_isspace, TEXT},
    {.name = NULL},
};

const struct jfunction JINJA_METHODS[] = {
    {.name = "get", .fn = dict_get, .params = {"key", "default"}, .n_required = 1, DICT},
    {.name = "items", .fn = dict_items, DICT},
    {.name = "keys", .fn = dict_keys, DICT},
    {.name = "values", .fn = dict_values, DICT},
    {.name = "copy", .fn = value_copy, .types = 1u << JV_DICT | 1u << JV_LIST},
    {.name = "count", .fn = seq_count, ONE, SEQ},
    {.name = "index", .fn = seq_index, ONE, SEQ},
    {.name = "cycle", .raw = loop_cycle, .types = 1u << JV_LOOP},
    {.name = NULL},
};

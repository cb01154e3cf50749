/* Jinja's filters for sequences and mappings. A filter that returns a generator in Jinja returns an
 * iterator here. */
#include "text/chat/jinja_value.h"

#include <string.h>

#define FILTER(name)                                                                               \
    static bool name(struct jrun *r, const struct jvalue *self, const struct jvalue *a,            \
                     struct jvalue *out)

/* Sets *out to the value at an attribute path such as "a.b.0". `absent`, if given, replaces an
 * undefined value on the path. */
static bool attr_path(struct jrun *r, const struct jvalue *v, const struct jvalue *path,
                      const struct jvalue *absent, struct jvalue *out)
{
    *out = *v;
    if (path->type != JV_TEXT) return jitem(r, v, path, out);
    const struct jtext *t = path->u.text;
    for (size_t from = 0; from <= t->n;) {
        size_t to = from;
        int64_t index = 0;
        bool digits = true;
        for (; to < t->n && t->p[to] != '.'; to++) {
            digits = digits && t->p[to] >= '0' && t->p[to] <= '9' && to - from < 18;
            if (digits) index = index * 10 + (t->p[to] - '0');
        }
        struct jvalue key = jint(index), next;
        if ((!digits || to == from) && !jtext_cut(r, t, from, to, &key)) return false;
        if (!jitem(r, out, &key, &next)) return false;
        *out = next;
        if (out->type == JV_UNDEFINED && absent->type > JV_NONE) *out = *absent;
        from = to + 1;
    }
    return true;
}

FILTER(filter_first)
{
    (void)a;
    const struct jvalue *v;
    size_t n;
    struct jvalue copy = *self;
    const size_t at = self->type == JV_ITERATOR ? self->u.seq->at : 0;
    if (!jiterate(r, &copy, &v, &n)) return false;
    *out = n > 0 ? v[0] : jundefined("the first element");
    if (self->type == JV_ITERATOR) self->u.seq->at = n > 0 ? at + 1 : at;
    return true;
}

FILTER(filter_last)
{
    (void)a;
    const struct jvalue *v;
    size_t n;
    if (self->type == JV_ITERATOR) return jfail(r, "last of an iterator");
    if (!jiterate(r, self, &v, &n)) return false;
    *out = n > 0 ? v[n - 1] : jundefined("the last element");
    return true;
}

FILTER(filter_join)
{
    const struct jvalue *v;
    size_t n;
    struct jbuild b;
    const struct jtext *between = NULL;
    jbuild_init(&b, r);
    if (a[0].type != JV_ABSENT && !jas_text(r, &a[0], &between)) return false;
    if (!jiterate(r, self, &v, &n)) return false;
    for (size_t i = 0; i < n; i++) {
        struct jvalue item = v[i];
        if (a[1].type > JV_NONE && !attr_path(r, &v[i], &a[1], &a[4], &item)) return false;
        if (i > 0 && between != NULL && !jbuild_text(&b, between)) return false;
        if (!jprint(&b, &item)) return false;
    }
    return jbuild_end(&b, out);
}

static bool copy_items(struct jrun *r, enum jvalue_type type, const struct jvalue *v, size_t n,
                       struct jvalue *out)
{
    struct jvalue *to;
    if (!jseq_new(r, type, n, &to, out)) return false;
    if (n > 0) memcpy(to, v, n * sizeof *to);
    return true;
}

FILTER(filter_list)
{
    (void)a;
    const struct jvalue *v;
    size_t n;
    return jiterate(r, self, &v, &n) && copy_items(r, JV_LIST, v, n, out);
}

static bool reverse_text(struct jrun *r, const struct jvalue *self, struct jvalue *out)
{
    const struct jvalue part[3] = {jnone(), jnone(), jint(-1)};
    return jslice(r, self, part, out);
}

FILTER(filter_reverse)
{
    (void)a;
    const struct jvalue *v;
    struct jvalue *to;
    size_t n;
    if (self->type == JV_TEXT) return reverse_text(r, self, out);
    if (!jiterate(r, self, &v, &n)) return false;
    if (!jseq_new(r, self->type == JV_ITERATOR ? JV_LIST : JV_ITERATOR, n, &to, out)) return false;
    for (size_t i = 0; i < n; i++) to[i] = v[n - 1 - i];
    return true;
}

FILTER(filter_items)
{
    (void)a;
    struct jvalue *to;
    if (self->type == JV_UNDEFINED) return jseq_new(r, JV_ITERATOR, 0, &to, out);
    if (self->type != JV_DICT) return jfail(r, "items of %s", jtype_name(self));
    const struct jdict *d = self->u.dict;
    if (!jseq_new(r, JV_ITERATOR, d->n, &to, out)) return false;
    for (size_t i = 0; i < d->n; i++) {
        const struct jvalue pair[2] = {d->pairs[i].key, d->pairs[i].value};
        if (!copy_items(r, JV_TUPLE, pair, 2, &to[i])) return false;
    }
    return true;
}

/* How `map` changes each item: by a filter, or into one of the item's attributes. */
struct mapping {
    const struct jfunction *filter; /* NULL: take the attribute */
    struct jargs rest;              /* the filter's arguments */
    struct jvalue attribute;
    struct jvalue absent; /* the default for an item without the attribute */
};

static bool mapping_read(struct jrun *r, const struct jargs *args, struct mapping *m)
{
    *m = (struct mapping){.rest = *args};
    if (args->n > 0) {
        if (args->v[0].type == JV_TEXT) {
            m->filter = jfilter_find(args->v[0].u.text->p, args->v[0].u.text->n);
        }
        m->rest.v++;
        m->rest.n--;
        return m->filter != NULL || jfail(r, "map: no such filter");
    }
    for (size_t i = 0; i < args->n_named; i++) {
        const struct jvalue name = {.type = JV_TEXT, .u.text = &args->named[i].name};
        if (jtext_is(&name, "attribute")) {
            m->attribute = args->named[i].value;
        } else if (jtext_is(&name, "default")) {
            m->absent = args->named[i].value;
        } else {
            return jfail(r, "map: an argument that is not understood");
        }
    }
    return m->attribute.type != JV_ABSENT || jfail(r, "map: no such filter");
}

/* The filter `map`: map(attribute=...) or map('filter', ...). */
static bool filter_map(struct jrun *r, const struct jvalue *self, const struct jargs *args,
                       struct jvalue *out)
{
    const struct jvalue *v;
    struct jvalue *to;
    size_t n;
    struct mapping m;
    /* a false value of any type gives an empty iterator */
    if (!jtruth(self)) return jseq_new(r, JV_ITERATOR, 0, &to, out);
    if (!mapping_read(r, args, &m)) return false;
    if (!jiterate(r, self, &v, &n) || !jseq_new(r, JV_ITERATOR, n, &to, out)) return false;
    if (!jenter(r)) return false; /* the filter may be map again */
    bool ok = true;
    for (size_t i = 0; i < n && ok; i++) {
        ok = m.filter != NULL ? jcall_function(r, m.filter, &v[i], &m.rest, &to[i])
                              : attr_path(r, &v[i], &m.attribute, &m.absent, &to[i]);
    }
    jleave(r);
    return ok;
}

/* How to decide on an item, or on one of its attributes: by a test, or by its truth value. */
struct verdict {
    const struct jvalue *attribute; /* NULL: the item itself */
    const struct jfunction *test;   /* NULL: the truth value decides */
    struct jargs rest;              /* the test's further arguments */
};

static bool verdict_read(struct jrun *r, const struct jargs *args, bool attr, struct verdict *k)
{
    const size_t off = attr ? 1 : 0;
    *k = (struct verdict){.rest = {.named = args->named, .n_named = args->n_named}};
    if (attr && args->n == 0) return jfail(r, "selectattr and rejectattr want an attribute");
    if (attr) k->attribute = &args->v[0];
    if (args->n == off) return true;
    const struct jvalue *name = &args->v[off];
    if (name->type == JV_TEXT) {
        k->test = jfunction_find(JINJA_TESTS, name->u.text->p, name->u.text->n, 0);
    }
    k->rest.v = args->v + off + 1;
    k->rest.n = args->n - off - 1;
    return k->test != NULL || jfail(r, "select and reject: no such test");
}

static bool verdict_on(struct jrun *r, const struct verdict *k, const struct jvalue *item,
                       bool *is_true)
{
    const struct jvalue none = {0};
    struct jvalue value = *item, said;
    if (k->attribute != NULL && !attr_path(r, item, k->attribute, &none, &value)) return false;
    if (k->test == NULL) {
        said = value;
    } else if (!jcall_function(r, k->test, &value, &k->rest, &said)) {
        return false;
    }
    *is_true = jtruth(&said);
    return true;
}

/* The filters select, reject, selectattr and rejectattr: keep or drop the items that pass a test
 * (without a test: the items that are true). */
static bool jinja_filter_seq_choose(struct jrun *r, const struct jvalue *self,
                                    const struct jargs *args, bool attr, bool keep,
                                    struct jvalue *out)
{
    const struct jvalue *v;
    struct jvalue *to;
    size_t n, n_kept = 0;
    struct verdict k;
    /* a false value of any type gives an empty iterator */
    if (!jtruth(self)) return jseq_new(r, JV_ITERATOR, 0, &to, out);
    if (!verdict_read(r, args, attr, &k)) return false;
    if (!jiterate(r, self, &v, &n) || !jseq_new(r, JV_ITERATOR, n, &to, out)) return false;
    for (size_t i = 0; i < n; i++) {
        bool is_true;
        if (!verdict_on(r, &k, &v[i], &is_true)) return false;
        if (is_true == keep) to[n_kept++] = v[i];
    }
    out->u.seq->n = n_kept;
    return true;
}

#define CHOOSER(name, attr, keep)                                                                  \
    static bool name(struct jrun *r, const struct jvalue *self, const struct jargs *args,          \
                     struct jvalue *out)                                                           \
    {                                                                                              \
        return jinja_filter_seq_choose(r, self, args, attr, keep, out);                            \
    }

CHOOSER(filter_select, false, true)
CHOOSER(filter_reject, false, false)
CHOOSER(filter_selectattr, true, true)
CHOOSER(filter_rejectattr, true, false)

/* ---- sorting ---- */

struct keyed {
    struct jvalue key, value;
};

/* Merges two sorted runs, [at, mid) and [mid, end), into `to`; equal keys keep their order.
 * turn: as in sort_keyed. */
static bool merge_keyed(struct jrun *r, const struct keyed *from, struct keyed *to, size_t at,
                        size_t mid, size_t end, int turn)
{
    size_t i = at, j = mid;
    for (size_t o = at; o < end; o++) {
        int order = 0;
        const bool both = i < mid && j < end;
        if (both && (!jsteps(r, 1) || !jcompare(r, &from[i].key, &from[j].key, &order))) {
            return false;
        }
        to[o] = j >= end || (both && order * turn <= 0) ? from[i++] : from[j++];
    }
    return true;
}

/* Sorts k[n] stably by key: ascending for turn 1, descending for turn -1. */
static bool sort_keyed(struct jrun *r, struct keyed *k, size_t n, int turn)
{
    struct keyed *from = k, *to = jget(r, n, sizeof *to);
    if (to == NULL) return false;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t at = 0; at < n; at += 2 * width) {
            const size_t mid = at + width < n ? at + width : n;
            const size_t end = at + 2 * width < n ? at + 2 * width : n;
            if (!merge_keyed(r, from, to, at, mid, end, turn)) return false;
        }
        struct keyed *swap = from;
        from = to;
        to = swap;
    }
    if (from != k) memcpy(k, from, n * sizeof *k);
    return true;
}

static bool jinja_filter_seq_fold(struct jrun *r, const struct jvalue *case_sensitive,
                                  struct jvalue *v)
{
    if (v->type != JV_TEXT || jtruth(case_sensitive)) return true;
    return jcased(r, v->u.text, JCASE_LOWER, v);
}

/* Sets *out [*n] to the items with the keys by which sort, unique, min and max compare them. */
static bool keyed_items(struct jrun *r, const struct jvalue *self, const struct jvalue *attribute,
                        const struct jvalue *case_sensitive, struct keyed **out, size_t *n)
{
    const struct jvalue *v, none = {0};
    if (attribute->type == JV_TEXT && memchr(attribute->u.text->p, ',', attribute->u.text->n)) {
        return jfail(r, "sorting by several attributes is not supported");
    }
    if (!jiterate(r, self, &v, n)) return false;
    struct keyed *k = jget(r, *n, sizeof *k);
    if (k == NULL) return false;
    for (size_t i = 0; i < *n; i++) {
        k[i].key = k[i].value = v[i];
        if (attribute->type > JV_NONE && !attr_path(r, &v[i], attribute, &none, &k[i].key)) {
            return false;
        }
        if (!jinja_filter_seq_fold(r, case_sensitive, &k[i].key)) return false;
    }
    *out = k;
    return true;
}

FILTER(filter_sort)
{
    struct keyed *k;
    struct jvalue *to;
    size_t n;
    if (!keyed_items(r, self, &a[2], &a[1], &k, &n)) return false;
    if (!sort_keyed(r, k, n, jtruth(&a[0]) ? -1 : 1)) return false;
    if (!jseq_new(r, JV_LIST, n, &to, out)) return false;
    for (size_t i = 0; i < n; i++) to[i] = k[i].value;
    return true;
}

FILTER(filter_unique)
{
    struct keyed *k;
    struct jvalue *to;
    size_t n, n_kept = 0;
    if (!keyed_items(r, self, &a[1], &a[0], &k, &n)) return false;
    if (!jseq_new(r, JV_ITERATOR, n, &to, out)) return false;
    for (size_t i = 0; i < n; i++) {
        bool seen = false;
        for (size_t j = 0; j < n_kept && !seen; j++) {
            if (!jsteps(r, 1) || !jequal(r, &k[i].key, &k[j].key, &seen)) return false;
        }
        if (seen) continue;
        to[n_kept] = k[i].value;
        k[n_kept++].key = k[i].key;
    }
    out->u.seq->n = n_kept;
    return true;
}

static bool extreme(struct jrun *r, const struct jvalue *self, const struct jvalue *a, int turn,
                    struct jvalue *out)
{
    struct keyed *k;
    size_t n, best = 0;
    if (!keyed_items(r, self, &a[1], &a[0], &k, &n)) return false;
    for (size_t i = 1; i < n; i++) {
        int order;
        if (!jcompare(r, &k[i].key, &k[best].key, &order)) return false;
        if (order * turn < 0) best = i;
    }
    *out = n > 0 ? k[best].value : jundefined("the extreme of an empty sequence");
    return true;
}

FILTER(filter_min)
{
    return extreme(r, self, a, 1, out);
}

FILTER(filter_max)
{
    return extreme(r, self, a, -1, out);
}

FILTER(filter_dictsort)
{
    if (self->type != JV_DICT) return jfail(r, "dictsort of %s", jtype_name(self));
    const struct jdict *d = self->u.dict;
    const bool by_value = jtext_is(&a[1], "value");
    struct keyed *k = jget(r, d->n, sizeof *k);
    struct jvalue *to;
    if (k == NULL) return false;
    if (a[1].type != JV_ABSENT && !by_value && !jtext_is(&a[1], "key")) {
        return jfail(r, "dictsort goes by \"key\" or by \"value\"");
    }
    for (size_t i = 0; i < d->n; i++) {
        const struct jvalue pair[2] = {d->pairs[i].key, d->pairs[i].value};
        k[i].key = pair[by_value ? 1 : 0];
        if (!copy_items(r, JV_TUPLE, pair, 2, &k[i].value) ||
            !jinja_filter_seq_fold(r, &a[0], &k[i].key))
            return false;
    }
    if (!sort_keyed(r, k, d->n, jtruth(&a[2]) ? -1 : 1)) return false;
    if (!jseq_new(r, JV_LIST, d->n, &to, out)) return false;
    for (size_t i = 0; i < d->n; i++) to[i] = k[i].value;
    return true;
}

FILTER(filter_sum)
{
    const struct jvalue *v, none = {0};
    size_t n;
    *out = a[1].type == JV_ABSENT ? jint(0) : a[1];
    if (!jiterate(r, self, &v, &n)) return false;
    for (size_t i = 0; i < n; i++) {
        struct jvalue item = v[i];
        int64_t x, y;
        if (a[0].type > JV_NONE && !attr_path(r, &v[i], &a[0], &none, &item)) return false;
        if (!jis_number(&item) || !jis_number(out)) return jfail(r, "sum of %s", jtype_name(&item));
        const bool user = out->user || item.user;
        if (jas_int(out, &x) && jas_int(&item, &y)) {
            if (__builtin_add_overflow(x, y, &x)) return jfail(r, "an integer beyond 64 bits");
            *out = jint(x);
        } else {
            *out = jfloat(jas_float(out) + jas_float(&item));
        }
        out->user = user;
    }
    return true;
}

FILTER(filter_batch)
{
    const struct jvalue *v;
    struct jvalue *to, *row;
    size_t n;
    int64_t width;
    if (!jas_int(&a[0], &width) || width < 1 || width > 1000000) {
        return jfail(r, "batch wants a positive number");
    }
    if (!jiterate(r, self, &v, &n)) return false;
    const size_t w = (size_t)width, n_rows = (n + w - 1) / w;
    if (!jseq_new(r, JV_ITERATOR, n_rows, &to, out)) return false;
    for (size_t i = 0; i < n_rows; i++) {
        const size_t have = n - i * w < w ? n - i * w : w;
        const size_t fill = a[1].type > JV_NONE ? w : have;
        if (!jseq_new(r, JV_LIST, fill, &row, &to[i])) return false;
        for (size_t j = 0; j < fill; j++) row[j] = j < have ? v[i * w + j] : a[1];
    }
    return true;
}

const struct jfunction JINJA_SEQ_FILTERS[] = {
    {.name = "first", .fn = filter_first},
    {.name = "last", .fn = filter_last},
    {.name = "join", .fn = filter_join, .params = {"d", "attribute"}},
    {.name = "list", .fn = filter_list},
    {.name = "reverse", .fn = filter_reverse},
    {.name = "items", .fn = filter_items},
    {.name = "map", .raw = filter_map},
    {.name = "select", .raw = filter_select},
    {.name = "reject", .raw = filter_reject},
    {.name = "selectattr", .raw = filter_selectattr},
    {.name = "rejectattr", .raw = filter_rejectattr},
    {.name = "sort", .fn = filter_sort, .params = {"reverse", "case_sensitive", "attribute"}},
    {.name = "unique", .fn = filter_unique, .params = {"case_sensitive", "attribute"}},
    {.name = "min", .fn = filter_min, .params = {"case_sensitive", "attribute"}},
    {.name = "max", .fn = filter_max, .params = {"case_sensitive", "attribute"}},
    {.name = "dictsort", .fn = filter_dictsort, .params = {"case_sensitive", "by", "reverse"}},
    {.name = "sum", .fn = filter_sum, .params = {"attribute", "start"}},
    {.name = "batch", .fn = filter_batch, .params = {"linecount", "fill_with"}, .n_required = 1},
    {.name = NULL},
};

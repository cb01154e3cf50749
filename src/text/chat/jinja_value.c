/* The arena, texts under construction, sequences, dictionaries; Python's truthiness, equality and
 * order. */
#include "text/chat/jinja_value.h"

#include "base/mem.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { CHUNK_BYTES = 1 << 16 };

struct jchunk {
    struct jchunk *next;
    size_t at, n; /* n bytes follow this header, of which the first `at` are used */
    char pad[40]; /* so that these bytes start on a cache line */
};

_Static_assert(sizeof(struct jchunk) % 16 == 0, "arena memory is aligned");

void *jarena_get(struct jarena *a, size_t n_bytes)
{
    if (n_bytes > a->limit || a->used > a->limit - n_bytes) return NULL;
    const size_t want = (n_bytes + 15) & ~(size_t)15;
    struct jchunk *c = a->chunks;
    if (c == NULL || c->n - c->at < want) {
        const size_t n = want > CHUNK_BYTES / 4 ? want : CHUNK_BYTES;
        struct jchunk *fresh = NULL;
        const struct status st = mem_alloc(&fresh, 1, sizeof *fresh + n, "template values");
        if (status_failed(&st)) return NULL;
        fresh->n = n;
        /* a large value gets a chunk of its own, and the old chunk is filled further */
        const bool alone = c != NULL && n == want;
        fresh->next = alone ? c->next : c;
        if (alone) {
            c->next = fresh;
        } else {
            a->chunks = fresh;
        }
        c = fresh;
    }
    void *p = (char *)(c + 1) + c->at;
    c->at += want;
    a->used += want;
    return p;
}

void jarena_fini(struct jarena *a)
{
    while (a->chunks != NULL) {
        struct jchunk *c = a->chunks;
        a->chunks = c->next;
        mem_free(&c);
    }
    a->used = 0;
}

bool jfail(struct jrun *r, const char *format, ...)
{
    if (status_failed(&r->st)) return false;
    char text[STATUS_TEXT_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    r->st = status_make(STATUS_REQUEST, "chat template, line %d: %s", r->line, text);
    return false;
}

void *jget(struct jrun *r, size_t n, size_t elem_bytes)
{
    size_t n_bytes;
    void *p = mem_mul(n, elem_bytes, &n_bytes) ? jarena_get(&r->arena, n_bytes) : NULL;
    if (p != NULL || status_failed(&r->st)) return p;
    if (r->arena.limit - r->arena.used < n_bytes) {
        jfail(r, "values of more than %zu bytes", r->arena.limit);
    } else {
        r->st = status_make(STATUS_MEMORY, "chat template: could not allocate %zu bytes", n_bytes);
    }
    return NULL;
}

bool jsteps(struct jrun *r, size_t n)
{
    r->steps += n;
    if (r->steps <= r->limits.max_steps) return true;
    return jfail(r, "more than %llu steps", (unsigned long long)r->limits.max_steps);
}

bool jenter(struct jrun *r)
{
    if (r->depth >= r->limits.max_depth) {
        return jfail(r, "nested more than %u levels deep", r->limits.max_depth);
    }
    r->depth++;
    return true;
}

struct jvalue jundefined(const char *name)
{
    return (struct jvalue){.type = JV_UNDEFINED, .u.name = name};
}

struct jvalue jnone(void)
{
    return (struct jvalue){.type = JV_NONE};
}

struct jvalue jbool(bool b)
{
    return (struct jvalue){.type = JV_BOOL, .u.b = b};
}

struct jvalue jint(int64_t i)
{
    return (struct jvalue){.type = JV_INT, .u.i = i};
}

struct jvalue jfloat(double f)
{
    return (struct jvalue){.type = JV_FLOAT, .u.f = f};
}

static bool text_value(struct jrun *r, const char *p, const unsigned char *user, size_t n,
                       struct jvalue *out)
{
    struct jtext *t = jget(r, 1, sizeof *t);
    if (t == NULL) return false;
    *t = (struct jtext){.p = p, .user = user, .n = n};
    *out = (struct jvalue){.type = JV_TEXT, .u.text = t};
    return true;
}

bool jtext_literal(struct jrun *r, const char *text, struct jvalue *out)
{
    return text_value(r, text, NULL, strlen(text), out);
}

bool jtext_cut(struct jrun *r, const struct jtext *t, size_t from, size_t to, struct jvalue *out)
{
    if (to < from) to = from;
    return text_value(r, t->p + from, t->user == NULL ? NULL : t->user + from, to - from, out);
}

bool jtext_same(const struct jtext *a, const struct jtext *b)
{
    return a->n == b->n && (a->n == 0 || memcmp(a->p, b->p, a->n) == 0);
}

bool jtext_is(const struct jvalue *v, const char *text)
{
    return v->type == JV_TEXT && v->u.text->n == strlen(text) &&
           memcmp(v->u.text->p, text, v->u.text->n) == 0;
}

const unsigned char *jones(struct jrun *r, size_t n)
{
    if (r->n_ones >= n && r->ones != NULL) return r->ones;
    const size_t want = n < 4096 ? 4096 : n;
    unsigned char *p = jget(r, want, 1);
    if (p == NULL) return NULL;
    memset(p, 1, want);
    r->ones = p;
    r->n_ones = want;
    return p;
}

void jbuild_init(struct jbuild *b, struct jrun *r)
{
    *b = (struct jbuild){.r = r};
}

static bool build_reserve(struct jbuild *b, size_t n, bool user)
{
    struct jrun *r = b->r;
    if (n > r->limits.max_output_bytes || b->n > r->limits.max_output_bytes - n) {
        return jfail(r, "a text of more than %zu bytes", r->limits.max_output_bytes);
    }
    size_t capacity = b->capacity;
    while (capacity < b->n + n) capacity = capacity < 64 ? 64 : capacity * 2;
    if (capacity > b->capacity) {
        char *p = jget(r, capacity, 1);
        if (p == NULL) return false;
        if (b->n > 0) memcpy(p, b->p, b->n);
        b->p = p;
    }
    if (b->user != NULL ? capacity > b->capacity : user) {
        unsigned char *marks = jget(r, capacity, 1);
        if (marks == NULL) return false;
        if (b->user != NULL) memcpy(marks, b->user, b->n);
        b->user = marks;
    }
    b->capacity = capacity;
    return true;
}

bool jbuild_add(struct jbuild *b, const char *p, const unsigned char *user, size_t n)
{
    if (status_failed(&b->r->st)) return false;
    if (n == 0) return true;
    if (!jsteps(b->r, n / 16) || !build_reserve(b, n, user != NULL)) return false;
    memcpy(b->p + b->n, p, n);
    if (user != NULL) memcpy(b->user + b->n, user, n);
    b->n += n;
    return true;
}

bool jbuild_puts(struct jbuild *b, const char *text, bool user)
{
    const size_t n = strlen(text);
    const unsigned char *marks = user ? jones(b->r, n) : NULL;
    return (!user || marks != NULL) && jbuild_add(b, text, marks, n);
}

bool jbuild_cut(struct jbuild *b, const struct jtext *t, size_t from, size_t to)
{
    return jbuild_add(b, t->p + from, t->user == NULL ? NULL : t->user + from, to - from);
}

bool jbuild_text(struct jbuild *b, const struct jtext *t)
{
    return jbuild_add(b, t->p, t->user, t->n);
}

bool jbuild_end(struct jbuild *b, struct jvalue *out)
{
    if (status_failed(&b->r->st)) return false;
    return text_value(b->r, b->n > 0 ? b->p : "", b->user, b->n, out);
}

bool jseq_new(struct jrun *r, enum jvalue_type type, size_t n, struct jvalue **v,
              struct jvalue *out)
{
    struct jseq *s = jget(r, 1, sizeof *s);
    struct jvalue *items = s == NULL ? NULL : jget(r, n, sizeof *items);
    if (items == NULL || !jsteps(r, n)) return false;
    s->v = items;
    s->n = n;
    *v = items;
    *out = (struct jvalue){.type = (uint8_t)type, .u.seq = s};
    return true;
}

bool jdict_new(struct jrun *r, size_t capacity, enum jvalue_type type, struct jvalue *out)
{
    struct jdict *d = jget(r, 1, sizeof *d);
    if (d == NULL) return false;
    if (capacity > 0) {
        d->pairs = jget(r, capacity, sizeof d->pairs[0]);
        if (d->pairs == NULL) return false;
    }
    d->capacity = capacity;
    *out = (struct jvalue){.type = (uint8_t)type, .u.dict = d};
    return true;
}

/* Returns the pair of a key; NULL for a missing key, and after a failure, which the run records. */
static struct jpair *jinja_value_pair_of(struct jrun *r, const struct jdict *d,
                                         const struct jvalue *key)
{
    if (!jsteps(r, d->n / 8)) return NULL;
    for (size_t i = 0; i < d->n; i++) {
        struct jpair *p = &d->pairs[i];
        bool same = false;
        if (key->type == JV_TEXT && p->key.type == JV_TEXT) {
            same = jtext_same(key->u.text, p->key.u.text);
        } else if (!jequal(r, key, &p->key, &same)) {
            return NULL;
        }
        if (same) return p;
    }
    return NULL;
}

const struct jvalue *jdict_get(struct jrun *r, const struct jdict *d, const struct jvalue *key)
{
    const struct jpair *p = jinja_value_pair_of(r, d, key);
    return p == NULL ? NULL : &p->value;
}

bool jdict_put(struct jrun *r, struct jdict *d, const struct jvalue *key,
               const struct jvalue *value)
{
    if (key->type == JV_LIST || key->type == JV_DICT || key->type == JV_VIEW) {
        return jfail(r, "%s cannot be a key", jtype_name(key));
    }
    struct jpair *p = jinja_value_pair_of(r, d, key);
    if (status_failed(&r->st)) return false;
    if (p != NULL) {
        p->value = *value;
        return true;
    }
    if (d->n == d->capacity) {
        const size_t capacity = d->capacity < 4 ? 4 : d->capacity * 2;
        struct jpair *pairs = jget(r, capacity, sizeof *pairs);
        if (pairs == NULL) return false;
        if (d->n > 0) memcpy(pairs, d->pairs, d->n * sizeof *pairs);
        d->pairs = pairs;
        d->capacity = capacity;
    }
    d->pairs[d->n++] = (struct jpair){.key = *key, .value = *value};
    return true;
}

bool jtruth(const struct jvalue *v)
{
    switch ((enum jvalue_type)v->type) {
    case JV_ABSENT:
    case JV_UNDEFINED:
    case JV_NONE:
        return false;
    case JV_BOOL:
        return v->u.b;
    case JV_INT:
        return v->u.i != 0;
    case JV_FLOAT:
        return v->u.f != 0;
    case JV_TEXT:
        return v->u.text->n > 0;
    case JV_LIST:
    case JV_TUPLE:
    case JV_RANGE:
    case JV_VIEW:
        return v->u.seq->n > 0;
    case JV_DICT:
        return v->u.dict->n > 0;
    default:
        return true;
    }
}

bool jis_number(const struct jvalue *v)
{
    return v->type == JV_BOOL || v->type == JV_INT || v->type == JV_FLOAT;
}

bool jas_int(const struct jvalue *v, int64_t *out)
{
    if (v->type != JV_BOOL && v->type != JV_INT) return false;
    *out = v->type == JV_BOOL ? (int64_t)v->u.b : v->u.i;
    return true;
}

double jas_float(const struct jvalue *v)
{
    int64_t i = 0;
    if (jas_int(v, &i)) return (double)i;
    return v->type == JV_FLOAT ? v->u.f : NAN;
}

const char *jtype_name(const struct jvalue *v)
{
    static const char *const NAMES[JV_COUNT] = {
        "nothing", "an undefined value", "none",      "a boolean",   "an integer",
        "a float", "a string",           "a list",    "a tuple",     "a range",
        "a view",  "an iterator",        "a mapping", "a namespace", "a loop",
        "a macro", "a function",         "a method"};
    return NAMES[v->type];
}

static bool seq_equal(struct jrun *r, const struct jseq *a, const struct jseq *b, bool *out)
{
    *out = a->n == b->n;
    if (*out && !jsteps(r, a->n)) return false;
    for (size_t i = 0; i < a->n && *out; i++) {
        if (!jequal(r, &a->v[i], &b->v[i], out)) return false;
    }
    return true;
}

static bool dict_equal(struct jrun *r, const struct jdict *a, const struct jdict *b, bool *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; i < a->n && *out; i++) {
        const struct jvalue *other = jdict_get(r, b, &a->pairs[i].key);
        if (status_failed(&r->st)) return false;
        *out = other != NULL;
        if (*out && !jequal(r, &a->pairs[i].value, other, out)) return false;
    }
    return true;
}

static bool number_equal(const struct jvalue *a, const struct jvalue *b)
{
    int64_t x, y;
    if (jas_int(a, &x) && jas_int(b, &y)) return x == y;
    return jas_float(a) == jas_float(b);
}

bool jequal(struct jrun *r, const struct jvalue *a, const struct jvalue *b, bool *out)
{
    if (jis_number(a) && jis_number(b)) {
        *out = number_equal(a, b);
        return true;
    }
    if (a->type != b->type) {
        *out = false;
        return true;
    }
    bool ok = true;
    switch ((enum jvalue_type)a->type) {
    case JV_UNDEFINED:
    case JV_NONE:
        *out = true;
        return true;
    case JV_TEXT:
        *out = jtext_same(a->u.text, b->u.text);
        return true;
    case JV_LIST:
    case JV_TUPLE:
    case JV_RANGE:
        if (!jenter(r)) return false;
        ok = seq_equal(r, a->u.seq, b->u.seq, out);
        jleave(r);
        return ok;
    case JV_DICT:
        if (!jenter(r)) return false;
        ok = dict_equal(r, a->u.dict, b->u.dict, out);
        jleave(r);
        return ok;
    default:
        *out = a->u.seq == b->u.seq; /* an object is equal only to itself */
        return true;
    }
}

static bool seq_compare(struct jrun *r, const struct jseq *a, const struct jseq *b, int *out)
{
    for (size_t i = 0; i < a->n && i < b->n; i++) {
        bool same;
        if (!jsteps(r, 1) || !jequal(r, &a->v[i], &b->v[i], &same)) return false;
        if (!same) return jcompare(r, &a->v[i], &b->v[i], out);
    }
    *out = (a->n > b->n) - (a->n < b->n);
    return true;
}

bool jcompare(struct jrun *r, const struct jvalue *a, const struct jvalue *b, int *out)
{
    int64_t x, y;
    if (jas_int(a, &x) && jas_int(b, &y)) {
        *out = (x > y) - (x < y);
        return true;
    }
    if (jis_number(a) && jis_number(b)) {
        const double f = jas_float(a), g = jas_float(b);
        *out = (f > g) - (f < g);
        return f == f && g == g ? true : jfail(r, "NaN has no order");
    }
    if (a->type == JV_TEXT && b->type == JV_TEXT) {
        const struct jtext *s = a->u.text, *t = b->u.text;
        const size_t n = s->n < t->n ? s->n : t->n;
        const int c = n == 0 ? 0 : memcmp(s->p, t->p, n);
        *out = c != 0 ? c : (s->n > t->n) - (s->n < t->n);
        return true;
    }
    if (a->type == b->type && (a->type == JV_LIST || a->type == JV_TUPLE)) {
        if (!jenter(r)) return false;
        const bool ok = seq_compare(r, a->u.seq, b->u.seq, out);
        jleave(r);
        return ok;
    }
    return jfail(r, "%s and %s have no order", jtype_name(a), jtype_name(b));
}

bool jcontains(struct jrun *r, const struct jvalue *whole, const struct jvalue *part, bool *out)
{
    *out = false;
    if (whole->type == JV_TEXT) {
        if (part->type != JV_TEXT) {
            return jfail(r, "'in' a string wants a string, not %s", jtype_name(part));
        }
        *out = jfind(whole->u.text, 0, part->u.text) != SIZE_MAX;
        return jsteps(r, whole->u.text->n / 16);
    }
    if (whole->type == JV_DICT) {
        *out = jdict_get(r, whole->u.dict, part) != NULL;
        return !status_failed(&r->st);
    }
    const struct jvalue *items;
    size_t n;
    if (!jiterate(r, whole, &items, &n)) return false;
    for (size_t i = 0; i < n && !*out; i++) {
        if (!jequal(r, &items[i], part, out)) return false;
    }
    return true;
}

static bool iterate_chars(struct jrun *r, const struct jtext *t, const struct jvalue **items,
                          size_t *n)
{
    struct jvalue *v, list;
    *n = jchars(t);
    if (!jseq_new(r, JV_LIST, *n, &v, &list)) return false;
    for (size_t i = 0, at = 0; i < *n; i++) {
        size_t end = at + 1;
        while (end < t->n && ((unsigned char)t->p[end] & 0xC0) == 0x80) end++;
        if (!jtext_cut(r, t, at, end, &v[i])) return false;
        at = end;
    }
    *items = v;
    return true;
}

bool jiterate(struct jrun *r, const struct jvalue *v, const struct jvalue **items, size_t *n)
{
    *items = NULL;
    *n = 0;
    struct jvalue *keys, list;
    switch ((enum jvalue_type)v->type) {
    case JV_UNDEFINED:
        return true;
    case JV_LIST:
    case JV_TUPLE:
    case JV_RANGE:
    case JV_VIEW:
        *items = v->u.seq->v;
        *n = v->u.seq->n;
        return jsteps(r, *n / 4);
    case JV_ITERATOR:
        *items = v->u.seq->v + v->u.seq->at;
        *n = v->u.seq->n - v->u.seq->at;
        v->u.seq->at = v->u.seq->n;
        return jsteps(r, *n / 4);
    case JV_TEXT:
        return iterate_chars(r, v->u.text, items, n);
    case JV_DICT:
        if (!jseq_new(r, JV_LIST, v->u.dict->n, &keys, &list)) return false;
        for (size_t i = 0; i < v->u.dict->n; i++) keys[i] = v->u.dict->pairs[i].key;
        *items = keys;
        *n = v->u.dict->n;
        return true;
    default:
        return jfail(r, "%s cannot be walked through", jtype_name(v));
    }
}

/* Walks a schema and adds paths for its keywords to the graph of the automaton. A schema named by
 * $ref is walked anew for each reference. For each JSON value, first gathers all schemas that must
 * hold for it ("parts"). */
#include "text/grammar/json_schema.h"

#include "base/mem.h"
#include "text/grammar/json_schema_private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEPTH_MAX = 64,   /* the most JSON values nested in each other */
    OPEN_MAX = 1024,  /* the most parts of all nested values together */
    WAYS_MAX = 50000, /* the most combinations of parts of a whole walk */
    SORT_STEPS = 16,  /* steps to find a value in a sorted list, or for work without a loop */
};

struct json_walk {
    struct nfa *n;
    const struct js_node *root;
    const struct js_node *open[OPEN_MAX]; /* [n_open] the parts that are being walked */
    size_t n_open;
    int depth;
    long *n_ways; /* combinations of parts so far, of the whole walk */
};

struct nfa *json_walk_nfa(struct json_walk *w)
{
    return w->n;
}

bool json_has(const struct json_parts *all, const char *key)
{
    for (size_t i = 0; i < all->n; i++)
        if (js_get(all->part[i], key) != NULL) return true;
    return false;
}

struct status json_read_count(const struct json_parts *all, const char *key, bool is_least,
                              int64_t *out)
{
    for (size_t i = 0; i < all->n; i++) {
        const struct js_node *node = js_get(all->part[i], key);
        int64_t count;
        if (node == NULL) continue;
        if (!js_int(node, &count) || count < 0 || count > NFA_EDGES_MAX)
            return status_make(STATUS_REQUEST, "keyword \"%s\": expected a count of 0 to %d", key,
                               (int)NFA_EDGES_MAX);
        if (*out < 0 || (is_least ? count > *out : count < *out)) *out = count;
    }
    return status_ok();
}

struct status json_contradiction(struct nfa *n, const struct json_parts *all, const char *sentence,
                                 uint32_t *end)
{
    if (all->n == 1) return status_make(STATUS_REQUEST, "%s", sentence);
    *end = nfa_state(n);
    return nfa_status(n);
}

static bool is_listed(const char *const *list, const char *word)
{
    for (; *list != NULL; list++)
        if (strcmp(*list, word) == 0) return true;
    return false;
}

/* Types as bits, and the keywords of each. "number" includes integers. */
enum { OBJECT = 1, ARRAY = 2, STRING = 4, NUMBER = 8, INTEGER = 16, BOOLEAN = 32, NOTHING = 64 };

static const struct type {
    const char *name;
    int takes; /* the types that it allows, as bits */
    const char *keywords[8];
} TYPES[] = {
    {"object", OBJECT, {"properties", "required", "additionalProperties"}},
    {"array", ARRAY, {"items", "prefixItems", "minItems", "maxItems"}},
    {"string", STRING, {"minLength", "maxLength", "pattern", "format"}},
    {"integer", INTEGER, {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}},
    {"number", NUMBER | INTEGER, {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}},
    {"boolean", BOOLEAN, {NULL}},
    {"null", NOTHING, {NULL}},
};
enum { N_TYPES = sizeof TYPES / sizeof *TYPES };

static bool is_known(const char *key, int types)
{
    static const char *const ALWAYS[] = {
        "type",  "enum",        "const",      "$ref",     "anyOf",     "oneOf", "allOf",
        "title", "description", "default",    "examples", "$schema",   "$id",   "$comment",
        "$defs", "definitions", "deprecated", "readOnly", "writeOnly", NULL};
    for (size_t i = 0; i < N_TYPES; i++)
        if ((TYPES[i].takes & types) != 0 && is_listed(TYPES[i].keywords, key)) return true;
    return is_listed(ALWAYS, key);
}

static struct status read_type(const struct js_node *node, int *types)
{
    const char *name = js_string(node, NULL);
    for (size_t i = 0; name != NULL && i < N_TYPES; i++) {
        if (strcmp(name, TYPES[i].name) != 0) continue;
        *types |= TYPES[i].takes;
        return status_ok();
    }
    return status_make(STATUS_REQUEST, "keyword \"type\": \"%.60s\" is no type",
                       name != NULL ? name : "");
}

/* Sets *types to the types that a part allows; -1 when it has no "type". */
static struct status read_part_types(const struct js_node *part, int *types)
{
    const struct js_node *type = js_get(part, "type");
    *types = -1;
    if (type == NULL) return status_ok();
    *types = 0;
    if (js_type(type) != JS_ARRAY) return read_type(type, types);
    if (js_count(type) == 0)
        return status_make(STATUS_REQUEST, "keyword \"type\": expected a type or a list of them");
    for (size_t i = 0; i < js_count(type); i++) TRY(read_type(js_at(type, i), types));
    return status_ok();
}

/* Sets *types to the types that all parts allow. If no part has a "type": to objects if a part has
 * "properties", to arrays if one has "items" or "prefixItems", else to -1. */
static struct status read_types(const struct json_parts *all, int *types)
{
    *types = -1;
    for (size_t i = 0; i < all->n; i++) {
        int allowed;
        TRY(read_part_types(all->part[i], &allowed));
        *types &= allowed;
    }
    if (*types >= 0) return status_ok();
    if (json_has(all, "properties"))
        *types = OBJECT;
    else if (json_has(all, "items") || json_has(all, "prefixItems"))
        *types = ARRAY;
    return status_ok();
}

/* Refuses unknown keywords, and keywords of types that their part does not allow. A part without
 * "type" allows `types`. */
static struct status check_keywords(const struct json_parts *all, int types)
{
    for (size_t i = 0; i < all->n; i++) {
        const void *it = NULL;
        const char *key;
        const struct js_node *value;
        int own;
        TRY(read_part_types(all->part[i], &own));
        if (own < 0) own = types;
        while (js_next(all->part[i], &it, &key, &value))
            if (!is_known(key, own < 0 ? 0 : own))
                return status_make(STATUS_REQUEST, "keyword \"%.60s\" is not supported here", key);
    }
    return status_ok();
}

/* True when any part has a keyword that belongs to a type, or is unknown. */
static bool has_keywords(const struct json_parts *all)
{
    for (size_t i = 0; i < all->n; i++) {
        const void *it = NULL;
        const char *key;
        const struct js_node *value;
        while (js_next(all->part[i], &it, &key, &value))
            if (!is_known(key, 0)) return true;
    }
    return false;
}

/* Adds the texts of one type. */
static struct status add_type(struct json_walk *w, uint32_t from, const struct json_parts *all,
                              int type, uint32_t *end)
{
    switch (type) {
    case OBJECT:
        return json_add_object(w, from, all, end);
    case ARRAY:
        return json_add_array(w, from, all, end);
    case STRING:
        return json_add_string(w->n, from, all, end);
    case NUMBER:
        return json_add_number(w->n, from, all, false, end);
    case INTEGER:
        return json_add_number(w->n, from, all, true, end);
    case BOOLEAN:
        *end = json_boolean(w->n, from);
        break;
    default:
        *end = json_word(w->n, from, "null");
    }
    return nfa_status(w->n);
}

/* Adds the texts that all keywords except enum and const accept. */
static struct status add_types(struct json_walk *w, uint32_t from, const struct json_parts *all,
                               uint32_t *end)
{
    int types;
    TRY(read_types(all, &types));
    TRY(check_keywords(all, types));
    if (types < 0) return json_any(w->n, from, JSON_ANY_DEPTH, end);
    if ((types & NUMBER) != 0) types &= ~INTEGER;
    *end = nfa_state(w->n);
    for (int type = OBJECT; type <= NOTHING; type *= 2) {
        uint32_t last;
        if ((types & type) == 0) continue;
        const uint32_t in = nfa_state(w->n);
        nfa_empty(w->n, from, in);
        TRY(add_type(w, in, all, type, &last));
        nfa_empty(w->n, last, *end);
    }
    return nfa_status(w->n);
}

/* Returns the type of a value, as a bit. */
static int json_schema_type_of(const struct js_node *value)
{
    int64_t whole;
    double x;
    switch (js_type(value)) {
    case JS_OBJECT:
        return OBJECT;
    case JS_ARRAY:
        return ARRAY;
    case JS_STRING:
        return STRING;
    case JS_NULL:
        return NOTHING;
    default:
        break;
    }
    if (js_int(value, &whole)) return INTEGER;
    if (!js_number(value, &x)) return BOOLEAN;
    return x == floor(x) ? INTEGER : NUMBER;
}

/* The values of one enum or const, each as compact JSON, sorted. */
struct value_texts {
    char **text; /* [n], owned, as is each text */
    size_t n;
};

static void value_texts_fini(struct value_texts *v)
{
    for (size_t i = 0; i < v->n; i++) mem_free(&v->text[i]);
    mem_free(&v->text);
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Fills v with the values of `list`: an array (enum) or, when is_one, the value itself (const). */
static struct status value_texts_init(struct value_texts *v, struct nfa *n,
                                      const struct js_node *list, bool is_one)
{
    const size_t n_values = is_one ? 1 : js_count(list);
    *v = (struct value_texts){.n = 0};
    TRY(mem_alloc(&v->text, n_values, sizeof *v->text, "schema"));
    for (size_t i = 0; i < n_values; i++) {
        size_t n_bytes;
        TRY(js_dump(is_one ? list : js_at(list, i), &v->text[i], &n_bytes));
        v->n++;
        nfa_spend(n, SORT_STEPS + n_bytes);
        TRY(nfa_status(n));
    }
    if (n_values > 1) qsort(v->text, n_values, sizeof *v->text, compare_texts);
    return status_ok();
}

/* Selects the values of one list (an enum or const) that all parts accept: those that are in every
 * other list, and that the types and all other keywords accept. */
struct value_filter {
    struct value_texts others[2 * JSON_PARTS_MAX - 1];
    size_t n_others;
    int types;        /* allowed types, as bits; -1: any */
    struct dfa *rest; /* the values that the other keywords accept; NULL: no other keywords.
                         Owned */
};

static bool takes_value(const struct value_filter *f, const struct js_node *value, const char *text,
                        size_t n)
{
    if ((json_schema_type_of(value) & f->types) == 0) return false;
    for (size_t i = 0; i < f->n_others; i++) {
        const struct value_texts *v = &f->others[i];
        if (bsearch(&text, v->text, v->n, sizeof *v->text, compare_texts) == NULL) return false;
    }
    return f->rest == NULL ||
           (f->rest->flags[dfa_run(f->rest, DFA_START, text, n)] & DFA_ACCEPTS) != 0;
}

/* Adds a path for the value if the filter accepts it. */
static struct status add_value(struct nfa *n, uint32_t from, const struct value_filter *f,
                               const struct js_node *value, uint32_t to)
{
    char *text;
    size_t n_bytes;
    TRY(js_dump(value, &text, &n_bytes));
    nfa_spend(n, SORT_STEPS * (1 + f->n_others) + n_bytes);
    if (takes_value(f, value, text, n_bytes)) nfa_empty(n, nfa_text(n, from, text, n_bytes), to);
    mem_free(&text);
    return nfa_status(n);
}

/* Sets *rest to an automaton of the texts that all keywords except enum and const accept; NULL: no
 * text. */
static struct status compile_rest(const struct json_walk *w, const struct json_parts *all,
                                  struct dfa **rest)
{
    struct nfa n;
    uint32_t end;
    nfa_init(&n, w->n->work);
    struct json_walk beside = *w;
    beside.n = &n;
    const uint32_t start = nfa_state(&n);
    struct status st = add_types(&beside, start, all, &end);
    if (!status_failed(&st)) st = dfa_create_any(&n, start, end, rest);
    nfa_fini(&n);
    return st;
}

/* Reads the enum and const lists of all parts. *first becomes the first of them; the others go to
 * the filter. */
static struct status read_lists(struct json_walk *w, const struct json_parts *all,
                                struct value_filter *f, const struct js_node **first,
                                bool *first_is_one)
{
    *first = NULL;
    for (size_t i = 0; i < 2 * all->n; i++) {
        const bool is_one = i % 2 == 0;
        const struct js_node *list = js_get(all->part[i / 2], is_one ? "const" : "enum");
        if (list == NULL) continue;
        if (!is_one && (js_type(list) != JS_ARRAY || js_count(list) == 0))
            return status_make(STATUS_REQUEST, "keyword \"enum\": expected a list of values");
        if (*first != NULL) {
            TRY(value_texts_init(&f->others[f->n_others++], w->n, list, is_one));
            continue;
        }
        *first = list;
        *first_is_one = is_one;
    }
    return status_ok();
}

/* Adds the values that are in all enum and const lists and that all other keywords accept. */
static struct status json_schema_add_values(struct json_walk *w, uint32_t from,
                                            const struct json_parts *all, uint32_t *end)
{
    struct value_filter f = {.n_others = 0};
    const struct js_node *list;
    bool is_one = false, is_void = false;
    *end = nfa_state(w->n);
    struct status st;
    TRY_GOTO(st, read_lists(w, all, &f, &list, &is_one), done);
    TRY_GOTO(st, read_types(all, &f.types), done);
    if (has_keywords(all)) {
        TRY_GOTO(st, compile_rest(w, all, &f.rest), done);
        is_void = f.rest == NULL;
    }
    const size_t n_values = is_one ? 1 : js_count(list);
    for (size_t i = 0; i < n_values && !is_void && !status_failed(&st); i++)
        st = add_value(w->n, from, &f, is_one ? list : js_at(list, i), *end);
done:
    for (size_t i = 0; i < f.n_others; i++) value_texts_fini(&f.others[i]);
    dfa_destroy(&f.rest);
    return st;
}

/* Returns the schema to which "#/a/b" points, or NULL. ~ and % have no special meaning in names. */
static const struct js_node *find_ref(const struct json_walk *w, const char *ref)
{
    const struct js_node *at = w->root;
    char name[128];
    if (*ref++ != '#') return NULL;
    while (*ref == '/' && at != NULL) {
        const size_t n = strcspn(++ref, "/");
        if (n >= sizeof name) return NULL;
        memcpy(name, ref, n);
        name[n] = '\0';
        at = js_get(at, name);
        ref += n;
    }
    return *ref == '\0' ? at : NULL;
}

static struct status open_schema_part(struct json_walk *w, const struct js_node *part)
{
    if (w->n_open == OPEN_MAX)
        return status_make(STATUS_REQUEST, "schemas are nested more than %d deep", OPEN_MAX);
    w->open[w->n_open++] = part;
    return status_ok();
}

static struct status json_schema_gather(struct json_walk *w, const struct js_node *schema,
                                        uint32_t chain, struct json_parts *all);

/* Adds the schema to which $ref points. A schema may refer to itself JSON_ANY_DEPTH times. A
 * further reference accepts no text, so only texts that need no deeper level remain. */
static struct status gather_ref(struct json_walk *w, const struct js_node *schema, uint32_t chain,
                                struct json_parts *all)
{
    const char *ref = js_string(js_get(schema, "$ref"), NULL);
    const struct js_node *found = ref != NULL ? find_ref(w, ref) : NULL;
    int n_open = 0;
    nfa_spend(w->n, w->n_open + (ref != NULL ? strlen(ref) : 0));
    if (found == NULL)
        return status_make(STATUS_REQUEST,
                           "keyword \"$ref\": \"%.60s\" is not found in this schema",
                           ref != NULL ? ref : "");
    for (size_t i = 0; i < w->n_open; i++) n_open += w->open[i] == found;
    if (n_open <= JSON_ANY_DEPTH) return json_schema_gather(w, found, chain, all);
    all->is_void = true;
    return status_ok();
}

static struct status gather_list(struct json_walk *w, const struct js_node *schema,
                                 const char *name, uint32_t chain, struct json_parts *all)
{
    const struct js_node *list = js_get(schema, name);
    if (list == NULL) return status_ok();
    if (js_type(list) != JS_ARRAY || js_count(list) == 0)
        return status_make(STATUS_REQUEST, "keyword \"%s\": expected a list of schemas", name);
    if (strcmp(name, "allOf") == 0) {
        for (size_t i = 0; i < js_count(list); i++)
            TRY(json_schema_gather(w, js_at(list, i), chain, all));
        return status_ok();
    }
    if (all->n_choices == JSON_CHOICES_MAX)
        return status_make(STATUS_REQUEST, "keyword \"%s\": more than %d of them hold together",
                           name, JSON_CHOICES_MAX);
    all->chain[all->n_choices] = chain;
    all->choice[all->n_choices++] = list;
    return status_ok();
}

/* Appends the schema and those that its $ref and allOf add; lists its anyOf and oneOf as choices. A
 * schema that is in the list is not added again. A schema that leads back to itself through $ref
 * and allOf alone accepts no text; if a choice of its anyOf or oneOf does so, that choice accepts
 * none. chain: the parts that led here, as bits. */
static struct status json_schema_gather(struct json_walk *w, const struct js_node *schema,
                                        uint32_t chain, struct json_parts *all)
{
    bool allows = false;
    nfa_spend(w->n, 1 + all->n);
    TRY(nfa_status(w->n));
    if (js_bool(schema, &allows) && allows) return status_ok();
    if (js_type(schema) != JS_OBJECT)
        return status_make(STATUS_REQUEST, "expected a schema, which is an object or true");
    for (size_t i = 0; i < all->n; i++) {
        if (all->part[i] != schema) continue;
        all->is_void = all->is_void || (chain >> i & 1) != 0;
        return status_ok();
    }
    if (all->n == JSON_PARTS_MAX)
        return status_make(STATUS_REQUEST, "more than %d schemas hold together", JSON_PARTS_MAX);
    chain |= UINT32_C(1) << all->n;
    all->part[all->n++] = schema;
    if (js_get(schema, "$ref") != NULL) TRY(gather_ref(w, schema, chain, all));
    TRY(gather_list(w, schema, "allOf", chain, all));
    TRY(gather_list(w, schema, "anyOf", chain, all));
    return gather_list(w, schema, "oneOf", chain, all);
}

static struct status json_schema_add_parts(struct json_walk *w, uint32_t from,
                                           struct json_parts *all, uint32_t *end);

/* Adds the texts that all parts and at least one schema of the last list of choices accept. */
static struct status json_schema_add_choices(struct json_walk *w, uint32_t from,
                                             const struct json_parts *all, uint32_t *end)
{
    const struct js_node *list = all->choice[all->n_choices - 1];
    *end = nfa_state(w->n);
    for (size_t i = 0; i < js_count(list); i++) {
        const size_t n_open = w->n_open;
        struct json_parts one = *all;
        uint32_t last;
        one.n_choices--;
        TRY(json_schema_gather(w, js_at(list, i), all->chain[one.n_choices], &one));
        for (size_t k = all->n; k < one.n; k++) TRY(open_schema_part(w, one.part[k]));
        const uint32_t in = nfa_state(w->n);
        nfa_empty(w->n, from, in);
        TRY(json_schema_add_parts(w, in, &one, &last));
        nfa_empty(w->n, last, *end);
        w->n_open = n_open;
    }
    return nfa_status(w->n);
}

/* Adds the texts that all parts accept. The caller has opened the parts. */
static struct status json_schema_add_parts(struct json_walk *w, uint32_t from,
                                           struct json_parts *all, uint32_t *end)
{
    for (size_t i = 0; i < all->n; i++)
        nfa_spend(w->n, SORT_STEPS * (1 + js_count(js_get(all->part[i], "type"))));
    TRY(nfa_status(w->n));
    if (++*w->n_ways > WAYS_MAX)
        return status_make(STATUS_REQUEST,
                           "it is too large: its schemas go together in more than "
                           "%d ways",
                           WAYS_MAX);
    *end = nfa_state(w->n);
    if (all->is_void) return nfa_status(w->n);
    if (all->n_choices > 0) return json_schema_add_choices(w, from, all, end);
    if (json_has(all, "enum") || json_has(all, "const"))
        return json_schema_add_values(w, from, all, end);
    return add_types(w, from, all, end);
}

struct status json_add_all(struct json_walk *w, uint32_t from, const struct js_node *const *schema,
                           size_t n, uint32_t *end)
{
    const size_t n_open = w->n_open;
    struct json_parts all = {.n = 0};
    if (w->depth == DEPTH_MAX)
        return status_make(STATUS_REQUEST, "schemas are nested more than %d deep", DEPTH_MAX);
    w->depth++;
    for (size_t i = 0; i < n; i++) TRY(json_schema_gather(w, schema[i], 0, &all));
    for (size_t i = 0; i < all.n; i++) TRY(open_schema_part(w, all.part[i]));
    TRY(json_schema_add_parts(w, from, &all, end));
    w->n_open = n_open;
    w->depth--;
    return status_ok();
}

struct status json_schema_add(struct nfa *n, uint32_t from, const struct js_node *schema,
                              uint32_t *end)
{
    long n_ways = 0;
    struct json_walk *w = NULL;
    TRY(mem_alloc(&w, 1, sizeof *w, "schema"));
    w->n = n;
    w->root = schema;
    w->n_ways = &n_ways;
    const struct status st = json_add_all(w, from, &schema, 1, end);
    mem_free(&w);
    return st;
}

struct status json_schema_any_object(struct nfa *n, uint32_t from, uint32_t *end)
{
    return json_any_object(n, from, JSON_ANY_DEPTH, end);
}

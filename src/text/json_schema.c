/* Keywords to paths. A schema is walked once for each place where it stands. */
#include "text/json_schema.h"

#include "base/mem.h"
#include "base/strbuf.h"
#include "text/json_schema_private.h"
#include "text/regex.h"

#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 64 };

struct walk {
    struct nfa *n;
    const struct js_node *root;
    const struct js_node *open[DEPTH_MAX]; /* [depth] the schemas that are being walked */
    int depth;
};

static const char *const ANNOTATIONS[] = {
    "title", "description", "default",    "examples", "$schema",   "$id", "$comment",
    "$defs", "definitions", "deprecated", "readOnly", "writeOnly", NULL};

static struct status add_schema(struct walk *w, uint32_t from, const struct js_node *schema,
                                uint32_t *end);

static bool is_listed(const char *const *list, const char *word)
{
    for (; *list != NULL; list++)
        if (strcmp(*list, word) == 0) return true;
    return false;
}

/* Refuses a schema with keywords that are neither annotations nor known. */
static struct status check_keywords(const struct js_node *schema, const char *const *known)
{
    const void *it = NULL;
    const char *key;
    const struct js_node *value;
    while (js_next(schema, &it, &key, &value)) {
        if (is_listed(known, key) || is_listed(ANNOTATIONS, key)) continue;
        return status_make(STATUS_REQUEST, "keyword \"%.60s\" is not supported here", key);
    }
    return status_ok();
}

static bool has(const struct js_node *schema, const char *key)
{
    return js_get(schema, key) != NULL;
}

/* A count, or what it was. */
static struct status read_count(const struct js_node *schema, const char *key, int64_t *out)
{
    const struct js_node *node = js_get(schema, key);
    if (node == NULL) return status_ok();
    if (js_int(node, out) && *out >= 0 && *out <= NFA_EDGES_MAX) return status_ok();
    return status_make(STATUS_REQUEST, "keyword \"%s\": expected a count of 0 to %d", key,
                       (int)NFA_EDGES_MAX);
}

static struct status add_literal(struct walk *w, uint32_t from, const struct js_node *value,
                                 uint32_t out)
{
    char *text;
    size_t n;
    TRY(js_dump(value, &text, &n));
    nfa_empty(w->n, nfa_text(w->n, from, text, n), out);
    mem_free(&text);
    return nfa_status(w->n);
}

static struct status add_enum(struct walk *w, uint32_t from, const struct js_node *schema,
                              uint32_t *end)
{
    static const char *const KNOWN[] = {"enum", "const", "type", NULL};
    const struct js_node *list = js_get(schema, "enum");
    TRY(check_keywords(schema, KNOWN));
    *end = nfa_state(w->n);
    if (has(schema, "const")) return add_literal(w, from, js_get(schema, "const"), *end);
    if (js_type(list) != JS_ARRAY || js_count(list) == 0)
        return status_make(STATUS_REQUEST, "keyword \"enum\": expected a list of values");
    for (size_t i = 0; i < js_count(list); i++) TRY(add_literal(w, from, js_at(list, i), *end));
    return status_ok();
}

static struct status add_any_of(struct walk *w, uint32_t from, const struct js_node *schema,
                                uint32_t *end)
{
    static const char *const NAMES[] = {"anyOf", "oneOf", "allOf", NULL};
    const char *name = has(schema, "anyOf") ? "anyOf" : has(schema, "oneOf") ? "oneOf" : "allOf";
    const char *const known[] = {name, NULL};
    const struct js_node *list = js_get(schema, name);
    TRY(check_keywords(schema, known));
    const size_t n = js_count(list);
    if (js_type(list) != JS_ARRAY || n == 0 || (n > 1 && name[1] == 'l'))
        return status_make(STATUS_REQUEST, "keyword \"%s\": expected a list of %s", name,
                           strcmp(name, NAMES[2]) == 0 ? "one schema" : "schemas");
    *end = nfa_state(w->n);
    for (size_t i = 0; i < n; i++) {
        uint32_t in = nfa_state(w->n), last;
        nfa_empty(w->n, from, in);
        TRY(add_schema(w, in, js_at(list, i), &last));
        nfa_empty(w->n, last, *end);
    }
    return nfa_status(w->n);
}

/* What "#/a/b" points to, or NULL. Names with ~ and % are not looked for. */
static const struct js_node *find_ref(const struct walk *w, const char *ref)
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

/* A schema that leads back to itself stands JSON_ANY_DEPTH deep in itself; deeper, nothing leads to
 * *end, which leaves the texts that need no more of it. */
static struct status add_ref(struct walk *w, uint32_t from, const struct js_node *schema,
                             uint32_t *end)
{
    static const char *const KNOWN[] = {"$ref", NULL};
    const char *ref = js_string(js_get(schema, "$ref"), NULL);
    TRY(check_keywords(schema, KNOWN));
    const struct js_node *found = ref != NULL ? find_ref(w, ref) : NULL;
    int n_open = 0;
    for (int i = 0; i < w->depth; i++) n_open += w->open[i] == found;
    if (found != NULL && n_open > JSON_ANY_DEPTH) {
        *end = nfa_state(w->n);
        return status_ok();
    }
    if (found != NULL) return add_schema(w, from, found, end);
    return status_make(STATUS_REQUEST, "keyword \"$ref\": \"%.60s\" is not found in this schema",
                       ref != NULL ? ref : "");
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The names that must come, in order; *names is to be freed. Each is a property, and there once. */
static struct status list_required(const struct js_node *schema, const char ***names, size_t *n)
{
    const struct js_node *list = js_get(schema, "required");
    const struct js_node *properties = js_get(schema, "properties");
    bool is_right = js_type(list) == JS_ARRAY || list == NULL;
    *n = js_count(list);
    TRY(mem_alloc(names, *n, sizeof **names, "schema"));
    for (size_t i = 0; i < *n && is_right; i++) {
        (*names)[i] = js_string(js_at(list, i), NULL);
        is_right = (*names)[i] != NULL && js_get(properties, (*names)[i]) != NULL;
    }
    if (is_right && *n > 0) qsort(*names, *n, sizeof **names, compare_names);
    for (size_t i = 1; i < *n && is_right; i++)
        is_right = strcmp((*names)[i - 1], (*names)[i]) != 0;
    if (is_right) return status_ok();
    mem_free(names);
    return status_make(STATUS_REQUEST, "keyword \"required\": expected a list of names that are in "
                                       "properties, each once");
}

/* "name": value */
static struct status add_member(struct walk *w, uint32_t from, const char *name,
                                const struct js_node *value, uint32_t *end)
{
    struct strbuf quoted;
    strbuf_init(&quoted);
    strbuf_json_string(&quoted, name, strlen(name));
    const struct status st = strbuf_status(&quoted);
    if (!status_failed(&st)) from = nfa_text(w->n, from, quoted.data, quoted.n);
    strbuf_fini(&quoted);
    TRY(st);
    return add_schema(w, json_mark(w->n, from, ":"), value, end);
}

/* The members, in the schema's order; `first` as long as none came, `later` behind one. */
static struct status add_members(struct walk *w, uint32_t from, const struct js_node *schema,
                                 const char *const *required, size_t n_required, uint32_t *end)
{
    const struct js_node *value;
    const void *it = NULL;
    const char *key;
    uint32_t first = json_word(w->n, from, "{"), later = nfa_state(w->n);
    while (js_next(js_get(schema, "properties"), &it, &key, &value)) {
        const bool is_required = n_required > 0 && bsearch(&key, required, n_required,
                                                           sizeof *required, compare_names) != NULL;
        const uint32_t member = nfa_state(w->n);
        uint32_t last;
        nfa_empty(w->n, first, member);
        nfa_empty(w->n, json_mark(w->n, later, ","), member);
        TRY(add_member(w, member, key, value, &last));
        const uint32_t next = nfa_state(w->n), still_first = nfa_state(w->n);
        nfa_empty(w->n, last, next);
        if (!is_required) nfa_empty(w->n, later, next);
        if (!is_required) nfa_empty(w->n, first, still_first);
        later = next;
        first = still_first;
    }
    *end = json_word(w->n, later, "}");
    nfa_bytes(w->n, first, '}', '}', *end);
    return nfa_status(w->n);
}

static struct status add_properties(struct walk *w, uint32_t from, const struct js_node *schema,
                                    uint32_t *end)
{
    const char **required = NULL;
    size_t n_required;
    TRY(list_required(schema, &required, &n_required));
    const struct status st = add_members(w, from, schema, required, n_required, end);
    mem_free(&required);
    return st;
}

static struct status add_object(struct walk *w, uint32_t from, const struct js_node *schema,
                                uint32_t *end)
{
    static const char *const KNOWN[] = {"type", "properties", "required", "additionalProperties",
                                        NULL};
    const struct js_node *more = js_get(schema, "additionalProperties");
    bool allows = true;
    TRY(check_keywords(schema, KNOWN));
    if (has(schema, "properties") || has(schema, "required"))
        return add_properties(w, from, schema, end);
    if (more == NULL || (js_bool(more, &allows) && allows))
        return json_any_object(w->n, from, JSON_ANY_DEPTH, end);
    const uint32_t open = json_word(w->n, from, "{"), member = nfa_state(w->n);
    if (!allows) {
        *end = json_word(w->n, open, "}");
        return nfa_status(w->n);
    }
    uint32_t value;
    nfa_empty(w->n, open, member);
    TRY(add_schema(w, json_mark(w->n, json_string(w->n, member), ":"), more, &value));
    nfa_empty(w->n, json_mark(w->n, value, ","), member);
    *end = json_word(w->n, value, "}");
    nfa_bytes(w->n, open, '}', '}', *end);
    return nfa_status(w->n);
}

/* How many items an array has: [least, most], most -1 without end. None but those that are named
 * follow prefixItems. */
static struct status count_items(const struct js_node *schema, int64_t *least, int64_t *most)
{
    const struct js_node *items = js_get(schema, "items"), *prefix = js_get(schema, "prefixItems");
    const int64_t n_prefix = (int64_t)js_count(prefix);
    bool allows = prefix == NULL;
    *least = 0;
    *most = -1;
    if (prefix != NULL && js_type(prefix) != JS_ARRAY)
        return status_make(STATUS_REQUEST, "keyword \"prefixItems\": expected a list of schemas");
    TRY(read_count(schema, "minItems", least));
    TRY(read_count(schema, "maxItems", most));
    if (items != NULL && !js_bool(items, &allows)) allows = true;
    if (!allows && (*most < 0 || *most > n_prefix)) *most = n_prefix;
    if (*most < 0 || *most >= *least) return status_ok();
    return status_make(STATUS_REQUEST, "keyword \"%s\" is below minItems",
                       has(schema, "maxItems") ? "maxItems" : "prefixItems");
}

static struct status add_array(struct walk *w, uint32_t from, const struct js_node *schema,
                               uint32_t *end)
{
    static const char *const KNOWN[] = {"type",     "items",    "prefixItems",
                                        "minItems", "maxItems", NULL};
    const struct js_node *items = js_get(schema, "items"), *prefix = js_get(schema, "prefixItems");
    const int64_t n_prefix = (int64_t)js_count(prefix);
    int64_t least, most;
    TRY(check_keywords(schema, KNOWN));
    TRY(count_items(schema, &least, &most));
    uint32_t in = json_word(w->n, from, "["), value = in;
    const uint32_t close = nfa_state(w->n);
    const int64_t n_copies = most >= 0 ? most : least > n_prefix ? least : n_prefix + 1;
    *end = json_word(w->n, close, "]");
    if (least == 0) nfa_empty(w->n, in, close);
    for (int64_t i = 1; i <= n_copies; i++) {
        const struct js_node *one = i <= n_prefix ? js_at(prefix, (size_t)i - 1) : items;
        const uint32_t item = nfa_state(w->n);
        nfa_empty(w->n, i == 1 ? in : json_mark(w->n, value, ","), item);
        if (one != NULL)
            TRY(add_schema(w, item, one, &value));
        else
            TRY(json_any(w->n, item, JSON_ANY_DEPTH - 1, &value));
        if (i >= least) nfa_empty(w->n, value, close);
        in = item;
    }
    if (most < 0) nfa_empty(w->n, json_mark(w->n, value, ","), in);
    return nfa_status(w->n);
}

/* The regular expression of a format that has one here; NULL: it says nothing. */
static const char *pattern_of(const char *format)
{
#define DATE "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
#define TIME                                                                                       \
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]" \
    ")"
    static const char *const FORMATS[][2] = {
        {"date", "^" DATE "$"},
        {"time", "^" TIME "$"},
        {"date-time", "^" DATE "T" TIME "$"},
        {"uuid", "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
    };
#undef DATE
#undef TIME
    for (size_t i = 0; i < sizeof FORMATS / sizeof *FORMATS; i++)
        if (format != NULL && strcmp(format, FORMATS[i][0]) == 0) return FORMATS[i][1];
    return NULL;
}

static struct status add_string(struct walk *w, uint32_t from, const struct js_node *schema,
                                uint32_t *end)
{
    static const char *const KNOWN[] = {"type",    "minLength", "maxLength",
                                        "pattern", "format",    NULL};
    const struct js_node *given = js_get(schema, "pattern");
    size_t n = 0;
    const char *pattern = given != NULL ? js_string(given, &n)
                                        : pattern_of(js_string(js_get(schema, "format"), NULL));
    int64_t least = 0, most = -1;
    TRY(check_keywords(schema, KNOWN));
    TRY(read_count(schema, "minLength", &least));
    TRY(read_count(schema, "maxLength", &most));
    if (given == NULL && pattern != NULL) n = strlen(pattern);
    if (given != NULL && pattern == NULL)
        return status_make(STATUS_REQUEST, "keyword \"pattern\": expected a string");
    if (pattern != NULL && (least > 0 || most >= 0))
        return status_make(STATUS_REQUEST,
                           "keyword \"%s\" is not supported beside a pattern or a "
                           "format that has one",
                           least > 0 ? "minLength" : "maxLength");
    if (most >= 0 && most < least)
        return status_make(STATUS_REQUEST, "keyword \"maxLength\" is below minLength");
    from = json_word(w->n, from, "\"");
    if (pattern == NULL) {
        from = json_chars(w->n, from, least, most);
    } else {
        const struct regex_options options = {.in_string = true, .searches = true};
        TRY(status_wrap(regex_add(w->n, from, pattern, n, options, &from), "keyword \"pattern\""));
    }
    *end = json_word(w->n, from, "\"");
    return nfa_status(w->n);
}

/* A bound of integers; `step` makes an exclusive one inclusive. */
static struct status read_bound(const struct js_node *schema, const char *key, int step,
                                int64_t *bound)
{
    const struct js_node *node = js_get(schema, key);
    const int64_t most = (int64_t)1 << 53; /* also a bound that is written as 1.0 is exact */
    double value;
    if (node == NULL) return status_ok();
    if (!js_number(node, &value) || !(value >= -(double)most && value <= (double)most) ||
        value != (double)(int64_t)value)
        return status_make(STATUS_REQUEST, "keyword \"%s\": expected an integer of 53 bits", key);
    *bound = (int64_t)value + step;
    return status_ok();
}

static struct status add_integer(struct walk *w, uint32_t from, const struct js_node *schema,
                                 uint32_t *end)
{
    static const char *const KNOWN[] = {"type",    "minimum",          "exclusiveMinimum",
                                        "maximum", "exclusiveMaximum", NULL};
    int64_t low = INT64_MIN, high = INT64_MAX, low_out = low, high_out = high;
    TRY(check_keywords(schema, KNOWN));
    TRY(read_bound(schema, "minimum", 0, &low));
    TRY(read_bound(schema, "exclusiveMinimum", 1, &low_out));
    TRY(read_bound(schema, "maximum", 0, &high));
    TRY(read_bound(schema, "exclusiveMaximum", -1, &high_out));
    if (low_out > low) low = low_out;
    if (high_out < high) high = high_out;
    if (low > high) return status_make(STATUS_REQUEST, "no integer is between its bounds");
    *end = json_integer(w->n, from, low, high);
    return nfa_status(w->n);
}

static struct status add_type(struct walk *w, uint32_t from, const struct js_node *schema,
                              const char *type, uint32_t *end)
{
    static const char *const PLAIN[] = {"type", NULL};
    if (strcmp(type, "object") == 0) return add_object(w, from, schema, end);
    if (strcmp(type, "array") == 0) return add_array(w, from, schema, end);
    if (strcmp(type, "string") == 0) return add_string(w, from, schema, end);
    if (strcmp(type, "integer") == 0) return add_integer(w, from, schema, end);
    TRY(check_keywords(schema, PLAIN));
    if (strcmp(type, "number") == 0) return json_number(w->n, from, end);
    if (strcmp(type, "boolean") == 0)
        *end = json_boolean(w->n, from);
    else if (strcmp(type, "null") == 0)
        *end = json_word(w->n, from, "null");
    else
        return status_make(STATUS_REQUEST, "keyword \"type\": \"%.60s\" is no type", type);
    return nfa_status(w->n);
}

/* The type that a schema without "type" means; NULL: any. */
static const char *type_meant(const struct js_node *schema)
{
    if (has(schema, "properties")) return "object";
    return has(schema, "items") || has(schema, "prefixItems") ? "array" : NULL;
}

static struct status add_any(struct walk *w, uint32_t from, const struct js_node *schema,
                             uint32_t *end)
{
    static const char *const NONE[] = {NULL};
    TRY(check_keywords(schema, NONE));
    return json_any(w->n, from, JSON_ANY_DEPTH, end);
}

/* Of several types, those that need keywords of their own would refuse each other's. */
static struct status add_types(struct walk *w, uint32_t from, const struct js_node *schema,
                               uint32_t *end)
{
    const struct js_node *type = js_get(schema, "type");
    const char *name = type == NULL ? type_meant(schema) : js_string(type, NULL);
    if (name != NULL) return add_type(w, from, schema, name, end);
    if (type == NULL) return add_any(w, from, schema, end);
    if (js_type(type) != JS_ARRAY || js_count(type) == 0)
        return status_make(STATUS_REQUEST, "keyword \"type\": expected a type or a list of them");
    *end = nfa_state(w->n);
    for (size_t i = 0; i < js_count(type); i++) {
        const char *one = js_string(js_at(type, i), NULL);
        uint32_t last;
        if (one != NULL && strcmp(one, "null") == 0) {
            last = json_word(w->n, from, "null");
        } else {
            TRY(add_type(w, from, schema, one != NULL ? one : "", &last));
        }
        nfa_empty(w->n, last, *end);
    }
    return nfa_status(w->n);
}

static struct status add_kind(struct walk *w, uint32_t from, const struct js_node *schema,
                              uint32_t *end)
{
    bool allows = false;
    if (js_bool(schema, &allows) && allows) return json_any(w->n, from, JSON_ANY_DEPTH, end);
    if (js_type(schema) != JS_OBJECT)
        return status_make(STATUS_REQUEST, "expected a schema, which is an object or true");
    if (has(schema, "$ref")) return add_ref(w, from, schema, end);
    if (has(schema, "enum") || has(schema, "const")) return add_enum(w, from, schema, end);
    if (has(schema, "anyOf") || has(schema, "oneOf") || has(schema, "allOf"))
        return add_any_of(w, from, schema, end);
    return add_types(w, from, schema, end);
}

static struct status add_schema(struct walk *w, uint32_t from, const struct js_node *schema,
                                uint32_t *end)
{
    if (w->depth == DEPTH_MAX)
        return status_make(STATUS_REQUEST, "schemas are nested more than %d deep", DEPTH_MAX);
    w->open[w->depth++] = schema;
    TRY(nfa_status(w->n));
    TRY(add_kind(w, from, schema, end));
    w->depth--;
    return status_ok();
}

struct status json_schema_add(struct nfa *n, uint32_t from, const struct js_node *schema,
                              uint32_t *end)
{
    struct walk w = {.n = n, .root = schema};
    return add_schema(&w, from, schema, end);
}

struct status json_schema_any_object(struct nfa *n, uint32_t from, uint32_t *end)
{
    return json_any_object(n, from, JSON_ANY_DEPTH, end);
}

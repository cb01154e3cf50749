/* Adds paths for objects and arrays to the graph, from a schema's parts (json_schema_private.h). */
#include "base/mem.h"
#include "base/strbuf.h"
#include "text/grammar/json_schema_private.h"

#include <stdlib.h>
#include <string.h>

static int json_nested_compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool is_property(const struct json_parts *all, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (js_get(js_get(all->part[i], "properties"), name) != NULL) return true;
    return false;
}

/* Fills `names` with the names in one part's "required", sorted. False when "required" is not a
 * list of names, or when a name is not a property of any part or comes twice. */
static bool list_part(const struct json_parts *all, const struct js_node *list, const char **names)
{
    const size_t n = js_count(list);
    if (list != NULL && js_type(list) != JS_ARRAY) return false;
    for (size_t i = 0; i < n; i++) {
        names[i] = js_string(js_at(list, i), NULL);
        if (names[i] == NULL || !is_property(all, all->n, names[i])) return false;
    }
    if (n > 0) qsort(names, n, sizeof *names, json_nested_compare_names);
    for (size_t i = 1; i < n; i++)
        if (strcmp(names[i - 1], names[i]) == 0) return false;
    return true;
}

/* Sets *names [*n] to the required names of all parts, sorted. Owner: the caller, mem_free. */
static struct status list_required(const struct json_parts *all, const char ***names, size_t *n)
{
    size_t n_all = 0;
    bool is_right = true;
    for (size_t i = 0; i < all->n; i++) n_all += js_count(js_get(all->part[i], "required"));
    TRY(mem_alloc(names, n_all, sizeof **names, "schema"));
    *n = 0;
    for (size_t i = 0; i < all->n && is_right; i++) {
        const struct js_node *list = js_get(all->part[i], "required");
        is_right = list_part(all, list, *names + *n);
        *n += js_count(list);
    }
    if (is_right && n_all > 0) qsort(*names, n_all, sizeof **names, json_nested_compare_names);
    if (is_right) return status_ok();
    mem_free(names);
    return status_make(STATUS_REQUEST, "keyword \"required\": expected a list of names that are in "
                                       "properties, each once");
}

/* Adds paths for a member: its name, a colon, and a value that all parts accept. */
static struct status json_nested_add_member(struct json_walk *w, uint32_t from,
                                            const struct json_parts *all, const char *name,
                                            uint32_t *end)
{
    const struct js_node *schema[JSON_PARTS_MAX];
    struct nfa *n = json_walk_nfa(w);
    struct strbuf quoted;
    size_t n_schemas = 0;
    for (size_t i = 0; i < all->n; i++) {
        const struct js_node *one = js_get(js_get(all->part[i], "properties"), name);
        bool allows = true;
        if (one == NULL && all->n > 1) one = js_get(all->part[i], "additionalProperties");
        if (one == NULL) continue;
        *end = nfa_state(n);
        if (js_bool(one, &allows) && !allows) return nfa_status(n); /* a part forbids this member */
        schema[n_schemas++] = one;
    }
    strbuf_init(&quoted);
    strbuf_json_string(&quoted, name, strlen(name));
    const struct status st = strbuf_status(&quoted);
    if (!status_failed(&st)) from = nfa_text(n, from, quoted.data, quoted.n);
    strbuf_fini(&quoted);
    TRY(st);
    return json_add_all(w, json_mark(n, from, ":"), schema, n_schemas, end);
}

/* The states between an object's members: `first` before any member, `later` after one. */
struct between {
    uint32_t first, later;
};

static struct status add_property(struct json_walk *w, const struct json_parts *all,
                                  const char *name, bool is_required, struct between *at)
{
    struct nfa *n = json_walk_nfa(w);
    const uint32_t member = nfa_state(n);
    uint32_t last;
    nfa_empty(n, at->first, member);
    nfa_empty(n, json_mark(n, at->later, ","), member);
    TRY(json_nested_add_member(w, member, all, name, &last));
    const struct between next = {nfa_state(n), nfa_state(n)};
    nfa_empty(n, last, next.later);
    if (!is_required) nfa_empty(n, at->later, next.later);
    if (!is_required) nfa_empty(n, at->first, next.first);
    *at = next;
    return nfa_status(n);
}

/* Adds objects whose members are the properties of the parts, in the order of the parts and of
 * their "properties". */
static struct status add_members(struct json_walk *w, uint32_t from, const struct json_parts *all,
                                 const char *const *required, size_t n_required, uint32_t *end)
{
    struct nfa *n = json_walk_nfa(w);
    struct between at = {json_word(n, from, "{"), nfa_state(n)};
    nfa_spend(n, n_required * all->n);
    for (size_t i = 0; i < all->n; i++) {
        const struct js_node *value;
        const void *it = NULL;
        const char *key;
        while (js_next(js_get(all->part[i], "properties"), &it, &key, &value)) {
            nfa_spend(n, all->n);
            if (is_property(all, i, key)) continue; /* an earlier part has it */
            const bool is_required =
                n_required > 0 && bsearch(&key, required, n_required, sizeof *required,
                                          json_nested_compare_names) != NULL;
            TRY(add_property(w, all, key, is_required, &at));
        }
    }
    *end = json_word(n, at.later, "}");
    nfa_bytes(n, at.first, '}', '}', *end);
    return nfa_status(n);
}

/* Adds objects with any member names. Each value must be accepted by all schemas of `more`
 * [n_more]. more NULL: adds only the empty object. */
static struct status add_map(struct json_walk *w, uint32_t from, const struct js_node *const *more,
                             size_t n_more, uint32_t *end)
{
    struct nfa *n = json_walk_nfa(w);
    const uint32_t open = json_word(n, from, "{"), member = nfa_state(n);
    uint32_t value;
    *end = nfa_state(n);
    nfa_bytes(n, open, '}', '}', *end);
    if (more == NULL) return nfa_status(n);
    nfa_empty(n, open, member);
    TRY(json_add_all(w, json_mark(n, json_string(n, member), ":"), more, n_more, &value));
    nfa_empty(n, json_mark(n, value, ","), member);
    nfa_bytes(n, value, '}', '}', *end);
    return nfa_status(n);
}

/* Adds objects with the members that the additionalProperties of all parts allow. */
static struct status add_free_members(struct json_walk *w, uint32_t from,
                                      const struct json_parts *all, uint32_t *end)
{
    const struct js_node *more[JSON_PARTS_MAX];
    size_t n_more = 0;
    for (size_t i = 0; i < all->n; i++) {
        const struct js_node *one = js_get(all->part[i], "additionalProperties");
        bool allows = false;
        if (one == NULL || (js_bool(one, &allows) && allows)) continue;
        if (js_bool(one, &allows)) return add_map(w, from, NULL, 0, end);
        more[n_more++] = one;
    }
    if (n_more == 0) return json_any_object(json_walk_nfa(w), from, JSON_ANY_DEPTH, end);
    return add_map(w, from, more, n_more, end);
}

struct status json_add_object(struct json_walk *w, uint32_t from, const struct json_parts *all,
                              uint32_t *end)
{
    const char **required = NULL;
    size_t n_required;
    TRY(list_required(all, &required, &n_required));
    const struct status st = json_has(all, "properties")
                                 ? add_members(w, from, all, required, n_required, end)
                                 : add_free_members(w, from, all, end);
    mem_free(&required);
    return st;
}

/* The number of items of an array: least to most (most -1: no limit). The first n_prefix have a
 * schema in prefixItems. With prefixItems but without "items", no further items follow. */
struct item_counts {
    int64_t least, most, n_prefix;
};

static struct status count_items(const struct json_parts *all, struct item_counts *c)
{
    bool has_items = false;
    *c = (struct item_counts){.most = -1};
    TRY(json_read_count(all, "minItems", true, &c->least));
    TRY(json_read_count(all, "maxItems", false, &c->most));
    for (size_t i = 0; i < all->n; i++) {
        const struct js_node *items = js_get(all->part[i], "items");
        const struct js_node *prefix = js_get(all->part[i], "prefixItems");
        const int64_t n_prefix = (int64_t)js_count(prefix);
        bool allows = true;
        if (prefix != NULL && js_type(prefix) != JS_ARRAY)
            return status_make(STATUS_REQUEST,
                               "keyword \"prefixItems\": expected a list of schemas");
        if (n_prefix > c->n_prefix) c->n_prefix = n_prefix;
        has_items = has_items || items != NULL;
        if (js_bool(items, &allows) && !allows && (c->most < 0 || c->most > n_prefix))
            c->most = n_prefix;
    }
    const bool is_closed = json_has(all, "prefixItems") && !has_items;
    if (is_closed && (c->most < 0 || c->most > c->n_prefix)) c->most = c->n_prefix;
    return status_ok();
}

/* Adds paths for the values that all parts accept as the i-th item (from 0). */
static struct status add_item(struct json_walk *w, uint32_t from, const struct json_parts *all,
                              size_t i, uint32_t *end)
{
    const struct js_node *schema[JSON_PARTS_MAX];
    size_t n = 0;
    for (size_t k = 0; k < all->n; k++) {
        const struct js_node *prefix = js_get(all->part[k], "prefixItems");
        const struct js_node *one =
            i < js_count(prefix) ? js_at(prefix, i) : js_get(all->part[k], "items");
        if (one != NULL) schema[n++] = one;
    }
    if (n > 0) return json_add_all(w, from, schema, n, end);
    return json_any(json_walk_nfa(w), from, JSON_ANY_DEPTH - 1, end);
}

struct status json_add_array(struct json_walk *w, uint32_t from, const struct json_parts *all,
                             uint32_t *end)
{
    struct nfa *n = json_walk_nfa(w);
    struct item_counts c;
    TRY(count_items(all, &c));
    if (c.most >= 0 && c.most < c.least)
        return json_contradiction(n, all,
                                  json_has(all, "maxItems")
                                      ? "keyword \"maxItems\" is below minItems"
                                      : "keyword \"prefixItems\" is below minItems",
                                  end);
    uint32_t in = json_word(n, from, "["), value = in;
    const uint32_t close = nfa_state(n);
    const int64_t n_copies = c.most >= 0 ? c.most : c.least > c.n_prefix ? c.least : c.n_prefix + 1;
    *end = json_word(n, close, "]");
    if (c.least == 0) nfa_empty(n, in, close);
    for (int64_t i = 1; i <= n_copies; i++) {
        const uint32_t item = nfa_state(n);
        nfa_empty(n, i == 1 ? in : json_mark(n, value, ","), item);
        TRY(add_item(w, item, all, (size_t)i - 1, &value));
        if (i >= c.least) nfa_empty(n, value, close);
        in = item;
    }
    if (c.most < 0) nfa_empty(n, json_mark(n, value, ","), in);
    return nfa_status(n);
}

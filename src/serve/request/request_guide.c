/* Reads a line's grammar constraint, which has several field names, and follows an answer through
 * the grammar. */
#include "serve/request/request_guide.h"

#include "base/mem.h"
#include "serve/request/request_parse.h"

#include <string.h>

/* The grammar constraint of a line. `node` may belong to `doc`. */
struct asked {
    const char *name; /* the field's name; NULL: no constraint */
    enum guide_kind kind;
    const struct js_node *node;
    struct js_doc *doc; /* owned: a schema given as a string, parsed; else NULL */
};

static bool request_guide_is_empty(const struct js_node *node)
{
    size_t n;
    bool flag;
    double number;
    if (js_string(node, &n) != NULL) return n == 0;
    if (js_bool(node, &flag)) return !flag;
    return !js_number(node, &number) && js_count(node) == 0;
}

static struct status ask(struct request_parser *p, struct asked *a, const char *name,
                         enum guide_kind kind, const struct js_node *node)
{
    if (request_guide_is_empty(node) && (kind != GUIDE_SCHEMA || js_type(node) != JS_OBJECT))
        return status_ok();
    if (a->name != NULL)
        return request_bad(p, "invalid_request",
                           "%s: expected one grammar constraint, found %s too", name, a->name);
    a->name = name;
    a->kind = kind;
    a->node = node;
    return status_ok();
}

/* Reads response_format: its type is "text", "json_object", or "json_schema" with an object
 * {"name", "schema", "strict"}. */
static struct status ask_format(struct request_parser *p, const struct js_node *fields,
                                struct asked *a)
{
    const struct js_node *format = js_get(fields, "response_format");
    if (js_type(format) == JS_NULL) return status_ok();
    const char *type = js_string(js_get(format, "type"), NULL);
    if (type != NULL && strcmp(type, "text") == 0) return status_ok();
    if (type != NULL && strcmp(type, "json_object") == 0)
        return ask(p, a, "response_format", GUIDE_OBJECT, js_get(format, "type"));
    if (type == NULL || strcmp(type, "json_schema") != 0)
        return request_bad(p, type != NULL ? "unsupported" : "invalid_request",
                           "response_format: expected a type of \"text\", \"json_object\" or "
                           "\"json_schema\"");
    const struct js_node *schema = js_get(js_get(format, "json_schema"), "schema");
    if (js_type(schema) != JS_OBJECT)
        return request_bad(p, "invalid_request",
                           "response_format: expected json_schema with an object \"schema\", found "
                           "%s",
                           request_type_name(schema));
    return ask(p, a, "response_format", GUIDE_SCHEMA, schema);
}

/* Reads a guided_* field, or a member of structured_outputs. For GUIDE_OBJECT its value is a
 * boolean. */
static struct status ask_field(struct request_parser *p, struct asked *a, const char *name,
                               enum guide_kind kind, const struct js_node *node)
{
    bool flag;
    if (kind == GUIDE_OBJECT && !request_guide_is_empty(node) && !js_bool(node, &flag))
        return request_bad(p, "invalid_request", "%s: expected a boolean, found %s", name,
                           request_type_name(node));
    return ask(p, a, name, kind, node);
}

static struct status ask_all(struct request_parser *p, const struct js_node *fields,
                             struct asked *a)
{
    static const struct {
        const char *plain, *structured, *key;
        enum guide_kind kind;
    } names[] = {
        {"guided_regex", "structured_outputs.regex", "regex", GUIDE_REGEX},
        {"guided_choice", "structured_outputs.choice", "choice", GUIDE_CHOICE},
        {"guided_json", "structured_outputs.json", "json", GUIDE_SCHEMA},
        {"guided_json_object", "structured_outputs.json_object", "json_object", GUIDE_OBJECT}};
    const struct js_node *structured = js_get(fields, "structured_outputs"), *value;
    const void *it = NULL;
    const char *key;
    TRY(ask_format(p, fields, a));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        TRY(ask_field(p, a, names[i].plain, names[i].kind, js_get(fields, names[i].plain)));
    if (js_type(structured) != JS_OBJECT && !request_guide_is_empty(structured))
        return request_bad(p, "invalid_request", "structured_outputs: expected an object, found %s",
                           request_type_name(structured));
    while (js_next(structured, &it, &key, &value)) {
        size_t i = 0;
        while (i < sizeof names / sizeof *names && strcmp(names[i].key, key) != 0) i++;
        if (i < sizeof names / sizeof *names)
            TRY(ask_field(p, a, names[i].structured, names[i].kind, value));
        else if (!request_guide_is_empty(value))
            return request_bad(p, "unsupported",
                               "structured_outputs: expected regex, choice, json or json_object, "
                               "found %.60s",
                               key);
    }
    return status_ok();
}

/* Parses a schema that is given as a string of JSON. */
static struct status open_schema(struct request_parser *p, struct asked *a)
{
    size_t n;
    const char *text = js_string(a->node, &n);
    if (a->kind != GUIDE_SCHEMA || text == NULL) return status_ok();
    struct status st = js_parse(text, n, a->name, &a->doc);
    if (st.code == STATUS_INPUT) return request_bad(p, "invalid_request", "%s", st.text);
    a->node = js_root(a->doc);
    return st;
}

static struct status check_rest(struct request_parser *p, const struct asked *a)
{
    if (p->rules->guides == NULL)
        return request_bad(p, "unsupported", "%s: this model has no tokenizer, so it gives no text",
                           a->name);
    if (p->ask->beam.width > 0)
        return request_bad(p, "unsupported", "%s: not supported together with beam search",
                           a->name);
    if (p->ask->min_tokens > 0)
        return request_bad(p, "unsupported", "%s: not supported together with min_tokens", a->name);
    return status_ok();
}

/* Makes r an error row at once when no token of the vocabulary can begin the answer. */
static struct status check_start(struct request_parser *p, const char *name)
{
    const uint32_t *mask;
    size_t n_tokens;
    TRY(guide_mask(p->ask->guide, GUIDE_START, true, &mask, &n_tokens));
    if (n_tokens > 0) return status_ok();
    return request_bad(p, "invalid_request", "%s: the vocabulary has no token to begin with", name);
}

struct status request_read_guide(struct request_parser *p, const struct js_node *fields)
{
    struct asked a = {.name = NULL};
    TRY(ask_all(p, fields, &a));
    if (a.name == NULL || p->rules->score) return status_ok();
    TRY(check_rest(p, &a));
    struct status st = open_schema(p, &a);
    if (!status_failed(&st)) {
        st = guides_get(p->rules->guides, a.kind, a.node, &p->ask->guide);
        if (st.code == STATUS_REQUEST)
            st = request_bad(p, "invalid_request", "%s: %s", a.name, st.text);
    }
    js_destroy(&a.doc);
    if (status_failed(&st)) return st;
    p->r->guide_state = GUIDE_START;
    return check_start(p, a.name);
}

struct status request_guide_allow(const struct request *r, const struct request_rules *rules,
                                  const struct request_ahead *ahead, uint32_t *allowed)
{
    const uint32_t *mask;
    size_t n_tokens;
    const uint16_t state = ahead != NULL ? ahead->guide_state : r->guide_state;
    const bool begins = r->n_tokens == r->n_prompt && ahead == NULL;
    TRY(guide_mask(r->ask->guide, state, begins, &mask, &n_tokens));
    memcpy(allowed, mask, ((size_t)rules->vocab_size + 31) / 32 * sizeof *mask);
    const bool may_end = guide_accepts(r->ask->guide, state);
    const size_t n_ends = r->ask->ignore_eos ? 0 : rules->n_end_ids;
    for (size_t i = 0; i < n_ends + r->ask->n_stop_ids; i++) {
        const int32_t id = i < n_ends ? rules->end_ids[i] : r->ask->stop_ids[i - n_ends];
        if (id < 0 || id >= rules->vocab_size)
            continue; /* a tokenizer may have ids beyond the
                         model's vocabulary */
        const uint32_t bit = (uint32_t)1 << (id % 32);
        allowed[id / 32] = may_end ? allowed[id / 32] | bit : allowed[id / 32] & ~bit;
    }
    return status_ok();
}

struct status request_guide_take(struct request *r, int32_t token, bool *is_done)
{
    const bool begins = r->n_tokens == r->n_prompt + 1;
    *is_done = false;
    if (r->ask->guide == NULL) return status_ok();
    r->guide_state = guide_next(r->ask->guide, r->guide_state, token, begins);
    if (r->guide_state == GUIDE_LOST)
        return request_fail(r, REQUEST_GUIDE_CODE,
                            "a token was drawn that the grammar of the line does not allow");
    *is_done = !guide_goes_on(r->ask->guide, r->guide_state);
    if (*is_done || guide_accepts(r->ask->guide, r->guide_state)) return status_ok();
    const uint32_t *mask;
    size_t n_tokens;
    TRY(guide_mask(r->ask->guide, r->guide_state, false, &mask, &n_tokens));
    if (n_tokens > 0) return status_ok();
    return request_fail(
        r, REQUEST_GUIDE_CODE,
        "no token of the vocabulary can continue the answer as its grammar requires");
}

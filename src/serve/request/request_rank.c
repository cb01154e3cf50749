/* Reads pairs of a query and a document. A pair becomes a text by the job's template; without one,
 * the tokenizer joins query and document. Only bytes of the template and the job's instruction may
 * become special tokens; a line's bytes may not. */
#include "base/mem.h"
#include "serve/request/request_parse.h"

#include <stdio.h>
#include <string.h>

/* A pair's text, and which parts of it come from the line. */
struct pair_text {
    struct strbuf text;
    struct text_span *spans; /* [n_spans] of capacity, owned */
    size_t n_spans, capacity;
};

/* The texts that go into a template. */
struct pair {
    const struct js_node *query, *document, *instruction; /* instruction JS_NULL: the job's is
                                                             used */
};

static struct status append_span(struct pair_text *t, const char *bytes, size_t n, bool is_user)
{
    if (n == 0) return status_ok();
    if (t->n_spans == t->capacity) {
        TRY(mem_grow(&t->spans, t->n_spans, t->capacity + 16, sizeof *t->spans, "a pair's text"));
        t->capacity += 16;
    }
    const size_t begin = t->text.n;
    strbuf_add(&t->text, bytes, n);
    t->spans[t->n_spans++] = (struct text_span){begin, begin + n, is_user};
    return strbuf_status(&t->text);
}

/* If `at` begins with a name such as {query}, appends the text for it. *n: the name's length; 0: no
 * name. */
static struct status add_named(const struct rank_rules *rank, const struct pair *pair,
                               const char *at, struct pair_text *out, size_t *n)
{
    const struct {
        const char *name;
        const struct js_node *node;
    } fields[] = {{"{query}", pair->query},
                  {"{document}", pair->document},
                  {"{instruction}", pair->instruction}};
    *n = 0;
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        size_t length;
        if (strncmp(at, fields[i].name, strlen(fields[i].name)) != 0) continue;
        *n = strlen(fields[i].name);
        const char *text = js_string(fields[i].node, &length);
        if (text != NULL) return append_span(out, text, length, true);
        return append_span(out, rank->instruction, strlen(rank->instruction), false);
    }
    return status_ok();
}

/* Fills the template; a brace that begins no known name stays. */
static struct status fill_template(const struct rank_rules *rank, const struct pair *pair,
                                   struct pair_text *out)
{
    const char *at = rank->pair_template;
    while (*at != '\0') {
        size_t n;
        TRY(add_named(rank, pair, at, out, &n));
        const size_t plain = n > 0 ? 0 : 1 + strcspn(at + 1, "{");
        TRY(append_span(out, at, plain, false));
        at += n + plain;
    }
    return status_ok();
}

/* Appends the tokens of a pair as the tokenizer joins two texts; *second: the first token of type
 * 1, counted in the pair; 0: none. */
static struct status take_joined_pair(struct request_parser *p, const char *what,
                                      const struct pair *pair, size_t *second)
{
    struct token_list list = {0};
    struct text_bytes texts[2];
    size_t n_first = 0;
    texts[0].bytes = js_string(pair->query, &texts[0].n);
    texts[1].bytes = js_string(pair->document, &texts[1].n);
    struct status st = tokenizer_encode_joined(p->rules->tokenizer, texts, &list, &n_first);
    if (st.code == STATUS_REQUEST) p->r->error.code = "invalid_request";
    if (!status_failed(&st)) st = request_add_part(p, what, list.ids, list.n);
    const bool has_types = p->rules->embed->rank.has_types && n_first < list.n;
    if (!status_failed(&st) && has_types && n_first == 0)
        st = request_bad(p, "invalid_request", "query: expected a text that has tokens");
    *second = has_types ? n_first : 0;
    token_list_fini(&list);
    return st;
}

static struct status take_ranked_pair(struct request_parser *p, const char *what,
                                      const struct pair *pair, size_t *second)
{
    const struct rank_rules *rank = &p->rules->embed->rank;
    *second = 0;
    if (rank->joins) return take_joined_pair(p, what, pair, second);
    struct pair_text t = {.spans = NULL};
    struct token_list list = {0};
    strbuf_init(&t.text);
    struct status st = fill_template(rank, pair, &t);
    if (!status_failed(&st))
        st = tokenizer_encode_spans(p->rules->tokenizer, t.text.data, t.text.n, t.spans, t.n_spans,
                                    rank->adds_special ? TOKENIZER_ADD_SPECIAL : 0, &list);
    if (st.code == STATUS_REQUEST) p->r->error.code = "invalid_request";
    if (!status_failed(&st)) st = request_add_part(p, what, list.ids, list.n);
    token_list_fini(&list);
    mem_free(&t.spans);
    strbuf_fini(&t.text);
    return st;
}

/* Refuses unknown fields of a body. (A plain line may have any.) */
static struct status check_rank_fields(struct request_parser *p, const struct js_node *fields)
{
    static const char *const known[] = {"query", "documents",        "instruction", "priority",
                                        "top_n", "return_documents", "model",       "user"};
    const void *it = NULL;
    const char *key;
    const struct js_node *value;
    while (js_next(fields, &it, &key, &value)) {
        size_t i = 0;
        while (i < sizeof known / sizeof known[0] && strcmp(known[i], key) != 0) i++;
        if (i == sizeof known / sizeof known[0])
            return request_bad(p, "invalid_request", "%.100s: this field is not known", key);
    }
    return status_ok();
}

/* Reads the fields that only a body has, and checks that the model gives one score for a text. */
static struct status read_body(struct request_parser *p, const struct js_node *fields)
{
    const struct rank_rules *rank = &p->rules->embed->rank;
    int64_t top_n = INT32_MAX;
    TRY(check_rank_fields(p, fields));
    TRY(request_read_int(p, fields, "top_n", 1, INT32_MAX, &top_n));
    TRY(request_read_bool(p, fields, "return_documents", &p->ask->echo));
    p->ask->top_n = (int32_t)top_n;
    if (rank->is_yes_no || rank->n_labels == 1) return status_ok();
    return request_bad(p, "unsupported",
                       "this model classifies: it gives %zu scores a text, expected one",
                       rank->n_labels);
}

static struct status check_pair_text(struct request_parser *p, const char *what,
                                     const struct js_node *node)
{
    if (js_type(node) == JS_STRING) return status_ok();
    return request_bad(p, "invalid_request", "%s: expected a text, found %s", what,
                       request_type_name(node));
}

static struct status check_pairs(struct request_parser *p, const struct js_node *fields)
{
    const struct js_node *documents = js_get(fields, "documents");
    const struct js_node *instruction = js_get(fields, "instruction");
    const size_t n = js_count(documents);
    TRY(check_pair_text(p, "query", js_get(fields, "query")));
    if (js_type(instruction) != JS_NULL) TRY(check_pair_text(p, "instruction", instruction));
    if (js_type(documents) != JS_ARRAY || n == 0 || n > EMBED_INPUTS_MAX)
        return request_bad(p, "invalid_request", "documents: expected a list of 1 to %d texts",
                           EMBED_INPUTS_MAX);
    if (p->rules->tokenizer == NULL)
        return request_bad(p, "unsupported", "documents: this model has no tokenizer");
    if (p->rules->embed->rank.joins && js_type(instruction) != JS_NULL)
        return request_bad(p, "unsupported",
                           "instruction: this model's pairs have none; give a --pair-template");
    if (p->rules->embed->rank.pair_template == NULL && !p->rules->embed->rank.joins)
        return request_bad(p, "unsupported",
                           "documents: this model scores texts; give a --pair-template for pairs");
    return status_ok();
}

/* Copies a document if the answer repeats documents. */
static struct status keep_document(const struct request_parser *p, const struct js_node *document,
                                   struct request_prompt *to)
{
    size_t n;
    const char *text = js_string(document, &n);
    if (!p->ask->echo) return status_ok();
    TRY(mem_strndup(&to->echo.bytes, text, n));
    to->echo.n = n;
    return status_ok();
}

/* Adds each document, with the query, as a part of the line. In a body a document may be {"text":
 * ..}, as in Jina's interface. */
static struct status add_documents(struct request_parser *p, const struct js_node *documents,
                                   struct pair *pair)
{
    char what[32];
    TRY(request_open_parts(p, js_count(documents)));
    for (size_t i = 0; i < js_count(documents); i++) {
        snprintf(what, sizeof what, "documents[%zu]", i);
        pair->document = js_at(documents, i);
        if (p->ask->format == REQUEST_RERANK && js_type(pair->document) == JS_OBJECT)
            pair->document = js_get(pair->document, "text");
        TRY(check_pair_text(p, what, pair->document));
        TRY(take_ranked_pair(p, what, pair, &p->r->prompts[i].second_from));
        p->r->prompts[i].end = p->r->n_tokens;
        TRY(keep_document(p, pair->document, &p->r->prompts[i]));
    }
    if (js_count(documents) == 1)
        p->r->second_from = p->r->prompts[0].second_from; /* this request runs the pair */
    return status_ok();
}

struct status request_read_rank(struct request_parser *p, const struct js_node *fields)
{
    const struct js_node *documents = js_get(fields, "documents");
    const bool is_body = p->ask->format == REQUEST_RERANK;
    struct pair pair = {.query = js_get(fields, "query"),
                        .instruction = js_get(fields, "instruction")};
    int64_t priority = 0;
    if (is_body) TRY(read_body(p, fields));
    if (!is_body && js_type(pair.query) == JS_NULL && js_type(documents) == JS_NULL)
        return request_read_embed(p, fields);
    if (js_type(js_get(fields, "input")) != JS_NULL)
        return request_bad(p, "invalid_request",
                           "expected either query and documents, or input, found both");
    TRY(check_pairs(p, fields));
    TRY(request_read_int(p, fields, "priority", INT32_MIN, INT32_MAX, &priority));
    p->ask->priority = (int32_t)priority;
    p->ask->pool = p->rules->embed->pool;
    p->ask->dimensions = p->rules->embed->dimensions;
    return add_documents(p, documents, &pair);
}

/* Turns a JSON line, or the body of a call to the server, into a checked request, or into an error
 * row whose message says what to change: it names the field, what was expected and what was found.
 */
#include "serve/request/request_parse.h"

#include "base/mem.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- single fields ---- */

struct status request_bad(struct request_parser *p, const char *code, const char *format, ...)
{
    char text[STATUS_TEXT_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    p->r->error.code = code;
    return status_make(STATUS_REQUEST, "%s", text);
}

const char *request_type_name(const struct js_node *node)
{
    double number;
    switch (js_type(node)) {
    case JS_BOOL:
        return "a boolean";
    case JS_INT:
        return "an integer";
    case JS_REAL:
        return js_number(node, &number) && fabs(number) >= 0x1p63 ? "a number beyond 64 bits"
                                                                  : "a real number";
    case JS_STRING:
        return "a string";
    case JS_ARRAY:
        return "a list";
    case JS_OBJECT:
        return "an object";
    default:
        return "null";
    }
}

struct status request_read_int(struct request_parser *p, const struct js_node *fields,
                               const char *key, int64_t low, int64_t high, int64_t *value)
{
    const struct js_node *node = js_get(fields, key);
    if (js_type(node) == JS_NULL) return status_ok();
    int64_t found;
    if (!js_int(node, &found)) {
        return request_bad(p, "invalid_request", "%s: expected an integer, found %s", key,
                           request_type_name(node));
    }
    if (found < low || found > high) {
        return request_bad(p, "invalid_request", "%s: expected %lld to %lld, found %lld", key,
                           (long long)low, (long long)high, (long long)found);
    }
    *value = found;
    return status_ok();
}

struct status request_check_id(struct request_parser *p, const char *key, int64_t id)
{
    if (id >= 0 && id < p->rules->vocab_size) return status_ok();
    return request_bad(p, "invalid_request", "%s: expected token ids of 0 to %d, found %lld", key,
                       p->rules->vocab_size - 1, (long long)id);
}

struct status request_read_id(struct request_parser *p, const char *key, const struct js_node *node,
                              int32_t *id)
{
    int64_t found;
    if (!js_int(node, &found)) {
        return request_bad(p, "invalid_request", "%s: expected token ids, found %s", key,
                           request_type_name(node));
    }
    TRY(request_check_id(p, key, found));
    *id = (int32_t)found;
    return status_ok();
}

struct status request_read_real(struct request_parser *p, const struct js_node *fields,
                                const char *key, const char *range, double low, double high,
                                double *value)
{
    const struct js_node *node = js_get(fields, key);
    if (js_type(node) == JS_NULL) return status_ok();
    double found;
    if (!js_number(node, &found)) {
        return request_bad(p, "invalid_request", "%s: expected a number, found %s", key,
                           request_type_name(node));
    }
    if (!isfinite(found) || found < low || found > high) {
        return request_bad(p, "invalid_request", "%s: expected %s, found %.10g", key, range, found);
    }
    *value = found;
    return status_ok();
}

struct status request_read_bool(struct request_parser *p, const struct js_node *fields,
                                const char *key, bool *value)
{
    const struct js_node *node = js_get(fields, key);
    if (js_type(node) == JS_NULL || js_bool(node, value)) return status_ok();
    return request_bad(p, "invalid_request", "%s: expected a boolean, found %s", key,
                       request_type_name(node));
}

/* ---- the line ---- */

static struct status copy_bytes(struct request_bytes *out, const char *bytes, size_t n)
{
    mem_free(&out->bytes);
    out->n = 0;
    TRY(mem_strndup(&out->bytes, bytes, n));
    out->n = n;
    return status_ok();
}

static struct status read_custom_id(struct request_parser *p, const struct js_node *root)
{
    const struct js_node *node = js_get(root, "custom_id");
    if (js_type(node) == JS_NULL) return status_ok();
    size_t n;
    const char *id = js_string(node, &n);
    if (id == NULL) {
        return request_bad(p, "invalid_request", "custom_id: expected a string, found %s",
                           request_type_name(node));
    }
    TRY(copy_bytes(&p->r->custom_id, id, n));
    p->r->is_named = true;
    return status_ok();
}

static struct status read_model(struct request_parser *p, const struct js_node *body)
{
    size_t n;
    const char *model = js_string(js_get(body, "model"), &n);
    return model != NULL ? copy_bytes(&p->ask->model, model, n) : status_ok();
}

/* Returns 1 + the number of the adapter with this name; 0: none has it. */
static uint32_t adapter_number(const struct request_rules *rules, const char *name, size_t n)
{
    for (size_t i = 0; i < rules->n_adapters; i++) {
        const char *other = rules->adapters[i].name;
        if (other != NULL && strlen(other) == n && memcmp(other, name, n) == 0)
            return (uint32_t)i + 1;
    }
    return 0;
}

/* Reads "adapter"; without it, a body's "model" may be an adapter's name. If prompts are made from
 * data lines (struct request_form) and no adapter is loaded, a member "adapter" is data. */
static struct status read_adapter(struct request_parser *p, const struct js_node *fields)
{
    const struct js_node *node = js_get(fields, "adapter");
    size_t n;
    const char *name = js_string(node, &n);
    const bool is_note = p->rules->form != NULL && !p->is_call && p->rules->n_adapters == 0;
    if (js_type(node) == JS_NULL || is_note) {
        p->ask->adapter = adapter_number(p->rules, p->ask->model.bytes, p->ask->model.n);
        return status_ok();
    }
    if (name == NULL)
        return request_bad(p, "invalid_request", "adapter: expected a string, found %s",
                           request_type_name(node));
    p->ask->adapter = adapter_number(p->rules, name, n);
    if (p->ask->adapter > 0) return status_ok();
    return request_bad(p, "invalid_request", "adapter: none with this name was given by --adapter");
}

/* Reads a batch line's envelope; *fields becomes its body. */
static struct status read_envelope(struct request_parser *p, const struct js_node *root,
                                   const struct js_node **fields)
{
    const struct js_node *body = js_get(root, "body");
    const char *url = js_string(js_get(root, "url"), NULL);
    const char *method = js_string(js_get(root, "method"), NULL);
    const bool embeds = p->rules->embed != NULL;
    const bool ranks = embeds && p->rules->embed->rank.head != NULL;
    const char *const only = ranks ? "/v1/rerank" : embeds ? "/v1/embeddings" : "/v1/completions";
    p->ask->format = ranks ? REQUEST_RERANK : REQUEST_OPENAI;
    if (method == NULL || strcmp(method, "POST") != 0) {
        return request_bad(p, "invalid_request", "method: expected \"POST\", found %s",
                           method != NULL ? "another string"
                                          : request_type_name(js_get(root, "method")));
    }
    const bool is_chat = url != NULL && !embeds && strcmp(url, "/v1/chat/completions") == 0;
    if (is_chat) p->ask->format = REQUEST_OPENAI_CHAT;
    if (!is_chat && (url == NULL || strcmp(url, only) != 0)) {
        return request_bad(p, "invalid_request", "url: expected \"%s\"%s, found %s", only,
                           embeds ? "" : " or \"/v1/chat/completions\"",
                           url != NULL ? "another string" : request_type_name(js_get(root, "url")));
    }
    if (js_type(body) != JS_OBJECT) {
        return request_bad(p, "invalid_request", "body: expected an object, found %s",
                           request_type_name(body));
    }
    *fields = body;
    return read_model(p, body);
}

/* Refuses a line with a number beyond 64 bits if the line has a template (a chat's or a prompt's)
 * or a grammar constraint, because these may read the number unchecked. In other lines the field
 * itself refuses the number when it is read, and a field that is not read may hold one. */
static struct status check_rounded(struct request_parser *p, const struct js_node *fields)
{
    const struct request_form *form = p->rules->form;
    const bool is_made = form != NULL && form->made_by != NULL;
    const bool is_chat = form == NULL && js_type(js_get(fields, "messages")) != JS_NULL;
    if (!is_made && !is_chat && p->ask->guide == NULL) return status_ok();
    return request_bad(p, "invalid_request",
                       "a number of this line is beyond 64 bits, expected none beside %s",
                       is_made   ? "a prompt template"
                       : is_chat ? "messages"
                                 : "a grammar constraint");
}

/* Reads the values of a line or a body; its envelope, model, custom_id and stream have been read.
 */
static struct status read_values(struct request_parser *p, const struct js_node *fields,
                                 bool is_rounded)
{
    const bool is_formed = p->rules->form != NULL && !p->is_call;
    if (p->rules->embed != NULL) {
        if (is_rounded) TRY(check_rounded(p, fields));
        return p->rules->embed->rank.head != NULL ? request_read_rank(p, fields)
                                                  : request_read_embed(p, fields);
    }
    if (!is_formed) TRY(request_check_fields(p, fields));
    TRY(read_adapter(p, fields));
    TRY(request_read_sampling(p, fields));
    if (p->ask->streams && !p->ask->echo && p->ask->n_prompt_logprobs >= 0)
        return request_bad(p, "unsupported", "prompt_logprobs: not supported in a stream");
    if (p->ask->streams && p->ask->echo)
        return request_bad(p, "unsupported", "echo: not supported in a stream");
    if (is_rounded) TRY(check_rounded(p, fields));
    TRY(request_read_tools(p, fields));
    TRY(is_formed ? request_read_form(p, fields) : request_read_prompt(p, fields));
    if (p->ask->n_prompt_tops < 0) return status_ok();
    if (p->r->logprobs.score_from == 0) p->r->logprobs.score_from = 1;
    if (p->ask->n_choices > 1) return status_ok(); /* each answer allocates its own scores */
    if (p->ask->n_prompt_tops > 0) {
        const size_t n_tops = p->r->n_prompt * (size_t)p->ask->n_prompt_tops;
        TRY(mem_alloc(&p->r->logprobs.prompt_tops, n_tops, sizeof *p->r->logprobs.prompt_tops,
                      "request scores"));
    }
    return mem_alloc(&p->r->logprobs.scores, p->r->n_prompt, sizeof *p->r->logprobs.scores,
                     "request scores");
}

/* Reads "stream", and include_usage in "stream_options", which only a stream may have. */
static struct status read_stream(struct request_parser *p, const struct js_node *fields)
{
    const struct js_node *options = js_get(fields, "stream_options");
    TRY(request_read_bool(p, fields, "stream", &p->ask->streams));
    if (js_type(options) == JS_NULL) return status_ok();
    if (js_type(options) != JS_OBJECT || !p->ask->streams) {
        return request_bad(p, "invalid_request",
                           "stream_options: expected an object, beside \"stream\" true");
    }
    return request_read_bool(p, options, "include_usage", &p->ask->stream_usage);
}

static struct status read_fields(struct request_parser *p, const struct js_node *root,
                                 bool is_rounded)
{
    if (js_type(root) != JS_OBJECT) {
        return request_bad(p, "invalid_json", "expected a JSON object, found %s",
                           request_type_name(root));
    }
    const struct js_node *fields = root;
    if (p->is_call) {
        TRY(read_model(p, root));
        TRY(read_stream(p, root));
        return read_values(p, root, is_rounded);
    }
    TRY(read_custom_id(p, root));
    if (p->rules->form != NULL) return read_values(p, root, is_rounded);
    if (js_type(js_get(root, "body")) != JS_NULL || js_type(js_get(root, "url")) != JS_NULL) {
        TRY(read_envelope(p, root, &fields));
    }
    return read_values(p, fields, is_rounded);
}

static bool is_blank(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strchr(" \t\r", text[i]) == NULL || text[i] == '\0') return false;
    return true;
}

static struct status request_parse_parse(struct request_parser *p, const char *text, size_t n)
{
    if (is_blank(text, n)) {
        return request_bad(p, "invalid_json", "the %s is blank, expected a JSON object",
                           p->is_call ? "body" : "line");
    }
    struct js_doc *doc = NULL;
    bool is_rounded;
    struct status st = js_parse_rounding(text, n, "JSON", &doc, &is_rounded);
    if (st.code == STATUS_INPUT) st = request_bad(p, "invalid_json", "%s", st.text);
    if (!status_failed(&st)) st = read_fields(p, js_root(doc), is_rounded);
    js_destroy(&doc);
    return st;
}

/* Parses the text into p->r and sets *out to it. A text that cannot be served makes p->r an error
 * row; any other error destroys it. */
static struct status parse_into(struct request_parser *p, const char *text, size_t n,
                                struct request **out)
{
    struct status st = request_parse_parse(p, text, n);
    if (st.code == STATUS_REQUEST) st = request_fail(p->r, p->r->error.code, st.text);
    *out = p->r;
    if (status_failed(&st)) request_destroy(out);
    return st;
}

struct status request_create(const struct request_rules *rules, uint64_t line_number,
                             const char *text, size_t n, struct request **out)
{
    struct request_parser p = {.rules = rules};
    *out = NULL;
    TRY(request_create_bare(line_number, &p.r, &p.ask));
    return parse_into(&p, text, n, out);
}

struct status request_create_call(const struct request_rules *rules,
                                  const struct request_call *call, struct request **out)
{
    struct request_parser p = {.rules = rules, .is_call = true};
    *out = NULL;
    TRY(request_create_bare(call->number, &p.r, &p.ask));
    p.ask->format = call->format;
    struct status st = call->id != NULL ? request_rename(p.r, call->id) : status_ok();
    p.r->is_named = call->id != NULL;
    if (status_failed(&st)) {
        request_destroy(&p.r);
        return st;
    }
    return parse_into(&p, call->body, call->n_body, out);
}

struct status request_create_failed(uint64_t line_number, const char *code, const char *message,
                                    struct request **out)
{
    struct request_ask *ask;
    TRY(request_create_bare(line_number, out, &ask));
    struct status st = request_fail(*out, code, message);
    if (status_failed(&st)) request_destroy(out);
    return st;
}

/* A JSON line to a checked request. Field errors name the field, what was expected and found. */
#include "serve/request/request_parse.h"

#include "base/mem.h"

#include <string.h>

static struct status copy_bytes(struct request_bytes *out, const char *bytes, size_t n)
{
    mem_free(&out->bytes);
    out->n = 0;
    TRY(mem_strndup(&out->bytes, bytes, n));
    out->n = n;
    return status_ok();
}

static struct status read_custom_id(struct request *r, const struct js_node *root)
{
    const struct js_node *node = js_get(root, "custom_id");
    if (js_type(node) == JS_NULL) return status_ok();
    size_t n;
    const char *id = js_string(node, &n);
    if (id == NULL) {
        return request_bad(r, "invalid_request", "custom_id: expected a string, found %s",
                           request_type_name(node));
    }
    TRY(copy_bytes(&r->custom_id, id, n));
    r->is_named = true;
    return status_ok();
}

/* A batch line's envelope; *fields becomes its body. */
static struct status read_envelope(struct request *r, const struct js_node *root,
                                   const struct js_node **fields)
{
    const struct js_node *body = js_get(root, "body");
    const char *url = js_string(js_get(root, "url"), NULL);
    const char *method = js_string(js_get(root, "method"), NULL);
    r->format = REQUEST_OPENAI;
    if (method == NULL || strcmp(method, "POST") != 0) {
        return request_bad(r, "invalid_request", "method: expected \"POST\", found %s",
                           method != NULL ? "another string"
                                          : request_type_name(js_get(root, "method")));
    }
    const bool is_chat = url != NULL && strcmp(url, "/v1/chat/completions") == 0;
    if (is_chat) r->format = REQUEST_OPENAI_CHAT;
    if (!is_chat && (url == NULL || strcmp(url, "/v1/completions") != 0)) {
        return request_bad(
            r, "invalid_request",
            "url: expected \"/v1/completions\" or \"/v1/chat/completions\", found %s",
            url != NULL ? "another string" : request_type_name(js_get(root, "url")));
    }
    if (js_type(body) != JS_OBJECT) {
        return request_bad(r, "invalid_request", "body: expected an object, found %s",
                           request_type_name(body));
    }
    size_t n;
    const char *model = js_string(js_get(body, "model"), &n);
    if (model != NULL) TRY(copy_bytes(&r->model, model, n));
    *fields = body;
    return status_ok();
}

/* A number that was rounded is refused by the field that reads it; in a note nobody minds. What
 * templates and schemas do with theirs is not seen here. */
static struct status check_rounded(struct request *r, const struct js_node *fields)
{
    const bool is_chat = js_type(js_get(fields, "messages")) != JS_NULL;
    if (!is_chat && r->guide == NULL) return status_ok();
    return request_bad(r, "invalid_request",
                       "a number of this line is beyond 64 bits, expected none beside %s",
                       is_chat ? "messages" : "a grammar constraint");
}

static struct status read_fields(struct request *r, const struct request_rules *rules,
                                 const struct js_node *root, bool is_rounded)
{
    if (js_type(root) != JS_OBJECT) {
        return request_bad(r, "invalid_json", "expected a JSON object, found %s",
                           request_type_name(root));
    }
    const struct js_node *fields = root;
    TRY(read_custom_id(r, root));
    if (js_type(js_get(root, "body")) != JS_NULL || js_type(js_get(root, "url")) != JS_NULL) {
        TRY(read_envelope(r, root, &fields));
    }
    TRY(request_check_fields(r, rules, fields));
    TRY(request_read_sampling(r, rules, fields));
    if (is_rounded) TRY(check_rounded(r, fields));
    TRY(request_read_prompt(r, rules, fields));
    if (!rules->score && r->n_prompt_logprobs < 0) return status_ok();
    if (r->n_prompt_logprobs > 0 && !rules->score) {
        const size_t n_tops = r->n_prompt * (size_t)r->n_prompt_logprobs;
        TRY(mem_alloc(&r->prompt_tops, n_tops, sizeof *r->prompt_tops, "request scores"));
    }
    return mem_alloc(&r->scores, r->n_prompt, sizeof *r->scores, "request scores");
}

static bool is_blank(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strchr(" \t\r", text[i]) == NULL || text[i] == '\0') return false;
    return true;
}

struct status request_parse(struct request *r, const struct request_rules *rules, const char *text,
                            size_t n)
{
    if (is_blank(text, n)) {
        return request_bad(r, "invalid_json", "the line is blank, expected a JSON object");
    }
    struct js_doc *doc = NULL;
    bool is_rounded;
    struct status st = js_parse_rounding(text, n, "JSON", &doc, &is_rounded);
    if (st.code == STATUS_INPUT) st = request_bad(r, "invalid_json", "%s", st.text);
    if (!status_failed(&st)) st = read_fields(r, rules, js_root(doc), is_rounded);
    js_destroy(&doc);
    return st;
}

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
    return copy_bytes(&r->custom_id, id, n);
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

/* Generating needs room for one token more; scoring does not. */
static struct status check_length(struct request *r, const struct request_rules *rules, size_t n)
{
    if (n == 0) {
        return request_bad(r, "invalid_request", "the prompt has no tokens, expected at least one");
    }
    const size_t most = (size_t)rules->max_model_len - (rules->score ? 0 : 1);
    if (n <= most) return status_ok();
    return request_bad(r, "context_length_exceeded",
                       "the prompt has %zu tokens, expected at most %zu: the context holds %d%s", n,
                       most, rules->max_model_len,
                       rules->score ? "" : ", and one is needed for the answer");
}

static struct status read_ids(struct request *r, const struct request_rules *rules,
                              const struct js_node *list, const char *key)
{
    const size_t n = js_count(list);
    TRY(check_length(r, rules, n));
    TRY(mem_alloc(&r->tokens, n, sizeof *r->tokens, "request tokens"));
    r->tokens_capacity = n;
    for (size_t i = 0; i < n; i++) {
        const struct js_node *node = js_at(list, i);
        int64_t id;
        if (!js_int(node, &id)) {
            return request_bad(r, "invalid_request", "%s[%zu]: expected a token id, found %s", key,
                               i, request_type_name(node));
        }
        if (id < 0 || id >= rules->vocab_size) {
            return request_bad(r, "invalid_request",
                               "%s[%zu]: expected a token id of 0 to %d, found %lld", key, i,
                               rules->vocab_size - 1, (long long)id);
        }
        r->tokens[i] = (int32_t)id;
    }
    r->n_tokens = r->n_prompt = n;
    return status_ok();
}

/* Takes the tokenizer's ids, which may lie outside a model's smaller vocabulary. */
static struct status take_list(struct request *r, const struct request_rules *rules,
                               const struct token_list *list)
{
    TRY(check_length(r, rules, list->n));
    for (size_t i = 0; i < list->n; i++) {
        if (list->ids[i] >= 0 && list->ids[i] < rules->vocab_size) continue;
        return request_bad(
            r, "invalid_request",
            "the prompt's token %zu has id %d, expected 0 to %d: the tokenizer knows more "
            "ids than the model",
            i, list->ids[i], rules->vocab_size - 1);
    }
    TRY(mem_alloc(&r->tokens, list->n, sizeof *r->tokens, "request tokens"));
    memcpy(r->tokens, list->ids, list->n * sizeof *r->tokens);
    r->n_tokens = r->n_prompt = r->tokens_capacity = list->n;
    return status_ok();
}

static struct status read_text(struct request *r, const struct request_rules *rules,
                               const struct js_node *prompt)
{
    size_t n;
    const char *text = js_string(prompt, &n);
    if (rules->tokenizer == NULL) {
        return request_bad(r, "unsupported",
                           "prompt: this model has no tokenizer; give prompt_token_ids");
    }
    struct token_list list = {0};
    struct status st = tokenizer_encode(rules->tokenizer, text, n,
                                        TOKENIZER_ADD_SPECIAL | TOKENIZER_PARSE_SPECIAL, &list);
    if (st.code == STATUS_REQUEST) r->error_code = "invalid_request";
    if (!status_failed(&st)) st = take_list(r, rules, &list);
    token_list_fini(&list);
    return st;
}

/* A conversation through the model's chat template, which gets nothing more around it. Special
 * tokens are those that the template wrote; what a user wrote stays text. */
static struct status read_messages(struct request *r, const struct request_rules *rules,
                                   const struct js_node *fields)
{
    if (rules->chat == NULL || rules->tokenizer == NULL) {
        return request_bad(r, "unsupported", "messages: %s",
                           rules->chat_missing != NULL ? rules->chat_missing
                                                       : "this model has no chat template");
    }
    const struct js_node *asked = js_get(fields, "add_generation_prompt");
    bool generation_prompt = !rules->score;
    if (js_type(asked) != JS_NULL && !js_bool(asked, &generation_prompt)) {
        return request_bad(r, "invalid_request",
                           "add_generation_prompt: expected a boolean, found %s",
                           request_type_name(asked));
    }
    const struct chat_options options = {.no_generation_prompt = !generation_prompt,
                                         .tools = js_get(fields, "tools"),
                                         .documents = js_get(fields, "documents"),
                                         .extra = js_get(fields, "chat_template_kwargs"),
                                         .date = rules->date};
    struct chat_text text = {0};
    struct token_list list = {0};
    struct status st = chat_render(rules->chat, js_get(fields, "messages"), &options, &text);
    if (!status_failed(&st)) st = chat_encode(rules->tokenizer, &text, &list);
    if (st.code == STATUS_REQUEST) r->error_code = "invalid_request";
    if (!status_failed(&st)) st = take_list(r, rules, &list);
    token_list_fini(&list);
    chat_text_fini(&text);
    return st;
}

static struct status read_prompt(struct request *r, const struct request_rules *rules,
                                 const struct js_node *fields)
{
    static const char *const keys[] = {"prompt", "prompt_token_ids", "messages"};
    const struct js_node *nodes[3];
    int n_given = 0;
    for (int i = 0; i < 3; i++) {
        nodes[i] = js_get(fields, keys[i]);
        n_given += js_type(nodes[i]) != JS_NULL;
    }
    if (n_given != 1) {
        return request_bad(
            r, "invalid_request",
            "expected one of prompt, prompt_token_ids and messages, found %d of them", n_given);
    }
    if (r->format == REQUEST_OPENAI_CHAT && js_type(nodes[2]) == JS_NULL) {
        return request_bad(r, "invalid_request",
                           "messages: expected by /v1/chat/completions, found null");
    }
    if (js_type(nodes[2]) != JS_NULL) return read_messages(r, rules, fields);
    if (js_type(nodes[1]) == JS_ARRAY) return read_ids(r, rules, nodes[1], keys[1]);
    if (js_type(nodes[1]) != JS_NULL) {
        return request_bad(r, "invalid_request", "prompt_token_ids: expected a list, found %s",
                           request_type_name(nodes[1]));
    }
    const struct js_node *prompt = nodes[0];
    if (js_type(prompt) == JS_ARRAY && js_count(prompt) == 1 &&
        js_type(js_at(prompt, 0)) == JS_STRING) {
        prompt = js_at(prompt, 0);
    }
    if (js_type(prompt) == JS_STRING) return read_text(r, rules, prompt);
    if (js_type(prompt) == JS_ARRAY && js_type(js_at(prompt, 0)) != JS_STRING) {
        return read_ids(r, rules, prompt, keys[0]);
    }
    return request_bad(r, "invalid_request",
                       "prompt: expected one string or one list of token ids, found %s",
                       js_type(prompt) == JS_ARRAY ? "several strings" : request_type_name(prompt));
}

/* A number that was rounded is refused by the field that reads it; in a note nobody minds. What
 * templates and schemas do with theirs is not seen here. */
static struct status check_rounded(struct request *r, const struct js_node *fields)
{
    const bool is_chat = js_type(js_get(fields, "messages")) != JS_NULL;
    if (!is_chat && r->guide == NULL) return status_ok();
    return request_bad(r, "invalid_request",
                       "a number of this line is beyond 64 bits, expected none beside %s",
                       is_chat ? "messages" : "a form that is asked for");
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
    TRY(request_check_fields(r, fields));
    TRY(request_read_sampling(r, rules, fields));
    if (is_rounded) TRY(check_rounded(r, fields));
    TRY(read_prompt(r, rules, fields));
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

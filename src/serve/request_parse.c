/* A JSON line to a checked request. Field errors name the field, what was expected and found. */
#include "serve/request_parse.h"

#include "base/json.h"
#include "base/mem.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Below it the most likely token has all the probability, and 1 / temperature overflows: greedy. */
#define TEMPERATURE_MIN 1e-5

/* Fields that would change the output and are not implemented, with the value that changes nothing
 * (NAN: there is none). */
static const struct {
    const char *key;
    double neutral;
} not_implemented[] = {
    {"frequency_penalty", 0},
    {"presence_penalty", 0},
    {"repetition_penalty", 1},
    {"length_penalty", 1},
    {"no_repeat_ngram_size", 0},
    {"logit_bias", 0},
    {"best_of", 1},
    {"use_beam_search", 0},
    {"beam_width", 1},
    {"num_beams", 1},
    {"do_sample", 1},
    {"echo", 0},
    {"suffix", 0},
    {"min_tokens", 0},
    {"min_new_tokens", 0},
    {"max_new_tokens", NAN},
    {"max_length", NAN},
    {"max_completion_tokens", NAN},
    {"ignore_eos", 0},
    {"stop_token_ids", 0},
    {"bad_words", 0},
    {"allowed_token_ids", 0},
    {"skip_special_tokens", 1},
    {"include_stop_str_in_output", 0},
    {"add_special_tokens", 1},
    {"truncate_prompt_tokens", NAN},
    {"prompt_logprobs", NAN},
    {"logprobs", 0},
    {"top_logprobs", 0},
    {"typical_p", 1},
    {"epsilon_cutoff", 0},
    {"eta_cutoff", 0},
    {"xtc_probability", 0},
    {"dry_multiplier", 0},
    {"mirostat", 0},
    {"penalty_alpha", 0},
    {"logits_processors", 0},
    {"response_format", 0},
    {"structured_outputs", 0},
    {"guided_json", 0},
    {"guided_regex", 0},
    {"guided_choice", 0},
    {"guided_grammar", 0},
    {"functions", 0},
    {"prompt_embeds", 0},
    {"chat_template", 0},
    {"continue_final_message", 0},
};

/* Sets the row's code and returns its sentence. */
__attribute__((format(printf, 3, 4))) static struct status bad(struct request *r, const char *code,
                                                               const char *format, ...)
{
    char text[STATUS_TEXT_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    r->error_code = code;
    return status_make(STATUS_REQUEST, "%s", text);
}

static const char *type_name(const struct js_node *node)
{
    switch (js_type(node)) {
    case JS_BOOL:
        return "a boolean";
    case JS_INT:
        return "an integer";
    case JS_REAL:
        return "a real number";
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

/* *value = the field, when it is there and not null. */
static struct status read_int(struct request *r, const struct js_node *fields, const char *key,
                              int64_t low, int64_t high, int64_t *value)
{
    const struct js_node *node = js_get(fields, key);
    if (js_type(node) == JS_NULL) return status_ok();
    int64_t found;
    if (!js_int(node, &found)) {
        return bad(r, "invalid_request", "%s: expected an integer, found %s", key, type_name(node));
    }
    if (found < low || found > high) {
        return bad(r, "invalid_request", "%s: expected %lld to %lld, found %lld", key,
                   (long long)low, (long long)high, (long long)found);
    }
    *value = found;
    return status_ok();
}

static struct status read_real(struct request *r, const struct js_node *fields, const char *key,
                               const char *range, double low, double high, double *value)
{
    const struct js_node *node = js_get(fields, key);
    if (js_type(node) == JS_NULL) return status_ok();
    double found;
    if (!js_number(node, &found)) {
        return bad(r, "invalid_request", "%s: expected a number, found %s", key, type_name(node));
    }
    if (!isfinite(found) || found < low || found > high) {
        return bad(r, "invalid_request", "%s: expected %s, found %g", key, range, found);
    }
    *value = found;
    return status_ok();
}

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
        return bad(r, "invalid_request", "custom_id: expected a string, found %s", type_name(node));
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
        return bad(r, "invalid_request", "method: expected \"POST\", found %s",
                   method != NULL ? "another string" : type_name(js_get(root, "method")));
    }
    const bool is_chat = url != NULL && strcmp(url, "/v1/chat/completions") == 0;
    if (is_chat) r->format = REQUEST_OPENAI_CHAT;
    if (!is_chat && (url == NULL || strcmp(url, "/v1/completions") != 0)) {
        return bad(r, "invalid_request",
                   "url: expected \"/v1/completions\" or \"/v1/chat/completions\", found %s",
                   url != NULL ? "another string" : type_name(js_get(root, "url")));
    }
    if (js_type(body) != JS_OBJECT) {
        return bad(r, "invalid_request", "body: expected an object, found %s", type_name(body));
    }
    size_t n;
    const char *model = js_string(js_get(body, "model"), &n);
    if (model != NULL) TRY(copy_bytes(&r->model, model, n));
    *fields = body;
    return status_ok();
}

/* True when the field's value changes nothing. */
static bool is_neutral(const struct js_node *node, const char *key, double neutral)
{
    double number;
    bool flag;
    size_t n;
    if (js_type(node) == JS_NULL) return true;
    if (js_number(node, &number)) return number == neutral;
    if (js_bool(node, &flag)) return flag == (neutral != 0) && !isnan(neutral);
    if (js_string(node, &n) != NULL) return n == 0;
    if (strcmp(key, "response_format") == 0) {
        const char *type = js_string(js_get(node, "type"), NULL);
        if (type != NULL && strcmp(type, "text") == 0) return true;
    }
    return js_count(node) == 0;
}

static struct status check_not_implemented(struct request *r, const struct js_node *fields)
{
    const size_t n = sizeof not_implemented / sizeof *not_implemented;
    for (size_t i = 0; i < n; i++) {
        const char *key = not_implemented[i].key;
        if (is_neutral(js_get(fields, key), key, not_implemented[i].neutral)) continue;
        return bad(r, "unsupported",
                   "%s: a value that changes the output is not supported by this "
                   "version",
                   key);
    }
    int64_t n_choices = 1;
    TRY(read_int(r, fields, "n", 1, 128, &n_choices));
    if (n_choices == 1) return status_ok();
    return bad(r, "unsupported", "n: expected 1 in this version, found %lld", (long long)n_choices);
}

static struct status read_sampling(struct request *r, const struct request_rules *rules,
                                   const struct js_node *fields)
{
    struct request_defaults d = rules->defaults;
    int64_t seed = 0, priority = 0;
    TRY(read_int(r, fields, "priority", INT32_MIN, INT32_MAX, &priority));
    TRY(read_int(r, fields, "max_tokens", 1, INT64_MAX, &d.max_tokens));
    TRY(read_int(r, fields, "top_k", -1, INT64_MAX, &d.top_k));
    TRY(read_real(r, fields, "temperature", "0 to 1e6", 0, 1e6, &d.temperature));
    TRY(read_real(r, fields, "top_p", "above 0 and up to 1", 0x1p-126, 1, &d.top_p));
    TRY(read_real(r, fields, "min_p", "0 to 1", 0, 1, &d.min_p));
    TRY(read_int(r, fields, "seed", INT64_MIN, INT64_MAX, &seed));
    if (js_type(js_get(fields, "seed")) == JS_NULL) {
        request_key_of_id(d.seed, r->custom_id.bytes, r->custom_id.n, r->key);
    } else {
        request_key_of_seed(seed, r->key);
        r->is_seeded = true;
    }
    r->priority = (int32_t)priority;
    r->max_tokens = d.max_tokens > INT32_MAX ? INT32_MAX : (int32_t)d.max_tokens;
    r->top_k = d.top_k >= rules->vocab_size || d.top_k < 0 ? 0 : (int32_t)d.top_k;
    r->temperature = d.temperature < TEMPERATURE_MIN ? 0 : (float)d.temperature;
    r->top_p = (float)d.top_p;
    r->min_p = (float)d.min_p;
    return status_ok();
}

static struct status check_stop(struct request *r, const struct js_node *node, const char **text,
                                size_t *n)
{
    *text = js_string(node, n);
    if (*text == NULL) {
        return bad(r, "invalid_request", "stop: expected a string or a list of strings, found %s",
                   type_name(node));
    }
    if (*n >= 1 && *n <= REQUEST_STOP_BYTES_MAX) return status_ok();
    return bad(r, "invalid_request", "stop: expected strings of 1 to %d bytes, found %zu bytes",
               REQUEST_STOP_BYTES_MAX, *n);
}

/* A line's stops replace those of the flags; an empty list means none. */
static struct status read_stops(struct request *r, const struct request_rules *rules,
                                const struct js_node *fields)
{
    const char *texts[REQUEST_STOPS_MAX];
    size_t sizes[REQUEST_STOPS_MAX];
    const struct js_node *node = js_get(fields, "stop");
    size_t n = 1;
    if (js_type(node) == JS_NULL) {
        n = rules->defaults.n_stops;
        for (size_t i = 0; i < n; i++) {
            texts[i] = rules->defaults.stops[i];
            sizes[i] = strlen(texts[i]);
        }
    } else if (js_type(node) != JS_ARRAY) {
        TRY(check_stop(r, node, &texts[0], &sizes[0]));
    } else {
        n = js_count(node);
        if (n > REQUEST_STOPS_MAX) {
            return bad(r, "invalid_request", "stop: expected at most %d strings, found %zu",
                       REQUEST_STOPS_MAX, n);
        }
        for (size_t i = 0; i < n; i++) {
            TRY(check_stop(r, js_at(node, i), &texts[i], &sizes[i]));
        }
    }
    if (n == 0) return status_ok();
    if (rules->tokenizer == NULL) {
        return bad(r, "unsupported", "stop: this model has no tokenizer, so it gives no text");
    }
    return stop_create(texts, sizes, n, &r->stop);
}

/* Generating needs room for one token more; scoring does not. */
static struct status check_length(struct request *r, const struct request_rules *rules, size_t n)
{
    if (n == 0) {
        return bad(r, "invalid_request", "the prompt has no tokens, expected at least one");
    }
    const size_t most = (size_t)rules->max_model_len - (rules->score ? 0 : 1);
    if (n <= most) return status_ok();
    return bad(r, "context_length_exceeded",
               "the prompt has %zu tokens, expected at most %zu: the context holds %d%s", n, most,
               rules->max_model_len, rules->score ? "" : ", and one is needed for the answer");
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
            return bad(r, "invalid_request", "%s[%zu]: expected a token id, found %s", key, i,
                       type_name(node));
        }
        if (id < 0 || id >= rules->vocab_size) {
            return bad(r, "invalid_request", "%s[%zu]: expected a token id of 0 to %d, found %lld",
                       key, i, rules->vocab_size - 1, (long long)id);
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
        return bad(r, "invalid_request",
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
        return bad(r, "unsupported", "prompt: this model has no tokenizer; give prompt_token_ids");
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
        return bad(r, "unsupported", "messages: %s",
                   rules->chat_missing != NULL ? rules->chat_missing
                                               : "this model has no chat template");
    }
    const struct js_node *asked = js_get(fields, "add_generation_prompt");
    bool generation_prompt = !rules->score;
    if (js_type(asked) != JS_NULL && !js_bool(asked, &generation_prompt)) {
        return bad(r, "invalid_request", "add_generation_prompt: expected a boolean, found %s",
                   type_name(asked));
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
        return bad(r, "invalid_request",
                   "expected one of prompt, prompt_token_ids and messages, found %d of them",
                   n_given);
    }
    if (r->format == REQUEST_OPENAI_CHAT && js_type(nodes[2]) == JS_NULL) {
        return bad(r, "invalid_request", "messages: expected by /v1/chat/completions, found null");
    }
    if (js_type(nodes[2]) != JS_NULL) return read_messages(r, rules, fields);
    if (js_type(nodes[1]) == JS_ARRAY) return read_ids(r, rules, nodes[1], keys[1]);
    if (js_type(nodes[1]) != JS_NULL) {
        return bad(r, "invalid_request", "prompt_token_ids: expected a list, found %s",
                   type_name(nodes[1]));
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
    return bad(r, "invalid_request",
               "prompt: expected one string or one list of token ids, found %s",
               js_type(prompt) == JS_ARRAY ? "several strings" : type_name(prompt));
}

static struct status read_fields(struct request *r, const struct request_rules *rules,
                                 const struct js_node *root)
{
    if (js_type(root) != JS_OBJECT) {
        return bad(r, "invalid_json", "expected a JSON object, found %s", type_name(root));
    }
    const struct js_node *fields = root;
    TRY(read_custom_id(r, root));
    if (js_type(js_get(root, "body")) != JS_NULL || js_type(js_get(root, "url")) != JS_NULL) {
        TRY(read_envelope(r, root, &fields));
    }
    TRY(check_not_implemented(r, fields));
    TRY(read_sampling(r, rules, fields));
    TRY(read_stops(r, rules, fields));
    TRY(read_prompt(r, rules, fields));
    if (!rules->score) return status_ok();
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
        return bad(r, "invalid_json", "the line is blank, expected a JSON object");
    }
    struct js_doc *doc = NULL;
    struct status st = js_parse(text, n, "JSON", &doc);
    if (st.code == STATUS_INPUT) st = bad(r, "invalid_json", "%s", st.text);
    if (!status_failed(&st)) st = read_fields(r, rules, js_root(doc));
    js_destroy(&doc);
    return st;
}

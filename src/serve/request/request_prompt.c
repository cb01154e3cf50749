/* Reads the prompt of a line: text, token ids, or a conversation through the model's chat template.
 *
 *   prompt             -> tokenizer ---------------------------------+
 *   context, continuation, text -> request_score.c ------------------+
 *   prompt_token_ids   -> checked against the vocabulary ------------+-> p->r->tokens [n_prompt]
 *   messages           -> content parts -> template -> tokenizer ----+
 *   another member, or a template over all members -> tokenizer -----+
 * */
#include "base/mem.h"
#include "serve/request/request_parse.h"
#include "text/tokenizer/detokenizer.h"

#include <string.h>

struct status request_check_length(struct request_parser *p, size_t n)
{
    const bool samples = !p->rules->score && p->rules->embed == NULL && p->ask->max_tokens > 0;
    if (n == 0) {
        return request_bad(p, "invalid_request", "the prompt has no tokens, expected at least one");
    }
    const size_t most = (size_t)p->rules->max_model_len - (samples ? 1 : 0);
    const size_t most_of_text = p->rules->embed != NULL ? (size_t)p->rules->embed->max_tokens : 0;
    if (most_of_text > 0 && n > most_of_text && most_of_text < most)
        return request_bad(p, "context_length_exceeded",
                           "the text has %zu tokens, expected at most %zu: the checkpoint's "
                           "max_seq_length, or --max-text-tokens",
                           n, most_of_text);
    if (n <= most) return status_ok();
    return request_bad(p, "context_length_exceeded",
                       "the prompt has %zu tokens, expected at most %zu: the context holds %d%s", n,
                       most, p->rules->max_model_len,
                       samples ? ", and one is needed for the answer" : "");
}

struct status request_read_ids(struct request_parser *p, const struct js_node *list,
                               const char *key, struct token_list *out)
{
    const size_t n = js_count(list);
    TRY(token_list_reserve(out, n));
    for (size_t i = 0; i < n; i++) {
        const struct js_node *node = js_at(list, i);
        int64_t id;
        if (!js_int(node, &id)) {
            return request_bad(p, "invalid_request", "%s[%zu]: expected a token id, found %s", key,
                               i, request_type_name(node));
        }
        if (id < 0 || id >= p->rules->vocab_size) {
            return request_bad(p, "invalid_request",
                               "%s[%zu]: expected a token id of 0 to %d, found %lld", key, i,
                               p->rules->vocab_size - 1, (long long)id);
        }
        out->ids[out->n++] = (int32_t)id;
    }
    return status_ok();
}

struct status request_encode(struct request_parser *p, const char *text, size_t n, unsigned flags,
                             struct token_list *out)
{
    const struct status st =
        tokenizer_encode(p->rules->tokenizer, text, n, flags | TOKENIZER_PARSE_SPECIAL, out);
    if (st.code == STATUS_REQUEST) p->r->error.code = "invalid_request";
    return st;
}

struct status request_add_tokens(struct request_parser *p, const int32_t *ids, size_t n)
{
    struct request *r = p->r;
    for (size_t i = 0; i < n; i++) {
        if (ids[i] >= 0 && ids[i] < p->rules->vocab_size) continue;
        return request_bad(
            p, "invalid_request",
            "the prompt's token %zu has id %d, expected 0 to %d: the tokenizer knows more "
            "ids than the model",
            i, ids[i], p->rules->vocab_size - 1);
    }
    if (r->n_tokens + n > r->tokens_capacity) {
        size_t grown = r->n_tokens + n;
        if (r->n_tokens > 0)
            grown += grown / 2; /* with several prompts, leaves room for the
                                   next ones */
        TRY(mem_grow(&r->tokens, r->n_tokens, grown, sizeof *r->tokens, "request tokens"));
        r->tokens_capacity = grown;
    }
    memcpy(r->tokens + r->n_tokens, ids, n * sizeof *ids);
    r->n_tokens = r->n_prompt = r->n_tokens + n;
    return status_ok();
}

static struct status take_list(struct request_parser *p, const struct token_list *list)
{
    TRY(request_check_length(p, list->n));
    return request_add_tokens(p, list->ids, list->n);
}

/* Appends the tokens of one prompt, which is a text or a list of ids. */
static struct status read_one(struct request_parser *p, const struct js_node *prompt,
                              const char *key)
{
    size_t n;
    const char *text = js_string(prompt, &n);
    struct token_list list = {0};
    if (text != NULL && p->rules->tokenizer == NULL) {
        return request_bad(p, "unsupported",
                           "prompt: this model has no tokenizer; give prompt_token_ids");
    }
    if (text == NULL) TRY(request_check_length(p, js_count(prompt)));
    struct status st = text != NULL ? request_encode(p, text, n, TOKENIZER_ADD_SPECIAL, &list)
                                    : request_read_ids(p, prompt, key, &list);
    if (!status_failed(&st)) st = take_list(p, &list);
    token_list_fini(&list);
    return st;
}

/* Sets the text with which a prompt is echoed: the line's text, or the text of its token ids (none
 * without a tokenizer). */
static struct status keep_echo(struct request_parser *p, const struct js_node *prompt,
                               struct request_prompt *to)
{
    struct detokenizer d;
    struct strbuf out;
    size_t n;
    struct status st = status_ok();
    const char *text = js_string(prompt, &n);
    strbuf_init(&out);
    detokenizer_init(&d, true);
    if (text != NULL) strbuf_add(&out, text, n);
    for (size_t i = 0; text == NULL && i < js_count(prompt) && !status_failed(&st); i++) {
        int64_t id = -1;
        if (p->rules->tokenizer == NULL || !js_int(js_at(prompt, i), &id)) break;
        st = detokenizer_feed(&d, p->rules->tokenizer, (int32_t)id, &out);
    }
    if (text == NULL && p->rules->tokenizer != NULL && !status_failed(&st))
        st = detokenizer_flush(&d, p->rules->tokenizer, &out);
    if (!status_failed(&st)) st = strbuf_status(&out);
    if (!status_failed(&st) && out.n > 0) st = mem_strndup(&to->echo.bytes, out.data, out.n);
    if (!status_failed(&st)) to->echo.n = out.n;
    detokenizer_fini(&d);
    strbuf_fini(&out);
    return st;
}

/* Reads the n prompts of a line. Multiplies n_choices, so far the answers to one prompt, by n. */
static struct status read_prompts(struct request_parser *p, const char *key,
                                  const struct js_node *const *prompts, size_t n)
{
    const bool keeps = p->ask->echo || n > 1;
    const int32_t n_each = p->ask->n_choices;
    if (n > REQUEST_PROMPTS_MAX || (n > 1 && p->ask->beam.width > 0)) {
        return request_bad(p, "unsupported", "prompt: expected at most %d prompts, found %zu",
                           p->ask->beam.width > 0 ? 1 : REQUEST_PROMPTS_MAX, n);
    }
    if (n > 1 && !p->ask->echo && p->ask->n_prompt_logprobs >= 0)
        return request_bad(p, "unsupported",
                           "prompt_logprobs: expected one prompt, found %zu; echo with logprobs "
                           "takes several",
                           n);
    if (keeps) TRY(mem_alloc(&p->r->prompts, n, sizeof *p->r->prompts, "request"));
    p->ask->n_prompts = (int32_t)n;
    p->ask->n_choices = n_each * (int32_t)n;
    for (size_t i = 0; i < n; i++) {
        TRY(read_one(p, prompts[i], key));
        if (!keeps) continue;
        p->r->prompts[i].end = p->r->n_prompt;
        p->r->prompts[i].score_from = 1;
        if (p->ask->echo) TRY(keep_echo(p, prompts[i], &p->r->prompts[i]));
    }
    return status_ok();
}

/* Reads a list of prompts. Only a completion may have more than one. */
static struct status read_list(struct request_parser *p, const struct js_node *list)
{
    const struct js_node **prompts = NULL;
    const size_t n = js_count(list);
    if (n > 1 && (p->ask->format != REQUEST_OPENAI || p->rules->score)) {
        return request_bad(p, "invalid_request",
                           "prompt: expected one string or one list of token ids, found several %s",
                           js_type(js_at(list, 0)) == JS_STRING ? "strings" : "lists");
    }
    for (size_t i = 0; i < n; i++) {
        const enum js_type type = js_type(js_at(list, i));
        if (type == js_type(js_at(list, 0))) continue;
        return request_bad(p, "invalid_request",
                           "prompt[%zu]: expected the type of prompt[0], found %s", i,
                           request_type_name(js_at(list, i)));
    }
    TRY(mem_alloc(&prompts, n, sizeof(const struct js_node *), "request"));
    for (size_t i = 0; i < n; i++) prompts[i] = js_at(list, i);
    const struct status st = read_prompts(p, "prompt", prompts, n);
    mem_free(&prompts);
    return st;
}

/* Finds the text of content part i of message m. Errors: STATUS_REQUEST for a part that is not
 * text. */
static struct status part_text(struct request_parser *p, const struct js_node *part, size_t m,
                               size_t i, const char **text, size_t *n)
{
    const char *type = js_string(js_get(part, "type"), NULL);
    *text = js_string(part, n); /* a plain string is a text part too */
    if (*text != NULL) return status_ok();
    if (type == NULL) {
        return request_bad(
            p, "invalid_request",
            "messages[%zu].content[%zu]: expected an object with a \"type\", found %s", m, i,
            js_type(part) == JS_OBJECT ? "one without" : request_type_name(part));
    }
    if (strcmp(type, "text") != 0) {
        return request_bad(p, "unsupported",
                           "messages[%zu].content[%zu]: %.60s is not supported, expected parts of "
                           "type \"text\" alone",
                           m, i, type);
    }
    *text = js_string(js_get(part, "text"), n);
    if (*text != NULL) return status_ok();
    return request_bad(p, "invalid_request",
                       "messages[%zu].content[%zu].text: expected a string, found %s", m, i,
                       request_type_name(js_get(part, "text")));
}

/* Appends the JSON string of message m's content: its text parts, joined by newlines. */
static struct status add_joined(struct request_parser *p, const struct js_node *parts, size_t m,
                                struct strbuf *out)
{
    struct strbuf joined;
    struct status st = status_ok();
    strbuf_init(&joined);
    for (size_t i = 0; i < js_count(parts) && !status_failed(&st); i++) {
        const char *text = NULL;
        size_t n = 0;
        st = part_text(p, js_at(parts, i), m, i, &text, &n);
        if (status_failed(&st)) break;
        if (i > 0) strbuf_puts(&joined, "\n");
        strbuf_add(&joined, text, n);
    }
    if (!status_failed(&st)) st = strbuf_status(&joined);
    if (!status_failed(&st)) strbuf_json_string(out, joined.n > 0 ? joined.data : "", joined.n);
    strbuf_fini(&joined);
    return st;
}

/* Appends message m with its content as one string. */
static struct status add_message(struct request_parser *p, const struct js_node *message, size_t m,
                                 struct strbuf *out)
{
    const void *it = NULL;
    const char *key, *comma = "";
    const struct js_node *value;
    strbuf_puts(out, "{");
    while (js_next(message, &it, &key, &value)) {
        strbuf_puts(out, comma);
        strbuf_json_string(out, key, strlen(key));
        strbuf_puts(out, ":");
        comma = ",";
        if (strcmp(key, "content") == 0 && js_type(value) == JS_ARRAY) {
            TRY(add_joined(p, value, m, out));
            continue;
        }
        char *text = NULL;
        size_t n;
        TRY(js_dump(value, &text, &n));
        strbuf_add(out, text, n);
        mem_free(&text);
    }
    strbuf_puts(out, "}");
    return strbuf_status(out);
}

static bool has_parts(const struct js_node *messages)
{
    for (size_t m = 0; m < js_count(messages); m++)
        if (js_type(js_get(js_at(messages, m), "content")) == JS_ARRAY) return true;
    return false;
}

/* Copies the messages with each list of parts joined into one string, for a template that accepts
 * only strings. *doc owns the copy. */
static struct status join_parts(struct request_parser *p, const struct js_node *messages,
                                struct js_doc **doc)
{
    struct strbuf text;
    struct status st = status_ok();
    strbuf_init(&text);
    strbuf_puts(&text, "[");
    for (size_t m = 0; m < js_count(messages) && !status_failed(&st); m++) {
        if (m > 0) strbuf_puts(&text, ",");
        st = add_message(p, js_at(messages, m), m, &text);
    }
    strbuf_puts(&text, "]");
    if (!status_failed(&st)) st = strbuf_status(&text);
    if (!status_failed(&st)) st = js_parse(text.data, text.n, "messages", doc);
    if (st.code == STATUS_INPUT) st = request_bad(p, "invalid_request", "%s", st.text);
    strbuf_fini(&text);
    return st;
}

/* Handles contents that are lists of parts, as in OpenAI's interface. If the template accepts
 * lists, *messages stays; otherwise it becomes the root of *doc, a copy with strings. */
static struct status take_parts(struct request_parser *p, const struct js_node **messages,
                                struct js_doc **doc)
{
    bool takes_parts;
    if (!has_parts(*messages)) return status_ok();
    for (size_t m = 0; m < js_count(*messages); m++) {
        const struct js_node *parts = js_get(js_at(*messages, m), "content");
        for (size_t i = 0; js_type(parts) == JS_ARRAY && i < js_count(parts); i++) {
            const char *text;
            size_t n;
            TRY(part_text(p, js_at(parts, i), m, i, &text, &n));
        }
    }
    TRY(chat_takes_parts(p->rules->chat, &takes_parts));
    if (takes_parts) return status_ok();
    TRY(join_parts(p, *messages, doc));
    *messages = js_root(*doc);
    return status_ok();
}

/* True for the roles whose content is text or a list of parts. In other roles it may be an object,
 * such as a tool's results, which templates print as JSON. */
static bool is_speaker(const char *role)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant"};
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++)
        if (strcmp(role, roles[i]) == 0) return true;
    return false;
}

/* Checks the types of a message's role and content. Content may be null, as beside tool calls. */
static struct status check_message(struct request_parser *p, const struct js_node *message,
                                   size_t m)
{
    const struct js_node *content = js_get(message, "content");
    const char *role = js_string(js_get(message, "role"), NULL);
    const enum js_type type = js_type(content);
    if (role == NULL)
        return request_bad(p, "invalid_request", "messages[%zu].role: expected a string, found %s",
                           m, request_type_name(js_get(message, "role")));
    if (type == JS_STRING || type == JS_ARRAY || type == JS_NULL ||
        (type == JS_OBJECT && !is_speaker(role)))
        return status_ok();
    return request_bad(p, "invalid_request",
                       "messages[%zu].content: expected a string or a list of parts, found %s", m,
                       request_type_name(content));
}

static struct status check_messages(struct request_parser *p, const struct js_node *messages)
{
    if (js_type(messages) == JS_ARRAY && js_count(messages) == 0) {
        return request_bad(p, "invalid_request",
                           "messages: expected at least one message, found an empty list");
    }
    for (size_t m = 0; m < js_count(messages) && js_type(messages) == JS_ARRAY; m++) {
        const struct js_node *message = js_at(messages, m);
        if (js_type(message) != JS_OBJECT)
            return request_bad(p, "invalid_request", "messages[%zu]: expected an object, found %s",
                               m, request_type_name(message));
        TRY(check_message(p, message, m));
    }
    return status_ok();
}

/* Returns how the answer's thoughts are handled. With a grammar constraint, thoughts that the
 * prompt has begun are ignored, because the constraint holds for the whole answer. */
static enum request_thoughts thoughts_of(const struct request_parser *p,
                                         const struct chat_text *text)
{
    const bool divides = p->rules->defaults.reasoning == REASONING_THINK;
    if (!divides || p->ask->format != REQUEST_OPENAI_CHAT) return THOUGHTS_STAY;
    return p->ask->guide == NULL && chat_text_begins_thoughts(text) ? THOUGHTS_BEGUN
                                                                    : THOUGHTS_TAGGED;
}

/* Encodes a conversation through the model's chat template, without the tokens that the tokenizer
 * adds around a text. Only text that the template wrote can become special tokens; text of users
 * never does. */
static struct status encode_messages(struct request_parser *p, const struct js_node *messages,
                                     const struct chat_options *options)
{
    struct js_doc *doc = NULL;
    struct chat_text text = {0};
    struct token_list list = {0};
    TRY(check_messages(p, messages));
    struct status st = take_parts(p, &messages, &doc);
    if (!status_failed(&st)) {
        st = chat_render(p->rules->chat, messages, options, &text);
        p->r->n_template_steps = text.n_steps;
        if (!status_failed(&st)) {
            p->ask->thoughts = thoughts_of(p, &text);
            st = chat_encode(p->rules->tokenizer, &text, &list);
        }
        if (st.code == STATUS_REQUEST) p->r->error.code = "invalid_request";
        if (!status_failed(&st)) st = take_list(p, &list);
    }
    token_list_fini(&list);
    chat_text_fini(&text);
    js_destroy(&doc);
    return st;
}

static struct status read_messages(struct request_parser *p, const struct js_node *fields)
{
    if (p->rules->chat == NULL || p->rules->tokenizer == NULL) {
        return request_bad(p, "unsupported", "messages: %s",
                           p->rules->chat_missing != NULL ? p->rules->chat_missing
                                                          : "this model has no chat template");
    }
    const struct js_node *asked = js_get(fields, "add_generation_prompt");
    bool generation_prompt = !p->rules->score && p->rules->embed == NULL;
    if (js_type(asked) != JS_NULL && !js_bool(asked, &generation_prompt)) {
        return request_bad(p, "invalid_request",
                           "add_generation_prompt: expected a boolean, found %s",
                           request_type_name(asked));
    }
    const struct chat_options options = {.no_generation_prompt = !generation_prompt,
                                         .tools = js_get(fields, "tools"),
                                         .documents = js_get(fields, "documents"),
                                         .extra = js_get(fields, "chat_template_kwargs"),
                                         .date = p->rules->date};
    return encode_messages(p, js_get(fields, "messages"), &options);
}

struct status request_read_prompt(struct request_parser *p, const struct js_node *fields)
{
    bool is_read = false;
    if (p->rules->takes_pairs) TRY(request_read_scored(p, fields, &is_read));
    if (is_read) return status_ok();
    static const char *const keys[] = {"prompt", "prompt_token_ids", "messages"};
    const struct js_node *nodes[3];
    int n_given = 0;
    for (int i = 0; i < 3; i++) {
        nodes[i] = js_get(fields, keys[i]);
        n_given += js_type(nodes[i]) != JS_NULL;
    }
    if (n_given != 1) {
        return request_bad(
            p, "invalid_request",
            "expected one of %sprompt, prompt_token_ids and messages, found %d of them",
            p->rules->takes_pairs ? "context with continuation, text, " : "", n_given);
    }
    if (p->ask->format == REQUEST_OPENAI_CHAT && js_type(nodes[2]) == JS_NULL) {
        return request_bad(p, "invalid_request",
                           "messages: /v1/chat/completions needs them, found null");
    }
    if (js_type(nodes[2]) != JS_NULL) return read_messages(p, fields);
    if (js_type(nodes[1]) == JS_ARRAY) return read_prompts(p, keys[1], &nodes[1], 1);
    if (js_type(nodes[1]) != JS_NULL) {
        return request_bad(p, "invalid_request", "prompt_token_ids: expected a list, found %s",
                           request_type_name(nodes[1]));
    }
    if (js_type(nodes[0]) == JS_STRING) return read_prompts(p, keys[0], &nodes[0], 1);
    if (js_type(nodes[0]) != JS_ARRAY) {
        return request_bad(p, "invalid_request",
                           "prompt: expected one string or one list of token ids, found %s",
                           request_type_name(nodes[0]));
    }
    const enum js_type first = js_type(js_at(nodes[0], 0));
    return first == JS_STRING || first == JS_ARRAY ? read_list(p, nodes[0])
                                                   : read_prompts(p, keys[0], &nodes[0], 1);
}

/* Encodes the text that a template makes from the line's members. As in a chat, only the template's
 * own text can become special tokens. */
static struct status encode_made(struct request_parser *p, const struct js_node *fields)
{
    struct chat_text text = {0};
    struct token_list list = {0};
    struct status st = chat_render_members(p->rules->form->made_by, fields, &p->rules->date, &text);
    p->r->n_template_steps = text.n_steps;
    if (!status_failed(&st))
        st = tokenizer_encode_spans(p->rules->tokenizer, text.bytes, text.n, text.spans,
                                    text.n_spans, TOKENIZER_ADD_SPECIAL, &list);
    if (st.code == STATUS_REQUEST) p->r->error.code = "invalid_request";
    if (!status_failed(&st)) st = take_list(p, &list);
    token_list_fini(&list);
    chat_text_fini(&text);
    return st;
}

struct status request_read_form(struct request_parser *p, const struct js_node *fields)
{
    const struct request_form *form = p->rules->form;
    if (p->rules->tokenizer == NULL)
        return request_bad(p, "unsupported", "this model has no tokenizer; give prompt_token_ids");
    if (form->made_by != NULL) return encode_made(p, fields);
    const struct js_node *prompt = js_get(fields, form->field);
    if (js_type(prompt) == JS_STRING) return read_prompts(p, form->field, &prompt, 1);
    return request_bad(p, "invalid_request",
                       "%.100s: expected a string as the prompt (--input-field), found %s",
                       form->field, prompt == NULL ? "no such field" : request_type_name(prompt));
}

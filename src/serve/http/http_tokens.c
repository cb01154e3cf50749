/* Converts texts to tokens and back. */
#include "base/json.h"
#include "serve/http/http_text.h"
#include "text/tokenizer/detokenizer.h"

#include <string.h>

static struct status fail(enum http_status *status, const char *code, const char *message,
                          struct strbuf *out)
{
    *status = HTTP_BAD_REQUEST;
    http_error(*status, code, message, out);
    return strbuf_status(out);
}

/* *out: whether the body has "messages". A body that is not JSON counts as a completion's, whose
 * parser reports the error. */
static struct status is_chat(const char *body, size_t n, bool *out)
{
    struct js_doc *doc = NULL;
    bool is_rounded;
    const struct status st = js_parse_rounding(body, n, "body", &doc, &is_rounded);
    *out = !status_failed(&st) && js_type(js_get(js_root(doc), "messages")) != JS_NULL;
    js_destroy(&doc);
    return st.code == STATUS_INPUT ? status_ok() : st;
}

static void write_token_ids(const int32_t *ids, size_t n, struct strbuf *out)
{
    for (size_t i = 0; i < n; i++) strbuf_printf(out, i > 0 ? ",%d" : "%d", ids[i]);
}

struct status http_tokenize(const struct request_rules *rules, const char *body, size_t n,
                            enum http_status *status, struct strbuf *out)
{
    struct request *r = NULL;
    bool chat;
    TRY(is_chat(body, n, &chat));
    const struct request_call call = {.format = chat ? REQUEST_OPENAI_CHAT : REQUEST_OPENAI,
                                      .number = 1,
                                      .body = body,
                                      .n_body = n};
    TRY(request_create_call(rules, &call, &r));
    struct status st = status_ok();
    if (r->error.code == NULL && r->ask->n_prompts > 1) {
        st = fail(status, "invalid_request", "prompt: expected one prompt, found several", out);
    } else if (r->error.code != NULL) {
        st = fail(status, r->error.code, r->error.message, out);
    } else {
        *status = HTTP_OK;
        strbuf_printf(out, "{\"count\":%zu,\"max_model_len\":%d,\"tokens\":[", r->n_prompt,
                      rules->max_model_len);
        write_token_ids(r->tokens, r->n_prompt, out);
        strbuf_puts(out, "],\"token_strs\":null}");
        st = strbuf_status(out);
    }
    request_destroy(&r);
    return st;
}

/* Appends the text of a list of ids. *ok: whether `ids` is a list of the model's ids. */
static struct status decode_ids(const struct request_rules *rules, const struct js_node *ids,
                                bool *ok, struct strbuf *text)
{
    struct detokenizer d;
    struct status st = status_ok();
    detokenizer_init(&d, false);
    *ok = js_type(ids) == JS_ARRAY;
    for (size_t i = 0; *ok && i < js_count(ids) && !status_failed(&st); i++) {
        int64_t id = -1;
        *ok = js_int(js_at(ids, i), &id) && id >= 0 && id < rules->vocab_size;
        if (*ok) st = detokenizer_feed(&d, rules->tokenizer, (int32_t)id, text);
    }
    if (*ok && !status_failed(&st)) st = detokenizer_flush(&d, rules->tokenizer, text);
    detokenizer_fini(&d);
    return st;
}

struct status http_detokenize(const struct request_rules *rules, const char *body, size_t n,
                              enum http_status *status, struct strbuf *out)
{
    struct js_doc *doc = NULL;
    struct strbuf text;
    bool ok;
    if (rules->tokenizer == NULL)
        return fail(status, "unsupported", "the checkpoint has no tokenizer", out);
    struct status st = js_parse(body, n, "JSON", &doc);
    if (st.code == STATUS_INPUT) return fail(status, "invalid_json", st.text, out);
    TRY(st);
    strbuf_init(&text);
    st = decode_ids(rules, js_get(js_root(doc), "tokens"), &ok, &text);
    if (!status_failed(&st) && !ok) {
        st = fail(status, "invalid_request", "tokens: expected a list of token ids", out);
    } else if (!status_failed(&st)) {
        *status = HTTP_OK;
        strbuf_puts(out, "{\"prompt\":");
        strbuf_json_string(out, text.n > 0 ? text.data : "", text.n);
        strbuf_puts(out, "}");
        st = strbuf_status(out);
    }
    strbuf_fini(&text);
    js_destroy(&doc);
    return st;
}

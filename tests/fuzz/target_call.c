/* Target: a call of the server without a connection. The first line is the path, the rest is the
 * body: it is routed, parsed and answered, whole and as a stream. */
#include "base/json.h"
#include "base/mem.h"
#include "fuzz/fuzz.h"
#include "serve/http/http_api.h"
#include "serve/http/http_text.h"
#include "serve/http/multipart.h"
#include "serve/output/result_row.h"
#include "serve/output/result_stream.h"
#include "serve/output/tool_calls.h"
#include "serve/request/request_answer.h"
#include "unit/util_serve.h"

#include <string.h>

enum { VOCAB = 257, MODEL_LEN = 128, TOKENS = 40 };

static const char *const words[] = {"/v1/completions\n",
                                    "/v1/chat/completions\n",
                                    "/tokenize\n",
                                    "/detokenize\n",
                                    "/v1/files\n",
                                    "--b",
                                    "\r\n",
                                    "\r\n--b--",
                                    "Content-Disposition: form-data; name=\"file\"",
                                    "\"echo\":true",
                                    "\"prompt\":[[",
                                    "\"prompt\":",
                                    "\"messages\":[",
                                    "\"role\":\"user\"",
                                    "\"content\":",
                                    "\"tokens\":[",
                                    "\"max_tokens\":",
                                    "\"temperature\":",
                                    "\"stream\":true",
                                    "\"stream_options\":{\"include_usage\":true}",
                                    "\"stop\":[",
                                    "\"logprobs\":",
                                    "\"top_logprobs\":",
                                    "\"n\":",
                                    "\"seed\":",
                                    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":",
                                    "\"model\":",
                                    "\"min_tokens\":",
                                    "<|end|>",
                                    "\\ud83d",
                                    "1e309",
                                    NULL};

static struct request_rules rules;

/* An error is JSON with a message. */
static void check_error(enum http_status status, const char *code, const char *message)
{
    struct strbuf s;
    struct js_doc *doc = NULL;
    strbuf_init(&s);
    http_error(status, code, message, &s);
    const struct status st = js_parse(s.data, s.n, "error", &doc);
    FUZZ_CHECK(!status_failed(&st), "%s in %s", st.text, s.data);
    FUZZ_CHECK(js_string(js_get(js_get(js_root(doc), "error"), "message"), NULL) != NULL, "%s",
               s.data);
    js_destroy(&doc);
    strbuf_fini(&s);
}

/* The tokens of the answer: ASCII, characters of several bytes, and bytes that are no UTF-8. */
static int32_t token_at(struct request *r, int32_t i)
{
    static const unsigned char text[] = "a lazy \xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80 \xFF\xC3 stop";
    uint32_t allowed[(VOCAB + 31) / 32];
    int32_t token = text[(size_t)i % (sizeof text - 1)];
    if (!request_is_narrowed(r)) return token;
    const struct status st = request_allow(r, &rules, NULL, allowed);
    FUZZ_CHECK(!status_failed(&st), "%s", st.text);
    for (int32_t k = 0; k < VOCAB; k++, token = (token + 1) % VOCAB)
        if (allowed[token / 32] >> (token % 32) & 1) return token;
    FUZZ_CHECK(false, "no token is allowed behind %zu", r->n_tokens);
    return token;
}

/* Checks one event and appends the text of its choice. */
static void take_event(const char *bytes, size_t n, bool is_chat, struct strbuf *text)
{
    struct js_doc *doc = NULL;
    size_t n_text = 0;
    FUZZ_CHECK(n > 6 && memcmp(bytes, "data: ", 6) == 0, "%.*s", (int)n, bytes);
    FUZZ_CHECK(memchr(bytes, '\n', n) == NULL, "an event of several lines");
    if (n == 12 && memcmp(bytes, "data: [DONE]", 12) == 0) return;
    const struct status st = js_parse(bytes + 6, n - 6, "event", &doc);
    FUZZ_CHECK(!status_failed(&st), "%s in %.*s", st.text, (int)n, bytes);
    const struct js_node *choice = js_at(js_get(js_root(doc), "choices"), 0);
    const struct js_node *node =
        is_chat ? js_get(js_get(choice, "delta"), "content") : js_get(choice, "text");
    const char *piece = js_string(node, &n_text);
    if (piece != NULL) strbuf_add(text, piece, n_text);
    js_destroy(&doc);
}

/* The texts of a stream's events, joined, are the answer's text without its tool calls. */
static void check_events(const struct strbuf *events, const struct request *r)
{
    struct strbuf text;
    struct tool_calls calls;
    strbuf_init(&text);
    const struct status st = tool_calls_find(r, &calls);
    FUZZ_CHECK(!status_failed(&st), "%s", st.text);
    const size_t n = calls.n_content, begin = calls.content;
    const char *at = events->data, *end = at + events->n;
    while (at < end) {
        const char *next = memmem(at, (size_t)(end - at), "\n\n", 2);
        FUZZ_CHECK(next != NULL, "an event without an end: %s", at);
        take_event(at, (size_t)(next - at), r->ask->format == REQUEST_OPENAI_CHAT, &text);
        at = next + 2;
    }
    FUZZ_CHECK(events->n > 14 && memcmp(end - 14, "data: [DONE]\n\n", 14) == 0, "no [DONE]");
    FUZZ_CHECK(text.n == n && (n == 0 || memcmp(text.data, r->text.data + begin, n) == 0),
               "joined \"%s\", whole \"%s\"", text.data, r->text.data);
    tool_calls_fini(&calls);
    strbuf_fini(&text);
}

static void check_body(const struct request *r)
{
    struct strbuf body;
    struct js_doc *doc = NULL;
    strbuf_init(&body);
    struct status st = result_row_body(r, &rules, NULL, &body);
    FUZZ_CHECK(!status_failed(&st), "%s", st.text);
    st = js_parse(body.data, body.n, "body", &doc);
    FUZZ_CHECK(!status_failed(&st), "%s in %s", st.text, body.data);
    js_destroy(&doc);
    strbuf_fini(&body);
}

/* Generates some tokens, and writes the stream after each of them. */
static void generate(struct request *r)
{
    struct result_stream stream = {.n_text = 0};
    struct strbuf events;
    strbuf_init(&events);
    for (int32_t i = 0; r->finish == REQUEST_UNFINISHED && i < TOKENS; i++) {
        struct plan_top tops[32];
        for (int32_t k = 0; k < 32; k++) tops[k] = (struct plan_top){.id = 'a' + k};
        struct status st = status_ok();
        if (r->ask->n_logprobs >= 0) st = request_take_logprob(r, -0.5f, tops);
        if (!status_failed(&st)) st = request_take_token(r, &rules, token_at(r, i));
        FUZZ_CHECK(!status_failed(&st), "%s", st.text);
        st = result_stream_write(&stream, r, &rules, NULL, &events);
        FUZZ_CHECK(!status_failed(&st), "%s", st.text);
    }
    if (r->finish != REQUEST_UNFINISHED && r->error.code == NULL) {
        result_stream_end(r, NULL, &events);
        check_events(&events, r);
        check_body(r);
    }
    strbuf_fini(&events);
}

static bool run_request(enum request_format format, const char *body, size_t n)
{
    struct request *r = NULL;
    const struct request_call call = {
        .format = format, .number = 1, .id = "x", .body = body, .n_body = n};
    const struct status st = request_create_call(&rules, &call, &r);
    FUZZ_CHECK(!status_failed(&st), "%s", st.text);
    const bool served = r->error.code == NULL;
    if (!served) {
        const struct status why = status_make(STATUS_REQUEST, "%s", r->error.message);
        (void)fuzz_refused(&why);
        check_error(http_status_of(r->error.code), r->error.code, r->error.message);
    } else if (r->ask->n_choices == 1 && r->ask->beam.width == 0 && r->ask->n_prompt_logprobs < 0) {
        generate(r); /* the scheduler fills in what the others need */
    }
    request_destroy(&r);
    return served;
}

static bool run_tokens(enum http_endpoint endpoint, const char *body, size_t n)
{
    enum http_status status = HTTP_INTERNAL;
    struct strbuf out;
    struct js_doc *doc = NULL;
    strbuf_init(&out);
    struct status st = endpoint == HTTP_TOKENIZE ? http_tokenize(&rules, body, n, &status, &out)
                                                 : http_detokenize(&rules, body, n, &status, &out);
    FUZZ_CHECK(!status_failed(&st), "%s", st.text);
    FUZZ_CHECK(status == HTTP_OK || status == HTTP_BAD_REQUEST, "status %d", (int)status);
    st = js_parse(out.data, out.n, "answer", &doc);
    FUZZ_CHECK(!status_failed(&st), "%s in %s", st.text, out.data);
    js_destroy(&doc);
    strbuf_fini(&out);
    return status == HTTP_OK;
}

/* Every byte of a part's data lies in the body, and parts do not overlap. */
static bool run_upload(const char *body, size_t n)
{
    struct multipart m;
    struct multipart_part part;
    size_t at = 0, n_parts = 0;
    const char *before = body;
    FUZZ_CHECK(multipart_init(&m, "multipart/form-data; boundary=b", body, n), "no boundary");
    for (; multipart_next(&m, &at, &part); n_parts++) {
        FUZZ_CHECK(part.data >= before && part.data + part.n <= body + n, "a part outside");
        FUZZ_CHECK(part.name > before && part.name + part.n_name < part.data, "a name outside");
        before = part.data + part.n;
    }
    return n_parts > 0;
}

static bool run(const char *bytes, size_t n)
{
    char path[64] = "";
    char item[HTTP_ITEM_MAX];
    enum http_endpoint endpoint;
    const char *end = n > 0 ? memchr(bytes, '\n', n) : NULL;
    const size_t n_path = end != NULL ? (size_t)(end - bytes) : 0;
    if (end == NULL || n_path >= sizeof path) return false;
    memcpy(path, bytes, n_path);
    const char *body = end + 1;
    const size_t n_body = n - n_path - 1;
    if (http_route("POST", path, &endpoint, item) != HTTP_OK) return false;
    if (endpoint == HTTP_TOKENIZE || endpoint == HTTP_DETOKENIZE)
        return run_tokens(endpoint, body, n_body);
    if (endpoint == HTTP_FILE_ADD) return run_upload(body, n_body);
    if (endpoint != HTTP_COMPLETIONS && endpoint != HTTP_CHAT) return false;
    return run_request(endpoint == HTTP_CHAT ? REQUEST_OPENAI_CHAT : REQUEST_OPENAI, body, n_body);
}

static const char *const calls[] = {
    "/v1/completions\n{\"model\":\"m\",\"prompt\":\"Once\",\"max_tokens\":30,\"stream\":true,"
    "\"stream_options\":{\"include_usage\":true},\"stop\":[\"lazy\",\"\\u20ac\"]}",
    "/v1/completions\n{\"prompt\":[1,2,3],\"max_tokens\":12,\"logprobs\":2,\"temperature\":0}",
    "/v1/completions\n{\"prompt\":\"a\",\"max_tokens\":40,\"min_tokens\":3,\"stop\":\"stop\"}",
    "/v1/chat/completions\n{\"messages\":[{\"role\":\"user\",\"content\":\"\xF0\x9F\x98\x80 "
    "<|end|>\"}],\"max_completion_tokens\":20,\"logprobs\":true,\"top_logprobs\":1,"
    "\"stream\":true}",
    "/v1/chat/completions\n{\"messages\":[{\"role\":\"system\",\"content\":[{\"type\":\"text\","
    "\"text\":\"Be.\"}]}],\"seed\":3,\"n\":2,\"guided_regex\":\"[a-z ]{3,9}\"}",
    "/v1/chat/completions\n{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"stream\":true,"
    "\"max_tokens\":39,\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],"
    "\"guided_choice\":[\"x {\\\"name\\\":\\\"f\\\"}\",\"{\\\"name\\\":\\\"f\\\"}\"]}",
    "/v1/chat/completions\n{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"stream\":true,"
    "\"guided_regex\":\" ?<think>( ?[a-c<])*</(think>[a-c ]{9,})?\"}",
    "/v1/completions\n{\"prompt\":[[97,98],[99]],\"max_tokens\":1,\"logprobs\":1,\"echo\":true}",
    "/v1/completions\n{\"prompt\":[\"a\"],\"max_tokens\":0,\"echo\":true,\"n\":1}",
    "/v1/files\n--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--b\r\n"
    "Content-Disposition: form-data; name=\"file\"; filename=\"f\"\r\nA: "
    "b\r\n\r\n{}\n\r\n--b--\r\n",
    "/tokenize\n{\"prompt\":\"a \\u00e9\"}",
    "/tokenize\n{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}",
    "/detokenize\n{\"tokens\":[97,32,195,169,256,255]}"};

static void begin(struct fuzz_seeds *seeds)
{
    static const char TEMPLATE[] = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n"
                                   "{% endfor %}";
    static const int32_t end_ids[] = {256};
    struct chat *chat = NULL;
    struct status st = chat_create(TEMPLATE, sizeof TEMPLATE - 1, NULL, "chat template", &chat);
    FUZZ_CHECK(!status_failed(&st), "%s", st.text);
    rules = (struct request_rules){.tokenizer = util_byte_tokenizer(),
                                   .chat = chat,
                                   .end_ids = end_ids,
                                   .n_end_ids = 1,
                                   .vocab_size = VOCAB,
                                   .max_model_len = MODEL_LEN};
    request_defaults_init(&rules.defaults);
    rules.defaults.reasoning = REASONING_THINK;
    st = guides_create(rules.tokenizer, VOCAB, &rules.guides);
    FUZZ_CHECK(!status_failed(&st), "%s", st.text);
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
        fuzz_seed_add(seeds, calls[i], strlen(calls[i]));
}

extern const struct fuzz_target fuzz_call;
const struct fuzz_target fuzz_call = {"call", words, begin, run};

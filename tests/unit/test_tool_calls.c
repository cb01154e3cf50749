/* Tool calls in the texts of answers, whole and as streams that are cut anywhere. */
#include "serve/output/tool_calls.h"

#include "base/json.h"
#include "base/mem.h"
#include "serve/output/result_row.h"
#include "serve/output/result_stream.h"
#include "serve/request/request_choice.h"
#include "util_serve.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TAGGED(json) "<tool_call>\n" json "\n</tool_call>"
#define F            "{\"name\": \"f\", \"arguments\": {\"b\": [1, \"}\"], \"a\": null}}"
#define G            "{\"name\":\"g\"}"

/* The text of an answer, its content, and its calls, each as "name arguments\n". */
static const struct expected {
    enum chat_tool_form form;
    const char *text, *content, *calls;
} texts[] = {
    {CHAT_TOOLS_TAGGED, TAGGED(F), "", "f {\"b\":[1,\"}\"],\"a\":null}\n"},
    {CHAT_TOOLS_TAGGED, "Let me look. \n" TAGGED(F) "\n" TAGGED(G), "Let me look.",
     "f {\"b\":[1,\"}\"],\"a\":null}\ng {}\n"},
    {CHAT_TOOLS_TAGGED, "a <tool_call>" G, "a", "g {}\n"},
    {CHAT_TOOLS_TAGGED, "a < b <tool", "a < b <tool", ""},
    {CHAT_TOOLS_TAGGED, "no call \n", "no call \n", ""},
    {CHAT_TOOLS_TAGGED, "", "", ""},
    {CHAT_TOOLS_TAGGED, F, F, ""}, /* without a tag it is text */
    {CHAT_TOOLS_TAGGED, "a " TAGGED("{\"name\": \"f\""), "a " TAGGED("{\"name\": \"f\""), ""},
    {CHAT_TOOLS_TAGGED, TAGGED(F) TAGGED("{\"name\":\"h\"}"), TAGGED(F) TAGGED("{\"name\":\"h\"}"),
     ""},
    {CHAT_TOOLS_TAGGED, TAGGED("{\"name\":\"f\",\"arguments\":\"a\"}"),
     TAGGED("{\"name\":\"f\",\"arguments\":\"a\"}"), ""},
    {CHAT_TOOLS_JSON, F, "", "f {\"b\":[1,\"}\"],\"a\":null}\n"},
    {CHAT_TOOLS_JSON, " {\"name\":\"g\",\"parameters\":{\"x\":\"\\\"{\"}}; " G "\n" G, "",
     "g {\"x\":\"\\\"{\"}\ng {}\ng {}\n"},
    {CHAT_TOOLS_JSON, "[" F "," G "]", "", "f {\"b\":[1,\"}\"],\"a\":null}\ng {}\n"},
    {CHAT_TOOLS_JSON, "[]", "[]", ""},
    {CHAT_TOOLS_JSON, "{\"name\":\"h\"}", "{\"name\":\"h\"}", ""},
    {CHAT_TOOLS_JSON, "{\"answer\": 4}", "{\"answer\": 4}", ""},
    {CHAT_TOOLS_JSON, G " and text", G " and text", ""},
    {CHAT_TOOLS_JSON, "{\"name\":", "{\"name\":", ""},
    {CHAT_TOOLS_JSON, "Text " G, "Text " G, ""},
    {CHAT_TOOLS_JSON, "]", "]", ""},
};

static struct request *make_chat(enum chat_tool_form form)
{
    struct request_ask *ask;
    struct request *r = util_request_chat("f\0g", 3, &ask);
    ask->tool_form = form;
    return r;
}

static void calls_are_found(void)
{
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct request *r = make_chat(texts[i].form);
        struct tool_calls found;
        char calls[512] = "";
        strbuf_puts(&r->text, texts[i].text);
        const struct status st = tool_calls_find(r, &found);
        CU_ASSERT_FALSE_FATAL(status_failed(&st));
        for (size_t k = 0; k < found.n; k++)
            snprintf(calls + strlen(calls), sizeof calls - strlen(calls), "%s %s\n",
                     found.calls[k].name, found.calls[k].arguments);
        if (strcmp(calls, texts[i].calls) != 0) printf("\n  %s: %s", texts[i].text, calls);
        CU_ASSERT_STRING_EQUAL(calls, texts[i].calls);
        CU_ASSERT(found.n_content == strlen(texts[i].content) &&
                  strncmp(texts[i].text, texts[i].content, found.n_content) == 0);
        tool_calls_fini(&found);
        request_destroy(&r);
    }
}

static void without_tools_everything_is_content(void)
{
    struct request *r = make_chat(CHAT_TOOLS_TAGGED);
    struct tool_calls found;
    ((struct request_ask *)r->ask)->tools.n = 0;
    strbuf_puts(&r->text, TAGGED(F));
    CU_ASSERT_EQUAL(tool_calls_n_sure(r, 0), strlen(TAGGED(F)));
    const struct status st = tool_calls_find(r, &found);
    CU_ASSERT(!status_failed(&st) && found.n == 0 && found.n_content == strlen(TAGGED(F)));
    request_destroy(&r);
}

/* Joins the contents of a stream's events, and counts the calls in them. */
static void join(const struct strbuf *events, struct strbuf *content, size_t *n_calls)
{
    for (char *at = events->data, *next; at != NULL && *at != '\0'; at = next) {
        struct js_doc *doc = NULL;
        size_t n = 0;
        next = strstr(at, "\n\n");
        CU_ASSERT_FATAL(next != NULL && strncmp(at, "data: ", 6) == 0);
        const struct status st = js_parse(at + 6, (size_t)(next - at) - 6, "event", &doc);
        CU_ASSERT_FALSE_FATAL(status_failed(&st));
        const struct js_node *delta = js_get(js_at(js_get(js_root(doc), "choices"), 0), "delta");
        const char *piece = js_string(js_get(delta, "content"), &n);
        if (piece != NULL) strbuf_add(content, piece, n);
        *n_calls += js_count(js_get(delta, "tool_calls"));
        js_destroy(&doc);
        next += 2;
    }
}

/* Checks a stream whose text grows by k bytes at a time. */
static void check_stream(const struct expected *e, size_t k)
{
    const struct request_rules rules = {.tokenizer = NULL};
    struct request *r = make_chat(e->form);
    struct result_stream s = {.n_text = 0};
    struct strbuf events, content;
    size_t n_calls = 0, n_expected = 0;
    strbuf_init(&events);
    strbuf_init(&content);
    const size_t n = strlen(e->text);
    for (size_t at = 0; at <= n; at += k) {
        strbuf_add(&r->text, e->text + at, at + k < n ? k : n - at);
        if (at + k > n) r->finish = REQUEST_STOP;
        const struct status st = result_stream_write(&s, r, &rules, NULL, &events);
        CU_ASSERT_FALSE_FATAL(status_failed(&st));
    }
    CU_ASSERT(s.has_ended);
    join(&events, &content, &n_calls);
    for (const char *c = e->calls; *c != '\0'; c++) n_expected += *c == '\n';
    CU_ASSERT_EQUAL(n_calls, n_expected);
    CU_ASSERT_STRING_EQUAL(content.n > 0 ? content.data : "", e->content);
    strbuf_fini(&events);
    strbuf_fini(&content);
    request_destroy(&r);
}

static void streams_give_the_same_content_and_calls(void)
{
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        for (size_t k = 1; k < 30; k++) check_stream(&texts[i], k);
}

/* Writes the row of the batch line `id` with three answers: text; two calls; and a call whose
 * argument looks like the call ids of a row. */
static void write_row(const char *id, struct strbuf *row)
{
    static const char *const answers[] = {
        "no call", TAGGED(F) TAGGED(G),
        TAGGED("{\"name\":\"f\",\"arguments\":{\"a\":[{\"index\":9},{\"id\":\"call_"
               "0123456789abcdef_0\"}]}}")};
    enum { N = sizeof answers / sizeof answers[0] };
    const struct request_rules rules = {.tokenizer = NULL};
    struct request *r = make_chat(CHAT_TOOLS_TAGGED);
    struct request_ask *ask = (struct request_ask *)r->ask;
    mem_free(&r->custom_id.bytes);
    struct status st = mem_strndup(&r->custom_id.bytes, id, strlen(id));
    r->custom_id.n = strlen(id);
    ask->n_choices = N;
    if (!status_failed(&st)) st = mem_alloc(&r->tokens, 1, sizeof *r->tokens, "tokens");
    r->tokens_capacity = r->n_tokens = r->n_prompt = 1;
    if (!status_failed(&st)) st = mem_alloc(&r->choices.at, N, sizeof *r->choices.at, "choices");
    r->choices.capacity = N;
    for (uint32_t i = 0; i < N && !status_failed(&st); i++) {
        st = request_create_choice(r, i, &r->choices.at[i]);
        if (status_failed(&st)) break;
        strbuf_puts(&r->choices.at[i]->text, answers[i]);
        r->choices.at[i]->finish = REQUEST_STOP;
    }
    if (!status_failed(&st)) st = result_row_write(r, &rules, "m", row);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    request_destroy(&r);
}

static void calls_have_the_ids_of_a_renamed_row(void)
{
    struct strbuf row, renamed, wanted;
    strbuf_init(&row);
    strbuf_init(&renamed);
    strbuf_init(&wanted);
    write_row("7", &row);
    write_row("line 7", &wanted);
    size_t n_calls = 0;
    for (const char *at = row.data; (at = strstr(at, "{\"id\":\"call_")) != NULL; at++) n_calls++;
    CU_ASSERT_EQUAL(n_calls, 3);
    const struct status st = result_row_rename(row.data, row.n, "line 7", &renamed);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    CU_ASSERT_STRING_EQUAL(renamed.data, wanted.data);
    if (strcmp(renamed.data, wanted.data) != 0) printf("\n%s%s", renamed.data, wanted.data);
    strbuf_fini(&row);
    strbuf_fini(&renamed);
    strbuf_fini(&wanted);
}

static void tools_are_checked(void)
{
    static const struct {
        const char *more, *code;
        bool calls;
    } cases[] = {
        {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]", NULL, true},
        {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"tool_choice\":"
         "\"none\"",
         NULL, false},
        {"\"tools\":[]", NULL, false},
        {"\"tools\":[{\"type\":\"function\",\"function\":{}}]", "invalid_request", false},
        {"\"tools\":[{\"function\":{\"name\":\"f\"}}]", "invalid_request", false},
        {"\"tools\":{\"a\":1}", "invalid_request", false},
        {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],"
         "\"tool_choice\":\"required\"",
         "unsupported", false},
    };
    static const char template[] = "{% for m in messages %}{{ m.content }}{% endfor %}<tool_call>";
    struct tokenizer *t = util_byte_tokenizer();
    struct request_rules rules = util_request_rules(t);
    struct chat *chat = NULL;
    struct status st = chat_create(template, sizeof template - 1, NULL, "template", &chat);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    rules.chat = chat;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char line[512];
        snprintf(line, sizeof line,
                 "{\"method\":\"POST\",\"url\":\"/v1/chat/completions\",\"body\":{\"messages\":"
                 "[{\"role\":\"user\",\"content\":\"a\"}],%s}}",
                 cases[i].more);
        struct request *r = util_request_parse(&rules, line);
        const char *code = r->error.code;
        CU_ASSERT(cases[i].code == NULL ? code == NULL
                                        : code != NULL && strcmp(code, cases[i].code) == 0);
        CU_ASSERT_EQUAL(r->ask->tools.n > 0 && code == NULL, cases[i].calls);
        if (cases[i].calls) CU_ASSERT_EQUAL(r->ask->tool_form, CHAT_TOOLS_TAGGED);
        request_destroy(&r);
    }
    chat_destroy(&chat);
    tokenizer_destroy(&t);
}

void suite_tool_calls(CU_pSuite suite);
void suite_tool_calls(CU_pSuite suite)
{
    CU_add_test(suite, "calls are found", calls_are_found);
    CU_add_test(suite, "without tools everything is content", without_tools_everything_is_content);
    CU_add_test(suite, "streams give the same content and calls",
                streams_give_the_same_content_and_calls);
    CU_add_test(suite, "calls have the ids of a renamed row", calls_have_the_ids_of_a_renamed_row);
    CU_add_test(suite, "tools are checked", tools_are_checked);
}

/* Thoughts (reasoning) in answers: in whole texts, in streams that are cut anywhere, and whether
 * the prompt has begun them. */
#include "serve/output/reasoning.h"

#include "base/json.h"
#include "base/mem.h"
#include "serve/output/result_row.h"
#include "serve/output/result_stream.h"
#include "util_serve.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <string.h>

#define CALL "<tool_call>{\"name\":\"f\"}</tool_call>"

/* An answer and what is expected of it: its text is split into thoughts (`reasoning`), content and
 * n_calls tool calls. `thoughts` says where thoughts may begin. */
static const struct expected {
    enum request_thoughts thoughts;
    const char *text, *reasoning, *content;
    size_t n_calls;
} texts[] = {
    {THOUGHTS_STAY, "<think>a</think>b", "", "<think>a</think>b", 0},
    {THOUGHTS_TAGGED, "<think>\nLet me see.\n</think>\n\nIt is 4.", "Let me see.", "It is 4.", 0},
    {THOUGHTS_TAGGED, "\n<think>a < b</thin </think>c </think> d\n", "a < b</thin",
     "c </think> d\n", 0},
    {THOUGHTS_TAGGED, "<think>\n\n</think>\n\nYes.", "", "Yes.", 0},
    {THOUGHTS_TAGGED, "<think>cut off </thi", "cut off </thi", "", 0},
    {THOUGHTS_TAGGED, "<think>", "", "", 0},
    {THOUGHTS_TAGGED, "<thin", "", "<thin", 0},
    {THOUGHTS_TAGGED, " \n no tag <think>a</think>", "", " \n no tag <think>a</think>", 0},
    {THOUGHTS_TAGGED, "", "", "", 0},
    {THOUGHTS_BEGUN, "Let me see.\n</think>\n\nIt is 4.", "Let me see.", "It is 4.", 0},
    {THOUGHTS_BEGUN, "<think>\ntwice</think>c", "twice", "c", 0},
    {THOUGHTS_BEGUN, "<thin", "<thin", "", 0},
    {THOUGHTS_BEGUN, " never closed ", "never closed", "", 0},
    {THOUGHTS_BEGUN, "</think>at once", "", "at once", 0},
    {THOUGHTS_TAGGED, "<think>" CALL "</think>no call", CALL, "no call", 0},
    {THOUGHTS_TAGGED, "<think>a</think>\nI ask. \n" CALL, "a", "I ask.", 1},
    {THOUGHTS_BEGUN, "a </think>\n" CALL "\n" CALL, "a", "", 2},
};

static struct request *make_chat(enum request_thoughts thoughts)
{
    struct request_ask *ask;
    struct request *r = util_request_chat("f", 1, &ask);
    ask->tool_form = CHAT_TOOLS_TAGGED;
    ask->thoughts = thoughts;
    return r;
}

/* The text and calls of a message, or of a stream's deltas joined. */
struct said {
    struct strbuf reasoning, content;
    size_t n_calls;
};

static void add_said(struct said *all, const struct js_node *message)
{
    size_t n;
    const char *reasoning = js_string(js_get(message, "reasoning_content"), &n);
    if (reasoning != NULL) {
        CU_ASSERT(n > 0 && all->content.n == 0); /* thoughts come first */
        strbuf_add(&all->reasoning, reasoning, n);
    }
    const char *content = js_string(js_get(message, "content"), &n);
    if (content != NULL) strbuf_add(&all->content, content, n);
    all->n_calls += js_count(js_get(message, "tool_calls"));
}

static void check_said(struct said *all, const struct expected *e)
{
    const char *reasoning = all->reasoning.n > 0 ? all->reasoning.data : "";
    const char *content = all->content.n > 0 ? all->content.data : "";
    if (strcmp(reasoning, e->reasoning) != 0 || strcmp(content, e->content) != 0)
        printf("\n  %s: \"%s\" and \"%s\"", e->text, reasoning, content);
    CU_ASSERT_STRING_EQUAL(reasoning, e->reasoning);
    CU_ASSERT_STRING_EQUAL(content, e->content);
    CU_ASSERT_EQUAL(all->n_calls, e->n_calls);
    strbuf_fini(&all->reasoning);
    strbuf_fini(&all->content);
}

static void messages_are_divided(void)
{
    const struct request_rules rules = {.tokenizer = NULL};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct request *r = make_chat(texts[i].thoughts);
        struct said all = {.n_calls = 0};
        struct strbuf body;
        struct js_doc *doc = NULL;
        strbuf_init(&body);
        strbuf_puts(&r->text, texts[i].text);
        r->finish = REQUEST_STOP;
        struct status st = result_row_body(r, &rules, NULL, &body);
        if (!status_failed(&st)) st = js_parse(body.data, body.n, "body", &doc);
        CU_ASSERT_FALSE_FATAL(status_failed(&st));
        add_said(&all, js_get(js_at(js_get(js_root(doc), "choices"), 0), "message"));
        check_said(&all, &texts[i]);
        js_destroy(&doc);
        strbuf_fini(&body);
        request_destroy(&r);
    }
}

/* Joins the deltas of a stream's events. */
static void join(const struct strbuf *events, struct said *all)
{
    for (char *at = events->data, *next; at != NULL && *at != '\0'; at = next + 2) {
        struct js_doc *doc = NULL;
        next = strstr(at, "\n\n");
        CU_ASSERT_FATAL(next != NULL && strncmp(at, "data: ", 6) == 0);
        const struct status st = js_parse(at + 6, (size_t)(next - at) - 6, "event", &doc);
        CU_ASSERT_FALSE_FATAL(status_failed(&st));
        add_said(all, js_get(js_at(js_get(js_root(doc), "choices"), 0), "delta"));
        js_destroy(&doc);
    }
}

/* Checks a stream whose text grows by k bytes at a time. */
static void check_stream(const struct expected *e, size_t k)
{
    const struct request_rules rules = {.tokenizer = NULL};
    struct request *r = make_chat(e->thoughts);
    struct result_stream s = {.n_text = 0};
    struct said all = {.n_calls = 0};
    struct strbuf events;
    strbuf_init(&events);
    const size_t n = strlen(e->text);
    for (size_t at = 0; at <= n; at += k) {
        strbuf_add(&r->text, e->text + at, at + k < n ? k : n - at);
        if (at + k > n) r->finish = REQUEST_STOP;
        const struct status st = result_stream_write(&s, r, &rules, NULL, &events);
        CU_ASSERT_FALSE_FATAL(status_failed(&st));
    }
    CU_ASSERT(s.has_ended);
    join(&events, &all);
    check_said(&all, e);
    strbuf_fini(&events);
    request_destroy(&r);
}

static void streams_are_divided_alike(void)
{
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        for (size_t k = 1; k < 30; k++) check_stream(&texts[i], k);
}

/* Thoughts are streamed while they are made, all but blanks at the end and a possible beginning of
 * the closing tag. */
static void streams_do_not_wait_for_the_tag(void)
{
    struct request *r = make_chat(THOUGHTS_BEGUN);
    strbuf_puts(&r->text, "abc \n</th");
    const struct reasoning found = reasoning_of(r);
    CU_ASSERT(found.begin == 0 && found.end == 3 && found.content == r->text.n);
    request_destroy(&r);
}

/* The generation prompt of a template, the user's text, more fields of the body, the job's parser,
 * and where the thoughts of the answer begin. */
static const struct begun {
    const char *end, *content, *more;
    enum reasoning_parser parser;
    enum request_thoughts expected;
} prompts[] = {
    {"<think>\\n", "a", "", REASONING_THINK, THOUGHTS_BEGUN},
    {"<think>\\n", "a", "", REASONING_NONE, THOUGHTS_STAY},
    {"<think>\\n\\n</think>\\n\\n", "a", "", REASONING_THINK, THOUGHTS_TAGGED},
    {"", "a", "", REASONING_THINK, THOUGHTS_TAGGED},
    {"", "what is <think>", "", REASONING_THINK, THOUGHTS_TAGGED}, /* a user's tag is text */
    {"<think>", "</think>", "", REASONING_THINK, THOUGHTS_BEGUN},
    {"<think>", "a", ",\"add_generation_prompt\":false", REASONING_THINK, THOUGHTS_TAGGED},
    {"<think>", "a", ",\"guided_choice\":[\"b\"]", REASONING_THINK, THOUGHTS_TAGGED},
};

static void check_prompt(const struct begun *b, struct tokenizer *t)
{
    char template[256], line[512];
    struct request_rules rules = util_request_rules(t);
    struct chat *chat = NULL;
    snprintf(template, sizeof template,
             "{%% for m in messages %%}{{ m.content }}{%% endfor %%}"
             "{%% if add_generation_prompt %%}{{ '%s' }}{%% endif %%}",
             b->end);
    snprintf(line, sizeof line,
             "{\"method\":\"POST\",\"url\":\"/v1/chat/completions\",\"body\":{\"messages\":"
             "[{\"role\":\"user\",\"content\":\"%s\"}]%s}}",
             b->content, b->more);
    struct status st = chat_create(template, strlen(template), NULL, "template", &chat);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    CU_ASSERT_EQUAL(chat_has_thoughts(chat), strstr(b->end, "</think>") != NULL);
    rules.chat = chat;
    rules.max_model_len = 100;
    rules.defaults.reasoning = b->parser;
    st = guides_create(t, rules.vocab_size, &rules.guides);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    struct request *r = util_request_parse(&rules, line);
    CU_ASSERT_PTR_NULL(r->error.code);
    CU_ASSERT_EQUAL(r->ask->thoughts, b->expected);
    request_destroy(&r);
    guides_destroy(&rules.guides);
    chat_destroy(&chat);
}

static void prompts_begin_thoughts(void)
{
    struct tokenizer *t = util_byte_tokenizer();
    for (size_t i = 0; i < sizeof prompts / sizeof prompts[0]; i++) check_prompt(&prompts[i], t);
    tokenizer_destroy(&t);
}

void suite_reasoning(CU_pSuite suite);
void suite_reasoning(CU_pSuite suite)
{
    CU_add_test(suite, "messages are divided", messages_are_divided);
    CU_add_test(suite, "streams are divided alike", streams_are_divided_alike);
    CU_add_test(suite, "streams do not wait for the tag", streams_do_not_wait_for_the_tag);
    CU_add_test(suite, "prompts begin thoughts", prompts_begin_thoughts);
}

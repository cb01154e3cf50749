/* Request lines with messages: through the chat template, with content parts, or refused. */
#include "serve/request/request.h"
#include "util_serve.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <string.h>

/* The prompt is the text that the template makes of the messages; wrong messages are refused. */
static void messages_go_through_the_template(void)
{
    static const char template[] =
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}";
    static const char line[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}";
    static const char rendered[] = "<user>hi<assistant>";
    struct tokenizer *t = util_byte_tokenizer();
    struct chat *chat = NULL;
    CU_ASSERT_EQUAL_FATAL(chat_create(template, sizeof template - 1, NULL, "template", &chat).code,
                          STATUS_OK);
    struct request_rules rules = util_request_rules(t);
    rules.chat = chat;
    struct request *r = util_request_parse(&rules, line);
    CU_ASSERT_PTR_NULL(r->error.code);
    struct token_list want = {0};
    CU_ASSERT_EQUAL(tokenizer_encode(t, rendered, sizeof rendered - 1, 0, &want).code, STATUS_OK);
    CU_ASSERT_EQUAL(r->n_prompt, want.n);
    CU_ASSERT_EQUAL(memcmp(r->tokens, want.ids, want.n * sizeof *want.ids), 0);
    request_destroy(&r);

    static const char *const wrong[] = {
        "{\"messages\":\"hi\"}", "{\"messages\":[1]}",
        "{\"messages\":[],\"add_generation_prompt\":3}",
        "{\"method\":\"POST\",\"url\":\"/v1/chat/completions\",\"body\":{\"prompt\":\"a\"}}"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        r = util_request_parse(&rules, wrong[i]);
        CU_ASSERT_PTR_NOT_NULL(r->error.code);
        if (r->error.code != NULL) CU_ASSERT_STRING_EQUAL(r->error.code, "invalid_request");
        request_destroy(&r);
    }
    token_list_fini(&want);
    chat_destroy(&chat);
    tokenizer_destroy(&t);
}

/* Makes the request of one message with this content, using `template`. */
static struct request *converse(struct tokenizer *t, const char *template, const char *content)
{
    char line[512];
    struct chat *chat = NULL;
    CU_ASSERT_EQUAL_FATAL(chat_create(template, strlen(template), NULL, "template", &chat).code,
                          STATUS_OK);
    struct request_rules rules = util_request_rules(t);
    rules.chat = chat;
    rules.max_model_len = 200;
    snprintf(line, sizeof line,
             "{\"messages\":[{\"role\":\"user\",\"name\":\"x\",\"content\":%s}]}", content);
    struct request *r = util_request_parse(&rules, line);
    chat_destroy(&chat);
    return r;
}

/* Checks that the prompt's tokens, which are bytes, spell `text`. */
static void check_prompt(struct request **r, const char *text)
{
    CU_ASSERT_PTR_NULL((*r)->error.code);
    bool same = (*r)->n_prompt == strlen(text);
    for (size_t i = 0; same && i < (*r)->n_prompt; i++)
        same = (*r)->tokens[i] == (unsigned char)text[i];
    CU_ASSERT(same);
    request_destroy(r);
}

static void content_parts_are_text(void)
{
    static const char strings[] = "{% for m in messages %}{{ '<' + m.content + '>' }}{% endfor %}";
    static const char lists[] =
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}";
    static const char printed[] = "{% for m in messages %}{{ m.name }}{{ m.content }}{% endfor %}";
    static const char one[] = "[{\"type\":\"text\",\"text\":\"hi \\\"you\\\"\"}]";
    static const char two[] = "[{\"type\":\"text\",\"text\":\"a\"},\"b\"]";
    struct tokenizer *t = util_byte_tokenizer();
    struct request *r = converse(t, strings, one);
    check_prompt(&r, "<hi \"you\">");
    r = converse(t, strings, two);
    check_prompt(&r, "<a\nb>");
    r = converse(t, strings, "[]");
    check_prompt(&r, "<>");
    r = converse(t, printed, two);
    check_prompt(&r, "xa\nb");
    r = converse(t, lists, one);
    check_prompt(&r, "hi \"you\"");
    r = converse(t, lists,
                 "[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]");
    check_prompt(&r, "ab");

    r = converse(t, "{{ messages[1].content.b }}",
                 "\"a\"},{\"role\":\"ipython\",\"content\":{\"b\":\"tool\"}");
    check_prompt(&r, "tool");

    static const struct {
        const char *content, *code, *says;
    } wrong[] = {
        {"[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image_url\",\"image_url\":{}}]",
         "unsupported", "messages[0].content[1]: image_url is not supported"},
        {"[{\"type\":\"input_audio\"}]", "unsupported", "input_audio"},
        {"[{\"text\":\"a\"}]", "invalid_request",
         "messages[0].content[0]: expected an object with"},
        {"[7]", "invalid_request", "found an integer"},
        {"[{\"type\":\"text\",\"text\":7}]", "invalid_request",
         "messages[0].content[0].text: expected a string, found an integer"},
        {"7", "invalid_request",
         "messages[0].content: expected a string or a list of parts, found an integer"},
        {"true", "invalid_request", "messages[0].content: expected a string or"},
        {"{\"a\":1}", "invalid_request", "messages[0].content: expected a string or"},
        {"\"a\"},{\"content\":\"b\"", "invalid_request",
         "messages[1].role: expected a string, found null"},
        {"\"a\"},{\"role\":7", "invalid_request",
         "messages[1].role: expected a string, found an integer"},
    };
    for (size_t i = 0; i < 2 * sizeof wrong / sizeof *wrong; i++) {
        r = converse(t, i % 2 == 0 ? strings : lists, wrong[i / 2].content);
        CU_ASSERT_PTR_NOT_NULL_FATAL(r->error.code);
        CU_ASSERT_STRING_EQUAL(r->error.code, wrong[i / 2].code);
        CU_ASSERT_PTR_NOT_NULL(strstr(r->error.message, wrong[i / 2].says));
        request_destroy(&r);
    }
    tokenizer_destroy(&t);
}

static void no_message_is_refused(void)
{
    static const char template[] = "{{ 'nothing' }}";
    struct tokenizer *t = util_byte_tokenizer();
    struct chat *chat = NULL;
    CU_ASSERT_EQUAL_FATAL(chat_create(template, strlen(template), NULL, "template", &chat).code,
                          STATUS_OK);
    struct request_rules rules = util_request_rules(t);
    rules.chat = chat;
    struct request *r = util_request_parse(&rules, "{\"messages\":[]}");
    CU_ASSERT_PTR_NOT_NULL_FATAL(r->error.code);
    CU_ASSERT_STRING_EQUAL(r->error.code, "invalid_request");
    CU_ASSERT_PTR_NOT_NULL(strstr(r->error.message, "messages: expected at least one message"));
    request_destroy(&r);
    chat_destroy(&chat);
    tokenizer_destroy(&t);
}

void suite_request_messages(CU_pSuite suite);
void suite_request_messages(CU_pSuite suite)
{
    CU_add_test(suite, "messages go through the template", messages_go_through_the_template);
    CU_add_test(suite, "content parts are text", content_parts_are_text);
    CU_add_test(suite, "no message is refused", no_message_is_refused);
}

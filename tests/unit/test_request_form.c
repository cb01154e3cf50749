/* Lines of other programs: a member is the prompt (--input-field), or a template makes the prompt
 * from the line (--prompt-template). */
#include "serve/request/request.h"
#include "util_serve.h"

#include <CUnit/CUnit.h>
#include <string.h>

enum { END_ID = 256 };

/* A line, and the text of its request's prompt, with the end token as '$', or a part of the error.
 */
struct form_line {
    const char *line, *prompt, *error;
};

static void check(const struct request_rules *rules, const struct form_line *l)
{
    struct request *r = NULL;
    char text[64] = "";
    CU_ASSERT_EQUAL_FATAL(request_create(rules, 1, l->line, strlen(l->line), &r).code, STATUS_OK);
    for (size_t i = 0; i < r->n_prompt && i + 1 < sizeof text; i++)
        text[i] = r->tokens[i] == END_ID ? '$' : (char)r->tokens[i];
    if (l->error == NULL) {
        CU_ASSERT_PTR_NULL(r->error.code);
        CU_ASSERT_STRING_EQUAL(text, l->prompt);
    } else {
        CU_ASSERT_PTR_NOT_NULL_FATAL(r->error.message);
        CU_ASSERT_PTR_NOT_NULL(strstr(r->error.message, l->error));
    }
    request_destroy(&r);
}

static void check_all(const struct request_form *form, const struct form_line *lines, size_t n)
{
    struct tokenizer *t = util_byte_tokenizer();
    struct request_rules rules = {
        .form = form, .tokenizer = t, .vocab_size = 257, .max_model_len = 60};
    request_defaults_init(&rules.defaults);
    for (size_t i = 0; i < n; i++) check(&rules, &lines[i]);
    tokenizer_destroy(&t);
}

static void a_member_is_the_prompt(void)
{
    static const struct form_line lines[] = {
        {"{\"text\":\"some text\"}", "some text", NULL},
        {"{\"text\":\"a<|end|>\",\"max_tokens\":3}", "a$", NULL}, /* as in a "prompt" */
        {"{\"text\":\"a\",\"prompt\":7,\"messages\":\"no\",\"url\":\"x\",\"body\":1,\"suffix\":"
         "\"s\"}",
         "a", NULL},
        {"{\"text\":\"a\",\"adapter\":\"USB-C\"}", "a", NULL}, /* ignored: none is loaded */
        {"{\"text\":\"a\",\"max_tokens\":0}", NULL, "max_tokens: expected 1 to"},
        {"{\"prompt\":\"a\"}", NULL,
         "text: expected a string as the prompt (--input-field), found no such field"},
        {"{\"text\":null}", NULL,
         "text: expected a string as the prompt (--input-field), found null"},
        {"{\"text\":[\"a\"]}", NULL, "found a list"},
        {"{\"text\":\"\"}", NULL, "no tokens"},
        {"\"text\"", NULL, "expected a JSON object, found a string"},
        {"{\"text\":\"a\",\"custom_id\":7}", NULL, "custom_id: expected a string"},
    };
    const struct request_form form = {.field = "text"};
    check_all(&form, lines, sizeof lines / sizeof lines[0]);
}

static void a_template_makes_the_prompt(void)
{
    static const char source[] = "Q: {{ q }}{% if hint %} ({{ hint.text }}){% endif %}\n\n"
                                 "{{ line['my id'] | default('-') }}<|end|>\n";
    static const struct form_line lines[] = {
        {"{\"q\":\"why\",\"my id\":4}", "Q: why\n4$", NULL},
        {"{\"q\":7,\"hint\":{\"text\":\"so\"},\"prompt\":[]}", "Q: 7 (so)\n-$", NULL},
        {"{\"q\":\"<|end|>\"}", "Q: <|end|>\n-$", NULL}, /* a line's text gives no special token */
        {"{\"question\":\"why\"}", NULL, "'q' is undefined, and is printed"},
        {"{\"q\":null}", NULL, "'q' is undefined, and is printed"},
        {"{\"q\":\"a\",\"hint\":{\"txt\":1}}", NULL, "'text' is undefined, and is printed"},
        {"{\"q\":18446744073709551616}", NULL, "expected none beside a prompt template"},
        {"{\"q\":\"why\",\"seed\":\"x\"}", NULL, "seed: expected an integer"},
    };
    struct chat *made_by = NULL;
    const struct status st = chat_create(source, sizeof source - 1, NULL, "form.jinja", &made_by);
    CU_ASSERT_EQUAL_FATAL(st.code, STATUS_OK);
    const struct request_form form = {.made_by = made_by};
    check_all(&form, lines, sizeof lines / sizeof lines[0]);
    chat_destroy(&made_by);
}

void suite_request_form(CU_pSuite suite);
void suite_request_form(CU_pSuite suite)
{
    CU_add_test(suite, "a member is the prompt", a_member_is_the_prompt);
    CU_add_test(suite, "a template makes the prompt", a_template_makes_the_prompt);
}

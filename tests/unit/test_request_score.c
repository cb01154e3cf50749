/* Lines to be scored: which tokens of a context with a continuation, of a text and of a prompt get
 * log-probabilities. Also lists of prompts. */
#include "serve/request/request_choice.h"
#include "util_serve.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <string.h>

/* Parses a line for scoring with a context of 8 tokens. The prefix token is <|end|>. */
static struct request *parse(struct tokenizer *t, const char *line)
{
    struct request_rules rules = util_request_rules(t);
    rules.score = rules.takes_pairs = true;
    rules.max_model_len = 8;
    rules.prefix_id = FAKE_END_ID;
    return util_request_parse(&rules, line);
}

/* Compares the tokens of a line's prompts with `expected`: characters, "^" for <|end|> (the prefix
 * token unless the line names another), "|" before the first token that gets a log-probability, and
 * blanks between prompts. */
static void check_division(const char *line, const char *expected)
{
    struct tokenizer *t = util_byte_tokenizer();
    struct request *r = parse(t, line);
    char found[256] = "";
    size_t n = 0, at = 0;
    CU_ASSERT_PTR_NULL_FATAL(r->error.code);
    for (int32_t k = 0; k < r->ask->n_prompts; k++) {
        const size_t begin = at, end = r->prompts != NULL ? r->prompts[k].end : r->n_prompt;
        const size_t from =
            begin + (r->prompts != NULL ? r->prompts[k].score_from : r->logprobs.score_from);
        if (k > 0) found[n++] = ' ';
        for (; at < end; at++) {
            if (at == from) found[n++] = '|';
            found[n++] = (char)(r->tokens[at] == FAKE_END_ID ? '^' : r->tokens[at]);
        }
    }
    found[n] = '\0';
    CU_ASSERT_STRING_EQUAL(found, expected);
    if (strcmp(found, expected) != 0)
        printf("\n  %s\n  expected %s, found %s", line, expected, found);
    request_destroy(&r);
    tokenizer_destroy(&t);
}

static void check_error(const char *line, const char *expected)
{
    struct tokenizer *t = util_byte_tokenizer();
    struct request *r = parse(t, line);
    CU_ASSERT_PTR_NOT_NULL_FATAL(r->error.message);
    CU_ASSERT_PTR_NOT_NULL(strstr(r->error.message, expected));
    if (strstr(r->error.message, expected) == NULL) printf("\n  found %s", r->error.message);
    request_destroy(&r);
    tokenizer_destroy(&t);
}

static void blanks_move_to_the_continuation(void)
{
    check_division("{\"context\":\"ab\",\"continuation\":\"cd\"}", "ab|cd");
    check_division("{\"context\":\"ab_\",\"continuation\":\"cd\"}", "ab_|cd");
    check_division("{\"context\":\"ab \\n\",\"continuation\":\"cd\"}", "ab| \ncd");
    check_division("{\"context\":\"ab\\u3000\\u00a0\",\"continuation\":\"c\"}",
                   "ab|\xE3\x80\x80\xC2\xA0"
                   "c");
    /* U+2009 is white space, U+200B is not */
    check_division("{\"context\":\"a\\u2009\",\"continuation\":\"c\"}", "a|\xE2\x80\x89"
                                                                        "c");
    check_division("{\"context\":\"a\\u200b\",\"continuation\":\"c\"}", "a\xE2\x80\x8B|c");
}

static void continuations_without_a_context_follow_the_prefix_token(void)
{
    check_division("{\"context\":\"\",\"continuation\":\"cd\"}", "^|cd");
    check_division("{\"context\":\"\",\"continuation\":\"<|end|>cd\"}", "^|cd");
    check_division("{\"context\":\"\",\"continuation\":\"cd\",\"prefix_token_id\":120}", "x|cd");
    check_division("{\"context\":[],\"continuation\":[99,100]}", "^|cd");
    check_division("{\"context\":[97],\"continuation\":[99,100]}", "a|cd");
}

static void long_contexts_lose_their_beginning(void)
{
    check_division("{\"context\":\"0123456\",\"continuation\":\"a\"}", "0123456|a");
    check_division("{\"context\":\"0123456789\",\"continuation\":\"abc\"}", "56789|abc");
    check_division("{\"context\":\"0123456789\",\"continuation\":\"abcdefg\"}", "9|abcdefg");
    check_error("{\"context\":\"0\",\"continuation\":\"abcdefgh\"}",
                "it has 8 tokens, expected at most 7");
}

static void texts_become_windows(void)
{
    check_division("{\"text\":\"abc\"}", "^|abc");
    check_division("{\"text\":\"0123456\"}", "^|0123456");
    check_division("{\"text\":\"0123456789\"}", "^|0123456 23456|789");
    check_division("{\"text\":\"0123456789abcdefgh\"}", "^|0123456 6|789abcd abcd|efgh");
    check_division("{\"text\":[97,98]}", "^|ab");
}

static void wrong_lines_become_errors(void)
{
    check_error("{\"context\":\"a\"}", "expected two strings or two lists");
    check_error("{\"context\":\"a\",\"continuation\":[1]}", "expected two strings or two lists");
    check_error("{\"context\":\"a\",\"continuation\":\"\"}", "no tokens of its own");
    check_error("{\"context\":\"a\",\"continuation\":\"b\",\"text\":\"c\"}", "found both");
    check_error("{\"text\":\"\"}", "it has no tokens");
    check_error("{\"texts\":\"a\"}", "expected one of context with continuation, text, prompt,");
    check_error("{\"text\":[1,-2]}", "text[1]: expected a token id of 0 to");
    check_error("{\"text\":7}", "text: expected a string or a list of token ids, found an integer");
}

/* Beside a prompt, the fields "text" and "context" have no effect. */
static void prompts_are_still_scored(void)
{
    check_division("{\"prompt\":\"abc\",\"text\":\"x\",\"context\":\"y\"}", "a|bc");
}

static void each_prompt_has_n_answers(void)
{
    struct tokenizer *t = util_byte_tokenizer();
    const struct request_rules rules = util_request_rules(t);
    struct request *r = util_request_parse(
        &rules, "{\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":[\"ab\","
                "\"cde\"],\"n\":2,\"echo\":true,\"logprobs\":1,\"max_tokens\":3}}");
    CU_ASSERT_PTR_NULL_FATAL(r->error.code);
    CU_ASSERT_EQUAL(r->ask->n_choices, 4);
    CU_ASSERT_EQUAL(r->n_prompt, 5);
    r->arrived_ns = 7;
    for (uint32_t i = 0; i < 4; i++) {
        struct request *c = NULL;
        const struct status st = request_create_choice(r, i, &c);
        CU_ASSERT_FALSE_FATAL(status_failed(&st));
        CU_ASSERT_EQUAL(c->n_prompt, i < 2 ? 2 : 3);
        CU_ASSERT_EQUAL(c->arrived_ns, 7);
        CU_ASSERT_EQUAL(c->tokens[0], i < 2 ? 'a' : 'c');
        CU_ASSERT_EQUAL(c->ask->n_prompt_logprobs, i % 2 == 0 ? 1 : -1);
        CU_ASSERT_EQUAL(c->logprobs.scores != NULL, i % 2 == 0);
        request_destroy(&c);
    }
    request_destroy(&r);
    tokenizer_destroy(&t);
}

void suite_request_score(CU_pSuite suite);
void suite_request_score(CU_pSuite suite)
{
    CU_add_test(suite, "blanks move to the continuation", blanks_move_to_the_continuation);
    CU_add_test(suite, "continuations without a context follow the prefix token",
                continuations_without_a_context_follow_the_prefix_token);
    CU_add_test(suite, "long contexts lose their beginning", long_contexts_lose_their_beginning);
    CU_add_test(suite, "texts become windows", texts_become_windows);
    CU_add_test(suite, "wrong lines become errors", wrong_lines_become_errors);
    CU_add_test(suite, "prompts are still scored", prompts_are_still_scored);
    CU_add_test(suite, "each prompt has n answers", each_prompt_has_n_answers);
}

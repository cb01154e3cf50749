/* Result rows of requests: texts and where they stop, log-probabilities, and batch results. */
#include "base/file.h"
#include "base/mem.h"
#include "serve/output/result_row.h"
#include "util_serve.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Gives the request the bytes of `sampled` as sampled tokens, and the end token if `end`. With
 * `score`, scores the prompt instead. Compares the row. */
static void check_row(const char *line, const char *sampled, bool end, bool score,
                      const char *expected)
{
    struct tokenizer *t = util_byte_tokenizer();
    struct request_rules rules = util_request_rules(t);
    rules.score = score;
    struct request *r = util_request_parse(&rules, line);
    struct status st = status_ok();
    for (const char *c = sampled; *c != '\0'; c++) {
        CU_ASSERT_EQUAL_FATAL(r->finish, REQUEST_UNFINISHED);
        st = request_take_token(r, &rules, (unsigned char)*c);
        CU_ASSERT_FALSE_FATAL(status_failed(&st));
    }
    if (end) st = request_take_token(r, &rules, FAKE_END_ID);
    if (score && r->error.code == NULL) {
        for (size_t i = 1; i < r->n_prompt; i++) r->logprobs.scores[i] = -0.5f / (float)i;
        r->finish = REQUEST_SCORED;
    }
    CU_ASSERT(r->error.code != NULL || r->finish != REQUEST_UNFINISHED);
    struct strbuf row;
    strbuf_init(&row);
    st = result_row_write(r, &rules, NULL, &row);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    CU_ASSERT_STRING_EQUAL(row.data, expected);
    if (strcmp(row.data, expected) != 0) printf("\n  expected %s  found    %s", expected, row.data);
    strbuf_fini(&row);
    request_destroy(&r);
    tokenizer_destroy(&t);
}

static void rows_are_those_of_the_contract(void)
{
    check_row(
        "{\"custom_id\":\"a\\n\",\"prompt\":\"hi\"}", "x\"y", true, false,
        "{\"custom_id\":\"a\\n\",\"text\":\"x\\\"y\",\"token_ids\":[120,34,121,256],"
        "\"finish_reason\":\"stop\",\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":4}}\n");
    check_row("{\"prompt\":\"hi\",\"max_tokens\":2}", "xy", false, false,
              "{\"custom_id\":\"12\",\"text\":\"xy\",\"token_ids\":[120,121],\"finish_reason\":"
              "\"length\",\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":2}}\n");
    check_row(
        "{\"prompt\":\"0123456789abcdefg\"}", "xyz", false, false,
        "{\"custom_id\":\"12\",\"text\":\"xyz\",\"token_ids\":[120,121,122],\"finish_reason\":"
        "\"length\",\"usage\":{\"prompt_tokens\":17,\"completion_tokens\":3}}\n");
    check_row("{\"prompt\":\"\"}", "", false, false,
              "{\"custom_id\":\"12\",\"error\":{\"code\":\"invalid_request\",\"message\":\"the "
              "prompt has no tokens, expected at least one\"}}\n");
    /* the answer ends inside a character */
    check_row(
        "{\"prompt\":\"hi\",\"max_tokens\":2}", "x\xE2", false, false,
        "{\"custom_id\":\"12\",\"text\":\"x\xEF\xBF\xBD\",\"token_ids\":[120,226],"
        "\"finish_reason\":\"length\",\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":2}}"
        "\n");
}

static void stop_strings_end_the_text_before_them(void)
{
    check_row(
        "{\"prompt\":\"hi\",\"stop\":[\"END\",\"zz\"]}", "xENyEND", false, false,
        "{\"custom_id\":\"12\",\"text\":\"xENy\",\"token_ids\":[120,69,78,121,69,78,68],"
        "\"finish_reason\":\"stop\",\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":7}}\n");
    /* "EN" is held back, because it may begin the stop string, and is output at the end */
    check_row("{\"prompt\":\"hi\",\"stop\":\"END\",\"max_tokens\":3}", "xEN", false, false,
              "{\"custom_id\":\"12\",\"text\":\"xEN\",\"token_ids\":[120,69,78],\"finish_reason\":"
              "\"length\",\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":3}}\n");
    check_row(
        "{\"prompt\":\"hi\",\"stop\":\"END\"}", "xEN", true, false,
        "{\"custom_id\":\"12\",\"text\":\"xEN\",\"token_ids\":[120,69,78,256],"
        "\"finish_reason\":\"stop\",\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":4}}\n");
}

/* Gives the request tokens until it ends. Checks how many it took, and its text. */
static void check_stop(struct tokenizer *t, const char *line, const char *const *tokens,
                       size_t n_taken, const char *text)
{
    struct request_rules rules = util_request_rules(t);
    rules.vocab_size = tokenizer_vocab_size(t);
    struct request *r = util_request_parse(&rules, line);
    size_t i = 0;
    while (tokens[i] != NULL && r->finish == REQUEST_UNFINISHED) {
        const int32_t id = tokenizer_token_id(t, tokens[i], strlen(tokens[i]));
        CU_ASSERT_FATAL(id >= 0);
        const struct status st = request_take_token(r, &rules, id);
        CU_ASSERT_FALSE_FATAL(status_failed(&st));
        i++;
    }
    CU_ASSERT_EQUAL(i, n_taken);
    CU_ASSERT_NOT_EQUAL(r->finish, REQUEST_UNFINISHED);
    CU_ASSERT_EQUAL_FATAL(r->text.n, strlen(text));
    CU_ASSERT(r->text.n == 0 || memcmp(r->text.data, text, r->text.n) == 0);
    request_destroy(&r);
}

/* Byte tokens become text only when the whole run of them is known. A stop string within them must
 * still end the request at its own last token. */
static void stop_strings_in_bytes_end_it_at_once(void)
{
    static const char *const LINES[] = {"a", "<0x0A>", "<0x0A>", "b", "a", NULL};
    static const char *const ACCENT[] = {"a", "<0x0A>", "<0xC3>", "<0xA9>", "b", NULL};
    static const char *const BROKEN[] = {"a", "<0xC3>", "<0xA9>", "<0xA9>", NULL};
    char *json = NULL;
    size_t n;
    struct tokenizer *t = NULL;
    struct status st = file_read(TEST_DATA_DIR "/golden/tokenizer/llama2.json", 1 << 24, &json, &n);
    if (!status_failed(&st)) st = tokenizer_create(json, n, "llama2.json", &t);
    mem_free(&json);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    check_stop(t, "{\"prompt\":\"x\",\"stop\":\"\\n\"}", LINES, 2, "a");
    check_stop(t, "{\"prompt\":\"x\",\"stop\":\"\\n\\n\"}", LINES, 3, "a");
    check_stop(t, "{\"prompt\":\"x\",\"stop\":\"\\n\\nb\"}", LINES, 4, "a");
    check_stop(t, "{\"prompt\":\"x\",\"stop\":\"a\\n\xC3\xA9\"}", ACCENT, 4, "");
    check_stop(t, "{\"prompt\":\"x\",\"stop\":\"z\",\"max_tokens\":2}", LINES, 2, "a\n");
    check_stop(t, "{\"prompt\":\"x\",\"stop\":\"z\",\"max_tokens\":4}", BROKEN, 4,
               "a\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
    tokenizer_destroy(&t);
}

static void dropped_choices_stand_in_the_row(void)
{
    const struct request_rules rules = util_request_rules(NULL);
    struct request *r = util_request_parse(&rules, "{\"prompt_token_ids\":[1],\"max_tokens\":1}");
    struct status st = request_take_token(r, &rules, 65);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    r->n_dropped = 3;
    struct strbuf row;
    strbuf_init(&row);
    st = result_row_write(r, &rules, NULL, &row);
    CU_ASSERT_FALSE(status_failed(&st));
    CU_ASSERT_PTR_NOT_NULL(strstr(row.data, "\"completion_tokens\":1},\"dropped\":3}\n"));
    strbuf_fini(&row);
    request_destroy(&r);
}

static void batch_rows_are_batch_results(void)
{
    check_row(
        "{\"custom_id\":\"b\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{"
        "\"model\":\"m\",\"prompt\":\"hi\",\"max_tokens\":2}}",
        "xy", false, false,
        "{\"id\":\"batch_req_575a0b1c44d8843f\",\"custom_id\":\"b\",\"response\":{\"status_code\":"
        "200,"
        "\"request_id\":\"575a0b1c44d8843f\",\"body\":{\"id\":\"cmpl-575a0b1c44d8843f\","
        "\"object\":\"text_completion\",\"created\":0,\"model\":\"m\",\"choices\":[{\"index\":0,"
        "\"text\":\"xy\",\"logprobs\":null,\"finish_reason\":\"length\"}],\"usage\":{\"prompt_"
        "tokens\":2,"
        "\"completion_tokens\":2,\"total_tokens\":4}}},\"error\":null}\n");
    check_row("{\"custom_id\":\"b\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{"
              "\"prompt\":\"\"}}",
              "", false, false,
              "{\"id\":\"batch_req_575a0b1c44d8843f\",\"custom_id\":\"b\",\"response\":null,"
              "\"error\":{\"code\":\"invalid_request\",\"message\":\"the prompt has no tokens,"
              " expected at least one\"}}\n");
}

/* Samples two tokens, with the log-probabilities of two likely tokens each, and checks that the row
 * contains `expected`. The second token is not a whole character. */
static void check_logprobs(const char *line, const char *expected)
{
    struct tokenizer *t = util_byte_tokenizer();
    const struct request_rules rules = util_request_rules(t);
    const struct plan_top tops[2][2] = {{{120, -0.5f}, {34, -1.5f}}, {{33, -0.125f}, {256, -3}}};
    struct request *r = util_request_parse(&rules, line);
    CU_ASSERT_PTR_NULL_FATAL(r->error.code);
    struct status st = request_take_logprob(r, -0.5f, tops[0]);
    if (!status_failed(&st)) st = request_take_token(r, &rules, 'x');
    if (!status_failed(&st)) st = request_take_logprob(r, -0.1f, tops[1]);
    if (!status_failed(&st)) st = request_take_token(r, &rules, 0xE2);
    for (size_t i = 1; r->logprobs.scores != NULL && i < r->n_prompt; i++)
        r->logprobs.scores[i] = -4;
    struct strbuf row;
    strbuf_init(&row);
    if (!status_failed(&st)) st = result_row_write(r, &rules, NULL, &row);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    CU_ASSERT_PTR_NOT_NULL(strstr(row.data, expected));
    if (strstr(row.data, expected) == NULL)
        printf("\n  expected %s\n  found    %s", expected, row.data);
    strbuf_fini(&row);
    request_destroy(&r);
    tokenizer_destroy(&t);
}

static void log_probabilities_stand_in_rows(void)
{
    check_logprobs(
        "{\"prompt\":\"hi\",\"max_tokens\":2,\"logprobs\":2,\"prompt_logprobs\":0}",
        "\"finish_reason\":\"length\",\"logprobs\":[{\"id\":120,\"logprob\":-0.5,\"top\":"
        "[[120,-0.5],[34,-1.5]]},{\"id\":226,\"logprob\":-0.1,\"top\":[[33,-0.125],"
        "[256,-3]]}],\"prompt_logprobs\":[null,{\"id\":105,\"logprob\":-4,\"top\":[]}],"
        "\"usage\"");
    check_logprobs(
        "{\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"hi\","
        "\"max_tokens\":2,\"logprobs\":2}}",
        "\"logprobs\":{\"tokens\":[\"x\",\"bytes:\\\\xe2\"],\"token_logprobs\":[-0.5,"
        "-0.1],\"top_logprobs\":[{\"x\":-0.5,\"\\\"\":-1.5},{\"!\":-0.125,\"<|end|>\":-3,"
        "\"bytes:\\\\xe2\":-0.1}],\"text_offset\":[0,1]}");
    check_logprobs("{\"prompt\":\"hi\",\"max_tokens\":2,\"logprobs\":true,\"top_logprobs\":2}",
                   "\"logprobs\":[{\"id\":120,");
}

static void an_echo_begins_with_the_prompt(void)
{
    check_logprobs(
        "{\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"hi\","
        "\"max_tokens\":2,\"logprobs\":0,\"echo\":true}}",
        "\"text\":\"hix\xEF\xBF\xBD\",\"logprobs\":{\"tokens\":[\"h\",\"i\",\"x\","
        "\"bytes:\\\\xe2\"],\"token_logprobs\":[null,-4,-0.5,-0.1],\"top_logprobs\":null,"
        "\"text_offset\":[0,1,2,3]},\"finish_reason\":\"length\"}],\"usage\"");
    /* without log-probabilities; token ids are echoed as their text */
    check_row("{\"custom_id\":\"b\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{"
              "\"prompt\":[[104,105]],\"max_tokens\":1,\"echo\":true}}",
              "y", false, false,
              "{\"id\":\"batch_req_575a0b1c44d8843f\",\"custom_id\":\"b\",\"response\":{"
              "\"status_code\":200,\"request_id\":\"575a0b1c44d8843f\",\"body\":{\"id\":"
              "\"cmpl-575a0b1c44d8843f\",\"object\":\"text_completion\",\"created\":0,\"model\":"
              "\"\",\"choices\":[{\"index\":0,\"text\":\"hiy\",\"logprobs\":null,"
              "\"finish_reason\":\"length\"}],\"usage\":{\"prompt_tokens\":2,"
              "\"completion_tokens\":1,\"total_tokens\":3}}},\"error\":null}\n");
}

static void score_rows_start_with_null(void)
{
    check_row("{\"prompt\":\"abc\"}", "", false, true,
              "{\"custom_id\":\"12\",\"token_ids\":[97,98,99],\"logprobs\":[null,-0.5,-0.25],"
              "\"sum_logprob\":-0.75}\n");
    check_row("{\"prompt\":\"a\"}", "", false, true,
              "{\"custom_id\":\"12\",\"token_ids\":[97],\"logprobs\":[null],\"sum_logprob\":0}\n");
    /* A full context can be scored; one more token cannot. */
    check_row("{\"prompt\":\"0123456789abcdefghijk\"}", "", false, true,
              "{\"custom_id\":\"12\",\"error\":{\"code\":\"context_length_exceeded\",\"message\":"
              "\"the prompt has 21 tokens, expected at most 20: the context holds 20\"}}\n");
}

void suite_request_row(CU_pSuite suite);
void suite_request_row(CU_pSuite suite)
{
    CU_add_test(suite, "rows are those of the contract", rows_are_those_of_the_contract);
    CU_add_test(suite, "stop strings in bytes end it at once",
                stop_strings_in_bytes_end_it_at_once);
    CU_add_test(suite, "stop strings end the text before them",
                stop_strings_end_the_text_before_them);
    CU_add_test(suite, "dropped choices stand in the row", dropped_choices_stand_in_the_row);
    CU_add_test(suite, "batch rows are batch results", batch_rows_are_batch_results);
    CU_add_test(suite, "log-probabilities stand in rows", log_probabilities_stand_in_rows);
    CU_add_test(suite, "an echo begins with the prompt", an_echo_begins_with_the_prompt);
    CU_add_test(suite, "score rows start with null", score_rows_start_with_null);
}

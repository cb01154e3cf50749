/* Request lines: what they set, and a sentence for each way of being wrong. */
#include "serve/request.h"

#include "base/file.h"
#include "base/mem.h"
#include "serve/id_set.h"
#include "serve/result_row.h"
#include "util_serve.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const int32_t end_ids[] = {FAKE_END_ID};

static struct request_rules make_rules(struct tokenizer *t)
{
    struct request_rules rules = {.tokenizer = t,
                                  .end_ids = end_ids,
                                  .n_end_ids = 1,
                                  .vocab_size = FAKE_VOCAB,
                                  .max_model_len = 20};
    request_defaults_init(&rules.defaults);
    return rules;
}

static struct request *parse(const struct request_rules *rules, const char *line)
{
    struct request *r = NULL;
    const struct status st = request_create(rules, 12, line, strlen(line), &r);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    return r;
}

/* A line, its row's code, and what its sentence says. */
struct bad_line {
    const char *line, *code, *says;
};

static const struct bad_line bad_lines[] = {
    {"", "invalid_json", "blank"},
    {" \t ", "invalid_json", "blank"},
    {"{\"prompt\":\"a\"", "invalid_json", "JSON"},
    {"{\"prompt\":\"a\"} {}", "invalid_json", "JSON"},
    {"{\"prompt\":\"\xFF\"}", "invalid_json", "decode byte 0x"},
    {"{\"prompt\":\"\xC3\"}", "invalid_json", "decode byte 0x"},
    {"{\"prompt\":\"\\ud800\"}", "invalid_json", "JSON"},
    {"{\"prompt\":\"a\",\"prompt\":\"b\"}", "invalid_json", "duplicate"},
    {"[1]", "invalid_json", "found a list"},
    {"7", "invalid_json", "found an integer"},
    {"{}", "invalid_request", "found 0 of them"},
    {"{\"prompt\":\"a\",\"prompt_token_ids\":[1]}", "invalid_request", "found 2 of them"},
    {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", "unsupported", "chat template"},
    {"{\"prompt\":\"\"}", "invalid_request", "no tokens"},
    {"{\"prompt\":[]}", "invalid_request", "no tokens"},
    {"{\"prompt\":7}", "invalid_request", "prompt: expected one string"},
    {"{\"prompt\":[\"a\",\"b\"]}", "invalid_request", "several strings"},
    {"{\"prompt\":\"aaaaaaaaaaaaaaaaaaaa\"}", "context_length_exceeded", "20 tokens"},
    {"{\"prompt_token_ids\":[257]}", "invalid_request", "[0]: expected a token id of 0 to 256"},
    {"{\"prompt_token_ids\":[1,-1]}", "invalid_request", "prompt_token_ids[1]"},
    {"{\"prompt_token_ids\":[1,1.5]}", "invalid_request", "found a real number"},
    {"{\"prompt_token_ids\":\"a\"}", "invalid_request", "expected a list, found a string"},
    {"{\"custom_id\":7,\"prompt\":\"a\"}", "invalid_request", "custom_id: expected a string"},
    {"{\"prompt\":\"a\",\"n\":1000000000}", "invalid_request", "n: expected 1 to 128"},
    {"{\"prompt\":\"a\",\"n\":0}", "invalid_request", "n: expected 1 to 128"},
    {"{\"prompt\":\"a\",\"max_tokens\":-1}", "invalid_request", "max_tokens: expected 1 to"},
    {"{\"prompt\":\"a\",\"max_tokens\":0}", "invalid_request", "max_tokens"},
    {"{\"prompt\":\"a\",\"max_tokens\":9223372036854775808}", "invalid_json", "too big"},
    {"{\"prompt\":\"a\",\"max_tokens\":\"3\"}", "invalid_request", "found a string"},
    {"{\"prompt\":\"a\",\"max_tokens\":true}", "invalid_request", "found a boolean"},
    {"{\"prompt\":\"a\",\"temperature\":NaN}", "invalid_json", "JSON"},
    {"{\"prompt\":\"a\",\"temperature\":1e999}", "invalid_json", "JSON"},
    {"{\"prompt\":\"a\",\"temperature\":-0.5}", "invalid_request", "temperature: expected 0 to"},
    {"{\"prompt\":\"a\",\"top_p\":0}", "invalid_request", "top_p: expected above 0"},
    {"{\"prompt\":\"a\",\"top_p\":1.01}", "invalid_request", "top_p"},
    {"{\"prompt\":\"a\",\"min_p\":-1}", "invalid_request", "min_p: expected 0 to 1"},
    {"{\"prompt\":\"a\",\"top_k\":-2}", "invalid_request", "top_k: expected -1"},
    {"{\"prompt\":\"a\",\"priority\":\"high\"}", "invalid_request",
     "priority: expected an integer, found a string"},
    {"{\"prompt\":\"a\",\"priority\":0.5}", "invalid_request", "priority: expected an integer"},
    {"{\"prompt\":\"a\",\"priority\":2147483648}", "invalid_request",
     "priority: expected -2147483648 to 2147483647"},
    {"{\"prompt\":\"a\",\"seed\":1.5}", "invalid_request", "seed: expected an integer"},
    {"{\"prompt\":\"a\",\"stop\":\"\"}", "invalid_request", "stop: expected strings of 1"},
    {"{\"prompt\":\"a\",\"stop\":[\"b\",7]}", "invalid_request", "found an integer"},
    {"{\"prompt\":\"a\",\"stop\":{}}", "invalid_request", "found an object"},
    {"{\"prompt\":\"a\",\"logprobs\":21}", "invalid_request", "logprobs: expected 0 to 20"},
    {"{\"prompt\":\"a\",\"logprobs\":\"2\"}", "invalid_request", "logprobs: expected an integer"},
    {"{\"prompt\":\"a\",\"top_logprobs\":2}", "invalid_request", "top_logprobs: expected logprobs"},
    {"{\"prompt\":\"a\",\"prompt_logprobs\":-1}", "invalid_request", "prompt_logprobs: expected 0"},
    {"{\"prompt\":\"a\",\"frequency_penalty\":2.1}", "invalid_request",
     "frequency_penalty: expected -2 to 2"},
    {"{\"prompt\":\"a\",\"presence_penalty\":\"x\"}", "invalid_request", "presence_penalty"},
    {"{\"prompt\":\"a\",\"repetition_penalty\":0}", "invalid_request", "repetition_penalty"},
    {"{\"prompt\":\"a\",\"logit_bias\":{\"x\":2}}", "invalid_request", "token ids as keys"},
    {"{\"prompt\":\"a\",\"logit_bias\":{\"07\":2}}", "invalid_request", "token ids as keys"},
    {"{\"prompt\":\"a\",\"logit_bias\":{\"257\":2}}", "invalid_request",
     "logit_bias: expected token"},
    {"{\"prompt\":\"a\",\"logit_bias\":{\"7\":101}}", "invalid_request", "-100 to 100"},
    {"{\"prompt\":\"a\",\"logit_bias\":[7]}", "invalid_request", "logit_bias: expected an object"},
    {"{\"prompt\":\"a\",\"stop_token_ids\":7}", "invalid_request",
     "stop_token_ids: expected a list"},
    {"{\"prompt\":\"a\",\"stop_token_ids\":[257]}", "invalid_request", "stop_token_ids: expected"},
    {"{\"prompt\":\"a\",\"stop_token_ids\":[1.5]}", "invalid_request", "stop_token_ids: expected"},
    {"{\"prompt\":\"a\",\"min_tokens\":9,\"max_tokens\":8}", "invalid_request",
     "min_tokens: expected 0 to 8"},
    {"{\"prompt\":\"a\",\"max_tokens\":9,\"max_completion_tokens\":8}", "invalid_request",
     "max_completion_tokens"},
    {"{\"prompt\":\"a\",\"ignore_eos\":1}", "invalid_request", "ignore_eos: expected a boolean"},
    {"{\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"a\",\"tools\":[{}]}}",
     "unsupported", "tools"},
    {"{\"method\":\"POST\",\"url\":\"/v1/"
     "completions\",\"body\":{\"prompt\":\"a\",\"stream\":true}}",
     "unsupported", "stream"},
    {"{\"method\":\"POST\",\"url\":\"/v1/"
     "completions\",\"body\":{\"prompt\":\"a\",\"temprature\":1}}",
     "invalid_request", "temprature: this field is not known"},
    {"{\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"a\","
     "\"tool_choice\":\"required\"}}",
     "unsupported", "tool_choice"},
    {"{\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"a\","
     "\"modalities\":[\"audio\"]}}",
     "unsupported", "modalities"},
    {"{\"prompt\":\"a\",\"best_of\":4}", "unsupported", "best_of"},
    {"{\"prompt\":\"a\",\"beam\":4}", "invalid_request", "beam: expected an object"},
    {"{\"prompt\":\"a\",\"beam\":{\"width\":33}}", "invalid_request", "width: expected 1 to 32"},
    {"{\"prompt\":\"a\",\"beam\":{\"wide\":3}}", "invalid_request", "beam: wide is not known"},
    {"{\"prompt\":\"a\",\"beam\":{\"width\":3},\"num_beams\":3}", "invalid_request", "num_beams"},
    {"{\"prompt\":\"a\",\"num_beams\":3,\"n\":4}", "invalid_request", "n: expected at most 3"},
    {"{\"prompt\":\"a\",\"num_beams\":3,\"logprobs\":1}", "unsupported", "logprobs"},
    {"{\"prompt\":\"a\",\"num_beams\":3,\"repetition_penalty\":1.5}", "unsupported",
     "repetition_penalty"},
    {"{\"prompt\":\"a\",\"num_beams\":3,\"logit_bias\":{\"1\":1}}", "unsupported", "logit_bias"},
    {"{\"prompt\":\"a\",\"num_beams\":3,\"early_stopping\":\"soon\"}", "invalid_request",
     "early_stopping"},
    {"{\"prompt\":\"a\",\"length_penalty\":2}", "invalid_request", "length_penalty"},
    {"{\"prompt\":\"a\",\"num_beams\":3,\"length_penalty\":9}", "invalid_request",
     "length_penalty"},
    {"{\"prompt\":\"a\",\"max_new_tokens\":4}", "unsupported", "max_new_tokens"},
    {"{\"prompt\":\"a\",\"response_format\":{\"type\":\"json_object\"}}", "unsupported",
     "response_format"},
    {"{\"method\":\"GET\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"a\"}}",
     "invalid_request", "method"},
    {"{\"method\":\"POST\",\"url\":\"/v1/embeddings\",\"body\":{\"prompt\":\"a\"}}",
     "invalid_request", "url"},
    {"{\"method\":\"POST\",\"url\":\"/v1/chat/completions\",\"body\":{\"messages\":[]}}",
     "unsupported", "chat template"},
    {"{\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":[]}", "invalid_request",
     "body: expected an object"},
    {"{\"method\":\"POST\",\"url\":\"/v1/completions\"}", "invalid_request", "found null"},
};

static void every_bad_line_gets_a_code_and_a_sentence(void)
{
    struct tokenizer *t = util_byte_tokenizer();
    const struct request_rules rules = make_rules(t);
    for (size_t i = 0; i < sizeof bad_lines / sizeof *bad_lines; i++) {
        const struct bad_line *b = &bad_lines[i];
        struct request *r = parse(&rules, b->line);
        const bool right = r->error_code != NULL && strcmp(r->error_code, b->code) == 0 &&
                           strstr(r->error_message, b->says) != NULL;
        if (!right) {
            printf("\n  %s: found %s: %s\n", b->line, r->error_code != NULL ? r->error_code : "ok",
                   r->error_message != NULL ? r->error_message : "");
        }
        CU_ASSERT(right);
        request_destroy(&r);
    }
    tokenizer_destroy(&t);
}

/* Lines that only a program writes. */
static void hostile_lines_are_error_rows(void)
{
    struct tokenizer *t = util_byte_tokenizer();
    const struct request_rules rules = make_rules(t);
    struct strbuf s;
    strbuf_init(&s);
    strbuf_puts(&s, "{\"prompt\":\"a\",\"stop\":[\"x\"");
    for (int i = 1; i < 100000; i++) strbuf_puts(&s, ",\"x\"");
    strbuf_puts(&s, "]}");
    struct request *r = parse(&rules, s.data);
    CU_ASSERT_STRING_EQUAL(r->error_code, "invalid_request");
    CU_ASSERT_PTR_NOT_NULL(strstr(r->error_message, "at most 64 strings, found 100000"));
    request_destroy(&r);

    strbuf_clear(&s);
    strbuf_puts(&s, "{\"custom_id\":\"deep\",\"x\":");
    for (int i = 0; i < 1000000; i++) strbuf_puts(&s, "[");
    r = parse(&rules, s.data);
    CU_ASSERT_STRING_EQUAL(r->error_code, "invalid_json");
    CU_ASSERT_STRING_EQUAL(r->custom_id.bytes, "12"); /* nothing was read: the line's number */
    request_destroy(&r);

    strbuf_clear(&s);
    strbuf_puts(&s, "{\"prompt\":\"");
    for (int i = 0; i < 1025; i++) strbuf_puts(&s, "x");
    strbuf_puts(&s, "\",\"stop\":\"");
    for (int i = 0; i < 1025; i++) strbuf_puts(&s, "x");
    strbuf_puts(&s, "\"}");
    r = parse(&rules, s.data);
    CU_ASSERT_PTR_NOT_NULL(strstr(r->error_message, "found 1025 bytes"));
    request_destroy(&r);

    struct request *nul = NULL;
    const struct status st = request_create(&rules, 3, "{\"prompt\":\"a\"}\0", 15, &nul);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    CU_ASSERT_STRING_EQUAL(nul->error_code, "invalid_json");
    request_destroy(&nul);
    strbuf_fini(&s);
    tokenizer_destroy(&t);
}

/* Damaged lines are rows or requests, never a crash; what passes is within the rules. */
static void damaged_lines_do_no_harm(void)
{
    static const char good[] =
        "{\"custom_id\":\"a\\u00e9\",\"prompt\":\"hi \\ud83d\\ude00\",\"max_tokens\":12,"
        "\"temperature\":0.5,\"top_p\":0.9,\"top_k\":4,\"stop\":[\"x\",\"yz\"],\"seed\":3,"
        "\"logit_bias\":{\"7\":2},\"stop_token_ids\":[3],\"n\":2,\"logprobs\":1,"
        "\"repetition_penalty\":1.5,\"min_tokens\":2,\"prompt_logprobs\":0}";
    struct tokenizer *t = util_byte_tokenizer();
    const struct request_rules rules = make_rules(t);
    uint64_t random = 17;
    unsigned n_passed = 0, n_failed = 0, n_wild = 0;
    for (int i = 0; i < 20000; i++) {
        char line[sizeof good];
        size_t n = sizeof good - 1;
        memcpy(line, good, sizeof good);
        for (int64_t k = fake_between(&random, 0, 3); k >= 0; k--)
            line[fake_between(&random, 0, (int64_t)n - 1)] = (char)fake_between(&random, 0, 255);
        if (fake_between(&random, 0, 9) == 0) n = (size_t)fake_between(&random, 0, (int64_t)n);
        struct request *r = NULL;
        const struct status st = request_create(&rules, 1, line, n, &r);
        CU_ASSERT_FALSE_FATAL(status_failed(&st));
        n_failed += r->error_code != NULL;
        n_passed += r->error_code == NULL;
        n_wild += r->error_code != NULL
                      ? r->error_message == NULL
                      : r->n_prompt < 1 || r->n_prompt > 19 || r->max_tokens < 1 ||
                            !(r->temperature >= 0) || !(r->top_p > 0);
        request_destroy(&r);
    }
    CU_ASSERT_EQUAL(n_wild, 0);
    CU_ASSERT(n_passed > 100);
    CU_ASSERT(n_failed > 10000);
    tokenizer_destroy(&t);
}

static void a_line_wins_over_the_flags(void)
{
    struct tokenizer *t = util_byte_tokenizer();
    struct request_rules rules = make_rules(t);
    rules.defaults.temperature = 0.25;
    rules.defaults.max_tokens = 5;
    struct request *r =
        parse(&rules, "{\"prompt\":\"ab\",\"seed\":null,\"stop\":null,\"n\":1,"
                      "\"logprobs\":0,\"best_of\":1,\"user\":\"x\",\"stream\":true}");
    CU_ASSERT_PTR_NULL_FATAL(r->error_code);
    CU_ASSERT_EQUAL(r->temperature, 0.25f);
    CU_ASSERT_EQUAL(r->max_tokens, 5);
    CU_ASSERT_EQUAL(r->top_p, 1.0f);
    CU_ASSERT_EQUAL(r->top_k, 0);
    CU_ASSERT_STRING_EQUAL(r->custom_id.bytes, "12");
    CU_ASSERT_EQUAL(r->n_prompt, 2);
    CU_ASSERT_EQUAL(r->tokens[0], 'a');
    CU_ASSERT_PTR_NULL(r->stop);
    request_destroy(&r);
    r = parse(&rules, "{\"prompt\":[5,6,7],\"temperature\":0,\"max_tokens\":9223372036854775807,"
                      "\"top_p\":0.5,\"top_k\":9,\"min_p\":0.125,\"stop\":[\"x\"],"
                      "\"custom_id\":\"a\\u0000b\"}");
    CU_ASSERT_PTR_NULL_FATAL(r->error_code);
    CU_ASSERT_EQUAL(r->temperature, 0);
    CU_ASSERT_EQUAL(r->max_tokens, INT32_MAX);
    CU_ASSERT_EQUAL(r->top_p, 0.5f);
    CU_ASSERT_EQUAL(r->top_k, 9);
    CU_ASSERT_EQUAL(r->min_p, 0.125f);
    CU_ASSERT_PTR_NOT_NULL(r->stop);
    CU_ASSERT_EQUAL(r->custom_id.n, 3);
    CU_ASSERT_EQUAL(r->n_prompt, 3);
    request_destroy(&r);
    /* Off, tiny and huge. */
    r = parse(&rules, "{\"prompt\":\"a\",\"top_k\":-1,\"temperature\":1e-40}");
    CU_ASSERT_EQUAL(r->top_k, 0);
    CU_ASSERT_EQUAL(r->temperature, 0);
    request_destroy(&r);
    r = parse(&rules, "{\"prompt\":[\"abc\"],\"top_k\":9223372036854775807}");
    CU_ASSERT_EQUAL(r->top_k, 0);
    CU_ASSERT_EQUAL(r->n_prompt, 3);
    request_destroy(&r);
    tokenizer_destroy(&t);
}

static void special_tokens_are_parsed_in_prompts(void)
{
    struct tokenizer *t = util_byte_tokenizer();
    const struct request_rules rules = make_rules(t);
    struct request *r = parse(&rules, "{\"prompt\":\"a<|end|>b\"}");
    CU_ASSERT_EQUAL_FATAL(r->n_prompt, 3);
    CU_ASSERT_EQUAL(r->tokens[1], 256);
    request_destroy(&r);
    tokenizer_destroy(&t);
}

static void keys_come_from_seeds_and_ids(void)
{
    struct request_rules rules = make_rules(NULL);
    struct request *r = parse(&rules, "{\"prompt\":[1],\"seed\":81985529216486895}");
    CU_ASSERT_EQUAL(r->key[0], 0x89ABCDEF);
    CU_ASSERT_EQUAL(r->key[1], 0x01234567);
    request_destroy(&r);
    r = parse(&rules, "{\"prompt\":[1],\"seed\":-1}");
    CU_ASSERT_EQUAL(r->key[0], 0xFFFFFFFF);
    CU_ASSERT_EQUAL(r->key[1], 0xFFFFFFFF);
    request_destroy(&r);
    /* XXH3-64 of "a" with seed 0, and what must make a difference. */
    uint32_t a[2], b[2], c[2];
    request_key_of_id(0, "a", 1, a);
    request_key_of_id(0, "b", 1, b);
    request_key_of_id(1, "a", 1, c);
    CU_ASSERT_EQUAL(((uint64_t)a[1] << 32 | a[0]), 0xE6C632B61E964E1Fu);
    CU_ASSERT(memcmp(a, b, sizeof a) != 0 && memcmp(a, c, sizeof a) != 0);
    r = parse(&rules, "{\"prompt\":[1],\"custom_id\":\"a\"}");
    CU_ASSERT_EQUAL(memcmp(r->key, a, sizeof a), 0);
    request_destroy(&r);
    rules.defaults.seed = 1;
    r = parse(&rules, "{\"prompt\":[1],\"custom_id\":\"a\"}");
    CU_ASSERT_EQUAL(memcmp(r->key, c, sizeof c), 0);
    request_destroy(&r);
}

/* Feeds the bytes of `tokens` as sampled ones, and writes the row. */
static void check_row(const char *line, const char *sampled, bool end, bool score,
                      const char *expected)
{
    struct tokenizer *t = util_byte_tokenizer();
    struct request_rules rules = make_rules(t);
    rules.score = score;
    struct request *r = parse(&rules, line);
    struct status st = status_ok();
    for (const char *c = sampled; *c != '\0'; c++) {
        CU_ASSERT_EQUAL_FATAL(r->finish, REQUEST_UNFINISHED);
        st = request_take_token(r, &rules, (unsigned char)*c);
        CU_ASSERT_FALSE_FATAL(status_failed(&st));
    }
    if (end) st = request_take_token(r, &rules, FAKE_END_ID);
    if (score && r->error_code == NULL) {
        for (size_t i = 1; i < r->n_prompt; i++) r->scores[i] = -0.5f / (float)i;
        r->finish = REQUEST_SCORED;
    }
    CU_ASSERT(r->error_code != NULL || r->finish != REQUEST_UNFINISHED);
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
    /* A sequence that never becomes a character. */
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
    /* Held back as the start of a stop string, and given out at the end. */
    check_row("{\"prompt\":\"hi\",\"stop\":\"END\",\"max_tokens\":3}", "xEN", false, false,
              "{\"custom_id\":\"12\",\"text\":\"xEN\",\"token_ids\":[120,69,78],\"finish_reason\":"
              "\"length\",\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":3}}\n");
    check_row(
        "{\"prompt\":\"hi\",\"stop\":\"END\"}", "xEN", true, false,
        "{\"custom_id\":\"12\",\"text\":\"xEN\",\"token_ids\":[120,69,78,256],"
        "\"finish_reason\":\"stop\",\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":4}}\n");
}

/* Feeds tokens by name; the text and the number taken until the request stopped. */
static void check_stop(struct tokenizer *t, const char *line, const char *const *tokens,
                       size_t n_taken, const char *text)
{
    struct request_rules rules = make_rules(t);
    rules.vocab_size = tokenizer_vocab_size(t);
    struct request *r = parse(&rules, line);
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

/* Bytes that tokens fall back to are text only when the run of them is; a stop string among them
 * ends the request at its own last token all the same. */
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

static void what_a_model_lacks_is_said(void)
{
    struct tokenizer *t = util_byte_tokenizer();
    struct request_rules rules = make_rules(NULL);
    struct request *r = parse(&rules, "{\"prompt\":\"a\"}");
    CU_ASSERT_STRING_EQUAL(r->error_code, "unsupported");
    CU_ASSERT_PTR_NOT_NULL(strstr(r->error_message, "give prompt_token_ids"));
    request_destroy(&r);
    r = parse(&rules, "{\"prompt_token_ids\":[1],\"stop\":\"x\"}");
    CU_ASSERT_PTR_NOT_NULL(strstr(r->error_message, "stop: this model has no tokenizer"));
    request_destroy(&r);
    rules = make_rules(t);
    rules.vocab_size = 'b'; /* the model's vocabulary is smaller than the tokenizer's */
    r = parse(&rules, "{\"prompt\":\"aab\"}");
    CU_ASSERT_STRING_EQUAL(r->error_code, "invalid_request");
    CU_ASSERT_PTR_NOT_NULL(strstr(r->error_message, "token 2 has id 98, expected 0 to 97"));
    request_destroy(&r);
    tokenizer_destroy(&t);
}

/* The flags' stop strings hold where a line has none of its own; an empty list means none. */
static void stop_flags_are_defaults(void)
{
    static const char *const stops[] = {"!"};
    struct tokenizer *t = util_byte_tokenizer();
    struct request_rules rules = make_rules(t);
    rules.defaults.stops = stops;
    rules.defaults.n_stops = 1;
    struct request *r = parse(&rules, "{\"prompt\":\"a\"}");
    struct status st = request_take_token(r, &rules, '!');
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    CU_ASSERT_EQUAL(r->finish, REQUEST_STOP);
    request_destroy(&r);
    r = parse(&rules, "{\"prompt\":\"a\",\"stop\":[]}");
    st = request_take_token(r, &rules, '!');
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    CU_ASSERT_EQUAL(r->finish, REQUEST_UNFINISHED);
    request_destroy(&r);
    tokenizer_destroy(&t);
}

static void dropped_choices_stand_in_the_row(void)
{
    const struct request_rules rules = make_rules(NULL);
    struct request *r = parse(&rules, "{\"prompt_token_ids\":[1],\"max_tokens\":1}");
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

/* Two sampled tokens, the second no whole character, with two alternatives each. */
static void check_logprobs(const char *line, const char *expected)
{
    struct tokenizer *t = util_byte_tokenizer();
    const struct request_rules rules = make_rules(t);
    const struct plan_top tops[2][2] = {{{120, -0.5f}, {34, -1.5f}}, {{33, -0.125f}, {256, -3}}};
    struct request *r = parse(&rules, line);
    CU_ASSERT_PTR_NULL_FATAL(r->error_code);
    struct status st = request_take_logprob(r, -0.5f, tops[0]);
    if (!status_failed(&st)) st = request_take_token(r, &rules, 'x');
    if (!status_failed(&st)) st = request_take_logprob(r, -0.1f, tops[1]);
    if (!status_failed(&st)) st = request_take_token(r, &rules, 0xE2);
    for (size_t i = 1; r->scores != NULL && i < r->n_prompt; i++) r->scores[i] = -4;
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

static void score_rows_start_with_null(void)
{
    check_row("{\"prompt\":\"abc\"}", "", false, true,
              "{\"custom_id\":\"12\",\"token_ids\":[97,98,99],\"logprobs\":[null,-0.5,-0.25],"
              "\"sum_logprob\":-0.75}\n");
    check_row("{\"prompt\":\"a\"}", "", false, true,
              "{\"custom_id\":\"12\",\"token_ids\":[97],\"logprobs\":[null],\"sum_logprob\":0}\n");
    /* A full context can be scored, one token more cannot. */
    check_row("{\"prompt\":\"0123456789abcdefghijk\"}", "", false, true,
              "{\"custom_id\":\"12\",\"error\":{\"code\":\"context_length_exceeded\",\"message\":"
              "\"the prompt has 21 tokens, expected at most 20: the context holds 20\"}}\n");
}

static void flags_are_checked_by_the_same_rules(void)
{
    struct request_defaults d;
    request_defaults_init(&d);
    struct status st = request_defaults_check(&d);
    CU_ASSERT_FALSE(status_failed(&st));
    d.temperature = NAN;
    st = request_defaults_check(&d);
    CU_ASSERT_EQUAL(st.code, STATUS_USAGE);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "--temperature"));
    request_defaults_init(&d);
    d.top_p = 0;
    st = request_defaults_check(&d);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "--top-p"));
    request_defaults_init(&d);
    d.max_tokens = 0;
    st = request_defaults_check(&d);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "--max-tokens"));
    request_defaults_init(&d);
    const char *const stops[] = {"a", ""};
    d.stops = stops;
    d.n_stops = 2;
    st = request_defaults_check(&d);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "--stop"));
}

static void the_set_knows_every_id(void)
{
    struct id_set s = {0};
    char id[16];
    unsigned n_wrong = 0;
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 50000; i++) {
            const int n = snprintf(id, sizeof id, "id-%d", i);
            bool fresh;
            const struct status st = id_set_add(&s, id, (size_t)n, &fresh);
            CU_ASSERT_FALSE_FATAL(status_failed(&st));
            n_wrong += fresh != (round == 0);
        }
    }
    CU_ASSERT_EQUAL(n_wrong, 0);
    CU_ASSERT_EQUAL(s.n, 50000);
    CU_ASSERT(s.n_slots * sizeof *s.slots <= 50000 * 64);
    id_set_fini(&s);
}

/* With a template, messages become its text; what a user wrote never becomes a special token. */
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
    struct request_rules rules = make_rules(t);
    rules.chat = chat;
    struct request *r = parse(&rules, line);
    CU_ASSERT_PTR_NULL(r->error_code);
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
        r = parse(&rules, wrong[i]);
        CU_ASSERT_PTR_NOT_NULL(r->error_code);
        if (r->error_code != NULL) CU_ASSERT_STRING_EQUAL(r->error_code, "invalid_request");
        request_destroy(&r);
    }
    token_list_fini(&want);
    chat_destroy(&chat);
    tokenizer_destroy(&t);
}

void suite_request(CU_pSuite suite);
void suite_request(CU_pSuite suite)
{
    CU_add_test(suite, "every bad line gets a code and a sentence",
                every_bad_line_gets_a_code_and_a_sentence);
    CU_add_test(suite, "hostile lines are error rows", hostile_lines_are_error_rows);
    CU_add_test(suite, "damaged lines do no harm", damaged_lines_do_no_harm);
    CU_add_test(suite, "a line wins over the flags", a_line_wins_over_the_flags);
    CU_add_test(suite, "special tokens are parsed in prompts",
                special_tokens_are_parsed_in_prompts);
    CU_add_test(suite, "keys come from seeds and ids", keys_come_from_seeds_and_ids);
    CU_add_test(suite, "rows are those of the contract", rows_are_those_of_the_contract);
    CU_add_test(suite, "stop strings in bytes end it at once",
                stop_strings_in_bytes_end_it_at_once);
    CU_add_test(suite, "stop strings end the text before them",
                stop_strings_end_the_text_before_them);
    CU_add_test(suite, "what a model lacks is said", what_a_model_lacks_is_said);
    CU_add_test(suite, "stop flags are defaults", stop_flags_are_defaults);
    CU_add_test(suite, "dropped choices stand in the row", dropped_choices_stand_in_the_row);
    CU_add_test(suite, "batch rows are batch results", batch_rows_are_batch_results);
    CU_add_test(suite, "log-probabilities stand in rows", log_probabilities_stand_in_rows);
    CU_add_test(suite, "score rows start with null", score_rows_start_with_null);
    CU_add_test(suite, "flags are checked by the same rules", flags_are_checked_by_the_same_rules);
    CU_add_test(suite, "messages go through the template", messages_go_through_the_template);
    CU_add_test(suite, "the set knows every id", the_set_knows_every_id);
}

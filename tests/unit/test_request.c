/* Request lines: what they set, and the error for each kind of mistake. */
#include "serve/request/request.h"

#include "base/file.h"
#include "base/mem.h"
#include "serve/request/request_parse.h"
#include "util_serve.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A line, the error code of its row, and a part of the message. */
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
    {"{\"prompt\":\"a\",\"max_tokens\":9223372036854775808}", "invalid_request",
     "max_tokens: expected an integer, found a number beyond 64 bits"},
    {"{\"prompt\":\"a\",\"seed\":-9223372036854775809}", "invalid_request",
     "seed: expected an integer, found a number beyond 64 bits"},
    {"{\"prompt_token_ids\":[18446744073709551616]}", "invalid_request",
     "[0]: expected a token id, found a number beyond 64 bits"},
    {"{\"prompt\":\"a\",\"seed\":9223372036854775808", "invalid_json", "JSON"},
    {"{\"prompt\":\"a\",\"seed\":09223372036854775808}", "invalid_json", "JSON"},
    {"{\"messages\":[{\"role\":\"user\",\"content\":9223372036854775808}]}", "invalid_request",
     "beyond 64 bits, expected none beside messages"},
    {"{\"prompt\":\"a\",\"max_tokens\":\"3\"}", "invalid_request", "found a string"},
    {"{\"prompt\":\"a\",\"max_tokens\":true}", "invalid_request", "found a boolean"},
    {"{\"prompt\":\"a\",\"temperature\":NaN}", "invalid_json", "JSON"},
    {"{\"prompt\":\"a\",\"temperature\":-1e999}", "invalid_request", "temperature: expected 0 to"},
    {"{\"prompt\":\"a\",\"temperature\":-0.5}", "invalid_request", "temperature: expected 0 to"},
    {"{\"prompt\":\"a\",\"top_p\":0}", "invalid_request", "top_p: expected above 0"},
    {"{\"prompt\":\"a\",\"top_p\":1.01}", "invalid_request", "top_p"},
    {"{\"prompt\":\"a\",\"top_p\":1.0000001}", "invalid_request", "found 1.0000001"},
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
    {"{\"prompt\":\"a\",\"top_logprobs\":2}", "invalid_request",
     "top_logprobs: needs \"logprobs\": true"},
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
     "invalid_request", "temprature: this field is not known; did you mean temperature"},
    {"{\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"a\","
     "\"tool_choice\":\"required\"}}",
     "unsupported", "tool_choice"},
    {"{\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"a\","
     "\"modalities\":[\"audio\"]}}",
     "unsupported", "modalities"},
    {"{\"prompt\":\"a\",\"echo\":true}", "unsupported", "echo"},
    {"{\"prompt\":\"a\",\"allowed_token_ids\":[]}", "invalid_request", "found none"},
    {"{\"prompt\":\"a\",\"allowed_token_ids\":7}", "invalid_request", "found an integer"},
    {"{\"prompt\":\"a\",\"allowed_token_ids\":[257]}", "invalid_request",
     "allowed_token_ids: expected token ids of 0 to 256"},
    {"{\"prompt\":\"a\",\"bad_words\":\"x\"}", "invalid_request", "bad_words: expected a list"},
    {"{\"prompt\":\"a\",\"bad_words\":[\"\"]}", "invalid_request", "strings of 1 to 1024"},
    {"{\"prompt\":\"a\",\"bad_words\":[7]}", "invalid_request", "expected strings"},
    {"{\"prompt\":\"a\",\"bad_words\":[\"a\"],\"allowed_token_ids\":[97]}", "invalid_request",
     "no token to begin with"},
    {"{\"prompt\":\"a\",\"num_beams\":3,\"bad_words\":[\"a\"]}", "unsupported", "beam search"},
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
    {"{\"prompt\":\"a\",\"max_new_tokens\":4}", "unsupported",
     "max_new_tokens: not supported; use max_tokens"},
    {"{\"prompt\":\"a\",\"do_sample\":false}", "unsupported",
     "do_sample: not supported; use temperature 0"},
    {"{\"prompt\":\"a\",\"no_repeat_ngram_size\":2}", "unsupported",
     "no_repeat_ngram_size: not supported by this version; leave it out"},
    {"{\"prompt\":\"a\",\"response_format\":{\"type\":\"grammar\"}}", "unsupported",
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
    const struct request_rules rules = util_request_rules(t);
    for (size_t i = 0; i < sizeof bad_lines / sizeof *bad_lines; i++) {
        const struct bad_line *b = &bad_lines[i];
        struct request *r = util_request_parse(&rules, b->line);
        const bool right = r->error.code != NULL && strcmp(r->error.code, b->code) == 0 &&
                           strstr(r->error.message, b->says) != NULL;
        if (!right) {
            printf("\n  %s: found %s: %s\n", b->line, r->error.code != NULL ? r->error.code : "ok",
                   r->error.message != NULL ? r->error.message : "");
        }
        CU_ASSERT(right);
        request_destroy(&r);
    }
    tokenizer_destroy(&t);
}

/* Too many stop strings, deep nesting, a stop string that is too long, and a NUL at the end. */
static void hostile_lines_are_error_rows(void)
{
    struct tokenizer *t = util_byte_tokenizer();
    const struct request_rules rules = util_request_rules(t);
    struct strbuf s;
    strbuf_init(&s);
    strbuf_puts(&s, "{\"prompt\":\"a\",\"stop\":[\"x\"");
    for (int i = 1; i < 100000; i++) strbuf_puts(&s, ",\"x\"");
    strbuf_puts(&s, "]}");
    struct request *r = util_request_parse(&rules, s.data);
    CU_ASSERT_STRING_EQUAL(r->error.code, "invalid_request");
    CU_ASSERT_PTR_NOT_NULL(strstr(r->error.message, "at most 64 strings, found 100000"));
    request_destroy(&r);

    strbuf_clear(&s);
    strbuf_puts(&s, "{\"custom_id\":\"deep\",\"x\":");
    for (int i = 0; i < 1000000; i++) strbuf_puts(&s, "[");
    r = util_request_parse(&rules, s.data);
    CU_ASSERT_STRING_EQUAL(r->error.code, "invalid_json");
    CU_ASSERT_STRING_EQUAL(r->custom_id.bytes, "12"); /* no id was read, so the name is the
                                                         line's number */
    request_destroy(&r);

    strbuf_clear(&s);
    strbuf_puts(&s, "{\"prompt\":\"");
    for (int i = 0; i < 1025; i++) strbuf_puts(&s, "x");
    strbuf_puts(&s, "\",\"stop\":\"");
    for (int i = 0; i < 1025; i++) strbuf_puts(&s, "x");
    strbuf_puts(&s, "\"}");
    r = util_request_parse(&rules, s.data);
    CU_ASSERT_PTR_NOT_NULL(strstr(r->error.message, "found 1025 bytes"));
    request_destroy(&r);

    struct request *nul = NULL;
    const struct status st = request_create(&rules, 3, "{\"prompt\":\"a\"}\0", 15, &nul);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    CU_ASSERT_STRING_EQUAL(nul->error.code, "invalid_json");
    request_destroy(&nul);
    strbuf_fini(&s);
    tokenizer_destroy(&t);
}

/* A damaged line gives an error row or a request within the rules, never a crash. */
static void damaged_lines_do_no_harm(void)
{
    static const char good[] =
        "{\"custom_id\":\"a\\u00e9\",\"prompt\":\"hi \\ud83d\\ude00\",\"max_tokens\":12,"
        "\"temperature\":0.5,\"top_p\":0.9,\"top_k\":4,\"stop\":[\"x\",\"yz\"],\"seed\":3,"
        "\"logit_bias\":{\"7\":2},\"stop_token_ids\":[3],\"n\":2,\"logprobs\":1,"
        "\"repetition_penalty\":1.5,\"min_tokens\":2,\"prompt_logprobs\":0}";
    struct tokenizer *t = util_byte_tokenizer();
    const struct request_rules rules = util_request_rules(t);
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
        n_failed += r->error.code != NULL;
        n_passed += r->error.code == NULL;
        n_wild += r->error.code != NULL
                      ? r->error.message == NULL
                      : r->n_prompt < 1 || r->n_prompt > 19 || r->ask->max_tokens < 1 ||
                            !(r->ask->temperature >= 0) || !(r->ask->top_p > 0);
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
    struct request_rules rules = util_request_rules(t);
    rules.defaults.temperature = 0.25;
    rules.defaults.max_tokens = 5;
    struct request *r =
        util_request_parse(&rules, "{\"prompt\":\"ab\",\"seed\":null,\"stop\":null,\"n\":1,"
                                   "\"logprobs\":0,\"best_of\":1,\"user\":\"x\",\"stream\":true}");
    CU_ASSERT_PTR_NULL_FATAL(r->error.code);
    CU_ASSERT_EQUAL(r->ask->temperature, 0.25f);
    CU_ASSERT_EQUAL(r->ask->max_tokens, 5);
    CU_ASSERT_EQUAL(r->ask->top_p, 1.0f);
    CU_ASSERT_EQUAL(r->ask->top_k, 0);
    CU_ASSERT_STRING_EQUAL(r->custom_id.bytes, "12");
    CU_ASSERT_EQUAL(r->n_prompt, 2);
    CU_ASSERT_EQUAL(r->tokens[0], 'a');
    CU_ASSERT_PTR_NULL(r->stop);
    request_destroy(&r);
    r = util_request_parse(
        &rules, "{\"prompt\":[5,6,7],\"temperature\":0,\"max_tokens\":9223372036854775807,"
                "\"top_p\":0.5,\"top_k\":9,\"min_p\":0.125,\"stop\":[\"x\"],"
                "\"custom_id\":\"a\\u0000b\"}");
    CU_ASSERT_PTR_NULL_FATAL(r->error.code);
    CU_ASSERT_EQUAL(r->ask->temperature, 0);
    CU_ASSERT_EQUAL(r->ask->max_tokens, INT32_MAX);
    CU_ASSERT_EQUAL(r->ask->top_p, 0.5f);
    CU_ASSERT_EQUAL(r->ask->top_k, 9);
    CU_ASSERT_EQUAL(r->ask->min_p, 0.125f);
    CU_ASSERT_PTR_NOT_NULL(r->stop);
    CU_ASSERT_EQUAL(r->custom_id.n, 3);
    CU_ASSERT_EQUAL(r->n_prompt, 3);
    request_destroy(&r);
    /* Values that switch a field off, tiny values and huge values. */
    r = util_request_parse(&rules, "{\"prompt\":\"a\",\"top_k\":-1,\"temperature\":1e-40}");
    CU_ASSERT_EQUAL(r->ask->top_k, 0);
    CU_ASSERT_EQUAL(r->ask->temperature, 0);
    request_destroy(&r);
    r = util_request_parse(&rules, "{\"prompt\":[\"abc\"],\"top_k\":9223372036854775807}");
    CU_ASSERT_EQUAL(r->ask->top_k, 0);
    CU_ASSERT_EQUAL(r->n_prompt, 3);
    request_destroy(&r);
    tokenizer_destroy(&t);
}

/* A number beyond 64 bits is an error only if the request uses its field. */
static void numbers_beyond_64_bits_keep_their_line(void)
{
    struct tokenizer *t = util_byte_tokenizer();
    const struct request_rules rules = util_request_rules(t);
    struct request *r = util_request_parse(
        &rules, "{\"custom_id\":\"a\",\"prompt\":\"1\\\"e999\",\"hash\":18446744073709551615,"
                "\"far\":[-1e999,1E+400,{\"id\":-99999999999999999999}],\"max_tokens\":3}");
    CU_ASSERT_PTR_NULL_FATAL(r->error.code);
    CU_ASSERT_STRING_EQUAL(r->custom_id.bytes, "a");
    CU_ASSERT_EQUAL(r->n_prompt, 6);
    CU_ASSERT_EQUAL(r->ask->max_tokens, 3);
    request_destroy(&r);
    r = util_request_parse(&rules,
                           "{\"seed\":9223372036854775808,\"prompt\":\"a\",\"custom_id\":\"b\"}");
    CU_ASSERT_STRING_EQUAL(r->error.code, "invalid_request");
    CU_ASSERT_STRING_EQUAL(r->custom_id.bytes, "b");
    request_destroy(&r);
    /* four million letters that may stand in a number; a quadratic parser would not finish */
    const size_t n = 4 << 20;
    char *line = malloc(n + 1);
    memset(line, 'e', n);
    line[n] = '\0';
    memcpy(line, "[1e999,", 7);
    r = util_request_parse(&rules, line);
    CU_ASSERT_STRING_EQUAL(r->error.code, "invalid_json");
    request_destroy(&r);
    free(line);
    tokenizer_destroy(&t);
}

static void special_tokens_are_parsed_in_prompts(void)
{
    struct tokenizer *t = util_byte_tokenizer();
    const struct request_rules rules = util_request_rules(t);
    struct request *r = util_request_parse(&rules, "{\"prompt\":\"a<|end|>b\"}");
    CU_ASSERT_EQUAL_FATAL(r->n_prompt, 3);
    CU_ASSERT_EQUAL(r->tokens[1], 256);
    request_destroy(&r);
    tokenizer_destroy(&t);
}

/* "adapter" names an adapter on any line; "model" only in a body, and a model that is no adapter
 * means none. */
static void a_line_names_an_adapter(void)
{
    static const struct request_adapter adapters[] = {{"a", {1, 2}, 7}, {"team/b", {3, 4}, 8}};
    static const struct {
        const char *line;
        uint32_t adapter;
        const char *message; /* NULL: no error */
    } cases[] = {
        {"{\"prompt\":[1]}", 0, NULL},
        {"{\"prompt\":[1],\"adapter\":null}", 0, NULL},
        {"{\"prompt\":[1],\"adapter\":\"a\"}", 1, NULL},
        {"{\"prompt\":[1],\"adapter\":\"team/b\"}", 2, NULL},
        {"{\"prompt\":[1],\"model\":\"a\"}", 0, NULL},
        {"{\"prompt\":[1],\"adapter\":\"team\"}", 0, "adapter: none with this name"},
        {"{\"prompt\":[1],\"adapter\":1}", 0, "adapter: expected a string"},
        {"{\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":[1],"
         "\"model\":\"a\"}}",
         1, NULL},
        {"{\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":[1],"
         "\"model\":\"other\"}}",
         0, NULL},
        {"{\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":[1],"
         "\"model\":\"a\",\"adapter\":\"team/b\"}}",
         2, NULL},
    };
    struct request_rules rules = util_request_rules(NULL);
    rules.adapters = adapters;
    rules.n_adapters = 2;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct request *r = util_request_parse(&rules, cases[i].line);
        const char *message = r->error.message != NULL ? r->error.message : "";
        CU_ASSERT_EQUAL(r->ask->adapter, cases[i].adapter);
        CU_ASSERT(cases[i].message == NULL ? r->error.code == NULL
                                           : strstr(message, cases[i].message) != NULL);
        request_destroy(&r);
    }
}

static void keys_come_from_seeds_and_ids(void)
{
    struct request_rules rules = util_request_rules(NULL);
    struct request *r = util_request_parse(&rules, "{\"prompt\":[1],\"seed\":81985529216486895}");
    CU_ASSERT_EQUAL(r->ask->key[0], 0x89ABCDEF);
    CU_ASSERT_EQUAL(r->ask->key[1], 0x01234567);
    request_destroy(&r);
    r = util_request_parse(&rules, "{\"prompt\":[1],\"seed\":-1}");
    CU_ASSERT_EQUAL(r->ask->key[0], 0xFFFFFFFF);
    CU_ASSERT_EQUAL(r->ask->key[1], 0xFFFFFFFF);
    request_destroy(&r);
    /* The key of a line without a seed is the XXH3-64 of its id, with the job's seed. Another id or
     * another seed gives another key. */
    uint32_t a[2], b[2], c[2];
    request_key_of_id(0, "a", 1, a);
    request_key_of_id(0, "b", 1, b);
    request_key_of_id(1, "a", 1, c);
    CU_ASSERT_EQUAL(((uint64_t)a[1] << 32 | a[0]), 0xE6C632B61E964E1Fu);
    CU_ASSERT(memcmp(a, b, sizeof a) != 0 && memcmp(a, c, sizeof a) != 0);
    r = util_request_parse(&rules, "{\"prompt\":[1],\"custom_id\":\"a\"}");
    CU_ASSERT_EQUAL(memcmp(r->ask->key, a, sizeof a), 0);
    request_destroy(&r);
    rules.defaults.seed = 1;
    r = util_request_parse(&rules, "{\"prompt\":[1],\"custom_id\":\"a\"}");
    CU_ASSERT_EQUAL(memcmp(r->ask->key, c, sizeof c), 0);
    request_destroy(&r);
}

static void what_a_model_lacks_is_said(void)
{
    struct tokenizer *t = util_byte_tokenizer();
    struct request_rules rules = util_request_rules(NULL);
    struct request *r = util_request_parse(&rules, "{\"prompt\":\"a\"}");
    CU_ASSERT_STRING_EQUAL(r->error.code, "unsupported");
    CU_ASSERT_PTR_NOT_NULL(strstr(r->error.message, "give prompt_token_ids"));
    request_destroy(&r);
    r = util_request_parse(&rules, "{\"prompt_token_ids\":[1],\"stop\":\"x\"}");
    CU_ASSERT_PTR_NOT_NULL(strstr(r->error.message, "stop: this model has no tokenizer"));
    request_destroy(&r);
    rules = util_request_rules(t);
    rules.vocab_size = 'b'; /* the model's vocabulary is smaller than the tokenizer's */
    r = util_request_parse(&rules, "{\"prompt\":\"aab\"}");
    CU_ASSERT_STRING_EQUAL(r->error.code, "invalid_request");
    CU_ASSERT_PTR_NOT_NULL(strstr(r->error.message, "token 2 has id 98, expected 0 to 97"));
    request_destroy(&r);
    tokenizer_destroy(&t);
}

/* The stop strings of the flags apply to lines without stop strings of their own. An empty list in
 * a line means no stop strings. */
static void stop_flags_are_defaults(void)
{
    struct tokenizer *t = util_byte_tokenizer();
    struct request_rules rules = util_request_rules(t);
    rules.defaults.stops = (struct flag_list){.values = {"!"}, .n = 1};
    struct request *r = util_request_parse(&rules, "{\"prompt\":\"a\"}");
    struct status st = request_take_token(r, &rules, '!');
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    CU_ASSERT_EQUAL(r->finish, REQUEST_STOP);
    request_destroy(&r);
    r = util_request_parse(&rules, "{\"prompt\":\"a\",\"stop\":[]}");
    st = request_take_token(r, &rules, '!');
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    CU_ASSERT_EQUAL(r->finish, REQUEST_UNFINISHED);
    request_destroy(&r);
    tokenizer_destroy(&t);
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
    d.stops = (struct flag_list){.values = {"a", ""}, .n = 2};
    st = request_defaults_check(&d);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "--stop"));
}

static void misspelled_fields_are_warned_of_once(void)
{
    static const char *const lines[] = {
        "{\"prompt\":\"a\",\"temprature\":0,\"note\":1,\"passages\":[],\"id\":7,\"N\":1}",
        "{\"prompt\":\"a\",\"temprature\":0,\"Temperature\":0}",
        "{\"prompt\":\"a\",\"maxTokens\":3,\"num_predict\":3,\"customId\":\"x\"}",
        "{\"prompt\":\"a\",\"temprature\":1,\"steam\":1,\"step\":2,\"model\":\"m\"}",
        "{\"prompt\":\"a\",\"max_new_tokens\":3}"};
    static const char *const names[] = {"temprature",  "Temperature", "maxTokens",
                                        "num_predict", "customId",    "max_new_tokens"};
    struct tokenizer *t = util_byte_tokenizer();
    struct request_rules rules = util_request_rules(t);
    struct request_warnings warnings = {.n = 0};
    rules.warnings = &warnings;
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
            struct request *r = util_request_parse(&rules, lines[i]);
            /* only the last line is refused: max_new_tokens is not implemented */
            CU_ASSERT_EQUAL(r->error.code == NULL, i < 4);
            request_destroy(&r);
        }
    }
    CU_ASSERT_EQUAL_FATAL(warnings.n, sizeof names / sizeof *names);
    for (size_t i = 0; i < warnings.n; i++) CU_ASSERT_STRING_EQUAL(warnings.names[i], names[i]);
    CU_ASSERT_STRING_EQUAL(request_field_meant("tempreature"), "temperature");
    CU_ASSERT_STRING_EQUAL(request_field_meant("stop-sequences"), "stop");
    CU_ASSERT_STRING_EQUAL(request_field_meant("message"), "messages");
    CU_ASSERT_PTR_NULL(request_field_meant("temperature"));
    CU_ASSERT_PTR_NULL(request_field_meant("a note that is longer than any name of a field"));
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
    CU_add_test(suite, "numbers beyond 64 bits keep their line",
                numbers_beyond_64_bits_keep_their_line);
    CU_add_test(suite, "special tokens are parsed in prompts",
                special_tokens_are_parsed_in_prompts);
    CU_add_test(suite, "a line names an adapter", a_line_names_an_adapter);
    CU_add_test(suite, "keys come from seeds and ids", keys_come_from_seeds_and_ids);
    CU_add_test(suite, "what a model lacks is said", what_a_model_lacks_is_said);
    CU_add_test(suite, "stop flags are defaults", stop_flags_are_defaults);
    CU_add_test(suite, "flags are checked by the same rules", flags_are_checked_by_the_same_rules);
    CU_add_test(suite, "misspelled fields are warned of once",
                misspelled_fields_are_warned_of_once);
}

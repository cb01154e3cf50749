/* Repeated requests: rows are the same with the result cache on and off, whatever the options, and
 * fewer tokens are computed with it. */
#include "serve/output/result_cache.h"

#include "util_serve.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <string.h>

enum { LINES = 200 };

/* Lines with eight different prompts: greedy, seeded and unseeded, with different lengths, stops
 * and priorities. Some fail in the engine. */
static void make_lines(struct strbuf *s)
{
    static const char *const kinds[] = {"\"temperature\":0",
                                        "\"temperature\":0,\"top_k\":7",
                                        "\"seed\":3",
                                        "\"seed\":4",
                                        "\"temperature\":1",
                                        "\"temperature\":0,\"stop\":[\"e\"]",
                                        "\"temperature\":0,\"guided_regex\":\"[a-z]{0,30}\"",
                                        "\"temperature\":0,\"guided_regex\":\"[a-z]{0,30}\","
                                        "\"ignore_eos\":true",
                                        "\"temperature\":0,\"bad_words\":[\"e\"]",
                                        "\"temperature\":0,\"bad_words\":[\"o\"]",
                                        "\"temperature\":0,\"adapter\":\"a\"",
                                        "\"temperature\":0,\"adapter\":\"b\""};
    uint64_t x = 41;
    for (int i = 0; i < LINES; i++) {
        const int prompt = (int)fake_between(&x, 0, 7);
        strbuf_printf(s, "{\"custom_id\":\"c%d\",%s,\"max_tokens\":%d,", i,
                      kinds[fake_between(&x, 0, 11)], (int)fake_between(&x, 0, 2) * 20 + 9);
        if (i % 9 == 4) strbuf_printf(s, "\"priority\":%d,", (int)fake_between(&x, -3, 3));
        strbuf_printf(s, "\"prompt_token_ids\":[9,%d,%d", prompt == 7 ? 1 : 6, prompt);
        for (int k = 0; k < 12 * prompt; k++) strbuf_printf(s, ",%d", 40 + k % 50);
        strbuf_puts(s, "]}\n");
    }
}

static void repeated_lines_give_the_same_rows_for_less_work(void)
{
    static struct serve_summary off, on;
    struct tokenizer *t = util_byte_tokenizer();
    struct strbuf in, expected, found;
    strbuf_init(&in);
    strbuf_init(&expected);
    strbuf_init(&found);
    make_lines(&in);
    static const struct request_adapter adapters[] = {{"a", {1, 2}, 77}, {"b", {3, 4}, 78}};
    struct lead_options o = util_lead_options(t, NULL, NULL);
    o.adapters = adapters;
    o.n_adapters = 2;
    util_lead_run_text(&o, &in, &off, &expected);
    CU_ASSERT_EQUAL(off.n_rows, LINES);
    CU_ASSERT_EQUAL(off.n_result_hits + off.n_result_hit_tokens, 0);
    CU_ASSERT(off.n_error_rows > 5);
    uint64_t x = 8;
    for (int i = 0; i < 60; i++) {
        o.flags.result_cache = true;
        o.schedule.order = (enum order_kind)fake_between(&x, 0, ORDER_KIND_COUNT - 1);
        o.n_replicas = (int32_t)fake_between(&x, 1, 3);
        o.n_groups = (int32_t)fake_between(&x, 1, 4);
        o.schedule.max_batch = (int32_t)fake_between(&x, 0, 9);
        o.window_rows = fake_between(&x, 0, 1) ? 0 : (size_t)fake_between(&x, 1, 40);
        o.schedule.prefix_cache = fake_between(&x, 0, 1);
        util_lead_run_text(&o, &in, &on, &found);
        CU_ASSERT_EQUAL(found.n, expected.n);
        CU_ASSERT_EQUAL(memcmp(found.data, expected.data, expected.n), 0);
        CU_ASSERT_EQUAL(on.n_generated_tokens + on.n_result_hit_tokens, off.n_generated_tokens);
        CU_ASSERT(on.n_result_hits > LINES / 3);
        CU_ASSERT(on.n_result_hit_tokens > off.n_generated_tokens / 3);
    }
    o.mode = LEAD_SCORE;
    util_lead_run_text(&o, &in, &on, &found);
    CU_ASSERT_EQUAL(on.n_result_hits, 0);
    strbuf_fini(&in);
    strbuf_fini(&expected);
    strbuf_fini(&found);
    tokenizer_destroy(&t);
}

/* A request whose prompt depends only on `prompt`. */
static struct request *make(const struct request_rules *rules, int prompt, const char *fields)
{
    char line[256];
    struct request *r = NULL;
    snprintf(line, sizeof line, "{\"prompt_token_ids\":[5,%d,%d],%s}", prompt / 200, prompt % 200,
             fields);
    const struct status st = request_create(rules, 1, line, strlen(line), &r);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    CU_ASSERT_PTR_NULL_FATAL(r->error.code);
    return r;
}

static enum result_answer ask(struct result_cache *c, const struct request_rules *rules,
                              struct request *r)
{
    enum result_answer answer = RESULT_RUN;
    const struct status st = result_cache_ask(c, rules, r, &answer);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    return answer;
}

/* Ends r as if it had run. */
static void end(struct result_cache *c, const struct request_rules *rules, struct request *r)
{
    struct status st = status_ok();
    while (r->finish == REQUEST_UNFINISHED && !status_failed(&st))
        st = request_take_token(r, rules, (int32_t)(60 + r->n_tokens));
    CU_ASSERT_FALSE(status_failed(&st));
    st = result_cache_end(c, r);
    CU_ASSERT_FALSE(status_failed(&st));
}

static void who_waits_for_whom(void)
{
    struct request_rules rules = {.vocab_size = FAKE_VOCAB, .max_model_len = 100};
    request_defaults_init(&rules.defaults);
    struct result_cache *c = NULL;
    const struct status st = result_cache_create(0, &c);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    const char *const same[] = {"\"temperature\":0,\"max_tokens\":8",
                                "\"temperature\":0,\"top_p\":0.5,\"seed\":2,\"max_tokens\":3",
                                "\"temperature\":0,\"max_tokens\":12",
                                "\"temperature\":0,\"max_tokens\":12,\"priority\":-1",
                                "\"temperature\":0,\"max_tokens\":40"};
    struct request *r[5];
    for (int i = 0; i < 5; i++) r[i] = make(&rules, 1, same[i]);
    struct request *other = make(&rules, 1, "\"temperature\":0.5,\"max_tokens\":8");
    struct request *another = make(&rules, 2, same[0]);
    struct request *seeded = make(&rules, 3, "\"seed\":1"), *again = make(&rules, 3, "\"seed\":1");
    struct request *unseeded = make(&rules, 3, "\"top_k\":0");
    CU_ASSERT_EQUAL(ask(c, &rules, r[0]), RESULT_RUN);
    CU_ASSERT_EQUAL(ask(c, &rules, r[1]), RESULT_WAITS);
    CU_ASSERT_EQUAL(ask(c, &rules, r[2]), RESULT_WAITS);
    CU_ASSERT_EQUAL(ask(c, &rules, r[3]), RESULT_RUN); /* r[3] is more urgent than the equal
                                                          request that runs */
    CU_ASSERT_EQUAL(ask(c, &rules, other), RESULT_RUN);
    CU_ASSERT_EQUAL(ask(c, &rules, another), RESULT_RUN);
    CU_ASSERT_EQUAL(ask(c, &rules, seeded), RESULT_RUN);
    CU_ASSERT_EQUAL(ask(c, &rules, again), RESULT_WAITS); /* destroyed together with the cache */
    CU_ASSERT_EQUAL(ask(c, &rules, unseeded), RESULT_RUN);
    CU_ASSERT_PTR_NULL(unseeded->shared); /* no other request has its key */
    CU_ASSERT_PTR_NULL(result_cache_take(c));
    end(c, &rules, r[0]);
    CU_ASSERT_PTR_EQUAL(result_cache_take(c), r[1]);
    CU_ASSERT_PTR_EQUAL(result_cache_take(c), r[2]);
    CU_ASSERT_PTR_NULL(result_cache_take(c));
    CU_ASSERT_EQUAL(ask(c, &rules, r[1]), RESULT_DONE);
    CU_ASSERT_EQUAL(r[1]->n_tokens, 6);
    /* r[2] runs on after the 8 tokens that the cache kept */
    CU_ASSERT_EQUAL(ask(c, &rules, r[2]), RESULT_RUN);
    CU_ASSERT_EQUAL(r[2]->n_tokens, 11);
    CU_ASSERT_EQUAL(ask(c, &rules, r[4]), RESULT_WAITS);
    end(c, &rules, r[2]);
    CU_ASSERT_PTR_EQUAL(result_cache_take(c), r[4]);
    CU_ASSERT_EQUAL(ask(c, &rules, r[4]), RESULT_RUN);
    CU_ASSERT_EQUAL(r[4]->n_tokens, 15);
    for (size_t i = 0; i < 15; i++) CU_ASSERT_EQUAL(r[4]->tokens[i], r[2]->tokens[i]);
    result_cache_destroy(&c);
    for (int i = 0; i < 5; i++) request_destroy(&r[i]);
    request_destroy(&other);
    request_destroy(&another);
    request_destroy(&seeded);
    request_destroy(&unseeded);
}

/* The oldest results are dropped. The result of a failed request is not kept. */
static void memory_is_bounded(void)
{
    struct request_rules rules = {.vocab_size = FAKE_VOCAB, .max_model_len = 100};
    request_defaults_init(&rules.defaults);
    struct result_cache *c = NULL;
    struct status st = result_cache_create(12000, &c);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    static const char fields[] = "\"temperature\":0,\"max_tokens\":20";
    unsigned n_known = 0;
    for (int i = 0; i < 1000; i++) {
        struct request *r = make(&rules, i, fields);
        CU_ASSERT_EQUAL(ask(c, &rules, r), RESULT_RUN);
        if (i == 998) st = request_fail(r, "numeric_error", "test");
        if (i == 998) st = result_cache_end(c, r);
        if (i != 998) end(c, &rules, r);
        request_destroy(&r);
    }
    for (int i = 999; i >= 0; i--) {
        struct request *r = make(&rules, i, fields);
        const bool known = ask(c, &rules, r) == RESULT_DONE;
        if (i == 999) CU_ASSERT_TRUE(known);
        if (i == 998) CU_ASSERT_FALSE(known);
        n_known += known;
        if (!known) end(c, &rules, r);
        request_destroy(&r);
    }
    CU_ASSERT(n_known > 4);
    CU_ASSERT(n_known < 40);
    result_cache_destroy(&c);
}

void suite_result_cache(CU_pSuite suite);
void suite_result_cache(CU_pSuite suite)
{
    CU_add_test(suite, "repeated lines give the same rows for less work",
                repeated_lines_give_the_same_rows_for_less_work);
    CU_add_test(suite, "who waits for whom", who_waits_for_whom);
    CU_add_test(suite, "memory is bounded", memory_is_bounded);
}

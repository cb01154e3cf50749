/* The scheduler with a fake engine: in thousands of random layouts, limits and pools, every request
 * must get the same result as when it runs alone. */
#include "serve/schedule/scheduler.h"

#include "base/mem.h"
#include "serve/schedule/scheduler_private.h"
#include "util_cases.h"
#include "util_scenario.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check_scenarios(uint64_t first, uint64_t n, bool score)
{
    uint64_t n_bad = 0, n_preempted = 0, n_recomputed = 0, n_drafts = 0, n_right = 0;
    for (uint64_t i = first; i < first + n; i++) {
        struct scenario c = scenario_random(i, score);
        const struct outcome o = scenario_run(&c);
        n_bad += !scenario_went_well(&c, &o);
        n_preempted += o.n_preemptions > 0;
        n_recomputed += o.n_recomputed > 0;
        n_drafts += o.n_drafts;
        n_right += o.n_right_drafts;
    }
    printf("[%llu of %llu drafts right] ", (unsigned long long)n_right,
           (unsigned long long)n_drafts);
    CU_ASSERT_EQUAL(n_bad, 0);
    /* A scored request holds all its blocks from the start, so none is preempted. */
    if (!score) {
        CU_ASSERT(n_preempted > n / 20);
        CU_ASSERT(n_recomputed > n / 20);
        CU_ASSERT(n_right > 10 * n && n_drafts > n_right + 10 * n);
    }
}

/* Draft tokens of a prediction layer, alone or beside drafts from the request's own text. */
static void guesses_of_a_layer_change_no_result(void)
{
    enum { N = 400 };
    uint64_t n_bad = 0, n_drafts = 0, n_right = 0, n_preempted = 0;
    for (uint64_t i = 0; i < N; i++) {
        struct scenario c = scenario_sharing(70000 + i, i % 3 == 0);
        c.o.drafter = NULL;
        c.o.predicts = true;
        c.o.no_repeats = i % 2 == 0;
        c.o.flags.n_drafts = 1 + (int32_t)(i % 7);
        if (i % 4 == 0) c.o.draft_cost = (struct drafting_cost){.row = 0.15f, .predict = 0.05f};
        const struct outcome o = scenario_run(&c);
        n_bad += !scenario_went_well(&c, &o);
        n_drafts += o.n_drafts;
        n_right += o.n_right_drafts;
        n_preempted += o.n_preemptions > 0;
    }
    printf("[%llu of %llu guesses right] ", (unsigned long long)n_right,
           (unsigned long long)n_drafts);
    CU_ASSERT_EQUAL(n_bad, 0);
    CU_ASSERT(n_preempted > N / 20 && n_right > 10 * N && n_drafts > n_right + N);
}

static void any_layout_and_limits_give_each_request_its_own_result(void)
{
    check_scenarios(0, util_cases(3000), false);
}

static void any_layout_and_limits_give_the_same_scores(void)
{
    check_scenarios(100000, util_cases(500), true);
}

/* When requests are cancelled at random, the others get their own results, and no block is lost. */
static void cancelled_requests_leave_their_blocks(void)
{
    uint64_t n_bad = 0, n_cancelled = 0, n_rest = 0;
    for (uint64_t i = 0; i < util_cases(1500); i++) {
        struct scenario c = i % 2 ? scenario_random(i, false) : scenario_sharing(i, true);
        c.cancels = 1 + (int32_t)(i % 11);
        const struct outcome o = scenario_run(&c);
        n_bad += !scenario_went_well(&c, &o);
        n_cancelled += o.n_cancelled;
        n_rest += o.n_finished - o.n_cancelled;
    }
    CU_ASSERT_EQUAL(n_bad, 0);
    CU_ASSERT(n_cancelled > util_cases(1500) && n_rest > util_cases(1500));
}

/* scenario_went_well compares with the answer that each request gets alone, so runs with and
 * without shared prefixes agree. */
static void shared_prefixes_change_no_result(void)
{
    uint64_t n_bad = 0, n_hit = 0, n_preempted = 0, n_both = 0, n_errors = 0, n_rows[2] = {0};
    for (uint64_t i = 0; i < util_cases(2000); i++) {
        for (int on = 0; on < 2; on++) {
            struct scenario c = scenario_sharing(i, on);
            const struct outcome o = scenario_run(&c);
            n_bad += !scenario_went_well(&c, &o);
            n_rows[on] += o.n_rows;
            n_errors += on ? o.n_errors : 0;
            if (!on) CU_ASSERT_EQUAL(o.n_hit_tokens, 0);
            n_hit += o.n_hit_tokens > 0;
            n_preempted += on && o.n_preemptions > 0;
            n_both += o.n_preemptions > 0 && o.n_hit_tokens > 0;
        }
    }
    CU_ASSERT_EQUAL(n_bad, 0);
    CU_ASSERT(n_hit > util_cases(1000));
    CU_ASSERT(n_preempted > util_cases(200));
    CU_ASSERT(n_both > util_cases(200));
    CU_ASSERT(n_errors > (util_cases(4) == 4 ? 20 : 0)); /* few of the first 500 runs have one */
    CU_ASSERT(n_rows[1] < n_rows[0] * 3 / 4);
    printf("[%llu hit, %llu preempted, both %llu, %llu error rows, rows %llu -> %llu] ",
           (unsigned long long)n_hit, (unsigned long long)n_preempted, (unsigned long long)n_both,
           (unsigned long long)n_errors, (unsigned long long)n_rows[0],
           (unsigned long long)n_rows[1]);
}

/* Rows that are taken from the prefix cache give no log-probabilities, so only blocks before a
 * pair's first scored row are taken. */
static void shared_contexts_change_no_score(void)
{
    uint64_t n_bad = 0, n_hit = 0, n_rows[2] = {0};
    for (uint64_t i = 0; i < util_cases(600); i++) {
        for (int on = 0; on < 2; on++) {
            struct scenario c = scenario_sharing(i, on);
            c.rules.score = c.rules.takes_pairs = true;
            const struct outcome o = scenario_run(&c);
            n_bad += !scenario_went_well(&c, &o);
            n_hit += o.n_hit_tokens > 0;
            n_rows[on] += o.n_rows;
            if (!on) CU_ASSERT_EQUAL(o.n_hit_tokens, 0);
        }
    }
    CU_ASSERT_EQUAL(n_bad, 0);
    CU_ASSERT(n_hit > util_cases(200) && n_rows[1] < n_rows[0]);
    printf("[%llu hit, rows %llu -> %llu] ", (unsigned long long)n_hit,
           (unsigned long long)n_rows[0], (unsigned long long)n_rows[1]);
}

/* A node of the trie of all prompts, which tells how much a cache without limits could save. */
struct trie_node {
    int32_t token, child, sibling;
};

/* Adds a prompt. Returns how many of its tokens were in the trie already, not counting its last
 * token, which is always computed. */
static uint64_t trie_add(struct trie_node *nodes, int32_t *n_nodes, const struct request *r)
{
    int32_t at = 0;
    uint64_t n_known = 0;
    for (size_t i = 0; i < r->n_prompt; i++) {
        int32_t child = nodes[at].child;
        while (child >= 0 && nodes[child].token != r->tokens[i]) child = nodes[child].sibling;
        if (child >= 0) {
            n_known += i + 1 < r->n_prompt;
        } else {
            child = (*n_nodes)++;
            nodes[child] = (struct trie_node){r->tokens[i], -1, nodes[at].child};
            nodes[at].child = child;
        }
        at = child;
    }
    return n_known;
}

static uint64_t trie_bound(const struct scenario *c)
{
    struct trie_node *nodes = NULL;
    struct status st = mem_alloc(&nodes, 1 << 20, sizeof *nodes, "trie");
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    nodes[0] = (struct trie_node){-1, -1, -1};
    int32_t n_nodes = 1;
    uint64_t bound = 0;
    for (int32_t i = 0; i < c->n_requests; i++) {
        struct request *r = scenario_request(c, i);
        bound += trie_add(nodes, &n_nodes, r);
        request_destroy(&r);
    }
    mem_free(&nodes);
    return bound;
}

/* 2,000 prompts over 20 headers of 700 tokens, in random order: on one replica with two steps in
 * flight, and on two replicas with four. */
static void shared_headers_are_computed_about_once(void)
{
    for (int32_t n_replicas = 1; n_replicas <= 2; n_replicas++) {
        struct scenario c = {.seed = 77, .n_requests = 2000, .n_headers = 20};
        c.rules = (struct request_rules){
            .end_ids = end_ids, .n_end_ids = 1, .vocab_size = FAKE_VOCAB, .max_model_len = 1024};
        request_defaults_init(&c.rules.defaults);
        c.header_tokens = 700;
        c.tail_tokens = 30;
        c.max_tokens = 8;
        c.o = (struct scheduler_options){.n_replicas = n_replicas,
                                         .n_groups = 2 * n_replicas,
                                         .n_blocks = 500,
                                         .flags = fake_schedule_flags()};
        c.o.flags.prefix_cache = true;
        const struct outcome o = scenario_run(&c);
        const uint64_t bound = trie_bound(&c);
        CU_ASSERT(scenario_went_well(&c, &o));
        CU_ASSERT(bound > 1300000);
        CU_ASSERT(o.n_preemptions > 0 || o.n_hit_tokens <= bound);
        CU_ASSERT(o.n_hit_tokens * 10 >= bound * 9);
        CU_ASSERT_EQUAL(o.n_prompt_tokens, 2000 * 730);
        printf("[%d replicas: %llu of %llu tokens saved, %.1f %%, %llu preemptions] ", n_replicas,
               (unsigned long long)o.n_hit_tokens, (unsigned long long)bound,
               100.0 * (double)o.n_hit_tokens / (double)bound, (unsigned long long)o.n_preemptions);
    }
}

static void a_tight_pool_preempts_and_a_wide_one_does_not(void)
{
    for (int wide = 0; wide < 2; wide++) {
        for (int32_t groups = 1; groups <= 4; groups++) {
            struct scenario c = scenario_random(5, false);
            c.rules.max_model_len = 300;
            c.o = (struct scheduler_options){
                .n_replicas = 1, .n_groups = groups, .flags = fake_schedule_flags()};
            c.o.n_blocks = wide ? 300 : 6;
            c.n_requests = 40;
            c.late = false;
            const struct outcome o = scenario_run(&c);
            CU_ASSERT(scenario_went_well(&c, &o));
            CU_ASSERT_EQUAL(o.n_preemptions > 0, !wide);
        }
    }
}

static void a_batch_limit_of_one_runs_one_at_a_time(void)
{
    struct scenario c = scenario_random(11, false);
    c.rules.max_model_len = 200;
    c.o = (struct scheduler_options){
        .n_replicas = 1, .n_groups = 3, .n_blocks = 40, .flags = fake_schedule_flags()};
    c.o.flags.max_batch = 1;
    c.n_requests = 12;
    const struct outcome o = scenario_run(&c);
    CU_ASSERT(scenario_went_well(&c, &o));
    CU_ASSERT_EQUAL(o.n_preemptions, 0);
}

/* With enough requests, every group and every replica works from the first round on. */
static void work_is_spread_over_groups_and_replicas(void)
{
    struct scenario c = scenario_random(3, false);
    struct serve_summary stats = {0};
    struct scheduler *s = NULL;
    struct step_plan plan;
    c.rules.max_model_len = 100;
    c.o = (struct scheduler_options){.rules = &c.rules,
                                     .n_replicas = 2,
                                     .n_groups = 4,
                                     .n_blocks = 64,
                                     .flags = fake_schedule_flags()};
    struct status st = scheduler_create(&c.o, &stats, &s);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    st = step_plan_init(&plan, 2);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    for (int32_t i = 0; i < 24; i++) scheduler_submit(s, scenario_request(&c, i));
    for (int32_t g = 0; g < 4; g++) {
        st = scheduler_plan(s, g, (uint64_t)g, &plan);
        CU_ASSERT_FALSE_FATAL(status_failed(&st));
        CU_ASSERT_EQUAL(plan.replica_begin[1], 3);
        CU_ASSERT_EQUAL(plan.replica_begin[2], 6);
    }
    st = scheduler_plan(s, 0, 4, &plan);
    CU_ASSERT_EQUAL(st.code, STATUS_BUG); /* step 0 was not committed */
    step_plan_fini(&plan);
    scheduler_destroy(&s);
}

static void a_pool_below_one_context_is_refused(void)
{
    struct scenario c = scenario_random(3, false);
    struct serve_summary stats = {0};
    struct scheduler *s = NULL;
    c.rules.max_model_len = 257;
    c.o = (struct scheduler_options){.rules = &c.rules,
                                     .n_replicas = 1,
                                     .n_groups = 1,
                                     .n_blocks = 4,
                                     .flags = fake_schedule_flags()};
    struct status st = scheduler_create(&c.o, &stats, &s);
    CU_ASSERT_EQUAL(st.code, STATUS_USAGE);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "5 blocks of 64, found 4"));
    CU_ASSERT_PTR_NULL(s);
    c.rules.max_model_len = 256;
    st = scheduler_create(&c.o, &stats, &s);
    CU_ASSERT_FALSE(status_failed(&st));
    scheduler_destroy(&s);
}

/* Returns a scheduler with one request in flight, and makes *plan, the plan of its step. */
static struct scheduler *one_in_flight(struct scenario *c, struct serve_summary *stats,
                                       struct step_plan *plan)
{
    struct scheduler *s = NULL;
    c->rules.max_model_len = 200;
    c->o = (struct scheduler_options){.rules = &c->rules,
                                      .n_replicas = 1,
                                      .n_groups = 1,
                                      .n_blocks = 8,
                                      .flags = fake_schedule_flags()};
    struct status st = scheduler_create(&c->o, stats, &s);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    st = step_plan_init(plan, 1);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    scheduler_submit(s, scenario_request(c, 0));
    st = scheduler_plan(s, 0, 0, plan);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    CU_ASSERT_EQUAL_FATAL(plan->n_seqs, 1);
    return s;
}

static void results_that_do_not_answer_the_plan_are_bugs(void)
{
    const struct {
        uint64_t step;
        struct result_seq seq;
    } wrong[] = {
        {1, {.id = 0, .token = 5}},
        {0, {.id = 1, .token = 5}},
        {0, {.id = 0, .token = FAKE_VOCAB}},
        {0, {.id = 0, .token = -1}},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct scenario c = scenario_random(3, false);
        struct serve_summary stats = {0};
        struct step_plan plan;
        struct step_result result;
        struct scheduler *s = one_in_flight(&c, &stats, &plan);
        step_result_init(&result);
        step_result_clear(&result, wrong[i].step, 0, FAKE_VOCAB);
        struct status st = step_result_add(&result, &wrong[i].seq);
        CU_ASSERT_FALSE_FATAL(status_failed(&st));
        st = scheduler_commit(s, 0, &result);
        CU_ASSERT_EQUAL(st.code, STATUS_BUG);
        step_result_fini(&result);
        step_plan_fini(&plan);
        scheduler_destroy(&s);
    }
}

static void bad_arithmetic_makes_an_error_of_that_request(void)
{
    struct scenario c = scenario_random(3, false);
    struct serve_summary stats = {0};
    struct step_plan plan;
    struct step_result result;
    struct scheduler *s = one_in_flight(&c, &stats, &plan);
    const struct result_seq seq = {.id = 0, .token = 3, .n_bad = 2};
    step_result_init(&result);
    step_result_clear(&result, 0, 0, FAKE_VOCAB);
    struct status st = step_result_add(&result, &seq);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    st = scheduler_commit(s, 0, &result);
    CU_ASSERT_FALSE(status_failed(&st));
    struct request *r = scheduler_take_finished(s);
    CU_ASSERT_PTR_NOT_NULL_FATAL(r);
    CU_ASSERT_STRING_EQUAL(r->error.code, "numeric_error");
    CU_ASSERT_EQUAL(scheduler_load(s).n_free_blocks, 8);
    request_destroy(&r);
    step_result_fini(&result);
    step_plan_fini(&plan);
    scheduler_destroy(&s);
}

/* A scheduler with prompts for many steps of 512 rows. Every step takes longer than flags.step_ns.
 */
struct slow_steps {
    struct scenario c;
    struct serve_summary stats;
    struct scheduler *s;
    struct fake_engine engine;
    struct step_plan plan;
    struct step_result result;
    uint64_t step;
};

static void slow_steps_init(struct slow_steps *t, uint64_t eased_step_ns,
                            const struct embed_rules *embed)
{
    *t = (struct slow_steps){.c = scenario_sharing(3, false)};
    t->c.rules.embed = embed;
    t->c.n_headers = 1;
    t->c.header_tokens = 400;
    t->c.tail_tokens = 100;
    t->c.rules.max_model_len = 600;
    t->c.o = (struct scheduler_options){.rules = &t->c.rules,
                                        .n_replicas = 1,
                                        .n_groups = 1,
                                        .n_blocks = 400,
                                        .eased_step_ns = eased_step_ns,
                                        .flags = fake_schedule_flags()};
    t->c.o.flags.step_tokens = 512;
    t->c.o.flags.step_ns = 1;
    struct status st = scheduler_create(&t->c.o, &t->stats, &t->s);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    st = step_plan_init(&t->plan, 1);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    fake_engine_init(&t->engine, 1, t->c.o.n_blocks);
    step_result_init(&t->result);
    for (int32_t i = 0; i < 32; i++) (void)scheduler_submit(t->s, scenario_request(&t->c, i));
}

static void slow_steps_fini(struct slow_steps *t)
{
    CU_ASSERT_EQUAL(t->engine.n_wrong, 0);
    step_result_fini(&t->result);
    fake_engine_fini(&t->engine);
    step_plan_fini(&t->plan);
    scheduler_destroy(&t->s);
}

/* Runs n steps and returns the number of rows of the last one. */
static uint64_t rows_after(struct slow_steps *t, int n)
{
    uint64_t before = 0;
    for (int i = 0; i < n; i++) {
        before = t->engine.n_rows;
        struct status st = scheduler_plan(t->s, 0, t->step++, &t->plan);
        CU_ASSERT_FALSE_FATAL(status_failed(&st));
        fake_engine_run(&t->engine, &t->plan, &t->result);
        st = scheduler_commit(t->s, 0, &t->result);
        CU_ASSERT_FALSE_FATAL(status_failed(&st));
    }
    return t->engine.n_rows - before;
}

/* Cancels r, which has not begun to run, and destroys all finished requests, r among them. */
static void cancel_waiting(struct slow_steps *t, const struct request *r)
{
    struct request *ended;
    bool has_ended = false;
    struct status st = scheduler_cancel(t->s, r, "cancelled", "by the test");
    CU_ASSERT_FALSE(status_failed(&st));
    while ((ended = scheduler_take_finished(t->s)) != NULL) {
        has_ended = has_ended || ended == r;
        request_destroy(&ended);
    }
    CU_ASSERT(has_ended);
}

static void steps_are_short_only_while_they_matter_to_a_client(void)
{
    const uint64_t long_ns = 1000000000000u; /* no step takes as long */
    struct slow_steps t;
    slow_steps_init(&t, 0, NULL);
    CU_ASSERT_EQUAL(rows_after(&t, 1), 512);
    CU_ASSERT_EQUAL(rows_after(&t, 4), SCHEDULER_STEP_LEAST);
    slow_steps_fini(&t);
    slow_steps_init(&t, long_ns, NULL);
    CU_ASSERT_EQUAL(rows_after(&t, 4), 512);
    CU_ASSERT_EQUAL(t.stats.n_least_step_rows, 512);
    struct request *r = scenario_request(&t.c, 32);
    ((struct request_ask *)r->ask)->streams = true;
    (void)scheduler_submit(t.s, r);
    CU_ASSERT_EQUAL(rows_after(&t, 1), SCHEDULER_STEP_LEAST); /* the long steps were measured */
    CU_ASSERT_EQUAL(t.stats.n_least_step_rows, SCHEDULER_STEP_LEAST);
    cancel_waiting(&t, r);
    CU_ASSERT_EQUAL(rows_after(&t, 2), 512);
    r = scenario_request(&t.c, 33);
    request_run_last(r);
    (void)scheduler_submit(t.s, r);
    CU_ASSERT_EQUAL(rows_after(&t, 1), SCHEDULER_STEP_LEAST);
    t.s->came_ns = 1; /* the other requests came long ago, but are not finished */
    CU_ASSERT_EQUAL(rows_after(&t, 1), SCHEDULER_STEP_LEAST);
    cancel_waiting(&t, r);
    CU_ASSERT_EQUAL(rows_after(&t, 1), 512);
    slow_steps_fini(&t);
    slow_steps_init(&t, 1, NULL); /* a step that matters to no client has a bound too */
    CU_ASSERT_EQUAL(rows_after(&t, 5), SCHEDULER_STEP_LEAST);
    slow_steps_fini(&t);
}

/* An encoder computes a text in one step, so with a budget below a text's length the text would
 * never be computed. */
static void slow_steps_leave_room_for_an_encoders_texts(void)
{
    const struct embed_rules embed = {.is_whole = true};
    struct slow_steps t;
    slow_steps_init(&t, 1, &embed);
    for (int i = 0; i < 3; i++) CU_ASSERT_EQUAL(rows_after(&t, 1), 500);
    slow_steps_fini(&t);
}

void suite_scheduler(CU_pSuite suite);
void suite_scheduler(CU_pSuite suite)
{
    CU_add_test(suite, "guesses of a layer change no result", guesses_of_a_layer_change_no_result);
    CU_add_test(suite, "any layout and limits give each request its own result",
                any_layout_and_limits_give_each_request_its_own_result);
    CU_add_test(suite, "any layout and limits give the same scores",
                any_layout_and_limits_give_the_same_scores);
    CU_add_test(suite, "shared contexts change no score", shared_contexts_change_no_score);
    CU_add_test(suite, "cancelled requests leave their blocks",
                cancelled_requests_leave_their_blocks);
    CU_add_test(suite, "shared prefixes change no result", shared_prefixes_change_no_result);
    CU_add_test(suite, "shared headers are computed about once",
                shared_headers_are_computed_about_once);
    CU_add_test(suite, "a tight pool preempts and a wide one does not",
                a_tight_pool_preempts_and_a_wide_one_does_not);
    CU_add_test(suite, "a batch limit of one runs one at a time",
                a_batch_limit_of_one_runs_one_at_a_time);
    CU_add_test(suite, "work is spread over groups and replicas",
                work_is_spread_over_groups_and_replicas);
    CU_add_test(suite, "a pool below one context is refused", a_pool_below_one_context_is_refused);
    CU_add_test(suite, "results that do not answer the plan are bugs",
                results_that_do_not_answer_the_plan_are_bugs);
    CU_add_test(suite, "steps are short only while they matter to a client",
                steps_are_short_only_while_they_matter_to_a_client);
    CU_add_test(suite, "slow steps leave room for an encoder's texts",
                slow_steps_leave_room_for_an_encoders_texts);
    CU_add_test(suite, "bad arithmetic makes an error of that request",
                bad_arithmetic_makes_an_error_of_that_request);
}

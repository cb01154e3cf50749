/* The scheduler with a fake engine: in thousands of random layouts, limits and pools, every request
 * must get the same result as when it runs alone. */
#include "serve/schedule/scheduler.h"

#include "base/mem.h"
#include "serve/schedule/scheduler_private.h"
#include "util_fake_engine.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GROUPS_MAX = 4, REPLICAS_MAX = 3, REQUESTS_MAX = 40, CONTEXT_MAX = 2048 };

static const int32_t end_ids[] = {FAKE_END_ID};

/* One random run. */
struct scenario {
    struct request_rules rules;
    struct scheduler_options o;
    int32_t n_requests;
    bool late;         /* requests are added a few at a time */
    int32_t n_headers; /* number of headers with which prompts begin; 0: each prompt is different */
    int32_t header_tokens, tail_tokens; /* 0: random lengths */
    int32_t max_tokens;                 /* 0: random */
    int32_t bad_token;                  /* the engine fails at this token at position 70 of a
                                           prompt; 0: never */
    int32_t cancels;                    /* a request is cancelled in one of this many steps; 0:
                                           never */
    uint64_t seed;
};

struct outcome {
    uint64_t n_finished, n_different, n_wrong, n_preemptions, n_recomputed, n_unordered, n_misheld;
    uint64_t n_errors, n_cancelled, n_ended_cancelled, n_rows, n_steps, n_prompt_tokens,
        n_hit_tokens, n_drafts, n_right_drafts;
    uint64_t n_back, n_reads_failed;
    bool stuck, leaked;
    const char *wrong;
};

static struct scenario random_scenario(uint64_t seed, bool score)
{
    uint64_t x = seed * 0x9E3779B97F4A7C15u + 1;
    struct scenario c = {.seed = seed};
    for (int i = 0; i < 4; i++) fake_random(&x);
    c.rules = (struct request_rules){.end_ids = end_ids, .n_end_ids = 1, .vocab_size = FAKE_VOCAB};
    request_defaults_init(&c.rules.defaults);
    c.rules.max_model_len = (int32_t)fake_between(&x, 2, 420);
    c.rules.score = score;
    const int32_t n_needed = (c.rules.max_model_len + 63) / 64;
    c.o.flags = fake_schedule_flags();
    c.o.n_replicas = (int32_t)fake_between(&x, 1, REPLICAS_MAX);
    c.o.n_groups = (int32_t)fake_between(&x, 1, GROUPS_MAX);
    c.o.n_blocks = n_needed + (int32_t)(fake_between(&x, 0, 3) == 0 ? fake_between(&x, 0, 200)
                                                                    : fake_between(&x, 0, 6));
    c.o.flags.max_batch = fake_between(&x, 0, 1) ? 0 : (int32_t)fake_between(&x, 1, 9);
    c.o.flags.step_tokens =
        fake_between(&x, 0, 1) ? FAKE_STEP_TOKENS : (int32_t)fake_between(&x, 1, 200);
    c.o.flags.chunk_tokens = fake_between(&x, 0, 2) ? (int32_t)fake_between(&x, 1, 130) : 0;
    c.n_requests = (int32_t)fake_between(&x, 1, REQUESTS_MAX);
    c.late = fake_between(&x, 0, 1);
    c.o.flags.step_ns = fake_between(&x, 0, 1) ? 0 : (uint64_t)fake_between(&x, 1, 40000);
    if (fake_between(&x, 0, 1))
        c.o.flags.n_drafts = (int32_t)fake_between(&x, 1, SEQUENCE_DRAFTS_MAX);
    c.o.drafter = fake_engine_draft;
    return c;
}

/* A random run in which prompts begin alike, with the cache on or off. */
static struct scenario sharing_scenario(uint64_t seed, bool prefix_cache)
{
    struct scenario c = random_scenario(seed, false);
    uint64_t x = seed * 0xD1B54A32D192ED03u + 1;
    for (int i = 0; i < 4; i++) fake_random(&x);
    c.rules.max_model_len = (int32_t)fake_between(&x, 70, 420);
    const int32_t n_needed = (c.rules.max_model_len + 63) / 64;
    c.o.n_blocks = n_needed + (int32_t)fake_between(&x, 0, fake_between(&x, 0, 2) ? 8 : 100);
    c.n_headers = (int32_t)fake_between(&x, 1, 5);
    c.bad_token = fake_between(&x, 0, 3) ? 0 : (int32_t)fake_between(&x, 1, 60);
    c.o.flags.prefix_cache = prefix_cache;
    return c;
}

/* A prompt of at most `most` tokens: one of the scenario's headers, cut anywhere, and a tail. */
static int64_t shared_prompt(const struct scenario *c, uint64_t *x, int64_t most, int32_t *tokens)
{
    const uint64_t header = (uint64_t)fake_between(x, 0, c->n_headers - 1);
    uint64_t h = c->seed * 31 + header * 7777 + 5;
    for (int k = 0; k < 4; k++) fake_random(&h);
    int64_t n_header = fake_between(&h, 1, most), n_tail = fake_between(x, 0, 40);
    if (!fake_between(x, 0, 3)) n_header = fake_between(x, 1, n_header);
    if (c->header_tokens > 0) n_header = c->header_tokens;
    if (c->tail_tokens > 0) n_tail = c->tail_tokens;
    int64_t n = 0;
    while (n < n_header && n < most) tokens[n++] = (int32_t)fake_between(&h, 0, FAKE_VOCAB - 1);
    const int64_t end = n + n_tail < most ? n + n_tail : most;
    while (n < end) tokens[n++] = (int32_t)fake_between(x, 0, FAKE_VOCAB - 1);
    return n;
}

/* Makes request i of a scenario from a line of JSON. */
static struct request *make_request(const struct scenario *c, int32_t i)
{
    uint64_t x = (c->seed + 1) * 1000003u + (uint64_t)i * 7919u + 1;
    for (int k = 0; k < 4; k++) fake_random(&x);
    const int64_t most = c->rules.max_model_len - !c->rules.score;
    int64_t n_prompt = fake_between(&x, 0, 2) ? fake_between(&x, 1, most < 30 ? most : 30)
                                              : fake_between(&x, 1, most);
    const int max_tokens = (int)fake_between(&x, 1, 160), temperature = (int)fake_between(&x, 0, 1);
    int32_t tokens[CONTEXT_MAX];
    if (c->n_headers > 0) {
        n_prompt = shared_prompt(c, &x, most, tokens);
    } else {
        for (int64_t k = 0; k < n_prompt; k++)
            tokens[k] = (int32_t)fake_between(&x, 0, FAKE_VOCAB - 1);
    }
    struct strbuf line;
    strbuf_init(&line);
    strbuf_printf(&line,
                  "{\"custom_id\":\"r%d\",\"max_tokens\":%d,\"temperature\":%d,"
                  "\"prompt_token_ids\":[",
                  i, c->max_tokens > 0 ? c->max_tokens : max_tokens, temperature);
    for (int64_t k = 0; k < n_prompt; k++) strbuf_printf(&line, k == 0 ? "%d" : ",%d", tokens[k]);
    strbuf_puts(&line, "]}");
    struct request *r = NULL;
    const struct status st = request_create(&c->rules, (uint64_t)i + 1, line.data, line.n, &r);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    CU_ASSERT_PTR_NULL_FATAL(r->error_code);
    r->index = r->order = (uint64_t)i;
    strbuf_fini(&line);
    return r;
}

static bool is_right(const struct scenario *c, const struct request *r)
{
    if (c->rules.score) {
        for (size_t i = 1; i < r->n_prompt; i++)
            if (r->scores[i] != fake_engine_score(r->tokens, i)) return false;
        return r->finish == REQUEST_SCORED;
    }
    int32_t tokens[CONTEXT_MAX];
    const size_t n = fake_engine_expect(r, c->rules.max_model_len, tokens);
    const size_t n_all = r->n_prompt + n; /* the last sampled token is never computed */
    if (c->bad_token > 0 && n_all > 71 && tokens[70] == c->bad_token)
        return r->error_code != NULL && strcmp(r->error_code, "numeric_error") == 0;
    const bool ended = tokens[r->n_prompt + n - 1] == FAKE_END_ID;
    return r->n_tokens == r->n_prompt + n &&
           memcmp(tokens, r->tokens, r->n_tokens * sizeof *tokens) == 0 &&
           r->finish == (ended ? REQUEST_STOP : REQUEST_LENGTH);
}

static const char cancelled_code[] = "cancelled";

/* The request that a walk over all requests chose, each with the same odds. */
struct choice {
    uint64_t x;
    int64_t n;
    struct request *chosen;
};

static struct status choose(void *user, struct request *r)
{
    struct choice *c = user;
    if (r->error_code == NULL && fake_between(&c->x, 0, c->n++) == 0) c->chosen = r;
    return status_ok();
}

/* Cancels a request that runs, waits or is in flight. */
static void cancel_one(const struct scenario *c, struct scheduler *s, uint64_t step,
                       struct outcome *out)
{
    struct choice choice = {.x = (c->seed + 7) * 2654435761u + step * 40503u + 1};
    for (int i = 0; i < 4; i++) fake_random(&choice.x);
    if (c->cancels == 0 || fake_between(&choice.x, 1, c->cancels) > 1) return;
    struct status st = scheduler_visit(s, -1, choose, &choice);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    if (choice.chosen == NULL) return;
    out->n_cancelled++;
    st = scheduler_cancel(s, choice.chosen, cancelled_code, "its client has gone");
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
}

/* Commits the results of a group, with replicas in descending order, and checks the requests that
 * finished. */
static void commit(const struct scenario *c, struct scheduler *s, int32_t group,
                   struct step_result *results, struct outcome *out)
{
    for (int32_t r = c->o.n_replicas - 1; r >= 0; r--) {
        const struct status st = scheduler_commit(s, group, &results[r]);
        CU_ASSERT_FALSE_FATAL(status_failed(&st));
    }
    struct request *r;
    while ((r = scheduler_take_finished(s)) != NULL) {
        const bool is_cancelled = r->error_code == cancelled_code;
        out->n_finished++;
        out->n_ended_cancelled += is_cancelled;
        out->n_different += !is_cancelled && !is_right(c, r);
        out->n_errors += r->error_code != NULL;
        request_destroy(&r);
    }
}

/* Waiting requests are in the order of their age. A preempted request is younger than all requests
 * that run on its replica, so the oldest is never preempted and none overtakes another. */
static bool order_holds(const struct scheduler *s)
{
    for (const struct sequence *w = s->waiting.head; w != NULL; w = w->next) {
        if (w->next != NULL && sequence_is_before(w->next, w)) return false;
        if (w->first_plan_ns == 0) continue;
        const struct replica *replica = &s->replicas[w->replica];
        for (int32_t g = 0; g < s->o.n_groups; g++) {
            const struct sequence *tail = replica->groups[g].running.tail;
            if (tail != NULL && sequence_is_before(w, tail)) return false;
        }
    }
    return true;
}

/* Counts how often the requests that run on a replica hold each block. */
static void count_holders(const struct scheduler *s, const struct replica *replica,
                          int32_t *n_holders, int32_t *n_own)
{
    for (int32_t g = 0; g < s->o.n_groups; g++) {
        const struct sequence *q = replica->groups[g].running.head;
        for (; q != NULL; q = q->next) {
            const int32_t n_full = s->o.tables.n_full, n_tables = plan_tables_count(&s->o.tables);
            for (size_t b = 0; b < q->n_blocks || b < q->window_end; b++) {
                for (int32_t t = 0; t < n_tables; t++) {
                    const bool holds =
                        t < n_full ? b < q->n_blocks : b >= q->window_begin && b < q->window_end;
                    if (!holds) continue;
                    n_holders[sequence_blocks_at(s, q, b)[t]]++;
                    n_own[sequence_blocks_at(s, q, b)[t]] += b >= q->n_cached;
                }
            }
        }
    }
}

/* Sets n_refs[b] to the holders that the cache counts of each block, -1: not in the cache. Returns
 * the number of nodes. */
static int32_t count_cached(const struct replica *replica, int32_t *n_refs)
{
    const struct prefix_cache *c = &replica->cache;
    int32_t n = 0;
    for (int b = 0; b < 512; b++) n_refs[b] = -1;
    for (int32_t i = 0; i < c->n_nodes; i++) {
        const struct prefix_node *node = &c->nodes[i];
        if (!node->is_cached) continue;
        n++;
        for (int32_t t = 0; t < plan_tables_count(&c->tables); t++) {
            if (t < c->tables.n_full)
                n_refs[prefix_cache_blocks(c, i)[t]] = node->n_refs;
            else if (node->has_windows)
                n_refs[prefix_cache_blocks(c, i)[t]] = node->n_window_refs;
        }
    }
    return n;
}

/* Each block of each replica is free, is idle in the cache, is held as often as the cache counts,
 * or is held once by its owner. So no block is lost, and none has two owners that write to it. */
static bool holding_is_sound(const struct scheduler *s)
{
    bool sound = true;
    for (int32_t i = 0; i < s->o.n_replicas; i++) {
        const struct replica *replica = &s->replicas[i];
        int32_t n_holders[512] = {0}, n_own[512] = {0}, n_refs[512], n_idle = 0, n_cached = 0;
        count_holders(s, replica, n_holders, n_own);
        n_cached = count_cached(replica, n_refs);
        for (int32_t b = 0; b < s->o.n_blocks; b++) {
            const bool is_cached = n_refs[b] >= 0;
            n_idle += is_cached && n_holders[b] == 0;
            if (is_cached) {
                sound = sound && n_own[b] == 0 && !replica->pool.is_free[b] &&
                        n_refs[b] == n_holders[b];
            } else {
                sound =
                    sound && n_holders[b] == n_own[b] && n_own[b] + replica->pool.is_free[b] == 1;
            }
        }
        sound = sound && n_idle == prefix_cache_n_idle(&replica->cache) &&
                n_cached == replica->cache.n_cached;
    }
    return sound;
}

/* The lead's loop: n_groups plans in flight, executed in order. */
static struct outcome run(struct scenario *c)
{
    struct outcome out = {0};
    struct serve_summary stats = {0};
    struct scheduler *s = NULL;
    struct fake_engine engine;
    struct step_plan plan;
    struct step_result results[GROUPS_MAX][REPLICAS_MAX];
    c->o.rules = &c->rules;
    struct status st = scheduler_create(&c->o, &stats, &s);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    st = step_plan_init(&plan, c->o.n_replicas);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    fake_engine_init(&engine, c->o.n_replicas, c->o.n_blocks);
    engine.step_tokens = c->o.flags.step_tokens;
    if (c->o.n_tier_slots > 0) fake_engine_add_tier(&engine, c->o.n_tier_slots);
    if (plan_tables_count(&c->o.tables) > 0) engine.tables = c->o.tables;
    engine.max_batch = c->o.flags.max_batch;
    engine.shares = c->o.flags.prefix_cache;
    if (c->bad_token > 0) engine.bad_token = c->bad_token;
    if (c->bad_token > 0) engine.bad_position = 70;
    for (int g = 0; g < GROUPS_MAX; g++)
        for (int r = 0; r < REPLICAS_MAX; r++) step_result_init(&results[g][r]);
    int32_t n_submitted = 0;
    for (uint64_t step = 0; out.n_finished < (uint64_t)c->n_requests; step++) {
        const int32_t g = (int32_t)(step % (uint64_t)c->o.n_groups);
        if (step >= (uint64_t)c->o.n_groups) commit(c, s, g, results[g], &out);
        const int32_t n_wanted = c->late ? (int32_t)(step / 3) + 1 : c->n_requests;
        while (n_submitted < n_wanted && n_submitted < c->n_requests)
            scheduler_submit(s, make_request(c, n_submitted++));
        st = scheduler_plan(s, g, step, &plan);
        CU_ASSERT_FALSE_FATAL(status_failed(&st));
        cancel_one(c, s, step, &out);
        out.n_unordered += !order_holds(s);
        if (c->o.n_blocks <= 512) out.n_misheld += !holding_is_sound(s);
        fake_engine_run(&engine, &plan, results[g]);
        out.stuck = step > 400000;
        if (out.stuck || engine.n_wrong > 0) break;
    }
    const struct scheduler_load load = scheduler_load(s);
    out.leaked = !out.stuck && engine.n_wrong == 0 &&
                 (load.n_free_blocks != load.n_blocks || !scheduler_is_idle(s));
    out.n_wrong = engine.n_wrong;
    out.wrong = engine.wrong;
    out.n_preemptions = stats.n_preemptions;
    out.n_recomputed = stats.n_recomputed_tokens;
    out.n_back = stats.n_tier_tokens;
    out.n_reads_failed = stats.n_tier_failed;
    out.n_rows = engine.n_rows;
    out.n_steps = stats.n_steps;
    out.n_prompt_tokens = stats.n_prompt_tokens;
    out.n_hit_tokens = stats.n_prefix_hit_tokens;
    out.n_drafts = stats.n_drafts;
    out.n_right_drafts = stats.n_right_drafts;
    for (int g = 0; g < GROUPS_MAX; g++)
        for (int r = 0; r < REPLICAS_MAX; r++) step_result_fini(&results[g][r]);
    fake_engine_fini(&engine);
    step_plan_fini(&plan);
    scheduler_destroy(&s);
    return out;
}

static bool went_well(const struct scenario *c, const struct outcome *o)
{
    const bool well = o->n_finished == (uint64_t)c->n_requests && o->n_different == 0 &&
                      o->n_wrong == 0 && o->n_ended_cancelled == o->n_cancelled &&
                      o->n_unordered == 0 && o->n_misheld == 0 && !o->stuck && !o->leaked;
    if (!well) {
        printf("\n  scenario %llu: finished %llu of %d, different %llu, unordered %llu, misheld "
               "%llu, stuck %d, leaked %d, %s\n",
               (unsigned long long)c->seed, (unsigned long long)o->n_finished, c->n_requests,
               (unsigned long long)o->n_different, (unsigned long long)o->n_unordered,
               (unsigned long long)o->n_misheld, o->stuck, o->leaked,
               o->wrong != NULL ? o->wrong : "plans fine");
    }
    return well;
}

static void check_scenarios(uint64_t first, uint64_t n, bool score)
{
    uint64_t n_bad = 0, n_preempted = 0, n_recomputed = 0, n_drafts = 0, n_right = 0;
    for (uint64_t i = first; i < first + n; i++) {
        struct scenario c = random_scenario(i, score);
        const struct outcome o = run(&c);
        n_bad += !went_well(&c, &o);
        n_preempted += o.n_preemptions > 0;
        n_recomputed += o.n_recomputed > 0;
        n_drafts += o.n_drafts;
        n_right += o.n_right_drafts;
    }
    printf("[%llu of %llu drafts right] ", (unsigned long long)n_right,
           (unsigned long long)n_drafts);
    CU_ASSERT_EQUAL(n_bad, 0);
    /* Score mode holds all blocks from the start, so nothing is ever preempted. */
    if (!score) {
        CU_ASSERT(n_preempted > n / 20);
        CU_ASSERT(n_recomputed > n / 20);
        CU_ASSERT(n_right > 10 * n && n_drafts > n_right + 10 * n);
    }
}

/* Guesses of a prediction layer, alone or beside those from the text. */
static void guesses_of_a_layer_change_no_result(void)
{
    enum { N = 400 };
    uint64_t n_bad = 0, n_drafts = 0, n_right = 0, n_preempted = 0;
    for (uint64_t i = 0; i < N; i++) {
        struct scenario c = sharing_scenario(70000 + i, i % 3 == 0);
        c.o.drafter = NULL;
        c.o.predicts = true;
        c.o.no_repeats = i % 2 == 0;
        c.o.flags.n_drafts = 1 + (int32_t)(i % 7);
        if (i % 4 == 0) c.o.draft_cost = (struct drafting_cost){.row = 0.15f, .predict = 0.05f};
        const struct outcome o = run(&c);
        n_bad += !went_well(&c, &o);
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
    check_scenarios(0, 3000, false);
}

static void any_layout_and_limits_give_the_same_scores(void)
{
    check_scenarios(100000, 500, true);
}

/* The other requests get their own results, and no block is lost. */
static void cancelled_requests_leave_their_blocks(void)
{
    uint64_t n_bad = 0, n_cancelled = 0, n_rest = 0;
    for (uint64_t i = 0; i < 1500; i++) {
        struct scenario c = i % 2 ? random_scenario(i, false) : sharing_scenario(i, true);
        c.cancels = 1 + (int32_t)(i % 11);
        const struct outcome o = run(&c);
        n_bad += !went_well(&c, &o);
        n_cancelled += o.n_cancelled;
        n_rest += o.n_finished - o.n_cancelled;
    }
    CU_ASSERT_EQUAL(n_bad, 0);
    CU_ASSERT(n_cancelled > 1500 && n_rest > 1500);
}

/* is_right compares with the answer that each request gets alone, so runs with and without shared
 * prefixes agree. */
static void shared_prefixes_change_no_result(void)
{
    uint64_t n_bad = 0, n_hit = 0, n_preempted = 0, n_both = 0, n_errors = 0, n_rows[2] = {0};
    for (uint64_t i = 0; i < 2000; i++) {
        for (int on = 0; on < 2; on++) {
            struct scenario c = sharing_scenario(i, on);
            const struct outcome o = run(&c);
            n_bad += !went_well(&c, &o);
            n_rows[on] += o.n_rows;
            n_errors += on ? o.n_errors : 0;
            if (!on) CU_ASSERT_EQUAL(o.n_hit_tokens, 0);
            n_hit += o.n_hit_tokens > 0;
            n_preempted += on && o.n_preemptions > 0;
            n_both += o.n_preemptions > 0 && o.n_hit_tokens > 0;
        }
    }
    CU_ASSERT_EQUAL(n_bad, 0);
    CU_ASSERT(n_hit > 1000);
    CU_ASSERT(n_preempted > 200);
    CU_ASSERT(n_both > 200);
    CU_ASSERT(n_errors > 20);
    CU_ASSERT(n_rows[1] < n_rows[0] * 3 / 4);
    printf("[%llu hit, %llu preempted, both %llu, %llu error rows, rows %llu -> %llu] ",
           (unsigned long long)n_hit, (unsigned long long)n_preempted, (unsigned long long)n_both,
           (unsigned long long)n_errors, (unsigned long long)n_rows[0],
           (unsigned long long)n_rows[1]);
}

/* A random run of a model whose layers are one group without and some with a window. */
static struct scenario windowed_scenario(uint64_t seed, bool prefix_cache)
{
    struct scenario c = sharing_scenario(seed, prefix_cache);
    uint64_t x = seed * 0x8CB92BA72F3D8DD7u + 1;
    for (int i = 0; i < 4; i++) fake_random(&x);
    c.o.tables = (struct plan_tables){.n_full = 1,
                                      .n_windowed = (int32_t)fake_between(&x, 1, 3),
                                      .window = (int32_t)fake_between(&x, 2, 200)};
    struct scheduler_options o = c.o;
    if (o.flags.chunk_tokens == 0) o.flags.chunk_tokens = o.flags.step_tokens;
    const struct scheduler s = {.o = o};
    c.o.n_blocks = (int32_t)scheduler_blocks_held(&s, (size_t)c.rules.max_model_len) +
                   (int32_t)fake_between(&x, 0, fake_between(&x, 0, 2) ? 8 : 100);
    return c;
}

/* The engine checks that each row sees the rows of its own sequence in every table. */
static void windows_change_no_result(void)
{
    uint64_t n_bad = 0, n_hit = 0, n_both = 0;
    for (uint64_t i = 0; i < 2000; i++) {
        struct scenario c = windowed_scenario(i, i % 2);
        const struct outcome o = run(&c);
        n_bad += !went_well(&c, &o);
        n_hit += o.n_hit_tokens > 0;
        n_both += o.n_preemptions > 0 && o.n_hit_tokens > 0;
    }
    CU_ASSERT_EQUAL(n_bad, 0);
    CU_ASSERT(n_hit > 400);
    CU_ASSERT(n_both > 100);
    printf("[%llu hit, %llu of them preempted] ", (unsigned long long)n_hit,
           (unsigned long long)n_both);
}

/* Blocks go to disk and come back, some late, some not at all: in pools of every kind, with windows
 * and without. */
static void blocks_on_disk_change_no_result(void)
{
    uint64_t n_bad = 0, n_moved = 0, n_failed = 0, n_fewer = 0;
    for (uint64_t i = 0; i < 1500; i++) {
        struct scenario c = i % 3 == 0 ? windowed_scenario(i, true) : sharing_scenario(i, true);
        const struct outcome without = run(&c);
        uint64_t x = i + 77;
        c.o.n_tier_slots = (int32_t)fake_between(&x, 1, i % 4 == 0 ? 6 : 400);
        const struct outcome o = run(&c);
        n_bad += !went_well(&c, &o);
        n_moved += o.n_back > 0;
        n_failed += o.n_reads_failed > 0;
        n_fewer += o.n_recomputed < without.n_recomputed;
    }
    CU_ASSERT_EQUAL(n_bad, 0);
    CU_ASSERT(n_moved > 100);
    CU_ASSERT(n_failed > 25);
    CU_ASSERT(n_fewer > 70);
    printf("[%llu moved blocks, %llu lost some, %llu computed fewer again] ",
           (unsigned long long)n_moved, (unsigned long long)n_failed, (unsigned long long)n_fewer);
}

/* gpt-oss has as many layers with a window of 128 as without. A sequence of 2,048 tokens needs 32
 * blocks of the ones, and at most 3 of the others: two full blocks and the one being written. */
static void layers_with_a_window_keep_two_blocks(void)
{
    struct scenario c = {.seed = 5, .n_requests = 1, .max_tokens = 1, .n_headers = 1};
    c.rules = (struct request_rules){
        .end_ids = end_ids, .n_end_ids = 1, .vocab_size = FAKE_VOCAB, .max_model_len = 2048};
    request_defaults_init(&c.rules.defaults);
    c.header_tokens = 2000;
    c.tail_tokens = 1;
    c.o = (struct scheduler_options){.n_replicas = 1,
                                     .n_groups = 1,
                                     .n_blocks = 32 + 5,
                                     .tables = {1, 1, 128},
                                     .flags = fake_schedule_flags()};
    c.o.flags.step_tokens = 64;
    const struct outcome o = run(&c);
    CU_ASSERT(went_well(&c, &o)); /* in a pool that could not hold 32 and 32 blocks */
    c.o.rules = &c.rules;
    c.o.n_blocks = 32 + 3;
    c.o.flags.step_tokens = 1;
    struct serve_summary stats = {0};
    struct scheduler *s = NULL;
    struct status st = scheduler_create(&c.o, &stats, &s);
    CU_ASSERT_FALSE(status_failed(&st));
    scheduler_destroy(&s);
    c.o.n_blocks = 32 + 2;
    st = scheduler_create(&c.o, &stats, &s);
    CU_ASSERT(status_failed(&st));
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
        struct request *r = make_request(c, i);
        bound += trie_add(nodes, &n_nodes, r);
        request_destroy(&r);
    }
    mem_free(&nodes);
    return bound;
}

/* 2,000 prompts over 20 headers of 700 tokens, in random order, on one replica and on two with
 * microbatches in flight. */
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
        const struct outcome o = run(&c);
        const uint64_t bound = trie_bound(&c);
        CU_ASSERT(went_well(&c, &o));
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
            struct scenario c = random_scenario(5, false);
            c.rules.max_model_len = 300;
            c.o = (struct scheduler_options){
                .n_replicas = 1, .n_groups = groups, .flags = fake_schedule_flags()};
            c.o.n_blocks = wide ? 300 : 6;
            c.n_requests = 40;
            c.late = false;
            const struct outcome o = run(&c);
            CU_ASSERT(went_well(&c, &o));
            CU_ASSERT_EQUAL(o.n_preemptions > 0, !wide);
        }
    }
}

static void a_batch_limit_of_one_runs_one_at_a_time(void)
{
    struct scenario c = random_scenario(11, false);
    c.rules.max_model_len = 200;
    c.o = (struct scheduler_options){
        .n_replicas = 1, .n_groups = 3, .n_blocks = 40, .flags = fake_schedule_flags()};
    c.o.flags.max_batch = 1;
    c.n_requests = 12;
    const struct outcome o = run(&c);
    CU_ASSERT(went_well(&c, &o));
    CU_ASSERT_EQUAL(o.n_preemptions, 0);
}

/* With enough requests, every group and every replica works from the first round on. */
static void work_is_spread_over_groups_and_replicas(void)
{
    struct scenario c = random_scenario(3, false);
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
    for (int32_t i = 0; i < 24; i++) scheduler_submit(s, make_request(&c, i));
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
    struct scenario c = random_scenario(3, false);
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

/* Makes a scheduler in which one request is in flight, and its plan. */
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
    scheduler_submit(s, make_request(c, 0));
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
        struct scenario c = random_scenario(3, false);
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
    struct scenario c = random_scenario(3, false);
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
    CU_ASSERT_STRING_EQUAL(r->error_code, "numeric_error");
    CU_ASSERT_EQUAL(scheduler_load(s).n_free_blocks, 8);
    request_destroy(&r);
    step_result_fini(&result);
    step_plan_fini(&plan);
    scheduler_destroy(&s);
}

void suite_scheduler(CU_pSuite suite);
void suite_scheduler(CU_pSuite suite)
{
    CU_add_test(suite, "guesses of a layer change no result", guesses_of_a_layer_change_no_result);
    CU_add_test(suite, "any layout and limits give each request its own result",
                any_layout_and_limits_give_each_request_its_own_result);
    CU_add_test(suite, "any layout and limits give the same scores",
                any_layout_and_limits_give_the_same_scores);
    CU_add_test(suite, "cancelled requests leave their blocks",
                cancelled_requests_leave_their_blocks);
    CU_add_test(suite, "windows change no result", windows_change_no_result);
    CU_add_test(suite, "blocks on disk change no result", blocks_on_disk_change_no_result);
    CU_add_test(suite, "layers with a window keep two blocks",
                layers_with_a_window_keep_two_blocks);
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
    CU_add_test(suite, "bad arithmetic makes an error of that request",
                bad_arithmetic_makes_an_error_of_that_request);
}

/* Random runs of the scheduler: see util_scenario.h. */
#include "util_scenario.h"

#include "base/mem.h"
#include "serve/schedule/scheduler_private.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct scenario scenario_random(uint64_t seed, bool score)
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

struct scenario scenario_sharing(uint64_t seed, bool prefix_cache)
{
    static const struct request_adapter adapters[] = {{"a", {1, 2}, 77}, {"b", {3, 4}, 78}};
    struct scenario c = scenario_random(seed, false);
    uint64_t x = seed * 0xD1B54A32D192ED03u + 1;
    for (int i = 0; i < 4; i++) fake_random(&x);
    c.rules.max_model_len = (int32_t)fake_between(&x, 70, 420);
    const int32_t n_needed = (c.rules.max_model_len + 63) / 64;
    c.o.n_blocks = n_needed + (int32_t)fake_between(&x, 0, fake_between(&x, 0, 2) ? 8 : 100);
    c.n_headers = (int32_t)fake_between(&x, 1, 5);
    c.bad_token = fake_between(&x, 0, 3) ? 0 : (int32_t)fake_between(&x, 1, 60);
    c.o.flags.prefix_cache = prefix_cache;
    c.rules.adapters = adapters;
    c.rules.n_adapters = seed % 4 == 1 ? 2 : 0;
    return c;
}

/* Writes a prompt of at most `most` tokens, and returns its length: one of the scenario's headers,
 * sometimes only its beginning, and a tail. */
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

/* Appends a number that is not negative. strbuf_printf would take a tenth of the run's time. */
static void add_number(struct strbuf *out, int32_t n)
{
    char digits[10];
    size_t at = sizeof digits;
    do digits[--at] = (char)('0' + n % 10);
    while ((n /= 10) > 0);
    strbuf_add(out, digits + at, sizeof digits - at);
}

/* Makes request i of a scenario from a line of JSON. */
struct request *scenario_request(const struct scenario *c, int32_t i)
{
    static const char *const adapters[] = {"", "\"adapter\":\"a\",", "\"adapter\":\"b\","};
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
    const bool is_pair = c->rules.takes_pairs && n_prompt > 1;
    const int64_t n_context = is_pair ? fake_between(&x, 1, n_prompt - 1) : 0;
    strbuf_printf(&line,
                  "{\"custom_id\":\"r%d\",\"max_tokens\":%d,\"temperature\":%d,"
                  "%s\"%s\":[",
                  i, c->max_tokens > 0 ? c->max_tokens : max_tokens, temperature,
                  c->rules.n_adapters > 0 ? adapters[i % 3] : "",
                  is_pair ? "context" : "prompt_token_ids");
    for (int64_t k = 0; k < n_prompt; k++) {
        if (is_pair && k == n_context) strbuf_puts(&line, "],\"continuation\":[");
        if (k != 0 && k != n_context) strbuf_puts(&line, ",");
        add_number(&line, tokens[k]);
    }
    strbuf_puts(&line, "]}");
    struct request *r = NULL;
    const struct status st = request_create(&c->rules, (uint64_t)i + 1, line.data, line.n, &r);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    CU_ASSERT_PTR_NULL_FATAL(r->error.code);
    r->index = r->order = (uint64_t)i;
    strbuf_fini(&line);
    return r;
}

static bool is_right(const struct scenario *c, const struct request *r)
{
    if (c->rules.score) {
        if (c->bad_token > 0 && r->n_prompt > 70 && r->tokens[70] == c->bad_token)
            return r->error.code != NULL;
        float scores[CONTEXT_MAX];
        CU_ASSERT_FATAL(r->n_prompt <= CONTEXT_MAX);
        fake_engine_scores(r->ask->adapter, r->tokens, r->n_prompt, scores);
        for (size_t i = r->logprobs.score_from; i < r->n_prompt; i++)
            if (r->logprobs.scores[i] != scores[i]) return false;
        return r->finish == REQUEST_SCORED;
    }
    int32_t tokens[CONTEXT_MAX];
    const size_t n = fake_engine_expect(r, c->rules.max_model_len, tokens);
    const size_t n_all = r->n_prompt + n; /* the last sampled token is never computed */
    if (c->bad_token > 0 && n_all > 71 && tokens[70] == c->bad_token)
        return r->error.code != NULL && strcmp(r->error.code, "numeric_error") == 0;
    const bool ended = tokens[r->n_prompt + n - 1] == FAKE_END_ID;
    return r->n_tokens == r->n_prompt + n &&
           memcmp(tokens, r->tokens, r->n_tokens * sizeof *tokens) == 0 &&
           r->finish == (ended ? REQUEST_STOP : REQUEST_LENGTH);
}

static const char cancelled_code[] = "cancelled";

/* A walk over all requests that chooses one at random, each with the same odds. */
struct choice {
    uint64_t x;
    int64_t n;
    struct request *chosen;
};

static struct status choose(void *user, struct request *r)
{
    struct choice *c = user;
    if (r->error.code == NULL && fake_between(&c->x, 0, c->n++) == 0) c->chosen = r;
    return status_ok();
}

/* In one of c->cancels steps on average, cancels a random request that runs, waits or is in
 * flight. */
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

static struct status count_visit(void *user, struct request *r)
{
    (void)r;
    ++*(size_t *)user;
    return status_ok();
}

/* Whether a visit of the group comes to its running requests and to all preempted ones. */
static bool visits_all(struct scheduler *s, int32_t group)
{
    size_t n_visited = 0, n = 0;
    const struct status st = scheduler_visit(s, group, count_visit, &n_visited);
    for (int32_t i = 0; i < s->o.n_replicas; i++) n += s->replicas[i].groups[group].running.n;
    for (const struct sequence *w = s->waiting.head; w != NULL; w = w->next)
        n += w->first_plan_ns != 0;
    return !status_failed(&st) && n_visited == n;
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
        const bool is_cancelled = r->error.code == cancelled_code;
        out->n_finished++;
        out->n_ended_cancelled += is_cancelled;
        out->n_different += !is_cancelled && !is_right(c, r);
        out->n_errors += r->error.code != NULL;
        request_destroy(&r);
    }
}

/* Whether the waiting requests are in the order of their age, and a preempted request is younger
 * than all requests that run on its replica: then the oldest is never preempted and none overtakes
 * another. */
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

/* Adds to n_holders[b] the number of requests running on a replica that hold block b, and to
 * n_own[b] those of them that do not hold it through the prefix cache. */
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

/* Sets n_refs[b] to the number of holders of block b by the count of the prefix cache, or to -1 if
 * the block is not in the cache. Returns the number of cached nodes. */
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

/* Whether each block of each replica is free, is idle in the cache, is held as often as the cache
 * counts, or is held once by its owner. Then no block is lost, and none has two owners that write
 * to it. */
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

/* Lets a run begin as if n reads of blocks on disk had ended in each replica. */
static void count_reads(struct scheduler *s, struct fake_engine *e, uint64_t n)
{
    for (int32_t i = 0; i < s->o.n_replicas; i++) {
        s->replicas[i].n_reads = s->replicas[i].n_reads_ended = n;
        e->n_reads[i] = e->n_reads_ended[i] = n;
    }
}

struct outcome scenario_run(struct scenario *c)
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
    count_reads(s, &engine, c->n_reads);
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
            scheduler_submit(s, scenario_request(c, n_submitted++));
        st = scheduler_plan(s, g, step, &plan);
        CU_ASSERT_FALSE_FATAL(status_failed(&st));
        cancel_one(c, s, step, &out);
        out.n_unordered += !order_holds(s);
        out.n_unvisited += !visits_all(s, g);
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
    out.n_back = stats.tier.n_tokens;
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

bool scenario_went_well(const struct scenario *c, const struct outcome *o)
{
    const bool well = o->n_finished == (uint64_t)c->n_requests && o->n_different == 0 &&
                      o->n_wrong == 0 && o->n_ended_cancelled == o->n_cancelled &&
                      o->n_unordered == 0 && o->n_misheld == 0 && o->n_unvisited == 0 &&
                      !o->stuck && !o->leaked;
    if (!well) {
        printf("\n  scenario %llu: finished %llu of %d, different %llu, unordered %llu, misheld "
               "%llu, unvisited %llu, stuck %d, leaked %d, %s\n",
               (unsigned long long)c->seed, (unsigned long long)o->n_finished, c->n_requests,
               (unsigned long long)o->n_different, (unsigned long long)o->n_unordered,
               (unsigned long long)o->n_misheld, (unsigned long long)o->n_unvisited, o->stuck,
               o->leaked, o->wrong != NULL ? o->wrong : "plans fine");
    }
    return well;
}

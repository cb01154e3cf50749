/* Slots of recurrent states: in random runs with preemptions, the scheduler gives each running
 * sequence a slot of its own; in the pool, the states of slots and layers do not overlap. */
#include "attention/state_pool.h"
#include "base/mem.h"
#include "serve/schedule/scheduler_private.h"
#include "util_fake_engine.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <string.h>

enum { REPLICAS = 2, GROUPS = 3, SLOTS_MAX = 6, REQUESTS = 20, CONTEXT = 300 };

/* The state in a slot of a rank: the sequence that it belongs to, and the number of rows in it. */
struct slot {
    int32_t id, n_rows;
};

/* Requests, and what the plans did with the slots. */
struct slots_run {
    struct request_rules rules;
    struct scheduler_options o;
    struct slot slots[REPLICAS][SLOTS_MAX];
    uint64_t n_wrong, n_finished, n_different, n_restarts;
};

static const int32_t end_ids[] = {FAKE_END_ID};

static void init_run(struct slots_run *r, uint64_t *x)
{
    *r = (struct slots_run){.rules = {.end_ids = end_ids,
                                      .n_end_ids = 1,
                                      .vocab_size = FAKE_VOCAB,
                                      .max_model_len = CONTEXT}};
    request_defaults_init(&r->rules.defaults);
    r->o = (struct scheduler_options){.rules = &r->rules,
                                      .n_replicas = (int32_t)fake_between(x, 1, REPLICAS),
                                      .n_groups = (int32_t)fake_between(x, 1, GROUPS),
                                      .n_blocks = (int32_t)fake_between(x, 5, 12),
                                      .n_state_slots = (int32_t)fake_between(x, 1, SLOTS_MAX),
                                      .flags = fake_schedule_flags()};
    r->o.flags.chunk_tokens = (int32_t)fake_between(x, 1, 130);
}

static struct request *make_request(const struct slots_run *r, int32_t i, uint64_t *x)
{
    char line[4 * CONTEXT];
    int n = snprintf(line, sizeof line,
                     "{\"custom_id\":\"r%d\",\"max_tokens\":%d,\"prompt_token_ids\":[1", i,
                     (int)fake_between(x, 1, 120));
    for (int64_t k = fake_between(x, 0, 150); k > 0; k--)
        n += snprintf(line + n, sizeof line - (size_t)n, ",%d", (int)fake_between(x, 0, 255));
    n += snprintf(line + n, sizeof line - (size_t)n, "]}");
    struct request *q = NULL;
    const struct status st = request_create(&r->rules, (uint64_t)i + 1, line, (size_t)n, &q);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    CU_ASSERT_PTR_NULL_FATAL(q->error.code);
    q->index = q->order = (uint64_t)i;
    return q;
}

/* Follows the slots through a plan: rows at position 0 begin a state, others continue the state of
 * their own sequence, and no slot is used twice. */
static void follow(struct slots_run *r, const struct step_plan *plan)
{
    for (int32_t replica = 0; replica < r->o.n_replicas; replica++) {
        bool used[SLOTS_MAX] = {false};
        for (int32_t i = plan->replica_begin[replica]; i < plan->replica_begin[replica + 1]; i++) {
            const struct plan_seq *s = &plan->seqs[i];
            if (s->slot < 0 || s->slot >= r->o.n_state_slots || used[s->slot]) {
                r->n_wrong++;
                continue;
            }
            struct slot *slot = &r->slots[replica][s->slot];
            used[s->slot] = true;
            if (s->pos0 > 0 && (slot->id != s->id || slot->n_rows != s->pos0)) r->n_wrong++;
            if (s->pos0 == 0) r->n_restarts++;
            *slot = (struct slot){s->id, s->pos0 + s->n_rows};
        }
    }
}

static void take_finished(struct slots_run *r, struct scheduler *s)
{
    struct request *q;
    while ((q = scheduler_take_finished(s)) != NULL) {
        int32_t tokens[2 * CONTEXT];
        const size_t n = fake_engine_expect(q, CONTEXT, tokens);
        r->n_finished++;
        r->n_different += q->n_tokens != q->n_prompt + n ||
                          memcmp(tokens, q->tokens, q->n_tokens * sizeof *tokens) != 0;
        request_destroy(&q);
    }
}

static void play(struct slots_run *r, uint64_t *x, struct serve_summary *stats)
{
    struct scheduler *s = NULL;
    struct fake_engine engine;
    struct step_plan plan;
    struct step_result results[GROUPS][REPLICAS];
    struct status st = scheduler_create(&r->o, stats, &s);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    st = step_plan_init(&plan, r->o.n_replicas);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    fake_engine_init(&engine, r->o.n_replicas, r->o.n_blocks);
    for (int i = 0; i < GROUPS * REPLICAS; i++)
        step_result_init(&results[i / REPLICAS][i % REPLICAS]);
    for (int32_t i = 0; i < REQUESTS; i++) scheduler_submit(s, make_request(r, i, x));
    for (uint64_t step = 0; r->n_finished < REQUESTS && step < 100000; step++) {
        const int32_t g = (int32_t)(step % (uint64_t)r->o.n_groups);
        for (int32_t i = 0; step >= (uint64_t)r->o.n_groups && i < r->o.n_replicas; i++) {
            st = scheduler_commit(s, g, &results[g][i]);
            CU_ASSERT_FALSE_FATAL(status_failed(&st));
        }
        take_finished(r, s);
        st = scheduler_plan(s, g, step, &plan);
        CU_ASSERT_FALSE_FATAL(status_failed(&st));
        follow(r, &plan);
        fake_engine_run(&engine, &plan, results[g]);
    }
    for (int32_t i = 0; i < r->o.n_replicas; i++)
        CU_ASSERT_EQUAL(s->replicas[i].slots.n_free, r->o.n_state_slots);
    CU_ASSERT_EQUAL(engine.n_wrong, 0);
    for (int i = 0; i < GROUPS * REPLICAS; i++)
        step_result_fini(&results[i / REPLICAS][i % REPLICAS]);
    fake_engine_fini(&engine);
    step_plan_fini(&plan);
    scheduler_destroy(&s);
}

static void each_sequence_has_a_slot(void)
{
    uint64_t x = 7, n_preemptions = 0, n_full = 0;
    for (int i = 0; i < 300; i++) {
        struct slots_run r;
        struct serve_summary stats = {0};
        init_run(&r, &x);
        play(&r, &x, &stats);
        CU_ASSERT_EQUAL(r.n_finished, REQUESTS);
        CU_ASSERT_EQUAL(r.n_different, 0);
        CU_ASSERT_EQUAL(r.n_wrong, 0);
        /* <=, because preempting a sequence before its first row adds no start */
        CU_ASSERT(r.n_restarts >= REQUESTS && r.n_restarts <= REQUESTS + stats.n_preemptions);
        CU_ASSERT(stats.n_peak_batch <= (uint64_t)r.o.n_state_slots);
        n_preemptions += stats.n_preemptions;
        n_full += stats.n_peak_batch == (uint64_t)r.o.n_state_slots;
    }
    CU_ASSERT(n_preemptions > 300); /* the runs do what they should test */
    CU_ASSERT(n_full > 100);
}

/* Recurrent states allow neither shared blocks nor draft tokens. */
static void sharing_and_drafts_are_refused(void)
{
    uint64_t x = 9;
    struct slots_run r;
    struct serve_summary stats = {0};
    struct scheduler *s = NULL;
    for (int i = 0; i < 2; i++) {
        init_run(&r, &x);
        if (i == 0) r.o.flags.prefix_cache = true;
        if (i == 1) r.o.flags.n_drafts = 1;
        const struct status st = scheduler_create(&r.o, &stats, &s);
        CU_ASSERT_EQUAL(st.code, STATUS_USAGE);
    }
}

/* Adds 1 to every number of every slot and layer. A number that two slots or layers shared would
 * become 2. */
static void places_do_not_overlap(void)
{
    const struct state_shape shape = {
        .n_layers = 3,
        .n_slots = 4,
        .layer = {.n_heads = 2, .per_key = 3, .key_dim = 5, .value_dim = 7, .n_taps = 4}};
    const size_t n_conv = 3 * delta_channels(&shape.layer), n_heads = 2 * 3 * 5 * 7;
    struct state_pool *p = NULL;
    const struct status st = state_pool_create(&shape, &p);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    CU_ASSERT_EQUAL(p->n_bytes, 4 * 3 * (n_conv + n_heads) * sizeof(float));
    CU_ASSERT_EQUAL(p->n_bytes, 4 * state_pool_slot_bytes(&shape));
    for (uint32_t l = 0; l < shape.n_layers; l++) {
        const struct delta_states s = state_pool_layer(p, l);
        for (size_t i = 0; i < shape.n_slots * n_conv; i++) s.conv[i] += 1;
        for (size_t i = 0; i < shape.n_slots * n_heads; i++) s.heads[i] += 1;
    }
    uint64_t n_ones = 0;
    for (size_t i = 0; i < p->n_bytes / sizeof(float); i++) n_ones += ((float *)p->data)[i] == 1;
    CU_ASSERT_EQUAL(n_ones, p->n_bytes / sizeof(float));
    state_pool_destroy(&p);
}

void suite_state_slots(CU_pSuite suite);
void suite_state_slots(CU_pSuite suite)
{
    CU_add_test(suite, "each sequence has a slot of its own", each_sequence_has_a_slot);
    CU_add_test(suite, "sharing and drafts are refused", sharing_and_drafts_are_refused);
    CU_add_test(suite, "places do not overlap", places_do_not_overlap);
}

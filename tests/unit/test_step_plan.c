/* Plans and results as messages, and messages with false counts. */
#include "plan/step_plan.h"

#include <CUnit/CUnit.h>
#include <string.h>

static void fill(struct step_plan *p)
{
    const struct plan_seq a = {
        .id = 1, .n_rows = 3, .n_blocks = 1, .want = PLAN_SAMPLE, .top_p = 0.5f, .n_adjusts = 2};
    const struct plan_adjust adjusts[] = {{.id = 4, .n_sampled = 2}, {.id = 9, .bias = -1.5f}};
    const struct plan_seq b = {.id = 2,
                               .n_rows = 1,
                               .pos0 = 64,
                               .n_blocks = 2,
                               .want = PLAN_POOL,
                               .n_pool = 1,
                               .key = {7, 8},
                               .n_allowed_words = 2};
    const int32_t tokens[] = {10, 11, 12}, blocks[] = {5, 6};
    const uint32_t allowed[] = {7, 0x80000001};
    const struct plan_lists lists[] = {{tokens, blocks, adjusts, NULL},
                                       {tokens, blocks, NULL, allowed}};
    step_plan_clear(p, PLAN_RUN, 42);
    p->predicts = true;
    CU_ASSERT_EQUAL(step_plan_add(p, 0, &a, &lists[0]).code, STATUS_OK);
    step_plan_end_replica(p, 0);
    CU_ASSERT_EQUAL(step_plan_add(p, 1, &b, &lists[1]).code, STATUS_OK);
    step_plan_end_replica(p, 1);
}

static void plans_survive_the_message(void)
{
    struct step_plan p, q;
    struct plan_message m = {0};
    CU_ASSERT_EQUAL(step_plan_init(&p, 2).code, STATUS_OK);
    CU_ASSERT_EQUAL(step_plan_init(&q, 2).code, STATUS_OK);
    fill(&p);
    CU_ASSERT_EQUAL(step_plan_pack(&p, &m).code, STATUS_OK);
    CU_ASSERT_EQUAL(step_plan_unpack(m.words, m.n_words, &q).code, STATUS_OK);
    CU_ASSERT_EQUAL(q.step, 42);
    CU_ASSERT_TRUE(q.predicts);
    CU_ASSERT_EQUAL(q.n_seqs, 2);
    CU_ASSERT_EQUAL(memcmp(q.seqs, p.seqs, 2 * sizeof *p.seqs), 0);
    CU_ASSERT_EQUAL(memcmp(q.tokens, p.tokens, 4 * sizeof *p.tokens), 0);
    CU_ASSERT_EQUAL(memcmp(q.blocks, p.blocks, 3 * sizeof *p.blocks), 0);
    CU_ASSERT_EQUAL(q.n_adjusts, 2);
    CU_ASSERT_EQUAL(memcmp(q.adjusts, p.adjusts, 2 * sizeof *p.adjusts), 0);
    CU_ASSERT_EQUAL(q.n_allowed, 2);
    CU_ASSERT_EQUAL(memcmp(q.allowed, p.allowed, 2 * sizeof *p.allowed), 0);
    CU_ASSERT_EQUAL(q.replica_begin[1], 1);
    CU_ASSERT_EQUAL(q.replica_begin[2], 2);
    plan_message_fini(&m);
    step_plan_fini(&p);
    step_plan_fini(&q);
}

/* A message that is cut anywhere is refused, and so is every count that does not fit the message.
 */
static void lying_messages_are_refused(void)
{
    struct step_plan p, q;
    struct plan_message m = {0};
    CU_ASSERT_EQUAL(step_plan_init(&p, 2).code, STATUS_OK);
    CU_ASSERT_EQUAL(step_plan_init(&q, 2).code, STATUS_OK);
    fill(&p);
    CU_ASSERT_EQUAL(step_plan_pack(&p, &m).code, STATUS_OK);
    for (size_t n = 0; n < m.n_words; n++) {
        CU_ASSERT_EQUAL(step_plan_unpack(m.words, n, &q).code, STATUS_BUG);
    }
    for (size_t word = 4; word < 16; word += 2) { /* the low halves of the counts in the header */
        const int32_t kept = m.words[word];
        m.words[word] = kept + 1;
        CU_ASSERT_EQUAL(step_plan_unpack(m.words, m.n_words, &q).code, STATUS_BUG);
        m.words[word] = kept;
    }
    plan_message_fini(&m);
    step_plan_fini(&p);
    step_plan_fini(&q);
}

/* Rows to be pooled must be rows of their plan_seq, and so must hidden rows to be saved, which also
 * need PLAN_HIDDEN. */
static void strange_rows_are_refused(void)
{
    static const int32_t strange_hidden[][3] = {{-1, 1, PLAN_HIDDEN},        {0, -1, PLAN_HIDDEN},
                                                {0, 4, PLAN_HIDDEN},         {1, 3, PLAN_HIDDEN},
                                                {INT32_MAX, 1, PLAN_HIDDEN}, {0, 1, 0}};
    static const int32_t strange[][2] = {{-1, 1}, {0, 0}, {0, 2}, {1, 1}, {INT32_MAX, 1}};
    struct step_plan p, q;
    struct plan_message m = {0};
    CU_ASSERT_EQUAL(step_plan_init(&p, 2).code, STATUS_OK);
    CU_ASSERT_EQUAL(step_plan_init(&q, 2).code, STATUS_OK);
    fill(&p);
    for (size_t i = 0; i < sizeof strange / sizeof strange[0]; i++) {
        p.seqs[1].pool_from = strange[i][0];
        p.seqs[1].n_pool = strange[i][1];
        CU_ASSERT_EQUAL(step_plan_pack(&p, &m).code, STATUS_OK);
        CU_ASSERT_EQUAL(step_plan_unpack(m.words, m.n_words, &q).code, STATUS_BUG);
    }
    step_plan_clear(&p, PLAN_RUN, 42);
    fill(&p);
    for (size_t i = 0; i < sizeof strange_hidden / sizeof strange_hidden[0]; i++) {
        p.seqs[0].hidden_from = strange_hidden[i][0];
        p.seqs[0].n_hidden = strange_hidden[i][1];
        p.seqs[0].want = PLAN_SAMPLE | strange_hidden[i][2];
        CU_ASSERT_EQUAL(step_plan_pack(&p, &m).code, STATUS_OK);
        CU_ASSERT_EQUAL(step_plan_unpack(m.words, m.n_words, &q).code, STATUS_BUG);
    }
    plan_message_fini(&m);
    step_plan_fini(&p);
    step_plan_fini(&q);
}

/* Plans without rows: their kind arrives; a message of an unknown kind is refused. */
static void kinds_survive_the_message(void)
{
    struct step_plan p, q;
    struct plan_message m = {0};
    CU_ASSERT_EQUAL_FATAL(step_plan_init(&p, 2).code, STATUS_OK);
    CU_ASSERT_EQUAL_FATAL(step_plan_init(&q, 2).code, STATUS_OK);
    for (int kind = PLAN_RUN; kind <= PLAN_MOVE_EXPERTS + 1; kind++) {
        const bool is_known = kind <= PLAN_MOVE_EXPERTS;
        step_plan_clear(&p, (enum plan_kind)kind, 7);
        CU_ASSERT_EQUAL(step_plan_pack(&p, &m).code, STATUS_OK);
        CU_ASSERT_EQUAL(step_plan_unpack(m.words, m.n_words, &q).code,
                        is_known ? STATUS_OK : STATUS_BUG);
        CU_ASSERT(!is_known || (q.kind == (enum plan_kind)kind && q.n_seqs == 0 && q.step == 7));
    }
    plan_message_fini(&m);
    step_plan_fini(&p);
    step_plan_fini(&q);
}

static void results_survive_the_message(void)
{
    struct step_result r, s;
    struct plan_message m = {0};
    step_result_init(&r);
    step_result_init(&s);
    step_result_clear(&r, 9, 1, 3);
    const struct result_seq seq = {
        .id = 4, .token = 17, .n_scores = 2, .n_logits = 1, .n_tops = 2, .n_pools = 1};
    int64_t *pool;
    r.width = 2;
    const struct plan_top tops[] = {{3, -0.5f}, {1, -2}};
    const float scores[] = {-1.5f, -2.5f}, logits[] = {1, 2, 3};
    CU_ASSERT_EQUAL(step_result_add(&r, &seq).code, STATUS_OK);
    CU_ASSERT_EQUAL(step_result_add_scores(&r, scores, 2).code, STATUS_OK);
    CU_ASSERT_EQUAL(step_result_add_logits(&r, logits, 1).code, STATUS_OK);
    CU_ASSERT_EQUAL(step_result_add_tops(&r, tops, 2).code, STATUS_OK);
    CU_ASSERT_EQUAL(step_result_add_pool(&r, &pool).code, STATUS_OK);
    CU_ASSERT_TRUE(pool[0] == 0 && pool[1] == 0);
    pool[1] = INT64_MIN + 3;
    CU_ASSERT_EQUAL(step_result_pack(&r, &m).code, STATUS_OK);
    CU_ASSERT_EQUAL(step_result_unpack(m.words, m.n_words, &s).code, STATUS_OK);
    CU_ASSERT_EQUAL(s.step, 9);
    CU_ASSERT_EQUAL(s.replica, 1);
    CU_ASSERT_EQUAL(memcmp(s.seqs, &seq, sizeof seq), 0);
    CU_ASSERT_EQUAL(s.n_tops, 2);
    CU_ASSERT_EQUAL(memcmp(s.tops, tops, sizeof tops), 0);
    CU_ASSERT_EQUAL(s.scores[1], -2.5f);
    CU_ASSERT_EQUAL(s.logits[2], 3.0f);
    CU_ASSERT_EQUAL(s.width, 2);
    CU_ASSERT_EQUAL(s.n_pools, 1);
    CU_ASSERT_EQUAL(s.pools[1], INT64_MIN + 3);
    for (size_t n = 0; n < m.n_words; n++) {
        CU_ASSERT_EQUAL(step_result_unpack(m.words, n, &s).code, STATUS_BUG);
    }
    plan_message_fini(&m);
    step_result_fini(&r);
    step_result_fini(&s);
}

void suite_step_plan(CU_pSuite suite);
void suite_step_plan(CU_pSuite suite)
{
    CU_add_test(suite, "plans survive the message", plans_survive_the_message);
    CU_add_test(suite, "lying messages are refused", lying_messages_are_refused);
    CU_add_test(suite, "strange rows are refused", strange_rows_are_refused);
    CU_add_test(suite, "kinds", kinds_survive_the_message);
    CU_add_test(suite, "results survive the message", results_survive_the_message);
}

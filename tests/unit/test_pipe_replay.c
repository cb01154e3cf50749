/* The simulated pipeline: waits that can be computed by hand. */
#include "parallel/layout/pipe_replay.h"

#include <CUnit/CUnit.h>

enum { STEPS = 100, PP_MAX = 8 };

/* Simulates steps that all take stage_ns [pp]. */
static void run(uint32_t pp, const uint64_t *stage_ns, uint64_t lead_ns, uint64_t message_ns,
                struct pipe_stage_time *out)
{
    static uint64_t stages[STEPS * PP_MAX], lead[STEPS];
    for (uint64_t s = 0; s < STEPS; s++) {
        for (uint32_t p = 0; p < pp; p++) stages[s * pp + p] = stage_ns[p];
        lead[s] = lead_ns;
    }
    const struct pipe_replay r = {.pp = pp,
                                  .n_steps = STEPS,
                                  .stage_ns = stages,
                                  .lead_ns = lead,
                                  .message_ns = message_ns,
                                  .first_step = 2 * PP_MAX};
    const struct status st = pipe_replay_run(&r, out);
    CU_ASSERT_FALSE(status_failed(&st));
}

static void balanced_stages_never_wait(void)
{
    const uint64_t ns[PP_MAX] = {10, 10, 10, 10, 10, 10, 10, 10};
    for (uint32_t pp = 1; pp <= PP_MAX; pp++) {
        struct pipe_stage_time t[PP_MAX];
        run(pp, ns, 0, 0, t);
        for (uint32_t p = 0; p < pp; p++) {
            CU_ASSERT_EQUAL(t[p].wait_ns, 0);
            CU_ASSERT_EQUAL(t[p].busy_ns, 10 * (STEPS - 2 * PP_MAX));
        }
    }
}

/* All stages run at the speed of the slowest. */
static void others_wait_for_the_slowest(void)
{
    const uint64_t ns[4] = {10, 10, 16, 10};
    struct pipe_stage_time t[4];
    run(4, ns, 0, 0, t);
    for (uint32_t p = 0; p < 4; p++) {
        CU_ASSERT_EQUAL(t[p].wait_ns, (16 - ns[p]) * (STEPS - 2 * PP_MAX));
    }
}

/* The lead works on the rank of stage 0, whose time its work adds to. A step costs the time of a
 * round, which is that of all stages and pp messages, divided by the pp steps in flight; or the
 * time of the slowest stage, if that is longer. */
static void messages_and_the_lead_cost_what_the_round_takes(void)
{
    const uint64_t even[2] = {10, 10}, uneven[2] = {10, 20};
    struct pipe_stage_time t[2];
    run(2, even, 0, 3, t);
    CU_ASSERT_EQUAL(t[0].wait_ns, 3 * (STEPS - 2 * PP_MAX));
    CU_ASSERT_EQUAL(t[1].wait_ns, 3 * (STEPS - 2 * PP_MAX));
    run(2, even, 4, 0, t);
    CU_ASSERT_EQUAL(t[0].wait_ns, 0);
    CU_ASSERT_EQUAL(t[0].lead_ns, 4 * (STEPS - 2 * PP_MAX));
    CU_ASSERT_EQUAL(t[1].wait_ns, 4 * (STEPS - 2 * PP_MAX));
    run(2, uneven, 3, 2, t);
    CU_ASSERT_EQUAL(t[1].wait_ns, 0);
    CU_ASSERT_EQUAL(t[0].wait_ns, 7 * (STEPS - 2 * PP_MAX));
}

/* One stage alone waits for its own result. */
static void a_single_stage_waits_for_its_message(void)
{
    const uint64_t ns[1] = {10};
    struct pipe_stage_time t;
    run(1, ns, 0, 5, &t);
    CU_ASSERT_EQUAL(t.wait_ns, 5 * (STEPS - 2 * PP_MAX));
}

static void nothing_to_replay_is_refused(void)
{
    const uint64_t ns[2] = {1, 1};
    struct pipe_stage_time t[2];
    struct pipe_replay r = {.pp = 2, .n_steps = 1, .stage_ns = ns, .first_step = 1};
    struct status st = pipe_replay_run(&r, t);
    CU_ASSERT_EQUAL(st.code, STATUS_USAGE);
    r.first_step = 0;
    r.pp = 0;
    st = pipe_replay_run(&r, t);
    CU_ASSERT_EQUAL(st.code, STATUS_USAGE);
}

void suite_pipe_replay(CU_pSuite suite);
void suite_pipe_replay(CU_pSuite suite)
{
    CU_add_test(suite, "balanced stages never wait", balanced_stages_never_wait);
    CU_add_test(suite, "others wait for the slowest", others_wait_for_the_slowest);
    CU_add_test(suite, "messages and the lead cost what the round takes",
                messages_and_the_lead_cost_what_the_round_takes);
    CU_add_test(suite, "a single stage waits for its message",
                a_single_stage_waits_for_its_message);
    CU_add_test(suite, "nothing to replay is refused", nothing_to_replay_is_refused);
}

/* The timetable of the pipeline: golden timelines, and its properties. */
#include "parallel/layout/pipe_schedule.h"

#include <CUnit/CUnit.h>

static void expect_timeline(uint32_t pp, uint64_t n_steps, const char *want)
{
    struct strbuf text;
    strbuf_init(&text);
    pipe_print(pp, n_steps, &text);
    CU_ASSERT_STRING_EQUAL(text.data == NULL ? "" : text.data, want);
    strbuf_fini(&text);
}

static void timelines_are_golden(void)
{
    expect_timeline(1, 5, "stage 0   00000\n");
    expect_timeline(2, 5,
                    "stage 0   01010.\n"
                    "stage 1   .01010\n");
    expect_timeline(4, 9,
                    "stage 0   012301230...\n"
                    "stage 1   .012301230..\n"
                    "stage 2   ..012301230.\n"
                    "stage 3   ...012301230\n");
    /* fewer steps than stages */
    expect_timeline(3, 1,
                    "stage 0   0..\n"
                    "stage 1   .0.\n"
                    "stage 2   ..0\n");
    expect_timeline(2, 0, "stage 0   \nstage 1   \n");
}

static void groups_beyond_nine_are_letters(void)
{
    struct strbuf text;
    strbuf_init(&text);
    pipe_print(12, 12, &text);
    CU_ASSERT_PTR_NOT_NULL_FATAL(text.data);
    CU_ASSERT_NSTRING_EQUAL(text.data, "stage 0   0123456789ab...........\n", 34);
    strbuf_fini(&text);
}

/* Each stage does each step once, in order, one tick after the stage before it; a stage never idles
 * between its first and its last step. */
static void every_stage_does_every_step_once(void)
{
    for (uint32_t pp = 1; pp <= 9; pp++) {
        const uint64_t n_steps = 3 * pp + 1;
        for (uint32_t stage = 0; stage < pp; stage++) {
            int64_t next = 0;
            for (uint64_t tick = 0; tick < n_steps + 2 * pp; tick++) {
                const int64_t step = pipe_step_at(stage, tick, pp, n_steps);
                if (step < 0) {
                    CU_ASSERT(next == 0 || next == (int64_t)n_steps);
                    continue;
                }
                CU_ASSERT_EQUAL(step, next);
                if (stage > 0)
                    CU_ASSERT_EQUAL(pipe_step_at(stage - 1, tick - 1, pp, n_steps), step);
                next++;
            }
            CU_ASSERT_EQUAL(next, (int64_t)n_steps);
        }
        CU_ASSERT_EQUAL(pipe_step_at(pp, pp, pp, n_steps), -1);
    }
}

/* Before the first stage starts a step, the last stage has the result that the step waits for, and
 * that result is of the same group of sequences. */
static void results_arrive_in_time(void)
{
    for (uint32_t pp = 1; pp <= 9; pp++) {
        for (uint64_t step = 0; step < 5 * pp; step++) {
            const int64_t due = pipe_result_due(step, pp);
            if (due < 0) {
                CU_ASSERT(step < pp);
                continue;
            }
            CU_ASSERT_EQUAL(pipe_group((uint64_t)due, pp), pipe_group(step, pp));
            const uint64_t produced_at = (uint64_t)due + pp - 1;
            CU_ASSERT_EQUAL(pipe_step_at(pp - 1, produced_at, pp, 5 * pp), due);
            CU_ASSERT_EQUAL(produced_at + 1, step);
        }
    }
}

void suite_pipe_schedule(CU_pSuite suite);
void suite_pipe_schedule(CU_pSuite suite)
{
    CU_add_test(suite, "timelines are golden", timelines_are_golden);
    CU_add_test(suite, "groups beyond nine are letters", groups_beyond_nine_are_letters);
    CU_add_test(suite, "every stage does every step once", every_stage_does_every_step_once);
    CU_add_test(suite, "results arrive in time", results_arrive_in_time);
}

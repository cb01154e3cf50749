/* The scheduler with a fake engine: block tables of layers with a window, and blocks on disk. */
#include "serve/schedule/scheduler_private.h"
#include "util_cases.h"
#include "util_scenario.h"

#include <CUnit/CUnit.h>
#include <stdio.h>

/* A random run of a model with one group of layers without a window and some groups with one. */
static struct scenario windowed_scenario(uint64_t seed, bool prefix_cache)
{
    struct scenario c = scenario_sharing(seed, prefix_cache);
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
    for (uint64_t i = 0; i < util_cases(2000); i++) {
        struct scenario c = windowed_scenario(i, i % 2);
        const struct outcome o = scenario_run(&c);
        n_bad += !scenario_went_well(&c, &o);
        n_hit += o.n_hit_tokens > 0;
        n_both += o.n_preemptions > 0 && o.n_hit_tokens > 0;
    }
    CU_ASSERT_EQUAL(n_bad, 0);
    CU_ASSERT(n_hit > util_cases(400));
    CU_ASSERT(n_both > util_cases(100));
    printf("[%llu hit, %llu of them preempted] ", (unsigned long long)n_hit,
           (unsigned long long)n_both);
}

/* Blocks go to disk and come back, some late, some not at all: in pools of every kind, with windows
 * and without, in short jobs and after billions of reads. */
static void blocks_on_disk_change_no_result(void)
{
    uint64_t n_bad = 0, n_moved = 0, n_failed = 0, n_fewer = 0;
    for (uint64_t i = 0; i < util_cases(1500); i++) {
        struct scenario c = i % 3 == 0 ? windowed_scenario(i, true) : scenario_sharing(i, true);
        const struct outcome without = scenario_run(&c);
        uint64_t x = i + 77;
        c.o.n_tier_slots = (int32_t)fake_between(&x, 1, i % 4 == 0 ? 6 : 400);
        c.n_reads = i % 5 > 0 ? 0 : i % 2 ? INT32_MAX - 2 : UINT64_C(1) << 40;
        const struct outcome o = scenario_run(&c);
        n_bad += !scenario_went_well(&c, &o);
        n_moved += o.n_back > 0;
        n_failed += o.n_reads_failed > 0;
        n_fewer += o.n_recomputed < without.n_recomputed;
    }
    CU_ASSERT_EQUAL(n_bad, 0);
    CU_ASSERT(n_moved > util_cases(100));
    CU_ASSERT(n_failed > util_cases(25));
    CU_ASSERT(n_fewer > util_cases(70));
    printf("[%llu moved blocks, %llu lost some, %llu computed fewer again] ",
           (unsigned long long)n_moved, (unsigned long long)n_failed, (unsigned long long)n_fewer);
}

/* gpt-oss has as many layers with a window of 128 as without. A sequence of 2,048 tokens needs 32
 * blocks for the layers without, and at most 3 for the layers with a window: a window of 128
 * positions lies in at most 3 blocks. */
static void layers_with_a_window_keep_three_blocks(void)
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
    const struct outcome o = scenario_run(&c);
    CU_ASSERT(scenario_went_well(&c, &o)); /* in a pool that could not hold 32 and 32 blocks */
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

void suite_schedule_blocks(CU_pSuite suite);
void suite_schedule_blocks(CU_pSuite suite)
{
    CU_add_test(suite, "windows change no result", windows_change_no_result);
    CU_add_test(suite, "blocks on disk change no result", blocks_on_disk_change_no_result);
    CU_add_test(suite, "layers with a window keep three blocks",
                layers_with_a_window_keep_three_blocks);
}

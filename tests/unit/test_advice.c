/* Advice after a run: a healthy run gets none, and each rule advises the run that provokes it. */
#include "cost/advice.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <string.h>

/* A run of two hosts with two ranks each, as predicted, bound by arithmetic. */
static struct advice_facts healthy(void)
{
    struct advice_facts f = {.tp = 2,
                             .pp = 1,
                             .dp = 2,
                             .ep = 2,
                             .ranks_of_host = 2,
                             .has_experts = true,
                             .predicted_s = 100,
                             .measured_s = 103,
                             .communication = 0.08,
                             .waiting = 0.02,
                             .planning = 0.01,
                             .rows_of_step = 400,
                             .weight_bytes = 1.06,
                             .expert_evenness = 1.05};
    f.predicted.s[COST_ARITHMETIC] = 70;
    f.predicted.s[COST_WEIGHTS] = 20;
    f.predicted.s[COST_SUMS] = 8;
    f.predicted.s[COST_IMBALANCE] = 2;
    return f;
}

/* Expects advice of the rule, with a gain near `gain` and `says` in its text. */
static void expect(const struct advice_facts *f, const char *rule, double gain, const char *says)
{
    struct advice all[ADVICE_MAX];
    const size_t n = advice_of(f, all);
    size_t i = 0;
    while (i < n && strcmp(all[i].rule, rule) != 0) i++;
    CU_ASSERT_TRUE(i < n);
    if (i == n) {
        printf("rule \"%s\" is silent\n", rule);
        return;
    }
    CU_ASSERT_DOUBLE_EQUAL(all[i].gain, gain, 0.01);
    CU_ASSERT_PTR_NOT_NULL(strstr(all[i].text, says));
    if (strstr(all[i].text, says) == NULL) printf("%s\n", all[i].text);
    char number[16];
    snprintf(number, sizeof number, "%.2f", all[i].gain);
    CU_ASSERT_PTR_NOT_NULL(strstr(all[i].text, number)); /* the sentence names the gain */
}

static void healthy_runs_get_none(void)
{
    struct advice all[ADVICE_MAX];
    const struct advice_facts f = healthy(), nothing = {.tp = 1, .pp = 1, .dp = 1, .ep = 1};
    CU_ASSERT_EQUAL(advice_of(&f, all), 0);
    CU_ASSERT_EQUAL(advice_of(&nothing, all), 0);
}

static void communication_is_named(void)
{
    struct advice_facts f = healthy();
    f.communication = 0.6;
    expect(&f, "sums", 1 / 0.7, "--tp 1 with 2 times");
    f.tp = 9;
    expect(&f, "sums", 1 / 0.6, "--tp 3 with 3 times");
    f.tp = 2;
    f.experts_cross_hosts = true;
    f.ep = 4;
    expect(&f, "exchange", 1 / 0.7, "--ep 2");
    f.ranks_of_host = 4; /* the group fits in a host: a smaller --ep cannot help */
    struct advice all[ADVICE_MAX];
    CU_ASSERT_EQUAL(advice_of(&f, all), 0);
}

static void reading_weights_is_named(void)
{
    struct advice_facts f = healthy();
    f.predicted.s[COST_WEIGHTS] = 300;
    f.weight_bytes = 2;
    expect(&f, "wide weights", 1 / (1 - 300 / 380.0 * 0.47), "int8");
    f.rows_of_step = 4;
    f.max_batch = 4;
    expect(&f, "few rows", 2 / (1 + 80 / 380.0), "--max-batch 4");
}

static void memory_and_experts_are_named(void)
{
    struct advice_facts f = healthy();
    f.preempted = 0.3;
    f.recomputed = 0.2;
    expect(&f, "small pool", 1.25, "--kv-tier");
    f = healthy();
    f.expert_evenness = 2;
    expect(&f, "skewed experts", 1 / (1 - 0.45), "--expert-load");
    f.placed_by_load = true;
    struct advice all[ADVICE_MAX];
    CU_ASSERT_EQUAL(advice_of(&f, all), 0);
}

static void waiting_is_named(void)
{
    struct advice_facts f = healthy();
    f.pp = 4;
    f.waiting = 0.4;
    expect(&f, "idle pipeline", 1.25, "--pp 2");
    f = healthy();
    f.predicted.s[COST_IMBALANCE] = 98;
    expect(&f, "uneven replicas", 2, "half the --dp");
    f = healthy();
    f.planning = 0.2;
    expect(&f, "slow lead", 1.25, "--input-part");
    f = healthy();
    f.measured_s = 200;
    expect(&f, "slow machine", 2, "shoal diagnose");
}

/* The draft model's time does not count as planning. */
static void drafting_is_named_apart(void)
{
    struct advice_facts f = healthy();
    struct advice all[ADVICE_MAX];
    f.drafting = 0.4;
    f.measured_s = 170; /* no slow machine: without drafting the run would be as predicted */
    expect(&f, "slow draft model", 1.25, "--draft");
    CU_ASSERT_EQUAL(advice_of(&f, all), 1);
    f.pp = 2; /* meanwhile the stages compute other groups */
    CU_ASSERT_EQUAL(advice_of(&f, all), 0);
}

static void the_largest_gain_is_first(void)
{
    struct advice_facts f = healthy();
    struct advice all[ADVICE_MAX];
    f.planning = 0.2;
    f.measured_s = 300;
    f.communication = 0.3;
    CU_ASSERT_EQUAL_FATAL(advice_of(&f, all), 3);
    CU_ASSERT_STRING_EQUAL(all[0].rule, "slow machine");
    CU_ASSERT_STRING_EQUAL(all[1].rule, "slow lead");
    CU_ASSERT_STRING_EQUAL(all[2].rule, "sums");
}

void suite_advice(CU_pSuite suite);
void suite_advice(CU_pSuite suite)
{
    CU_add_test(suite, "healthy runs get none", healthy_runs_get_none);
    CU_add_test(suite, "communication", communication_is_named);
    CU_add_test(suite, "reading weights", reading_weights_is_named);
    CU_add_test(suite, "memory and experts", memory_and_experts_are_named);
    CU_add_test(suite, "waiting", waiting_is_named);
    CU_add_test(suite, "drafting", drafting_is_named_apart);
    CU_add_test(suite, "the largest gain first", the_largest_gain_is_first);
}

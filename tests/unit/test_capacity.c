/* Capacity policies: a small microbatch, computed by hand. */
#include "moe/capacity.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { E = 4, K = 2, T = 3 };

/* All three tokens prefer expert 0, then 1. Token 2 then prefers expert 3 to 2. */
static const float logits[T * E] = {5, 4, 3, 2, 5, 4, 3, 2, 5, 4, 1, 2};
static const int32_t ids[T * K] = {0, 1, 0, 1, 0, 1};
static const float weights[T * K] = {0.7f, 0.3f, 0.7f, 0.3f, 0.7f, 0.3f};

static int32_t kept_ids[T * K], n_dropped[T];
static float kept_weights[T * K];
static uint32_t load[E];

static void apply(enum capacity_policy policy, uint32_t capacity)
{
    const struct capacity_work work = {.logits = logits,
                                       .ids = ids,
                                       .weights = weights,
                                       .kept_ids = kept_ids,
                                       .kept_weights = kept_weights,
                                       .n_dropped = n_dropped,
                                       .load = load,
                                       .n_tokens = T,
                                       .n_experts = E,
                                       .n_chosen = K};
    capacity_apply(policy, capacity, &work);
}

static void check_ids(const int32_t *want)
{
    CU_ASSERT_EQUAL(memcmp(kept_ids, want, sizeof kept_ids), 0);
}

static void plenty_of_room_changes_nothing(void)
{
    apply(CAPACITY_DROP, T);
    check_ids(ids);
    CU_ASSERT_EQUAL(memcmp(kept_weights, weights, sizeof weights), 0);
    CU_ASSERT_EQUAL(n_dropped[0] + n_dropped[1] + n_dropped[2], 0);
}

static void drop_serves_early_tokens_first(void)
{
    apply(CAPACITY_DROP, 2);
    const int32_t want[T * K] = {0, 1, 0, 1, -1, -1};
    check_ids(want);
    CU_ASSERT_EQUAL(n_dropped[2], 2);
    CU_ASSERT_EQUAL(kept_weights[4], 0.0f);
}

static void next_finds_the_best_expert_with_room(void)
{
    apply(CAPACITY_NEXT, 2);
    const int32_t want[T * K] = {0, 1, 0, 1, 2, 3};
    check_ids(want);
    /* token 2: expert 0 -> 3 (logit 2), then 1 -> 2 (logit 1); listed by ascending id */
    CU_ASSERT_DOUBLE_EQUAL(kept_weights[5], 0.7 * exp(2 - 5), 1e-6);
    CU_ASSERT_DOUBLE_EQUAL(kept_weights[4], 0.3 * exp(1 - 4), 1e-6);
    CU_ASSERT_EQUAL(n_dropped[2], 0);
}

static void top1_keeps_every_first_choice(void)
{
    apply(CAPACITY_TOP1, 1);
    const int32_t want[T * K] = {0, 1, 0, -1, 0, -1};
    check_ids(want);
}

static void capacity_rounds_up(void)
{
    CU_ASSERT_EQUAL(capacity_of(1.0, 3, 2, 4), 2);
    CU_ASSERT_EQUAL(capacity_of(1.25, 64, 2, 8), 20);
    CU_ASSERT_EQUAL(capacity_of(0.01, 1, 1, 64), 1);
}

void suite_capacity(CU_pSuite suite);
void suite_capacity(CU_pSuite suite)
{
    CU_add_test(suite, "plenty of room changes nothing", plenty_of_room_changes_nothing);
    CU_add_test(suite, "drop serves early tokens first", drop_serves_early_tokens_first);
    CU_add_test(suite, "next finds the best expert with room",
                next_finds_the_best_expert_with_room);
    CU_add_test(suite, "top1 keeps every first choice", top1_keeps_every_first_choice);
    CU_add_test(suite, "capacity rounds up", capacity_rounds_up);
}

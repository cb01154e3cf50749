/* Tests the router, the sampler's masses and the argmax. */
#include "util_kernels.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <stdlib.h>

static void masses_are_exponentials(void)
{
    const struct kern_table ref = table_ref();
    struct rng r = {1};
    float l[50];
    uint64_t mass[50];
    rng_floats(&r, l, 50, 15.0f);
    l[7] = 15.0f;
    l[8] = -0.0f;
    const uint64_t sum = ref.mass(l, 50, 15.0f, 0.5f, mass);
    uint64_t total = 0;
    for (size_t i = 0; i < 50; i++) {
        const double want = exp(((double)l[i] - 15.0) * 0.5) * 0x1p32;
        CU_ASSERT_DOUBLE_EQUAL((double)mass[i], want, want * 2e-6 + 1);
        total += mass[i];
    }
    CU_ASSERT_EQUAL(mass[7], (uint64_t)1 << 32);
    CU_ASSERT_EQUAL(total, sum);
}

static void masses_agree(void)
{
    const struct kern_table ref = table_ref(), best = table_best();
    struct rng r = {2};
    for (size_t n = 0; n < 300; n++) {
        float *l = test_floats(n);
        uint64_t *a = test_memory(n * 8), *b = test_memory(n * 8);
        rng_floats(&r, l, n, 30.0f);
        if (n > 0) l[n / 2] = 30.0f; /* the maximum itself has mass 2^32 */
        if (n % 2) rng_specials(&r, l, n, 5);
        const float inv_t = n % 3 ? 1.0f : 1e6f;
        const uint64_t sum = ref.mass(l, n, 30.0f, inv_t, a);
        CU_ASSERT_EQUAL(best.mass(l, n, 30.0f, inv_t, b), sum);
        CU_ASSERT_EQUAL(best.mass(l, n, 30.0f, inv_t, NULL), sum);
        CU_ASSERT_EQUAL(memcmp(a, b, n * 8), 0);
        free(l);
        free(a);
        free(b);
    }
}

static void argmax_takes_the_first_of_equals(void)
{
    const struct kern_table tables[] = {table_ref(), table_best()};
    float l[40];
    uint64_t n_bad;
    for (size_t t = 0; t < 2; t++) {
        for (size_t i = 0; i < 40; i++) l[i] = -5.0f;
        l[13] = l[22] = l[39] = 2.5f;
        uint64_t key = tables[t].argmax(l, 40, 500, &n_bad);
        CU_ASSERT_EQUAL((uint32_t)~key, 513);
        CU_ASSERT_EQUAL(kern_from_ordered_bits((uint32_t)(key >> 32)), 2.5f);
        CU_ASSERT_EQUAL(n_bad, 0);
        /* -0 equals +0: the smaller id wins */
        for (size_t i = 0; i < 40; i++) l[i] = -1.0f;
        l[5] = -0.0f;
        l[9] = 0.0f;
        CU_ASSERT_EQUAL((uint32_t)~tables[t].argmax(l, 40, 0, &n_bad), 5);
        l[30] = NAN;
        l[31] = -INFINITY;
        tables[t].argmax(l, 40, 0, &n_bad);
        CU_ASSERT_EQUAL(n_bad, 2);
        CU_ASSERT_EQUAL(tables[t].argmax(l, 0, 0, &n_bad), 0);
        CU_ASSERT_EQUAL(n_bad, 0);
    }
}

static void argmax_agrees(void)
{
    const struct kern_table ref = table_ref(), best = table_best();
    struct rng r = {3};
    for (size_t i = 0; i < 600; i++) {
        const size_t n = i % 100;
        float *l = test_floats(n);
        uint64_t bad[2];
        /* few distinct values, so that ties are frequent; sometimes all negative */
        for (size_t j = 0; j < n; j++) l[j] = (float)rng_below(&r, 9) - (i % 2 ? 20.0f : 4.0f);
        if (i % 3 == 0) rng_specials(&r, l, n, 7);
        CU_ASSERT_EQUAL(ref.argmax(l, n, 77, &bad[0]), best.argmax(l, n, 77, &bad[1]));
        CU_ASSERT_EQUAL(bad[0], bad[1]);
        free(l);
    }
}

/* Compares the router with a choice by sorting, in double. */
static void check_router(const struct kern_table *k, const float *l, uint32_t n_experts,
                         uint32_t n_chosen, enum router_kind kind)
{
    int32_t ids[64];
    float weights[64];
    const struct router_args a = {l, ids, weights, n_experts, n_chosen, {.kind = kind}, NULL, NULL};
    k->router(&a, 0);
    double sum = 0, chosen = 0;
    for (uint32_t e = 0; e < n_experts; e++) sum += exp((double)l[e]);
    for (uint32_t i = 0; i < n_chosen; i++) chosen += exp((double)l[ids[i]]);
    for (uint32_t i = 0; i < n_chosen; i++) {
        const uint32_t id = (uint32_t)ids[i];
        uint32_t n_better = 0;
        for (uint32_t e = 0; e < n_experts; e++)
            n_better += l[e] > l[id] || (l[e] == l[id] && e < id);
        CU_ASSERT(n_better < n_chosen);
        CU_ASSERT(i == 0 || ids[i - 1] < ids[i]);
        const double want = exp((double)l[id]) / (kind == ROUTER_SOFTMAX ? sum : chosen);
        CU_ASSERT_DOUBLE_EQUAL(weights[i], want, 1e-5 * want);
    }
}

static void router_takes_the_best_with_ties_by_id(void)
{
    const struct kern_table tables[] = {table_ref(), table_best()};
    struct rng r = {4};
    for (int i = 0; i < 600; i++) {
        const uint32_t n_experts = 1 + (uint32_t)rng_below(&r, 64);
        const uint32_t n_chosen = i % 7 == 0 ? n_experts : 1 + (uint32_t)rng_below(&r, n_experts);
        float *l = test_floats(n_experts);
        for (uint32_t e = 0; e < n_experts; e++)
            l[e] = i % 2 ? (float)rng_below(&r, 5) - 2.0f : rng_float(&r, 6.0f);
        if (i % 2) l[0] = -0.0f; /* ties with +0 */
        check_router(&tables[i % 4 / 2], l, n_experts, n_chosen, (enum router_kind)(i % 3 % 2));
        free(l);
    }
}

enum { GROUPED = 24 };

static double score_of(float l, bool sigmoid, double max, double sum)
{
    return sigmoid ? 1 / (1 + exp(-(double)l)) : exp((double)l - max) / sum;
}

/* The number of keys that sort before e, in double. */
static uint32_t rank_of(const double *keys, uint32_t n, uint32_t e)
{
    uint32_t n_better = 0;
    for (uint32_t i = 0; i < n; i++) n_better += keys[i] > keys[e] || (keys[i] == keys[e] && i < e);
    return n_better;
}

/* Sets the keys [GROUPED] outside the best groups to -infinity. */
static void limit_keys(double *keys, const struct router_rule *rule, bool sigmoid)
{
    const uint32_t n = GROUPED / rule->n_groups;
    double groups[GROUPED];
    for (uint32_t g = 0; g < rule->n_groups; g++) {
        double best = -INFINITY, second = -INFINITY;
        for (uint32_t e = g * n; e < (g + 1) * n; e++) {
            second = fmax(second, fmin(best, keys[e]));
            best = fmax(best, keys[e]);
        }
        groups[g] = sigmoid && n > 1 ? best + second : best;
    }
    for (uint32_t e = 0; e < GROUPED; e++) {
        if (rank_of(groups, rule->n_groups, e / n) >= rule->n_groups_chosen) keys[e] = -INFINITY;
    }
}

static void check_grouped(const struct kern_table *k, const float *l, const float *bias,
                          struct router_rule rule, uint32_t n_chosen)
{
    const bool sigmoid = rule.kind == ROUTER_SIGMOID || rule.kind == ROUTER_SIGMOID_RENORM;
    double keys[GROUPED], max = -INFINITY, sum = 0, chosen = 0;
    int32_t ids[GROUPED];
    float weights[GROUPED];
    const struct router_args a = {l, ids, weights, GROUPED, n_chosen, rule, bias, NULL};
    k->router(&a, 0);
    for (uint32_t e = 0; e < GROUPED; e++) max = fmax(max, l[e]);
    for (uint32_t e = 0; e < GROUPED; e++) sum += exp((double)l[e] - max);
    const bool biased = sigmoid || rule.kind == ROUTER_BIASED || rule.kind == ROUTER_BIASED_RENORM;
    for (uint32_t e = 0; e < GROUPED; e++)
        keys[e] = score_of(l[e], sigmoid, max, sum) + (biased ? (double)bias[e] : 0);
    if (rule.n_groups > 1) limit_keys(keys, &rule, sigmoid);
    for (uint32_t i = 0; i < n_chosen; i++) chosen += score_of(l[ids[i]], sigmoid, max, sum);
    for (uint32_t i = 0; i < n_chosen; i++) {
        CU_ASSERT(rank_of(keys, GROUPED, (uint32_t)ids[i]) < n_chosen);
        CU_ASSERT(i == 0 || ids[i - 1] < ids[i]);
        double want = score_of(l[ids[i]], sigmoid, max, sum) * (double)rule.scale;
        if (rule.kind != ROUTER_SIGMOID && rule.kind != ROUTER_SOFTMAX &&
            rule.kind != ROUTER_BIASED)
            want /= chosen;
        CU_ASSERT_DOUBLE_EQUAL(weights[i], want, 1e-5 * want);
    }
}

static void groups_limit_the_choice(void)
{
    const struct kern_table tables[] = {table_ref(), table_best()};
    struct rng r = {6};
    float l[GROUPED], bias[GROUPED];
    for (int i = 0; i < 600; i++) {
        static const uint32_t counts[] = {1, 2, 3, 4, 8, 12, 24};
        const uint32_t n_groups = counts[i % 7];
        const uint32_t n_taken = 1 + (uint32_t)rng_below(&r, n_groups);
        const uint32_t n_most = GROUPED / n_groups * n_taken;
        const struct router_rule rule = {(enum router_kind)(i % ROUTER_MIXER), n_groups, n_taken,
                                         1.5f};
        rng_floats(&r, l, GROUPED, 4.0f);
        rng_floats(&r, bias, GROUPED, 0.4f);
        check_grouped(&tables[i % 2], l, bias, rule, 1 + (uint32_t)rng_below(&r, n_most));
    }
}

/* The choice is by logits, also where the sigmoids of several are 1. */
static void sigmoids_after_the_choice_do_not_make_ties(void)
{
    const struct kern_table tables[] = {table_ref(), table_best()};
    const float l[] = {30.0f, -2.0f, 31.0f, 30.5f, 29.0f, -60.0f};
    for (uint32_t n_chosen = 1; n_chosen <= 6; n_chosen++) {
        static const int32_t order[] = {2, 3, 0, 4, 1, 5};
        int32_t ids[6];
        float weights[6];
        const struct router_args a = {
            l, ids, weights, 6, n_chosen, {ROUTER_SIGMOID_AFTER, 0, 0, 0}, NULL, NULL};
        tables[n_chosen % 2].router(&a, 0);
        for (uint32_t i = 0; i < n_chosen; i++) {
            bool found = false;
            for (uint32_t k = 0; k < n_chosen; k++) found = found || order[k] == ids[i];
            CU_ASSERT(found && (i == 0 || ids[i - 1] < ids[i]));
            CU_ASSERT_DOUBLE_EQUAL(weights[i], 1 / (1 + exp(-(double)l[ids[i]])), 1e-6);
        }
    }
}

/* Each of two chosen experts is weighed against the experts whose logits are near its own. Compares
 * with the equation in double. */
static void the_mixer_weighs_each_choice_by_its_rivals(void)
{
    const struct kern_table tables[] = {table_ref(), table_best()};
    struct rng r = {16};
    for (int i = 0; i < 200; i++) {
        enum { E = 9 };
        float l[E], weights[2];
        int32_t ids[2], order[2] = {0, 0};
        rng_floats(&r, l, E, i % 2 ? 3.0f : 0.5f);
        const struct router_args a = {l,    ids, weights, E, 2, {ROUTER_MIXER, 0, 0, 0.5f},
                                      NULL, NULL};
        tables[i / 2 % 2].router(&a, 0);
        double want[2];
        for (int n = 0; n < 2; n++) {
            int best = -1;
            for (int e = 0; e < E; e++)
                if (!(n == 1 && e == order[0]) && (best < 0 || l[e] > l[best])) best = e;
            double sum = 0, m = l[best];
            for (int e = 0; e < E; e++)
                if (!(n == 1 && e == order[0]) && !((m - l[e]) / fmax(fabs(l[e]), m) > 0.5))
                    sum += exp(l[e] - m);
            order[n] = best;
            want[n] = 1 / sum;
        }
        const int swap = order[0] > order[1];
        CU_ASSERT(ids[0] == order[swap] && ids[1] == order[1 - swap]);
        CU_ASSERT_DOUBLE_EQUAL(weights[0], want[swap], 1e-5);
        CU_ASSERT_DOUBLE_EQUAL(weights[1], want[1 - swap], 1e-5);
    }
}

static void routers_agree(void)
{
    const struct kern_table ref = table_ref(), best = table_best();
    struct rng r = {5};
    for (int i = 0; i < 600; i++) {
        const uint32_t n_experts = 1 + (uint32_t)rng_below(&r, 140);
        const uint32_t n_chosen = 1 + (uint32_t)rng_below(&r, n_experts < 12 ? n_experts : 12);
        int32_t ids[2][3 * 12];
        float weights[2][3 * 12];
        float *l = test_floats(3 * (size_t)n_experts);
        rng_floats(&r, l, 3 * (size_t)n_experts, 50.0f);
        if (i % 2) rng_specials(&r, l, 3 * (size_t)n_experts, 20);
        struct router_args a = {l,
                                ids[0],
                                weights[0],
                                n_experts,
                                n_chosen,
                                {.kind = (enum router_kind)(i / 2 % ROUTER_COUNT)},
                                i % 3 ? l : NULL,
                                NULL};
        for (size_t row = 0; row < 3; row++) ref.router(&a, row);
        a.ids = ids[1];
        a.weights = weights[1];
        for (size_t row = 0; row < 3; row++) best.router(&a, row);
        CU_ASSERT_EQUAL(memcmp(ids[0], ids[1], 3 * n_chosen * sizeof(int32_t)), 0);
        CU_ASSERT_EQUAL(count_different(weights[0], weights[1], 3 * (size_t)n_chosen), 0);
        free(l);
    }
}

/* DeepSeek-V4: scores are square roots of softplus, and a bias counts for the choice alone. Experts
 * that are given instead of chosen get the weights of their own scores. */
static void roots_of_softplus(void)
{
    enum { E = 12, K = 4 };
    const struct kern_table tables[] = {table_ref(), table_best()};
    struct rng r = {9};
    for (int i = 0; i < 200; i++) {
        float l[E], bias[E], weights[K];
        double keys[E], scores[E], sum = 0;
        int32_t ids[K], given[K] = {7, 0, 11, 5};
        rng_floats(&r, l, E, 30.0f);
        rng_floats(&r, bias, E, 1.0f);
        struct router_args a = {l,    ids, weights, E, K, {ROUTER_ROOT_RENORM, 0, 0, 1.5f},
                                bias, NULL};
        if (i % 2) a.given = given;
        tables[i % 4 / 2].router(&a, 0);
        for (uint32_t e = 0; e < E; e++) {
            scores[e] = sqrt(log1p(exp((double)l[e])));
            keys[e] = scores[e] + (double)bias[e];
        }
        for (int j = 0; j < K; j++) sum += scores[ids[j]];
        for (int j = 0; j < K; j++) {
            static const int32_t ascending[K] = {0, 5, 7, 11};
            CU_ASSERT_DOUBLE_EQUAL(weights[j], 1.5 * scores[ids[j]] / sum, 1e-5);
            if (i % 2) CU_ASSERT_EQUAL(ids[j], ascending[j]);
            if (i % 2 == 0) CU_ASSERT(rank_of(keys, E, (uint32_t)ids[j]) < K);
        }
    }
}

void suite_choose(CU_pSuite suite);
void suite_choose(CU_pSuite suite)
{
    CU_add_test(suite, "masses are exponentials", masses_are_exponentials);
    CU_add_test(suite, "masses agree", masses_agree);
    CU_add_test(suite, "argmax takes the first of equals", argmax_takes_the_first_of_equals);
    CU_add_test(suite, "argmax agrees", argmax_agrees);
    CU_add_test(suite, "router takes the best with ties by id",
                router_takes_the_best_with_ties_by_id);
    CU_add_test(suite, "groups limit the choice", groups_limit_the_choice);
    CU_add_test(suite, "the mixer weighs each choice by its rivals",
                the_mixer_weighs_each_choice_by_its_rivals);
    CU_add_test(suite, "routers agree", routers_agree);
    CU_add_test(suite, "roots of softplus", roots_of_softplus);
    CU_add_test(suite, "sigmoids after the choice do not make ties",
                sigmoids_after_the_choice_do_not_make_ties);
}

/* Sampling from a row of logits with the reference kernels: truncation rules, ties, the random
 * numbers of the draws, and log-probabilities. The frequencies of draws are compared with
 * softmax. */
#include "kernels/kern.h"
#include "sample/pick.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <stdlib.h>

enum { N_VOCAB = 1000 };

static struct kern_table kern;
static float logits[N_VOCAB];
static uint64_t mass[N_VOCAB], keys[N_VOCAB];
static const struct pick_scratch scratch = {mass, keys};

/* A generator that the code under test does not use. */
static double uniform(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) * 0x1p-53;
}

static float fill_logits(uint64_t seed)
{
    float max = -INFINITY;
    for (int i = 0; i < N_VOCAB; i++) {
        logits[i] = (float)(8 * uniform(&seed) - 4 + (i % 97 == 0 ? 5 : 0));
        if (logits[i] > max) max = logits[i];
    }
    return max;
}

static struct pick_options plain(uint32_t position)
{
    return (struct pick_options){.temperature = 1, .top_p = 1, .key = {7, 9}, .position = position};
}

static void top_k_of_one_is_greedy(void)
{
    const float max = fill_logits(1);
    int best = 0;
    for (int i = 1; i < N_VOCAB; i++) {
        if (logits[i] > logits[best]) best = i;
    }
    for (uint32_t p = 0; p < 50; p++) {
        struct pick_options o = plain(p);
        o.top_k = 1;
        CU_ASSERT_EQUAL(pick_token(&kern, &o, logits, N_VOCAB, max, &scratch), best);
    }
}

static void ties_go_to_the_smaller_id(void)
{
    for (int i = 0; i < N_VOCAB; i++) logits[i] = i % 2 ? 1.0f : -0.0f;
    struct pick_options o = plain(3);
    o.top_k = 1;
    CU_ASSERT_EQUAL(pick_token(&kern, &o, logits, N_VOCAB, 1.0f, &scratch), 1);
    for (int i = 0; i < N_VOCAB; i++)
        logits[i] = i % 2 ? 0.0f : -0.0f; /* the draw treats -0 as +0 */
    CU_ASSERT_EQUAL(pick_token(&kern, &o, logits, N_VOCAB, 0.0f, &scratch), 0);
}

static double reference_mass(int i, double max)
{
    return exp((double)logits[i] - max);
}

static int descending(const void *a, const void *b)
{
    const int x = *(const int *)a, y = *(const int *)b;
    if (logits[x] != logits[y]) return logits[x] > logits[y] ? -1 : 1;
    return x - y;
}

/* Every token drawn under top-p must belong to the shortest prefix that reaches p, and each token
 * of that prefix must be drawn in proportion to its probability. */
static void top_p_keeps_the_shortest_prefix(void)
{
    const float max = fill_logits(2);
    int order[N_VOCAB];
    double total = 0, kept = 0;
    for (int i = 0; i < N_VOCAB; i++) {
        order[i] = i;
        total += reference_mass(i, max);
    }
    qsort(order, N_VOCAB, sizeof order[0], descending);
    int n_kept = 0;
    while (kept < 0.6 * total) kept += reference_mass(order[n_kept++], max);
    int counts[N_VOCAB] = {0};
    enum { DRAWS = 20000 };
    struct pick_options o = plain(0);
    o.top_p = 0.6f;
    for (uint32_t p = 0; p < DRAWS; p++) {
        o.position = p;
        counts[pick_token(&kern, &o, logits, N_VOCAB, max, &scratch)]++;
    }
    double chi2 = 0;
    for (int i = 0; i < n_kept; i++) {
        const double expected = DRAWS * reference_mass(order[i], max) / kept;
        chi2 += pow(counts[order[i]] - expected, 2) / expected;
        counts[order[i]] = 0;
    }
    for (int i = 0; i < N_VOCAB; i++) CU_ASSERT_EQUAL(counts[i], 0);
    /* from six standard deviations below the mean of chi-squared with n_kept degrees of freedom to
     * five above */
    CU_ASSERT(chi2 < n_kept + 5 * sqrt(2.0 * n_kept));
    CU_ASSERT(chi2 > n_kept - 6 * sqrt(2.0 * n_kept));
}

static void min_p_drops_what_is_far_below_the_best(void)
{
    const float max = fill_logits(3);
    struct pick_options o = plain(0);
    o.min_p = 0.25f;
    for (uint32_t p = 0; p < 2000; p++) {
        o.position = p;
        const int32_t id = pick_token(&kern, &o, logits, N_VOCAB, max, &scratch);
        CU_ASSERT(reference_mass(id, max) >= 0.2499);
    }
}

static void the_draw_depends_on_key_choice_and_position_alone(void)
{
    const float max = fill_logits(4);
    struct pick_options a = plain(11), b = plain(11);
    CU_ASSERT_EQUAL(pick_token(&kern, &a, logits, N_VOCAB, max, &scratch),
                    pick_token(&kern, &b, logits, N_VOCAB, max, &scratch));
    CU_ASSERT_EQUAL(pick_random(&a), pick_random(&b));
    b.choice = 1;
    CU_ASSERT_NOT_EQUAL(pick_random(&a), pick_random(&b));
    b = plain(12);
    CU_ASSERT_NOT_EQUAL(pick_random(&a), pick_random(&b));
    b = plain(11);
    b.key[0] ^= 1;
    CU_ASSERT_NOT_EQUAL(pick_random(&a), pick_random(&b));
}

/* A known answer of Philox4x32-10 (kat_vectors of Random123): counter and key zero. */
static void philox_matches_its_known_answer(void)
{
    const struct pick_options zero = {.temperature = 1};
    CU_ASSERT_EQUAL(pick_random(&zero), UINT64_C(0x6627e8d5e169c58d));
}

static void logprobs_match_double_precision(void)
{
    const float max = fill_logits(5);
    double total = 0;
    for (int i = 0; i < N_VOCAB; i++) total += reference_mass(i, max);
    const uint64_t z = kern.mass(logits, N_VOCAB, max, 1.0f, NULL);
    for (int i = 0; i < N_VOCAB; i++) {
        const double expected = (double)logits[i] - max - log(total);
        CU_ASSERT_DOUBLE_EQUAL(pick_logprob(logits[i], max, z), expected, 2e-6);
    }
}

void suite_pick(CU_pSuite suite);
void suite_pick(CU_pSuite suite)
{
    kern_fill_ref(&kern);
    CU_add_test(suite, "top-k of one is greedy", top_k_of_one_is_greedy);
    CU_add_test(suite, "ties go to the smaller id", ties_go_to_the_smaller_id);
    CU_add_test(suite, "top-p keeps the shortest prefix", top_p_keeps_the_shortest_prefix);
    CU_add_test(suite, "min-p drops what is far below the best",
                min_p_drops_what_is_far_below_the_best);
    CU_add_test(suite, "the draw depends on key, choice and position alone",
                the_draw_depends_on_key_choice_and_position_alone);
    CU_add_test(suite, "Philox matches its known answer", philox_matches_its_known_answer);
    CU_add_test(suite, "logprobs match double precision", logprobs_match_double_precision);
}

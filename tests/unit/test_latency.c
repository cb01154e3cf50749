/* Percentiles of the latency histogram against exact percentiles, for several distributions. */
#include "serve/schedule/latency.h"

#include "util_fake_engine.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N = 20000 };

static int by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The quantiles 0, 0.001, ... 1 are within 1/128 of the exact samples. */
static void check_percentiles(uint64_t *samples)
{
    static struct latency l;
    double sum = 0;
    memset(&l, 0, sizeof l);
    for (int i = 0; i < N; i++) {
        latency_add(&l, samples[i]);
        sum += (double)samples[i];
    }
    qsort(samples, N, sizeof *samples, by_value);
    CU_ASSERT_EQUAL(l.n, N);
    CU_ASSERT_EQUAL(l.min_ns, samples[0]);
    CU_ASSERT_EQUAL(l.max_ns, samples[N - 1]);
    CU_ASSERT_DOUBLE_EQUAL(latency_mean_s(&l), sum / N * 1e-9, sum / N * 1e-18);
    for (int p = 0; p <= 1000; p++) {
        const size_t rank = (size_t)(p / 1000.0 * N), at = rank < N ? rank : N - 1;
        const double exact = (double)samples[at] * 1e-9;
        const double found = latency_percentile_s(&l, p / 1000.0);
        CU_ASSERT(fabs(found - exact) <= exact / 128 + 1e-12);
    }
}

static void percentiles_of_all_magnitudes_are_within_their_promise(void)
{
    static uint64_t samples[N];
    uint64_t random = 99;
    for (int i = 0; i < N; i++) {
        samples[i] = fake_random(&random) >> fake_between(&random, 20, 63);
    }
    check_percentiles(samples);
}

/* Most samples are near 5 ms; one in a hundred takes a thousand times as long, as on a stalled file
 * system. */
static void percentiles_of_a_long_tail_are_within_their_promise(void)
{
    static uint64_t samples[N];
    uint64_t random = 5;
    for (int i = 0; i < N; i++) {
        const uint64_t base = i % 100 == 0 ? 5000000000u : 5000000u;
        samples[i] = base + fake_random(&random) % (base / 3);
    }
    check_percentiles(samples);
}

static void equal_samples_are_found_exactly(void)
{
    static struct latency l;
    memset(&l, 0, sizeof l);
    for (int i = 0; i < 1000; i++) latency_add(&l, 12345678);
    for (int p = 0; p <= 100; p++) {
        CU_ASSERT_DOUBLE_EQUAL(latency_percentile_s(&l, p / 100.0), 12345678e-9, 1e-15);
    }
}

static void extreme_samples_have_a_bucket(void)
{
    static struct latency l;
    memset(&l, 0, sizeof l);
    CU_ASSERT_EQUAL(latency_percentile_s(&l, 0.5), 0);
    latency_add(&l, UINT64_MAX);
    latency_add(&l, 0);
    latency_add(&l, 63);
    latency_add(&l, 64);
    CU_ASSERT_EQUAL(latency_percentile_s(&l, 0), 0);
    CU_ASSERT_DOUBLE_EQUAL(latency_percentile_s(&l, 0.25), 63e-9, 1e-12);
    CU_ASSERT_DOUBLE_EQUAL(latency_percentile_s(&l, 0.5), 64e-9, 1e-12);
    CU_ASSERT(latency_percentile_s(&l, 1) > 1.8e10);
}

void suite_latency(CU_pSuite suite);
void suite_latency(CU_pSuite suite)
{
    CU_add_test(suite, "percentiles of all magnitudes are within their promise",
                percentiles_of_all_magnitudes_are_within_their_promise);
    CU_add_test(suite, "percentiles of a long tail are within their promise",
                percentiles_of_a_long_tail_are_within_their_promise);
    CU_add_test(suite, "equal samples are found exactly", equal_samples_are_found_exactly);
    CU_add_test(suite, "extreme samples have a bucket", extreme_samples_have_a_bucket);
}

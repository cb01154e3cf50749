/* Latency percentiles, the summary's text and the progress line. */
#include "serve/progress.h"

#include "base/mem.h"
#include "util_fake_engine.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void percentiles_are_within_their_promise(void)
{
    enum { N = 20000 };
    static struct latency l;
    static uint64_t samples[N];
    uint64_t random = 99;
    memset(&l, 0, sizeof l);
    for (int i = 0; i < N; i++) {
        samples[i] = fake_random(&random) >> fake_between(&random, 20, 63);
        latency_add(&l, samples[i]);
    }
    qsort(samples, N, sizeof *samples, by_value);
    CU_ASSERT_EQUAL(l.min_ns, samples[0]);
    CU_ASSERT_EQUAL(l.max_ns, samples[N - 1]);
    for (int p = 0; p <= 100; p++) {
        const size_t at = (size_t)p * N / 100 < N ? (size_t)p * N / 100 : N - 1;
        const double exact = (double)samples[at] * 1e-9;
        const double found = latency_percentile_s(&l, p / 100.0);
        CU_ASSERT(fabs(found - exact) <= 0.016 * exact + 1e-12);
    }
}

static void extreme_samples_have_a_bucket(void)
{
    static struct latency l;
    memset(&l, 0, sizeof l);
    CU_ASSERT_EQUAL(latency_percentile_s(&l, 0.5), 0);
    latency_add(&l, UINT64_MAX);
    latency_add(&l, 0);
    latency_add(&l, 31);
    latency_add(&l, 32);
    CU_ASSERT_EQUAL(latency_percentile_s(&l, 0), 0);
    CU_ASSERT_DOUBLE_EQUAL(latency_percentile_s(&l, 0.25), 31e-9, 1e-12);
    CU_ASSERT_DOUBLE_EQUAL(latency_percentile_s(&l, 0.5), 32e-9, 1e-12);
    CU_ASSERT(latency_percentile_s(&l, 1) > 1.8e10);
}

static void the_summary_says_what_was_measured(void)
{
    static struct serve_summary s;
    memset(&s, 0, sizeof s);
    s.n_rows = 12;
    s.n_error_rows = 3;
    s.n_preemptions = 4;
    s.n_prompt_tokens = 1000;
    s.n_generated_tokens = 500;
    s.wall_s = 2;
    for (uint64_t i = 1; i <= 100; i++) latency_add(&s.ttft, i * 1000000);
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    CU_ASSERT_PTR_NOT_NULL_FATAL(out);
    serve_summary_print(&s, out);
    fclose(out);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "rows: 12, error rows: 3, "));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "preemptions: 4"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "1000 prompt (500.0/s), 500 generated (250.0/s)"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "TTFT (ms): min 1.00  mean 50.50  P50 "));
    CU_ASSERT_PTR_NULL(strstr(text, "TPOT"));
    CU_ASSERT_PTR_NULL(strstr(text, "perplexity"));
    free(text);
}

static void the_line_shows_rates_and_load(void)
{
    struct progress p = {.last_prompt = 100, .last_generated = 40};
    struct progress_view v = {.n_done = 30, .n_read = 60, .read_fraction = 0.5};
    struct strbuf s;
    strbuf_init(&s);
    v.n_prompt_tokens = 300;
    v.n_generated_tokens = 50;
    v.load = (struct scheduler_load){7, 3, 90, 100};
    progress_text(&p, &v, 2, false, &s);
    CU_ASSERT_STRING_EQUAL(s.data, " 25%  30/60+ rows  prompt 100 tok/s  generated 5 tok/s  "
                                   "running 3  waiting 7  free blocks 90/100");
    strbuf_clear(&s);
    progress_text(&p, &v, 2, true, &s);
    CU_ASSERT_PTR_NOT_NULL(strstr(s.data, "[######------------------] "));
    strbuf_clear(&s);
    v.read_fraction = -1; /* a pipe: nobody knows how much is left */
    progress_text(&p, &v, 2, true, &s);
    CU_ASSERT_EQUAL(strncmp(s.data, "30/60+ rows", 11), 0);
    strbuf_clear(&s);
    v.all_read = true;
    progress_text(&p, &v, 2, false, &s);
    CU_ASSERT_EQUAL(strncmp(s.data, " 50%  30/60 rows", 16), 0);
    strbuf_fini(&s);
}

void suite_progress(CU_pSuite suite);
void suite_progress(CU_pSuite suite)
{
    CU_add_test(suite, "percentiles are within their promise",
                percentiles_are_within_their_promise);
    CU_add_test(suite, "extreme samples have a bucket", extreme_samples_have_a_bucket);
    CU_add_test(suite, "the summary says what was measured", the_summary_says_what_was_measured);
    CU_add_test(suite, "the line shows rates and load", the_line_shows_rates_and_load);
}

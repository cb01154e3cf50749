/* The summary's text and the progress line. */
#include "serve/output/progress.h"

#include "base/mem.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    s.n_steps = 4;
    s.n_blocks = 200;
    s.n_peak_used_blocks = 150;
    s.sum_used_blocks = 400;
    s.n_prefix_hits = 2;
    s.n_prefix_hit_tokens = 128;
    s.n_prompt_rows = 128 * 3;
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
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "  P95 95."));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "in 2 hits; hit rate 25.0 %"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "peak 150 (75 %), mean 100 (50 %) of 200"));
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
    v.read_fraction = -1; /* a pipe: the rest of the input is unknown */
    progress_text(&p, &v, 2, true, &s);
    CU_ASSERT_EQUAL(strncmp(s.data, "30/60+ rows", 11), 0);
    strbuf_clear(&s);
    v.all_read = true;
    progress_text(&p, &v, 2, false, &s);
    CU_ASSERT_EQUAL(strncmp(s.data, " 50%  30/60 rows", 16), 0);
    strbuf_fini(&s);
}

static void rows_out_of_order_and_the_time_left_are_shown(void)
{
    struct progress p = {.first_ns = 0};
    struct progress_view v = {.n_done = 10, .n_read = 100, .all_read = true};
    struct strbuf s;
    strbuf_init(&s);
    progress_estimate(&p, &v, 1000000000); /* an earlier run did 10 % */
    CU_ASSERT_EQUAL(p.left_s, 0);
    v.n_done = 12;
    v.n_waiting = 18; /* rows wait for a slow row: a fifth of the job in 10 minutes */
    progress_estimate(&p, &v, 601000000000);
    CU_ASSERT_DOUBLE_EQUAL(p.left_s, 2100, 1e-6);
    progress_text(&p, &v, 2, false, &s);
    CU_ASSERT_EQUAL(
        strncmp(s.data, " 30%  12/100 rows, 18 done behind them, about 0:35:00 left  ", 60), 0);
    v.n_done = 100;
    v.n_waiting = 0;
    progress_estimate(&p, &v, 602000000000);
    CU_ASSERT_EQUAL(p.left_s, 0);
    v.all_read = false;
    v.read_fraction = -1; /* a pipe */
    progress_estimate(&p, &v, 603000000000);
    CU_ASSERT_EQUAL(p.left_s, 0);
    strbuf_fini(&s);
}

void suite_progress(CU_pSuite suite);
void suite_progress(CU_pSuite suite)
{
    CU_add_test(suite, "the summary says what was measured", the_summary_says_what_was_measured);
    CU_add_test(suite, "the line shows rates and load", the_line_shows_rates_and_load);
    CU_add_test(suite, "rows out of order and the time left are shown",
                rows_out_of_order_and_the_time_left_are_shown);
}

/* Rows that arrive in any order are written in the order of their lines; a failed write names the
 * file. */
#include "serve/output/result_writer.h"

#include "base/file.h"
#include "base/mem.h"
#include "util_serve.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <string.h>

static void put(struct result_writer *w, uint64_t index)
{
    char text[32];
    snprintf(text, sizeof text, "row %llu\n", (unsigned long long)index);
    const struct result_row row = {.text = text,
                                   .n = strlen(text),
                                   .is_error = index % 10 == 0,
                                   .sum_logprob = 0.1 * (double)index,
                                   .n_scored = 2};
    const struct status st = result_writer_put(w, index, &row);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
}

static void rows_come_out_in_order(void)
{
    enum { N = 5000, WINDOW = 37 };
    char path[UTIL_PATH_MAX];
    uint64_t random = 4;
    uint64_t open[WINDOW];
    size_t n_open = 0, n_most = 0;
    uint64_t n_opened = 0;
    util_file_create(path, "", 0);
    struct result_writer *w = NULL;
    struct status st = result_writer_create(path, WINDOW, (size_t)1 << 20, &w);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    while (n_opened < N || n_open > 0) {
        if (n_opened < N && result_writer_has_room(w) && fake_between(&random, 0, 3) > 0) {
            result_writer_open(w, 100, &open[n_open++]);
            n_opened++;
        } else if (n_open > 0) {
            const size_t i = (size_t)fake_between(&random, 0, (int64_t)n_open - 1);
            put(w, open[i]);
            open[i] = open[--n_open];
        }
        if (result_writer_n_open(w) > n_most) n_most = result_writer_n_open(w);
    }
    CU_ASSERT_EQUAL(n_most, WINDOW);
    st = result_writer_close(w);
    CU_ASSERT_FALSE(status_failed(&st));
    const struct result_totals t = result_writer_totals(w);
    double sum = 0;
    for (int i = 0; i < N; i++) sum += 0.1 * (double)i;
    CU_ASSERT_EQUAL(t.n_rows, N);
    CU_ASSERT_EQUAL(t.n_error_rows, N / 10);
    CU_ASSERT_EQUAL(t.n_scored, 2 * N);
    CU_ASSERT_EQUAL(t.sum_logprob, sum); /* equal to the last bit, because sums are added in the
                                            order of the input */
    result_writer_destroy(&w);
    char *bytes = NULL;
    size_t n = 0;
    st = file_read(path, 1 << 20, &bytes, &n);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    struct strbuf expected;
    strbuf_init(&expected);
    for (int i = 0; i < N; i++) strbuf_printf(&expected, "row %d\n", i);
    CU_ASSERT_EQUAL_FATAL(n, expected.n);
    CU_ASSERT_EQUAL(memcmp(bytes, expected.data, n), 0);
    strbuf_fini(&expected);
    mem_free(&bytes);
    util_file_remove(path);
}

static void the_window_closes_on_bytes_too(void)
{
    char path[UTIL_PATH_MAX];
    uint64_t index;
    util_file_create(path, "", 0);
    struct result_writer *w = NULL;
    struct status st = result_writer_create(path, 100, 1000, &w);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    CU_ASSERT(result_writer_has_room(w));
    result_writer_open(w, 5000, &index); /* the first row is always accepted */
    CU_ASSERT_FALSE(result_writer_has_room(w));
    put(w, 0);
    CU_ASSERT(result_writer_has_room(w));
    result_writer_open(w, 100, &index);
    result_writer_open(w, 899, &index);
    CU_ASSERT(result_writer_has_room(w));
    result_writer_open(w, 1, &index);
    CU_ASSERT_FALSE(result_writer_has_room(w));
    put(w, 2); /* complete but waiting: only its text counts */
    CU_ASSERT(result_writer_has_room(w));
    result_writer_destroy(&w);
    util_file_remove(path);
}

static void a_full_disk_is_named(void)
{
    uint64_t index;
    struct result_writer *w = NULL;
    struct status st = result_writer_create("/dev/full", 4, 1000, &w);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    result_writer_open(w, 10, &index);
    put(w, 0);
    st = result_writer_flush(w);
    CU_ASSERT_EQUAL(st.code, STATUS_IO);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "/dev/full"));
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "No space left"));
    result_writer_destroy(&w);
    st = result_writer_create("/nowhere/out.jsonl", 4, 1000, &w);
    CU_ASSERT_EQUAL(st.code, STATUS_IO);
    CU_ASSERT_PTR_NULL(w);
}

void suite_result_writer(CU_pSuite suite);
void suite_result_writer(CU_pSuite suite)
{
    CU_add_test(suite, "rows come out in order", rows_come_out_in_order);
    CU_add_test(suite, "the window closes on bytes too", the_window_closes_on_bytes_too);
    CU_add_test(suite, "a full disk is named", a_full_disk_is_named);
}

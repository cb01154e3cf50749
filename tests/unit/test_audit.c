/* Which rows an audit chooses, and which differences it finds in them. The rows of the output are
 * given as text here; e2e.audit tests that recomputed rows are equal. */
#include "serve/lead/audit.h"
#include "unit/util_ckpt.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <string.h>

enum { N_ROWS = 200 };

static struct audit_options options_of(const char *output, uint64_t n_rows, uint64_t seed)
{
    return (struct audit_options){.input_path = "in.jsonl",
                                  .output_path = output,
                                  .settings = "command=generate\n",
                                  .n_rows = n_rows,
                                  .seed = seed};
}

/* Writes N_ROWS rows "row K" and then a torn row. The 6th row is that of a repeated id. */
static const char *write_rows(void)
{
    static char text[N_ROWS * 64];
    size_t n = 0;
    for (int i = 1; i <= N_ROWS; i++) {
        const char *error = i == 6 ? ",\"error\":{\"code\":\"duplicate_id\"" : "";
        n += (size_t)snprintf(text + n, sizeof text - n, "row %d%s\n", i, error);
    }
    n += (size_t)snprintf(text + n, sizeof text - n, "row to");
    const char *path = scratch("out.jsonl");
    put_file(path, text, n);
    return path;
}

/* Offers lines [first, first + N_ROWS) to the audit. Sets is_chosen[i] for line first + i; returns
 * the number of chosen lines. */
static size_t chosen_lines(struct audit *a, uint64_t first, bool *is_chosen)
{
    size_t n = 0;
    for (uint64_t i = 0; i < N_ROWS; i++) {
        const struct line line = {.kind = LINE_OK, .text = "x", .n = 1, .number = first + i};
        CU_ASSERT_EQUAL_FATAL(audit_take_line(a, &line, &is_chosen[i]).code, STATUS_OK);
        n += is_chosen[i];
    }
    CU_ASSERT_TRUE(audit_has_all_lines(a));
    return n;
}

static void rows_are_chosen_evenly(void)
{
    const char *path = write_rows();
    enum { N_SEEDS = 400, N_CHOSEN = 20 };
    unsigned n_times[N_ROWS] = {0};
    for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
        struct audit *a = NULL;
        bool is_chosen[N_ROWS];
        const struct audit_options o = options_of(path, N_CHOSEN, seed);
        CU_ASSERT_EQUAL_FATAL(audit_create(&o, &a).code, STATUS_OK);
        CU_ASSERT_EQUAL(audit_result(a).n_rows, N_ROWS);
        CU_ASSERT_EQUAL(chosen_lines(a, 1, is_chosen), N_CHOSEN);
        for (int i = 0; i < N_ROWS; i++) n_times[i] += is_chosen[i];
        audit_destroy(&a);
    }
    CU_ASSERT_EQUAL(n_times[5], 0); /* never chosen: an error row about a repeated id depends on
                                       other lines */
    for (int i = 0; i < N_ROWS; i++) {
        /* binomial: 40.2 expected, deviation 6 */
        if (i != 5) CU_ASSERT_TRUE(n_times[i] > 12 && n_times[i] < 70);
    }
    scratch_clear();
}

static void all_rows_of_a_small_output_are_chosen(void)
{
    const char *path = write_rows();
    struct audit *a = NULL;
    bool is_chosen[N_ROWS];
    struct audit_options o = options_of(path, 1000, 0);
    o.n_lines_before = 50; /* a part of an input */
    CU_ASSERT_EQUAL_FATAL(audit_create(&o, &a).code, STATUS_OK);
    CU_ASSERT_EQUAL(chosen_lines(a, 51, is_chosen), N_ROWS - 1);
    audit_compare(a, 51, "row 1\n", 6);
    CU_ASSERT_EQUAL(audit_result(a).n_different, 0);
    audit_compare(a, 52, "row 3\n", 6);  /* another byte */
    audit_compare(a, 53, "row 3 \n", 7); /* longer */
    audit_compare(a, 54, "row\n", 4);    /* shorter */
    audit_compare(a, 60, "row 10\n", 7);
    CU_ASSERT_EQUAL(audit_result(a).n_compared, 5);
    CU_ASSERT_EQUAL(audit_result(a).n_different, 3);
    audit_destroy(&a);
    scratch_clear();
}

static void an_output_without_rows_is_refused(void)
{
    struct audit *a = NULL;
    const char *path = scratch("torn.jsonl");
    put_file(path, "{\"torn", 6);
    struct audit_options o = options_of(path, 3, 0);
    struct status st = audit_create(&o, &a);
    CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "expected rows"));
    o = options_of(scratch("absent.jsonl"), 3, 0);
    st = audit_create(&o, &a);
    CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "absent.jsonl"));
    o = options_of(path, 3, 0);
    o.journal_path = path;
    st = audit_create(&o, &a);
    CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "no journal of this version"));
    CU_ASSERT_PTR_NULL(a);
    scratch_clear();
}

void suite_audit(CU_pSuite suite);
void suite_audit(CU_pSuite suite)
{
    CU_add_test(suite, "rows are chosen evenly", rows_are_chosen_evenly);
    CU_add_test(suite, "all rows of a small output", all_rows_of_a_small_output_are_chosen);
    CU_add_test(suite, "an output without rows is refused", an_output_without_rows_is_refused);
}

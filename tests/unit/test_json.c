/* Numbers that are too large: which texts are rounded, and which are no JSON. Places of errors. */
#include "base/json.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <string.h>

static struct status parse(const char *text, struct js_doc **doc)
{
    bool is_rounded;
    return js_parse_rounding(text, strlen(text), "text", doc, &is_rounded);
}

static void large_numbers_are_rounded(void)
{
    static const struct {
        const char *text;
        double value;
    } cases[] = {{"[1e999]", 1.7976931348623157e308},     {"[-1E+999]", -1.7976931348623157e308},
                 {"[0.5e999]", 1.7976931348623157e308},   {"[99999999999999999999]", 1e20},
                 {"[-99999999999999999999]", -1e20},      {"[7,1e999]", 7},
                 {"[12.25,99999999999999999999]", 12.25}, {"[\"1e999-\",1e999]", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct js_doc *doc = NULL;
        double x = 0;
        CU_ASSERT_EQUAL_FATAL(parse(cases[i].text, &doc).code, STATUS_OK);
        const struct js_node *first = js_at(js_root(doc), 0);
        CU_ASSERT(js_number(first, &x) || strcmp(js_string(first, NULL), "1e999-") == 0);
        CU_ASSERT_EQUAL(x, cases[i].value);
        js_destroy(&doc);
    }
}

static void malformed_numbers_stay_errors(void)
{
    static const char *const texts[] = {"[1e999-]",
                                        "[1e999+5]",
                                        "[1e999.5]",
                                        "[1e999e]",
                                        "[01e999]",
                                        "[-.5e999]",
                                        "[1.e999]",
                                        "[--1e999]",
                                        "[1e999,1-]",
                                        "[99999999999999999999-]",
                                        "[099999999999999999999]",
                                        "[1e999",
                                        "[1e999x]",
                                        "[-,1e999]",
                                        "[1e999,+1]"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct js_doc *doc = NULL;
        const struct status st = parse(texts[i], &doc);
        if (st.code != STATUS_INPUT) printf("\n  %s\n", texts[i]);
        CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
        CU_ASSERT_PTR_NULL(doc);
        js_destroy(&doc);
    }
}

/* An error in a text of one line names the column alone: callers know the line's number in its
 * file. */
static void only_texts_of_lines_have_line_numbers(void)
{
    struct js_doc *doc = NULL;
    struct status st = parse("{\"a\":x}", &doc);
    CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, ": column 6: "));
    CU_ASSERT_PTR_NULL(strstr(st.text, "line 1"));
    st = parse("{\n\"a\":x}", &doc);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, ": line 2, column 5: "));
}

void suite_json(CU_pSuite suite);
void suite_json(CU_pSuite suite)
{
    CU_add_test(suite, "large numbers are rounded", large_numbers_are_rounded);
    CU_add_test(suite, "only texts of lines have line numbers",
                only_texts_of_lines_have_line_numbers);
    CU_add_test(suite, "malformed numbers stay errors", malformed_numbers_stay_errors);
}

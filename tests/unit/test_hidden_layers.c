/* The layers of --save-hidden: which lists are taken, and which are refused. */
#include "arch/hidden_layers.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <string.h>

enum { N_LAYERS = 12 };

static void layers_are_counted_from_both_ends(void)
{
    const uint32_t wanted[] = {0, 11, N_LAYERS, 9, 10};
    struct hidden_layers l = {.type = DTYPE_F16};
    const struct status st = hidden_layers_parse("0,-1,final,-3,10", N_LAYERS, &l);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    CU_ASSERT_EQUAL_FATAL(l.n, 5);
    CU_ASSERT_EQUAL(memcmp(l.at, wanted, sizeof wanted), 0);
    CU_ASSERT_EQUAL(hidden_layers_bytes(&l, 64), 5 * 64 * 2);
    CU_ASSERT_EQUAL(hidden_layers_bytes(&(struct hidden_layers){.n = 0}, 64), 0);

    uint32_t entries[HIDDEN_LAYERS_MAX];
    CU_ASSERT_EQUAL(hidden_layers_within(&l, 9, 12, entries), 3);
    CU_ASSERT(entries[0] == 1 && entries[1] == 3 && entries[2] == 4);
    CU_ASSERT_EQUAL(hidden_layers_within(&l, 12, 13, entries), 1);
    CU_ASSERT_EQUAL(entries[0], 2);
    CU_ASSERT_EQUAL(hidden_layers_within(&l, 1, 9, entries), 0);
}

static void other_words_are_refused(void)
{
    static const char *const wrong[] = {
        "",   "12",  "-13", "1,",          ",1",     "1,,2", "+1",    " 1",
        "1 ", "0x1", "1.0", "final,final", "finale", "1,1",  "-1,11", "99999999999999999999"};
    struct hidden_layers l;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const struct status st = hidden_layers_parse(wrong[i], N_LAYERS, &l);
        CU_ASSERT_EQUAL(st.code, STATUS_USAGE);
        CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "--save-hidden"));
    }
}

static void too_many_are_refused(void)
{
    char text[4 * (HIDDEN_LAYERS_MAX + 2)] = "0";
    struct hidden_layers l;
    for (int i = 1; i < HIDDEN_LAYERS_MAX; i++) {
        const size_t at = strlen(text);
        snprintf(text + at, sizeof text - at, ",%d", i);
    }
    CU_ASSERT_EQUAL(hidden_layers_parse(text, 200, &l).code, STATUS_OK);
    CU_ASSERT_EQUAL(l.n, HIDDEN_LAYERS_MAX);
    strcat(text, ",99");
    CU_ASSERT_EQUAL(hidden_layers_parse(text, 200, &l).code, STATUS_USAGE);
}

void suite_hidden_layers(CU_pSuite suite);

void suite_hidden_layers(CU_pSuite suite)
{
    CU_add_test(suite, "layers are counted from both ends", layers_are_counted_from_both_ends);
    CU_add_test(suite, "other words are refused", other_words_are_refused);
    CU_add_test(suite, "too many are refused", too_many_are_refused);
}

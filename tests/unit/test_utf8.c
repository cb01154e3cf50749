/* UTF-8: every code point there and back, and the ill-formed parts of Unicode 15, section 3.9. */
#include "base/utf8.h"

#include <CUnit/CUnit.h>
#include <string.h>

static void every_code_point_round_trips(void)
{
    size_t n_wrong = 0, n_points = 0;
    for (uint32_t c = 0; c <= 0x10FFFF; c++) {
        char bytes[4];
        size_t step = 0;
        if (c >= 0xD800 && c <= 0xDFFF) continue;
        const size_t n = utf8_encode(c, bytes);
        const bool whole = utf8_sequence(bytes, n, &step) && step == n;
        if (!whole || utf8_decode(bytes, n, &step) != c) n_wrong++;
        for (size_t k = 1; k < n; k++) { /* every beginning of a sequence is incomplete, and none
                                            is a sequence */
            if (utf8_sequence(bytes, k, &step) || !utf8_incomplete(bytes, k)) n_wrong++;
        }
        n_points++;
    }
    CU_ASSERT_EQUAL(n_points, 0x110000 - 0x800);
    CU_ASSERT_EQUAL(n_wrong, 0);
}

/* The lengths of the maximal parts of ill-formed text in Unicode's tables 3-8 to 3-11. */
static void maximal_ill_formed_parts(void)
{
    static const struct {
        const char *bytes;
        size_t parts[8];
    } CASES[] = {
        {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82", {1, 1, 1, 1, 1, 1, 1, 1}},
        {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF", {1, 1, 1, 1, 1, 1, 1, 1}},
        {"\xF4\x91\x92\x93\xFF\x80\xBF", {1, 1, 1, 1, 1, 1, 1}},
        {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF", {2, 1, 3, 2}},
        {"\xE1\x80", {2}},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        const size_t n = strlen(CASES[i].bytes);
        size_t at = 0, step, bad_at;
        for (size_t k = 0; k < 8 && CASES[i].parts[k] > 0; k++) {
            CU_ASSERT(!utf8_sequence(CASES[i].bytes + at, n - at, &step));
            CU_ASSERT_EQUAL(step, CASES[i].parts[k]);
            at += step;
        }
        CU_ASSERT_EQUAL(at, n);
        CU_ASSERT(!utf8_valid(CASES[i].bytes, n, &bad_at) && bad_at == 0);
    }
}

static void the_first_bad_byte_is_named(void)
{
    size_t bad_at = 99;
    CU_ASSERT(utf8_valid("caf\xC3\xA9", 5, &bad_at));
    CU_ASSERT(!utf8_valid("caf\xC3\xA9\xC3", 6, &bad_at));
    CU_ASSERT_EQUAL(bad_at, 5);
    CU_ASSERT(!utf8_incomplete("\xED\xA0", 2));
}

static void copies_are_cut_between_characters(void)
{
    char out[8];
    CU_ASSERT_EQUAL(utf8_copy(out, sizeof out, "ab\xC3\xA9", 4), 4);
    CU_ASSERT_STRING_EQUAL(out, "ab\xC3\xA9");
    CU_ASSERT_EQUAL(utf8_copy(out, sizeof out, "abcdef\xC3\xA9", 8), 6);
    CU_ASSERT_STRING_EQUAL(out, "abcdef");
    CU_ASSERT_EQUAL(utf8_copy(out, sizeof out, "\xE9t\xE9", 3), 7);
    CU_ASSERT_STRING_EQUAL(out, "\xEF\xBF\xBDt\xEF\xBF\xBD");
    CU_ASSERT_EQUAL(utf8_copy(out, sizeof out, "\xE9\xE9\xE9", 3), 6);
    CU_ASSERT_EQUAL(utf8_copy(out, 1, "a", 1), 0);
    CU_ASSERT_STRING_EQUAL(out, "");
}

void suite_utf8(CU_pSuite suite);
void suite_utf8(CU_pSuite suite)
{
    CU_add_test(suite, "every code point round trips", every_code_point_round_trips);
    CU_add_test(suite, "maximal ill-formed parts", maximal_ill_formed_parts);
    CU_add_test(suite, "the first bad byte is named", the_first_bad_byte_is_named);
    CU_add_test(suite, "copies are cut between characters", copies_are_cut_between_characters);
}

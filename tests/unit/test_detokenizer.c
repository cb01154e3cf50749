/* Stop strings that arrive in pieces. The tokenizer suite tests detokenization itself. */
#include "base/strbuf.h"
#include "text/tokenizer/stop.h"

#include <CUnit/CUnit.h>
#include <string.h>

/* Feeds text in pieces of n_piece bytes and collects the output in `out`. Returns whether a stop
 * string was found. */
static bool feed_all(struct stop_matcher *m, const char *text, size_t n_piece, struct strbuf *out)
{
    bool stopped = false;
    const size_t n = strlen(text);
    for (size_t i = 0; i < n; i += n_piece) {
        const size_t n_now = n - i < n_piece ? n - i : n_piece;
        const struct status st = stop_feed(m, text + i, n_now, out, &stopped);
        CU_ASSERT(!status_failed(&st));
    }
    const struct status st = stop_flush(m, out);
    CU_ASSERT(!status_failed(&st));
    return stopped;
}

struct stop_case {
    const char *strings[3];
    size_t n_strings;
    const char *text;
    const char *before; /* NULL: no stop string matches, and the whole text is output */
};

static const struct stop_case CASES[] = {
    {{"END"}, 1, "this is the END of it", "this is the "},
    {{"END"}, 1, "this is the EN", NULL},
    {{"aab"}, 1, "aaaab", "aa"},
    {{"abab"}, 1, "abaabababx", "aba"},
    {{"\n\n", "\nUser:"}, 2, "yes\nUser: no\n\n", "yes"},
    {{"bcd", "abcde", "cd"}, 3, "xabcdef", "xa"},
    {{"abc", "b"}, 2, "xabc", "xa"},
    {{"\xC3\xA9"}, 1, "caf\xC3\xA8 caf\xC3\xA9!", "caf\xC3\xA8 caf"},
    {{"x"}, 1, "x", ""},
    {{NULL}, 0, "nothing stops this", NULL},
};

static void every_case_in_every_piece_size(void)
{
    for (size_t c = 0; c < sizeof CASES / sizeof CASES[0]; c++) {
        const struct stop_case *k = &CASES[c];
        size_t n_bytes[3] = {0};
        for (size_t i = 0; i < k->n_strings; i++) n_bytes[i] = strlen(k->strings[i]);
        for (size_t n_piece = 1; n_piece <= strlen(k->text); n_piece++) {
            struct stop_matcher *m;
            const struct status st = stop_create(k->strings, n_bytes, k->n_strings, &m);
            CU_ASSERT_FATAL(!status_failed(&st));
            struct strbuf out;
            strbuf_init(&out);
            const bool stopped = feed_all(m, k->text, n_piece, &out);
            const char *want = k->before != NULL ? k->before : k->text;
            CU_ASSERT_EQUAL(stopped, k->before != NULL);
            CU_ASSERT(out.n == strlen(want) &&
                      memcmp(out.data != NULL ? out.data : "", want, out.n) == 0);
            strbuf_fini(&out);
            stop_destroy(&m);
        }
    }
}

static void only_a_possible_beginning_is_held(void)
{
    const char *const strings[] = {"STOP"};
    const size_t n_bytes[] = {4};
    struct stop_matcher *m;
    struct status st = stop_create(strings, n_bytes, 1, &m);
    CU_ASSERT_FATAL(!status_failed(&st));
    struct strbuf out;
    strbuf_init(&out);
    bool stopped;
    st = stop_feed(m, "go on ST", 8, &out, &stopped);
    CU_ASSERT(!stopped && out.n == 6);
    st = stop_feed(m, "ATE", 3, &out, &stopped);
    CU_ASSERT(!stopped && out.n == 11 && memcmp(out.data, "go on STATE", 11) == 0);
    strbuf_fini(&out);
    stop_destroy(&m);
}

/* stop_peek does not affect stop_feed, and may be called again after it has found a match. */
static void peeking_again_after_a_match_is_safe(void)
{
    const char *const strings[] = {"ab", "aba\0\0"};
    const size_t n_bytes[] = {2, 5};
    static const char ahead[] = "ab\0\0a\0";
    struct stop_matcher *m;
    struct status st = stop_create(strings, n_bytes, 2, &m);
    CU_ASSERT_FATAL(!status_failed(&st));
    struct strbuf out;
    strbuf_init(&out);
    bool stopped;
    CU_ASSERT_FALSE(stop_peek(m, ahead, 1));
    for (size_t n = 2; n <= sizeof ahead; n++) CU_ASSERT_TRUE(stop_peek(m, ahead, n));
    st = stop_feed(m, "xa", 2, &out, &stopped);
    CU_ASSERT(!status_failed(&st) && !stopped);
    CU_ASSERT_FALSE(stop_peek(m, "c", 1));
    st = stop_feed(m, "", 0, &out, &stopped);
    CU_ASSERT_TRUE(stop_peek(m, "b", 1));
    st = stop_feed(m, "b", 1, &out, &stopped);
    CU_ASSERT(!status_failed(&st) && stopped && out.n == 1 && out.data[0] == 'x');
    for (int i = 0; i < 3; i++) CU_ASSERT_TRUE(stop_peek(m, "\0\0\0", 3));
    strbuf_fini(&out);
    stop_destroy(&m);
}

static void an_empty_stop_string_is_refused(void)
{
    const char *const strings[] = {"a", ""};
    const size_t n_bytes[] = {1, 0};
    struct stop_matcher *m;
    const struct status st = stop_create(strings, n_bytes, 2, &m);
    CU_ASSERT_EQUAL(st.code, STATUS_REQUEST);
    CU_ASSERT_PTR_NULL(m);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "stop string 1"));
}

void suite_detokenizer(CU_pSuite suite);
void suite_detokenizer(CU_pSuite suite)
{
    CU_add_test(suite, "stop strings: every case in every piece size",
                every_case_in_every_piece_size);
    CU_add_test(suite, "stop strings: only a possible beginning is held",
                only_a_possible_beginning_is_held);
    CU_add_test(suite, "stop strings: peeking again after a match is safe",
                peeking_again_after_a_match_is_safe);
    CU_add_test(suite, "stop strings: an empty one is refused", an_empty_stop_string_is_refused);
}

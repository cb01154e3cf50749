/* The template language: small templates against Jinja2's output, syntax errors with line numbers,
 * and templates that would loop for ever, overflow or exhaust memory without limits. */
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/strbuf.h"
#include "text/chat/chat.h"
#include "text/chat/jinja.h"
#include "text/chat/jinja_case.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <string.h>

#define CHATS TEST_DATA_DIR "/golden/chat/"

enum { FILE_MAX = 1 << 24, FEATURES_MIN = 120 };

static struct js_doc *parse_file(const char *path, char **text, size_t *n)
{
    struct js_doc *doc = NULL;
    struct status st = file_read(path, FILE_MAX, text, n);
    if (status_failed(&st)) CU_FAIL_FATAL(st.text);
    if (strstr(path, ".jsonl") != NULL) return NULL;
    st = js_parse(*text, *n, path, &doc);
    if (status_failed(&st)) CU_FAIL_FATAL(st.text);
    return doc;
}

/* Checks a line of features.jsonl: its template must give its text, or its error. */
static bool check_feature(const struct js_node *feature, const struct js_node *root)
{
    size_t n, n_want = 0;
    const char *source = js_string(js_get(feature, "template"), &n);
    const char *want = js_string(js_get(feature, "text"), &n_want);
    const char *raised = js_string(js_get(feature, "raise"), NULL);
    struct chat *chat = NULL;
    struct chat_text text = {0};
    const struct chat_options options = {.tools = js_get(root, "tools"),
                                         .extra = js_get(root, "extra")};
    struct status st = chat_create(source, n, NULL, "feature", &chat);
    if (!status_failed(&st)) {
        chat_set_token(chat, "bos_token", "<s>", 3);
        chat_set_token(chat, "eos_token", "</s>", 4);
        st = chat_render(chat, js_get(root, "messages"), &options, &text);
    }
    bool ok = status_failed(&st) == (want == NULL);
    if (raised != NULL) {
        const struct status said =
            status_wrap(status_make(STATUS_REQUEST, "%s", raised), "chat template");
        ok = ok && strcmp(st.text, said.text) == 0;
    }
    if (want != NULL) {
        ok = ok && text.n == n_want && (n_want == 0 || memcmp(text.bytes, want, n_want) == 0);
    }
    if (!ok) {
        printf("%.*s\n  want %.*s\n  have %.*s %s\n", (int)n, source, (int)n_want,
               want != NULL ? want : "", (int)text.n, text.n > 0 ? text.bytes : "", st.text);
    }
    chat_text_fini(&text);
    chat_destroy(&chat);
    return ok;
}

static void test_features(void)
{
    char *lines, *chat_json;
    size_t n_lines, n_json, n_features = 0, n_wrong = 0;
    parse_file(CHATS "features.jsonl", &lines, &n_lines);
    struct js_doc *chat = parse_file(CHATS "features_chat.json", &chat_json, &n_json);
    for (size_t at = 0; at < n_lines;) {
        const char *end = memchr(lines + at, '\n', n_lines - at);
        const size_t n = end != NULL ? (size_t)(end - lines) - at : n_lines - at;
        struct js_doc *feature = NULL;
        const struct status st = js_parse(lines + at, n, "feature", &feature);
        if (status_failed(&st)) CU_FAIL_FATAL(st.text);
        n_wrong += !check_feature(js_root(feature), js_root(chat));
        n_features++;
        js_destroy(&feature);
        at += n + 1;
    }
    CU_ASSERT_EQUAL(n_wrong, 0);
    CU_ASSERT(n_features >= FEATURES_MIN);
    js_destroy(&chat);
    mem_free(&lines);
    mem_free(&chat_json);
}

static struct status run(const char *source, size_t n, const struct jinja_limits *limits,
                         struct strbuf *text)
{
    static const struct jinja_date DATE = {.year = 2024, .month = 7, .day = 26};
    struct jinja *t = NULL;
    struct jinja_output out = {0};
    TRY(jinja_create(source, n, "test", &t));
    const struct status st = jinja_render(t, NULL, 0, &DATE, limits, &out);
    if (text != NULL && !status_failed(&st)) strbuf_add(text, out.bytes, out.n);
    jinja_output_fini(&out);
    jinja_destroy(&t);
    return st;
}

struct refusal {
    const char *source;
    enum status_code code;
    const char *says;
};

static const struct refusal REFUSALS[] = {
    {"a\nb\n{% if x %}", STATUS_INPUT, "line 3: the template ends before 'elif'"},
    {"{{ 1 +\n }}", STATUS_INPUT, "line 2: '}}' where an expression"},
    {"\n{% include 'x' %}", STATUS_INPUT, "line 2: the tag 'include'"},
    {"{% extends 'x' %}", STATUS_INPUT, "'extends'"},
    {"{% block a %}{% endblock %}", STATUS_INPUT, "'block'"},
    {"{% endif %}", STATUS_INPUT, "'endif'"},
    {"{{ 'a }}", STATUS_INPUT, "line 1: a string that does not end"},
    {"{# a", STATUS_INPUT, "comment"},
    {"{% raw %} a", STATUS_INPUT, "raw"},
    {"{{ a", STATUS_INPUT, "a tag that does not end"},
    {"{{ a ] }}", STATUS_INPUT, "closing bracket"},
    {"{{ f(*a) }}", STATUS_INPUT, "unpacked"},
    {"{{ f(a=1, 2) }}", STATUS_INPUT, "after a named one"},
    {"{{ a $ b }}", STATUS_INPUT, "0x24"},
    {"{% for x in y recursive %}{% endfor %}", STATUS_INPUT, "recursive"},
    {"{{ '\\N{DASH}' }}", STATUS_INPUT, "escape"},
    {"{{ 99999999999999999999 }}", STATUS_INPUT, "64 bits"},
    {"{% macro f(a=1, b) %}{% endmacro %}", STATUS_INPUT, "default"},
    {"{% break %}", STATUS_INPUT, "outside"},
    {"\xFF", STATUS_INPUT, "byte 0 is not UTF-8"},
    {"a\n{{ b.c }}", STATUS_REQUEST, "line 2: 'b' is undefined"},
    {"{{ raise_exception('stop: ' ~ 3) }}", STATUS_REQUEST, "chat template: stop: 3"},
    {"{{ 'a' | nope }}", STATUS_REQUEST, "no filter named 'nope'"},
    {"{{ 'a' is nope }}", STATUS_REQUEST, "no test named 'nope'"},
    {"{{ [].append(1) }}", STATUS_REQUEST, "'append'"},
    {"{{ 9223372036854775807 + 1 }}", STATUS_REQUEST, "64 bits"},
    {"{{ 3 ** 99 }}", STATUS_REQUEST, "64 bits"},
    {"{{ 1 // 0 }}", STATUS_REQUEST, "division by zero"},
    {"{{ ''.join([1]) }}", STATUS_REQUEST, "integer"},
    {"{{ range(1000000) }}", STATUS_REQUEST, "100000"},
    {"{{ strftime_now('%Q') }}", STATUS_REQUEST, "%Q"},
    {"{% set a, b = [1] %}", STATUS_REQUEST, "1 values for 2 names"},
    {"{% set x.y = 1 %}", STATUS_REQUEST, "no namespace"},
    {"{% set n = namespace() %}{% set n._x = 1 %}", STATUS_REQUEST, "'_x'"},
    {"{{ ('%d' % 'x') }}", STATUS_REQUEST, "number"},
    {"{{ '%20000d' % 1 }}", STATUS_REQUEST, "a format that is not supported"},
    {"{{ '%.20000s' % 'x' }}", STATUS_REQUEST, "a format that is not supported"},
    {"{{ 'x'.__class__() }}", STATUS_REQUEST, "'__class__'"},
};

static void test_refusals(void)
{
    for (size_t i = 0; i < sizeof REFUSALS / sizeof REFUSALS[0]; i++) {
        const struct refusal *f = &REFUSALS[i];
        const struct status st = run(f->source, strlen(f->source), NULL, NULL);
        const bool ok = st.code == f->code && strstr(st.text, f->says) != NULL;
        if (!ok) printf("%s: want %s, have %s\n", f->source, f->says, st.text);
        CU_ASSERT(ok);
    }
}

/* Templates that never end, or whose values grow without bound. */
static void test_limits(void)
{
    static const struct refusal HOSTILE[] = {
        {"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
         STATUS_REQUEST, "more than"},
        {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", STATUS_REQUEST, "deep"},
        {"{% macro f(n) %}{{ f(n + 1) }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}", STATUS_REQUEST,
         "deep"},
        {"{% set n = namespace(a='x') %}{% for i in range(99) %}{% set n.a = n.a + n.a %}"
         "{% endfor %}",
         STATUS_REQUEST, "bytes"},
        {"{{ 'x' * 9000000000 }}", STATUS_REQUEST, "steps"},
        {"{{ [0] * 1000000 * 1000000 }}", STATUS_REQUEST, ""},
        {"{% set n = namespace(a=[]) %}{% for i in range(9999) %}{% set n.a = [n.a] %}{% endfor %}"
         "{{ n.a }}",
         STATUS_REQUEST, "deep"},
        {"{% set n = namespace(a=[]) %}{% for i in range(9999) %}{% set n.a = [n.a] %}{% endfor %}"
         "{{ n.a == [n.a] }}{{ n.a | tojson }}",
         STATUS_REQUEST, "deep"},
        {"{% set n = namespace() %}{% set n.a = [n] %}{{ n.a }}", STATUS_REQUEST, "printed"},
        {"{% for i in range(9999) %}{{ ('a' * 99999).split('a') | length }}{% endfor %}",
         STATUS_REQUEST, ""},
        {"{% for i in range(99999) %}{{ 'abc' * 9999 }}{% endfor %}", STATUS_REQUEST, "more than"},
        {"{{ '%999s' % 'a' * 99999 }}", STATUS_REQUEST, "bytes"},
    };
    for (size_t i = 0; i < sizeof HOSTILE / sizeof HOSTILE[0]; i++) {
        const uint64_t start = clock_ns();
        const struct jinja_limits limits = {.max_steps = 20000000};
        const struct status st = run(HOSTILE[i].source, strlen(HOSTILE[i].source), &limits, NULL);
        const bool ok = st.code == HOSTILE[i].code && strstr(st.text, HOSTILE[i].says) != NULL;
        if (!ok) printf("%s: have %s\n", HOSTILE[i].source, st.text);
        CU_ASSERT(ok);
        CU_ASSERT(clock_ns() - start < 20000000000u);
    }
}

/* Templates that nest or repeat one construct many times. */
static void test_deep_sources(void)
{
    static const char *const PIECES[][2] = {
        {"(", ")"},       {"[", "]"},       {"{1:", "}"},   {"-", ""},    {"not ", ""},
        {"f(", ")"},      {"a[", "]"},      {"1 + ", ""},   {"a.", ""},   {"a if b else ", ""},
        {"1 ~ ", ""},     {"x|trim|", "d"}, {"a and ", ""}, {"1 < ", ""}, {"(a, ", ")"},
        {"a is in ", ""}, {"+", ""},        {"'a' ", ""}};
    static const int COUNTS[] = {10, 150, 5000, 40000};
    struct strbuf s;
    strbuf_init(&s);
    for (size_t i = 0; i < sizeof PIECES / sizeof PIECES[0]; i++) {
        for (size_t c = 0; c < 4; c++) {
            strbuf_clear(&s);
            strbuf_puts(&s, "{{ ");
            for (int k = 0; k < COUNTS[c]; k++) strbuf_puts(&s, PIECES[i][0]);
            strbuf_puts(&s, "1");
            for (int k = 0; k < COUNTS[c]; k++) strbuf_puts(&s, PIECES[i][1]);
            strbuf_puts(&s, " }}");
            const struct status st = run(s.data, s.n, NULL, NULL);
            CU_ASSERT(st.code == STATUS_OK || st.code == STATUS_INPUT || st.code == STATUS_REQUEST);
        }
    }
    for (size_t c = 0; c < 4; c++) {
        strbuf_clear(&s);
        for (int k = 0; k < COUNTS[c]; k++) strbuf_puts(&s, "{% if 1 %}");
        for (int k = 0; k < COUNTS[c]; k++) strbuf_puts(&s, "{% endif %}");
        const struct status st = run(s.data, s.n, NULL, NULL);
        CU_ASSERT_EQUAL(st.code, c == 0 ? STATUS_OK : STATUS_INPUT);
    }
    strbuf_fini(&s);
}

/* A map filter that maps by itself, 100,000 times, meets the limit of depth. */
static void test_nested_maps(void)
{
    struct strbuf s;
    strbuf_init(&s);
    strbuf_puts(&s, "{{ 'a' | map(");
    for (int k = 0; k < 100000; k++) strbuf_puts(&s, "'map',");
    strbuf_puts(&s, "'upper') | list }}");
    const struct status st = run(s.data, s.n, NULL, NULL);
    CU_ASSERT(st.code == STATUS_REQUEST && strstr(st.text, "400 levels") != NULL);
    strbuf_fini(&s);
}

/* Every prefix of the templates, and many variants with one byte changed, must not crash. */
static void test_mutations(void)
{
    static const char *const NAMES[] = {"odd.jinja", "channel.jinja", "turn.jinja", "header.jinja"};
    uint32_t seed = 7;
    size_t n_ok = 0;
    const struct jinja_limits limits = {.max_steps = 100000, .max_memory_bytes = 1 << 22};
    for (size_t i = 0; i < 4; i++) {
        char path[512], *text = NULL;
        size_t n;
        snprintf(path, sizeof path, CHATS "%s", NAMES[i]);
        const struct status read = file_read(path, FILE_MAX, &text, &n);
        if (status_failed(&read)) CU_FAIL_FATAL(read.text);
        for (size_t k = 0; k < n; k++) {
            const struct status st = run(text, k, &limits, NULL);
            n_ok += st.code == STATUS_OK;
        }
        for (size_t k = 0; k < 6000; k++) {
            seed = seed * 1664525u + 1013904223u;
            const size_t at = (seed >> 8) % n;
            const char before = text[at];
            static const char PUT[] = "{}%#-+[]()'\"|.,:~*/<>=! \nabei01\\";
            seed = seed * 1664525u + 1013904223u;
            text[at] = PUT[(seed >> 8) % (sizeof PUT - 1)];
            const struct status st = run(text, n, &limits, NULL);
            n_ok += st.code == STATUS_OK;
            text[at] = before;
        }
        mem_free(&text);
    }
    CU_ASSERT(n_ok > 100);
}

static void test_case_tables(void)
{
    uint32_t to[JINJA_CASE_MAX];
    CU_ASSERT(jinja_case_map(0xDF, JINJA_CASE_UPPER, to) == 2 && to[0] == 'S' && to[1] == 'S');
    CU_ASSERT(jinja_case_map(0xDF, JINJA_CASE_TITLE, to) == 2 && to[0] == 'S' && to[1] == 's');
    CU_ASSERT(jinja_case_map(0xFB03, JINJA_CASE_UPPER, to) == 3 && to[2] == 'I');
    CU_ASSERT(jinja_case_map(0x130, JINJA_CASE_LOWER, to) == 2 && to[1] == 0x307);
    CU_ASSERT(jinja_case_map(0x1C6, JINJA_CASE_TITLE, to) == 1 && to[0] == 0x1C5);
    CU_ASSERT(jinja_cased('a') && jinja_cased(0x2160) && !jinja_cased('1'));
    CU_ASSERT(jinja_cased(0x10FC) && jinja_cased(0xAB69) && jinja_cased(0x1E06D));
    CU_ASSERT(jinja_case_ignorable('\'') && !jinja_case_ignorable('a'));
}

/* The limits that the caller gives are applied. */
static void test_given_limits(void)
{
    struct strbuf text;
    strbuf_init(&text);
    static const char SOURCE[] = "{% for i in range(100) %}{{ 'ab' }}{% endfor %}";
    struct jinja_limits limits = {.max_output_bytes = 199};
    struct status st = run(SOURCE, strlen(SOURCE), &limits, &text);
    CU_ASSERT(st.code == STATUS_REQUEST && strstr(st.text, "199") != NULL);
    limits.max_output_bytes = 200;
    st = run(SOURCE, strlen(SOURCE), &limits, &text);
    CU_ASSERT(st.code == STATUS_OK && text.n == 200);
    limits = (struct jinja_limits){.max_steps = 300};
    st = run(SOURCE, strlen(SOURCE), &limits, NULL);
    CU_ASSERT(st.code == STATUS_REQUEST && strstr(st.text, "300 steps") != NULL);
#define NO "a < 0 or a < 0 or a < 0 or a < 0 or a < 0 or a < 0 or a < 0 or a < 0"
    static const char endless[] = "{% set r = range(99999) %}{% for b in r %}{% for a in r %}"
                                  "{% if " NO " or " NO " or " NO " or " NO " %}{% endif %}"
                                  "{% endfor %}{% endfor %}";
#undef NO
    st = run(endless, strlen(endless), NULL, NULL);
    CU_ASSERT(st.code == STATUS_REQUEST && strstr(st.text, "16777216 steps") != NULL);
    limits = (struct jinja_limits){.max_memory_bytes = 4000};
    st = run(SOURCE, strlen(SOURCE), &limits, NULL);
    CU_ASSERT(st.code == STATUS_REQUEST && strstr(st.text, "4000 bytes") != NULL);
    strbuf_fini(&text);
}

void suite_jinja(CU_pSuite suite);

void suite_jinja(CU_pSuite suite)
{
    CU_add_test(suite, "features equal Jinja2's", test_features);
    CU_add_test(suite, "refusals name what and where", test_refusals);
    CU_add_test(suite, "hostile templates meet a limit", test_limits);
    CU_add_test(suite, "deep and long sources", test_deep_sources);
    CU_add_test(suite, "nested maps", test_nested_maps);
    CU_add_test(suite, "damaged templates", test_mutations);
    CU_add_test(suite, "case tables", test_case_tables);
    CU_add_test(suite, "given limits", test_given_limits);
}

/* Reading lines of hostile and of ordinary files. */
#include "serve/input/line_reader.h"

#include "base/mem.h"
#include "util_serve.h"

#include <CUnit/CUnit.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Writes each line of `bytes` to `out` as "number@offset:text|", or as "number@offset:TOO LONG
 * bytes|". */
static void read_all(const char *bytes, size_t n, size_t max_bytes, struct strbuf *out)
{
    char path[UTIL_PATH_MAX];
    util_file_create(path, bytes, n);
    struct line_reader *r = NULL;
    struct status st = line_reader_create(path, max_bytes, &r);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    CU_ASSERT_EQUAL(line_reader_size(r), n);
    strbuf_clear(out);
    for (;;) {
        struct line line;
        st = line_reader_next(r, true, &line);
        CU_ASSERT_FALSE_FATAL(status_failed(&st));
        if (line.kind == LINE_END) break;
        strbuf_printf(out, "%d@%d:", (int)line.number, (int)line.offset);
        if (line.kind == LINE_TOO_LONG) {
            strbuf_printf(out, "TOO LONG %zu", line.n);
        } else {
            strbuf_add(out, line.text, line.n);
        }
        strbuf_puts(out, "|");
    }
    CU_ASSERT_EQUAL(line_reader_offset(r), n);
    line_reader_destroy(&r);
    util_file_remove(path);
}

static void check(const char *bytes, size_t n, size_t max_bytes, const char *expected)
{
    struct strbuf out;
    strbuf_init(&out);
    strbuf_puts(&out, " ");
    read_all(bytes, n, max_bytes, &out);
    const bool equal = out.n == strlen(expected) && memcmp(out.data, expected, out.n) == 0;
    if (!equal) printf("\n  expected %s\n  found %s\n", expected, out.data);
    CU_ASSERT(equal);
    strbuf_fini(&out);
}

static void ends_of_lines_and_files(void)
{
    check("", 0, 0, "");
    check("a\nbc\n", 5, 0, "1@0:a|2@2:bc|");
    check("a\nbc", 4, 0, "1@0:a|2@2:bc|");
    check("a\r\n\r\n\nb\r", 8, 0, "1@0:a|2@3:|3@5:|4@6:b\r|");
    check("\n\n", 2, 0, "1@0:|2@1:|");
    check("\xEF\xBB\xBF{}\n\xEF\xBB\xBF\n", 10, 0, "1@3:{}|2@6:\xEF\xBB\xBF|");
    check("\xEF\xBB\xBF", 3, 0, "");
    check("\xEF\xBB", 2, 0, "1@0:\xEF\xBB|");
}

static void a_line_with_a_nul_is_whole(void)
{
    char path[UTIL_PATH_MAX];
    util_file_create(path, "a\0b\nc\n", 6);
    struct line_reader *r = NULL;
    struct line line;
    struct status st = line_reader_create(path, 0, &r);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    st = line_reader_next(r, true, &line);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    CU_ASSERT_EQUAL_FATAL(line.n, 3);
    CU_ASSERT_EQUAL(memcmp(line.text, "a\0b", 3), 0);
    line_reader_destroy(&r);
    util_file_remove(path);
}

static void lines_over_the_limit_are_skipped(void)
{
    check("12345\n123456\n1\n", 15, 5, "1@0:12345|2@6:TOO LONG 6|3@13:1|");
    check("12345\r\n1234567\r\n1", 17, 5, "1@0:12345|2@7:TOO LONG 7|3@16:1|");
    check("123456", 6, 5, "1@0:TOO LONG 6|");
}

/* A line of 100 MB must not cost 100 MB of memory, nor affect its neighbours. */
static void a_huge_line_costs_no_more_than_the_limit(void)
{
    enum { N = 100000000 };
    char *bytes = NULL;
    struct status st = mem_alloc(&bytes, N + 4, 1, "test");
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    memset(bytes, 'x', N + 4);
    bytes[1] = bytes[N + 2] = '\n';
    char path[UTIL_PATH_MAX];
    util_file_create(path, bytes, N + 4);
    mem_free(&bytes);
    struct line_reader *r = NULL;
    struct line lines[3];
    st = line_reader_create(path, 0, &r);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    (void)mem_fail_after(0);
    for (int i = 0; i < 3; i++) {
        st = line_reader_next(r, true, &lines[i]);
        CU_ASSERT_FALSE_FATAL(status_failed(&st));
    }
    /* the buffer of 64 KiB doubles until it passes the limit, and no further */
    CU_ASSERT(mem_fail_after(0) <= 9);
    CU_ASSERT_EQUAL(lines[0].kind, LINE_OK);
    CU_ASSERT_EQUAL(lines[1].kind, LINE_TOO_LONG);
    CU_ASSERT_EQUAL(lines[1].n, N);
    CU_ASSERT_EQUAL(lines[2].kind, LINE_OK);
    CU_ASSERT_EQUAL(lines[2].number, 3);
    CU_ASSERT_EQUAL(lines[2].offset, N + 3);
    line_reader_destroy(&r);
    util_file_remove(path);
}

static void a_slow_pipe_makes_nobody_wait(void)
{
    int ends[2];
    char path[UTIL_PATH_MAX];
    struct line_reader *r = NULL;
    struct line line;
    CU_ASSERT_EQUAL_FATAL(pipe(ends), 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", ends[0]);
    struct status st = line_reader_create(path, 0, &r);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    CU_ASSERT_EQUAL(line_reader_size(r), 0);
    st = line_reader_next(r, false, &line);
    CU_ASSERT_EQUAL(line.kind, LINE_WAIT);
    CU_ASSERT_EQUAL(write(ends[1], "half", 4), 4);
    st = line_reader_next(r, false, &line);
    CU_ASSERT_EQUAL(line.kind, LINE_WAIT);
    CU_ASSERT_EQUAL(write(ends[1], " whole\nrest", 11), 11);
    st = line_reader_next(r, false, &line);
    CU_ASSERT_EQUAL(line.kind, LINE_OK);
    CU_ASSERT_EQUAL(line.n, 10);
    close(ends[1]);
    st = line_reader_next(r, false, &line);
    CU_ASSERT_EQUAL(line.kind, LINE_OK);
    CU_ASSERT_EQUAL(line.n, 4);
    st = line_reader_next(r, false, &line);
    CU_ASSERT_EQUAL(line.kind, LINE_END);
    CU_ASSERT_FALSE(status_failed(&st));
    line_reader_destroy(&r);
    close(ends[0]);
}

/* Opening a named pipe does not wait for its writer; reading it returns LINE_WAIT until the writer
 * has written a line. */
static void a_named_pipe_may_get_its_writer_later(void)
{
    char path[UTIL_PATH_MAX];
    struct line_reader *r = NULL;
    struct line line;
    util_file_create(path, "", 0);
    unlink(path);
    CU_ASSERT_EQUAL_FATAL(mkfifo(path, 0600), 0);
    struct status st = line_reader_create(path, 0, &r);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    st = line_reader_next(r, true, &line);
    CU_ASSERT(!status_failed(&st) && line.kind == LINE_WAIT);
    const int writer = open(path, O_WRONLY | O_CLOEXEC);
    st = line_reader_next(r, true, &line);
    CU_ASSERT(!status_failed(&st) && line.kind == LINE_WAIT);
    CU_ASSERT_EQUAL(write(writer, "a whole line\n", 13), 13);
    st = line_reader_next(r, true, &line);
    CU_ASSERT(!status_failed(&st) && line.kind == LINE_OK && line.n == 12);
    close(writer);
    st = line_reader_next(r, true, &line);
    CU_ASSERT(!status_failed(&st) && line.kind == LINE_END);
    line_reader_destroy(&r);
    util_file_remove(path);
}

static void a_line_without_end_lets_the_caller_look_up(void)
{
    struct line_reader *r = NULL;
    struct line line;
    struct status st = line_reader_create("/dev/zero", 1000, &r);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    for (int i = 0; i < 3; i++) {
        st = line_reader_next(r, true, &line);
        CU_ASSERT(!status_failed(&st) && line.kind == LINE_WAIT);
    }
    line_reader_destroy(&r);
}

static void the_encoding_is_named(void)
{
    static const struct {
        const char *bytes, *word;
        size_t n;
    } cases[] = {{"\xFF\xFE\0\0{\0\0\0", "UTF-32", 8},
                 {"\0\0\xFE\xFF\0\0\0{", "UTF-32", 8},
                 {"\xFF\xFE{\0}\0\n\0", "UTF-16", 8},
                 {"\xFE\xFF\0{\0}\0\n", "UTF-16", 8}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[UTIL_PATH_MAX];
        struct line_reader *r = NULL;
        util_file_create(path, cases[i].bytes, cases[i].n);
        struct status st = line_reader_create(path, 0, &r);
        CU_ASSERT_FALSE_FATAL(status_failed(&st));
        st = line_reader_check(r);
        CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
        CU_ASSERT_PTR_NOT_NULL(strstr(st.text, cases[i].word));
        line_reader_destroy(&r);
        util_file_remove(path);
    }
}

static void inputs_that_cannot_be_read_are_named(void)
{
    struct line_reader *r = NULL;
    struct status st = line_reader_create("/nowhere/at/all.jsonl", 0, &r);
    CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "/nowhere/at/all.jsonl"));
    st = line_reader_create("/tmp", 0, &r);
    CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "a folder"));
    CU_ASSERT_PTR_NULL(r);
}

void suite_line_reader(CU_pSuite suite);
void suite_line_reader(CU_pSuite suite)
{
    CU_add_test(suite, "ends of lines and files", ends_of_lines_and_files);
    CU_add_test(suite, "a line with a NUL is whole", a_line_with_a_nul_is_whole);
    CU_add_test(suite, "lines over the limit are skipped", lines_over_the_limit_are_skipped);
    CU_add_test(suite, "a huge line costs no more than the limit",
                a_huge_line_costs_no_more_than_the_limit);
    CU_add_test(suite, "a slow pipe makes nobody wait", a_slow_pipe_makes_nobody_wait);
    CU_add_test(suite, "a named pipe may get its writer later",
                a_named_pipe_may_get_its_writer_later);
    CU_add_test(suite, "a line without end lets the caller look up",
                a_line_without_end_lets_the_caller_look_up);
    CU_add_test(suite, "the encoding is named", the_encoding_is_named);
    CU_add_test(suite, "inputs that cannot be read are named",
                inputs_that_cannot_be_read_are_named);
}

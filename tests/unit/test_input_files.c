/* Several files as one input: patterns, wrong lists, lines across the files' ends, and parts. */
#include "serve/input/input_files.h"

#include "serve/input/line_reader.h"
#include "util_compress.h"
#include "util_serve.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[64];

static void path_in(const char *name, char path[128])
{
    snprintf(path, 128, "%s/%s", dir, name);
}

static void make_file(const char *name, const char *bytes, size_t n)
{
    char path[128];
    path_in(name, path);
    FILE *f = fopen(path, "wb");
    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    CU_ASSERT_EQUAL(fwrite(bytes, 1, n, f), n);
    fclose(f);
}

/* The files are not made in the order of their names. b and e have no line end after the last line,
 * c is empty, d is compressed, and e begins with a byte order mark. */
static const char *const names[] = {"e.jsonl", "b.jsonl", "d.jsonl", "c.jsonl", "a.jsonl"};
enum { N_FILES = sizeof names / sizeof names[0], N_LINES = 11 };
static const char *const lines[N_LINES] = {
    "a1", "a2 is long", "", "b1", "b2 has no end", "d1", "", "d3\r?", "e1", "", "e3"};

static void setup(void)
{
    struct strbuf packed;
    strcpy(dir, "/tmp/shoal-test-inputs-XXXXXX");
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(dir));
    strbuf_init(&packed);
    util_compress(UTIL_ZSTD, "d1\n\nd3\r?\n", 9, &packed);
    make_file("e.jsonl",
              "\xEF\xBB\xBF"
              "e1\n\ne3",
              9);
    make_file("b.jsonl", "b1\r\nb2 has no end", 17);
    make_file("d.jsonl", packed.data, packed.n);
    make_file("c.jsonl", "", 0);
    make_file("a.jsonl", "a1\na2 is long\n\n", 15);
    strbuf_fini(&packed);
}

static void teardown(void)
{
    char path[128];
    for (int i = 0; i < N_FILES; i++) {
        path_in(names[i], path);
        unlink(path);
    }
    CU_ASSERT_EQUAL(rmdir(dir), 0);
}

static struct status expand(const char *first, const char *second, struct input_files *out)
{
    char given[2][128];
    const char *list[2] = {given[0], given[1]};
    path_in(first, given[0]);
    path_in(second != NULL ? second : "", given[1]);
    return input_files_expand(list, second != NULL ? 2 : 1, out);
}

static void expect_names(const struct input_files *f, const char *letters)
{
    CU_ASSERT_EQUAL_FATAL(f->n, strlen(letters));
    for (size_t i = 0; i < f->n; i++) CU_ASSERT_EQUAL(f->paths[i][strlen(dir) + 1], letters[i]);
}

static void patterns_are_sorted(void)
{
    struct input_files f;
    struct strbuf settings;
    setup();
    strbuf_init(&settings);
    CU_ASSERT_EQUAL(expand("*.jsonl", NULL, &f).code, STATUS_OK);
    expect_names(&f, "abcde");
    CU_ASSERT_PTR_NOT_NULL(strstr(f.name, "a.jsonl and 4 more"));
    CU_ASSERT_EQUAL(input_files_size(&f) > 41, true);
    input_files_settings(&f, &settings);
    CU_ASSERT_PTR_NOT_NULL(strstr(settings.data, "--input (number of files)=5\n"));
    CU_ASSERT_PTR_NOT_NULL(strstr(settings.data, "c.jsonl\n--input (file 4)="));
    input_files_fini(&f);
    CU_ASSERT_EQUAL(expand("[de].jsonl", "a.jsonl", &f).code, STATUS_OK);
    expect_names(&f, "dea");
    input_files_fini(&f);
    strbuf_clear(&settings);
    CU_ASSERT_EQUAL(expand("b.jsonl", NULL, &f).code, STATUS_OK);
    input_files_settings(&f, &settings);
    CU_ASSERT_EQUAL(settings.n, 0); /* a single input may be renamed */
    input_files_fini(&f);
    make_file("a[1]", "", 0); /* the name of an existing file is no pattern */
    CU_ASSERT_EQUAL(expand("a[1]", NULL, &f).code, STATUS_OK);
    expect_names(&f, "a");
    unlink(f.paths[0]);
    input_files_fini(&f);
    strbuf_fini(&settings);
    teardown();
}

static void expect_refused(struct status st, enum status_code code, const char *words)
{
    CU_ASSERT_EQUAL(st.code, code);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, words));
}

static void wrong_lists_are_refused(void)
{
    struct input_files f;
    const char *with_stdin[] = {"-", "/dev/null"};
    setup();
    expect_refused(expand("*.json", NULL, &f), STATUS_INPUT, "*.json: no file matches");
    expect_refused(expand("b.jsonl", "missing.jsonl", &f), STATUS_INPUT, "cannot be opened");
    expect_refused(expand("b.jsonl", "", &f), STATUS_INPUT, "found a folder");
    expect_refused(expand("b.jsonl", "[ab].jsonl", &f), STATUS_USAGE, "b.jsonl was given twice");
    expect_refused(expand("b.jsonl", "./b.jsonl", &f), STATUS_USAGE, "are one file");
    expect_refused(input_files_expand(with_stdin, 2, &f), STATUS_USAGE, "expected stdin alone");
    with_stdin[0] = "/dev/zero";
    expect_refused(input_files_expand(with_stdin, 2, &f), STATUS_INPUT, "a pipe or a device");
    CU_ASSERT_PTR_NULL(f.paths);
    teardown();
}

/* Reads lines from number `from` on, and checks them and their places. Returns the next number. */
static uint64_t check_lines(struct line_reader *r, uint64_t from)
{
    static const char files[] = "aaabbdddeee";
    static const uint64_t places[N_LINES] = {1, 2, 3, 1, 2, 1, 2, 3, 1, 2, 3};
    for (;; from++) {
        struct line line;
        CU_ASSERT_EQUAL_FATAL(line_reader_next(r, true, &line).code, STATUS_OK);
        if (line.kind == LINE_END) return from;
        CU_ASSERT_FATAL(from <= N_LINES);
        CU_ASSERT_EQUAL(line.number, from);
        CU_ASSERT_EQUAL_FATAL(line.n, strlen(lines[from - 1]));
        CU_ASSERT_EQUAL(memcmp(line.text, lines[from - 1], line.n), 0);
        const struct line_place place = line_reader_place(r, from);
        CU_ASSERT_EQUAL(place.path[strlen(dir) + 1], files[from - 1]);
        CU_ASSERT_EQUAL(place.number, places[from - 1]);
    }
}

static void lines_end_with_their_file(void)
{
    struct input_files f;
    struct line_reader *r = NULL;
    setup();
    CU_ASSERT_EQUAL_FATAL(expand("*.jsonl", NULL, &f).code, STATUS_OK);
    CU_ASSERT_EQUAL_FATAL(line_reader_create_all(&f, 0, &r).code, STATUS_OK);
    CU_ASSERT_EQUAL(line_reader_check(r).code, STATUS_OK);
    CU_ASSERT_EQUAL(check_lines(r, 1), N_LINES + 1);
    CU_ASSERT_EQUAL(line_reader_place(r, 4).path[strlen(dir) + 1], 'b'); /* also of earlier lines */
    CU_ASSERT_EQUAL(line_reader_done(r), line_reader_size(r));
    CU_ASSERT(line_reader_is_repeatable(r) && line_reader_is_file(r, f.paths[1]));
    CU_ASSERT_FALSE(line_reader_is_file(r, "/dev/null"));
    line_reader_destroy(&r);
    make_file("c.jsonl", "PAR1", 4);
    CU_ASSERT_EQUAL_FATAL(line_reader_create_all(&f, 0, &r).code, STATUS_OK);
    expect_refused(line_reader_check(r), STATUS_INPUT, "c.jsonl: expected JSON lines in UTF-8");
    line_reader_destroy(&r);
    input_files_fini(&f);
    teardown();
}

/* For each number of parts, the parts together have each line once, and a part has the lines whose
 * first byte is in its range. */
static void parts_of_several_files(void)
{
    static const uint64_t starts[N_LINES] = {0, 3, 14, 15, 19, 32, 35, 36, 41, 47, 48};
    struct input_files f;
    setup();
    CU_ASSERT_EQUAL_FATAL(expand("*.jsonl", NULL, &f).code, STATUS_OK);
    for (uint32_t n = 1; n <= 60; n++) {
        uint64_t next = 1;
        for (uint32_t i = 1; i <= n; i++) {
            struct line_reader *r = NULL;
            struct input_part part = {.index = i, .n = n};
            CU_ASSERT_EQUAL_FATAL(input_part_find(&f, &part).code, STATUS_OK);
            CU_ASSERT_EQUAL(part.size, 50);
            CU_ASSERT_EQUAL_FATAL(line_reader_create_all(&f, 0, &r).code, STATUS_OK);
            CU_ASSERT_EQUAL_FATAL(line_reader_set_part(r, &part).code, STATUS_OK);
            next = check_lines(r, next);
            const uint64_t end = input_part_cut(50, i + 1, n);
            CU_ASSERT(next > N_LINES || starts[next - 1] >= end);
            CU_ASSERT(next == 1 || i == n || starts[next - 2] < end);
            line_reader_destroy(&r);
        }
        CU_ASSERT_EQUAL(next, N_LINES + 1);
    }
    input_files_fini(&f);
    teardown();
}

void suite_input_files(CU_pSuite suite);
void suite_input_files(CU_pSuite suite)
{
    CU_add_test(suite, "patterns are sorted", patterns_are_sorted);
    CU_add_test(suite, "wrong lists are refused", wrong_lists_are_refused);
    CU_add_test(suite, "lines end with their file", lines_end_with_their_file);
    CU_add_test(suite, "parts of several files", parts_of_several_files);
}

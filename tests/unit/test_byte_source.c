/* Compressed inputs: whole, in several members, cut at every byte, with flipped bits, and by parts.
 */
#include "serve/input/byte_source.h"

#include "base/mem.h"
#include "serve/input/line_reader.h"
#include "util_compress.h"
#include "util_serve.h"

#include <CUnit/CUnit.h>
#include <string.h>
#include <unistd.h>

static const char *const names[UTIL_FORMAT_COUNT] = {"gzip", "zstd", "xz"};

/* Reads all of the file, up to n_most bytes at once; *text has what came before any error. */
static struct status read_file(const char *path, size_t n_most, struct strbuf *text)
{
    struct byte_source *s = NULL;
    char bytes[1000];
    struct source_read got = {SOURCE_BYTES, 0};
    strbuf_clear(text);
    TRY(byte_source_open(path, &s));
    struct status st = status_ok();
    while (!status_failed(&st) && got.kind != SOURCE_END) {
        st = byte_source_read(s, true, bytes, n_most, &got);
        if (!status_failed(&st)) strbuf_add(text, bytes, got.n);
    }
    if (!status_failed(&st)) CU_ASSERT_EQUAL(byte_source_file_done(s), byte_source_file_size(s));
    byte_source_close(&s);
    return st;
}

static struct status read_bytes(const struct strbuf *file, size_t n, struct strbuf *text)
{
    char path[UTIL_PATH_MAX];
    util_file_create(path, file->data, n);
    const struct status st = read_file(path, 1000, text);
    util_file_remove(path);
    return st;
}

static bool is_text(const struct strbuf *found, const char *text)
{
    return found->n == strlen(text) && (found->n == 0 || memcmp(found->data, text, found->n) == 0);
}

/* Lines that do not compress away: numbers of a simple generator. */
static void make_lines(struct strbuf *out, int n)
{
    uint32_t x = 1;
    for (int i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        strbuf_printf(out, "{\"custom_id\":\"%d\",\"x\":%u}\n", i, x);
    }
}

static void whole_files_and_several_members(void)
{
    struct strbuf file, text;
    strbuf_init(&file);
    strbuf_init(&text);
    for (int f = 0; f < UTIL_FORMAT_COUNT; f++) {
        strbuf_clear(&file);
        util_compress(f, "", 0, &file);
        CU_ASSERT_EQUAL(read_bytes(&file, file.n, &text).code, STATUS_OK);
        CU_ASSERT_EQUAL(text.n, 0);
        util_compress(f, "one\ntw", 6, &file);
        util_compress(f, "", 0, &file);
        util_compress(f, "o\n", 2, &file);
        CU_ASSERT_EQUAL(read_bytes(&file, file.n, &text).code, STATUS_OK);
        CU_ASSERT(is_text(&text, "one\ntwo\n"));
    }
    strbuf_fini(&text);
    strbuf_fini(&file);
}

/* pzstd writes a skippable frame (RFC 8878, 3.1.2) before each frame, so also at the start. */
static void a_skippable_frame_may_come_first(void)
{
    static const char skippable[] = "\x50\x2A\x4D\x18\x04\0\0\0abcd";
    struct strbuf file, text;
    strbuf_init(&file);
    strbuf_init(&text);
    for (int i = 0; i < 2; i++) {
        strbuf_add(&file, skippable, sizeof skippable - 1);
        util_compress(UTIL_ZSTD, i == 0 ? "one\n" : "two\n", 4, &file);
    }
    CU_ASSERT_EQUAL(read_bytes(&file, file.n, &text).code, STATUS_OK);
    CU_ASSERT(is_text(&text, "one\ntwo\n"));
    CU_ASSERT_EQUAL(read_bytes(&file, sizeof skippable + 9, &text).code, STATUS_INPUT);
    strbuf_fini(&text);
    strbuf_fini(&file);
}

/* gzip ignores zeros after the last member, which pad blocks of tapes; xz has padding, too. */
static void zeros_may_follow(void)
{
    static const enum util_format formats[] = {UTIL_GZIP, UTIL_XZ};
    static const char zeros[100000];
    struct strbuf file, text;
    strbuf_init(&text);
    for (int i = 0; i < 2; i++) {
        strbuf_init(&file);
        util_compress(formats[i], "one\n", 4, &file);
        strbuf_add(&file, zeros, sizeof zeros);
        CU_ASSERT_EQUAL(read_bytes(&file, file.n, &text).code, STATUS_OK);
        CU_ASSERT(is_text(&text, "one\n"));
        strbuf_puts(&file, "more");
        CU_ASSERT_EQUAL(read_bytes(&file, file.n, &text).code, STATUS_INPUT);
        strbuf_fini(&file);
    }
    strbuf_fini(&text);
}

static void plain_bytes_stay(void)
{
    static const char *const plain[] = {"", "a", "{}\n", "\x1F", "\x28\xB5\x2F", "\xFD\x37zX"};
    struct strbuf file, text;
    strbuf_init(&text);
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        strbuf_init(&file);
        strbuf_puts(&file, plain[i]);
        CU_ASSERT_EQUAL(read_bytes(&file, file.n, &text).code, STATUS_OK);
        CU_ASSERT(is_text(&text, plain[i]));
        strbuf_fini(&file);
    }
    strbuf_fini(&text);
}

/* However large the pieces, the bytes are those that were compressed. */
static void pieces_of_any_size(void)
{
    struct strbuf lines, file, text;
    char path[UTIL_PATH_MAX];
    strbuf_init(&lines);
    strbuf_init(&text);
    make_lines(&lines, 30000); /* more than the buffer of compressed bytes */
    for (int f = 0; f < UTIL_FORMAT_COUNT; f++) {
        strbuf_init(&file);
        util_compress(f, lines.data, lines.n, &file);
        CU_ASSERT(file.n > 100000 && file.n < lines.n);
        util_file_create(path, file.data, file.n);
        for (size_t n_most = 1; n_most <= 1000; n_most += 333) {
            CU_ASSERT_EQUAL(read_file(path, n_most, &text).code, STATUS_OK);
            CU_ASSERT(is_text(&text, lines.data));
        }
        uint64_t length = 0;
        CU_ASSERT_EQUAL(byte_source_length(path, &length).code, STATUS_OK);
        CU_ASSERT_EQUAL(length, lines.n);
        util_file_remove(path);
        strbuf_fini(&file);
    }
    strbuf_fini(&text);
    strbuf_fini(&lines);
}

/* A cut file gives some of its first bytes, or none, and then an error with the byte at which the
 * file ends. */
static void cut_files_are_named(void)
{
    struct strbuf lines, file, text;
    char at[64];
    strbuf_init(&lines);
    strbuf_init(&text);
    make_lines(&lines, 20);
    for (int f = 0; f < UTIL_FORMAT_COUNT; f++) {
        strbuf_init(&file);
        util_compress(f, lines.data, lines.n, &file);
        for (size_t n = 6; n < file.n; n++) { /* the first 6 bytes name the format */
            const struct status st = read_bytes(&file, n, &text);
            CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
            snprintf(at, sizeof at, "ends at byte %zu inside its %s data", n, names[f]);
            CU_ASSERT_PTR_NOT_NULL(strstr(st.text, at));
            CU_ASSERT(text.n <= lines.n);
            CU_ASSERT(text.n == 0 || memcmp(text.data, lines.data, text.n) == 0);
        }
        strbuf_fini(&file);
    }
    strbuf_fini(&text);
    strbuf_fini(&lines);
}

/* Every flipped bit after the first 6 bytes is noticed, or lies where it changes no byte (a time,
 * flags, reserved bits). */
static void flipped_bits_are_noticed(void)
{
    struct strbuf lines, file, text;
    strbuf_init(&lines);
    strbuf_init(&text);
    make_lines(&lines, 20);
    for (int f = 0; f < UTIL_FORMAT_COUNT; f++) {
        strbuf_init(&file);
        util_compress(f, lines.data, lines.n, &file);
        size_t n_noticed = 0;
        for (size_t bit = 48; bit < 8 * file.n; bit++) {
            file.data[bit / 8] ^= (char)(1 << bit % 8);
            const struct status st = read_bytes(&file, file.n, &text);
            file.data[bit / 8] ^= (char)(1 << bit % 8);
            if (status_failed(&st)) {
                n_noticed++;
                CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
                CU_ASSERT_PTR_NOT_NULL(strstr(st.text, names[f]));
                CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "at byte"));
            } else {
                CU_ASSERT(is_text(&text, lines.data));
            }
        }
        CU_ASSERT(n_noticed + 64 > 8 * file.n - 48);
        strbuf_fini(&file);
    }
    strbuf_fini(&text);
    strbuf_fini(&lines);
}

/* Checks that a reader gives the lines in bytes [begin, end) of `lines`. */
static void check_lines(struct line_reader *r, const struct strbuf *lines, uint64_t begin,
                        uint64_t end)
{
    uint64_t at = begin;
    struct line line;
    for (;;) {
        struct status st = line_reader_next(r, true, &line);
        CU_ASSERT_FALSE_FATAL(status_failed(&st));
        if (line.kind == LINE_END) break;
        CU_ASSERT_EQUAL(line.offset, at);
        CU_ASSERT_EQUAL_FATAL(line.kind, LINE_OK);
        CU_ASSERT_EQUAL(memcmp(line.text, lines->data + at, line.n), 0);
        at += line.n + 1;
    }
    CU_ASSERT_EQUAL(at, end);
    CU_ASSERT_EQUAL(line_reader_done(r), line_reader_size(r));
}

static void parts_are_those_of_the_plain_file(void)
{
    enum { N = 7 };
    struct strbuf lines, file;
    char path[2][UTIL_PATH_MAX];
    strbuf_init(&lines);
    make_lines(&lines, 5000);
    util_file_create(path[0], lines.data, lines.n);
    for (int f = 0; f < UTIL_FORMAT_COUNT; f++) {
        strbuf_init(&file);
        util_compress(f, lines.data, lines.n, &file);
        util_file_create(path[1], file.data, file.n);
        for (uint32_t i = 1; i <= N; i++) {
            struct input_part parts[2];
            for (int p = 0; p < 2; p++) {
                struct line_reader *r = NULL;
                parts[p] = (struct input_part){.index = i, .n = N};
                const char *name = path[p];
                const struct input_files file_of = input_files_one(&name);
                CU_ASSERT_EQUAL(input_part_find(&file_of, &parts[p]).code, STATUS_OK);
                CU_ASSERT_EQUAL_FATAL(line_reader_create(path[p], 0, &r).code, STATUS_OK);
                CU_ASSERT_EQUAL(line_reader_set_part(r, &parts[p]).code, STATUS_OK);
                check_lines(r, &lines, parts[p].begin, parts[p].end);
                line_reader_destroy(&r);
            }
            CU_ASSERT(parts[0].begin == parts[1].begin && parts[0].end == parts[1].end);
            CU_ASSERT(parts[0].n_before == parts[1].n_before && parts[0].size == parts[1].size);
        }
        util_file_remove(path[1]);
        strbuf_fini(&file);
    }
    util_file_remove(path[0]);
    strbuf_fini(&lines);
}

/* A small compressed file with one line of 200 MiB must neither fill the memory nor keep the caller
 * waiting. */
static void a_line_of_zeros_lets_the_caller_look_up(void)
{
    enum { N = 200 << 20 };
    struct strbuf file;
    char path[UTIL_PATH_MAX], *zeros = NULL;
    struct line_reader *r = NULL;
    struct line line;
    strbuf_init(&file);
    CU_ASSERT_EQUAL_FATAL(mem_map(&zeros, N, "test").code, STATUS_OK);
    util_compress(UTIL_ZSTD, zeros, N, &file);
    mem_unmap(&zeros, N);
    util_file_create(path, file.data, file.n);
    CU_ASSERT_EQUAL_FATAL(line_reader_create(path, 1000, &r).code, STATUS_OK);
    int n_waits = 0;
    do {
        CU_ASSERT_EQUAL_FATAL(line_reader_next(r, true, &line).code, STATUS_OK);
        n_waits += line.kind == LINE_WAIT;
    } while (line.kind == LINE_WAIT);
    CU_ASSERT(n_waits >= 2);
    CU_ASSERT(line.kind == LINE_TOO_LONG && line.n == N);
    line_reader_destroy(&r);
    util_file_remove(path);
    strbuf_fini(&file);
}

/* Another program may shorten the file while a job reads it: this is no end of the input. */
static void a_file_that_is_cut_while_it_is_read_is_named(void)
{
    enum { N_LEFT = 70000 };
    struct strbuf lines;
    char path[UTIL_PATH_MAX], bytes[1000];
    struct byte_source *s = NULL;
    struct source_read got = {SOURCE_BYTES, 0};
    struct status st = status_ok();
    size_t n = 0;
    strbuf_init(&lines);
    make_lines(&lines, 5000);
    CU_ASSERT_FATAL(lines.n > N_LEFT);
    util_file_create(path, lines.data, lines.n);
    CU_ASSERT_EQUAL_FATAL(byte_source_open(path, &s).code, STATUS_OK);
    while (!status_failed(&st) && got.kind != SOURCE_END) {
        st = byte_source_read(s, true, bytes, sizeof bytes, &got);
        if (n == 0) CU_ASSERT_EQUAL(truncate(path, N_LEFT), 0);
        if (!status_failed(&st)) n += got.n;
    }
    CU_ASSERT_EQUAL(n, N_LEFT);
    CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "it was cut to 70000 of its "));
    byte_source_close(&s);
    util_file_remove(path);
    strbuf_fini(&lines);
}

/* A pipe may give the first bytes, which name the format, one at a time. */
static void a_slow_pipe(void)
{
    struct strbuf file;
    char path[UTIL_PATH_MAX], bytes[100];
    int ends[2];
    struct byte_source *s = NULL;
    struct source_read got;
    strbuf_init(&file);
    util_compress(UTIL_XZ, "some text", 9, &file);
    CU_ASSERT_EQUAL_FATAL(pipe(ends), 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", ends[0]);
    CU_ASSERT_EQUAL_FATAL(byte_source_open(path, &s).code, STATUS_OK);
    for (size_t i = 0; i < file.n; i++) {
        CU_ASSERT_EQUAL(write(ends[1], file.data + i, 1), 1);
        if (i < 20) {
            CU_ASSERT_EQUAL(byte_source_read(s, false, bytes, sizeof bytes, &got).code, STATUS_OK);
            CU_ASSERT_EQUAL(got.kind, SOURCE_WAIT);
        }
    }
    close(ends[1]);
    CU_ASSERT_EQUAL(byte_source_read(s, true, bytes, sizeof bytes, &got).code, STATUS_OK);
    CU_ASSERT(got.kind == SOURCE_BYTES && got.n == 9 && memcmp(bytes, "some text", 9) == 0);
    CU_ASSERT_EQUAL(byte_source_read(s, true, bytes, sizeof bytes, &got).code, STATUS_OK);
    CU_ASSERT_EQUAL(got.kind, SOURCE_END);
    byte_source_close(&s);
    close(ends[0]);
    strbuf_fini(&file);
}

void suite_byte_source(CU_pSuite suite);
void suite_byte_source(CU_pSuite suite)
{
    CU_add_test(suite, "whole files and several members", whole_files_and_several_members);
    CU_add_test(suite, "a skippable frame may come first", a_skippable_frame_may_come_first);
    CU_add_test(suite, "zeros may follow", zeros_may_follow);
    CU_add_test(suite, "plain bytes stay", plain_bytes_stay);
    CU_add_test(suite, "pieces of any size", pieces_of_any_size);
    CU_add_test(suite, "cut files are named", cut_files_are_named);
    CU_add_test(suite, "flipped bits are noticed", flipped_bits_are_noticed);
    CU_add_test(suite, "parts are those of the plain file", parts_are_those_of_the_plain_file);
    CU_add_test(suite, "a line of zeros lets the caller look up",
                a_line_of_zeros_lets_the_caller_look_up);
    CU_add_test(suite, "a file that is cut while it is read is named",
                a_file_that_is_cut_while_it_is_read_is_named);
    CU_add_test(suite, "a slow pipe", a_slow_pipe);
}

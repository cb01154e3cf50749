/* Rows that arrive in any order are written in the order of their lines; a failed write names the
 * file. */
#include "serve/output/result_writer.h"

#include "base/file.h"
#include "base/mem.h"
#include "serve/input/encoder.h"
#include "serve/input/line_reader.h"
#include "util_serve.h"
#include "util_write.h"

#include <CUnit/CUnit.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct status create(const char *path, size_t window_rows, size_t window_bytes,
                            struct result_writer **out)
{
    const struct result_writer_options o = {
        .path = path, .window_rows = window_rows, .window_bytes = window_bytes};
    return result_writer_create(&o, out);
}

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
    struct status st = create(path, WINDOW, (size_t)1 << 20, &w);
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
    struct status st = create(path, 100, 1000, &w);
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
    struct status st = create("/dev/full", 4, 1000, &w);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    result_writer_open(w, 10, &index);
    put(w, 0);
    st = result_writer_flush(w);
    CU_ASSERT_EQUAL(st.code, STATUS_IO);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "/dev/full"));
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "No space left"));
    result_writer_destroy(&w);
    st = create("/nowhere/out.jsonl", 4, 1000, &w);
    CU_ASSERT_EQUAL(st.code, STATUS_IO);
    CU_ASSERT_PTR_NULL(w);
}

/* Reads a pipe to its end; returns the number of bytes. */
static void *read_pipe(void *user)
{
    char bytes[512];
    ssize_t n;
    size_t sum = 0;
    while ((n = read(*(const int *)user, bytes, sizeof bytes)) > 0) sum += (size_t)n;
    return (void *)(uintptr_t)sum;
}

static void a_pipe_that_does_not_block_is_waited_for(void)
{
    enum { N = 40000 };
    int ends[2];
    uint64_t index;
    void *n_read = NULL;
    pthread_t reader;
    struct result_writer *w = NULL;
    CU_ASSERT_EQUAL_FATAL(pipe(ends), 0);
    CU_ASSERT_EQUAL(fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);
    const int out = dup(STDOUT_FILENO);
    fflush(stdout);
    dup2(ends[1], STDOUT_FILENO);
    const struct status st = create("-", 1, 1000, &w);
    dup2(out, STDOUT_FILENO);
    close(out);
    close(ends[1]);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    CU_ASSERT_EQUAL_FATAL(pthread_create(&reader, NULL, read_pipe, &ends[0]), 0);
    for (uint64_t i = 0; i < N; i++) {
        result_writer_open(w, 10, &index);
        put(w, index);
    }
    CU_ASSERT_EQUAL(result_writer_close(w).code, STATUS_OK);
    const uint64_t n_written = result_writer_offset(w);
    result_writer_destroy(&w);
    pthread_join(reader, &n_read);
    CU_ASSERT(n_written > 9 * N && (uintptr_t)n_read == n_written);
    close(ends[0]);
}

/* ---- compressed outputs ---- */

enum { FRAME_BYTES = 300, N_ROWS = 200 };
static const char *const endings[] = {"gz", "zst", "xz"};
enum { N_ENDINGS = sizeof endings / sizeof endings[0] };

/* Writes row i, of 41 to 91 bytes, and returns its length. Its random digits keep it from being
 * compressed to almost nothing. */
static size_t make_row(uint64_t i, char text[128])
{
    uint32_t x = (uint32_t)i * 2654435761u + 1;
    int n = snprintf(text, 128, "{\"custom_id\":\"%llu\",\"x\":\"", (unsigned long long)i);
    for (uint64_t k = 0; k < 2 + i % 7; k++) {
        x = x * 1664525u + 1013904223u;
        n += snprintf(text + n, 128 - (size_t)n, "%08x", x);
    }
    return (size_t)(n + snprintf(text + n, 128 - (size_t)n, "\"}\n"));
}

static void put_rows(struct result_writer *w, uint64_t from, uint64_t to)
{
    char text[128];
    for (uint64_t i = from; i < to; i++) {
        uint64_t index;
        result_writer_open(w, 1, &index);
        CU_ASSERT_EQUAL(index, i);
        const struct result_row row = {.text = text, .n = make_row(i, text)};
        CU_ASSERT_EQUAL_FATAL(result_writer_put(w, index, &row).code, STATUS_OK);
    }
}

/* Returns the writer of a job that resumes after its first n_done rows, which its journal has.
 * *was_equal: whether the file already held exactly these rows. */
static struct result_writer *resumed(const char *path, uint64_t n_done, bool *was_equal)
{
    struct result_writer *w = NULL;
    uint64_t n_bytes;
    const struct result_writer_options o = {
        .path = path, .window_rows = 8, .window_bytes = 1 << 20, .frame_bytes = FRAME_BYTES};
    CU_ASSERT_EQUAL_FATAL(result_writer_resume(&o, &w).code, STATUS_OK);
    put_rows(w, 0, n_done);
    CU_ASSERT_EQUAL_FATAL(result_writer_settle(w, &n_bytes, was_equal).code, STATUS_OK);
    return w;
}

static void finish(struct result_writer *w)
{
    CU_ASSERT_EQUAL(result_writer_close(w).code, STATUS_OK);
    result_writer_destroy(&w);
}

/* Sets `stored` to the bytes of the file, and returns the number of rows in what they decompress
 * to. *is_whole: whether they could be read to the end; if not, the reader's error says where. */
static uint64_t read_output(const char *path, struct strbuf *stored, bool *is_whole)
{
    struct line_reader *r = NULL;
    struct line line;
    char text[128];
    char *bytes = NULL;
    size_t n = 0;
    uint64_t n_rows = 0;
    CU_ASSERT_EQUAL_FATAL(file_read(path, 1 << 20, &bytes, &n).code, STATUS_OK);
    strbuf_clear(stored);
    strbuf_add(stored, bytes, n);
    mem_free(&bytes);
    CU_ASSERT_EQUAL_FATAL(line_reader_create(path, 0, &r).code, STATUS_OK);
    for (;;) {
        const struct status st = line_reader_next(r, true, &line);
        *is_whole = !status_failed(&st);
        if (status_failed(&st)) CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "byte "));
        if (status_failed(&st) || line.kind == LINE_END) break;
        CU_ASSERT(line.n + 1 == make_row(n_rows, text) && memcmp(line.text, text, line.n) == 0);
        n_rows++;
    }
    line_reader_destroy(&r);
    return n_rows;
}

static void output_path(const char *base, int ending, char path[UTIL_PATH_MAX])
{
    const int n = snprintf(path, UTIL_PATH_MAX, "%s.%s", base, endings[ending]);
    CU_ASSERT_FATAL(n < UTIL_PATH_MAX);
    remove(path);
}

static void write_file(const char *path, const char *bytes, size_t n)
{
    CU_ASSERT(util_write(path, bytes, n));
}

/* Writes the whole output in one go, and sets `whole` to its bytes. */
static void make_whole(const char *path, struct strbuf *whole)
{
    bool equal, is_whole;
    struct result_writer *w = resumed(path, 0, &equal);
    put_rows(w, 0, N_ROWS);
    finish(w);
    CU_ASSERT_EQUAL(read_output(path, whole, &is_whole), N_ROWS);
    CU_ASSERT(is_whole);
}

static void frames_are_the_same_however_often_the_job_stops(void)
{
    char base[UTIL_PATH_MAX], path[UTIL_PATH_MAX];
    struct strbuf whole, now;
    util_file_create(base, "", 0);
    strbuf_init(&whole);
    strbuf_init(&now);
    for (int e = 0; e < N_ENDINGS; e++) {
        bool equal, is_whole;
        output_path(base, e, path);
        make_whole(path, &whole);
        remove(path);
        uint64_t n_done = 0;
        for (uint64_t step = 1; n_done < N_ROWS; step = step % 13 + 3) {
            struct result_writer *w = resumed(path, n_done, &equal);
            CU_ASSERT(equal || n_done == 0);
            CU_ASSERT_EQUAL(read_output(path, &now, &is_whole), n_done);
            const uint64_t to = n_done + step < N_ROWS ? n_done + step : N_ROWS;
            put_rows(w, n_done, to);
            if (step % 2 == 0) CU_ASSERT_EQUAL(result_writer_flush(w).code, STATUS_OK);
            CU_ASSERT_EQUAL(result_writer_show(w).code, STATUS_OK);
            CU_ASSERT_EQUAL(read_output(path, &now, &is_whole), to);
            CU_ASSERT(is_whole);
            result_writer_destroy(&w);
            n_done = to;
        }
        finish(resumed(path, N_ROWS, &equal));
        CU_ASSERT(equal);
        CU_ASSERT_EQUAL(read_output(path, &now, &is_whole), N_ROWS);
        CU_ASSERT(now.n == whole.n && memcmp(now.data, whole.data, whole.n) == 0);
        remove(path);
    }
    strbuf_fini(&now);
    strbuf_fini(&whole);
    util_file_remove(base);
}

/* A killed job may leave only the beginning of the file, and a disk may change any byte. */
static void torn_and_damaged_frames_are_written_again(void)
{
    char base[UTIL_PATH_MAX], path[UTIL_PATH_MAX];
    struct strbuf whole, now;
    util_file_create(base, "", 0);
    strbuf_init(&whole);
    strbuf_init(&now);
    for (int e = 0; e < N_ENDINGS; e++) {
        int n_torn = 0;
        output_path(base, e, path);
        make_whole(path, &whole);
        for (size_t cut = 0; cut < whole.n; cut += 1 + whole.n / 60) {
            bool equal, is_whole;
            for (int flips = 0; flips < 2; flips++) {
                const size_t n = flips ? whole.n : cut;
                if (flips) whole.data[cut] ^= 4;
                write_file(path, whole.data, n);
                if (flips) whole.data[cut] ^= 4;
                if (!flips) CU_ASSERT(read_output(path, &now, &is_whole) < N_ROWS);
                if (!flips && !is_whole) n_torn++;
                const uint64_t n_done = N_ROWS * 2 / 3;
                struct result_writer *w = resumed(path, n_done, &equal);
                CU_ASSERT_FALSE(equal);
                put_rows(w, n_done, N_ROWS);
                finish(w);
                CU_ASSERT_EQUAL(read_output(path, &now, &is_whole), N_ROWS);
                CU_ASSERT(now.n == whole.n && memcmp(now.data, whole.data, whole.n) == 0);
            }
        }
        CU_ASSERT(n_torn > 40);
        remove(path);
    }
    strbuf_fini(&now);
    strbuf_fini(&whole);
    util_file_remove(base);
}

static void an_output_without_rows_is_one_empty_frame(void)
{
    char base[UTIL_PATH_MAX], path[UTIL_PATH_MAX];
    struct strbuf now;
    util_file_create(base, "", 0);
    strbuf_init(&now);
    for (int e = 0; e < N_ENDINGS; e++) {
        bool equal, is_whole;
        output_path(base, e, path);
        finish(resumed(path, 0, &equal));
        CU_ASSERT_EQUAL(read_output(path, &now, &is_whole), 0);
        CU_ASSERT(is_whole && now.n > 6);
        finish(resumed(path, 0, &equal));
        CU_ASSERT(equal);
        remove(path);
    }
    CU_ASSERT_EQUAL(encoder_format_of(".gz"), ENCODER_PLAIN);
    CU_ASSERT_EQUAL(encoder_format_of("a.gz.b"), ENCODER_PLAIN);
    CU_ASSERT_EQUAL(encoder_format_of("a.b.ZST"), ENCODER_ZSTD);
    CU_ASSERT_EQUAL(encoder_check_name("output", "a.bz2").code, STATUS_USAGE);
    CU_ASSERT_EQUAL(encoder_check_name("output", "a.jsonl").code, STATUS_OK);
    strbuf_fini(&now);
    util_file_remove(base);
}

void suite_result_writer(CU_pSuite suite);
void suite_result_writer(CU_pSuite suite)
{
    CU_add_test(suite, "rows come out in order", rows_come_out_in_order);
    CU_add_test(suite, "the window closes on bytes too", the_window_closes_on_bytes_too);
    CU_add_test(suite, "a full disk is named", a_full_disk_is_named);
    CU_add_test(suite, "a pipe that does not block is waited for",
                a_pipe_that_does_not_block_is_waited_for);
    CU_add_test(suite, "frames are the same however often the job stops",
                frames_are_the_same_however_often_the_job_stops);
    CU_add_test(suite, "torn and damaged frames are written again",
                torn_and_damaged_frames_are_written_again);
    CU_add_test(suite, "an output without rows is one empty frame",
                an_output_without_rows_is_one_empty_frame);
}

/* Makes and compares receipts. */
#include "serve/journal/receipt.h"

#include "base/file.h"
#include "base/mem.h"
#include "serve/input/line_reader.h"
#include "serve/journal/journal_format.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

static const char FORMAT[] = "\"format\": \"shoal receipt 1\"";
enum { ROW_BYTES_MAX = 1 << 30, RECEIPT_BYTES_MAX = 1 << 20 };

/* ---- hashes ---- */

/* A line of the job's input, in the form that is hashed. */
struct receipt_line {
    uint64_t number, low, high;
};

static int by_number(const void *a, const void *b)
{
    const uint64_t x = ((const struct receipt_line *)a)->number;
    const uint64_t y = ((const struct receipt_line *)b)->number;
    return (x > y) - (x < y);
}

/* Appends to lines [*n], at most `capacity`, from the records of finished rows. A line with several
 * records appears several times. Errors: STATUS_INPUT if the journal has more than `capacity`
 * rows. */
static struct status read_receipt_lines(struct journal_cursor *c, struct receipt_line *lines,
                                        size_t capacity, size_t *n)
{
    struct journal_record r;
    for (bool found = true;;) {
        TRY(journal_cursor_next(c, &r, &found));
        if (!found) return status_ok();
        if (r.type != JOURNAL_ROW && r.type != JOURNAL_BASE) continue;
        if (*n == capacity)
            return status_make(STATUS_INPUT, "journal %s: it grew while it was read", c->path);
        lines[(*n)++] = (struct receipt_line){r.line, r.digest.low, r.digest.high};
    }
}

/* Sorts lines [*n] by their numbers and keeps one of each. */
static void sort_lines(struct receipt_line *lines, size_t *n)
{
    size_t kept = 0;
    if (*n > 0) qsort(lines, *n, sizeof *lines, by_number);
    for (size_t i = 0; i < *n; i++)
        if (kept == 0 || lines[kept - 1].number != lines[i].number) lines[kept++] = lines[i];
    *n = kept;
}

static struct status hash_lines(int fd, const char *path, const struct journal_facts *f,
                                XXH128_hash_t *hash, size_t *n)
{
    struct receipt_line *lines = NULL;
    struct journal_cursor c = {.fd = fd, .path = path, .at = f->rows_begin, .end = f->good_bytes};
    *n = 0;
    struct status st = mem_alloc(&lines, f->n_rows + 1, sizeof *lines, "receipt");
    if (!status_failed(&st)) st = read_receipt_lines(&c, lines, f->n_rows, n);
    if (!status_failed(&st)) {
        sort_lines(lines, n);
        *hash = XXH3_128bits(lines, *n * sizeof *lines);
    }
    journal_cursor_fini(&c);
    mem_free(&lines);
    return st;
}

/* The running hash and the counts of an output's rows, after decompression. */
struct rows {
    XXH3_state_t *state;
    uint64_t n, n_bytes;
};

static struct status hash_receipt_rows(struct line_reader *reader, const char *path,
                                       struct rows *rows)
{
    struct line line;
    for (;;) {
        TRY(line_reader_next(reader, true, &line));
        if (line.kind == LINE_END) return status_ok();
        if (line.kind == LINE_WAIT) continue;
        if (line.kind == LINE_TOO_LONG)
            return status_make(STATUS_INPUT, "%s: row %" PRIu64 " has more than %d bytes", path,
                               line.number, ROW_BYTES_MAX);
        XXH3_128bits_update(rows->state, line.text, line.n);
        XXH3_128bits_update(rows->state, "\n", 1);
        rows->n++;
        rows->n_bytes += line.n + 1;
    }
}

static struct status hash_rows(const char *path, struct rows *rows, XXH128_hash_t *hash)
{
    struct line_reader *reader = NULL;
    struct status st = line_reader_create(path, ROW_BYTES_MAX, &reader);
    rows->state = XXH3_createState();
    if (!status_failed(&st) && rows->state == NULL)
        st = status_make(STATUS_MEMORY, "receipt: no memory for a hash");
    if (!status_failed(&st)) {
        XXH3_128bits_reset(rows->state);
        st = hash_receipt_rows(reader, path, rows);
    }
    if (!status_failed(&st)) *hash = XXH3_128bits_digest(rows->state);
    XXH3_freeState(rows->state);
    line_reader_destroy(&reader);
    return st;
}

/* ---- text ---- */

/* True for settings that a receipt leaves out: the paths of inputs, whose lines are hashed instead,
 * and the flags of the file of log-probabilities and hidden rows, which change no row. */
static bool is_beside(const char *setting)
{
    static const char *const begins[] = {"--input (", "--save-logprobs", "--save-hidden"};
    for (size_t i = 0; i < sizeof begins / sizeof begins[0]; i++)
        if (strncmp(setting, begins[i], strlen(begins[i])) == 0) return true;
    return false;
}

/* Appends the settings on which rows depend. */
static void add_settings(const char *settings, struct strbuf *out)
{
    for (const char *s = settings; *s != '\0';) {
        const size_t n = strcspn(s, "\n"), name = strcspn(s, "=\n");
        if (!is_beside(s) && name < n) {
            strbuf_json_string(out, s, name);
            strbuf_puts(out, ": ");
            strbuf_json_string(out, s + name + 1, n - name - 1);
            strbuf_puts(out, ",\n");
        }
        s += n + (s[n] == '\n');
    }
}

static void write_receipt_number(struct strbuf *out, const char *name, uint64_t value)
{
    strbuf_printf(out, "\"%s\": %" PRIu64 ",\n", name, value);
}

static void add_hash(struct strbuf *out, const char *name, XXH128_hash_t hash, const char *after)
{
    strbuf_printf(out, "\"%s\": \"%016" PRIx64 "%016" PRIx64 "\"%s\n", name, (uint64_t)hash.high64,
                  (uint64_t)hash.low64, after);
}

static struct status add_receipt(const char *output, const char *journal, int fd,
                                 const struct journal_facts *f, struct strbuf *out)
{
    struct rows rows = {.state = NULL};
    XXH128_hash_t hash_of_lines, hash_of_rows;
    size_t n_lines;
    TRY(hash_lines(fd, journal, f, &hash_of_lines, &n_lines));
    TRY(hash_rows(output, &rows, &hash_of_rows));
    if (rows.n != n_lines) {
        return status_make(STATUS_INPUT,
                           "%s: it has %" PRIu64 " rows, and %s has %zu: the file was changed "
                           "after its job",
                           output, rows.n, journal, n_lines);
    }
    strbuf_printf(out, "{\n%s,\n", FORMAT);
    add_settings(f->settings, out);
    write_receipt_number(out, "lines", n_lines);
    add_hash(out, "lines_xxh128", hash_of_lines, ",");
    write_receipt_number(out, "error_rows", f->n_error_rows);
    write_receipt_number(out, "prompt_tokens", f->n_prompt_tokens);
    write_receipt_number(out, "generated_tokens", f->n_generated_tokens);
    write_receipt_number(out, "rows_bytes", rows.n_bytes);
    add_hash(out, "rows_xxh128", hash_of_rows, "");
    strbuf_puts(out, "}\n");
    return strbuf_status(out);
}

struct status receipt_make(const char *output, const char *journal, struct strbuf *out)
{
    struct journal_facts facts;
    const int fd = open(journal, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return status_make(STATUS_INPUT, "%s: a receipt needs the job's journal: %s: %s", output,
                           journal, strerror(errno));
    }
    struct status st = journal_facts_read(fd, journal, &facts);
    if (!status_failed(&st) && facts.settings == NULL)
        st = status_make(STATUS_INPUT, "%s: not a journal of this version of shoal", journal);
    if (!status_failed(&st) && !facts.is_complete) {
        st = status_make(STATUS_INPUT, "%s: the job has not ended; the same command resumes it",
                         output);
    }
    if (!status_failed(&st)) st = add_receipt(output, journal, fd, &facts, out);
    journal_facts_fini(&facts);
    close(fd);
    return st;
}

/* ---- comparison ---- */

static size_t bytes_of_line(const char *text)
{
    return strcspn(text, "\n");
}

/* Returns the bytes of a member without the comma after it. */
static int member_bytes(const char *text)
{
    const size_t n = bytes_of_line(text);
    return (int)(n > 0 && text[n - 1] == ',' ? n - 1 : n);
}

/* Makes the error for the first line in which two receipts differ. */
static struct status differ(const char *path, bool is_same_job, const char *here, const char *there)
{
    return status_make(STATUS_ROWS, "%s: %s: %.*s there, %.*s here", path,
                       is_same_job ? "the same job gave other rows" : "another job",
                       member_bytes(there), there, member_bytes(here), here);
}

/* The members up to "lines_xxh128" describe the job; those after it describe its rows. */
static struct status compare_receipts(const char *path, const char *here, const char *there)
{
    static const char last[] = "\"lines_xxh128\"";
    bool is_same_job = false;
    while (*here != '\0' || *there != '\0') {
        const size_t n = bytes_of_line(here);
        if (n != bytes_of_line(there) || memcmp(here, there, n) != 0)
            return differ(path, is_same_job, here, there);
        if (strncmp(here, last, sizeof last - 1) == 0) is_same_job = true;
        here += n + (here[n] == '\n');
        there += n + (there[n] == '\n');
    }
    return status_ok();
}

struct status receipt_check(const char *receipt, const char *path)
{
    char *other = NULL;
    size_t n;
    TRY(file_read(path, RECEIPT_BYTES_MAX, &other, &n));
    const bool is_one =
        strncmp(other, "{\n", 2) == 0 && strncmp(other + 2, FORMAT, sizeof FORMAT - 1) == 0;
    const struct status st =
        is_one ? compare_receipts(path, receipt, other)
               : status_make(STATUS_INPUT, "%s: not a receipt of this version of shoal", path);
    mem_free(&other);
    return st;
}

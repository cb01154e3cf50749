/* Chooses random rows of an output and compares them with rows that are computed again. */
#include "serve/lead/audit.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "serve/journal/journal_format.h"
#include "serve/journal/journal_index.h"
#include "serve/output/result_row.h"
#include "serve/request/request.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

/* Rows may be much longer than lines, because of log-probabilities. */
static const size_t ROW_BYTES_MAX = (size_t)1 << 30;

enum { DIFFERENCES_SHOWN = 10, SHOWN_BEFORE = 16, SHOWN_BYTES = 48 };

struct audit_row {
    uint64_t line; /* its line in the input */
    char *text;    /* [n] without its newline; owned */
    size_t n;
};

struct audit {
    struct audit_options o;
    struct audit_row *rows; /* [n_chosen] of capacity, sorted by line once all are chosen; owned */
    size_t capacity;
    size_t n_passed; /* number of chosen rows whose lines have been taken */
    struct audit_result result;
    int journal_fd; /* -1: none */
    struct journal_facts facts;
    struct journal_index *index; /* NULL: no journal */
};

/* ---- choosing ---- */

static bool repeats_an_id(const struct line *row)
{
    static const char code[] = "\"code\":\"" REQUEST_DUPLICATE_CODE "\"";
    return memmem(row->text, row->n, code, sizeof code - 1) != NULL;
}

/* Returns the place in the sample for candidate k (from 0): a new place while the sample is not
 * full, later a random one; NULL if the candidate is not chosen. */
static struct audit_row *audit_place_of(struct audit *a, uint64_t k)
{
    if (a->result.n_chosen < a->o.n_rows) return &a->rows[a->result.n_chosen];
    const uint64_t at = XXH3_64bits_withSeed(&k, sizeof k, a->o.seed) % (k + 1);
    return at < a->o.n_rows ? &a->rows[at] : NULL;
}

static struct status offer(struct audit *a, const struct line *row, uint64_t k)
{
    if (a->result.n_chosen < a->o.n_rows && a->result.n_chosen == a->capacity) {
        const size_t more = a->capacity > 0 ? 2 * a->capacity : 64;
        TRY(mem_grow(&a->rows, a->capacity, more, sizeof *a->rows, "audit"));
        a->capacity = more;
    }
    struct audit_row *place = audit_place_of(a, k);
    if (place == NULL) return status_ok();
    char *text;
    TRY(mem_strndup(&text, row->text, row->n));
    if (place == &a->rows[a->result.n_chosen]) {
        a->result.n_chosen++;
    } else {
        mem_free(&place->text);
    }
    *place = (struct audit_row){a->o.n_lines_before + row->number, text, row->n};
    return status_ok();
}

static int compare_lines(const void *x, const void *y)
{
    const uint64_t a = ((const struct audit_row *)x)->line, b = ((const struct audit_row *)y)->line;
    return (a > b) - (a < b);
}

static struct status choose_rows(struct audit *a, struct line_reader *reader)
{
    uint64_t n_candidates = 0;
    for (;;) {
        struct line row;
        TRY(line_reader_next(reader, true, &row));
        if (row.kind == LINE_WAIT) continue;
        const bool is_whole =
            row.kind != LINE_END && line_reader_offset(reader) > row.offset + row.n;
        if (!is_whole) break;
        a->result.n_rows++;
        if (row.kind == LINE_TOO_LONG || repeats_an_id(&row)) continue;
        TRY(offer(a, &row, n_candidates++));
    }
    if (a->result.n_chosen == 0) {
        return status_make(STATUS_INPUT, "output %s: expected rows to audit, found none",
                           a->o.output_path);
    }
    qsort(a->rows, a->result.n_chosen, sizeof *a->rows, compare_lines);
    return status_ok();
}

static struct status read_output(struct audit *a)
{
    struct line_reader *reader = NULL;
    TRY(line_reader_create(a->o.output_path, ROW_BYTES_MAX, &reader));
    const struct status st = choose_rows(a, reader);
    line_reader_destroy(&reader);
    return st;
}

/* ---- the journal ---- */

static struct status audit_read_journal(struct audit *a)
{
    const char *path = a->o.journal_path;
    if (path != NULL) a->journal_fd = file_open_regular(path, O_RDONLY);
    a->result.has_journal = a->journal_fd >= 0;
    if (!a->result.has_journal) return status_ok();
    TRY(journal_facts_read(a->journal_fd, path, &a->facts));
    if (a->facts.settings == NULL) {
        return status_make(STATUS_INPUT, "%s: no journal of this version of shoal", path);
    }
    TRY(journal_settings_check(path, a->facts.settings, a->o.settings, "audit with the same"));
    return journal_index_create(a->journal_fd, path, &a->facts, &a->index);
}

struct status audit_create(const struct audit_options *options, struct audit **out)
{
    *out = NULL;
    struct audit *a = NULL;
    if (access(options->output_path, R_OK) != 0) {
        return status_make(STATUS_INPUT, "output %s: cannot be read: %s", options->output_path,
                           strerror(errno));
    }
    TRY(mem_alloc(&a, 1, sizeof *a, "audit"));
    a->o = *options;
    a->journal_fd = -1;
    struct status st = audit_read_journal(a);
    if (!status_failed(&st)) st = read_output(a);
    if (status_failed(&st)) audit_destroy(&a);
    *out = a;
    return st;
}

void audit_destroy(struct audit **audit)
{
    struct audit *a = *audit;
    if (a == NULL) return;
    for (size_t i = 0; i < a->result.n_chosen; i++) mem_free(&a->rows[i].text);
    mem_free(&a->rows);
    journal_index_destroy(&a->index);
    journal_facts_fini(&a->facts);
    if (a->journal_fd >= 0) close(a->journal_fd);
    mem_free(audit);
}

/* ---- lines and rows ---- */

struct status audit_take_line(struct audit *a, const struct line *line, bool *is_chosen)
{
    *is_chosen = a->n_passed < a->result.n_chosen && a->rows[a->n_passed].line == line->number;
    if (!*is_chosen) return status_ok();
    a->n_passed++;
    if (a->index == NULL) return status_ok();
    struct journal_hit hit;
    TRY(journal_index_find(a->index, line->number, &hit));
    const struct line_digest is = line_digest_of(line);
    if (hit.kind == JOURNAL_HIT_NONE || (hit.digest.low == is.low && hit.digest.high == is.high)) {
        return status_ok();
    }
    return status_make(
        STATUS_INPUT,
        "input %s, line %llu: it has changed since the job ran, so its row cannot be compared",
        a->o.input_path, (unsigned long long)line->number);
}

/* Returns the output's row of a chosen line. */
static const struct audit_row *audit_row_of(const struct audit *a, uint64_t line)
{
    const struct audit_row key = {.line = line};
    return bsearch(&key, a->rows, a->result.n_chosen, sizeof *a->rows, compare_lines);
}

struct status audit_name_line(const struct audit *a, uint64_t line, char name[ID_NAME_MAX])
{
    const struct audit_row *row = audit_row_of(a, line);
    char *id = NULL;
    size_t n = 0;
    snprintf(name, ID_NAME_MAX, "%llu", (unsigned long long)line);
    const struct status st = result_row_id(row->text, row->n, &id, &n);
    if (!status_failed(&st) && n < ID_NAME_MAX && id_set_may_name(line, id, n)) {
        memcpy(name, id, n);
        name[n] = '\0';
    }
    mem_free(&id);
    return st.code == STATUS_MEMORY ? st : status_ok();
}

bool audit_has_all_lines(const struct audit *a)
{
    return a->n_passed == a->result.n_chosen;
}

static void show_difference(const struct audit_row *was, const char *text, size_t n)
{
    size_t at = 0;
    while (at < was->n && at < n && was->text[at] == text[at]) at++;
    const size_t from = at > SHOWN_BEFORE ? at - SHOWN_BEFORE : 0;
    const size_t n_was = was->n - from, n_is = n - from;
    log_line(LOG_ERROR, "audit: row of line %llu, byte %zu: the output has ...%.*s, found ...%.*s",
             (unsigned long long)was->line, at + 1,
             (int)(n_was < SHOWN_BYTES ? n_was : SHOWN_BYTES), was->text + from,
             (int)(n_is < SHOWN_BYTES ? n_is : SHOWN_BYTES), text + from);
}

void audit_compare(struct audit *a, uint64_t line, const char *text, size_t n)
{
    const struct audit_row *was = audit_row_of(a, line);
    assert(was != NULL && n > 0 && text[n - 1] == '\n');
    n--;
    a->result.n_compared++;
    if (n == was->n && memcmp(text, was->text, n) == 0) return;
    if (a->result.n_different++ < DIFFERENCES_SHOWN) show_difference(was, text, n);
}

struct audit_result audit_result(const struct audit *a)
{
    return a->result;
}

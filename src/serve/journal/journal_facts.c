/* One pass over a journal. */
#include "serve/journal/journal_facts.h"

#include "base/mem.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void take_row(struct journal_facts *f, const struct journal_record *r)
{
    const struct journal_row row = journal_row_unpack(r->values);
    f->n_rows++;
    f->n_error_rows += row.is_error;
    f->n_prompt_tokens += row.n_prompt;
    f->n_generated_tokens += row.n_generated;
    f->session_rows++;
    f->session_generated += row.n_generated;
}

static void take(struct journal_facts *f, const struct journal_record *r, uint64_t end)
{
    if (r->line > f->last_line) f->last_line = r->line;
    if (r->line > 0 && (f->first_line == 0 || r->line < f->first_line)) f->first_line = r->line;
    f->is_complete = r->type == JOURNAL_END || (f->is_complete && r->type == JOURNAL_COMMIT);
    switch (r->type) {
    case JOURNAL_BASE:
        f->base_end = end;
        take_row(f, r);
        break;
    case JOURNAL_ROW:
        take_row(f, r);
        break;
    case JOURNAL_PARTIAL:
        f->n_partial_records++;
        break;
    case JOURNAL_SESSION:
        f->n_sessions++;
        f->session_ns = f->last_ns = r->values[0];
        f->input_bytes = r->values[1];
        f->session_rows = f->session_generated = f->n_read = f->n_read_bytes = 0;
        break;
    case JOURNAL_COMMIT:
        f->last_ns = r->values[0];
        f->n_read = r->values[1];
        f->n_read_bytes = r->values[2];
        break;
    case JOURNAL_END:
        f->end_lines = r->values[0];
        f->end_bytes = r->values[1];
        break;
    default:
        break;
    }
}

static struct status read_records(struct journal_cursor *c, struct journal_facts *f)
{
    struct journal_record r;
    bool found;
    TRY(journal_cursor_next(c, &r, &found));
    if (!found || r.type != JOURNAL_HEADER) return status_ok();
    TRY(mem_strndup(&f->settings, r.bytes, r.n_bytes));
    f->good_bytes = f->rows_begin = f->base_end = c->at;
    for (;;) {
        TRY(journal_cursor_next(c, &r, &found));
        if (!found || r.type == JOURNAL_HEADER) return status_ok();
        take(f, &r, c->at);
        f->good_bytes = c->at;
    }
}

struct status journal_facts_read(int fd, const char *path, struct journal_facts *out)
{
    *out = (struct journal_facts){.file_bytes = 0};
    struct stat info;
    char magic[JOURNAL_MAGIC_BYTES];
    if (fstat(fd, &info) != 0) {
        return status_make(STATUS_IO, "journal %s: %s", path, strerror(errno));
    }
    out->file_bytes = (uint64_t)info.st_size;
    if (pread(fd, magic, sizeof magic, 0) != (ssize_t)sizeof magic ||
        memcmp(magic, JOURNAL_MAGIC, sizeof magic) != 0) {
        return status_ok();
    }
    struct journal_cursor c = {
        .fd = fd, .path = path, .at = JOURNAL_MAGIC_BYTES, .end = out->file_bytes};
    const struct status st = read_records(&c, out);
    journal_cursor_fini(&c);
    if (status_failed(&st)) journal_facts_fini(out);
    return st;
}

void journal_facts_fini(struct journal_facts *f)
{
    mem_free(&f->settings);
}

/* New journal files, empty or with the good rows of an old one: complete under another name before
 * they are renamed, so that a journal in its place always has a whole header. */
#include "base/file.h"
#include "base/mem.h"
#include "serve/journal/journal_private.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { WRITE_BYTES = 1 << 20 };

static struct status write_rows(struct journal *j, struct journal_rewrite *r)
{
    TRY(journal_write_durably(j, r->fd, &r->rows, r->end));
    r->end += r->rows.n;
    strbuf_clear(&r->rows);
    return status_ok();
}

struct status journal_rewrite_begin(struct journal *j, const char *settings,
                                    struct journal_rewrite *r)
{
    *r = (struct journal_rewrite){.fd = -1};
    struct strbuf path;
    strbuf_init(&path);
    strbuf_printf(&path, "%s.new", j->target);
    r->path = path.data;
    TRY(strbuf_status(&path));
    r->fd = open(r->path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (r->fd < 0) {
        return status_make(STATUS_IO, "journal %s: cannot be made: %s", r->path, strerror(errno));
    }
    const struct journal_record header = {
        .type = JOURNAL_HEADER, .bytes = settings, .n_bytes = strlen(settings)};
    strbuf_add(&r->rows, JOURNAL_MAGIC, JOURNAL_MAGIC_BYTES);
    return journal_record_add(&r->rows, &header, JOURNAL_MAGIC_BYTES);
}

/* Its place, and so its checksum, is not known before all rows are: see rewrite_end. */
static struct status keep_part(struct journal_rewrite *r, uint64_t line,
                               const struct journal_hit *hit, size_t number)
{
    const struct journal_part *p = &hit->parts[number];
    const struct journal_record record = {.type = JOURNAL_PARTIAL,
                                          .line = line,
                                          .digest = hit->digest,
                                          .values = {0, p->n_dropped, number, p->item_bytes},
                                          .n_bytes = p->n_items * p->item_bytes};
    if (record.n_bytes == 0) return status_ok();
    strbuf_add(&r->rest, (const char *)&record, sizeof record);
    strbuf_add(&r->rest, p->bytes, record.n_bytes);
    r->n_partials++;
    return strbuf_status(&r->rest);
}

struct status journal_rewrite_line(struct journal *j, struct journal_rewrite *r, uint64_t line,
                                   const struct journal_hit *hit)
{
    struct journal_record record = {.line = line, .digest = hit->digest};
    for (size_t i = 0; hit->kind == JOURNAL_HIT_PARTIAL && i < hit->n_parts; i++)
        TRY(keep_part(r, line, hit, i));
    if (hit->kind != JOURNAL_HIT_ROW || hit->row.is_error) return status_ok();
    record.type = JOURNAL_BASE;
    record.bytes = hit->text;
    record.n_bytes = hit->n_text;
    journal_row_pack(&hit->row, record.values);
    TRY(journal_record_add(&r->rows, &record, r->end + r->rows.n));
    return r->rows.n >= WRITE_BYTES ? write_rows(j, r) : status_ok();
}

static struct status add_partials(struct journal_rewrite *r)
{
    size_t at = 0;
    for (uint64_t i = 0; i < r->n_partials; i++) {
        struct journal_record record;
        memcpy(&record, r->rest.data + at, sizeof record);
        record.bytes = r->rest.data + at + sizeof record;
        at += sizeof record + record.n_bytes;
        TRY(journal_record_add(&r->rows, &record, r->end + r->rows.n));
    }
    return status_ok();
}

struct status journal_rewrite_end(struct journal *j, struct journal_rewrite *r)
{
    TRY(add_partials(r));
    TRY(write_rows(j, r));
    const int error = failpoint_pass(j->failpoint, FAILPOINT_JOURNAL_RENAME);
    if (error != 0) {
        return status_make(STATUS_IO, "journal %s: rename failed: %s", j->path, strerror(error));
    }
    TRY(file_commit(r->path, j->target));
    mem_free(&r->path);
    return status_ok();
}

void journal_rewrite_fini(struct journal_rewrite *r)
{
    if (r->fd >= 0) close(r->fd);
    if (r->path != NULL) unlink(r->path); /* it did not get to its place */
    mem_free(&r->path);
    strbuf_fini(&r->rows);
    strbuf_fini(&r->rest);
}

/* Record bytes and their checking. */
#include "serve/journal/journal_record.h"

#include "base/mem.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the journal is little-endian");

enum { READ_BYTES = 256 << 10, N_VALUES = 5 };

/* What stands before a record's bytes. */
struct frame {
    uint32_t type, n_bytes;
    uint64_t checksum;
    uint64_t line;
    struct line_digest digest;
    uint64_t values[N_VALUES];
};
_Static_assert(sizeof(struct frame) == JOURNAL_FRAME_BYTES, "a frame has no holes");

struct line_digest line_digest_of(const struct line *line)
{
    if (line->text == NULL) return (struct line_digest){line->n, UINT64_MAX};
    const XXH128_hash_t h = XXH3_128bits(line->text, line->n);
    return (struct line_digest){h.low64, h.high64};
}

void journal_row_pack(const struct journal_row *row, uint64_t values[5])
{
    values[0] = row->id_low;
    values[1] = row->id_high;
    values[2] = (uint64_t)row->n_prompt << 32 | row->n_generated;
    values[3] = row->n_scored << 1 | row->is_error;
    memcpy(&values[4], &row->sum_logprob, sizeof values[4]);
}

struct journal_row journal_row_unpack(const uint64_t values[5])
{
    struct journal_row row = {.id_low = values[0],
                              .id_high = values[1],
                              .n_prompt = (uint32_t)(values[2] >> 32),
                              .n_generated = (uint32_t)values[2],
                              .is_error = (values[3] & 1) != 0,
                              .n_scored = values[3] >> 1};
    memcpy(&row.sum_logprob, &values[4], sizeof row.sum_logprob);
    return row;
}

/* The checksum of a frame whose field `checksum` is 0, and of the bytes behind it. */
static uint64_t checksum_of(const struct frame *f, const char *bytes, uint64_t offset)
{
    const uint64_t head = XXH3_64bits_withSeed(f, sizeof *f, offset);
    return XXH3_64bits_withSeed(bytes, f->n_bytes, head);
}

struct status journal_record_add(struct strbuf *out, const struct journal_record *r,
                                 uint64_t offset)
{
    if (r->n_bytes > UINT32_MAX) {
        return status_make(STATUS_REQUEST,
                           "journal: line %llu: a record of %zu bytes, expected "
                           "less than 4 GiB",
                           (unsigned long long)r->line, r->n_bytes);
    }
    struct frame f = {
        .type = r->type, .n_bytes = (uint32_t)r->n_bytes, .line = r->line, .digest = r->digest};
    memcpy(f.values, r->values, sizeof f.values);
    const char *bytes = r->bytes != NULL ? r->bytes : "";
    f.checksum = checksum_of(&f, bytes, offset);
    strbuf_add(out, (const char *)&f, sizeof f);
    strbuf_add(out, bytes, r->n_bytes);
    return strbuf_status(out);
}

/* The buffer begins at c->at from now on and has room for n bytes; what it held of them stays. */
static struct status buffer_move(struct journal_cursor *c, size_t n)
{
    size_t kept = 0;
    if (c->at >= c->buf_offset && c->at < c->buf_offset + c->n) {
        kept = (size_t)(c->buf_offset + c->n - c->at);
        memmove(c->buf, c->buf + (c->at - c->buf_offset), kept);
    }
    c->buf_offset = c->at;
    c->n = kept;
    const size_t least = c->read_bytes > 0 ? c->read_bytes : READ_BYTES;
    const size_t want = n > least ? n : least;
    if (want > c->capacity) {
        TRY(mem_grow(&c->buf, c->n, want, 1, "journal"));
        c->capacity = want;
    }
    return status_ok();
}

/* Has the n bytes at c->at in the buffer; *there is false when the file has fewer. */
static struct status need(struct journal_cursor *c, size_t n, bool *there)
{
    *there = c->end - c->at >= n;
    if (!*there || (c->at >= c->buf_offset && c->at + n <= c->buf_offset + c->n)) {
        return status_ok();
    }
    TRY(buffer_move(c, n));
    while (c->n < n) {
        const uint64_t from = c->buf_offset + c->n;
        size_t most = c->capacity - c->n;
        if (most > c->end - from) most = (size_t)(c->end - from);
        const ssize_t got = pread(c->fd, c->buf + c->n, most, (off_t)from);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            return status_make(STATUS_IO, "journal %s: reading at byte %llu failed: %s", c->path,
                               (unsigned long long)from, strerror(errno));
        }
        *there = got > 0;
        if (got == 0) return status_ok(); /* shorter than it was when it was opened */
        c->n += (size_t)got;
    }
    return status_ok();
}

struct status journal_cursor_next(struct journal_cursor *c, struct journal_record *out, bool *found)
{
    struct frame f;
    TRY(need(c, sizeof f, found));
    if (!*found) return status_ok();
    memcpy(&f, c->buf + (c->at - c->buf_offset), sizeof f);
    *found = f.type >= JOURNAL_HEADER && f.type < JOURNAL_TYPE_COUNT;
    if (!*found) return status_ok();
    TRY(need(c, sizeof f + f.n_bytes, found));
    if (!*found) return status_ok();
    const char *bytes = c->buf + (c->at - c->buf_offset) + sizeof f;
    const uint64_t stored = f.checksum;
    f.checksum = 0;
    *found = checksum_of(&f, bytes, c->at) == stored;
    if (!*found) return status_ok();
    *out = (struct journal_record){.type = (enum journal_type)f.type,
                                   .line = f.line,
                                   .digest = f.digest,
                                   .bytes = bytes,
                                   .n_bytes = f.n_bytes};
    memcpy(out->values, f.values, sizeof out->values);
    c->at += sizeof f + f.n_bytes;
    return status_ok();
}

void journal_cursor_fini(struct journal_cursor *c)
{
    mem_free(&c->buf);
}

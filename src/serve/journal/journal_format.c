/* Packs and reads records with their checksums, sums up a journal in one pass, and compares
 * settings. */
#include "serve/journal/journal_format.h"

#include "base/mem.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the journal is little-endian");

enum { READ_BYTES = 256 << 10, N_VALUES = 5 };

/* A record's first bytes. */
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

/* Returns the checksum of a frame, with its field `checksum` 0, and of the n_bytes bytes after it.
 */
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

/* Makes the buffer begin at byte c->at of the file, with room for n bytes. Keeps bytes that it
 * already has. */
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

/* Reads until the n bytes at c->at are in the buffer. *there: whether the file has them. */
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
        if (got == 0) return status_ok(); /* the file has shrunk since it was opened */
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

struct status journal_path_of(const char *output, const char *folder, char **out)
{
    const char *slash = strrchr(output, '/');
    struct strbuf path;
    strbuf_init(&path);
    if (folder == NULL) {
        strbuf_printf(&path, "%s.journal", output);
    } else {
        strbuf_printf(&path, "%s/%s.journal", folder, slash != NULL ? slash + 1 : output);
    }
    *out = path.data;
    return strbuf_status(&path);
}

/* ---- facts ---- */

static void journal_format_take_row(struct journal_facts *f, const struct journal_record *r)
{
    const struct journal_row row = journal_row_unpack(r->values);
    f->n_rows++;
    f->n_error_rows += row.is_error;
    f->n_prompt_tokens += row.n_prompt;
    f->n_generated_tokens += row.n_generated;
    f->session_rows++;
    f->session_generated += row.n_generated;
}

static void journal_format_take(struct journal_facts *f, const struct journal_record *r,
                                uint64_t end)
{
    if (r->line > f->last_line) f->last_line = r->line;
    if (r->line > 0 && (f->first_line == 0 || r->line < f->first_line)) f->first_line = r->line;
    f->is_complete = r->type == JOURNAL_END || (f->is_complete && r->type == JOURNAL_COMMIT);
    switch (r->type) {
    case JOURNAL_BASE:
        f->base_end = end;
        journal_format_take_row(f, r);
        break;
    case JOURNAL_ROW:
        journal_format_take_row(f, r);
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
        journal_format_take(f, &r, c->at);
        f->good_bytes = c->at;
    }
}

/* Sets *c to read all records of a journal; none, if the file does not begin with the magic. */
static struct status begin_records(int fd, const char *path, uint64_t *file_bytes,
                                   struct journal_cursor *c)
{
    struct stat info;
    char magic[JOURNAL_MAGIC_BYTES];
    if (fstat(fd, &info) != 0) {
        return status_make(STATUS_IO, "journal %s: %s", path, strerror(errno));
    }
    *file_bytes = (uint64_t)info.st_size;
    *c = (struct journal_cursor){
        .fd = fd, .path = path, .at = JOURNAL_MAGIC_BYTES, .end = *file_bytes};
    if (pread(fd, magic, sizeof magic, 0) != (ssize_t)sizeof magic ||
        memcmp(magic, JOURNAL_MAGIC, sizeof magic) != 0)
        c->end = c->at;
    return status_ok();
}

struct status journal_facts_read(int fd, const char *path, struct journal_facts *out)
{
    struct journal_cursor c;
    *out = (struct journal_facts){.file_bytes = 0};
    TRY(begin_records(fd, path, &out->file_bytes, &c));
    const struct status st = read_records(&c, out);
    journal_cursor_fini(&c);
    if (status_failed(&st)) journal_facts_fini(out);
    return st;
}

struct status journal_settings_read(int fd, const char *path, char **out)
{
    struct journal_cursor c;
    struct journal_record header;
    uint64_t file_bytes;
    bool found = false;
    *out = NULL;
    TRY(begin_records(fd, path, &file_bytes, &c));
    struct status st = journal_cursor_next(&c, &header, &found);
    if (!status_failed(&st) && found && header.type == JOURNAL_HEADER)
        st = mem_strndup(out, header.bytes, header.n_bytes);
    journal_cursor_fini(&c);
    return st;
}

void journal_facts_fini(struct journal_facts *f)
{
    mem_free(&f->settings);
}

/* ---- settings ---- */

enum { SHOWN_BYTES = 80 };

/* A name or a value in the settings; at NULL: not found. */
struct part {
    const char *at;
    size_t n;
};

static struct part value_of(const char *settings, struct part name)
{
    for (const char *at = settings; at != NULL && *at != '\0';) {
        if (strncmp(at, name.at, name.n) == 0 && at[name.n] == '=') {
            const char *value = at + name.n + 1;
            return (struct part){value, strcspn(value, "\n")};
        }
        at = strchr(at, '\n');
        if (at != NULL) at++;
    }
    return (struct part){NULL, 0};
}

static bool is_equal(struct part a, struct part b)
{
    return a.at != NULL && b.at != NULL && a.n == b.n && memcmp(a.at, b.at, a.n) == 0;
}

static struct part shown(struct part p)
{
    if (p.n == 0) return (struct part){"(nothing)", strlen("(nothing)")};
    return (struct part){p.at, p.n < SHOWN_BYTES ? p.n : SHOWN_BYTES};
}

/* Returns the first line of `was` whose name is missing in `is`; if none is missing, a text that
 * says that only the order differs. */
static struct part first_without(const char *was, const char *is)
{
    for (const char *at = was; *at != '\0';) {
        const struct part name = {at, strcspn(at, "=\n")}, line = {at, strcspn(at, "\n")};
        if (value_of(is, name).at == NULL) return shown(line);
        at += line.n;
        if (*at == '\n') at++;
    }
    return (struct part){"settings in another order", strlen("settings in another order")};
}

/* Makes the error for a journal that lacks a setting which is not a flag: the arithmetic has
 * changed since the journal was written. */
static struct status old_arithmetic(const char *path, struct part name, struct part now)
{
    const struct part new = shown(now);
    return status_make(STATUS_INPUT,
                       "journal %s: the job began with a version of shoal with other arithmetic "
                       "(now %.*s: %.*s), so its rows would have other bytes; use that version, or "
                       "begin anew",
                       path, (int)name.n, name.at, (int)new.n, new.at);
}

struct status journal_settings_check(const char *path, const char *was, const char *is,
                                     const char *remedy)
{
    if (strcmp(was, is) == 0) return status_ok();
    for (const char *at = is; *at != '\0';) {
        const struct part name = {at, strcspn(at, "=\n")};
        const struct part now = value_of(at, name), then = value_of(was, name);
        if (now.at != NULL && !is_equal(now, then)) {
            const bool is_flag = strncmp(at, "--", 2) == 0;
            if (!is_flag && then.at == NULL) return old_arithmetic(path, name, now);
            const struct part new = shown(now), old = shown(then);
            return status_make(is_flag ? STATUS_USAGE : STATUS_INPUT,
                               "journal %s: %.*s was %.*s when the job began and is %.*s now; %s",
                               path, (int)name.n, name.at, (int)old.n, old.at, (int)new.n, new.at,
                               remedy);
        }
        at += strcspn(at, "\n");
        if (*at == '\n') at++;
    }
    const struct part lost = first_without(was, is);
    return status_make(
        STATUS_INPUT,
        "journal %s: it has %.*s, which this run does not set or this version of shoal "
        "does not know; %s",
        path, (int)lost.n, lost.at, remedy);
}

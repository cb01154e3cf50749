/* Reads lines from a source of bytes in bounded memory. */
#include "serve/input/line_reader.h"

#include "base/mem.h"
#include "serve/input/byte_source.h"

#include <string.h>

enum { READ_BYTES = 64 << 10, SKIPPED_MAX = 64 << 20 };

/* Bytes [begin, end) of `data` have been read and not yet returned; [begin, scanned) contain no
 * line end. The bytes of a line over the limit are counted in n_skipped and dropped. */
struct line_reader {
    const struct input_files *files;
    struct input_files one_file; /* the list that line_reader_create makes */
    char *path;                  /* the path in one_file; owned */
    size_t at_file;              /* the file that `source` reads; those before it are closed */
    uint64_t *n_lines_before;    /* [files.n] lines before each file that has been opened; owned */
    uint64_t n_bytes_before;     /* bytes on the disk of the files before file at_file */
    uint64_t n_bytes;            /* bytes on the disk of all files; used if there are several */
    struct byte_source *source;
    bool is_stdin, at_end, skipping, started;
    char *data;
    size_t capacity, begin, scanned, end, max_bytes;
    size_t n_skipped;
    uint64_t n_lines, offset;
    uint64_t begin_offset, end_offset; /* byte range of the part; end_offset 0: to the end */
    bool is_empty;                     /* the part has no lines */
};

static struct status open_first(struct line_reader *r, size_t max_bytes)
{
    r->max_bytes = max_bytes == 0 ? LINE_BYTES_MAX : max_bytes;
    r->capacity = READ_BYTES;
    if (r->files->n > 1) r->n_bytes = input_files_size(r->files);
    r->is_stdin = strcmp(r->files->paths[0], "-") == 0;
    TRY(mem_alloc(&r->n_lines_before, r->files->n, sizeof *r->n_lines_before, "line reader"));
    TRY(byte_source_open(r->files->paths[0], &r->source));
    return mem_alloc(&r->data, r->capacity, 1, "line buffer");
}

struct status line_reader_create_all(const struct input_files *files, size_t max_bytes,
                                     struct line_reader **out)
{
    *out = NULL;
    TRY(mem_alloc(out, 1, sizeof **out, "line reader"));
    (*out)->files = files;
    const struct status st = open_first(*out, max_bytes);
    if (status_failed(&st)) line_reader_destroy(out);
    return st;
}

struct status line_reader_create(const char *path, size_t max_bytes, struct line_reader **out)
{
    *out = NULL;
    struct line_reader *r = NULL;
    TRY(mem_alloc(&r, 1, sizeof *r, "line reader"));
    struct status st = mem_strndup(&r->path, path, strlen(path));
    r->one_file = input_files_one((const char *const *)&r->path);
    r->files = &r->one_file;
    if (!status_failed(&st)) st = open_first(r, max_bytes);
    *out = r;
    if (status_failed(&st)) line_reader_destroy(out);
    return st;
}

struct line_place line_reader_place(const struct line_reader *r, uint64_t number)
{
    size_t i = r->at_file;
    while (i > 0 && r->n_lines_before[i] >= number) i--;
    return (struct line_place){r->files->paths[i], number - r->n_lines_before[i]};
}

static struct status check_magic(const struct byte_source *source, const char *path)
{
    static const struct {
        const char *bytes;
        size_t n;
        const char *name, *way;
    } kinds[] = {{"BZh", 3, "compressed by bzip2", "bzcat"},
                 {"\xFF\xFE\0\0", 4, "UTF-32", "iconv -f UTF-32 -t UTF-8"},
                 {"\0\0\xFE\xFF", 4, "UTF-32", "iconv -f UTF-32 -t UTF-8"},
                 {"\xFF\xFE", 2, "UTF-16", "iconv -f UTF-16 -t UTF-8"},
                 {"\xFE\xFF", 2, "UTF-16", "iconv -f UTF-16 -t UTF-8"},
                 {"PAR1", 4, "a Parquet file", "a converter to JSON lines"}};
    char head[8];
    const size_t n = byte_source_head(source, head, sizeof head);
    if (n == sizeof head && memcmp(head, "\x89HDF\r\n\x1A\n", n) == 0) {
        return status_make(STATUS_INPUT,
                           "input %s: expected JSON lines in UTF-8, found an HDF5 file; %s:/NAME, "
                           "with .h5 or .hdf5, is its dataset of strings NAME",
                           path, path);
    }
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (n < kinds[i].n || memcmp(head, kinds[i].bytes, kinds[i].n) != 0) continue;
        return status_make(STATUS_INPUT,
                           "input %s: expected JSON lines in UTF-8, found %s; %s makes them, and "
                           "--input - reads them from stdin",
                           path, kinds[i].name, kinds[i].way);
    }
    return status_ok();
}

struct status line_reader_check(const struct line_reader *r)
{
    TRY(check_magic(r->source, r->files->paths[r->at_file]));
    for (size_t i = r->at_file + 1; i < r->files->n; i++) {
        struct byte_source *source = NULL;
        TRY(byte_source_open(r->files->paths[i], &source));
        const struct status st = check_magic(source, r->files->paths[i]);
        byte_source_close(&source);
        TRY(st);
    }
    return status_ok();
}

void line_reader_destroy(struct line_reader **reader)
{
    struct line_reader *r = *reader;
    if (r == NULL) return;
    byte_source_close(&r->source);
    mem_free(&r->n_lines_before);
    mem_free(&r->path);
    mem_free(&r->data);
    mem_free(reader);
}

/* Closes the file, which was read to its end or is skipped, and opens the next one. n_lines: lines
 * before the next file. */
static struct status open_next(struct line_reader *r, uint64_t n_lines)
{
    r->n_bytes_before += byte_source_file_size(r->source);
    byte_source_close(&r->source);
    r->n_lines_before[++r->at_file] = n_lines;
    r->started = false;
    return byte_source_open(r->files->paths[r->at_file], &r->source);
}

struct status line_reader_set_part(struct line_reader *r, const struct input_part *part)
{
    uint64_t left = part->begin, length = 0;
    while (r->at_file + 1 < r->files->n) {
        TRY(byte_source_length(r->files->paths[r->at_file], &length));
        if (left < length) break;
        TRY(open_next(r, 0));
        left -= length;
    }
    r->n_lines_before[r->at_file] = left > 0 ? part->n_before_file : part->n_before;
    TRY(byte_source_go_to(r->source, left));
    r->started = left > 0;
    r->n_lines = part->n_before;
    r->offset = r->begin_offset = part->begin;
    r->end_offset = part->end;
    r->at_end = r->is_empty = part->end == part->begin;
    return status_ok();
}

uint64_t line_reader_offset(const struct line_reader *r)
{
    return r->offset - r->begin_offset;
}

uint64_t line_reader_size(const struct line_reader *r)
{
    if (r->end_offset > 0) return r->end_offset - r->begin_offset;
    return r->files->n > 1 ? r->n_bytes : byte_source_file_size(r->source);
}

uint64_t line_reader_done(const struct line_reader *r)
{
    const bool by_file = r->files->n > 1 || byte_source_is_compressed(r->source);
    if (r->end_offset > 0 || !by_file) return line_reader_offset(r);
    return r->n_bytes_before + byte_source_file_done(r->source);
}

bool line_reader_is_repeatable(const struct line_reader *r)
{
    return !r->is_stdin && byte_source_is_regular(r->source);
}

bool line_reader_is_file(const struct line_reader *r, const char *path)
{
    return byte_source_is_file(r->source, path) ||
           (r->files->n > 1 && input_files_find(r->files, path) != NULL);
}

/* True when another file follows and the part, if one is set, goes on in it. */
static bool has_next(const struct line_reader *r)
{
    const bool is_inside = r->end_offset == 0 || r->offset < r->end_offset;
    return r->at_file + 1 < r->files->n && is_inside && !r->is_empty;
}

/* Moves the pending bytes to the front; grows the buffer if they fill it. */
static struct status line_reader_make_room(struct line_reader *r)
{
    if (r->begin > 0) {
        memmove(r->data, r->data + r->begin, r->end - r->begin);
        r->end -= r->begin;
        r->scanned -= r->begin;
        r->begin = 0;
    }
    if (r->end < r->capacity) return status_ok();
    TRY(mem_grow(&r->data, r->end, r->capacity * 2, 1, "line buffer"));
    r->capacity *= 2;
    return status_ok();
}

/* Reads some bytes after `end`. *waiting = whether nothing can be read now. */
static struct status line_reader_fill(struct line_reader *r, bool may_block, bool *waiting)
{
    struct source_read got = {SOURCE_END, 0};
    TRY(line_reader_make_room(r));
    size_t most = r->capacity - r->end;
    const uint64_t left = r->end_offset - (r->offset + (r->end - r->begin));
    if (r->end_offset > 0 && left < most) most = (size_t)left;
    if (most > 0) TRY(byte_source_read(r->source, may_block, r->data + r->end, most, &got));
    *waiting = got.kind == SOURCE_WAIT;
    r->at_end = got.kind == SOURCE_END;
    r->end += got.n;
    return status_ok();
}

/* Returns the n bytes at `begin` as a line; the last n_end of them are the line end. */
static void reader_take_line(struct line_reader *r, size_t n, size_t n_end, struct line *out)
{
    out->number = ++r->n_lines;
    out->offset = r->offset - r->n_skipped;
    out->text = r->data + r->begin;
    out->n = n - n_end;
    out->kind = LINE_OK;
    r->begin += n;
    r->scanned = r->begin;
    r->offset += n;
    if (n_end > 0 && out->n > 0 && out->text[out->n - 1] == '\r') out->n--;
    if (r->skipping || out->n > r->max_bytes) {
        out->kind = LINE_TOO_LONG;
        out->text = NULL;
        out->n += r->n_skipped;
    }
    r->skipping = false;
    r->n_skipped = 0;
}

/* Drops the pending bytes of a line that is over the limit. */
static void skip_pending(struct line_reader *r)
{
    const size_t n = r->end - r->begin;
    r->skipping = true;
    r->n_skipped += n;
    r->offset += n;
    r->begin = r->scanned = r->end = 0;
}

static void skip_byte_order_mark(struct line_reader *r)
{
    if (r->end - r->begin < 3 && !r->at_end) return;
    r->started = true;
    if (r->end - r->begin < 3 || memcmp(r->data + r->begin, "\xEF\xBB\xBF", 3) != 0) return;
    r->begin += 3;
    r->scanned = r->begin;
    r->offset += 3;
}

/* True when skipping a line has taken too long: an endless line from a device, a pipe or a small
 * compressed file must not keep the caller from draining. */
static bool skips_for_long(const struct line_reader *r, uint64_t since)
{
    const bool is_bounded =
        byte_source_is_regular(r->source) && !byte_source_is_compressed(r->source);
    return !is_bounded && r->skipping && r->offset - since > SKIPPED_MAX;
}

struct status line_reader_next(struct line_reader *r, bool may_block, struct line *out)
{
    const uint64_t since = r->offset;
    memset(out, 0, sizeof *out);
    for (;;) {
        if (!r->started) skip_byte_order_mark(r);
        if (r->started) {
            const char *found = memchr(r->data + r->scanned, '\n', r->end - r->scanned);
            if (found != NULL) {
                reader_take_line(r, (size_t)(found - (r->data + r->begin)) + 1, 1, out);
                return status_ok();
            }
            r->scanned = r->end;
            if (r->at_end && (r->end > r->begin || r->skipping)) {
                reader_take_line(r, r->end - r->begin, 0, out);
                return status_ok();
            }
            if (r->end - r->begin > r->max_bytes + 1) skip_pending(r);
        }
        if (r->at_end && has_next(r)) {
            TRY(open_next(r, r->n_lines));
            r->at_end = false;
        }
        if (r->at_end) {
            out->kind = LINE_END;
            return status_ok();
        }
        bool waiting;
        TRY(line_reader_fill(r, may_block, &waiting));
        if (waiting || skips_for_long(r, since)) {
            out->kind = LINE_WAIT;
            return status_ok();
        }
    }
}

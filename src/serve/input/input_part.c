/* Cuts an input at starts of lines and counts the lines before the cut. */
#include "serve/input/input_part.h"

#include "base/mem.h"
#include "serve/input/byte_source.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { READ_BYTES = 1 << 20 };

#define SETTING "--input-part="

/* Parses digits up to `end_char` and moves *text past it. */
static bool parse_count(const char **text, char end_char, uint32_t *out)
{
    uint32_t value = 0;
    const char *at = *text;
    if (*at < '1' || *at > '9') return false;
    for (; *at >= '0' && *at <= '9'; at++) {
        value = 10 * value + (uint32_t)(*at - '0');
        if (value > INPUT_PARTS_MAX) return false;
    }
    if (*at != end_char) return false;
    *text = at + 1;
    *out = value;
    return true;
}

bool input_part_parse(const char *text, struct input_part *out)
{
    return parse_count(&text, '/', &out->index) && parse_count(&text, '\0', &out->n) &&
           out->index <= out->n;
}

uint64_t input_part_cut(uint64_t size, uint32_t index, uint32_t n)
{
    const uint64_t i = index - 1;
    return size / n * i + size % n * i / n;
}

/* An input that is read from its start, one buffer at a time. */
struct scan {
    const struct input_files *files;
    size_t at_file;
    uint64_t n_before_file; /* lines before file at_file */
    struct byte_source *source;
    bool in_line; /* the byte before `offset` belongs to a line that has not ended */
    char *buf;
    size_t n, at;
    uint64_t offset; /* offset of buf[at] in the input */
    uint64_t n_lines;
};

/* Opens the next file. The end of a file ends its last line. */
static struct status scan_next_file(struct scan *s, bool *ends_line)
{
    byte_source_close(&s->source);
    if (s->in_line) *ends_line = true;
    s->n_lines += s->in_line;
    s->in_line = false;
    s->n_before_file = s->n_lines;
    return byte_source_open(s->files->paths[++s->at_file], &s->source);
}

/* Reads the next buffer if this one is used up; s->n is then 0 at the end of the input. *ends_line:
 * the buffer is from another file, and the file before it ended without a line end. */
static struct status input_part_fill(struct scan *s, bool *ends_line)
{
    struct source_read got;
    *ends_line = false;
    if (s->at < s->n) return status_ok();
    TRY(byte_source_read(s->source, true, s->buf, READ_BYTES, &got));
    while (got.kind == SOURCE_END && s->at_file + 1 < s->files->n) {
        TRY(scan_next_file(s, ends_line));
        TRY(byte_source_read(s->source, true, s->buf, READ_BYTES, &got));
    }
    s->at = 0;
    s->n = got.n;
    return status_ok();
}

/* Passes over the n bytes at s->at. */
static void scan_pass(struct scan *s, size_t n)
{
    if (n > 0) s->in_line = s->buf[s->at + n - 1] != '\n';
    s->offset += n;
    s->at += n;
}

/* Moves to the first line start at or after byte `cut`, and counts the line ends on the way. */
static struct status go_to_line(struct scan *s, uint64_t cut)
{
    bool ends_line;
    while (s->offset + 1 < cut) { /* line ends before byte cut - 1 */
        TRY(input_part_fill(s, &ends_line));
        if (s->n == 0) return status_ok();
        const uint64_t wanted = cut - 1 - s->offset, has = s->n - s->at;
        const char *end = s->buf + s->at + (wanted < has ? wanted : has);
        for (const char *p = s->buf + s->at; (p = memchr(p, '\n', (size_t)(end - p))) != NULL;
             p++) {
            s->n_lines++;
        }
        scan_pass(s, (size_t)(end - (s->buf + s->at)));
    }
    for (;;) {
        TRY(input_part_fill(s, &ends_line));
        if (s->n == 0 || (ends_line && s->offset >= cut)) return status_ok();
        const char *p = memchr(s->buf + s->at, '\n', s->n - s->at);
        scan_pass(s, (p != NULL ? (size_t)(p - s->buf) + 1 : s->n) - s->at);
        if (p == NULL) continue;
        s->n_lines++;
        return status_ok();
    }
}

/* Finds the start and the end of the part. A long line may move the start past the end; then the
 * part is empty. */
static struct status find_part_ends(struct scan *s, struct input_part *part)
{
    const uint64_t first = input_part_cut(part->size, part->index, part->n);
    const uint64_t behind = input_part_cut(part->size, part->index + 1, part->n);
    if (first > 0) TRY(go_to_line(s, first));
    part->begin = s->offset;
    part->n_before = s->n_lines;
    part->n_before_file = s->n_before_file;
    if (behind > s->offset) TRY(go_to_line(s, behind));
    part->end = part->index == part->n ? part->size : s->offset;
    if (part->begin > part->end) part->begin = part->end;
    return status_ok();
}

/* Refuses a path that is no regular file; does not open it, because opening a FIFO would wait for a
 * writer. */
static struct status check_is_regular(const char *path)
{
    struct stat info;
    if (input_files_stat(path, &info) != 0) {
        return status_make(STATUS_INPUT, "input %s: cannot be opened: %s", path, strerror(errno));
    }
    if (S_ISREG(info.st_mode)) return status_ok();
    return status_make(STATUS_USAGE, "--input-part: needs a regular file, which %s is not", path);
}

struct status input_part_size(const struct input_files *files, uint64_t *out)
{
    *out = 0;
    for (size_t i = 0; i < files->n; i++) {
        uint64_t length;
        TRY(byte_source_length(files->paths[i], &length));
        *out += length;
    }
    return status_ok();
}

struct status input_part_find(const struct input_files *files, struct input_part *part)
{
    struct scan s = {.files = files};
    for (size_t i = 0; i < files->n; i++) TRY(check_is_regular(files->paths[i]));
    TRY(input_part_size(files, &part->size));
    TRY(byte_source_open(files->paths[0], &s.source));
    struct status st = mem_alloc(&s.buf, READ_BYTES, 1, "line counter");
    if (!status_failed(&st)) st = find_part_ends(&s, part);
    mem_free(&s.buf);
    byte_source_close(&s.source);
    return st;
}

void input_part_setting(const struct input_part *part, struct strbuf *out)
{
    strbuf_printf(out, SETTING "%u/%u (line %llu on, bytes %llu to %llu of %llu)\n", part->index,
                  part->n, (unsigned long long)part->n_before + 1, (unsigned long long)part->begin,
                  (unsigned long long)part->end, (unsigned long long)part->size);
}

bool input_part_of_settings(const char *settings, struct input_part *out, size_t *at,
                            size_t *n_bytes)
{
    char text[32];
    const char *line = settings;
    while (line != NULL && strncmp(line, SETTING, strlen(SETTING)) != 0) {
        line = strchr(line, '\n');
        if (line != NULL) line++;
    }
    if (line == NULL) return false;
    const char *value = line + strlen(SETTING);
    const size_t n = strcspn(value, " \n");
    if (n >= sizeof text) return false;
    memcpy(text, value, n);
    text[n] = '\0';
    *at = (size_t)(line - settings);
    *n_bytes = strcspn(line, "\n") + 1;
    return input_part_parse(text, out);
}

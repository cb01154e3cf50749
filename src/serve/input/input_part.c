/* Cuts an input at starts of lines and counts the lines before the cut. */
#include "serve/input/input_part.h"

#include "base/mem.h"
#include "serve/input/byte_source.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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
    struct byte_source *source;
    char *buf;
    size_t n, at;
    uint64_t offset; /* of buf[at] */
    uint64_t n_lines;
};

/* Reads the next buffer if this one is used up. s->n is 0 at the end of the input. */
static struct status input_part_fill(struct scan *s)
{
    struct source_read got;
    if (s->at < s->n) return status_ok();
    TRY(byte_source_read(s->source, true, s->buf, READ_BYTES, &got));
    s->at = 0;
    s->n = got.n;
    return status_ok();
}

/* Moves to the first line start at or after byte `cut`, and counts the line ends on the way. */
static struct status go_to_line(struct scan *s, uint64_t cut)
{
    while (s->offset + 1 < cut) { /* line ends before byte cut - 1 */
        TRY(input_part_fill(s));
        if (s->n == 0) return status_ok();
        const uint64_t wanted = cut - 1 - s->offset, has = s->n - s->at;
        const char *end = s->buf + s->at + (wanted < has ? wanted : has);
        for (const char *p = s->buf + s->at; (p = memchr(p, '\n', (size_t)(end - p))) != NULL;
             p++) {
            s->n_lines++;
        }
        s->offset += (uint64_t)(end - (s->buf + s->at));
        s->at = (size_t)(end - s->buf);
    }
    for (;;) {
        TRY(input_part_fill(s));
        if (s->n == 0) return status_ok();
        const char *p = memchr(s->buf + s->at, '\n', s->n - s->at);
        const size_t next = p != NULL ? (size_t)(p - s->buf) + 1 : s->n;
        s->offset += next - s->at;
        s->at = next;
        if (p == NULL) continue;
        s->n_lines++;
        return status_ok();
    }
}

/* Finds the start and the end of the part. A long line may move the start past the end; then the
 * part is empty. */
static struct status find(struct scan *s, struct input_part *part)
{
    const uint64_t first = input_part_cut(part->size, part->index, part->n);
    const uint64_t behind = input_part_cut(part->size, part->index + 1, part->n);
    if (first > 0) TRY(go_to_line(s, first));
    part->begin = s->offset;
    part->n_before = s->n_lines;
    if (behind > s->offset) TRY(go_to_line(s, behind));
    part->end = part->index == part->n ? part->size : s->offset;
    if (part->begin > part->end) part->begin = part->end;
    return status_ok();
}

/* Whether the path is a regular file; does not open it, because opening a FIFO would wait for a
 * writer. */
static struct status check_is_regular(const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0) {
        return status_make(STATUS_INPUT, "input %s: cannot be opened: %s", path, strerror(errno));
    }
    if (S_ISREG(info.st_mode)) return status_ok();
    return status_make(STATUS_USAGE, "--input-part: needs a regular file, which %s is not", path);
}

struct status input_part_find(const char *path, struct input_part *part)
{
    struct scan s = {.source = NULL};
    TRY(check_is_regular(path));
    TRY(byte_source_length(path, &part->size));
    TRY(byte_source_open(path, &s.source));
    struct status st = mem_alloc(&s.buf, READ_BYTES, 1, "line counter");
    if (!status_failed(&st)) st = find(&s, part);
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

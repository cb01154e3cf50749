/* A body is: border CRLF headers CRLF CRLF data CRLF border .. border "--". A border is valid only
 * at the beginning of a line and before CRLF or "--". Only the header Content-Disposition is read.
 */
#include "serve/http/multipart.h"

#include <string.h>
#include <strings.h>

/* Finds `what` in text [n]; NULL: not found. */
static const char *find_bytes(const char *text, size_t n, const char *what, size_t n_what)
{
    for (size_t i = 0; n_what <= n && i <= n - n_what; i++) {
        const char *c = memchr(text + i, what[0], n - n_what - i + 1);
        if (c == NULL) return NULL;
        i = (size_t)(c - text);
        if (memcmp(c, what, n_what) == 0) return c;
    }
    return NULL;
}

bool multipart_init(struct multipart *m, const char *content_type, const char *body, size_t n)
{
    static const char kind[] = "multipart/form-data", key[] = "boundary=";
    *m = (struct multipart){.body = body, .n = n};
    if (strncasecmp(content_type, kind, sizeof kind - 1) != 0) return false;
    const char *value = strcasestr(content_type, key);
    if (value == NULL) return false;
    value += sizeof key - 1;
    const bool is_quoted = value[0] == '"';
    if (is_quoted) value++;
    const size_t n_value = strcspn(value, is_quoted ? "\"" : "; \t");
    if (n_value < 1 || n_value > 70) return false;
    memcpy(m->border, "--", 2);
    memcpy(m->border + 2, value, n_value);
    m->n_border = n_value + 2;
    return true;
}

/* Finds the value of key="value" in a header line [n]. */
static const char *parameter_value(const char *line, size_t n, const char *key, size_t *n_value)
{
    const size_t n_key = strlen(key);
    for (const char *at = line; (at = find_bytes(at, n - (size_t)(at - line), key, n_key)) != NULL;
         at++) {
        const char *value = at + n_key;
        const char *end = memchr(value, '"', n - (size_t)(value - line));
        if (at == line || strchr("; \t", at[-1]) == NULL || end == NULL) continue;
        *n_value = (size_t)(end - value);
        return value;
    }
    *n_value = 0;
    return NULL;
}

/* Reads the headers [n] of a part. False: the part has no name. */
static bool read_headers(const char *headers, size_t n, struct multipart_part *part)
{
    static const char wanted[] = "Content-Disposition:";
    for (size_t at = 0; at < n;) {
        const char *end = find_bytes(headers + at, n - at, "\r\n", 2);
        const size_t length = end != NULL ? (size_t)(end - (headers + at)) : n - at;
        const char *line = headers + at;
        at += length + 2;
        if (length < sizeof wanted || strncasecmp(line, wanted, sizeof wanted - 1) != 0) continue;
        part->name = parameter_value(line, length, "name=\"", &part->n_name);
        part->file_name = parameter_value(line, length, "filename=\"", &part->n_file_name);
    }
    return part->name != NULL;
}

/* Finds the next border at or after `from`: at the beginning of the body or of a line, and followed
 * by "--", or by CRLF, perhaps after blanks. *after: the byte after border and blanks. NULL: there
 * is none. */
static const char *find_border(const struct multipart *m, const char *from, const char **after)
{
    const char *end = m->body + m->n;
    for (const char *at = from;
         (at = find_bytes(at, (size_t)(end - at), m->border, m->n_border)) != NULL; at++) {
        if (at != m->body && (at < m->body + 2 || memcmp(at - 2, "\r\n", 2) != 0)) continue;
        const char *next = at + m->n_border;
        *after = next;
        if (end - next >= 2 && memcmp(next, "--", 2) == 0) return at;
        while (next < end && (*next == ' ' || *next == '\t')) next++;
        *after = next;
        if (end - next >= 2 && memcmp(next, "\r\n", 2) == 0) return at;
    }
    return NULL;
}

bool multipart_next(const struct multipart *m, size_t *at, struct multipart_part *part)
{
    const char *headers, *after, *end = m->body + m->n;
    *part = (struct multipart_part){.n = 0};
    if (find_border(m, m->body + *at, &headers) == NULL) return false;
    if (memcmp(headers, "--", 2) == 0) return false; /* the last border */
    const char *blank = find_bytes(headers, (size_t)(end - headers), "\r\n\r\n", 4);
    if (blank == NULL) return false;
    part->data = blank + 4;
    const char *next = find_border(m, part->data, &after);
    if (next == NULL) return false;
    if (next > part->data)
        part->n = (size_t)(next - 2 - part->data); /* the CRLF before the
                                                      border is not data */
    *at = (size_t)(next - m->body);
    return read_headers(headers, (size_t)(blank - headers), part);
}

/* Builds growing byte strings and JSON text. */
#include "base/strbuf.h"

#include "base/mem.h"
#include "base/utf8.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void strbuf_init(struct strbuf *s)
{
    memset(s, 0, sizeof *s);
}

void strbuf_fini(struct strbuf *s)
{
    mem_free(&s->data);
    strbuf_init(s);
}

void strbuf_clear(struct strbuf *s)
{
    s->n = 0;
    s->failed = false;
    if (s->data != NULL) s->data[0] = '\0';
}

struct status strbuf_status(const struct strbuf *s)
{
    if (!s->failed) return status_ok();
    return status_make(STATUS_MEMORY, "a text buffer could not grow beyond %zu bytes", s->capacity);
}

static bool strbuf_reserve(struct strbuf *s, size_t n_more)
{
    if (s->failed) return false;
    size_t want;
    if (!mem_add(s->n, n_more, &want) || !mem_add(want, 1, &want)) {
        s->failed = true;
        return false;
    }
    if (want <= s->capacity) return true;
    size_t capacity = s->capacity < 64 ? 64 : s->capacity;
    while (capacity < want) capacity += capacity / 2;
    const struct status st = mem_grow(&s->data, s->n, capacity, 1, "text buffer");
    s->failed = status_failed(&st);
    if (!s->failed) s->capacity = capacity;
    return !s->failed;
}

void strbuf_add(struct strbuf *s, const char *bytes, size_t n)
{
    if (!strbuf_reserve(s, n)) return;
    if (n > 0) memcpy(s->data + s->n, bytes, n);
    s->n += n;
    s->data[s->n] = '\0';
}

void strbuf_puts(struct strbuf *s, const char *text)
{
    strbuf_add(s, text, strlen(text));
}

void strbuf_printf(struct strbuf *s, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    va_list again;
    va_copy(again, args);
    const int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n >= 0 && strbuf_reserve(s, (size_t)n)) {
        vsnprintf(s->data + s->n, (size_t)n + 1, format, again);
        s->n += (size_t)n;
    }
    va_end(again);
}

void strbuf_json_string(struct strbuf *s, const char *bytes, size_t n)
{
    strbuf_add(s, "\"", 1);
    for (size_t i = 0; i < n;) {
        const unsigned char c = (unsigned char)bytes[i];
        size_t step = 1;
        if (c == '"' || c == '\\') {
            const char pair[2] = {'\\', (char)c};
            strbuf_add(s, pair, 2);
        } else if (c == '\n') {
            strbuf_puts(s, "\\n");
        } else if (c == '\t') {
            strbuf_puts(s, "\\t");
        } else if (c == '\r') {
            strbuf_puts(s, "\\r");
        } else if (c < 0x20) {
            strbuf_printf(s, "\\u%04x", c);
        } else if (utf8_sequence(bytes + i, n - i, &step)) {
            strbuf_add(s, bytes + i, step);
        } else {
            strbuf_puts(s, "\xEF\xBF\xBD");
        }
        i += step;
    }
    strbuf_add(s, "\"", 1);
}

void strbuf_json_float(struct strbuf *s, float x)
{
    if (!isfinite(x)) {
        strbuf_puts(s, "null");
        return;
    }
    char text[32];
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)x);
        if (strtof(text, NULL) == x) break;
    }
    strbuf_puts(s, text);
}

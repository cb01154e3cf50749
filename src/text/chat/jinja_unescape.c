/* Decodes the escapes of string literals in a template: Python's, except \N. */
#include "text/chat/jinja_parse.h"

#include "base/utf8.h"

#include <string.h>

/* Reads up to `max` digits in this base from s into *value. Returns the number of digits. */
static size_t digits(const char *s, size_t n, size_t max, unsigned base, uint32_t *value)
{
    size_t i = 0;
    *value = 0;
    for (; i < n && i < max; i++) {
        const char c = s[i];
        unsigned digit = 16;
        if (c >= '0' && c <= '9') digit = (unsigned)(c - '0');
        if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') digit = (unsigned)((c | 0x20) - 'a') + 10;
        if (digit >= base) break;
        *value = *value * base + digit;
    }
    return i;
}

static char simple_escape(char c)
{
    static const char FROM[] = "abfnrtv\\'\"";
    static const char TO[] = "\a\b\f\n\r\t\v\\'\"";
    const char *p = c == '\0' ? NULL : strchr(FROM, c);
    return p == NULL ? '\0' : TO[p - FROM];
}

/* Decodes the escape at s, which starts with a backslash, into out. Returns the escape's length; 0
 * after a failure; 1 for an unknown escape, whose backslash is kept. */
static size_t unescape_one(const char *s, size_t n, char out[4], size_t *n_out)
{
    const char c = n > 1 ? s[1] : '\0';
    *n_out = 0;
    if (c == '\n') return 2;
    if (simple_escape(c) != '\0') {
        out[(*n_out)++] = simple_escape(c);
        return 2;
    }
    uint32_t value;
    size_t used;
    if (c >= '0' && c <= '7') {
        used = 1 + digits(s + 1, n - 1, 3, 8, &value);
    } else if (c == 'x' || c == 'u' || c == 'U') {
        const size_t want = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        if (digits(s + 2, n - 2, want, 16, &value) != want) return 0;
        used = 2 + want;
    } else if (c == 'N' || n < 2) {
        return 0;
    } else {
        out[(*n_out)++] = '\\'; /* an unknown escape is kept as it is */
        return 1;
    }
    if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) return 0;
    *n_out = utf8_encode(value, out);
    return used;
}

bool jinja_unescape(struct jparse *p, int line, const char *s, size_t n, struct jtext *out)
{
    *out = (struct jtext){.p = s, .n = n};
    if (n == 0 || memchr(s, '\\', n) == NULL) return true;
    char *text = jparse_get(p, n, 1);
    if (text == NULL) return false;
    size_t to = 0;
    for (size_t i = 0; i < n;) {
        if (s[i] != '\\') {
            text[to++] = s[i++];
            continue;
        }
        char bytes[4];
        size_t n_bytes;
        const size_t used = unescape_one(s + i, n - i, bytes, &n_bytes);
        if (used == 0)
            return jparse_fail(p, line, "a string with an escape that is not understood");
        memcpy(text + to, bytes, n_bytes);
        to += n_bytes;
        i += used;
    }
    *out = (struct jtext){.p = text, .n = to};
    return true;
}

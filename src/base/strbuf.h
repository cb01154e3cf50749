/* A growing byte string, and the JSON writing that result lines need. The struct is the caller's
 * memory (init, fini). All functions are Local. Errors stick: after a failed allocation every
 * append does nothing, and strbuf_status is STATUS_MEMORY. */
#ifndef SHOAL_BASE_STRBUF_H
#define SHOAL_BASE_STRBUF_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

struct strbuf {
    char *data; /* owned, NUL-terminated once anything was appended */
    size_t n;   /* bytes without the NUL */
    size_t capacity;
    bool failed;
};

void strbuf_init(struct strbuf *s);
void strbuf_fini(struct strbuf *s);
void strbuf_clear(struct strbuf *s); /* keeps the memory, clears a failure */
struct status strbuf_status(const struct strbuf *s);

void strbuf_add(struct strbuf *s, const char *bytes, size_t n);
void strbuf_puts(struct strbuf *s, const char *text);
void strbuf_printf(struct strbuf *s, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Appends a JSON string with its quotes. Valid UTF-8 passes through; bytes below 0x20, the quote
 * and the backslash are escaped; bytes that are not UTF-8 become U+FFFD (one per maximal bad part).
 */
void strbuf_json_string(struct strbuf *s, const char *bytes, size_t n);

/* Appends the shortest decimal that reads back as the same float (that of a subnormal may have more
 * digits than needed); "null" for NaN and infinities. */
void strbuf_json_float(struct strbuf *s, float x);

#endif

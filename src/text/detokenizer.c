/* Bytes of tokens into whole UTF-8 sequences. */
#include "text/detokenizer.h"

#include "base/utf8.h"

#include <string.h>

static const char REPLACEMENT[] = "\xEF\xBF\xBD";

void detokenizer_init(struct detokenizer *d, bool skip_special)
{
    memset(d, 0, sizeof *d);
    d->skip_special = skip_special;
}

/* One more byte: the sequence held so far ends, goes on, or breaks off before it. */
static void feed_byte(struct detokenizer *d, char byte, struct strbuf *out)
{
    d->held[d->n_held++] = byte;
    while (d->n_held > 0) {
        size_t step;
        if (utf8_sequence(d->held, d->n_held, &step)) {
            strbuf_add(out, d->held, step);
        } else if (utf8_incomplete(d->held, d->n_held)) {
            return;
        } else {
            strbuf_puts(out, REPLACEMENT);
        }
        d->n_held = (unsigned char)(d->n_held - step);
        memmove(d->held, d->held + step, d->n_held);
    }
}

struct status detokenizer_feed(struct detokenizer *d, const struct tokenizer *t, int32_t id,
                               struct strbuf *out)
{
    if (d->skip_special && tokenizer_is_special(t, id)) return status_ok();
    size_t n;
    const char *bytes = tokenizer_token_bytes(t, id, &n);
    for (size_t i = 0; i < n; i++) feed_byte(d, bytes[i], out);
    return strbuf_status(out);
}

struct status detokenizer_flush(struct detokenizer *d, struct strbuf *out)
{
    if (d->n_held > 0) strbuf_puts(out, REPLACEMENT); /* a beginning of one sequence: one part */
    d->n_held = 0;
    return strbuf_status(out);
}

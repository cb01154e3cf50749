/* Turns the bytes of tokens into whole UTF-8 sequences. */
#include "text/tokenizer/detokenizer.h"

#include "base/utf8.h"
#include "text/tokenizer/tokenizer_private.h"

#include <string.h>

static const char REPLACEMENT[] = "\xEF\xBF\xBD";

void detokenizer_init(struct detokenizer *d, bool skip_special)
{
    memset(d, 0, sizeof *d);
    d->skip_special = skip_special;
}

void detokenizer_fini(struct detokenizer *d)
{
    strbuf_fini(&d->run);
}

/* Takes one more byte, which completes or continues the held sequence, or shows that the sequence
 * is ill-formed. */
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

/* Appends a piece of the text, without what the decoder strips from the front of the whole text. */
static void detokenizer_put(struct detokenizer *d, const struct tokenizer *t, const char *text,
                            size_t n, struct strbuf *out)
{
    const size_t from = decoder_strip_front(&t->decoder.front, text, n, &d->n_stripped);
    if (from < n) d->n_stripped = t->decoder.front.n_max;
    strbuf_add(out, text + from, n - from);
}

/* Appends the run of byte-fallback tokens, as text or as U+FFFD, and empties it. */
static void put_run(struct detokenizer *d, const struct tokenizer *t, struct strbuf *out)
{
    const struct strbuf *run = &d->run;
    if (d->n_run_valid == run->n) {
        detokenizer_put(d, t, run->data, run->n, out);
    } else {
        for (size_t i = 0; i < run->n; i++) detokenizer_put(d, t, REPLACEMENT, 3, out);
    }
    strbuf_clear(&d->run);
    d->n_run_valid = 0;
    d->run_broken = false;
}

static struct status feed_run(struct detokenizer *d, char byte)
{
    strbuf_add(&d->run, &byte, 1);
    TRY(strbuf_status(&d->run));
    if (d->run_broken) return status_ok();
    const char *rest = d->run.data + d->n_run_valid;
    const size_t n = d->run.n - d->n_run_valid;
    size_t step;
    if (utf8_sequence(rest, n, &step)) {
        d->n_run_valid += step;
    } else {
        d->run_broken = !utf8_incomplete(rest, n);
    }
    return status_ok();
}

/* Appends the first token of a Metaspace decoder without the characters that represent blanks. */
static void put_first(const struct tokenizer *t, const struct token_info *info, struct strbuf *out)
{
    size_t step;
    for (size_t i = 0; i < info->n_key; i += step) {
        utf8_sequence(info->key + i, info->n_key - i, &step);
        if (step == t->decoder.n_blank && memcmp(info->key + i, t->decoder.blank, step) == 0) {
            continue;
        }
        strbuf_add(out, info->key + i, step);
    }
}

struct status detokenizer_feed(struct detokenizer *d, const struct tokenizer *t, int32_t id,
                               struct strbuf *out)
{
    if (d->skip_special && tokenizer_is_special(t, id)) return status_ok();
    size_t n;
    const char *bytes = tokenizer_token_bytes(t, id, &n);
    if (bytes == NULL) return status_ok();
    const struct token_info *info = &t->tokens[id];
    const bool first = !d->begun;
    d->begun = true;
    if (t->decoder.kind == DECODER_BYTE_LEVEL) {
        for (size_t i = 0; i < n; i++) feed_byte(d, bytes[i], out);
    } else if (t->decoder.kind == DECODER_METASPACE) {
        if (first && !t->decoder.keeps_first) {
            put_first(t, info, out);
        } else {
            strbuf_add(out, bytes, n);
        }
    } else if (info->byte >= 0) {
        return feed_run(d, (char)info->byte);
    } else if (first && t->decoder.n_joint > 0 && info->n_key >= t->decoder.n_joint &&
               memcmp(info->key, t->decoder.joint, t->decoder.n_joint) == 0) {
        detokenizer_put(d, t, info->key, info->n_key, out); /* the first token keeps its prefix */
    } else {
        put_run(d, t, out);
        detokenizer_put(d, t, bytes, n, out);
    }
    return strbuf_status(out);
}

const char *detokenizer_pending(const struct detokenizer *d, const struct tokenizer *t, size_t *n)
{
    *n = 0;
    if (d->run.n == 0 || d->n_run_valid != d->run.n) return NULL;
    size_t n_stripped = d->n_stripped;
    const size_t from = decoder_strip_front(&t->decoder.front, d->run.data, d->run.n, &n_stripped);
    *n = d->run.n - from;
    return d->run.data + from;
}

struct status detokenizer_flush(struct detokenizer *d, const struct tokenizer *t,
                                struct strbuf *out)
{
    /* the held bytes begin a single sequence, so they become one U+FFFD */
    if (d->n_held > 0) strbuf_puts(out, REPLACEMENT);
    put_run(d, t, out);
    d->n_held = 0;
    d->n_stripped = 0;
    d->begun = false;
    return strbuf_status(out);
}

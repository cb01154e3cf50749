/* Runs Knuth-Morris-Pratt for every stop string at the same time. */
#include "text/tokenizer/stop.h"

#include "base/mem.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>

struct stop_string {
    char *bytes;       /* owned */
    uint32_t *borders; /* owned, [n]: borders[i] is the length of the longest border of bytes[0..i]:
                          a shorter prefix that is also a suffix */
    size_t n;
    size_t matched; /* length of the longest prefix of the string with which the text ends */
    size_t peeked;  /* the same for the text followed by the peeked bytes */
};

struct stop_matcher {
    struct stop_string *strings; /* owned, [n_strings] */
    size_t n_strings;
    struct strbuf held; /* owned: text that may begin a stop string */
    size_t n_peeked;    /* bytes peeked at since the last stop_feed */
    bool sees_stop;     /* a stop string ends in the peeked bytes, or has ended the text */
    bool stopped;
};

static void fill_borders(struct stop_string *s)
{
    size_t k = 0;
    for (size_t i = 1; i < s->n; i++) {
        while (k > 0 && s->bytes[i] != s->bytes[k]) k = s->borders[k - 1];
        if (s->bytes[i] == s->bytes[k]) k++;
        s->borders[i] = (uint32_t)k;
    }
}

struct status stop_create(const char *const *strings, const size_t *n_bytes, size_t n_strings,
                          struct stop_matcher **out)
{
    struct stop_matcher *m = NULL;
    *out = NULL;
    TRY(mem_alloc(&m, 1, sizeof *m, "stop strings"));
    strbuf_init(&m->held);
    struct status st;
    TRY_GOTO(st, mem_alloc(&m->strings, n_strings, sizeof m->strings[0], "stop strings"), fail);
    for (size_t i = 0; i < n_strings; i++) {
        struct stop_string *s = &m->strings[m->n_strings++];
        if (n_bytes[i] == 0 || n_bytes[i] > UINT32_MAX) {
            st = status_make(STATUS_REQUEST, "stop string %zu has %zu bytes, expected at least 1",
                             i, n_bytes[i]);
            goto fail;
        }
        TRY_GOTO(st, mem_strndup(&s->bytes, strings[i], n_bytes[i]), fail);
        TRY_GOTO(st, mem_alloc(&s->borders, n_bytes[i], sizeof s->borders[0], "stop string"), fail);
        s->n = n_bytes[i];
        fill_borders(s);
    }
    *out = m;
    return status_ok();
fail:
    stop_destroy(&m);
    return st;
}

struct status stop_copy(const struct stop_matcher *m, struct stop_matcher **out)
{
    const char **strings = NULL;
    size_t *n_bytes = NULL;
    *out = NULL;
    struct status st;
    TRY_GOTO(st, mem_alloc(&strings, m->n_strings, sizeof *strings, "stop strings"), done);
    TRY_GOTO(st, mem_alloc(&n_bytes, m->n_strings, sizeof *n_bytes, "stop strings"), done);
    for (size_t i = 0; i < m->n_strings; i++) {
        strings[i] = m->strings[i].bytes;
        n_bytes[i] = m->strings[i].n;
    }
    st = stop_create(strings, n_bytes, m->n_strings, out);
done:
    mem_free(&strings);
    mem_free(&n_bytes);
    return st;
}

void stop_destroy(struct stop_matcher **m)
{
    if (*m == NULL) return;
    for (size_t i = 0; i < (*m)->n_strings; i++) {
        mem_free(&(*m)->strings[i].bytes);
        mem_free(&(*m)->strings[i].borders);
    }
    mem_free(&(*m)->strings);
    strbuf_fini(&(*m)->held);
    mem_free(m);
}

/* Returns the length of the longest prefix of s with which the text ends after one more byte.
 * `matched`, below s->n, is that length before the byte. */
static size_t match_next(const struct stop_string *s, size_t matched, char byte)
{
    assert(matched < s->n);
    while (matched > 0 && s->bytes[matched] != byte) matched = s->borders[matched - 1];
    return s->bytes[matched] == byte ? matched + 1 : matched;
}

/* Advances the match of every string by one byte of text. Returns the length of the longest string
 * that ends at this byte (0: none). *n_keep: how many bytes at the text's end may begin a stop
 * string. */
static size_t stop_advance(struct stop_matcher *m, char byte, size_t *n_keep)
{
    size_t n_match = 0;
    *n_keep = 0;
    for (size_t i = 0; i < m->n_strings; i++) {
        struct stop_string *s = &m->strings[i];
        s->matched = match_next(s, s->matched, byte);
        if (s->matched == s->n && s->n > n_match) n_match = s->n;
        if (s->matched > *n_keep) *n_keep = s->matched;
    }
    return n_match;
}

/* Appends all held bytes except the last n_keep to `out`. */
static void release(struct stop_matcher *m, size_t n_keep, struct strbuf *out)
{
    const size_t n_out = m->held.n - n_keep;
    if (n_out == 0) return;
    strbuf_add(out, m->held.data, n_out);
    memmove(m->held.data, m->held.data + n_out, n_keep);
    m->held.n = n_keep;
}

struct status stop_feed(struct stop_matcher *m, const char *text, size_t n, struct strbuf *out,
                        bool *stopped)
{
    size_t n_keep = m->held.n;
    m->n_peeked = 0;
    m->sees_stop = m->stopped;
    for (size_t i = 0; i < n && !m->stopped; i++) {
        const size_t n_match = stop_advance(m, text[i], &n_keep);
        strbuf_add(&m->held, text + i, 1);
        if (n_match == 0) continue;
        TRY(strbuf_status(&m->held));
        release(m, n_match, out);
        strbuf_clear(&m->held);
        m->stopped = m->sees_stop = true;
    }
    TRY(strbuf_status(&m->held));
    if (!m->stopped) release(m, n_keep, out);
    *stopped = m->stopped;
    return strbuf_status(out);
}

bool stop_peek(struct stop_matcher *m, const char *text, size_t n)
{
    for (size_t k = 0; k < m->n_strings && m->n_peeked == 0; k++) {
        m->strings[k].peeked = m->strings[k].matched;
    }
    for (size_t i = m->n_peeked; i < n && !m->sees_stop; i++) {
        for (size_t k = 0; k < m->n_strings; k++) {
            struct stop_string *s = &m->strings[k];
            s->peeked = match_next(s, s->peeked, text[i]);
            m->sees_stop |= s->peeked == s->n;
        }
        m->n_peeked = i + 1;
    }
    return m->sees_stop;
}

struct status stop_flush(struct stop_matcher *m, struct strbuf *out)
{
    release(m, 0, out);
    return strbuf_status(out);
}

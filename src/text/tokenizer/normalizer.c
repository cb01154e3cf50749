/* Runs the steps one after another, each over the whole text. */
#include "text/tokenizer/normalizer.h"

#include "base/mem.h"
#include "base/utf8.h"

#include <string.h>

enum { FORM_PIECE_BYTES = 4096 };

/* The state of the current step. */
struct work {
    const struct normal_text *in;
    struct strbuf *bytes, *marks;
    bool at_start;
};

static void put_marks(struct work *w, size_t n, bool user)
{
    static const char ZEROS[32], ONES[32] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                             1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    for (size_t i = 0; w->in->user != NULL && i < n; i += sizeof ONES) {
        strbuf_add(w->marks, user ? ONES : ZEROS, n - i < sizeof ONES ? n - i : sizeof ONES);
    }
}

static void normalizer_put(struct work *w, const char *bytes, size_t n, bool user)
{
    strbuf_add(w->bytes, bytes, n);
    put_marks(w, n, user);
}

static void normalizer_copy(struct work *w, size_t start, size_t end)
{
    strbuf_add(w->bytes, w->in->bytes + start, end - start);
    if (w->in->user != NULL) {
        strbuf_add(w->marks, (const char *)w->in->user + start, end - start);
    }
}

static bool any_user(const struct work *w, size_t start, size_t end)
{
    return w->in->user != NULL && end > start && memchr(w->in->user + start, 1, end - start);
}

/* Returns the end of a piece that starts at `from` and can be normalized by itself. An ASCII
 * character composes with nothing before it, so a piece may end before any ASCII character. Without
 * users' marks, pieces are long. With them, a piece is either a run of ASCII characters, without
 * its last one if a character beyond ASCII follows; or at most one ASCII character and all
 * characters beyond ASCII after it, which may compose with it. */
static size_t form_piece(const struct normal_text *in, size_t from)
{
    size_t to = from;
    const char *text = in->bytes;
    if (in->user == NULL && in->n - from > FORM_PIECE_BYTES) {
        to = from + FORM_PIECE_BYTES;
        while (to < in->n && (unsigned char)text[to] >= 0x80) to++;
        return to;
    }
    if (in->user == NULL) return in->n;
    while (to < in->n && (unsigned char)text[to] < 0x80) to++;
    if (to == in->n) return in->n;
    if (to > from + 1) return to - 1;
    while (to < in->n && (unsigned char)text[to] >= 0x80) to++;
    return to;
}

static struct status run_form(struct work *w, enum unicode_form form)
{
    for (size_t from = 0, to; from < w->in->n; from = to) {
        to = form_piece(w->in, from);
        if (unicode_is_normal(form, w->in->bytes + from, to - from)) {
            normalizer_copy(w, from, to);
            continue;
        }
        const size_t before = w->bytes->n;
        TRY(unicode_normalize(form, w->in->bytes + from, to - from, w->bytes));
        put_marks(w, w->bytes->n - before, any_user(w, from, to));
    }
    return status_ok();
}

static void run_lowercase(struct work *w)
{
    size_t same_from = 0, step;
    for (size_t at = 0; at < w->in->n; at += step) {
        uint32_t lower[2];
        const uint32_t c = utf8_decode(w->in->bytes + at, w->in->n - at, &step);
        const size_t n_lower = unicode_lowercase(c, lower);
        if (n_lower == 1 && lower[0] == c) continue;
        normalizer_copy(w, same_from, at);
        for (size_t i = 0; i < n_lower; i++) {
            char bytes[4];
            normalizer_put(w, bytes, utf8_encode(lower[i], bytes), any_user(w, at, at + step));
        }
        same_from = at + step;
    }
    normalizer_copy(w, same_from, w->in->n);
}

static void run_strip(struct work *w, bool left, bool right)
{
    size_t start = 0, end = w->in->n, step;
    while (left && start < end &&
           unicode_is_space(utf8_decode(w->in->bytes + start, end - start, &step))) {
        start += step;
    }
    while (right && end > start) {
        size_t at = end - 1;
        while (at > start && ((unsigned char)w->in->bytes[at] & 0xC0) == 0x80) at--;
        if (!unicode_is_space(utf8_decode(w->in->bytes + at, end - at, &step))) break;
        end = at;
    }
    if (start > 0) w->at_start = false;
    normalizer_copy(w, start, end);
}

static void run_strip_accents(struct work *w)
{
    size_t kept_from = 0, step;
    for (size_t at = 0; at < w->in->n; at += step) {
        if (!unicode_is_mark(utf8_decode(w->in->bytes + at, w->in->n - at, &step))) continue;
        if (at == 0) w->at_start = false;
        normalizer_copy(w, kept_from, at);
        kept_from = at + step;
    }
    normalizer_copy(w, kept_from, w->in->n);
}

/* Appends the character at [at, end) as this step of BERT's normalizer changes it. */
static void put_bert(struct work *w, enum normalizer_kind kind, size_t at, size_t end)
{
    size_t step;
    const uint32_t c = utf8_decode(w->in->bytes + at, end - at, &step);
    const bool user = any_user(w, at, end);
    const bool drops = kind == NORMALIZER_BERT_CLEAN     ? unicode_bert_drops(c)
                       : kind == NORMALIZER_BERT_ACCENTS ? unicode_bert_is_accent(c)
                                                         : false;
    const bool isolates = kind == NORMALIZER_BERT_IDEOGRAPHS && unicode_bert_is_ideograph(c);
    if (drops && at == 0) w->at_start = false;
    if (drops) return;
    if (isolates) normalizer_put(w, " ", 1, user);
    if (kind == NORMALIZER_BERT_CLEAN && unicode_is_space(c))
        normalizer_put(w, " ", 1, user);
    else
        normalizer_copy(w, at, end);
    if (isolates) normalizer_put(w, " ", 1, user);
}

static void run_bert(struct work *w, enum normalizer_kind kind)
{
    for (size_t at = 0, step; at < w->in->n; at += step) {
        utf8_decode(w->in->bytes + at, w->in->n - at, &step);
        put_bert(w, kind, at, at + step);
    }
}

static struct status run_replace(struct work *w, struct replacer *r)
{
    struct pattern_walk walk;
    size_t kept_from = 0, start = 0, end = 0;
    pattern_walk_init(&walk, w->in->bytes, w->in->n);
    for (;;) {
        bool found;
        TRY(replacer_next(r, &walk, &start, &end, &found));
        if (!found) break;
        normalizer_copy(w, kept_from, start);
        normalizer_put(w, r->content, r->n_content, any_user(w, start, end));
        if (start == 0 && end > 0 && r->n_content == 0) w->at_start = false;
        kept_from = end;
    }
    normalizer_copy(w, kept_from, w->in->n);
    return status_ok();
}

/* Appends the replacement of [at, end). False: it has none, and nothing was appended. */
static bool put_precompiled(struct work *w, const struct precompiled *p, size_t at, size_t end)
{
    size_t n = 0;
    const char *text = precompiled_find(p, w->in->bytes + at, end - at, &n);
    if (text == NULL) return false;
    if (at == 0 && n == 0) w->at_start = false;
    normalizer_put(w, text, n, any_user(w, at, end));
    return true;
}

/* If a grapheme cluster of at most PRECOMPILED_KEY_MAX bytes, or a beginning of it, has a
 * replacement, replaces the whole cluster: as in Hugging Face's library, the rest of the cluster is
 * lost. Otherwise looks up each character of the cluster by itself. */
static void run_precompiled(struct work *w, const struct precompiled *p)
{
    for (size_t at = 0, end; at < w->in->n; at = end) {
        end = at + unicode_grapheme_bytes(w->in->bytes + at, w->in->n - at);
        if (end - at <= PRECOMPILED_KEY_MAX && put_precompiled(w, p, at, end)) continue;
        for (size_t c = at, step; c < end; c += step) {
            utf8_decode(w->in->bytes + c, end - c, &step);
            if (!put_precompiled(w, p, c, c + step)) normalizer_copy(w, c, c + step);
        }
    }
}

static struct status normalizer_run_step(struct work *w, struct normalizer_step *s)
{
    switch (s->kind) {
    case NORMALIZER_FORM:
        return run_form(w, s->form);
    case NORMALIZER_LOWERCASE:
        run_lowercase(w);
        return status_ok();
    case NORMALIZER_STRIP:
        run_strip(w, s->left, s->right);
        return status_ok();
    case NORMALIZER_STRIP_ACCENTS:
        run_strip_accents(w);
        return status_ok();
    case NORMALIZER_BERT_CLEAN:
    case NORMALIZER_BERT_ACCENTS:
    case NORMALIZER_BERT_IDEOGRAPHS:
        run_bert(w, s->kind);
        return status_ok();
    case NORMALIZER_PRECOMPILED:
        run_precompiled(w, &s->precompiled);
        return status_ok();
    case NORMALIZER_REPLACE:
        return run_replace(w, &s->replacer);
    case NORMALIZER_PREPEND:
        normalizer_put(w, s->replacer.content, s->replacer.n_content, false);
        normalizer_copy(w, 0, w->in->n);
        return status_ok();
    }
    return status_ok();
}

struct status normalizer_run(struct normalizer *z, struct normal_text *text)
{
    for (size_t i = 0, turn = 0; i < z->n_steps && text->n > 0; i++) {
        struct normalizer_step *s = &z->steps[i];
        if (s->kind == NORMALIZER_FORM && unicode_is_normal(s->form, text->bytes, text->n)) {
            continue;
        }
        const struct normal_text in = *text;
        struct work w = {&in, &z->bytes[turn], &z->marks[turn], in.at_start};
        strbuf_clear(w.bytes);
        strbuf_clear(w.marks);
        TRY(normalizer_run_step(&w, s));
        TRY(strbuf_status(w.bytes));
        TRY(strbuf_status(w.marks));
        text->bytes = w.bytes->data;
        text->n = w.bytes->n;
        if (in.user != NULL) text->user = (const unsigned char *)w.marks->data;
        text->at_start = w.at_start;
        turn = 1 - turn;
    }
    return status_ok();
}

void normalizer_fini(struct normalizer *z)
{
    for (size_t i = 0; i < z->n_steps; i++) {
        replacer_fini(&z->steps[i].replacer);
        precompiled_fini(&z->steps[i].precompiled);
    }
    for (int i = 0; i < 2; i++) {
        strbuf_fini(&z->bytes[i]);
        strbuf_fini(&z->marks[i]);
    }
    memset(z, 0, sizeof *z);
}

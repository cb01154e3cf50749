/* Runs the steps. Each splits the spans of the step before, or copies them into a rewritten
 * text. */
#include "text/tokenizer/pretokenizer.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "text/unicode/unicode.h"

#include <string.h>

static struct status span_add(struct span_list *l, size_t start, size_t end)
{
    if (end == start) return status_ok();
    if (l->n == l->capacity) {
        const size_t capacity = l->capacity < 64 ? 64 : l->capacity * 2;
        TRY(mem_grow(&l->spans, l->n, capacity, sizeof l->spans[0], "pieces of a text"));
        l->capacity = capacity;
    }
    l->spans[l->n++] = (struct span){.start = start, .n = end - start};
    return status_ok();
}

/* A split in progress: the last piece is not yet in the list, because it may grow. */
struct splitting {
    struct span_list *out;
    enum split_behavior behavior;
    size_t open_start, open_end; /* the piece that may still grow */
    bool open;
    bool open_is_delimiter;
};

static struct status close_piece(struct splitting *s)
{
    if (s->open) TRY(span_add(s->out, s->open_start, s->open_end));
    s->open = false;
    return status_ok();
}

/* True when the next part joins the open piece. */
static bool joins(const struct splitting *s, bool delimiter)
{
    switch (s->behavior) {
    case SPLIT_CONTIGUOUS:
        return delimiter == s->open_is_delimiter;
    case SPLIT_MERGED_WITH_PREVIOUS:
        return delimiter && !s->open_is_delimiter;
    case SPLIT_MERGED_WITH_NEXT:
        return !delimiter && s->open_is_delimiter;
    default:
        return false;
    }
}

/* Takes the next part of the text: a delimiter, or the text before, between or after delimiters. */
static struct status take_part(struct splitting *s, size_t start, size_t end, bool delimiter)
{
    if (s->behavior == SPLIT_REMOVED && delimiter) return status_ok();
    if (s->open && joins(s, delimiter)) {
        s->open_end = end;
    } else {
        TRY(close_piece(s));
        s->open = true;
        s->open_start = start;
        s->open_end = end;
    }
    s->open_is_delimiter = delimiter;
    return status_ok();
}

static struct status split_span(struct pretoken_step *step, const char *text, struct span in,
                                struct span_list *out)
{
    struct splitting s = {.out = out, .behavior = step->behavior};
    struct pattern_walk walk;
    pattern_walk_init(&walk, text + in.start, in.n);
    size_t at = 0, start = 0, end = 0;
    for (;;) {
        bool found;
        TRY(pattern_next(step->pattern, &walk, &start, &end, &found));
        if (!found) break;
        if (at != start) TRY(take_part(&s, in.start + at, in.start + start, step->invert));
        TRY(take_part(&s, in.start + start, in.start + end, !step->invert));
        at = end;
    }
    if (at != in.n) TRY(take_part(&s, in.start + at, in.start + in.n, step->invert));
    return close_piece(&s);
}

/* Cuts a span as BERT does: at whitespace, which it leaves out, and around each punctuation
 * character. */
static struct status split_bert(const char *text, struct span in, struct span_list *out)
{
    size_t from = in.start, step;
    for (size_t at = in.start; at < in.start + in.n; at += step) {
        const uint32_t c = utf8_decode(text + at, in.start + in.n - at, &step);
        const bool is_mark = unicode_bert_is_punctuation(c);
        if (!is_mark && !unicode_is_space(c)) continue;
        TRY(span_add(out, from, at));
        if (is_mark) TRY(span_add(out, at, at + step));
        from = at + step;
    }
    return span_add(out, from, in.start + in.n);
}

/* Appends n bytes of text, in which Metaspace's character replaces each blank. */
static void replace_blanks(const char *text, size_t n, const struct json_metaspace *m,
                           struct strbuf *to)
{
    for (size_t i = 0; i < n;) {
        const char *blank = memchr(text + i, ' ', n - i);
        const size_t end = blank != NULL ? (size_t)(blank - text) : n;
        strbuf_add(to, text + i, end - i);
        if (blank != NULL) strbuf_add(to, m->blank, m->n_blank);
        i = end + 1;
    }
}

/* True when the step puts a blank, or Metaspace's character, before this span of n bytes. */
static bool prepends(const struct pretoken_step *step, const char *text, size_t n, bool first)
{
    if (text[0] == ' ') return false;
    if (step->kind == PRETOKEN_BLANK) return true;
    const struct json_metaspace *m = &step->metaspace;
    if (n >= m->n_blank && memcmp(text, m->blank, m->n_blank) == 0) return false;
    return m->prepend == JSON_PREPEND_ALWAYS || (m->prepend == JSON_PREPEND_FIRST && first);
}

/* Copies the spans into one text, with blanks added or replaced by the step. */
static struct status rewrite(const struct pretoken_step *step, const char *text, bool at_start,
                             const struct span_list *in, struct strbuf *to, struct span_list *out)
{
    static const struct json_metaspace BLANK = {.blank = " ", .n_blank = 1};
    const struct json_metaspace *m = step->kind == PRETOKEN_BLANK ? &BLANK : &step->metaspace;
    for (size_t i = 0; i < in->n; i++) {
        const size_t start = to->n;
        const struct span s = in->spans[i];
        if (prepends(step, text + s.start, s.n, at_start && s.start == 0)) {
            strbuf_add(to, m->blank, m->n_blank);
        }
        if (step->kind == PRETOKEN_BLANK) {
            strbuf_add(to, text + s.start, s.n);
        } else {
            replace_blanks(text + s.start, s.n, m, to);
        }
        TRY(strbuf_status(to));
        TRY(span_add(out, start, to->n));
    }
    return status_ok();
}

struct status pretokenizer_cut(struct pretokenizer *p, const char *text, size_t n, bool at_start,
                               const char **cut)
{
    *cut = text;
    p->spans.n = 0;
    TRY(span_add(&p->spans, 0, n));
    for (size_t i = 0; i < p->n_steps; i++) {
        const struct span_list in = p->spans;
        p->spans = p->before;
        p->before = in;
        p->spans.n = 0;
        const enum pretoken_kind kind = p->steps[i].kind;
        const bool rewrites = kind == PRETOKEN_BLANK || kind == PRETOKEN_METASPACE;
        if (rewrites) { /* at most one step rewrites the text */
            strbuf_clear(&p->text);
            TRY(rewrite(&p->steps[i], *cut, at_start, &in, &p->text, &p->spans));
            *cut = p->text.data != NULL ? p->text.data : text;
            continue;
        }
        for (size_t k = 0; k < in.n; k++) {
            TRY(kind == PRETOKEN_BERT ? split_bert(*cut, in.spans[k], &p->spans)
                                      : split_span(&p->steps[i], *cut, in.spans[k], &p->spans));
        }
    }
    return status_ok();
}

void pretokenizer_fini(struct pretokenizer *p)
{
    for (size_t i = 0; i < p->n_steps; i++) pattern_destroy(&p->steps[i].pattern);
    mem_free(&p->spans.spans);
    mem_free(&p->before.spans);
    strbuf_fini(&p->text);
    memset(p, 0, sizeof *p);
}

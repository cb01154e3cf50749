/* Python's string operations: characters, case, blanks, finding, replacing. Each keeps the marks of
 * the bytes that came from a user. */
#include "text/chat/jinja_value.h"

#include "base/utf8.h"
#include "text/chat/jinja_case.h"
#include "text/unicode/unicode.h"

#include <string.h>
#include <utf8proc.h>

bool jspace(uint32_t c)
{
    return unicode_is_space(c) || (c >= 0x1C && c <= 0x1F);
}

size_t jchars(const struct jtext *t)
{
    size_t n = 0;
    for (size_t i = 0; i < t->n; i++) n += ((unsigned char)t->p[i] & 0xC0) != 0x80;
    return n;
}

size_t jchar_at(const struct jtext *t, size_t i_char)
{
    size_t at = 0;
    for (; at < t->n; at++) {
        if (((unsigned char)t->p[at] & 0xC0) == 0x80) continue;
        if (i_char-- == 0) return at;
    }
    return at;
}

size_t jfind(const struct jtext *t, size_t from, const struct jtext *part)
{
    if (from > t->n || part->n > t->n - from) return SIZE_MAX;
    if (part->n == 0) return from;
    const char *p = memmem(t->p + from, t->n - from, part->p, part->n);
    return p == NULL ? SIZE_MAX : (size_t)(p - t->p);
}

/* Appends c in the case `how` (not CAPITALIZE or WORDS), with the mark of c's bytes. */
static bool add_case(struct jbuild *b, uint32_t c, enum jcase how, bool user)
{
    uint32_t to[JINJA_CASE_MAX];
    const size_t n = jinja_case_map(c,
                                    how == JCASE_UPPER   ? JINJA_CASE_UPPER
                                    : how == JCASE_TITLE ? JINJA_CASE_TITLE
                                                         : JINJA_CASE_LOWER,
                                    to);
    char bytes[4 * JINJA_CASE_MAX];
    size_t at = 0;
    for (size_t i = 0; i < n; i++) at += utf8_encode(to[i], bytes + at);
    static const unsigned char ONES[4 * JINJA_CASE_MAX] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    return jbuild_add(b, bytes, user ? ONES : NULL, at);
}

/* True when the sigma t[at, end) is final (Unicode, table 3-17): the nearest character before it
 * that is not case-ignorable is cased, and the nearest such character after it is not. Characters
 * before `low` do not count. */
static bool final_sigma(const struct jtext *t, size_t low, size_t at, size_t end)
{
    size_t step, i = at;
    bool before = false;
    while (i > low && !before) {
        do i--;
        while (i > low && ((unsigned char)t->p[i] & 0xC0) == 0x80);
        const uint32_t c = utf8_decode(t->p + i, t->n - i, &step);
        if (jinja_case_ignorable(c)) continue;
        if (!jinja_cased(c)) return false;
        before = true;
    }
    if (!before) return false;
    for (i = end; i < t->n; i += step) {
        const uint32_t c = utf8_decode(t->p + i, t->n - i, &step);
        if (!jinja_case_ignorable(c)) return !jinja_cased(c);
    }
    return true;
}

/* True when the filter `title` begins a new word after c, which is one of - ( { [ < or a blank. */
static bool breaks_word(uint32_t c)
{
    return c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || jspace(c);
}

bool jcased(struct jrun *r, const struct jtext *t, enum jcase how, struct jvalue *out)
{
    struct jbuild b;
    jbuild_init(&b, r);
    bool start = true; /* the next character becomes a capital */
    size_t low = 0;    /* final_sigma looks back no further than this byte */
    size_t step;
    if (!jsteps(r, t->n / 4)) return false;
    for (size_t i = 0; i < t->n; i += step) {
        const uint32_t c = utf8_decode(t->p + i, t->n - i, &step);
        enum jcase one = how;
        if (how == JCASE_WORDS) one = start ? JCASE_UPPER : JCASE_LOWER;
        if (how == JCASE_TITLE || how == JCASE_CAPITALIZE) one = start ? JCASE_TITLE : JCASE_LOWER;
        const bool user = jtext_user(t, i);
        const bool ok = one == JCASE_LOWER && c == 0x3A3 && final_sigma(t, low, i, i + step)
                            ? jbuild_puts(&b, "\xCF\x82", user)
                            : add_case(&b, c, one, user);
        if (!ok) return false;
        if (start && how == JCASE_WORDS) low = i + step;
        start = how == JCASE_TITLE ? !jinja_cased(c) : how == JCASE_WORDS ? breaks_word(c) : false;
    }
    return jbuild_end(&b, out);
}

static bool in_set(uint32_t c, const struct jtext *chars)
{
    if (chars == NULL) return jspace(c);
    size_t step;
    for (size_t i = 0; i < chars->n; i += step) {
        if (utf8_decode(chars->p + i, chars->n - i, &step) == c) return true;
    }
    return false;
}

bool jstrip(struct jrun *r, const struct jtext *t, const struct jtext *chars, bool left, bool right,
            struct jvalue *out)
{
    size_t from = 0, to = t->n, step;
    while (left && from < to && in_set(utf8_decode(t->p + from, to - from, &step), chars)) {
        from += step;
    }
    while (right && to > from) {
        size_t at = to - 1;
        while (at > from && ((unsigned char)t->p[at] & 0xC0) == 0x80) at--;
        if (!in_set(utf8_decode(t->p + at, to - at, &step), chars)) break;
        to = at;
    }
    const size_t cut = t->n - (to - from);
    if (!jsteps(r, chars == NULL ? cut / 16 : cut / 16 * (1 + chars->n))) return false;
    return jtext_cut(r, t, from, to, out);
}

/* Replaces the empty string as Python does: inserts `new` before each character and at the end, at
 * most `count` times (negative: no limit). */
static bool weave(struct jbuild *b, const struct jtext *t, const struct jtext *new, int64_t count)
{
    size_t at = 0;
    while (count != 0) {
        if (!jbuild_text(b, new) || !jsteps(b->r, 1)) return false;
        count -= count > 0;
        if (at == t->n) return true;
        size_t end = at + 1;
        while (end < t->n && ((unsigned char)t->p[end] & 0xC0) == 0x80) end++;
        if (!jbuild_cut(b, t, at, end)) return false;
        at = end;
    }
    return jbuild_cut(b, t, at, t->n);
}

bool jreplace(struct jrun *r, const struct jtext *t, const struct jtext *old,
              const struct jtext *new, int64_t count, struct jvalue *out)
{
    struct jbuild b;
    jbuild_init(&b, r);
    if (old->n == 0) return weave(&b, t, new, count) && jbuild_end(&b, out);
    if (!jsteps(r, t->n / 16)) return false;
    size_t at = 0;
    while (count != 0) {
        const size_t found = jfind(t, at, old);
        if (found == SIZE_MAX) break;
        if (!jsteps(r, 1) || !jbuild_cut(&b, t, at, found) || !jbuild_text(&b, new)) return false;
        at = found + old->n;
        count -= count > 0;
    }
    return jbuild_cut(&b, t, at, t->n) && jbuild_end(&b, out);
}

/* Returns the length of the line end at `at`; 0: no line end. */
static size_t line_end(const struct jtext *t, size_t at)
{
    size_t step;
    const uint32_t c = utf8_decode(t->p + at, t->n - at, &step);
    if (c == '\r' && at + 1 < t->n && t->p[at + 1] == '\n') return 2;
    const bool ends = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
                      c == 0x2028 || c == 0x2029;
    return ends ? step : 0;
}

bool jsplit_lines(struct jrun *r, const struct jtext *t, bool keep_ends, struct jvalue *out)
{
    size_t n = 0, start = 0;
    struct jvalue *v = NULL;
    for (int pass = 0; pass < 2; pass++) { /* the first pass counts, the second splits */
        n = start = 0;
        for (size_t i = 0; i < t->n;) {
            const size_t end = line_end(t, i);
            if (end > 0) {
                if (pass == 1 && !jtext_cut(r, t, start, keep_ends ? i + end : i, &v[n]))
                    return false;
                n++;
                start = i + end;
            }
            i += end > 0 ? end : 1;
        }
        const bool rest = start < t->n;
        if (pass == 0 && !jseq_new(r, JV_LIST, n + rest, &v, out)) return false;
        if (pass == 1 && rest && !jtext_cut(r, t, start, t->n, &v[n])) return false;
    }
    return jsteps(r, t->n / 8);
}

/* Translates Oniguruma's notation into PCRE2's, construct by construct. Refuses constructs that the
 * two libraries read differently, if it has no translation, and those that no tokenizer needs. */
#include "text/grammar/pattern.h"

#include "base/utf8.h"
#include "text/unicode/unicode.h"

#include <ctype.h>
#include <string.h>

enum { DEPTH_MAX = 100 };

struct translation {
    const char *text;
    size_t n;
    size_t at;
    const char *what;
    struct strbuf *out;
    int depth;        /* open groups */
    int caseless_at;  /* depth of the outermost open (?i: group; 0: no such group is open */
    char last_letter; /* the ASCII letter just before, in lower case; set only in a (?i: group; NUL:
                         none */
    bool in_intersection;
};

static struct status pattern_translate_refuse(const struct translation *t, const char *construct)
{
    return status_make(STATUS_INPUT, "%s: the pattern has %s at byte %zu, which is not supported",
                       t->what, construct, t->at);
}

static char peek(const struct translation *t, size_t ahead)
{
    return t->at + ahead < t->n ? t->text[t->at + ahead] : '\0';
}

static void pattern_translate_copy(struct translation *t, size_t n)
{
    strbuf_add(t->out, t->text + t->at, n);
    t->at += n;
}

/* Appends the inside of a class, in brackets unless a class is already open. */
static void emit_class(struct translation *t, const char *inside, bool in_class)
{
    if (!in_class) strbuf_puts(t->out, "[");
    strbuf_puts(t->out, inside);
    if (!in_class) strbuf_puts(t->out, "]");
}

/* Translates \p{Name} or \P{Name}; t->at is at the backslash. */
static struct status property(struct translation *t, bool in_class)
{
    const bool negated = peek(t, 1) == 'P';
    if (negated && in_class) return pattern_translate_refuse(t, "\\P inside a class");
    const char *name = t->text + t->at + 3;
    const char *close = t->at + 3 < t->n ? memchr(name, '}', t->n - t->at - 3) : NULL;
    if (peek(t, 2) != '{' || close == NULL)
        return pattern_translate_refuse(t, "a \\p without {name}");
    const size_t n_name = (size_t)(close - name);
    if (!in_class) strbuf_puts(t->out, negated ? "[^" : "[");
    if (!unicode_category_class(name, n_name, t->out)) {
        return pattern_translate_refuse(
            t, "a \\p of something that is neither a general category nor Han");
    }
    if (!in_class) strbuf_puts(t->out, "]");
    t->at += 3 + n_name + 1;
    return status_ok();
}

/* Translates \x{H..} and \uHHHH; t->at is at the backslash. */
static struct status code_point(struct translation *t)
{
    const bool braces = peek(t, 1) == 'x' && peek(t, 2) == '{';
    if (peek(t, 1) == 'x' && !braces) return pattern_translate_refuse(t, "\\x without braces");
    const size_t from = braces ? 3 : 2;
    size_t n = 0;
    while (n < (braces ? 6u : 4u) && isxdigit((unsigned char)peek(t, from + n))) n++;
    if (n == 0 || (braces ? peek(t, from + n) != '}' : n != 4)) {
        return pattern_translate_refuse(t, "a bad code point");
    }
    strbuf_printf(t->out, "\\x{%.*s}", (int)n, t->text + t->at + from);
    t->at += from + n + (braces ? 1 : 0);
    return status_ok();
}

static struct status escape(struct translation *t, bool in_class)
{
    const char c = peek(t, 1);
    switch (c) {
    case 's':
    case 'S':
        emit_class(t, c == 's' ? UNICODE_SPACE : UNICODE_NOT_SPACE, in_class);
        break;
    case 'd':
    case 'D':
        if (in_class && c == 'D') return pattern_translate_refuse(t, "\\D inside a class");
        if (!in_class) strbuf_puts(t->out, c == 'd' ? "[" : "[^");
        unicode_category_class("Nd", 2, t->out);
        if (!in_class) strbuf_puts(t->out, "]");
        break;
    case 'p':
    case 'P':
        return property(t, in_class);
    case 'x':
    case 'u':
        return code_point(t);
    case 'v': /* Oniguruma: the vertical tab alone; PCRE2: any vertical whitespace */
        strbuf_puts(t->out, "\\x{b}");
        break;
    case 'n':
    case 'r':
    case 't':
    case 'f':
        pattern_translate_copy(t, 2);
        return status_ok();
    default:
        if (!ispunct((unsigned char)c))
            return pattern_translate_refuse(t, "an escape other than \\s \\d \\p \\x");
        pattern_translate_copy(t, 2);
        return status_ok();
    }
    t->at += 2;
    return status_ok();
}

/* True when t->at is at an escape that stands for a set, which cannot be the end of a range. */
static bool at_set(const struct translation *t)
{
    return peek(t, 0) == '\\' && peek(t, 1) != '\0' && strchr("sSdDpP", peek(t, 1)) != NULL;
}

static struct status class_item(struct translation *t, bool first)
{
    const char c = peek(t, 0);
    if (c == '[') return pattern_translate_refuse(t, "a class inside a class");
    if (c == '\\') {
        const bool set = at_set(t);
        TRY(escape(t, true));
        if (set && peek(t, 0) == '-' && peek(t, 1) != ']')
            return pattern_translate_refuse(t, "a range of a set");
        return status_ok();
    }
    pattern_translate_copy(t, 1);
    if (c == '-' && !first && at_set(t)) return pattern_translate_refuse(t, "a range of a set");
    return status_ok();
}

static struct status char_class(struct translation *t);

/* Translates [A&&[B]], which PCRE2 does not have, into (?:(?=[B])[A]). t->at is at &&; the output
 * of the class begins at t->out->data[from]. */
static struct status intersection(struct translation *t, size_t from)
{
    struct strbuf left;
    if (peek(t, 2) != '[' || t->out->data[from + 1] == '^' || t->out->n == from + 1 ||
        t->in_intersection) {
        return pattern_translate_refuse(t, "an intersection that is not [class&&[class]]");
    }
    strbuf_init(&left);
    strbuf_add(&left, t->out->data + from, t->out->n - from);
    t->out->n = from;
    t->at += 2;
    strbuf_puts(t->out, "(?:(?=");
    t->in_intersection = true;
    struct status st = char_class(t);
    t->in_intersection = false;
    if (!status_failed(&st) && peek(t, 0) != ']')
        st = pattern_translate_refuse(t, "something behind [class&&[class]");
    if (!status_failed(&st)) st = strbuf_status(&left);
    strbuf_puts(t->out, ")");
    strbuf_add(t->out, left.data, left.n);
    strbuf_puts(t->out, "])");
    strbuf_fini(&left);
    t->at++;
    return st;
}

static struct status char_class(struct translation *t)
{
    const size_t from = t->out->n;
    pattern_translate_copy(t, 1);
    if (peek(t, 0) == '^') pattern_translate_copy(t, 1);
    if (peek(t, 0) == ']') return pattern_translate_refuse(t, "a class that begins with ]");
    bool first = true;
    while (t->at < t->n && peek(t, 0) != ']') {
        if (peek(t, 0) == '&' && peek(t, 1) == '&') {
            TRY(strbuf_status(t->out));
            return intersection(t, from);
        }
        TRY(class_item(t, first));
        first = false;
    }
    if (t->at >= t->n) return pattern_translate_refuse(t, "a class that does not end");
    pattern_translate_copy(t, 1);
    return status_ok();
}

static struct status group_open(struct translation *t)
{
    static const char *const OPENERS[] = {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    if (++t->depth > DEPTH_MAX) return pattern_translate_refuse(t, "too many groups in each other");
    if (peek(t, 1) == '*') return pattern_translate_refuse(t, "(*");
    if (peek(t, 1) != '?') {
        pattern_translate_copy(t, 1);
        return status_ok();
    }
    for (size_t i = 0; i < sizeof OPENERS / sizeof OPENERS[0]; i++) {
        const size_t n = strlen(OPENERS[i]);
        if (t->n - t->at < n || memcmp(t->text + t->at, OPENERS[i], n) != 0) continue;
        if (i == 1 && t->caseless_at == 0) t->caseless_at = t->depth;
        pattern_translate_copy(t, n);
        return status_ok();
    }
    return pattern_translate_refuse(t, "a group of an unknown kind");
}

/* Translates {n}, {n,} or {n,m}, greedy or lazy. Refuses possessive intervals and {n}?, which
 * Oniguruma and PCRE2 read differently. */
static struct status interval(struct translation *t)
{
    size_t i = 1;
    while (isdigit((unsigned char)peek(t, i))) i++;
    bool ok = i > 1;
    const bool range = peek(t, i) == ',';
    if (range) i++;
    while (isdigit((unsigned char)peek(t, i))) i++;
    ok = ok && peek(t, i) == '}' && i < 16;
    const char after = peek(t, i + 1);
    if (!ok || after == '+' || (after == '?' && !range))
        return pattern_translate_refuse(t, "an unclear {interval}");
    pattern_translate_copy(t, i + 1);
    return status_ok();
}

/* Translates a literal in a (?i: group. In such a group Oniguruma also matches ligatures and other
 * single characters for several letters; PCRE2 does not. So refuses pairs of ASCII letters for
 * which there is such a character, and all characters beyond ASCII. */
static struct status caseless_literal(struct translation *t, char c)
{
    static const char *const FOLDS[] = {"ff", "fi", "fl", "ss", "st"};
    if ((unsigned char)c >= 0x80)
        return pattern_translate_refuse(t, "a caseless letter beyond ASCII");
    const char lower = (char)tolower((unsigned char)c);
    for (size_t i = 0; i < sizeof FOLDS / sizeof FOLDS[0]; i++) {
        if (t->last_letter == FOLDS[i][0] && lower == FOLDS[i][1]) {
            return pattern_translate_refuse(t, "a caseless pair of letters that has a ligature");
        }
    }
    t->last_letter = lower;
    pattern_translate_copy(t, 1);
    return status_ok();
}

static struct status construct(struct translation *t)
{
    const char c = peek(t, 0);
    if (t->caseless_at > 0 && (isalpha((unsigned char)c) || (unsigned char)c >= 0x80)) {
        return caseless_literal(t, c);
    }
    t->last_letter = '\0';
    switch (c) {
    case '\\':
        if (t->at + 1 >= t->n) return pattern_translate_refuse(t, "a backslash at its end");
        return escape(t, false);
    case '[':
        return char_class(t);
    case '(':
        return group_open(t);
    case ')':
        if (t->depth == t->caseless_at) t->caseless_at = 0;
        if (--t->depth < 0) return pattern_translate_refuse(t, "a ) too many");
        break;
    case '{':
        return interval(t);
    case ']':
    case '}':
        return pattern_translate_refuse(t, "an unescaped bracket");
    case '^':
    case '$':
        return pattern_translate_refuse(t, "a line anchor");
    case '\0':
        return pattern_translate_refuse(t, "a NUL");
    default:
        break;
    }
    pattern_translate_copy(t, 1);
    return status_ok();
}

struct status pattern_translate(const char *notation, size_t n, const char *what,
                                struct strbuf *out)
{
    struct translation t = {.text = notation, .n = n, .what = what, .out = out};
    size_t bad_at;
    if (!utf8_valid(notation, n, &bad_at)) {
        return status_make(STATUS_INPUT, "%s: the pattern is not UTF-8 at byte %zu", what, bad_at);
    }
    while (t.at < n) TRY(construct(&t));
    if (t.depth != 0) return pattern_translate_refuse(&t, "a group that does not end");
    return strbuf_status(out);
}

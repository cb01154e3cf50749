/* Parses a regular expression and adds edges as it reads. A part that is repeated n times is parsed
 * n times. */
#include "text/grammar/regex.h"

#include "base/utf8.h"

#include <string.h>

enum { DEPTH_MAX = 64, COUNT_MAX = 65536, CLASS_RANGES_MAX = 256, CODE_POINT_MAX = 0x10FFFF };

struct parser {
    struct nfa *n;
    const char *text;
    size_t n_text, at;
    struct regex_options options;
    int depth;
};

/* A set of code points. After regex_settle the ranges ascend and do not touch. */
struct set {
    struct char_range ranges[CLASS_RANGES_MAX + 8];
    size_t n;
};

static struct status regex_bad(const struct parser *p, const char *what)
{
    return status_make(STATUS_REQUEST, "at byte %zu of the pattern: %s", p->at, what);
}

static bool ends(const struct parser *p)
{
    return p->at >= p->n_text;
}

static bool sees(const struct parser *p, char c)
{
    return !ends(p) && p->text[p->at] == c;
}

static bool takes(struct parser *p, char c)
{
    if (!sees(p, c)) return false;
    p->at++;
    return true;
}

static struct status add_range(const struct parser *p, struct set *s, uint32_t first, uint32_t last)
{
    if (s->n >= CLASS_RANGES_MAX) return regex_bad(p, "a class has too many parts");
    s->ranges[s->n++] = (struct char_range){first, last};
    return status_ok();
}

static void regex_settle(struct set *s)
{
    size_t n = 0;
    for (size_t i = 1; i < s->n; i++) {
        const struct char_range r = s->ranges[i];
        size_t k = i;
        for (; k > 0 && s->ranges[k - 1].first > r.first; k--) s->ranges[k] = s->ranges[k - 1];
        s->ranges[k] = r;
    }
    for (size_t i = 0; i < s->n; i++) {
        const struct char_range r = s->ranges[i];
        if (n > 0 && r.first <= s->ranges[n - 1].last + 1) {
            if (r.last > s->ranges[n - 1].last) s->ranges[n - 1].last = r.last;
        } else {
            s->ranges[n++] = r;
        }
    }
    s->n = n;
}

/* Complements a settled set. */
static void invert(struct set *s)
{
    const struct set was = *s;
    uint32_t from = 0;
    s->n = 0;
    for (size_t i = 0; i < was.n; i++) {
        if (was.ranges[i].first > from)
            s->ranges[s->n++] = (struct char_range){from, was.ranges[i].first - 1};
        from = was.ranges[i].last + 1;
    }
    if (from <= CODE_POINT_MAX) s->ranges[s->n++] = (struct char_range){from, CODE_POINT_MAX};
}

/* Removes the characters that a JSON string must escape (RFC 8259, section 7). */
static void leave_out_escapes(struct set *s)
{
    invert(s);
    s->ranges[s->n++] = (struct char_range){0, 0x1F};
    s->ranges[s->n++] = (struct char_range){'"', '"'};
    s->ranges[s->n++] = (struct char_range){'\\', '\\'};
    regex_settle(s);
    invert(s);
}

static uint32_t add_set(struct parser *p, uint32_t from, struct set *s)
{
    regex_settle(s);
    if (p->options.in_string) leave_out_escapes(s);
    return nfa_chars(p->n, from, s->ranges, s->n);
}

static uint32_t add_anything(struct parser *p, uint32_t from)
{
    const uint32_t loop = nfa_state(p->n), out = nfa_state(p->n);
    struct set all = {.n = 1, .ranges = {{0, CODE_POINT_MAX}}};
    nfa_empty(p->n, from, loop);
    nfa_empty(p->n, add_set(p, loop, &all), loop);
    nfa_empty(p->n, loop, out);
    return out;
}

static int regex_hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static struct status read_hex(struct parser *p, int n_digits, uint32_t *out)
{
    *out = 0;
    for (int i = 0; i < n_digits; i++) {
        const int digit = ends(p) ? -1 : regex_hex_digit(p->text[p->at]);
        if (digit < 0) return regex_bad(p, "expected a hexadecimal digit");
        *out = *out * 16 + (uint32_t)digit;
        p->at++;
    }
    return status_ok();
}

/* Adds the characters of \d, \w or \s, or of their complements \D, \W, \S, to s. */
static struct status regex_add_kind(const struct parser *p, char kind, struct set *s)
{
    static const struct char_range DIGITS[] = {{'0', '9'}};
    static const struct char_range WORDS[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    static const struct char_range BLANKS[] = {{'\t', '\r'}, {' ', ' '}};
    const char lower = (char)(kind | 0x20);
    const struct char_range *from = lower == 'd' ? DIGITS : lower == 'w' ? WORDS : BLANKS;
    struct set own = {.n = lower == 'd' ? 1 : lower == 'w' ? 4 : 2};
    memcpy(own.ranges, from, own.n * sizeof *from);
    if (kind != lower) invert(&own);
    for (size_t i = 0; i < own.n; i++)
        TRY(add_range(p, s, own.ranges[i].first, own.ranges[i].last));
    return status_ok();
}

static struct status read_char(struct parser *p, uint32_t *out)
{
    size_t step;
    if (ends(p)) return regex_bad(p, "expected a character");
    if (!utf8_sequence(p->text + p->at, p->n_text - p->at, &step)) return regex_bad(p, "bad UTF-8");
    *out = utf8_decode(p->text + p->at, p->n_text - p->at, &step);
    p->at += step;
    return status_ok();
}

/* Reads an escape, starting after its backslash. A set such as \d is added to s (*is_kind is then
 * true); a single character is put in *out. */
static struct status read_escape(struct parser *p, struct set *s, bool *is_kind, uint32_t *out)
{
    static const char NAMES[] = "nrtfv0", MEANT[] = "\n\r\t\f\v";
    if (ends(p)) return regex_bad(p, "nothing follows the backslash");
    const char c = p->text[p->at];
    const char *name = strchr(NAMES, c);
    *is_kind = c != '\0' && strchr("dDwWsS", c) != NULL;
    if (*is_kind) {
        p->at++;
        return regex_add_kind(p, c, s);
    }
    if (c == 'x' || c == 'u') {
        p->at++;
        TRY(read_hex(p, c == 'x' ? 2 : 4, out));
        if (*out < 0xD800 || *out > 0xDFFF) return status_ok();
        return regex_bad(p, "a surrogate is no character");
    }
    if (c != '\0' && name != NULL) {
        p->at++;
        *out = (uint32_t)MEANT[name - NAMES];
        return status_ok();
    }
    if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        return regex_bad(p, "this escape is not supported");
    return read_char(p, out);
}

/* Reads one part of a class into s: a set such as \d, a character or a range. */
static struct status regex_read_part(struct parser *p, struct set *s)
{
    uint32_t first, last;
    bool is_kind = false;
    if (takes(p, '\\'))
        TRY(read_escape(p, s, &is_kind, &first));
    else
        TRY(read_char(p, &first));
    if (is_kind) return status_ok();
    last = first;
    if (sees(p, '-') && p->at + 1 < p->n_text && p->text[p->at + 1] != ']') {
        p->at++;
        if (takes(p, '\\'))
            TRY(read_escape(p, s, &is_kind, &last));
        else
            TRY(read_char(p, &last));
        if (is_kind) return regex_bad(p, "a range of a class ends with a set");
        if (last < first) return regex_bad(p, "a range of a class runs backwards");
    }
    return add_range(p, s, first, last);
}

static struct status add_class(struct parser *p, uint32_t from, uint32_t *end)
{
    struct set s = {.n = 0};
    const bool is_inverted = takes(p, '^');
    if (sees(p, ']')) return regex_bad(p, "an empty class");
    while (!sees(p, ']')) {
        if (ends(p)) return regex_bad(p, "a class is not closed");
        TRY(regex_read_part(p, &s));
    }
    p->at++;
    regex_settle(&s);
    if (is_inverted) invert(&s);
    *end = add_set(p, from, &s);
    return status_ok();
}

static struct status add_alternatives(struct parser *p, uint32_t from, uint32_t *end);

static struct status add_parentheses(struct parser *p, uint32_t from, uint32_t *end)
{
    if (takes(p, '?') && !takes(p, ':'))
        return regex_bad(p,
                         "only groups ( ) and (?: ) are supported, no look-around, names or flags");
    if (++p->depth > DEPTH_MAX) return regex_bad(p, "groups are nested too deeply");
    TRY(add_alternatives(p, from, end));
    p->depth--;
    return takes(p, ')') ? status_ok() : regex_bad(p, "a group is not closed");
}

/* Reads an atom: a group, a class, a dot, an escape or a character. */
static struct status add_atom(struct parser *p, uint32_t from, uint32_t *end)
{
    struct set s = {.n = 0};
    uint32_t c;
    bool is_kind = false;
    if (takes(p, '(')) return add_parentheses(p, from, end);
    if (takes(p, '[')) return add_class(p, from, end);
    if (takes(p, '.')) {
        TRY(add_range(p, &s, 0, '\n' - 1));
        TRY(add_range(p, &s, '\n' + 1, CODE_POINT_MAX));
    } else if (takes(p, '\\')) {
        TRY(read_escape(p, &s, &is_kind, &c));
        if (!is_kind) TRY(add_range(p, &s, c, c));
    } else if (!ends(p) && p->text[p->at] != '\0' && strchr("*+?{", p->text[p->at]) != NULL) {
        return regex_bad(p, "nothing to repeat");
    } else if (sees(p, '^') || sees(p, '$')) {
        return regex_bad(p, "^ and $ are supported only at the start and the end");
    } else {
        TRY(read_char(p, &c));
        TRY(add_range(p, &s, c, c));
    }
    *end = add_set(p, from, &s);
    return status_ok();
}

static struct status regex_read_count(struct parser *p, int32_t *out)
{
    const size_t at = p->at;
    *out = 0;
    while (!ends(p) && p->text[p->at] >= '0' && p->text[p->at] <= '9') {
        *out = *out * 10 + (p->text[p->at++] - '0');
        if (*out > COUNT_MAX) return regex_bad(p, "a count is too large");
    }
    return p->at > at ? status_ok() : regex_bad(p, "expected a count, as in {2,5}");
}

/* Reads how often the atom before may come: least to most times (most -1: no limit). */
static struct status read_quantifier(struct parser *p, int32_t *least, int32_t *most)
{
    *least = *most = 1;
    if (takes(p, '*')) {
        *least = 0;
        *most = -1;
    } else if (takes(p, '+')) {
        *most = -1;
    } else if (takes(p, '?')) {
        *least = 0;
    } else if (takes(p, '{')) {
        TRY(regex_read_count(p, least));
        *most = *least;
        if (takes(p, ',')) {
            *most = -1;
            if (!sees(p, '}')) TRY(regex_read_count(p, most));
        }
        if (!takes(p, '}')) return regex_bad(p, "a count is not closed");
        if (*most >= 0 && *most < *least) return regex_bad(p, "a count's end is below its start");
    } else {
        return status_ok();
    }
    (void)takes(p, '?'); /* a lazy quantifier matches the same texts */
    return status_ok();
}

static struct status add_repeated(struct parser *p, uint32_t from, uint32_t *end)
{
    const size_t begin = p->at;
    const uint32_t out = nfa_state(p->n);
    uint32_t in = nfa_state(p->n), last = in;
    int32_t least, most;
    nfa_empty(p->n, from, in);
    TRY(add_atom(p, in, &last));
    TRY(read_quantifier(p, &least, &most));
    const size_t behind = p->at;
    const int32_t n_copies = most >= 0 ? most : least > 0 ? least : 1;
    const size_t n_read = behind - begin;
    if (least == 0) nfa_empty(p->n, in, out);
    for (int32_t i = 2; i <= n_copies && !status_failed(&p->n->status); i++) {
        in = nfa_state(p->n);
        nfa_empty(p->n, last, in);
        if (i > least) nfa_empty(p->n, in, out);
        p->at = begin;
        nfa_spend(p->n, n_read);
        TRY(add_atom(p, in, &last));
    }
    p->at = behind;
    if (most < 0) nfa_empty(p->n, last, in);
    if (n_copies > 0) nfa_empty(p->n, last, out);
    *end = out;
    return nfa_status(p->n);
}

/* Reads atoms with their quantifiers up to a | or ), or to the end; outside groups, also a ^ before
 * and a $ behind them. */
static struct status add_branch(struct parser *p, uint32_t from, uint32_t *end)
{
    const bool is_whole = p->depth == 0;
    const bool begins = is_whole && takes(p, '^');
    if (is_whole && p->options.searches && !begins) from = add_anything(p, from);
    while (!ends(p) && !sees(p, '|') && !sees(p, ')')) {
        if (is_whole && sees(p, '$') && (p->at + 1 == p->n_text || p->text[p->at + 1] == '|')) {
            p->at++;
            *end = from;
            return status_ok();
        }
        TRY(add_repeated(p, from, &from));
    }
    *end = is_whole && p->options.searches ? add_anything(p, from) : from;
    return status_ok();
}

static struct status add_alternatives(struct parser *p, uint32_t from, uint32_t *end)
{
    const uint32_t out = nfa_state(p->n);
    do {
        uint32_t in = nfa_state(p->n), last;
        nfa_empty(p->n, from, in);
        TRY(add_branch(p, in, &last));
        nfa_empty(p->n, last, out);
    } while (takes(p, '|'));
    *end = out;
    return nfa_status(p->n);
}

struct status regex_add(struct nfa *n, uint32_t from, const char *pattern, size_t n_bytes,
                        struct regex_options options, uint32_t *end)
{
    struct parser p = {.n = n, .text = pattern, .n_text = n_bytes, .options = options};
    TRY(add_alternatives(&p, from, end));
    return ends(&p) ? status_ok() : regex_bad(&p, "a group is closed that was not opened");
}

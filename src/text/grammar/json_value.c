/* Adds paths for JSON values. The numbers of digits and levels are bounded, so an answer cannot
 * consist of digits or brackets without end, and every number reads back as a finite double. */
#include "text/grammar/json_schema_private.h"
#include "text/grammar/regex.h"

#include <stdio.h>
#include <string.h>

uint32_t json_word(struct nfa *n, uint32_t from, const char *text)
{
    return nfa_text(n, from, text, strlen(text));
}

uint32_t json_mark(struct nfa *n, uint32_t from, const char *text)
{
    const uint32_t at = json_word(n, from, text), out = nfa_state(n);
    nfa_bytes(n, at, ' ', ' ', out);
    nfa_empty(n, at, out);
    return out;
}

static void hex_digits(struct nfa *n, uint32_t from, uint32_t to)
{
    nfa_bytes(n, from, '0', '9', to);
    nfa_bytes(n, from, 'A', 'F', to);
    nfa_bytes(n, from, 'a', 'f', to);
}

/* Adds paths for the four hexadecimal digits after \u, except those of surrogates. */
static void add_unicode(struct nfa *n, uint32_t from, uint32_t to)
{
    const uint32_t second = nfa_state(n), low_second = nfa_state(n);
    const uint32_t third = nfa_state(n), fourth = nfa_state(n);
    nfa_bytes(n, from, '0', '9', second);
    nfa_bytes(n, from, 'A', 'C', second);
    nfa_bytes(n, from, 'E', 'F', second);
    nfa_bytes(n, from, 'a', 'c', second);
    nfa_bytes(n, from, 'e', 'f', second);
    nfa_bytes(n, from, 'D', 'D', low_second);
    nfa_bytes(n, from, 'd', 'd', low_second);
    nfa_bytes(n, low_second, '0', '7', third);
    hex_digits(n, second, third);
    hex_digits(n, third, fourth);
    hex_digits(n, fourth, to);
}

static uint32_t add_char(struct nfa *n, uint32_t from)
{
    static const struct char_range PLAIN[] = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x10FFFF}};
    const uint32_t to = nfa_chars(n, from, PLAIN, sizeof PLAIN / sizeof *PLAIN);
    const uint32_t escaped = nfa_state(n), unicode = nfa_state(n);
    nfa_bytes(n, from, '\\', '\\', escaped);
    for (const char *c = "\"\\/bfnrt"; *c != '\0'; c++)
        nfa_bytes(n, escaped, (uint8_t)*c, (uint8_t)*c, to);
    nfa_bytes(n, escaped, 'u', 'u', unicode);
    add_unicode(n, unicode, to);
    return to;
}

uint32_t json_chars(struct nfa *n, uint32_t from, int64_t least, int64_t most)
{
    const uint32_t out = nfa_state(n);
    for (int64_t i = 0; i < (most < 0 ? least : most) && !status_failed(&n->status); i++) {
        if (i >= least) nfa_empty(n, from, out);
        from = add_char(n, from);
    }
    if (most < 0) {
        const uint32_t loop = nfa_state(n);
        nfa_empty(n, from, loop);
        nfa_empty(n, add_char(n, loop), loop);
        from = loop;
    }
    nfa_empty(n, from, out);
    return out;
}

uint32_t json_string(struct nfa *n, uint32_t from)
{
    return json_word(n, json_chars(n, json_word(n, from, "\""), 0, -1), "\"");
}

struct status json_number(struct nfa *n, uint32_t from, uint32_t *end)
{
    static const char NUMBER[] = "-?(0|[1-9][0-9]{0,17})(\\.[0-9]{1,17})?([eE][+-]?[0-9]{1,2})?";
    return regex_add(n, from, NUMBER, sizeof NUMBER - 1, (struct regex_options){false, false}, end);
}

uint32_t json_boolean(struct nfa *n, uint32_t from)
{
    const uint32_t out = nfa_state(n);
    nfa_empty(n, json_word(n, from, "true"), out);
    nfa_empty(n, json_word(n, from, "false"), out);
    return out;
}

/* Adds paths for the integers in [low, high], in decimal and with at most JSON_INTEGER_DIGITS
 * digits. */
static void add_decimals(struct nfa *n, uint32_t from, uint64_t low, uint64_t high, uint32_t to)
{
    uint64_t first = 0, last = 9; /* the smallest and the largest number of n_digits */
    for (size_t n_digits = 1; n_digits <= JSON_INTEGER_DIGITS; n_digits++) {
        const uint64_t a = low > first ? low : first, b = high < last ? high : last;
        char least[24], most[24];
        first = last + 1;
        last = last * 10 + 9;
        if (a > b) continue;
        snprintf(least, sizeof least, "%llu", (unsigned long long)a);
        snprintf(most, sizeof most, "%llu", (unsigned long long)b);
        const struct nfa_run run = {(const uint8_t *)least, (const uint8_t *)most, n_digits, '0',
                                    '9'};
        nfa_sequences(n, from, &run, to);
    }
}

uint32_t json_integer(struct nfa *n, uint32_t from, int64_t low, int64_t high)
{
    const int64_t most = 999999999999999999;
    const uint32_t out = nfa_state(n);
    if (low < -most) low = -most;
    if (high > most) high = most;
    if (high >= 0) add_decimals(n, from, low > 0 ? low : 0, high, out);
    if (low < 0) {
        const uint32_t minus = json_word(n, from, "-");
        add_decimals(n, minus, high < 0 ? -high : 1, -low, out);
    }
    return out;
}

struct status json_any(struct nfa *n, uint32_t from, int depth, uint32_t *end)
{
    const uint32_t out = nfa_state(n);
    uint32_t last;
    nfa_empty(n, json_string(n, from), out);
    nfa_empty(n, json_boolean(n, from), out);
    nfa_empty(n, json_word(n, from, "null"), out);
    TRY(json_number(n, from, &last));
    nfa_empty(n, last, out);
    if (depth > 0) {
        TRY(json_any_object(n, from, depth, &last));
        nfa_empty(n, last, out);
        TRY(json_any_array(n, from, depth, &last));
        nfa_empty(n, last, out);
    }
    *end = out;
    return nfa_status(n);
}

struct status json_any_object(struct nfa *n, uint32_t from, int depth, uint32_t *end)
{
    const uint32_t open = json_word(n, from, "{"), member = nfa_state(n);
    uint32_t value;
    nfa_empty(n, open, member);
    TRY(json_any(n, json_mark(n, json_string(n, member), ":"), depth - 1, &value));
    nfa_empty(n, json_mark(n, value, ","), member);
    *end = json_word(n, value, "}");
    nfa_bytes(n, open, '}', '}', *end);
    return nfa_status(n);
}

struct status json_any_array(struct nfa *n, uint32_t from, int depth, uint32_t *end)
{
    const uint32_t open = json_word(n, from, "["), item = nfa_state(n);
    uint32_t value;
    nfa_empty(n, open, item);
    TRY(json_any(n, item, depth - 1, &value));
    nfa_empty(n, json_mark(n, value, ","), item);
    *end = json_word(n, value, "]");
    nfa_bytes(n, open, ']', ']', *end);
    return nfa_status(n);
}

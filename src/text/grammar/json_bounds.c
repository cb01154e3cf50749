/* Numbers between bounds. The digits of a text are compared with those of the bounds, from the
 * left. A state stands for a position and for the bounds that agree with all digits so far. */
#include "text/grammar/json_schema_private.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = JSON_BOUND_DIGITS, DIGITS = 2 * N, SHORTEST_MAX = 17, MAGNITUDE_STEPS = 512 };

/* A bound without its sign: N digits before the point and N after it. is_cut: the bound has further
 * digits that are not all zeros. is_out: the bound itself is excluded. */
struct magnitude {
    uint8_t digit[DIGITS];
    bool is_cut, is_out;
    bool is_beyond; /* the bound is infinite, or has more than N digits before the point */
};

/* The digits of numbers from low to high, on paths that end in `to`. */
struct digits {
    struct nfa *n;
    const struct magnitude *low, *high;
    uint32_t to;
    uint32_t *rest; /* [N + 1] rest[k]: the state where k more digits may follow and no bound limits
                       them; 0: not made yet */
};

static struct magnitude magnitude_of(double x, bool is_out)
{
    struct magnitude m = {.is_out = is_out};
    char text[40];
    int n_digits = 1;
    x = fabs(x);
    if (isinf(x)) m.is_beyond = true;
    if (x == 0 || isinf(x)) return m;
    do {
        snprintf(text, sizeof text, "%.*e", n_digits - 1, x);
    } while (strtod(text, NULL) != x && n_digits++ < SHORTEST_MAX);
    int at = N - 1 - atoi(strchr(text, 'e') + 1); /* the position of the first digit */
    m.is_beyond = at < 0;
    for (const char *c = text; *c != 'e' && !m.is_beyond; c++) {
        if (*c == '.') continue;
        if (at < DIGITS) m.digit[at] = (uint8_t)(*c - '0');
        if (at >= DIGITS && *c != '0') m.is_cut = true;
        at++;
    }
    return m;
}

static bool are_zeros(const struct magnitude *m, int first, int end)
{
    for (int i = first; i < end; i++)
        if (m->digit[i] != 0) return false;
    return true;
}

/* True when the number may end before position p. at_low, at_high: all digits so far agree with
 * that bound. */
static bool may_end(const struct digits *d, int p, bool at_low, bool at_high)
{
    const bool is_low = at_low && are_zeros(d->low, p, DIGITS);
    const bool is_high = at_high && are_zeros(d->high, p, DIGITS);
    if (at_low && (!is_low || d->low->is_out || d->low->is_cut)) return false;
    return !is_high || !d->high->is_out || d->high->is_cut;
}

static void join(struct nfa *n, uint32_t from, int first, int last, uint32_t to)
{
    if (first <= last) nfa_bytes(n, from, (uint8_t)('0' + first), (uint8_t)('0' + last), to);
}

/* Adds the edges for the digit at position p, which must be at least `least`. at[0]: the digits
 * before it agree with the low bound; at[1]: with the high one. next[l][h]: the state after the
 * digit, 0: not made yet; l is 1 if the digits then still agree with the low bound, h is 1 if with
 * the high one. */
static void add_digit(struct digits *d, uint32_t from, int p, const bool at[2], int least,
                      uint32_t next[2][2])
{
    const int low = at[0] ? d->low->digit[p] : least, high = at[1] ? d->high->digit[p] : 9;
    int first = low > least ? low : least, last = high;
    if (low > high) return;
    for (int digit = first; digit <= last; digit++) {
        const bool is_low = at[0] && digit == low, is_high = at[1] && digit == high;
        const bool is_edge = is_low || is_high;
        const int end = is_edge || digit == last ? digit : last - (at[1] ? 1 : 0);
        uint32_t *to = &next[is_low][is_high];
        if (*to == 0) *to = nfa_state(d->n);
        join(d->n, from, digit, end, *to);
        digit = end;
    }
}

/* Returns the state after a digit behind the decimal point when neither bound agrees with the
 * digits so far, so that up to n_left digits may follow, whatever they are. */
static uint32_t state_of_rest(struct digits *d, int n_left)
{
    if (d->rest[n_left] != 0) return d->rest[n_left];
    const uint32_t s = d->rest[n_left] = nfa_state(d->n);
    nfa_empty(d->n, s, d->to);
    if (n_left > 0) join(d->n, s, 0, 9, state_of_rest(d, n_left - 1));
    return s;
}

/* Adds the numbers with n_whole digits before the point, at positions N - n_whole to N - 1; the
 * digits after the point begin at N. */
static void json_bounds_add_whole(struct digits *d, uint32_t from, int n_whole)
{
    const int begin = N - n_whole, end = begin + N;
    uint32_t at[2][2] = {{0}};
    if (!are_zeros(d->low, 0, begin)) return;
    at[1][are_zeros(d->high, 0, begin)] = from;
    for (int p = begin; p < end; p++) {
        uint32_t next[2][2] = {{0}};
        if (p >= N) next[0][0] = state_of_rest(d, end - p - 1);
        for (int k = 0; k < 4; k++) {
            const bool agrees[2] = {k & 1, k >> 1};
            uint32_t s = at[agrees[0]][agrees[1]];
            if (s == 0 || (p > N && k == 0))
                continue; /* with k = 0 no bound agrees, and
                             state_of_rest has added the digits */
            if (p == N) s = json_word(d->n, s, ".");
            add_digit(d, s, p, agrees, p == begin && n_whole > 1, next);
        }
        memcpy(at, next, sizeof at);
        for (int k = 0; k < 4 && p >= N - 1; k++)
            if (at[k & 1][k >> 1] != 0 && may_end(d, p + 1, k & 1, k >> 1))
                nfa_empty(d->n, at[k & 1][k >> 1], d->to);
    }
}

/* Adds the numbers from low to high, written without a sign. */
static void add_between(struct nfa *n, uint32_t from, const struct magnitude *low,
                        const struct magnitude *high, uint32_t to)
{
    uint32_t rest[N + 1] = {0};
    struct magnitude most = *high;
    struct digits d = {.n = n, .low = low, .high = &most, .to = to, .rest = rest};
    if (low->is_beyond) return;
    if (most.is_beyond) {
        most.is_out = false;
        memset(most.digit, 9, sizeof most.digit);
    }
    for (int n_whole = 1; n_whole <= N; n_whole++) json_bounds_add_whole(&d, from, n_whole);
}

struct status json_bounded(struct nfa *n, uint32_t from, const struct json_bounds *b, uint32_t *end)
{
    const struct magnitude low = magnitude_of(b->low, b->low_is_out);
    const struct magnitude high = magnitude_of(b->high, b->high_is_out);
    const struct magnitude zero = {0}, above_zero = {.is_out = true};
    const uint32_t start = nfa_state(n); /* never state 0, because 0 means "no state" below */
    nfa_spend(n, 2 * MAGNITUDE_STEPS);
    *end = nfa_state(n);
    nfa_empty(n, from, start);
    if (b->high >= 0) add_between(n, start, b->low >= 0 ? &low : &zero, &high, *end);
    if (b->low < 0)
        add_between(n, json_word(n, start, "-"), b->high < 0 ? &high : &above_zero, &low, *end);
    return nfa_status(n);
}

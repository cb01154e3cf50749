/* Adds paths for strings and numbers to the graph, from a schema's parts
 * (json_schema_private.h). */
#include "base/mem.h"
#include "text/grammar/json_schema_private.h"
#include "text/grammar/regex.h"

#include <math.h>
#include <string.h>

enum { PATTERNS_MAX = 2 * JSON_PARTS_MAX };

/* The conditions on a string: patterns that it must match, and its number of characters. */
struct string_rules {
    struct {
        const char *text;
        size_t n;
    } pattern[PATTERNS_MAX];
    size_t n_patterns;
    int64_t least, most; /* characters; most < 0: no limit */
};

/* Dates of the Gregorian calendar (RFC 3339) from year 1 on: the days that every year has, and 29
 * February of leap years (divisible by 4 but not by 100, or divisible by 400). */
#define YEAR        "([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
#define DAYS_OF_31  "(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])"
#define DAYS_OF_30  "(0[469]|11)-(0[1-9]|[12][0-9]|30)"
#define DAYS_OF_28  "02-(0[1-9]|1[0-9]|2[0-8])"
#define FOURTH      "(0[48]|[2468][048]|[13579][26])" /* 04, 08, .. 96 */
#define LEAP_YEAR   "([0-9]{2}" FOURTH "|" FOURTH "00)"
#define DATE        "(" YEAR "-(" DAYS_OF_31 "|" DAYS_OF_30 "|" DAYS_OF_28 ")|" LEAP_YEAR "-02-29)"
#define HOUR_MINUTE "([01][0-9]|2[0-3]):[0-5][0-9]"
#define TIME        HOUR_MINUTE ":[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]" HOUR_MINUTE ")"

/* Returns the regular expression of a format; NULL for a format that is not checked. */
static const char *scalar_pattern(const char *format)
{
    static const char *const FORMATS[][2] = {
        {"date", "^" DATE "$"},
        {"time", "^" TIME "$"},
        {"date-time", "^" DATE "T" TIME "$"},
        {"uuid", "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
    };
    for (size_t i = 0; i < sizeof FORMATS / sizeof *FORMATS; i++)
        if (format != NULL && strcmp(format, FORMATS[i][0]) == 0) return FORMATS[i][1];
    return NULL;
}

static struct status read_rules(const struct json_parts *all, struct string_rules *r)
{
    *r = (struct string_rules){.most = -1};
    TRY(json_read_count(all, "minLength", true, &r->least));
    TRY(json_read_count(all, "maxLength", false, &r->most));
    for (size_t i = 0; i < all->n; i++) {
        const struct js_node *given = js_get(all->part[i], "pattern");
        const char *format = scalar_pattern(js_string(js_get(all->part[i], "format"), NULL));
        size_t n = 0;
        const char *pattern = given != NULL ? js_string(given, &n) : NULL;
        if (given != NULL && pattern == NULL)
            return status_make(STATUS_REQUEST, "keyword \"pattern\": expected a string");
        if (given != NULL) {
            r->pattern[r->n_patterns].text = pattern;
            r->pattern[r->n_patterns++].n = n;
        }
        if (format != NULL) {
            r->pattern[r->n_patterns].text = format;
            r->pattern[r->n_patterns++].n = strlen(format);
        }
    }
    return status_ok();
}

/* Adds paths for the strings that fulfil the i-th rule: the i-th pattern or, with i = n_patterns,
 * the number of characters. */
static struct status add_rule(struct nfa *n, uint32_t from, const struct string_rules *r, size_t i,
                              uint32_t *end)
{
    const struct regex_options options = {.in_string = true, .searches = true};
    if (i < r->n_patterns)
        return status_wrap(regex_add(n, from, r->pattern[i].text, r->pattern[i].n, options, end),
                           "keyword \"pattern\"");
    *end = json_chars(n, from, r->least, r->most);
    return nfa_status(n);
}

/* Sets *out to an automaton of the strings that fulfil the i-th rule; NULL: no string does. */
static struct status compile_rule(struct grammar_work *work, const struct string_rules *r, size_t i,
                                  struct dfa **out)
{
    struct nfa n;
    uint32_t end;
    nfa_init(&n, work);
    const uint32_t start = nfa_state(&n);
    struct status st = add_rule(&n, start, r, i, &end);
    if (!status_failed(&st)) st = dfa_create_any(&n, start, end, out);
    nfa_fini(&n);
    return st;
}

/* Replaces *both by an automaton of those strings of *both that also fulfil the i-th rule; NULL:
 * there are none. */
static struct status json_scalar_narrow(struct grammar_work *work, const struct string_rules *r,
                                        size_t i, struct dfa **both)
{
    struct dfa *one = NULL, *narrower = NULL;
    struct nfa n;
    uint32_t end;
    nfa_init(&n, work);
    const uint32_t start = nfa_state(&n);
    struct status st = compile_rule(work, r, i, &one);
    if (one != NULL) st = nfa_both(&n, start, *both, one, &end);
    if (one != NULL && !status_failed(&st)) st = dfa_create_any(&n, start, end, &narrower);
    nfa_fini(&n);
    dfa_destroy(&one);
    dfa_destroy(both);
    *both = narrower;
    return st;
}

/* Adds paths for the strings that fulfil all n_rules rules; n_rules is at least 2. */
static struct status add_rules(struct nfa *n, uint32_t from, const struct string_rules *r,
                               size_t n_rules, uint32_t *end)
{
    struct dfa *both = NULL, *last = NULL;
    struct status st = compile_rule(n->work, r, 0, &both);
    *end = nfa_state(n);
    for (size_t i = 1; i + 1 < n_rules && both != NULL; i++)
        st = json_scalar_narrow(n->work, r, i, &both);
    if (both != NULL) st = compile_rule(n->work, r, n_rules - 1, &last);
    if (last != NULL) st = nfa_both(n, from, both, last, end);
    dfa_destroy(&both);
    dfa_destroy(&last);
    return st;
}

struct status json_add_string(struct nfa *n, uint32_t from, const struct json_parts *all,
                              uint32_t *end)
{
    struct string_rules r;
    TRY(read_rules(all, &r));
    if (r.most >= 0 && r.most < r.least)
        return json_contradiction(n, all, "keyword \"maxLength\" is below minLength", end);
    const bool is_counted = r.n_patterns == 0 || r.least > 0 || r.most >= 0;
    const size_t n_rules = r.n_patterns + is_counted;
    from = json_word(n, from, "\"");
    if (n_rules == 1)
        TRY(add_rule(n, from, &r, 0, &from));
    else
        TRY(add_rules(n, from, &r, n_rules, &from));
    *end = json_word(n, from, "\"");
    return nfa_status(n);
}

/* Tightens *bound, a lower bound (sign 1) or an upper bound (sign -1), if a part gives a tighter
 * value for the keyword. is_out: the keyword's value itself is excluded. */
static struct status read_limit(const struct json_parts *all, const char *key, bool is_out,
                                int sign, double *bound, bool *bound_is_out)
{
    for (size_t i = 0; i < all->n; i++) {
        const struct js_node *node = js_get(all->part[i], key);
        double value;
        if (node == NULL) continue;
        if (!js_number(node, &value))
            return status_make(STATUS_REQUEST, "keyword \"%s\": expected a number", key);
        if (sign * value < sign * *bound || (value == *bound && !is_out)) continue;
        *bound = value;
        *bound_is_out = is_out;
    }
    return status_ok();
}

/* Adds paths for the integers between the bounds, which need not be integers themselves. */
static struct status add_integer(struct nfa *n, uint32_t from, const struct json_parts *all,
                                 const struct json_bounds *b, uint32_t *end)
{
    const double exact = 9007199254740992.0; /* 2^53: above it doubles skip integers */
    if ((fabs(b->low) > exact && !isinf(b->low)) || (fabs(b->high) > exact && !isinf(b->high)))
        return status_make(STATUS_REQUEST, "bounds of integers: expected numbers of 53 bits");
    int64_t low = INT64_MIN, high = INT64_MAX;
    if (!isinf(b->low)) low = (int64_t)ceil(b->low) + (b->low_is_out && ceil(b->low) == b->low);
    if (!isinf(b->high))
        high = (int64_t)floor(b->high) - (b->high_is_out && floor(b->high) == b->high);
    if (low > high) return json_contradiction(n, all, "no integer is between its bounds", end);
    *end = json_integer(n, from, low, high);
    return nfa_status(n);
}

struct status json_add_number(struct nfa *n, uint32_t from, const struct json_parts *all,
                              bool is_integer, uint32_t *end)
{
    struct json_bounds b = {.low = -INFINITY, .high = INFINITY};
    TRY(read_limit(all, "minimum", false, 1, &b.low, &b.low_is_out));
    TRY(read_limit(all, "exclusiveMinimum", true, 1, &b.low, &b.low_is_out));
    TRY(read_limit(all, "maximum", false, -1, &b.high, &b.high_is_out));
    TRY(read_limit(all, "exclusiveMaximum", true, -1, &b.high, &b.high_is_out));
    if (is_integer) return add_integer(n, from, all, &b, end);
    if (isinf(b.low) && isinf(b.high)) return json_number(n, from, end);
    if (b.low > b.high || (b.low == b.high && (b.low_is_out || b.high_is_out)))
        return json_contradiction(n, all, "no number is between its bounds", end);
    return json_bounded(n, from, &b, end);
}

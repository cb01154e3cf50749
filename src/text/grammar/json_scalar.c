/* Strings and numbers out of the parts of a schema. */
#include "base/mem.h"
#include "text/grammar/json_schema_private.h"
#include "text/grammar/regex.h"

#include <math.h>
#include <string.h>

enum { PATTERNS_MAX = 2 * JSON_PARTS_MAX };

/* What a string's keywords ask for. */
struct string_rules {
    struct {
        const char *text;
        size_t n;
    } pattern[PATTERNS_MAX];
    size_t n_patterns;
    int64_t least, most; /* characters; most < 0: without end */
};

/* The regular expression of a format that has one here; NULL: it says nothing. */
static const char *pattern_of(const char *format)
{
#define DATE "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
#define TIME                                                                                       \
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]" \
    ")"
    static const char *const FORMATS[][2] = {
        {"date", "^" DATE "$"},
        {"time", "^" TIME "$"},
        {"date-time", "^" DATE "T" TIME "$"},
        {"uuid", "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
    };
#undef DATE
#undef TIME
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
        const char *format = pattern_of(js_string(js_get(all->part[i], "format"), NULL));
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

/* The i-th pattern; behind the last, the counts of characters. */
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

/* The i-th rule by itself; NULL: no string is like that. */
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

/* *both, which goes, and the i-th rule; NULL as above. */
static struct status narrow(struct grammar_work *work, const struct string_rules *r, size_t i,
                            struct dfa **both)
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

/* All of two rules or more. */
static struct status add_rules(struct nfa *n, uint32_t from, const struct string_rules *r,
                               size_t n_rules, uint32_t *end)
{
    struct dfa *both = NULL, *last = NULL;
    struct status st = compile_rule(n->work, r, 0, &both);
    *end = nfa_state(n);
    for (size_t i = 1; i + 1 < n_rules && both != NULL; i++) st = narrow(n->work, r, i, &both);
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

/* Narrows one end of the bounds. sign: 1 for the lower, -1 for the upper one. */
static struct status read_bound(const struct json_parts *all, const char *key, bool is_out,
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

/* The integers between bounds; a bound that is written as 1.0 or 0.5 counts, too. */
static struct status add_integer(struct nfa *n, uint32_t from, const struct json_parts *all,
                                 const struct json_bounds *b, uint32_t *end)
{
    const double exact = 9007199254740992.0; /* 2^53: beyond, doubles are no longer the bounds */
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
    TRY(read_bound(all, "minimum", false, 1, &b.low, &b.low_is_out));
    TRY(read_bound(all, "exclusiveMinimum", true, 1, &b.low, &b.low_is_out));
    TRY(read_bound(all, "maximum", false, -1, &b.high, &b.high_is_out));
    TRY(read_bound(all, "exclusiveMaximum", true, -1, &b.high, &b.high_is_out));
    if (is_integer) return add_integer(n, from, all, &b, end);
    if (isinf(b.low) && isinf(b.high)) return json_number(n, from, end);
    if (b.low > b.high || (b.low == b.high && (b.low_is_out || b.high_is_out)))
        return json_contradiction(n, all, "no number is between its bounds", end);
    return json_bounded(n, from, &b, end);
}

/* Jinja's tests: the words after `is`. */
#include "text/chat/jinja_value.h"

#include "base/utf8.h"
#include "text/chat/jinja_case.h"

#include <string.h>

#define TEST(name)                                                                                 \
    static bool name(struct jrun *r, const struct jvalue *self, const struct jvalue *a,            \
                     struct jvalue *out)

/* Defines a test that depends on the value alone. */
#define SIMPLE(name, condition)                                                                    \
    TEST(name)                                                                                     \
    {                                                                                              \
        (void)r;                                                                                   \
        (void)a;                                                                                   \
        *out = jbool(condition);                                                                   \
        return true;                                                                               \
    }

SIMPLE(test_defined, self->type != JV_UNDEFINED)
SIMPLE(test_undefined, self->type == JV_UNDEFINED)
SIMPLE(test_none, self->type == JV_NONE)
SIMPLE(test_boolean, self->type == JV_BOOL)
SIMPLE(test_true, self->type == JV_BOOL && self->u.b)
SIMPLE(test_false, self->type == JV_BOOL && !self->u.b)
SIMPLE(test_integer, self->type == JV_INT)
SIMPLE(test_float, self->type == JV_FLOAT)
SIMPLE(test_number, jis_number(self))
SIMPLE(test_string, self->type == JV_TEXT)
SIMPLE(test_mapping, self->type == JV_DICT)
SIMPLE(test_sequence, self->type == JV_TEXT || jis_seq(self) || self->type == JV_DICT ||
                          self->type == JV_UNDEFINED)
SIMPLE(test_iterable, self->type == JV_TEXT || jis_seq(self) || self->type == JV_DICT ||
                          self->type == JV_UNDEFINED || self->type == JV_VIEW ||
                          self->type == JV_ITERATOR || self->type == JV_LOOP)
SIMPLE(test_callable, self->type == JV_MACRO || self->type == JV_FUNCTION ||
                          self->type == JV_METHOD || self->type == JV_UNDEFINED)
SIMPLE(test_escaped, self->markup)
SIMPLE(test_filter, self->type == JV_TEXT && jfilter_find(self->u.text->p, self->u.text->n))
SIMPLE(test_test,
       self->type == JV_TEXT && jfunction_find(JINJA_TESTS, self->u.text->p, self->u.text->n, 0))

static bool divides(struct jrun *r, const struct jvalue *self, int64_t by, int64_t rest,
                    struct jvalue *out)
{
    int64_t i;
    if (!jas_int(self, &i)) return jfail(r, "divisibility of %s", jtype_name(self));
    if (by == 0) return jfail(r, "a division by zero");
    *out = jbool(by == -1 ? rest == 0 : (i % by + by) % by == rest);
    return true;
}

TEST(test_odd)
{
    (void)a;
    return divides(r, self, 2, 1, out);
}

TEST(test_even)
{
    (void)a;
    return divides(r, self, 2, 0, out);
}

TEST(test_divisibleby)
{
    int64_t by;
    if (!jas_int(&a[0], &by)) return jfail(r, "divisibleby wants an integer");
    return divides(r, self, by < 0 && by != INT64_MIN ? -by : by, 0, out);
}

TEST(test_eq)
{
    bool same;
    if (!jequal(r, self, &a[0], &same)) return false;
    *out = jbool(same);
    return true;
}

TEST(test_ne)
{
    if (!test_eq(r, self, a, out)) return false;
    *out = jbool(!out->u.b);
    return true;
}

/* Sets *out to whether self compares to a[0] as wanted: a sum of 1 (less), 2 (equal) and 4
 * (greater). */
static bool ordered(struct jrun *r, const struct jvalue *self, const struct jvalue *a,
                    unsigned wanted, struct jvalue *out)
{
    int order;
    if (!jcompare(r, self, &a[0], &order)) return false;
    *out = jbool((wanted & (order < 0 ? 1u : order == 0 ? 2u : 4u)) != 0);
    return true;
}

TEST(test_lt)
{
    return ordered(r, self, a, 1, out);
}

TEST(test_le)
{
    return ordered(r, self, a, 3, out);
}

TEST(test_gt)
{
    return ordered(r, self, a, 4, out);
}

TEST(test_ge)
{
    return ordered(r, self, a, 6, out);
}

TEST(test_in)
{
    bool found;
    if (!jcontains(r, &a[0], self, &found)) return false;
    *out = jbool(found);
    return true;
}

TEST(test_sameas)
{
    if (self->type != a[0].type) {
        *out = jbool(false);
        return true;
    }
    if (self->type == JV_BOOL || self->type == JV_NONE || self->type == JV_INT) {
        return test_eq(r, self, a, out);
    }
    *out = jbool(self->u.seq == a[0].u.seq);
    return true;
}

/* Python's str.islower and str.isupper: there is a cased character, and all of them have this
 * case. */
static bool all_of_case(struct jrun *r, const struct jvalue *self, enum jinja_case how,
                        struct jvalue *out)
{
    const struct jtext *t;
    size_t step;
    bool any = false, all = true;
    if (!jas_text(r, self, &t) || !jsteps(r, t->n / 8)) return false;
    for (size_t i = 0; i < t->n; i += step) {
        const uint32_t c = utf8_decode(t->p + i, t->n - i, &step);
        if (!jinja_cased(c)) continue;
        any = true;
        all = all && jinja_case_is(c, how);
    }
    *out = jbool(any && all);
    return true;
}

TEST(test_lower)
{
    (void)a;
    return all_of_case(r, self, JINJA_CASE_LOWER, out);
}

TEST(test_upper)
{
    (void)a;
    return all_of_case(r, self, JINJA_CASE_UPPER, out);
}

#define ONE .params = {"other"}, .n_required = 1

const struct jfunction JINJA_TESTS[] = {
    {.name = "defined", .fn = test_defined},
    {.name = "undefined", .fn = test_undefined},
    {.name = "none", .fn = test_none},
    {.name = "boolean", .fn = test_boolean},
    {.name = "true", .fn = test_true},
    {.name = "false", .fn = test_false},
    {.name = "integer", .fn = test_integer},
    {.name = "float", .fn = test_float},
    {.name = "number", .fn = test_number},
    {.name = "string", .fn = test_string},
    {.name = "mapping", .fn = test_mapping},
    {.name = "sequence", .fn = test_sequence},
    {.name = "iterable", .fn = test_iterable},
    {.name = "callable", .fn = test_callable},
    {.name = "escaped", .fn = test_escaped},
    {.name = "filter", .fn = test_filter},
    {.name = "test", .fn = test_test},
    {.name = "odd", .fn = test_odd},
    {.name = "even", .fn = test_even},
    {.name = "divisibleby", .fn = test_divisibleby, ONE},
    {.name = "eq", .fn = test_eq, ONE},
    {.name = "equalto", .fn = test_eq, ONE},
    {.name = "==", .fn = test_eq, ONE},
    {.name = "ne", .fn = test_ne, ONE},
    {.name = "!=", .fn = test_ne, ONE},
    {.name = "lt", .fn = test_lt, ONE},
    {.name = "lessthan", .fn = test_lt, ONE},
    {.name = "<", .fn = test_lt, ONE},
    {.name = "le", .fn = test_le, ONE},
    {.name = "<=", .fn = test_le, ONE},
    {.name = "gt", .fn = test_gt, ONE},
    {.name = "greaterthan", .fn = test_gt, ONE},
    {.name = ">", .fn = test_gt, ONE},
    {.name = "ge", .fn = test_ge, ONE},
    {.name = ">=", .fn = test_ge, ONE},
    {.name = "in", .fn = test_in, ONE},
    {.name = "sameas", .fn = test_sameas, ONE},
    {.name = "lower", .fn = test_lower},
    {.name = "upper", .fn = test_upper},
    {.name = NULL},
};

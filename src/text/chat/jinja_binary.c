/* Applies Python's binary operators to numbers, strings and lists. */
#include "text/chat/jinja_run.h"

#include <math.h>
#include <string.h>

static bool overflow(struct jrun *r)
{
    return jfail(r, "an integer beyond 64 bits");
}

/* Sets *out to x to the power y >= 0. */
static bool int_power(struct jrun *r, int64_t x, int64_t y, int64_t *out)
{
    *out = 1;
    while (y > 0) {
        if ((y & 1) != 0 && __builtin_mul_overflow(*out, x, out)) return overflow(r);
        y >>= 1;
        if (y > 0 && __builtin_mul_overflow(x, x, &x)) return overflow(r);
    }
    return true;
}

static bool int_divide(struct jrun *r, int op, int64_t x, int64_t y, int64_t *out)
{
    if (y == 0) return jfail(r, "a division by zero");
    if (y == -1) { /* the only divisor with which a quotient can overflow */
        if (op == '%') {
            *out = 0;
            return true;
        }
        return !__builtin_sub_overflow((int64_t)0, x, out) || overflow(r);
    }
    int64_t quotient = x / y, rest = x % y;
    if (rest != 0 && (rest < 0) != (y < 0)) { /* rounds towards minus infinity, as Python does */
        quotient--;
        rest += y;
    }
    *out = op == '%' ? rest : quotient;
    return true;
}

static bool int_binary(struct jrun *r, int op, int64_t x, int64_t y, int64_t *out)
{
    switch (op) {
    case '+':
        return !__builtin_add_overflow(x, y, out) || overflow(r);
    case '-':
        return !__builtin_sub_overflow(x, y, out) || overflow(r);
    case '*':
        return !__builtin_mul_overflow(x, y, out) || overflow(r);
    case JOP2('*', '*'):
        return int_power(r, x, y, out);
    default:
        return int_divide(r, op, x, y, out);
    }
}

static bool float_binary(struct jrun *r, int op, double x, double y, double *out)
{
    if ((op == '/' || op == '%' || op == JOP2('/', '/')) && y == 0) {
        return jfail(r, "a division by zero");
    }
    double rest;
    switch (op) {
    case '+':
        *out = x + y;
        return true;
    case '-':
        *out = x - y;
        return true;
    case '*':
        *out = x * y;
        return true;
    case '/':
        *out = x / y;
        return true;
    case JOP2('*', '*'):
        *out = pow(x, y);
        return isfinite(*out) || jfail(r, "a power too large");
    default:
        break;
    }
    rest = fmod(x, y);
    if (rest != 0 && (rest < 0) != (y < 0)) rest += y;
    *out = op == '%' ? rest : floor((x - rest) / y + 0.5);
    return true;
}

static bool number_binary(struct jrun *r, int op, const struct jvalue *a, const struct jvalue *b,
                          struct jvalue *out)
{
    int64_t x = 0, y = 0, i = 0;
    double f = 0;
    const bool ints = jas_int(a, &x) && jas_int(b, &y);
    if (ints && op != '/' && !(op == JOP2('*', '*') && y < 0)) {
        if (!int_binary(r, op, x, y, &i)) return false;
        *out = jint(i);
    } else {
        if (!float_binary(r, op, jas_float(a), jas_float(b), &f)) return false;
        *out = jfloat(f);
    }
    out->user = a->user || b->user;
    return true;
}

/* Appends the text of v, with HTML's special characters escaped unless `safe`. */
static bool add_escaped(struct jbuild *b, const struct jvalue *v, bool safe)
{
    const struct jtext *t = v->u.text;
    if (safe) return jbuild_text(b, t);
    for (size_t i = 0; i < t->n; i++) {
        const char c = t->p[i];
        const char *to = c == '&'    ? "&amp;"
                         : c == '<'  ? "&lt;"
                         : c == '>'  ? "&gt;"
                         : c == '"'  ? "&#34;"
                         : c == '\'' ? "&#39;"
                                     : NULL;
        if (!(to != NULL ? jbuild_puts(b, to, jtext_user(t, i)) : jbuild_cut(b, t, i, i + 1))) {
            return false;
        }
    }
    return true;
}

static bool add_texts(struct jrun *r, const struct jvalue *a, const struct jvalue *b,
                      struct jvalue *out)
{
    struct jbuild build;
    jbuild_init(&build, r);
    const bool markup = a->markup || b->markup;
    if (!add_escaped(&build, a, !markup || a->markup)) return false;
    if (!add_escaped(&build, b, !markup || b->markup) || !jbuild_end(&build, out)) return false;
    out->markup = markup;
    return true;
}

static bool add_lists(struct jrun *r, const struct jvalue *a, const struct jvalue *b,
                      struct jvalue *out)
{
    struct jvalue *v;
    const struct jseq *x = a->u.seq, *y = b->u.seq;
    if (!jseq_new(r, (enum jvalue_type)a->type, x->n + y->n, &v, out)) return false;
    if (x->n > 0) memcpy(v, x->v, x->n * sizeof *v);
    if (y->n > 0) memcpy(v + x->n, y->v, y->n * sizeof *v);
    return true;
}

static bool jinja_binary_repeat(struct jrun *r, const struct jvalue *a, int64_t times,
                                struct jvalue *out)
{
    if (a->type == JV_TEXT) {
        struct jbuild b;
        jbuild_init(&b, r);
        for (int64_t i = 0; i < times && a->u.text->n > 0; i++) {
            if (!jsteps(r, 1) || !jbuild_text(&b, a->u.text)) return false;
        }
        return jbuild_end(&b, out);
    }
    struct jvalue *v;
    const size_t n = a->u.seq->n;
    if (times < 0 || n == 0) times = 0;
    if (times > 1000000 || n > 1000000) return jfail(r, "a list repeated too often");
    if (!jseq_new(r, (enum jvalue_type)a->type, n * (size_t)times, &v, out)) return false;
    for (int64_t i = 0; i < times; i++) memcpy(v + (size_t)i * n, a->u.seq->v, n * sizeof *v);
    return true;
}

static bool repeatable(const struct jvalue *v)
{
    return v->type == JV_TEXT || v->type == JV_LIST || v->type == JV_TUPLE;
}

/* Fails because the operands' types do not fit the operator; always returns false. If an operand of
 * '+' came from the request, the sentence names its field; if both did, the field of the one that
 * is not a string. */
static bool fail_types(struct jrun *r, const char *op, const struct jvalue *a,
                       const struct jvalue *b)
{
    const bool b_first = a->type == JV_TEXT;
    if (*op == '+') {
        if (jfail_field(r, b_first ? b : a, b_first ? a : b)) return false;
        if (jfail_field(r, b_first ? a : b, b_first ? b : a)) return false;
    }
    if (a->type != JV_UNDEFINED && b->type != JV_UNDEFINED)
        return jfail(r, "'%s' between %s and %s", op, jtype_name(a), jtype_name(b));
    const struct jvalue *u = a->type == JV_UNDEFINED ? a : b;
    return jfail(r, "'%.60s' is undefined, in an operation '%s'", u->u.name, op);
}

bool jbinary(struct jrun *r, int op, const struct jvalue *a, const struct jvalue *b,
             struct jvalue *out)
{
    int64_t times;
    const char text[3] = {(char)(op > 255 ? op >> 8 : op), (char)(op > 255 ? op & 255 : 0), 0};
    if (jis_number(a) && jis_number(b)) return number_binary(r, op, a, b, out);
    if (a->type == JV_UNDEFINED || b->type == JV_UNDEFINED) return fail_types(r, text, a, b);
    if (op == '+' && a->type == b->type) {
        if (a->type == JV_TEXT) return add_texts(r, a, b, out);
        if (a->type == JV_LIST || a->type == JV_TUPLE) return add_lists(r, a, b, out);
    }
    if (op == '*' && repeatable(a) && jas_int(b, &times))
        return jinja_binary_repeat(r, a, times, out);
    if (op == '*' && repeatable(b) && jas_int(a, &times))
        return jinja_binary_repeat(r, b, times, out);
    if (op == '%' && a->type == JV_TEXT) {
        if (b->type != JV_TUPLE) return jformat(r, a->u.text, b, 1, out);
        return jformat(r, a->u.text, b->u.seq->v, b->u.seq->n, out);
    }
    return fail_types(r, text, a, b);
}

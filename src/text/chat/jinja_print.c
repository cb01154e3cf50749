/* Prints values: Python's str and repr, and its % formatting. */
#include "text/chat/jinja_value.h"

#include "base/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* Writes the digits, without the point, of the shortest decimal that reads back as f > 0.
 * *exponent: the power of ten of the first digit. */
static void shortest_digits(double f, char digits[24], int *exponent)
{
    char text[40];
    for (int precision = 0; precision <= 16; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, f);
        if (strtod(text, NULL) == f) break;
    }
    size_t n = 0;
    const char *p = text;
    for (; *p != 'e' && *p != '\0'; p++) {
        if (*p >= '0' && *p <= '9' && n < 20) digits[n++] = *p;
    }
    while (n > 1 && digits[n - 1] == '0') n--;
    digits[n] = '\0';
    *exponent = *p == 'e' ? atoi(p + 1) : 0;
}

void jfloat_text(double f, char out[48])
{
    if (isnan(f) || isinf(f)) {
        snprintf(out, 48, "%s", isnan(f) ? "nan" : f > 0 ? "inf" : "-inf");
        return;
    }
    const char *sign = signbit(f) ? "-" : "";
    if (f == 0) {
        snprintf(out, 48, "%s0.0", sign);
        return;
    }
    char digits[24];
    int exponent;
    shortest_digits(fabs(f), digits, &exponent);
    const int n = (int)strlen(digits);
    if (exponent < -4 || exponent >= 16) {
        snprintf(out, 48, "%s%c%s%se%c%02d", sign, digits[0], n > 1 ? "." : "", digits + 1,
                 exponent < 0 ? '-' : '+', abs(exponent));
    } else if (exponent < 0) {
        snprintf(out, 48, "%s0.%.*s%s", sign, -exponent - 1, "0000", digits);
    } else if (n <= exponent + 1) {
        snprintf(out, 48, "%s%s%.*s.0", sign, digits, exponent + 1 - n, "0000000000000000");
    } else {
        snprintf(out, 48, "%s%.*s.%s", sign, exponent + 1, digits, digits + exponent + 1);
    }
}

static bool print_number(struct jbuild *b, const struct jvalue *v)
{
    char text[48];
    if (v->type == JV_BOOL) return jbuild_puts(b, v->u.b ? "True" : "False", v->user);
    if (v->type == JV_FLOAT) {
        jfloat_text(v->u.f, text);
    } else {
        snprintf(text, sizeof text, "%lld", (long long)v->u.i);
    }
    return jbuild_puts(b, text, v->user);
}

/* Python's str.isprintable for one character. */
static bool printable(uint32_t c)
{
    if (c < 0x7F) return c >= 0x20;
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
        return false;
    default:
        return true;
    }
}

static void escape_char(uint32_t c, char quote, char out[12])
{
    if (c == (uint32_t)quote || c == '\\') {
        snprintf(out, 12, "\\%c", (char)c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
        snprintf(out, 12, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
    } else if (c < 0x100) {
        snprintf(out, 12, "\\x%02x", (unsigned)c);
    } else {
        snprintf(out, 12, c < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)c);
    }
}

static bool repr_text(struct jbuild *b, const struct jtext *t)
{
    const bool single = t->n > 0 && memchr(t->p, '\'', t->n) != NULL;
    const bool twice = t->n > 0 && memchr(t->p, '"', t->n) != NULL;
    const char quote = single && !twice ? '"' : '\'';
    const char *mark = quote == '"' ? "\"" : "'";
    bool ok = jbuild_puts(b, mark, false);
    size_t good = 0, step;
    for (size_t i = 0; i < t->n && ok; i += step) {
        const uint32_t c = utf8_decode(t->p + i, t->n - i, &step);
        if (printable(c) && c != (uint32_t)quote && c != '\\') continue;
        char escaped[12];
        escape_char(c, quote, escaped);
        ok = jbuild_cut(b, t, good, i) && jbuild_puts(b, escaped, jtext_user(t, i));
        good = i + step;
    }
    return ok && jbuild_cut(b, t, good, t->n) && jbuild_puts(b, mark, false);
}

static bool repr_seq(struct jbuild *b, const struct jseq *s, const char *open, const char *close)
{
    bool ok = jbuild_puts(b, open, false);
    for (size_t i = 0; i < s->n && ok; i++) {
        ok = (i == 0 || jbuild_puts(b, ", ", false)) && jrepr(b, &s->v[i]);
    }
    if (ok && s->n == 1 && open[0] == '(') ok = jbuild_puts(b, ",", false);
    return ok && jbuild_puts(b, close, false);
}

static bool repr_dict(struct jbuild *b, const struct jdict *d)
{
    bool ok = jbuild_puts(b, "{", false);
    for (size_t i = 0; i < d->n && ok; i++) {
        ok = (i == 0 || jbuild_puts(b, ", ", false)) && jrepr(b, &d->pairs[i].key) &&
             jbuild_puts(b, ": ", false) && jrepr(b, &d->pairs[i].value);
    }
    return ok && jbuild_puts(b, "}", false);
}

static bool repr_inner(struct jbuild *b, const struct jvalue *v)
{
    switch ((enum jvalue_type)v->type) {
    case JV_UNDEFINED:
        return jbuild_puts(b, "Undefined", false);
    case JV_NONE:
        return jbuild_puts(b, "None", v->user);
    case JV_BOOL:
    case JV_INT:
    case JV_FLOAT:
        return print_number(b, v);
    case JV_TEXT:
        return repr_text(b, v->u.text);
    case JV_LIST:
        return repr_seq(b, v->u.seq, "[", "]");
    case JV_TUPLE:
        return repr_seq(b, v->u.seq, "(", ")");
    case JV_DICT:
        return repr_dict(b, v->u.dict);
    default:
        return jfail(b->r, "%s cannot be printed", jtype_name(v));
    }
}

bool jrepr(struct jbuild *b, const struct jvalue *v)
{
    if (!jenter(b->r)) return false;
    const bool ok = jsteps(b->r, 1) && repr_inner(b, v);
    jleave(b->r);
    return ok;
}

bool jprint(struct jbuild *b, const struct jvalue *v)
{
    if (v->type == JV_TEXT) return jbuild_text(b, v->u.text);
    if (v->type == JV_UNDEFINED && b->r->limits.is_strict)
        return jfail(b->r, "'%.60s' is undefined, and is printed", v->u.name);
    if (v->type == JV_UNDEFINED) return true;
    return jrepr(b, v);
}

bool jas_text(struct jrun *r, const struct jvalue *v, const struct jtext **out)
{
    if (v->type == JV_TEXT) {
        *out = v->u.text;
        return true;
    }
    struct jbuild b;
    struct jvalue text;
    jbuild_init(&b, r);
    if (!jprint(&b, v) || !jbuild_end(&b, &text)) return false;
    *out = text.u.text;
    return true;
}

struct conversion {
    bool left, zero;
    int width, precision; /* -1: not given */
    char letter;
};

static bool jinja_print_read_number(const struct jtext *f, size_t *at, int *out)
{
    *out = 0;
    bool any = false;
    for (; *at < f->n && f->p[*at] >= '0' && f->p[*at] <= '9'; (*at)++) {
        any = true;
        if (*out < 10000) *out = *out * 10 + (f->p[*at] - '0');
    }
    return any;
}

/* Reads the conversion whose '%' stands before *at, and moves *at past it. */
static bool read_conversion(struct jrun *r, const struct jtext *f, size_t *at,
                            struct conversion *out)
{
    *out = (struct conversion){.width = -1, .precision = -1};
    for (; *at < f->n && (f->p[*at] == '-' || f->p[*at] == '0'); (*at)++) {
        if (f->p[*at] == '-') out->left = true;
        if (f->p[*at] == '0') out->zero = true;
    }
    if (!jinja_print_read_number(f, at, &out->width)) out->width = -1;
    if (*at < f->n && f->p[*at] == '.') {
        (*at)++;
        if (!jinja_print_read_number(f, at, &out->precision)) out->precision = 0;
    }
    if (*at >= f->n || strchr("sdifr%", f->p[*at]) == NULL || out->width > 1000 ||
        out->precision > 100) {
        return jfail(r, "a format that is not supported; expected %%s, %%d, %%i, %%f, %%r or %%%%");
    }
    out->letter = f->p[(*at)++];
    return true;
}

static bool jinja_print_convert(struct jrun *r, const struct conversion *c, const struct jvalue *v,
                                struct jvalue *out)
{
    char text[512];
    struct jbuild b;
    jbuild_init(&b, r);
    if (c->letter == 's' || c->letter == 'r') {
        if (!(c->letter == 's' ? jprint(&b, v) : jrepr(&b, v)) || !jbuild_end(&b, out))
            return false;
        if (c->precision < 0) return true;
        return jtext_cut(r, out->u.text, 0, jchar_at(out->u.text, (size_t)c->precision), out);
    }
    if (!jis_number(v)) return jfail(r, "%%%c wants a number, not %s", c->letter, jtype_name(v));
    const int width = c->zero && !c->left && c->width > 0 ? c->width : 0;
    if (width > 400)
        return jfail(r, "a number padded to %d characters; expected at most 400", width);
    if (c->letter == 'f') {
        snprintf(text, sizeof text, "%0*.*f", width, c->precision < 0 ? 6 : c->precision,
                 jas_float(v));
    } else {
        int64_t i;
        if (!jas_int(v, &i)) {
            if (!(fabs(v->u.f) < 9e18))
                return jfail(r, "%%%c of a float that is not finite or beyond 64 bits", c->letter);
            i = (int64_t)v->u.f;
        }
        if (c->precision > 0 && c->precision >= width) {
            snprintf(text, sizeof text, "%.*lld", c->precision, (long long)i);
        } else {
            snprintf(text, sizeof text, "%0*lld", width, (long long)i);
        }
    }
    return jbuild_puts(&b, text, v->user) && jbuild_end(&b, out);
}

static bool add_padded(struct jbuild *b, const struct conversion *c, const struct jvalue *text)
{
    const size_t n = jchars(text->u.text);
    const size_t pad = c->width > 0 && (size_t)c->width > n ? (size_t)c->width - n : 0;
    bool ok = !c->left || jbuild_text(b, text->u.text);
    for (size_t i = 0; i < pad && ok; i++) ok = jbuild_puts(b, " ", false);
    return ok && (c->left || jbuild_text(b, text->u.text));
}

bool jformat(struct jrun *r, const struct jtext *format, const struct jvalue *v, size_t n,
             struct jvalue *out)
{
    struct jbuild b;
    jbuild_init(&b, r);
    size_t used = 0, good = 0;
    for (size_t i = 0; i < format->n;) {
        if (format->p[i] != '%') {
            i++;
            continue;
        }
        struct conversion c;
        struct jvalue text;
        if (!jbuild_cut(&b, format, good, i)) return false;
        i++;
        if (!read_conversion(r, format, &i, &c)) return false;
        good = i;
        if (c.letter == '%') {
            if (!jbuild_puts(&b, "%", jtext_user(format, i - 1))) return false;
            continue;
        }
        if (used == n) return jfail(r, "not enough values for a format");
        if (!jinja_print_convert(r, &c, &v[used++], &text) || !add_padded(&b, &c, &text))
            return false;
    }
    if (used < n) return jfail(r, "more values than a format takes");
    return jbuild_cut(&b, format, good, format->n) && jbuild_end(&b, out);
}

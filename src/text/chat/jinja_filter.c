/* Jinja's filters for strings and numbers, and its filters length and default. */
#include "text/chat/jinja_json.h"
#include "text/chat/jinja_value.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILTER(name)                                                                               \
    static bool name(struct jrun *r, const struct jvalue *self, const struct jvalue *a,            \
                     struct jvalue *out)

static bool cased(struct jrun *r, const struct jvalue *self, enum jcase how, struct jvalue *out)
{
    const struct jtext *t;
    return jas_text(r, self, &t) && jcased(r, t, how, out);
}

FILTER(filter_upper)
{
    (void)a;
    return cased(r, self, JCASE_UPPER, out);
}

FILTER(filter_lower)
{
    (void)a;
    return cased(r, self, JCASE_LOWER, out);
}

FILTER(filter_capitalize)
{
    (void)a;
    return cased(r, self, JCASE_CAPITALIZE, out);
}

FILTER(filter_title)
{
    (void)a;
    return cased(r, self, JCASE_WORDS, out);
}

FILTER(filter_trim)
{
    const struct jtext *t, *chars = NULL;
    if (!jas_text(r, self, &t)) return false;
    if (a[0].type > JV_NONE && !jas_text(r, &a[0], &chars)) return false;
    return jstrip(r, t, chars, true, true, out);
}

FILTER(filter_replace)
{
    const struct jtext *t, *old, *new;
    int64_t count = -1;
    if (!jas_text(r, self, &t) || !jas_text(r, &a[0], &old) || !jas_text(r, &a[1], &new)) {
        return false;
    }
    if (a[2].type > JV_NONE && !jas_int(&a[2], &count)) {
        return jfail(r, "replace: a count that is %s", jtype_name(&a[2]));
    }
    return jreplace(r, t, old, new, count, out);
}

FILTER(filter_string)
{
    (void)a;
    const struct jtext *t;
    if (self->type == JV_TEXT) {
        *out = *self;
        return true;
    }
    return jas_text(r, self, &t) && jtext_cut(r, t, 0, t->n, out);
}

FILTER(filter_safe)
{
    if (!filter_string(r, self, a, out)) return false;
    out->markup = true;
    return true;
}

FILTER(filter_escape)
{
    (void)a;
    static const char *const FROM[] = {"&", "<", ">", "'", "\""};
    static const char *const TO[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    const struct jtext *t;
    if (!jas_text(r, self, &t) || !jtext_cut(r, t, 0, t->n, out)) return false;
    for (size_t i = 0; i < 5 && !self->markup; i++) {
        struct jvalue from, to;
        if (!jtext_literal(r, FROM[i], &from) || !jtext_literal(r, TO[i], &to)) return false;
        if (!jreplace(r, out->u.text, from.u.text, to.u.text, -1, out)) return false;
    }
    out->markup = true;
    return true;
}

FILTER(filter_length)
{
    (void)a;
    switch ((enum jvalue_type)self->type) {
    case JV_UNDEFINED:
        *out = jint(0);
        return true;
    case JV_TEXT:
        *out = jint((int64_t)jchars(self->u.text));
        return jsteps(r, self->u.text->n / 16);
    case JV_LIST:
    case JV_TUPLE:
    case JV_RANGE:
    case JV_VIEW:
        *out = jint((int64_t)self->u.seq->n);
        return true;
    case JV_DICT:
        *out = jint((int64_t)self->u.dict->n);
        return true;
    case JV_LOOP:
        *out = jint((int64_t)self->u.loop->n);
        return true;
    default:
        return jfail(r, "%s has no length", jtype_name(self));
    }
}

FILTER(filter_default)
{
    const bool absent = self->type == JV_UNDEFINED || (jtruth(&a[1]) && !jtruth(self));
    if (!absent) {
        *out = *self;
        return true;
    }
    *out = a[0];
    return a[0].type != JV_ABSENT || jtext_literal(r, "", out);
}

/* Copies the text without the blanks at its ends and without single underscores inside it. False:
 * the copy would be empty or longer than 127 bytes, the text has a NUL or one of the characters in
 * `refused`, or the template failed (r->st). */
static bool number_text(struct jrun *r, const struct jtext *t, const char *refused, char out[128])
{
    struct jvalue bare;
    if (!jstrip(r, t, NULL, true, true, &bare)) return false;
    size_t n = 0;
    const struct jtext *b = bare.u.text;
    for (size_t i = 0; i < b->n; i++) {
        const char c = b->p[i];
        if (c == '_' && i > 0 && i + 1 < b->n && b->p[i - 1] != '_' && b->p[i + 1] != '_') continue;
        if (n == 127 || c == '\0' || strchr(refused, c) != NULL) return false;
        out[n++] = c;
    }
    out[n] = '\0';
    return n > 0;
}

static bool parse_float(struct jrun *r, const struct jtext *t, double *out)
{
    char text[128], *end;
    /* strtod reads hexadecimal numbers and nan(...), Python's float does not */
    if (!number_text(r, t, "xXpP(", text)) return false;
    *out = strtod(text, &end);
    return *end == '\0';
}

/* Removes the letter of the prefix 0o (base 8) or 0b (base 2), which Python's int accepts and
 * strtoll does not. */
static void drop_prefix_letter(char *text, int base)
{
    char *zero = text + (text[0] == '+' || text[0] == '-');
    const char letter = base == 8 ? 'o' : 'b';
    const bool has_prefix = zero[0] == '0' && (zero[1] | 0x20) == letter && zero[2] != '\0';
    if ((base == 8 || base == 2) && has_prefix) memmove(zero + 1, zero + 2, strlen(zero + 2) + 1);
}

static bool parse_int(struct jrun *r, const struct jtext *t, int base, int64_t *out)
{
    char text[128], *end;
    if (!number_text(r, t, "", text)) return false;
    drop_prefix_letter(text, base);
    errno = 0;
    *out = strtoll(text, &end, base);
    return *end == '\0' && errno == 0;
}

FILTER(filter_int)
{
    int64_t i, base = 10;
    double f = NAN;
    if (a[1].type != JV_ABSENT && (!jas_int(&a[1], &base) || base < 2 || base > 36)) {
        return jfail(r, "int: a base that is not 2 to 36");
    }
    *out = a[0].type == JV_ABSENT ? jint(0) : a[0];
    if (jas_int(self, &i) || (self->type == JV_TEXT && parse_int(r, self->u.text, (int)base, &i))) {
        *out = jint(i);
    } else if (self->type == JV_FLOAT ||
               (self->type == JV_TEXT && parse_float(r, self->u.text, &f))) {
        if (self->type == JV_FLOAT) f = self->u.f;
        if (fabs(f) >= 9.2e18) return jfail(r, "int: a number beyond 64 bits");
        if (!isnan(f)) *out = jint((int64_t)f);
    } else {
        return !status_failed(&r->st);
    }
    out->user = self->user || (self->type == JV_TEXT && self->u.text->user != NULL);
    return true;
}

FILTER(filter_float)
{
    double f;
    *out = a[0].type == JV_ABSENT ? jfloat(0) : a[0];
    if (jis_number(self)) {
        *out = jfloat(jas_float(self));
    } else if (self->type == JV_TEXT && parse_float(r, self->u.text, &f)) {
        *out = jfloat(f);
    } else {
        return !status_failed(&r->st);
    }
    out->user = self->user || (self->type == JV_TEXT && self->u.text->user != NULL);
    return true;
}

FILTER(filter_abs)
{
    (void)a;
    int64_t i;
    if (!jis_number(self)) return jfail(r, "abs of %s", jtype_name(self));
    *out = *self;
    if (self->type == JV_FLOAT) {
        out->u.f = fabs(self->u.f);
    } else {
        jas_int(self, &i);
        if (i == INT64_MIN) return jfail(r, "an integer beyond 64 bits");
        *out = jint(i < 0 ? -i : i);
        out->user = self->user;
    }
    return true;
}

FILTER(filter_round)
{
    int64_t precision = 0;
    char text[400];
    if (!jis_number(self)) return jfail(r, "round of %s", jtype_name(self));
    if (a[0].type != JV_ABSENT &&
        (!jas_int(&a[0], &precision) || precision < 0 || precision > 17)) {
        return jfail(r, "round: a precision that is not 0 to 17");
    }
    const bool common = a[1].type == JV_ABSENT || jtext_is(&a[1], "common");
    const bool up = jtext_is(&a[1], "ceil");
    if (!common && !up && !jtext_is(&a[1], "floor")) return jfail(r, "round: an unknown method");
    *out = *self;
    if (common) {
        if (self->type == JV_FLOAT && isfinite(self->u.f)) {
            snprintf(text, sizeof text, "%.*f", (int)precision, self->u.f);
            out->u.f = strtod(text, NULL);
        }
        return true;
    }
    const double scale = pow(10, (double)precision), f = jas_float(self) * scale;
    *out = jfloat((up ? ceil(f) : floor(f)) / scale);
    out->user = self->user;
    return true;
}

/* Indents all lines, but the first line and empty lines only if requested. */
FILTER(filter_indent)
{
    static const char BLANKS[] = "                                                                ";
    const struct jtext *t;
    struct jvalue indent, lines;
    int64_t width = 4;
    if (self->type != JV_TEXT) return jfail(r, "indent of %s", jtype_name(self));
    t = self->u.text;
    if (a[0].type == JV_TEXT) {
        indent = a[0];
    } else {
        if (a[0].type != JV_ABSENT && !jas_int(&a[0], &width))
            return jfail(r, "indent: a bad width");
        if (width > 64) return jfail(r, "indent: a width of more than 64");
        if (!jtext_literal(r, BLANKS + 64 - (width < 0 ? 0 : width), &indent)) return false;
    }
    struct jbuild b;
    jbuild_init(&b, r);
    if (!jbuild_text(&b, t) || !jbuild_puts(&b, "\n", false) || !jbuild_end(&b, &lines))
        return false;
    if (!jsplit_lines(r, lines.u.text, false, &lines)) return false;
    const bool first = jtruth(&a[1]), blank = jtruth(&a[2]);
    jbuild_init(&b, r);
    for (size_t i = 0; i < lines.u.seq->n; i++) {
        const struct jtext *line = lines.u.seq->v[i].u.text;
        const bool indented = i == 0 ? first : blank || line->n > 0;
        if (i > 0 && !jbuild_puts(&b, "\n", false)) return false;
        if (indented && !jbuild_text(&b, indent.u.text)) return false;
        if (!jbuild_text(&b, line)) return false;
    }
    return jbuild_end(&b, out);
}

static bool filter_format(struct jrun *r, const struct jvalue *self, const struct jargs *args,
                          struct jvalue *out)
{
    const struct jtext *t;
    if (args->n_named > 0) return jfail(r, "format: named values are not supported");
    return jas_text(r, self, &t) && jformat(r, t, args->v, args->n, out);
}

const struct jfunction JINJA_TEXT_FILTERS[] = {
    {.name = "upper", .fn = filter_upper},
    {.name = "lower", .fn = filter_lower},
    {.name = "capitalize", .fn = filter_capitalize},
    {.name = "title", .fn = filter_title},
    {.name = "trim", .fn = filter_trim, .params = {"chars"}},
    {.name = "replace", .fn = filter_replace, .params = {"old", "new", "count"}, .n_required = 2},
    {.name = "string", .fn = filter_string},
    {.name = "safe", .fn = filter_safe},
    {.name = "escape", .fn = filter_escape},
    {.name = "e", .fn = filter_escape},
    {.name = "length", .fn = filter_length},
    {.name = "count", .fn = filter_length},
    {.name = "default", .fn = filter_default, .params = {"default_value", "boolean"}},
    {.name = "d", .fn = filter_default, .params = {"default_value", "boolean"}},
    {.name = "int", .fn = filter_int, .params = {"default", "base"}},
    {.name = "float", .fn = filter_float, .params = {"default"}},
    {.name = "abs", .fn = filter_abs},
    {.name = "round", .fn = filter_round, .params = {"precision", "method"}},
    {.name = "indent", .fn = filter_indent, .params = {"width", "first", "blank"}},
    {.name = "format", .raw = filter_format},
    {.name = "tojson",
     .fn = jinja_filter_tojson,
     .params = {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {.name = NULL},
};

/* Calls filters, tests, methods, global functions and macros; defines the global functions. */
#include "text/chat/jinja_run.h"

#include <stdio.h>
#include <string.h>

const struct jfunction *jfunction_find(const struct jfunction *table, const char *name, size_t n,
                                       unsigned types)
{
    for (const struct jfunction *f = table; f->name != NULL; f++) {
        if (strlen(f->name) != n || memcmp(f->name, name, n) != 0) continue;
        if (types == 0 || (f->types & types) != 0) return f;
    }
    return NULL;
}

const struct jfunction *jfilter_find(const char *name, size_t n)
{
    const struct jfunction *f = jfunction_find(JINJA_TEXT_FILTERS, name, n, 0);
    return f != NULL ? f : jfunction_find(JINJA_SEQ_FILTERS, name, n, 0);
}

static int param_of(const struct jfunction *fn, const struct jtext *name)
{
    for (int i = 0; i < JFUNCTION_PARAMS && fn->params[i] != NULL; i++) {
        if (strlen(fn->params[i]) == name->n && memcmp(fn->params[i], name->p, name->n) == 0) {
            return i;
        }
    }
    return -1;
}

static bool bind(struct jrun *r, const struct jfunction *fn, const struct jargs *args,
                 struct jvalue a[JFUNCTION_PARAMS])
{
    size_t n_params = 0;
    while (n_params < JFUNCTION_PARAMS && fn->params[n_params] != NULL) n_params++;
    memset(a, 0, JFUNCTION_PARAMS * sizeof a[0]);
    if (args->n > n_params) {
        return jfail(r, "'%s' takes at most %zu arguments, not %zu", fn->name, n_params, args->n);
    }
    for (size_t i = 0; i < args->n; i++) a[i] = args->v[i];
    for (size_t i = 0; i < args->n_named; i++) {
        const struct jnamed *named = &args->named[i];
        const int at = param_of(fn, &named->name);
        if (at < 0 || a[at].type != JV_ABSENT) {
            return jfail(r, "'%s' has no argument '%.*s', or has it already", fn->name,
                         (int)(named->name.n < 40 ? named->name.n : 40), named->name.p);
        }
        a[at] = named->value;
    }
    for (int i = 0; i < fn->n_required; i++) {
        if (a[i].type == JV_ABSENT)
            return jfail(r, "'%s' needs the argument '%s'", fn->name, fn->params[i]);
    }
    return true;
}

bool jcall_function(struct jrun *r, const struct jfunction *fn, const struct jvalue *self,
                    const struct jargs *args, struct jvalue *out)
{
    struct jvalue a[JFUNCTION_PARAMS];
    if (!jsteps(r, 1)) return false;
    if (fn->raw != NULL) return fn->raw(r, self, args, out);
    return bind(r, fn, args, a) && fn->fn(r, self, a, out);
}

bool jcall(struct jrun *r, const struct jvalue *callee, const struct jargs *args,
           struct jvalue *out)
{
    if (callee->type == JV_FUNCTION) return jcall_function(r, callee->u.fn, NULL, args, out);
    if (callee->type == JV_METHOD) {
        return jcall_function(r, callee->u.method->fn, &callee->u.method->self, args, out);
    }
    if (callee->type == JV_MACRO) return jmacro_call(r, callee->u.macro, args, out);
    if (callee->type == JV_UNDEFINED) {
        return jfail(r, "'%.60s' is called, but it is undefined or not allowed here",
                     callee->u.name);
    }
    return jfail(r, "%s cannot be called", jtype_name(callee));
}

static bool global_range(struct jrun *r, const struct jvalue *self, const struct jargs *args,
                         struct jvalue *out)
{
    (void)self;
    int64_t v[3] = {0, 0, 1};
    if (args->n < 1 || args->n > 3 || args->n_named > 0) {
        return jfail(r, "range takes one to three arguments");
    }
    for (size_t i = 0; i < args->n; i++) {
        if (!jas_int(&args->v[i], &v[args->n == 1 ? 1 : i])) {
            return jfail(r, "range wants integers, not %s", jtype_name(&args->v[i]));
        }
    }
    const __int128 span = v[2] > 0 ? (__int128)v[1] - v[0] : (__int128)v[0] - v[1];
    const __int128 step = v[2] > 0 ? v[2] : -(__int128)v[2];
    if (step == 0) return jfail(r, "range with the step 0");
    const __int128 n = span <= 0 ? 0 : (span + step - 1) / step;
    if (n > 100000) return jfail(r, "a range of more than 100000 elements");
    struct jvalue *items;
    if (!jseq_new(r, JV_RANGE, (size_t)n, &items, out)) return false;
    for (size_t i = 0; i < (size_t)n; i++) items[i] = jint(v[0] + (int64_t)i * v[2]);
    return true;
}

/* Makes dict(...) or namespace(...) from the pairs of a mapping and the named arguments. */
static bool jinja_call_fill(struct jrun *r, const struct jargs *args, enum jvalue_type type,
                            struct jvalue *out)
{
    if (args->n > 1 || (args->n == 1 && args->v[0].type != JV_DICT)) {
        return jfail(r, "dict and namespace take a mapping and named arguments");
    }
    if (!jdict_new(r, args->n_named, type, out)) return false;
    const struct jdict *from = args->n == 1 ? args->v[0].u.dict : NULL;
    for (size_t i = 0; from != NULL && i < from->n; i++) {
        if (!jdict_put(r, out->u.dict, &from->pairs[i].key, &from->pairs[i].value)) return false;
    }
    for (size_t i = 0; i < args->n_named; i++) {
        const struct jvalue key = {.type = JV_TEXT, .u.text = &args->named[i].name};
        if (!jdict_put(r, out->u.dict, &key, &args->named[i].value)) return false;
    }
    return true;
}

static bool global_dict(struct jrun *r, const struct jvalue *self, const struct jargs *args,
                        struct jvalue *out)
{
    (void)self;
    return jinja_call_fill(r, args, JV_DICT, out);
}

static bool global_namespace(struct jrun *r, const struct jvalue *self, const struct jargs *args,
                             struct jvalue *out)
{
    (void)self;
    return jinja_call_fill(r, args, JV_NAMESPACE, out);
}

static bool global_raise(struct jrun *r, const struct jvalue *self, const struct jvalue *a,
                         struct jvalue *out)
{
    (void)self;
    (void)out;
    const struct jtext *text;
    if (!jas_text(r, &a[0], &text)) return false;
    r->st = status_make(STATUS_REQUEST, "chat template: %.*s",
                        (int)(text->n < STATUS_TEXT_MAX ? text->n : STATUS_TEXT_MAX), text->p);
    return false;
}

static int weekday(const struct jinja_date *d)
{
    static const int SHIFT[] = {0, 3, 2, 5, 0, 3, 5, 1, 4, 6, 2, 4};
    const int y = d->month < 3 ? d->year - 1 : d->year;
    return (y + y / 4 - y / 100 + y / 400 + SHIFT[d->month - 1] + d->day) % 7;
}

static int day_of_year(const struct jinja_date *d)
{
    static const int BEFORE[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    const bool leap = (d->year % 4 == 0 && d->year % 100 != 0) || d->year % 400 == 0;
    return BEFORE[d->month - 1] + d->day + (leap && d->month > 2);
}

/* Writes the name of the month or weekday, or its first three letters, or AM or PM. False: another
 * directive. */
static bool date_name(char letter, const struct jinja_date *d, char out[16])
{
    static const char *const DAYS[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                       "Thursday", "Friday", "Saturday"};
    static const char *const MONTHS[] = {"January",   "February", "March",    "April",
                                         "May",       "June",     "July",     "August",
                                         "September", "October",  "November", "December"};
    const char *name = NULL;
    if (letter == 'A' || letter == 'a') name = DAYS[weekday(d)];
    if (letter == 'B' || letter == 'b' || letter == 'h') name = MONTHS[d->month - 1];
    if (letter == 'p') name = d->hour < 12 ? "AM" : "PM";
    if (name == NULL) return false;
    snprintf(out, 16, letter == 'A' || letter == 'B' ? "%s" : "%.3s", name);
    return true;
}

/* Writes the result of one strftime directive in the C locale; `bare` (%-d) drops the padding.
 * False: an unknown directive. */
static bool date_part(char letter, bool bare, const struct jinja_date *d, char out[16])
{
    int value, width = 2;
    char pad = '0';
    switch (letter) {
    case 'Y':
        value = d->year;
        width = 4;
        break;
    case 'y':
        value = d->year % 100;
        break;
    case 'm':
        value = d->month;
        break;
    case 'd':
        value = d->day;
        break;
    case 'e':
        value = d->day;
        pad = ' ';
        break;
    case 'H':
        value = d->hour;
        break;
    case 'I':
        value = d->hour % 12 == 0 ? 12 : d->hour % 12;
        break;
    case 'M':
        value = d->minute;
        break;
    case 'S':
        value = d->second;
        break;
    case 'j':
        value = day_of_year(d);
        width = 3;
        break;
    case 'u':
        value = weekday(d) == 0 ? 7 : weekday(d);
        width = 1;
        break;
    case 'w':
        value = weekday(d);
        width = 1;
        break;
    default:
        return date_name(letter, d, out);
    }
    snprintf(out, 16, pad == '0' ? "%0*d" : "%*d", bare ? 1 : width, value);
    return true;
}

static bool add_formatted(struct jbuild *b, const struct jtext *format);

/* Appends the results of the directives in `format`, for which one directive such as %F stands. */
static bool add_expanded(struct jbuild *b, const char *format)
{
    struct jvalue text;
    return jtext_literal(b->r, format, &text) && add_formatted(b, text.u.text);
}

/* Appends the result of one directive. letter '\0': the format ends after its %. */
static bool add_directive(struct jbuild *b, char letter, bool bare, bool user)
{
    char part[16] = "";
    switch (letter) {
    case '%':
        return jbuild_puts(b, "%", user);
    case 'n':
        return jbuild_puts(b, "\n", user);
    case 't':
        return jbuild_puts(b, "\t", user);
    case 'F':
        return add_expanded(b, "%Y-%m-%d");
    case 'T':
        return add_expanded(b, "%H:%M:%S");
    case 'D':
        return add_expanded(b, "%m/%d/%y");
    case 'R':
        return add_expanded(b, "%H:%M");
    default:
        if (date_part(letter, bare, b->r->now, part)) return jbuild_puts(b, part, user);
        return jfail(b->r, "strftime_now does not know '%%%c'", letter == '\0' ? '%' : letter);
    }
}

static bool add_formatted(struct jbuild *b, const struct jtext *format)
{
    for (size_t i = 0; i < format->n; i++) {
        if (format->p[i] != '%') {
            if (!jbuild_cut(b, format, i, i + 1)) return false;
            continue;
        }
        const bool bare = i + 1 < format->n && format->p[i + 1] == '-';
        i += bare ? 2 : 1;
        const char letter = i < format->n ? format->p[i] : '\0';
        if (!add_directive(b, letter, bare, jtext_user(format, i - 1))) return false;
    }
    return true;
}

static bool global_strftime(struct jrun *r, const struct jvalue *self, const struct jvalue *a,
                            struct jvalue *out)
{
    (void)self;
    struct jbuild b;
    jbuild_init(&b, r);
    if (a[0].type != JV_TEXT) return jfail(r, "strftime_now wants a string");
    return add_formatted(&b, a[0].u.text) && jbuild_end(&b, out);
}

const struct jfunction JINJA_GLOBALS[] = {
    {.name = "range", .raw = global_range},
    {.name = "dict", .raw = global_dict},
    {.name = "namespace", .raw = global_namespace},
    {.name = "raise_exception", .fn = global_raise, .params = {"message"}, .n_required = 1},
    {.name = "strftime_now", .fn = global_strftime, .params = {"format"}, .n_required = 1},
    {.name = NULL},
};

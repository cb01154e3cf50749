/* Flag tables over getopt_long. */
#include "flags.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FLAGS_MAX = 96, HELP_ID = 1000 };

static struct status bad_value(const struct flag *f, const char *text, const char *expected)
{
    if (f->least != 0 || f->most != 0) {
        return status_make(STATUS_USAGE, "--%s: expected %s from %g to %g, found \"%s\"", f->name,
                           expected, f->least, f->most, text);
    }
    return status_make(STATUS_USAGE, "--%s: expected %s, found \"%s\"", f->name, expected, text);
}

static bool in_limits(const struct flag *f, double value)
{
    return (f->least == 0 && f->most == 0) || (value >= f->least && value <= f->most);
}

static struct status set_integer(const struct flag *f, const char *text, char *at)
{
    char *end;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    const bool parsed = *text != '\0' && *end == '\0' && errno == 0;
    const bool negative_ok = f->kind == FLAG_I64;
    if (!parsed || (value < 0 && !negative_ok) || !in_limits(f, (double)value) ||
        (f->kind == FLAG_COUNT && value > UINT32_MAX)) {
        return bad_value(f, text, "an integer");
    }
    const uint32_t count = (uint32_t)value;
    const int64_t wide = value;
    if (f->kind == FLAG_COUNT) {
        memcpy(at, &count, sizeof count);
    } else {
        memcpy(at, &wide, sizeof wide); /* FLAG_U64 and FLAG_I64: the value is in both ranges */
    }
    return status_ok();
}

static struct status set_number(const struct flag *f, const char *text, char *at)
{
    char *end;
    const double value = strtod(text, &end);
    if (*text == '\0' || *end != '\0' || !isfinite(value) || !in_limits(f, value)) {
        return bad_value(f, text, "a number");
    }
    memcpy(at, &value, sizeof value);
    return status_ok();
}

static struct status set_value(const struct flag *f, const char *text, void *out)
{
    char *at = (char *)out + f->offset;
    switch (f->kind) {
    case FLAG_STRING:
        memcpy(at, &text, sizeof text);
        return status_ok();
    case FLAG_SWITCH:
        *(bool *)at = true;
        return status_ok();
    case FLAG_NUMBER:
        return set_number(f, text, at);
    case FLAG_LIST: {
        struct flag_list *list = (struct flag_list *)at;
        if (list->n == FLAG_LIST_MAX) {
            return status_make(STATUS_USAGE, "--%s: given more than %d times", f->name,
                               FLAG_LIST_MAX);
        }
        list->values[list->n++] = text;
        return status_ok();
    }
    default:
        return set_integer(f, text, at);
    }
}

static struct status take_positionals(int argc, char **argv, int from, struct positionals *p)
{
    for (int i = from; i < argc; i++) {
        if (p->n == p->n_wanted) {
            return status_make(STATUS_USAGE, "%s: unexpected argument \"%s\"", argv[0], argv[i]);
        }
        p->values[p->n++] = argv[i];
    }
    return status_ok();
}

struct status flags_parse(const struct flag *table, size_t n_flags, int argc, char **argv,
                          void *out, struct positionals *positionals, bool *help)
{
    struct option options[FLAGS_MAX + 2];
    memset(options, 0, sizeof options);
    for (size_t i = 0; i < n_flags; i++) {
        options[i] = (struct option){table[i].name,
                                     table[i].kind == FLAG_SWITCH ? no_argument : required_argument,
                                     NULL, (int)i};
    }
    options[n_flags] = (struct option){"help", no_argument, NULL, HELP_ID};
    *help = false;
    opterr = 0;
    optind = 1;
    for (;;) {
        const int at = optind;
        const int id = getopt_long(argc, argv, ":", options, NULL);
        if (id == -1) break;
        if (id == HELP_ID) {
            *help = true;
            return status_ok();
        }
        if (id == ':') {
            return status_make(STATUS_USAGE, "%s: needs a value", argv[optind - 1]);
        }
        if (id == '?') {
            return status_make(STATUS_USAGE, "%s: no such flag for `shoal %s`; see shoal %s --help",
                               argv[at], argv[0], argv[0]);
        }
        TRY(set_value(&table[id], optarg != NULL ? optarg : "", out));
    }
    return take_positionals(argc, argv, optind, positionals);
}

void flags_print(const struct flag *table, size_t n_flags, FILE *out)
{
    for (size_t i = 0; i < n_flags; i++) {
        if (table[i].help == NULL) continue;
        char left[64];
        snprintf(left, sizeof left, "--%s %s", table[i].name,
                 table[i].argument != NULL ? table[i].argument : "");
        fprintf(out, "  %-28s %s\n", left, table[i].help);
    }
}

/* Flag tables over getopt_long. */
#include "flags.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FLAGS_MAX = 96, HELP_ID = 1000, MAN_ID };

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
                          void *out, struct positionals *positionals, enum flags_ask *ask)
{
    struct option options[FLAGS_MAX + 3];
    memset(options, 0, sizeof options);
    for (size_t i = 0; i < n_flags; i++) {
        options[i] = (struct option){table[i].name,
                                     table[i].kind == FLAG_SWITCH ? no_argument : required_argument,
                                     NULL, (int)i};
    }
    options[n_flags] = (struct option){"help", no_argument, NULL, HELP_ID};
    options[n_flags + 1] = (struct option){"help-man", no_argument, NULL, MAN_ID};
    *ask = FLAGS_RUN;
    opterr = 0;
    optind = 1;
    for (;;) {
        const int at = optind;
        const int id = getopt_long(argc, argv, ":", options, NULL);
        if (id == -1) break;
        if (id == HELP_ID || id == MAN_ID) {
            *ask = id == HELP_ID ? FLAGS_HELP : FLAGS_MAN;
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

static void print_help(const struct flags_page *p, FILE *out)
{
    fprintf(out, "usage: shoal %s %s\n%s\n\n%s\n\n", p->command, p->arguments, p->summary,
            p->description);
    for (size_t i = 0; i < p->n_flags; i++) {
        const struct flag *f = &p->table[i];
        if (f->help == NULL) continue;
        char left[64];
        snprintf(left, sizeof left, "--%s %s", f->name, f->argument != NULL ? f->argument : "");
        fprintf(out, "  %-28s %s\n", left, f->help);
    }
}

/* Text for man(7): a line must not begin with a control character, hyphens and backslashes are
 * escaped. */
static void print_roff(const char *text, FILE *out)
{
    for (const char *c = text; *c != '\0'; c++) {
        const bool line_start = c == text || c[-1] == '\n';
        if (line_start && (*c == '.' || *c == '\'')) fputs("\\&", out);
        if (*c == '-')
            fputs("\\-", out);
        else if (*c == '\\')
            fputs("\\e", out);
        else if (*c == '\n')
            fputs("\n.PP\n", out);
        else
            fputc(*c, out);
    }
}

static void print_man(const struct flags_page *p, FILE *out)
{
    fprintf(out, ".TH SHOAL-%s 1 \"\" \"shoal %s\"\n.SH NAME\nshoal\\-%s \\- ", p->command,
            SHOAL_VERSION, p->command);
    print_roff(p->summary, out);
    fprintf(out, "\n.SH SYNOPSIS\n.B shoal %s\n", p->command);
    print_roff(p->arguments, out);
    fputs("\n.SH DESCRIPTION\n", out);
    print_roff(p->description, out);
    fputs("\n.SH OPTIONS\n", out);
    for (size_t i = 0; i < p->n_flags; i++) {
        const struct flag *f = &p->table[i];
        if (f->help == NULL) continue;
        fputs(".TP\n.B ", out);
        print_roff("--", out);
        print_roff(f->name, out);
        fprintf(out, " %s\n", f->argument != NULL ? f->argument : "");
        print_roff(f->help, out);
        fputc('\n', out);
    }
    fputs(".SH EXIT STATUS\n0 done; 2 wrong flags; 3 a checkpoint or an input cannot be used; "
          "4 error rows with \\-\\-strict; 75 drained before the end; 76 a rank was lost.\n",
          out);
}

void flags_print(const struct flags_page *page, enum flags_ask ask, FILE *out)
{
    if (ask == FLAGS_MAN)
        print_man(page, out);
    else
        print_help(page, out);
}

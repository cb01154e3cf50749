/* Reading arguments by a flag table, and printing one. */
#include "options/flags.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct status bad_value(const struct flag *f, const char *text, const char *expected)
{
    if (f->least != 0 || f->most != 0) {
        return status_make(STATUS_USAGE, "--%s: expected %s from %.15g to %.15g, found \"%s\"",
                           f->name, expected, f->least, f->most, text);
    }
    return status_make(STATUS_USAGE, "--%s: expected %s, found \"%s\"", f->name, expected, text);
}

static bool in_limits(const struct flag *f, double value)
{
    return (f->least == 0 && f->most == 0) || (value >= f->least && value <= f->most);
}

/* Digits with an optional sign, nothing else: no blanks, no hexadecimal. */
static bool is_decimal(const char *text)
{
    const char *digits = *text == '-' || *text == '+' ? text + 1 : text;
    return *digits != '\0' && digits[strspn(digits, "0123456789")] == '\0';
}

static struct status set_u64(const struct flag *f, const char *text, char *at)
{
    errno = 0;
    const uint64_t value = strtoull(text, NULL, 10);
    if (!is_decimal(text) || *text == '-' || errno != 0 || !in_limits(f, (double)value)) {
        const bool is_whole = f->kind == FLAG_U64 && f->least == 0 && f->most == 0;
        return bad_value(f, text,
                         is_whole ? "an integer from 0 to 18446744073709551615" : "an integer");
    }
    memcpy(at, &value, sizeof value);
    return status_ok();
}

static struct status set_i64(const struct flag *f, const char *text, char *at)
{
    errno = 0;
    const int64_t value = strtoll(text, NULL, 10);
    if (!is_decimal(text) || errno != 0 || !in_limits(f, (double)value)) {
        return bad_value(f, text, "an integer");
    }
    memcpy(at, &value, sizeof value);
    return status_ok();
}

static struct status set_count(const struct flag *f, const char *text, char *at)
{
    uint64_t value;
    TRY(set_u64(f, text, (char *)&value));
    const uint32_t count = (uint32_t)value;
    if (value > UINT32_MAX) return bad_value(f, text, "an integer");
    memcpy(at, &count, sizeof count);
    return status_ok();
}

static struct status set_number(const struct flag *f, const char *text, char *at)
{
    char *end;
    const double value = strtod(text, &end);
    const bool is_plain = text[strspn(text, "0123456789+-.eE")] == '\0'; /* strtod takes more */
    if (!is_plain || *text == '\0' || *end != '\0' || !isfinite(value) || !in_limits(f, value)) {
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
    case FLAG_COUNT:
        return set_count(f, text, at);
    case FLAG_U64:
        return set_u64(f, text, at);
    default:
        return set_i64(f, text, at);
    }
}

/* Only whole names are flags: an abbreviation would change its meaning when flags are added. */
static const struct flag *find_flag(const struct flag *table, size_t n_flags, const char *name,
                                    size_t n)
{
    for (size_t i = 0; i < n_flags; i++) {
        if (strlen(table[i].name) == n && memcmp(table[i].name, name, n) == 0) return &table[i];
    }
    return NULL;
}

/* How many letters must be changed, added or taken away to make b of a; both shorter than 64. */
static size_t distance(const char *a, size_t n, const char *b, size_t m)
{
    size_t row[64];
    for (size_t k = 0; k <= m; k++) row[k] = k;
    for (size_t i = 1; i <= n; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t k = 1; k <= m; k++) {
            size_t least = diagonal + (a[i - 1] != b[k - 1]);
            if (least > row[k] + 1) least = row[k] + 1;
            if (least > row[k - 1] + 1) least = row[k - 1] + 1;
            diagonal = row[k];
            row[k] = least;
        }
    }
    return row[m];
}

/* The only flag that begins so; NULL: none does, or several. */
static const struct flag *longer_flag(const struct flag *table, size_t n_flags, const char *name,
                                      size_t n)
{
    const struct flag *found = NULL;
    for (size_t i = 0; i < n_flags; i++) {
        if (table[i].help == NULL || strncmp(table[i].name, name, n) != 0) continue;
        if (found != NULL) return NULL;
        found = &table[i];
    }
    return found;
}

/* The flag that was perhaps meant; NULL: none is near. */
static const struct flag *near_flag(const struct flag *table, size_t n_flags, const char *name,
                                    size_t n)
{
    const struct flag *found = n > 3 ? longer_flag(table, n_flags, name, n) : NULL;
    size_t best = 3;
    for (size_t i = 0; i < n_flags && n > 3 && n < 64; i++) {
        const size_t m = strlen(table[i].name);
        const size_t d = m < 64 && table[i].help != NULL ? distance(name, n, table[i].name, m) : 64;
        if (d < best) found = &table[i];
        if (d < best) best = d;
    }
    return found;
}

static struct status take_positional(char **argv, char *value, struct positionals *p)
{
    if (p->n == p->n_wanted) {
        return status_make(STATUS_USAGE, "\"%s\": %s; see shoal %s --help", value,
                           p->n_wanted == 0 ? "no argument is taken but flags, which begin with --"
                                            : "an argument too many",
                           argv[0]);
    }
    p->values[p->n++] = value;
    return status_ok();
}

/* Takes argv[*at], which begins with a dash, and its value. */
static struct status take_flag(const struct flag *table, size_t n_flags, char **argv, int *at,
                               void *out)
{
    const char *text = argv[*at];
    const size_t n = strncmp(text, "--", 2) == 0 ? strcspn(text + 2, "=") : 0;
    const struct flag *f = find_flag(table, n_flags, text + 2, n);
    const struct flag *meant = f == NULL ? near_flag(table, n_flags, text + 2, n) : NULL;
    if (meant != NULL) {
        return status_make(STATUS_USAGE, "%s: no such flag for `shoal %s`; did you mean --%s?",
                           text, argv[0], meant->name);
    }
    if (n == 0 || f == NULL) {
        return status_make(STATUS_USAGE, "%s: no such flag for `shoal %s`; see shoal %s --help",
                           text, argv[0], argv[0]);
    }
    const char *value = text[2 + n] == '=' ? text + 3 + n : NULL;
    if (f->kind == FLAG_SWITCH) {
        if (value == NULL) return set_value(f, "", out);
        return status_make(STATUS_USAGE, "--%s: takes no value, found \"%s\"", f->name, value);
    }
    if (value == NULL) value = argv[++*at];
    if (value == NULL) return status_make(STATUS_USAGE, "--%s: needs a value", f->name);
    return set_value(f, value, out);
}

struct status flags_parse(const struct flag *table, size_t n_flags, int argc, char **argv,
                          void *out, struct positionals *positionals, enum flags_ask *ask)
{
    bool flags_ended = false;
    *ask = FLAGS_RUN;
    for (int i = 1; i < argc; i++) {
        const bool is_flag = !flags_ended && argv[i][0] == '-' && argv[i][1] != '\0';
        if (!is_flag) {
            TRY(take_positional(argv, argv[i], positionals));
        } else if (strcmp(argv[i], "--") == 0) {
            flags_ended = true;
        } else if (strcmp(argv[i], "--help-man") == 0) {
            *ask = FLAGS_MAN;
            return status_ok();
        } else if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            *ask = FLAGS_HELP;
            return status_ok();
        } else {
            TRY(take_flag(table, n_flags, argv, &i, out));
        }
    }
    return status_ok();
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
          "4 error rows with \\-\\-strict, or other rows with \\-\\-audit; 75 drained before the "
          "end, the same command resumes; 76 a rank was lost, the same command resumes.\n",
          out);
}

void flags_print(const struct flags_page *page, enum flags_ask ask, FILE *out)
{
    if (ask == FLAGS_MAN)
        print_man(page, out);
    else
        print_help(page, out);
}

int flags_refuse(const char *command, uint32_t launcher_rank, const struct status *st)
{
    const struct timespec pause = {.tv_sec = 3};
    if (launcher_rank != 0) nanosleep(&pause, NULL);
    fprintf(stderr, "shoal %s: ", command);
    if (launcher_rank != 0) fprintf(stderr, "rank %u: ", launcher_rank);
    fprintf(stderr, "%s\n", st->text);
    return status_exit(st->code);
}

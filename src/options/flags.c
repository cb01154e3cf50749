/* Reads arguments by a table of flags, and prints the table as help, manual page and settings. */
#include "options/flags.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SENTENCE_BYTES = 160 };

/* --- walking a table ------------------------------------------------------------------------- */

/* A walk over the rows of a table that its command takes. */
struct row_walk {
    const struct flag_table *table;
    size_t i_group, i_row;   /* of the next row */
    const struct flag *flag; /* this row; NULL: none */
    size_t offset;           /* of its field in the command's options */
};

static bool is_taken(const struct flag_table *t, const struct flag *f)
{
    const uint32_t commands = f->commands != 0 ? f->commands : (uint32_t)IN_JOBS;
    return t->command == 0 || (commands & t->command) != 0;
}

/* Goes to the next row; false at the end. */
static bool next_row(struct row_walk *w)
{
    for (; w->i_group < w->table->n_groups; w->i_group++, w->i_row = 0) {
        const struct flag_group *group = &w->table->groups[w->i_group];
        while (w->i_row < group->n) {
            w->flag = &group->rows[w->i_row++];
            w->offset = group->offset + w->flag->offset;
            if (is_taken(w->table, w->flag)) return true;
        }
    }
    w->flag = NULL;
    return false;
}

/* --- values ---------------------------------------------------------------------------------- */

/* Appends `text`, truncated to the room that is left. */
static void flags_say(char out[SENTENCE_BYTES], const char *text)
{
    const size_t n = strlen(out);
    snprintf(out + n, SENTENCE_BYTES - n, "%s", text);
}

/* Appends "a, b or c", with `more` (unless NULL) as the last word. */
static void say_words(const struct flag_word *words, const char *more, char out[SENTENCE_BYTES])
{
    for (const struct flag_word *w = words; w->name != NULL; w++) {
        const bool is_last = more == NULL && w[1].name == NULL;
        if (w != words) flags_say(out, is_last ? " or " : ", ");
        flags_say(out, w->name);
    }
    if (more == NULL) return;
    flags_say(out, " or ");
    flags_say(out, more);
}

static const char *kind_of_number(const struct flag *f)
{
    if (f->kind == FLAG_NUMBER) return "a number";
    const bool is_any = f->kind == FLAG_U64 && f->least == 0 && f->most == 0;
    return is_any ? "an integer from 0 to 18446744073709551615" : "an integer";
}

static struct status bad_value(const struct flag *f, const char *text)
{
    char expected[SENTENCE_BYTES] = "", number[SENTENCE_BYTES] = "";
    const bool is_number = f->kind == FLAG_COUNT || f->kind == FLAG_U64 || f->kind == FLAG_I64 ||
                           f->kind == FLAG_NUMBER;
    if (is_number) flags_say(number, kind_of_number(f));
    if (is_number && (f->least != 0 || f->most != 0)) {
        snprintf(number, sizeof number, "%s from %.15g to %.15g", kind_of_number(f), f->least,
                 f->most);
    }
    if (f->words != NULL)
        say_words(f->words, is_number ? number : NULL, expected);
    else
        flags_say(expected, is_number ? number : f->expected);
    return status_make(STATUS_USAGE, "--%s: expected %s, found \"%s\"", f->name, expected, text);
}

static bool in_limits(const struct flag *f, double value)
{
    return (f->least == 0 && f->most == 0) || (value >= f->least && value <= f->most);
}

/* True when the text is only digits with an optional sign: no blanks, no hexadecimal. */
static bool is_decimal(const char *text)
{
    const char *digits = *text == '-' || *text == '+' ? text + 1 : text;
    return *digits != '\0' && digits[strspn(digits, "0123456789")] == '\0';
}

static bool read_u64(const struct flag *f, const char *text, uint64_t *out)
{
    errno = 0;
    *out = strtoull(text, NULL, 10);
    return is_decimal(text) && *text != '-' && errno == 0 && in_limits(f, (double)*out);
}

static bool set_u64(const struct flag *f, const char *text, char *at)
{
    uint64_t value;
    if (!read_u64(f, text, &value)) return false;
    if (f->unit > 0) value *= f->unit;
    memcpy(at, &value, sizeof value);
    return true;
}

static bool set_i64(const struct flag *f, const char *text, char *at)
{
    errno = 0;
    const int64_t value = strtoll(text, NULL, 10);
    if (!is_decimal(text) || errno != 0 || !in_limits(f, (double)value)) return false;
    memcpy(at, &value, sizeof value);
    return true;
}

static bool set_word(const struct flag *f, const char *text, char *at)
{
    for (const struct flag_word *w = f->words; w->name != NULL; w++) {
        if (strcmp(text, w->name) != 0) continue;
        memcpy(at, &w->value, sizeof w->value);
        return true;
    }
    return false;
}

static bool set_count(const struct flag *f, const char *text, char *at)
{
    uint64_t value;
    if (f->words != NULL && set_word(f, text, at)) return true;
    if (!read_u64(f, text, &value) || value > UINT32_MAX) return false;
    const uint32_t count = (uint32_t)value;
    memcpy(at, &count, sizeof count);
    return true;
}

static bool set_number(const struct flag *f, const char *text, char *at)
{
    char *end;
    const double value = strtod(text, &end);
    const bool is_plain = text[strspn(text, "0123456789+-.eE")] == '\0'; /* strtod accepts more */
    if (!is_plain || *text == '\0' || *end != '\0' || !isfinite(value) || !in_limits(f, value))
        return false;
    memcpy(at, &value, sizeof value);
    return true;
}

static bool set_on_off(const struct flag *f, const char *text, char *at)
{
    int32_t value;
    if (!set_word(f, text, (char *)&value)) return false;
    *(bool *)at = value != 0;
    return true;
}

static struct status add_to_list(const struct flag *f, const char *text, struct flag_list *list)
{
    if (list->n == FLAG_LIST_MAX)
        return status_make(STATUS_USAGE, "--%s: given more than %d times", f->name, FLAG_LIST_MAX);
    list->values[list->n++] = text;
    return status_ok();
}

static bool set_plain(const struct flag *f, const char *text, char *at)
{
    switch (f->kind) {
    case FLAG_STRING:
        memcpy(at, &text, sizeof text);
        return true;
    case FLAG_SWITCH:
        *(bool *)at = true;
        return true;
    case FLAG_ON_OFF:
        return set_on_off(f, text, at);
    case FLAG_CHOICE:
        return set_word(f, text, at);
    case FLAG_NUMBER:
        return set_number(f, text, at);
    case FLAG_COUNT:
        return set_count(f, text, at);
    case FLAG_U64:
        return set_u64(f, text, at);
    case FLAG_I64:
        return set_i64(f, text, at);
    default:
        return f->parse(text, at);
    }
}

/* Sets the row's field `at` to a value. */
static struct status set_value(const struct flag *f, const char *text, char *at)
{
    if (f->kind == FLAG_LIST) return add_to_list(f, text, (struct flag_list *)at);
    return set_plain(f, text, at) ? status_ok() : bad_value(f, text);
}

static size_t flags_bytes_of(enum flag_kind kind)
{
    switch (kind) {
    case FLAG_STRING:
        return sizeof(const char *);
    case FLAG_SWITCH:
    case FLAG_ON_OFF:
        return sizeof(bool);
    case FLAG_COUNT:
    case FLAG_CHOICE:
        return sizeof(int32_t);
    case FLAG_LIST:
        return sizeof(struct flag_list);
    default:
        return sizeof(uint64_t);
    }
}

void flags_preset(const struct flag_table *table, void *out)
{
    struct flag_table all = *table;
    all.command = 0;
    for (struct row_walk row = {.table = &all}; next_row(&row);) {
        assert(row.flag->kind == FLAG_PARSED ||
               row.flag->n_bytes == flags_bytes_of(row.flag->kind));
        if (row.flag->preset == NULL) continue;
        const struct status st = set_value(row.flag, row.flag->preset, (char *)out + row.offset);
        assert(!status_failed(&st)); /* else the row refuses its own preset */
        (void)st;
    }
}

const char *flag_word_of(const struct flag_word *words, int32_t value)
{
    for (; words->name != NULL; words++)
        if (words->value == value) return words->name;
    return NULL;
}

/* --- arguments ------------------------------------------------------------------------------- */

static bool is_name(const char *name, const char *text, size_t n)
{
    return name != NULL && strlen(name) == n && memcmp(name, text, n) == 0;
}

/* Returns a walk that stands at the named flag; its `flag` is NULL if there is none. Abbreviations
 * are not accepted, because new flags would change their meaning. */
static struct row_walk find_flag(const struct flag_table *t, const char *name, size_t n)
{
    struct row_walk row = {.table = t};
    while (n > 0 && next_row(&row)) {
        if (is_name(row.flag->name, name, n) || is_name(row.flag->alias, name, n)) break;
    }
    return row;
}

/* Returns the edit distance of a and b: the number of letters to change, add or remove. Both are
 * shorter than 64. */
static size_t flags_distance(const char *a, size_t n, const char *b, size_t m)
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

/* Returns the only flag whose name begins with name[0, n); NULL: none or several. */
static const struct flag *longer_flag(const struct flag_table *t, const char *name, size_t n)
{
    const struct flag *found = NULL;
    for (struct row_walk row = {.table = t}; next_row(&row);) {
        if (row.flag->help == NULL || strncmp(row.flag->name, name, n) != 0) continue;
        if (found != NULL) return NULL;
        found = row.flag;
    }
    return found;
}

/* Returns the flag that was probably meant; NULL: none is similar. */
static const struct flag *near_flag(const struct flag_table *t, const char *name, size_t n)
{
    if (n <= 3) return NULL;
    const struct flag *found = longer_flag(t, name, n);
    size_t best = 3;
    for (struct row_walk row = {.table = t}; next_row(&row);) {
        const size_t m = strlen(row.flag->name);
        if (row.flag->help == NULL || n >= 64 || m >= 64) continue;
        const size_t d = flags_distance(name, n, row.flag->name, m);
        if (d < best) found = row.flag;
        if (d < best) best = d;
    }
    return found;
}

bool flags_is_given(const struct flags_given *given, const char *name)
{
    for (size_t i = 0; i < given->n; i++)
        if (strcmp(given->names[i], name) == 0) return true;
    return false;
}

static void note_given(struct flags_given *given, const char *name)
{
    if (flags_is_given(given, name)) return;
    assert(given->n < FLAGS_GIVEN_MAX); /* else the table has more flags than that */
    given->names[given->n++] = name;
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

static struct status no_such_flag(const struct flag_table *t, char **argv, const char *text,
                                  size_t n)
{
    const struct flag *meant = near_flag(t, text + 2, n);
    if (meant != NULL) {
        return status_make(STATUS_USAGE, "%s: no such flag for `shoal %s`; did you mean --%s?",
                           text, argv[0], meant->name);
    }
    return status_make(STATUS_USAGE, "%s: no such flag for `shoal %s`; see shoal %s --help", text,
                       argv[0], argv[0]);
}

/* Takes argv[*at], which begins with a dash, and its value. */
static struct status take_flag(const struct flag_table *t, char **argv, int *at, void *out,
                               struct flags_given *given)
{
    const char *text = argv[*at];
    const size_t n = strncmp(text, "--", 2) == 0 ? strcspn(text + 2, "=") : 0;
    const struct row_walk found = find_flag(t, text + 2, n);
    const struct flag *f = found.flag;
    if (f == NULL) return no_such_flag(t, argv, text, n);
    char *field = (char *)out + found.offset;
    const char *value = text[2 + n] == '=' ? text + 3 + n : NULL;
    note_given(given, f->name);
    if (f->kind == FLAG_SWITCH) {
        if (value == NULL) return set_value(f, "", field);
        return status_make(STATUS_USAGE, "--%s: takes no value, found \"%s\"", f->name, value);
    }
    if (value == NULL) value = argv[++*at];
    if (value == NULL) return status_make(STATUS_USAGE, "--%s: needs a value", f->name);
    return set_value(f, value, field);
}

struct status flags_parse(const struct flag_table *table, int argc, char **argv, void *out,
                          struct flags_parsed *parsed)
{
    bool flags_ended = false;
    parsed->ask = FLAGS_RUN;
    flags_preset(table, out);
    for (int i = 1; i < argc && parsed->ask == FLAGS_RUN; i++) {
        const bool is_flag = !flags_ended && argv[i][0] == '-' && argv[i][1] != '\0';
        if (!is_flag) {
            TRY(take_positional(argv, argv[i], &parsed->positionals));
        } else if (strcmp(argv[i], "--") == 0) {
            flags_ended = true;
        } else if (strcmp(argv[i], "--help-man") == 0) {
            parsed->ask = FLAGS_MAN;
        } else if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            parsed->ask = FLAGS_HELP;
        } else {
            TRY(take_flag(table, argv, &i, out, &parsed->given));
        }
    }
    return status_ok();
}

/* --- a journal's settings -------------------------------------------------------------------- */

/* Writes a list as "a","b". */
static void write_list(const struct flag_list *list, struct strbuf *out)
{
    for (size_t i = 0; i < list->n; i++) {
        if (i > 0) strbuf_puts(out, ",");
        strbuf_json_string(out, list->values[i], strlen(list->values[i]));
    }
}

/* Returns the value of a choice, a count or a switch as a number. */
static int32_t small_value(const struct flag *f, const char *at)
{
    int32_t value;
    if (f->kind == FLAG_SWITCH || f->kind == FLAG_ON_OFF) return *(const bool *)at;
    memcpy(&value, at, sizeof value);
    return value;
}

static void write_small(const struct flag *f, const char *at, struct strbuf *out)
{
    const int32_t value = small_value(f, at);
    const char *name = f->words != NULL ? flag_word_of(f->words, value) : NULL;
    if (name != NULL && f->journal != JOURNAL_AS_NUMBER)
        strbuf_puts(out, name);
    else
        strbuf_printf(out, "%d", value);
}

/* Writes a flag's value. A journal resumes only if all its settings have the same text, so do not
 * change these formats. */
static void write_value(const struct flag *f, const char *at, struct strbuf *out)
{
    switch (f->kind) {
    case FLAG_LIST:
        write_list((const struct flag_list *)at, out);
        return;
    case FLAG_STRING:
        strbuf_puts(out, *(const char *const *)at);
        return;
    case FLAG_NUMBER:
        strbuf_printf(out, "%.17g", *(const double *)at);
        return;
    case FLAG_I64:
        strbuf_printf(out, "%lld", (long long)*(const int64_t *)at);
        return;
    case FLAG_U64:
        strbuf_printf(out, "%llu", (unsigned long long)*(const uint64_t *)at);
        return;
    default:
        assert(f->kind != FLAG_PARSED); /* the job writes the text of such a flag itself */
        write_small(f, at, out);
    }
}

/* Whether a row's field still has its preset; the field's struct begins at `fields`. */
static bool has_preset(const struct flag *f, const char *fields)
{
    _Alignas(max_align_t) char preset[sizeof(struct flag_list)] = {0};
    assert(f->n_bytes <= sizeof preset && f->kind != FLAG_STRING);
    if (f->preset != NULL) set_plain(f, f->preset, preset);
    return memcmp(preset, fields + f->offset, f->n_bytes) == 0;
}

void flags_settings(const struct flag_group *group, const void *options, const char *leave_out,
                    struct strbuf *out)
{
    const char *fields = (const char *)options + group->offset;
    for (size_t i = 0; i < group->n; i++) {
        const struct flag *f = &group->rows[i];
        if (f->journal == JOURNAL_NOT || (leave_out != NULL && strcmp(f->name, leave_out) == 0))
            continue;
        if (f->journal == JOURNAL_CHANGED && has_preset(f, fields)) continue;
        strbuf_printf(out, "--%s=", f->name);
        write_value(f, fields + f->offset, out);
        strbuf_puts(out, "\n");
    }
}

/* --- help and manual pages ------------------------------------------------------------------- */

/* Appends the name of a flag's value: "N", or the words that it takes, "a|b|c"; nothing for a
 * switch. */
static void name_argument(const struct flag *f, char out[SENTENCE_BYTES])
{
    for (const struct flag_word *w = f->words; w != NULL && w->name != NULL; w++) {
        flags_say(out, w->name);
        if (w[1].name != NULL || f->argument != NULL) flags_say(out, "|");
    }
    if (f->argument != NULL) flags_say(out, f->argument);
}

static void flags_print_help(const struct flags_page *p, FILE *out)
{
    fprintf(out, "usage: shoal %s %s\n%s\n\n%s\n\n", p->command, p->arguments, p->summary,
            p->description);
    for (struct row_walk row = {.table = p->table}; next_row(&row);) {
        const struct flag *f = row.flag;
        char left[2 * SENTENCE_BYTES], argument[SENTENCE_BYTES] = "";
        if (f->help == NULL) continue;
        name_argument(f, argument);
        snprintf(left, sizeof left, "--%s %s", f->name, argument);
        fprintf(out, "  %-28s %s", left, f->help);
        if (f->preset != NULL) fprintf(out, " (default %s)", f->preset);
        fputc('\n', out);
    }
}

/* Prints text for man(7): keeps control characters from beginning a line, and escapes hyphens and
 * backslashes. A newline begins a paragraph. */
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
    for (struct row_walk row = {.table = p->table}; next_row(&row);) {
        const struct flag *f = row.flag;
        char argument[SENTENCE_BYTES] = "";
        if (f->help == NULL) continue;
        name_argument(f, argument);
        fputs(".TP\n.B ", out);
        print_roff("--", out);
        print_roff(f->name, out);
        fprintf(out, " %s\n", argument);
        print_roff(f->help, out);
        if (f->preset != NULL) fputs(" (default ", out);
        if (f->preset != NULL) print_roff(f->preset, out);
        fputs(f->preset != NULL ? ")\n" : "\n", out);
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
        flags_print_help(page, out);
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

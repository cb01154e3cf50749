/* Command-line flags, each declared once. A flag is one row: name, type, field, bounds, preset and
 * help. The struct that holds the values, the parser, the help text, the manual page, the presets
 * and a journal's settings are all made from that row. Used by every command; knows no command's
 * flags.
 *
 *   #define DEMO_FLAGS(FLAG)                                     the list: one FLAG is one row
 *       FLAG(uint32_t, n_steps, "steps", OF_COUNT(1, 1000, "N"),
 *            .preset = "20", .help = "steps to take")
 *   struct demo_flags { DEMO_FLAGS(FLAG_FIELD) };                the values
 *
 *   #define FLAG_OWNER struct demo_flags
 *   static const struct flag demo_rows[] = {DEMO_FLAGS(FLAG_ROW)};
 *   #undef FLAG_OWNER
 *
 * A room lists the flags of its own concern in NAME_flags.h. A command joins lists to a table:
 * groups of rows, each bound to a nested struct of the command's options. */
#ifndef SHOAL_OPTIONS_FLAGS_H
#define SHOAL_OPTIONS_FLAGS_H

#include "base/status.h"
#include "base/strbuf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { FLAG_LIST_MAX = 64, FLAGS_GIVEN_MAX = 128, POSITIONALS_MAX = 4096 };

enum flag_kind {
    FLAG_STRING, /* const char *, borrowed from argv */
    FLAG_COUNT,  /* uint32_t, or int32_t with bounds that fit it */
    FLAG_U64,    /* uint64_t */
    FLAG_I64,    /* int64_t */
    FLAG_NUMBER, /* double */
    FLAG_SWITCH, /* bool; takes no value */
    FLAG_ON_OFF, /* bool; "on" or "off" */
    FLAG_CHOICE, /* an enum; one of its words */
    FLAG_LIST,   /* struct flag_list; may be repeated */
    FLAG_PARSED, /* any type; the row's own function reads it */
};

/* A word that stands for a value. */
struct flag_word {
    const char *name;
    int32_t value;
};

struct flag_list {
    const char *values[FLAG_LIST_MAX];
    size_t n;
};

/* Whether a flag changes the bytes of a row or of a saved file; a journal then keeps its value as
 * "--name=value". */
enum flag_journal {
    JOURNAL_NOT,       /* it changes no byte */
    JOURNAL_ALWAYS,    /* kept */
    JOURNAL_AS_NUMBER, /* kept; a choice by its number */
    JOURNAL_CHANGED,   /* kept unless it has its preset, so that a journal from before the flag
                          existed still resumes; for every new flag that changes bytes */
};

/* Bits for the commands that share rows; a row lists the commands that take it. */
enum flag_command {
    IN_GENERATE = 1,
    IN_SCORE = 2,
    IN_BENCH = 4,
    IN_PLAN = 8,
    IN_SERVE = 16,
    IN_EMBED = 32,
    IN_RANK = 64,
    IN_BATCH = IN_GENERATE | IN_SCORE | IN_EMBED | IN_RANK,
    IN_ANSWERS = IN_GENERATE | IN_SERVE,
    IN_JOBS = IN_BATCH | IN_SERVE,
    IN_ALL = IN_JOBS | IN_BENCH | IN_PLAN,
};

struct flag {
    const char *name;       /* without the dashes */
    size_t offset, n_bytes; /* position and size of the field in its struct */
    enum flag_kind kind;
    double least, most;            /* bounds of numbers, inclusive; both 0: any */
    uint64_t unit;                 /* of FLAG_U64: the field holds value * unit; 0: 1 */
    const struct flag_word *words; /* of choices, and of counts that also take words; ended by a
                                      NULL name */
    bool (*parse)(const char *text, void *field); /* of FLAG_PARSED; false: not valid */
    const char *expected;                         /* of FLAG_PARSED: completes "expected ..." */
    const char *argument;                         /* the value's name in help; NULL: the words */
    const char *preset; /* the value, as text, of a flag that is not given; NULL: zero */
    const char *help;   /* NULL: not shown, for tests */
    const char *alias;  /* another name, not shown; NULL: none */
    uint32_t commands;  /* enum flag_command bits; 0: IN_JOBS */
    enum flag_journal journal;
};

/* Types of rows. */
#define OF_TEXT(name)          .kind = FLAG_STRING, .argument = (name)
#define OF_COUNT(lo, hi, name) .kind = FLAG_COUNT, .least = (lo), .most = (hi), .argument = (name)
#define OF_U64(name)           .kind = FLAG_U64, .argument = (name)
#define OF_UNITS(size, lo, hi, name)                                                               \
    .kind = FLAG_U64, .unit = (size), .least = (lo), .most = (hi), .argument = (name)
#define OF_I64(lo, hi, name)    .kind = FLAG_I64, .least = (lo), .most = (hi), .argument = (name)
#define OF_NUMBER(lo, hi, name) .kind = FLAG_NUMBER, .least = (lo), .most = (hi), .argument = (name)
#define OF_SWITCH               .kind = FLAG_SWITCH
#define OF_ON_OFF               .kind = FLAG_ON_OFF, .words = FLAG_WORDS({"on", 1}, {"off", 0})
#define OF_CHOICE(...)          .kind = FLAG_CHOICE, .words = FLAG_WORDS(__VA_ARGS__)
#define OF_LIST(name)           .kind = FLAG_LIST, .argument = (name)
#define FLAG_WORDS(...)         ((const struct flag_word[]){__VA_ARGS__, {NULL, 0}})
#define OF_PARSED(function, says, name)                                                            \
    .kind = FLAG_PARSED, .parse = (function), .expected = (says), .argument = (name)

/* A list expands to the fields of a struct, or to the rows of a table. */
#define FLAG_FIELD(type, field, ...) type field;
#define FLAG_ROW(type, field, flag, ...)                                                           \
    {.name = flag, .offset = offsetof(FLAG_OWNER, field), .n_bytes = sizeof(type), __VA_ARGS__},

/* Rows whose fields are in a struct at `offset` of the options. */
struct flag_group {
    const struct flag *rows;
    size_t n, offset;
};

#define FLAG_GROUP(rows, offset)                                                                   \
    {                                                                                              \
        (rows), sizeof(rows) / sizeof((rows)[0]), (offset)                                         \
    }

/* All flags of a command: the rows of its groups that name it. */
struct flag_table {
    const struct flag_group *groups; /* [n_groups] */
    size_t n_groups;
    uint32_t command; /* an enum flag_command; 0: every row is taken */
};

/* Arguments that are not flags: at most n_wanted. */
struct positionals {
    const char *values[POSITIONALS_MAX];
    size_t n, n_wanted;
};

/* The flags that were given, by their rows' names. */
struct flags_given {
    const char *names[FLAGS_GIVEN_MAX];
    size_t n;
};

/* The command's task: to run, or to print its help or manual page. */
enum flags_ask { FLAGS_RUN, FLAGS_HELP, FLAGS_MAN };

struct flags_parsed {
    enum flags_ask ask;
    struct flags_given given;
    struct positionals positionals; /* the caller sets n_wanted */
};

/* A command as its help and its manual page show it. */
struct flags_page {
    const char *command, *arguments, *summary;
    const char *description; /* paragraphs, divided by newlines */
    const struct flag_table *table;
};

/* Local. Sets the field of every row to its preset, even of rows that this command does not take.
 * Fields without a preset keep their values. */
void flags_preset(const struct flag_table *table, void *out);

/* Local. Writes presets, then the values in argv[1..], to *out, which the caller has zeroed.
 * "--help" (or "-h") and "--help-man" set parsed->ask and stop the parsing. Errors: STATUS_USAGE
 * names the flag, what was expected and what was found. */
struct status flags_parse(const struct flag_table *table, int argc, char **argv, void *out,
                          struct flags_parsed *parsed);

/* Local. True when the user gave the flag. `name` is a row's name, never an alias. */
bool flags_is_given(const struct flags_given *given, const char *name);

/* Local. Returns the word that stands for a value; NULL: none. */
const char *flag_word_of(const struct flag_word *words, int32_t value);

/* Local. Appends a line "--name=value" for each of the group's rows that a journal keeps, in their
 * order, except the row named `leave_out` (NULL: none). The group's offset counts from
 * `options`. */
void flags_settings(const struct flag_group *group, const void *options, const char *leave_out,
                    struct strbuf *out);

/* Local. Prints st's sentence about a command's flags and returns the exit status. Flags are
 * usually wrong on all ranks, and the launcher ends the job when its first rank exits. The other
 * ranks therefore wait some seconds for that, and print only if they still run. */
int flags_refuse(const char *command, uint32_t launcher_rank, const struct status *st);

/* Local. Prints the page as help text or, for FLAGS_MAN, as a man(7) source. */
void flags_print(const struct flags_page *page, enum flags_ask ask, FILE *out);

#endif

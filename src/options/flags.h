/* Command-line flags as a table: name, kind, where the value goes, limits and help. One table makes
 * the parser and the help text, so that they cannot disagree. Called by the cmd_*.c files. */
#ifndef SHOAL_OPTIONS_FLAGS_H
#define SHOAL_OPTIONS_FLAGS_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum flag_kind {
    FLAG_STRING, /* const char * */
    FLAG_COUNT,  /* uint32_t */
    FLAG_U64,    /* uint64_t */
    FLAG_I64,    /* int64_t */
    FLAG_NUMBER, /* double */
    FLAG_SWITCH, /* bool, no argument */
    FLAG_LIST,   /* struct flag_list, may be repeated */
};

enum { FLAG_LIST_MAX = 64 };

struct flag_list {
    const char *values[FLAG_LIST_MAX];
    size_t n;
};

struct flag {
    const char *name; /* without the dashes; help NULL: an alias, not shown */
    enum flag_kind kind;
    size_t offset;      /* in the struct that is filled */
    double least, most; /* of numbers; both 0: any */
    const char *argument, *help;
};

/* What a command takes besides flags: up to n_wanted values. */
enum { POSITIONALS_MAX = 4096 };

struct positionals {
    const char *values[POSITIONALS_MAX];
    size_t n, n_wanted;
};

/* What the arguments ask for: to run, or to be told about (as text, as a manual page). */
enum flags_ask { FLAGS_RUN, FLAGS_HELP, FLAGS_MAN };

/* A command as its help and its manual page show it. */
struct flags_page {
    const char *command, *arguments, *summary;
    const char *description; /* paragraphs, divided by newlines */
    const struct flag *table;
    size_t n_flags;
};

/* Local. Fills `out` from argv[1..]; "--help" (or "-h") and "--help-man" set *ask and stop. Errors:
 * STATUS_USAGE names the flag, what was expected and what was found. */
struct status flags_parse(const struct flag *table, size_t n_flags, int argc, char **argv,
                          void *out, struct positionals *positionals, enum flags_ask *ask);

/* Local. Says what is wrong with a command's flags and returns the exit status. Wrong flags are
 * mostly wrong on every rank alike, and the first rank's sentence ends the job: the others wait for
 * that end, and only one that is alone with its flags comes to speak. */
int flags_refuse(const char *command, uint32_t launcher_rank, const struct status *st);

/* Local. The page as help text or, for FLAGS_MAN, as a man(7) source. */
void flags_print(const struct flags_page *page, enum flags_ask ask, FILE *out);

#endif

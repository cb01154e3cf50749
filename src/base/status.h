/* A status: a code and one sentence for people, which says what failed and where, what was expected
 * and what was found. Returned by value. Does not print and does not exit: commands turn a code
 * into an exit status with status_exit. */
#ifndef SHOAL_BASE_STATUS_H
#define SHOAL_BASE_STATUS_H

#include <stdbool.h>

/* name, process exit status (README.md: "When it stops"), meaning */
#define STATUS_LIST(X)                                                                             \
    X(OK, 0, "ok")                                                                                 \
    X(REQUEST, 0, "one request cannot be served; the batch goes on")                               \
    X(USAGE, 2, "wrong flags or configuration")                                                    \
    X(INPUT, 3, "a checkpoint or an input cannot be used")                                         \
    X(MEMORY, 3, "memory could not be had")                                                        \
    X(IO, 3, "reading or writing failed")                                                          \
    X(ROWS, 4, "rows are error rows, with --strict; differ, with --audit or --check")              \
    X(DRAINED, 75, "drained before the end; the same command resumes")                             \
    X(LOST, 76, "a rank was lost or hung")                                                         \
    X(BUG, 70, "a bug in shoal")

enum status_code {
#define X(name, exit_status, meaning) STATUS_##name,
    STATUS_LIST(X)
#undef X
        STATUS_COUNT
};

enum { STATUS_TEXT_MAX = 512 };

struct status {
    enum status_code code;
    char text[STATUS_TEXT_MAX]; /* empty when code is STATUS_OK */
};

/* Local. Returns the status without an error. */
struct status status_ok(void);

/* Local. Returns a status with a printf-formatted sentence, truncated if it is too long. */
struct status status_make(enum status_code code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Local. Returns `inner` with a printf-formatted text and ": " before its sentence, and the same
 * code. OK stays OK. */
struct status status_wrap(struct status inner, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Local. Return the process exit status of a code, and the code's name. */
int status_exit(enum status_code code);
const char *status_name(enum status_code code);

static inline bool status_failed(const struct status *s)
{
    return s->code != STATUS_OK;
}

/* Returns from the calling function when expr fails. For use before anything is acquired. */
#define TRY(expr)                                                                                  \
    do {                                                                                           \
        struct status try_status_ = (expr);                                                        \
        if (status_failed(&try_status_)) return try_status_;                                       \
    } while (0)

/* Sets `st`, and jumps to `label` of the cleanup ladder when expr fails. */
#define TRY_GOTO(st, expr, label)                                                                  \
    do {                                                                                           \
        (st) = (expr);                                                                             \
        if (status_failed(&(st))) goto label;                                                      \
    } while (0)

#endif

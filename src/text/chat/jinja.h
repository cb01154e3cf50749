/* A template engine for the part of Jinja that chat templates use (Jinja 3.1, sandboxed, immutable,
 * trim_blocks, lstrip_blocks, loop controls); other constructs are refused. Every byte of the
 * output is marked as the template's or as a user's. Knows no conversations (text/chat/chat.h). */
#ifndef SHOAL_TEXT_CHAT_JINJA_H
#define SHOAL_TEXT_CHAT_JINJA_H

#include "base/json.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct jinja; /* a parsed template; never changes, so threads may share it */

/* Local. Parses n bytes of a template; `what` names the template in errors, with the line. Owner of
 * *out: the caller, jinja_destroy. Errors: STATUS_INPUT for syntax, tags that are not supported,
 * bytes that are not UTF-8, or a source over 1 MiB; STATUS_MEMORY. */
struct status jinja_create(const char *source, size_t n, const char *what, struct jinja **out);
void jinja_destroy(struct jinja **t);

enum jinja_var_kind {
    JINJA_VAR_NONE,
    JINJA_VAR_BOOL,
    JINJA_VAR_TEXT, /* a text of the model, which is trusted */
    JINJA_VAR_JSON, /* a value from a user; its printed bytes are marked as the user's */
};

struct jinja_var {
    const char *name;
    enum jinja_var_kind kind;
    bool flag;                  /* BOOL */
    const char *text;           /* TEXT: borrowed, well-formed UTF-8 */
    size_t n_text;              /* TEXT */
    const struct js_node *node; /* JSON: borrowed */
};

/* The time that strftime_now prints; it has no time zone. */
struct jinja_date {
    int year, month, day; /* 1.., 1..12, 1..31 */
    int hour, minute, second;
};

/* The default limit on a template's steps. There is a limit because a job answers signals only
 * between two lines. It is high because templates that look at all later messages for each message
 * need millions of steps for long chats. */
enum { JINJA_STEPS_MAX = 1 << 24 };

/* A zero means the default. */
struct jinja_limits {
    uint64_t max_steps;      /* JINJA_STEPS_MAX; a step is one node that is run, or the work on 1
                                to 16 bytes or elements */
    size_t max_memory_bytes; /* 256 MiB for all values together */
    size_t max_output_bytes; /* 64 MiB, for the output and for each text that is built */
    unsigned max_depth;      /* 400 nested evaluations; each needs less than 1 KiB of C stack */
    bool is_strict;          /* printing an undefined value is an error instead of nothing */
};

/* The output of a template. Zero-initialise it; jinja_output_fini frees it. After an error only
 * n_steps is set. */
struct jinja_output {
    uint64_t n_steps;    /* steps that the template took */
    char *bytes;         /* owned, [n]; well-formed UTF-8, not NUL-terminated */
    unsigned char *user; /* owned, [n]: 1 for a byte from a user, 0 for one from the template */
    size_t n;
};

/* Local. Runs a template. vars [n_vars]: of two with the same name the later one counts. limits may
 * be NULL: the defaults. Errors: STATUS_REQUEST, whose sentence is that of
 * raise_exception, or names the template's mistake and its line, the field of the wrong type, or
 * the limit reached; STATUS_MEMORY. */
struct status jinja_render(const struct jinja *t, const struct jinja_var *vars, size_t n_vars,
                           const struct jinja_date *now, const struct jinja_limits *limits,
                           struct jinja_output *out);
void jinja_output_fini(struct jinja_output *o);

#endif

/* Finding the setting that differs. */
#include "serve/journal/journal_settings.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

enum { SHOWN_BYTES = 80 };

/* A name or a value inside the settings; at NULL: it is not there. */
struct part {
    const char *at;
    size_t n;
};

static struct part value_of(const char *settings, struct part name)
{
    for (const char *at = settings; at != NULL && *at != '\0';) {
        if (strncmp(at, name.at, name.n) == 0 && at[name.n] == '=') {
            const char *value = at + name.n + 1;
            return (struct part){value, strcspn(value, "\n")};
        }
        at = strchr(at, '\n');
        if (at != NULL) at++;
    }
    return (struct part){NULL, 0};
}

static bool is_equal(struct part a, struct part b)
{
    return a.at != NULL && b.at != NULL && a.n == b.n && memcmp(a.at, b.at, a.n) == 0;
}

static struct part shown(struct part p)
{
    if (p.n == 0) return (struct part){"(nothing)", strlen("(nothing)")};
    return (struct part){p.at, p.n < SHOWN_BYTES ? p.n : SHOWN_BYTES};
}

struct status journal_settings_check(const char *path, const char *was, const char *is,
                                     const char *remedy)
{
    if (strcmp(was, is) == 0) return status_ok();
    for (const char *at = is; *at != '\0';) {
        const struct part name = {at, strcspn(at, "=\n")};
        const struct part now = value_of(at, name), then = value_of(was, name);
        if (now.at != NULL && !is_equal(now, then)) {
            const bool is_flag = strncmp(at, "--", 2) == 0;
            const struct part new = shown(now), old = shown(then);
            return status_make(is_flag ? STATUS_USAGE : STATUS_INPUT,
                               "journal %s: %.*s was %.*s when the job began and is %.*s now; %s",
                               path, (int)name.n, name.at, (int)old.n, old.at, (int)new.n, new.at,
                               remedy);
        }
        at += strcspn(at, "\n");
        if (*at == '\n') at++;
    }
    return status_make(STATUS_INPUT,
                       "journal %s: it has settings that this version of shoal does not know; %s",
                       path, remedy);
}

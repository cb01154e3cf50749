/* Parses failpoints and counts passes. */
#include "base/failpoint.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[FAILPOINT_COUNT] = {
#define X(name, text) text,
    FAILPOINT_LIST(X)
#undef X
};

static struct status parse_error(const char *text)
{
    return status_make(STATUS_USAGE,
                       "--failpoint: expected NAME:N, NAME:N:EIO or NAME:N:ENOSPC, "
                       "found \"%s\"",
                       text);
}

struct status failpoint_parse(const char *text, struct failpoint *out)
{
    *out = (struct failpoint){.n_left = 0};
    const char *colon = strchr(text, ':');
    if (colon == NULL) return parse_error(text);
    const size_t n = (size_t)(colon - text);
    int found = -1;
    for (int i = 0; i < FAILPOINT_COUNT; i++) {
        if (strlen(names[i]) == n && strncmp(names[i], text, n) == 0) found = i;
    }
    char *end;
    const unsigned long long n_pass = strtoull(colon + 1, &end, 10);
    if (found < 0 || end == colon + 1 || n_pass == 0) return parse_error(text);
    if (strcmp(end, ":EIO") == 0) {
        out->error = EIO;
    } else if (strcmp(end, ":ENOSPC") == 0) {
        out->error = ENOSPC;
    } else if (*end != '\0') {
        return parse_error(text);
    }
    out->name = (enum failpoint_name)found;
    out->n_left = n_pass;
    return status_ok();
}

bool failpoint_due(struct failpoint *f, enum failpoint_name name)
{
    if (f == NULL || f->n_left == 0 || f->name != name) return false;
    return --f->n_left == 0;
}

int failpoint_strike(const struct failpoint *f)
{
    if (f->error == 0) raise(SIGKILL);
    return f->error;
}

int failpoint_pass(struct failpoint *f, enum failpoint_name name)
{
    return failpoint_due(f, name) ? failpoint_strike(f) : 0;
}

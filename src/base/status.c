/* Makes statuses with their messages; maps codes to exit statuses and names. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct status status_ok(void)
{
    struct status s;
    s.code = STATUS_OK;
    s.text[0] = '\0';
    return s;
}

struct status status_make(enum status_code code, const char *format, ...)
{
    struct status s;
    s.code = code;
    va_list args;
    va_start(args, format);
    vsnprintf(s.text, sizeof s.text, format, args);
    va_end(args);
    return s;
}

struct status status_wrap(struct status inner, const char *format, ...)
{
    if (inner.code == STATUS_OK) return inner;
    struct status s;
    s.code = inner.code;
    va_list args;
    va_start(args, format);
    vsnprintf(s.text, sizeof s.text, format, args);
    va_end(args);
    const size_t used = strlen(s.text);
    const size_t room = sizeof s.text - used;
    if (room > 2) snprintf(s.text + used, room, ": %.*s", (int)room - 3, inner.text);
    return s;
}

int status_exit(enum status_code code)
{
    static const int exits[STATUS_COUNT] = {
#define X(name, exit_status, meaning) exit_status,
        STATUS_LIST(X)
#undef X
    };
    return exits[code];
}

const char *status_name(enum status_code code)
{
    static const char *const names[STATUS_COUNT] = {
#define X(name, exit_status, meaning) #name,
        STATUS_LIST(X)
#undef X
    };
    return names[code];
}

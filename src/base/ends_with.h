/* The end of a text. */
#ifndef SHOAL_BASE_ENDS_WITH_H
#define SHOAL_BASE_ENDS_WITH_H

#include <stdbool.h>
#include <string.h>

/* True when the NUL-terminated text ends with `end`. */
static inline bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), n_end = strlen(end);
    return n >= n_end && memcmp(text + n - n_end, end, n_end) == 0;
}

#endif

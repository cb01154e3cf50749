/* Reads numbers of bytes, such as 64G, from the command line. */
#include "weights/weights_flags.h"

#include <stdlib.h>
#include <string.h>

bool weights_size_parse(const char *text, uint64_t *n_bytes)
{
    static const char units[] = "KMGT";
    char *end;
    const double n = strtod(text, &end);
    double unit = 1;
    if (end == text || !(n > 0)) return false;
    if (strspn(text, "0123456789.eE+") < (size_t)(end - text))
        return false; /* strtod also takes hexadecimal numbers and leading blanks */
    if (*end != '\0') {
        const char *found = strchr(units, *end);
        if (found == NULL || end[1] != '\0') return false;
        for (const char *u = units; u <= found; u++) unit *= 1024;
    }
    if (!(n * unit >= 1) || n * unit > 1e18) return false;
    *n_bytes = (uint64_t)(n * unit);
    return true;
}

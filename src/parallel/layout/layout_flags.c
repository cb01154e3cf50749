/* Reads those values of the layout's flags that are not plain numbers. */
#include "parallel/layout/layout_flags.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A unit's name and its size in the first unit of its list. */
struct network_unit {
    const char *name;
    double size;
};

/* Reads a number of at least 0 and an optional unit, one of two (by default the first). Returns the
 * rest of the text; NULL: not valid. */
static const char *read_quantity(const char *text, const struct network_unit units[2], double *out)
{
    char *end;
    *out = strtod(text, &end);
    if (end == text || !isfinite(*out) || *out < 0) return NULL;
    for (int i = 0; i < 2; i++) {
        const size_t n = strlen(units[i].name);
        if (strncmp(end, units[i].name, n) != 0) continue;
        *out *= units[i].size;
        return end + n;
    }
    return end;
}

bool layout_network_parse(const char *text, void *network)
{
    static const struct network_unit speeds[] = {{"Gbit", 1}, {"Mbit", 1e-3}};
    static const struct network_unit times[] = {{"us", 1}, {"ms", 1e3}};
    struct layout_network found = {0};
    const char *at = read_quantity(text, speeds, &found.gbit_s);
    if (at == NULL || !(found.gbit_s > 0 && found.gbit_s <= 1e6)) return false;
    if (*at == ',') {
        at = read_quantity(at + 1, times, &found.latency_s);
        found.latency_s *= 1e-6;
    }
    if (at == NULL || *at != '\0') return false;
    memcpy(network, &found, sizeof found);
    return true;
}

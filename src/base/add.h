/* Adds arrays of integers with explicit vectors, so that the speed does not depend on the compiler.
 * Called where the partial sums of several ranks are added. Has no state. */
#ifndef SHOAL_BASE_ADD_H
#define SHOAL_BASE_ADD_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Local. Sets to[i] = a[i] + b[i] for n elements, wrapping like MPI's sums; to may be a or b. */
static inline void add_i64_to(int64_t *to, const int64_t *a, const int64_t *b, size_t n)
{
    typedef uint64_t lanes __attribute__((vector_size(32)));
    enum { LANES = sizeof(lanes) / sizeof *to };
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        lanes x, y;
        memcpy(&x, a + i, sizeof x);
        memcpy(&y, b + i, sizeof y);
        x += y;
        memcpy(to + i, &x, sizeof x);
    }
    for (; i < n; i++) to[i] = (int64_t)((uint64_t)a[i] + (uint64_t)b[i]);
}

#endif

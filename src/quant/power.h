/* Powers with exponents in 64ths, computed with square roots and products alone: accurate to the
 * last few bits, and the same on every CPU, unlike the C library's pow (numerics law, rule 8). */
#ifndef SHOAL_QUANT_POWER_H
#define SHOAL_QUANT_POWER_H

#include <math.h>

enum { POWER_ONE = 64 };

/* Local. Returns x^(k / 64) for x >= 0 and k <= 64. */
static inline double power_64ths(double x, unsigned k)
{
    double root = x, product = 1;
    for (unsigned bit = POWER_ONE; bit > 0; bit /= 2) {
        if (k & bit) product *= root;
        root = sqrt(root);
    }
    return product;
}

#endif

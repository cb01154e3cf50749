/* Powers with exponents in 64ths, from square roots alone: accurate to the last few bits and the
 * same on every CPU, unlike pow of the C library (numerics law, rule 8). */
#ifndef SHOAL_QUANT_POWER_H
#define SHOAL_QUANT_POWER_H

#include <math.h>

enum { POWER_ONE = 64 };

/* Local. x^(k / 64), x >= 0, k <= 64. */
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

/* How many random cases a suite runs. A case takes two to eight times as long under
 * AddressSanitizer, which looks for wrong accesses and leaks: the first quarter of the cases
 * makes the same kinds of accesses. The release build runs all cases and checks their results. */
#ifndef UTIL_CASES_H
#define UTIL_CASES_H

#include <stdint.h>

/* Returns n, or n / 4 under AddressSanitizer. n: a number of cases, or the least count that a suite
 * expects from all of its cases. */
static inline uint64_t util_cases(uint64_t n)
{
#ifdef __SANITIZE_ADDRESS__
    return n / 4;
#else
    return n;
#endif
}

#endif

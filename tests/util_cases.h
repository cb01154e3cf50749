/* How many random cases a suite runs. A case takes two to eight times as long under
 * AddressSanitizer, which looks for wrong accesses and leaks: every fourth of the cases does the
 * same accesses. What a case computes is checked in full by the release build. */
#ifndef UTIL_CASES_H
#define UTIL_CASES_H

#include <stdint.h>

/* n, or a quarter of it under AddressSanitizer; also for the least numbers that a suite expects of
 * n cases. */
static inline uint64_t util_cases(uint64_t n)
{
#ifdef __SANITIZE_ADDRESS__
    return n / 4;
#else
    return n;
#endif
}

#endif

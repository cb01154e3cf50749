/* The flags that limit tokens per expert. They change the bytes of results, so a journal keeps them
 * (options/flags.h says how to read the list). */
#ifndef SHOAL_MOE_CAPACITY_FLAGS_H
#define SHOAL_MOE_CAPACITY_FLAGS_H

#include "moe/capacity.h"
#include "options/flags.h"

/* factor is 0 when the flag is not given: no limit. The job then sets policy to CAPACITY_DROPLESS.
 */
#define CAPACITY_FLAGS(FLAG)                                                                       \
    FLAG(double, factor, "capacity-factor", OF_NUMBER(0.01, 1000, "F"), .journal = JOURNAL_ALWAYS, \
         .help = "limit the tokens of each expert to this multiple of its even share; the bytes "  \
                 "then depend on the batch")                                                       \
    FLAG(enum capacity_policy, policy, "capacity-policy", OF_CHOICE(CAPACITY_WORDS),               \
         .preset = "drop", .journal = JOURNAL_AS_NUMBER,                                           \
         .help = "what happens to choices beyond that limit: drop: they are dropped; next: they "  \
                 "go to the next best expert with room; top1: they are dropped unless they are a " \
                 "token's first choice")

struct capacity_flags {
    CAPACITY_FLAGS(FLAG_FIELD)
};

#endif

/* Divides an op's work among threads by cost. The work is a list of strips; a strip is a number of
 * units of equal cost. The cost is divided into shares, one or more for each thread. For a share
 * the whole list is walked, and the units whose cost begins inside it are taken. So no list is
 * stored, and uneven work is balanced too.
 *
 *     cost   0        share 0       |      share 1       |      share 2
 *     strips [u u u u u u][u   u   u   u][uuuuuuuuuuuuuuuuu][u     u     u]
 *
 * Used by the ops, state_tiles.c, fp8_int8.c, fp8_plain.c and moe/exchange_host*.c. */
#ifndef SHOAL_KERNELS_PART_H
#define SHOAL_KERNELS_PART_H

#include "base/team.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A share [begin, end) of the cost, and the cost of the strips walked so far. */
struct part {
    uint64_t begin, end, at;
};

/* Local. Finds the units [*unit0, *unit1) of the next strip that fall to this share. All units of a
 * strip without cost fall to the share in which the cost before them ends. False: none do. */
static inline bool part_take(struct part *p, size_t n_units, uint64_t unit_cost, size_t *unit0,
                             size_t *unit1)
{
    if (unit_cost == 0) {
        const bool is_here = p->at == 0 ? p->begin == 0 : p->begin < p->at && p->at <= p->end;
        *unit0 = 0;
        *unit1 = is_here ? n_units : 0;
        return *unit1 > 0;
    }
    const uint64_t before = p->begin > p->at ? p->begin - p->at : 0;
    const uint64_t until = p->end > p->at ? p->end - p->at : 0;
    const uint64_t first = (before + unit_cost - 1) / unit_cost;
    const uint64_t last = (until + unit_cost - 1) / unit_cost;
    *unit0 = first < n_units ? (size_t)first : n_units;
    *unit1 = last < n_units ? (size_t)last : n_units;
    p->at += n_units * unit_cost;
    return *unit0 < *unit1;
}

/* Does an op's work on one share. */
typedef void part_fn(const void *job, struct part part);

/* Local. Divides `cost` (roughly in multiply-adds) into shares and runs fn on each: on all threads
 * of the team if the cost is worth waking them, else on the calling thread alone. Sets the
 * floating-point environment of each thread. */
void part_run(struct team *team, uint64_t cost, part_fn *fn, const void *job);

#endif

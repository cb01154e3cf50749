/* Cutting work among threads by cost. An op's work is a list of strips; a strip is a number of
 * units that cost the same. Every thread walks the list and takes the units whose cost starts
 * inside its own share, so that nothing is stored and any shape is balanced. Used by the ops. */
#ifndef SHOAL_KERNELS_PART_H
#define SHOAL_KERNELS_PART_H

#include "base/team.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One thread's share [begin, end) of the cost, and the cost of the strips walked so far. */
struct part {
    uint64_t begin, end, at;
};

/* Local. The units [*unit0, *unit1) of the next strip that are this thread's; false when none. */
static inline bool part_take(struct part *p, size_t n_units, uint64_t unit_cost, size_t *unit0,
                             size_t *unit1)
{
    const uint64_t before = p->begin > p->at ? p->begin - p->at : 0;
    const uint64_t until = p->end > p->at ? p->end - p->at : 0;
    const uint64_t first = (before + unit_cost - 1) / unit_cost;
    const uint64_t last = (until + unit_cost - 1) / unit_cost;
    *unit0 = first < n_units ? (size_t)first : n_units;
    *unit1 = last < n_units ? (size_t)last : n_units;
    p->at += n_units * unit_cost;
    return *unit0 < *unit1;
}

/* Does an op's work on one thread's share. */
typedef void part_fn(const void *job, struct part part);

/* Local. Runs fn over shares that cover `cost` (about one multiply-add each), on all threads of the
 * team when the work is worth telling them, else on the calling one. Sets the floating-point
 * environment of each. */
void part_run(struct team *team, uint64_t cost, part_fn *fn, const void *job);

#endif

/* Types that the headers of this room share: a row-parallel sum, and how a device's arrays travel.
 */
#ifndef SHOAL_COLLECTIVE_COLLECTIVE_H
#define SHOAL_COLLECTIVE_COLLECTIVE_H

#include "kernels/device_flags.h"
#include "kernels/ops.h"
#include "parallel/comm/comm.h"

/* At most GRID_SUM_LANES sums are under way at the same time, each in a lane of its own;
 * GRID_SUM_NOW: the only sum, finished before anything else is computed. */
enum { GRID_SUM_LANES = 2, GRID_SUM_NOW = -1 };

/* The integer sums of a row-parallel linear, and where their values go. */
struct grid_sum {
    const struct kern_table *kern;
    int64_t *sums; /* [T, N + 1] this rank's part, each row's counter last; undefined afterwards */
    size_t n_rows, n_out; /* T, N */
    uint32_t grid_bits;
    float *y;     /* [T, N] */
    int32_t *bad; /* [T] the rows' counters are added to it, saturating at INT32_MAX */
};

/* Local. Rounds the sums, which hold all ranks' parts: y = their values, or y += them. */
static inline void grid_sum_round(const struct grid_sum *s, bool adds)
{
    const struct grid_args a = {s->sums, s->n_rows, s->n_out, s->grid_bits, adds, s->y, s->bad};
    op_grid(s->kern, &a);
}

/* How arrays of a device travel between ranks. */
struct device_comm_options {
    struct device_flags flags; /* only its members way and parts_bytes are used */
    const char *host;          /* of this rank */
    int previous, next;        /* world ranks before and after this one in its pipeline; -1: none */
};

/* Arrays of hidden rows that may travel between two stages at the same time. */
enum { DEVICE_PIPE_SLOTS = 4 };

#endif

/* The end of a row-parallel linear: its integer sums added over the ranks of an axis, rounded to
 * f32 once. The bits are those of op_grid_add or op_grid_to_f32 after comm_sum_i64; between the
 * ranks of a host half the bytes move, and each rank rounds its part for all. Called by model and
 * moe. */
#ifndef SHOAL_KERNELS_GRID_SUM_H
#define SHOAL_KERNELS_GRID_SUM_H

#include "kernels/kern.h"
#include "parallel/comm.h"

struct grid_sum {
    const struct kern_table *kern;
    int64_t *sums; /* [T, N + 1] this rank's part, counters last; undefined afterwards */
    size_t n_rows, n_out;
    uint32_t grid_bits;
    float *y;     /* [T, N] */
    int32_t *bad; /* [T] the rows' counters are added (saturating at INT32_MAX) */
};

/* **Collective (axis)**. y += the sums' values. */
void grid_sum_add(const struct grid_sum *s, struct comm *c, enum comm_axis axis);

/* **Collective (axis)**. y = the sums' values. */
void grid_sum_to_f32(const struct grid_sum *s, struct comm *c, enum comm_axis axis);

#endif

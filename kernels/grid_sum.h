/* The end of a row-parallel linear: its integer sums added over the ranks of an axis, rounded to
 * f32 once. The bits are those of op_grid_add or op_grid_to_f32 after comm_sum_i64; between the
 * ranks of a host half the bytes move, and each rank rounds its part for all. Called by model and
 * moe. */
#ifndef SHOAL_KERNELS_GRID_SUM_H
#define SHOAL_KERNELS_GRID_SUM_H

#include "kernels/kern.h"
#include "parallel/comm/comm.h"

/* Sums under way at the same time, and none but this one. */
enum { GRID_SUM_LANES = 2, GRID_SUM_NOW = -1 };

struct grid_sum {
    const struct kern_table *kern;
    int64_t *sums; /* [T, N + 1] this rank's part, counters last; undefined afterwards */
    size_t n_rows, n_out;
    uint32_t grid_bits;
    float *y;     /* [T, N] */
    int32_t *bad; /* [T] the rows' counters are added (saturating at INT32_MAX) */
};

/* Local. Elements to allocate for `sums`: parts for all ranks, of the same size. */
size_t grid_sum_room(size_t n_rows, size_t n_out, const struct comm *c, enum comm_axis axis);

/* **Collective (axis)**. y += the sums' values. */
void grid_sum_add(const struct grid_sum *s, struct comm *c, enum comm_axis axis);

/* **Collective (axis)**. y = the sums' values. */
void grid_sum_to_f32(const struct grid_sum *s, struct comm *c, enum comm_axis axis);

/* **Collective (axis)**. The same in two calls with the same arguments, between which other work
 * may be asked for: a device's sums travel beside it, in a lane that has no other sum. */
void grid_sum_start(const struct grid_sum *s, struct comm *c, enum comm_axis axis, int lane);
void grid_sum_finish_add(const struct grid_sum *s, struct comm *c, enum comm_axis axis, int lane);
void grid_sum_finish_to_f32(const struct grid_sum *s, struct comm *c, enum comm_axis axis,
                            int lane);

#endif

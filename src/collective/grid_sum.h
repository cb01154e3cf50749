/* The end of a row-parallel linear: adds the integer sums of the ranks of an axis and rounds each
 * total to f32 once. The result has the bits of comm_sum_i64 followed by op_grid. The totals of a
 * large sum travel as f32, with half the bytes of an integer: each rank rounds a part of them for
 * all. A device's sums that go through host memory travel as integers. Called by model and moe. */
#ifndef SHOAL_COLLECTIVE_GRID_SUM_H
#define SHOAL_COLLECTIVE_GRID_SUM_H

#include "collective/collective.h"

/* Local. Returns how many elements to allocate for `sums`: enough to cut them into one part for
 * each rank of the axis, all of the same size. */
size_t grid_sum_room(size_t n_rows, size_t n_out, const struct comm *c, enum comm_axis axis);

/* **Collective (axis)**. s->y = the totals over all ranks, rounded to f32. */
void grid_sum_to_f32(const struct grid_sum *s, struct comm *c, enum comm_axis axis);

/* **Collective (axis)**. s->y = the totals, or s->y += the totals, in two calls with the same
 * arguments: grid_sum_start and one finish. Other ops may be called in between; a device computes
 * them while the sums travel. The lane must hold no other sum. */
void grid_sum_start(const struct grid_sum *s, struct comm *c, enum comm_axis axis, int lane);
void grid_sum_finish_add(const struct grid_sum *s, struct comm *c, enum comm_axis axis, int lane);
void grid_sum_finish_to_f32(const struct grid_sum *s, struct comm *c, enum comm_axis axis,
                            int lane);

#endif

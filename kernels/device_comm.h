/* Collectives over arrays where a table's ops work. Without a device these are comm's own; with one
 * they pass through pinned memory and MPI. Integers and moved bytes only, so the way never shows in
 * a result. Counts and displacements are lists in host memory. Called by model, moe and kernels. */
#ifndef SHOAL_KERNELS_DEVICE_COMM_H
#define SHOAL_KERNELS_DEVICE_COMM_H

#include "kernels/kern.h"
#include "parallel/comm.h"

/* **Collective (axis)**. As comm_sum_i64, comm_or_u32, comm_gather_words and comm_exchange_rows. A
 * rank whose device is lost takes part with whatever is there; the step fails afterwards. */
void device_sum_i64(const struct kern_table *k, struct comm *c, enum comm_axis axis, int64_t *buf,
                    size_t n);
void device_or_u32(const struct kern_table *k, struct comm *c, enum comm_axis axis, uint32_t *buf,
                   size_t n);
void device_gather_words(const struct kern_table *k, struct comm *c, enum comm_axis axis, void *all,
                         const int *counts, const int *displs);
void device_exchange_rows(const struct kern_table *k, struct comm *c, enum comm_axis axis,
                          const struct comm_exchange *x);

#endif

/* Communication of arrays where a table's ops work. Without a device these are comm's own; with one
 * they go through NCCL where every rank of an axis has a GPU of its own, else through pinned memory
 * and MPI. Integers and moved bytes only, so the way never shows in a result. Counts and
 * displacements are lists in host memory. Called by model, moe, engine and kernels.
 * Circle: ops, device_comm and grid_sum call into kernels/cuda, whose runtime implements their
 * headers. */
#ifndef SHOAL_KERNELS_DEVICE_COMM_H
#define SHOAL_KERNELS_DEVICE_COMM_H

#include "kernels/kern.h"
#include "parallel/comm/comm.h"

enum device_way {
    DEVICE_WAY_AUTO,   /* NCCL for the axes that can, the others are staged */
    DEVICE_WAY_STAGED, /* all through host memory */
    DEVICE_WAY_NCCL,   /* an axis that cannot is an error */
};

struct device_comm_options {
    enum device_way way;
    const char *host;   /* of this rank */
    int previous, next; /* ranks of the world beside this one in its pipeline; -1: none */
    size_t parts_from;  /* bytes of a row-parallel sum from which NCCL adds it as parts; 0: 1 MiB */
};

/* **Collective (world)**, after comm_split, with k's device open on every rank; nothing without a
 * device. Opens the communicators; `said` gets a line for the log. They end with the device, which
 * is closed before the communicator. Errors, not yet the same on all ranks: STATUS_USAGE (NCCL
 * could not start), STATUS_LOST (a rank did not answer within the device's deadline). */
struct status device_comm_open(const struct kern_table *k, struct comm *c,
                               const struct device_comm_options *o, char *said, size_t n);

/* Local. Whether sums over tp travel beside what the device computes (grid_sum_start). */
bool device_comm_overlaps(const struct kern_table *k);

/* **Collective (world)**. Whether all ranks' devices compute alike: the same sums (device_sums) and
 * compute capability, and one algorithm for each kind of product that was met so far, so it is
 * asked when the devices are open and when the weights are loaded. Nothing without a device, or
 * when the bytes are the CPU's. `host`: of this rank. The same result on all ranks. Errors:
 * STATUS_USAGE names two ranks that differ; STATUS_MEMORY. */
struct status device_comm_same(const struct kern_table *k, struct comm *c, const char *host);

/* **Collective (axis)**. With a device: grid_sum_start and grid_sum_finish_* (grid_sum.h). */
struct grid_sum;
void device_sum_start(const struct grid_sum *s, struct comm *c, enum comm_axis axis, int lane);
void device_sum_take(const struct grid_sum *s, struct comm *c, enum comm_axis axis, int lane,
                     bool adds);

/* **Collective (axis)**. As comm_or_u32, comm_gather_words and comm_exchange_rows; of the words
 * that are or-ed together, those that are not 0 are equal. A rank whose device is lost takes part
 * with whatever is there; the step fails afterwards. */
void device_or_u32(const struct kern_table *k, struct comm *c, enum comm_axis axis, uint32_t *buf,
                   size_t n);
void device_gather_words(const struct kern_table *k, struct comm *c, enum comm_axis axis, void *all,
                         const int *counts, const int *displs);
void device_exchange_rows(const struct kern_table *k, struct comm *c, enum comm_axis axis,
                          const struct comm_exchange *x);

/* Hidden rows between the stages of a pipeline. Where both GPUs can, rows go from one to the other
 * while both compute: receives and sends tell whether so, for the stage before and the stage
 * behind; the same on both sides. `slot` names the array, below DEVICE_PIPE_SLOTS. */
enum { DEVICE_PIPE_SLOTS = 4 };
bool device_pipe_receives(const struct kern_table *k);
bool device_pipe_sends(const struct kern_table *k);

/* Local. What is computed from now on sees the rows in `to`, whose last content must have been sent
 * or released. */
void device_pipe_receive(const struct kern_table *k, uint32_t slot, void *to, size_t n_bytes);
/* Local. Sends what was computed until now; `from` must not change before it is claimed. */
void device_pipe_send(const struct kern_table *k, uint32_t slot, const void *from, size_t n_bytes);
/* Local. A received array was used for the last time, and is not sent. */
void device_pipe_release(const struct kern_table *k, uint32_t slot);
/* Local. What is computed from now on may overwrite the slot's array. */
void device_pipe_claim(const struct kern_table *k, uint32_t slot);

#endif

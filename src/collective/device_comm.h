/* Collectives on the arrays that a kernel table's ops work on. Without a device these are the
 * functions of comm.h. With a device, NCCL moves the arrays where every rank of an axis has a GPU
 * of its own and NCCL; elsewhere, or if the flags say so, they are copied through pinned host
 * memory and travel as comm.h moves them. Both ways only copy words and add or compare integers, so
 * the way changes no bit of a result. Counts and displacements are lists in host memory. Called by
 * model, moe, sample and engine; opened by job. */
#ifndef SHOAL_COLLECTIVE_DEVICE_COMM_H
#define SHOAL_COLLECTIVE_DEVICE_COMM_H

#include "collective/collective.h"

/* **Collective (world)**. Opens the communicators of k's device; does nothing without a device.
 * Called after comm_split, with the device open on every rank. Writes a line for the log to
 * said[n]. The communicators end with the device, which must be closed before c. Errors may differ
 * between ranks: STATUS_USAGE (NCCL could not start, or the flags ask for it where it cannot run),
 * STATUS_LOST (a rank did not answer within the device's deadline), STATUS_MEMORY. */
struct status device_comm_open(const struct kern_table *k, struct comm *c,
                               const struct device_comm_options *o, char *said, size_t n);

/* Local. True when sums over tp travel while the device computes (grid_sum_start). */
bool device_comm_overlaps(const struct kern_table *k);

/* **Collective (world)**. Checks that the devices of all ranks compute the same bits: the same
 * device_sums, the same compute capability, and the same algorithm for each kind of matrix product
 * that ranks have computed so far. Called once when the devices are open and again when the weights
 * are loaded. Checks nothing without a device, or when the devices compute the CPU's bits. `host`:
 * this rank's host. All ranks get the same result. Errors: STATUS_USAGE names two ranks that
 * differ; STATUS_MEMORY. */
struct status device_comm_same(const struct kern_table *k, struct comm *c, const char *host);

/* **Collective (axis)**. The two halves of a grid_sum on a device; see grid_sum.h. */
void device_sum_start(const struct grid_sum *s, struct comm *c, enum comm_axis axis, int lane);
void device_sum_finish(const struct grid_sum *s, struct comm *c, enum comm_axis axis, int lane,
                       bool adds);

/* These three functions are **Collective (axis)**. A rank whose device has failed sends undefined
 * content, or over NCCL nothing at all; its step fails afterwards.
 *
 * device_or_u32: as comm_or_u32, but the ranks' values of one word must be equal or 0. */
void device_or_u32(const struct kern_table *k, struct comm *c, enum comm_axis axis, uint32_t *buf,
                   size_t n);
/* As comm_gather_words. */
void device_gather_words(const struct kern_table *k, struct comm *c, enum comm_axis axis, void *all,
                         const int *counts, const int *displs);
/* As comm_exchange_rows. */
void device_exchange_rows(const struct kern_table *k, struct comm *c, enum comm_axis axis,
                          const struct comm_exchange *x);

/* Local. True when hidden rows come from the previous stage (receives), or go to the next stage
 * (sends), directly from GPU to GPU while both compute. The two sides of a pair return the same. */
bool device_pipe_receives(const struct kern_table *k);
bool device_pipe_sends(const struct kern_table *k);

/* These four functions are Local. `slot` < DEVICE_PIPE_SLOTS names an array of hidden rows.
 *
 * device_pipe_receive: receives n_bytes into `to`; ops called from now on see them. The slot's last
 * content must have been sent or released. */
void device_pipe_receive(const struct kern_table *k, uint32_t slot, void *to, size_t n_bytes);
/* Sends the result of the ops called so far. `from` must not change before device_pipe_claim. */
void device_pipe_send(const struct kern_table *k, uint32_t slot, const void *from, size_t n_bytes);
/* Frees the slot of a received array that will not be sent. */
void device_pipe_release(const struct kern_table *k, uint32_t slot);
/* Allows ops called from now on to overwrite the slot's array. */
void device_pipe_claim(const struct kern_table *k, uint32_t slot);

#endif

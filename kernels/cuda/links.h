/* NCCL communicators of this rank's device: one for each axis whose ranks all have a GPU of their
 * own, and one for each neighbour in the pipeline. Ranks that share a GPU have none: device_comm.c
 * stages for them. Operations are put on streams; what waits is device_wait, which asks links_check
 * for errors of peers and keeps the deadline. Called by device_comm.c and device_cuda.c. */
#ifndef SHOAL_KERNELS_CUDA_LINKS_H
#define SHOAL_KERNELS_CUDA_LINKS_H

#include "kernels/cuda/nccl_table.h"
#include "kernels/device.h"
#include "kernels/device_comm.h"
#include "kernels/grid_sum.h"

enum { LINK_HOST_BYTES = 64, LINK_PCI_BYTES = 32, LINK_AXES = 3 };
enum { LINK_BEFORE, LINK_BEHIND, LINK_PAIRS }; /* the pipeline's stage before, and behind */

/* What decides about a link: where a rank's GPU is. Gathered from all ranks. */
struct link_member {
    char host[LINK_HOST_BYTES], pci[LINK_PCI_BYTES];
    uint32_t has_nccl;
};

/* A communicator. comm NULL: staged. */
struct link {
    void *comm;
    int n_ranks, rank;
    const int *world; /* [n_ranks] ranks of the world, owned by links */
    enum comm_axis axis;
    const char *last; /* the operation asked for last */
    uint64_t n_asked, n_done;
};

/* The streams of a pipeline's rows, and for each slot when its rows are there, when they may be
 * overwritten. */
struct link_pipe {
    void *in, *out, *computed;
    void *arrived[DEVICE_PIPE_SLOTS], *left[DEVICE_PIPE_SLOTS];
    uint32_t last_sent;
};

/* A stream beside the compute stream for the sums of one microbatch while another computes: what
 * they are made of is `computed`; a lane's are done, the last ones in all of them `last`. */
struct link_side {
    void *stream, *computed;
    void *done[GRID_SUM_LANES];
    void *last; /* NULL: compute waited for all */
};

struct links {
    const struct nccl_table *nccl; /* NULL: none; then every comm is NULL */
    struct comm *comm;
    struct link_member *members; /* [size of the world], owned */
    struct link axes[LINK_AXES]; /* axes of the same ranks have the same communicator */
    struct link pairs[LINK_PAIRS];
    struct link_pipe pipe;
    struct link_side side;
    size_t parts_from; /* bytes of sums from which they go as parts */
    bool aborted;
};

/* Local. Whether the ranks world[n] can be one communicator: all have NCCL and no two of them the
 * same GPU. If not, `why` says it. */
bool links_possible(const struct link_member *members, const int *world, int n, char *why,
                    size_t why_bytes);

/* **Collective (world)**. Opens what is possible (device_comm.h). links_close accepts NULL; after a
 * failure it aborts what is open. */
struct status links_open(struct device *d, struct comm *c, const struct device_comm_options *o);
void links_close(struct device *d);

/* Local. This rank's communicator of an axis; NULL: staged. */
struct link *links_of(struct device *d, enum comm_axis axis);

/* Local. While the host waits for the device: links_check ends the job when a communicator failed.
 * links_waited: all that was asked for is done. links_waiting: what is not, for a sentence:
 * " (all-reduce over tp with rank 1 on node2)" or nothing. */
void links_check(struct device *d);
void links_waited(struct device *d);
void links_waiting(const struct device *d, char *out, size_t n);

/* Local. Ends what runs; leave also logs the device's failure and ends the job with the status of a
 * lost rank: a rank without its communicators could only wait for others that wait for it. */
void links_leave(struct device *d) __attribute__((noreturn));
void links_abort(struct device *d);

/* Local. Waits until the library has taken in what was asked of it (not until the device has done
 * it); error is what the call returned. False after a failure, which is then the device's, of this
 * class. */
bool links_settle(struct device *d, const struct link *link, int error, enum status_code code);

/* **Collective (axis)** each, on the compute stream. */
void links_max_u32(struct device *d, struct link *l, uint32_t *buf, size_t n);
void links_gather_words(struct device *d, struct link *l, void *all, const int *counts,
                        const int *displs);
void links_exchange_rows(struct device *d, struct link *l, const struct comm_exchange *x);

/* links_sum.c. **Collective (axis)**. Starts adding s->sums over the ranks, on the side stream with
 * a lane, else on the compute stream; take: what is computed from now on sees s->y and s->bad. */
void links_sum_start(struct device *d, struct link *l, const struct grid_sum *s, int lane);
void links_sum_take(struct device *d, struct link *l, const struct grid_sum *s, int lane,
                    bool adds);

/* Local. The side stream; close is given what open left. What is asked of a communicator on the
 * compute stream from now on runs after what the side stream has. */
struct status links_side_open(struct device *d);
void links_side_close(struct device *d);
void links_side_settle(struct device *d);

/* links_run.c. Local. An operation begins; and was asked for, with the library's answer. */
uint64_t links_begin(struct device *d, struct link *link, enum flight_op op, uint64_t count);
void links_asked(struct device *d, struct link *link, int error, uint64_t since, size_t n_bytes);

/* Local. Work put on the stream from now on waits for the event; the event is what the stream has
 * so far. False after a failure. */
bool links_put_behind(struct device *d, void *stream, void *event);
bool links_record(struct device *d, void *event, void *stream);

/* Local. The pipeline's streams; close is given what open left. */
struct status links_pipe_open(struct device *d);
void links_pipe_close(struct device *d);

/* Local. device_pipe_* of device_comm.h; whether the last rows sent have left. */
void links_receive(struct device *d, uint32_t slot, void *to, size_t n_bytes);
void links_send(struct device *d, uint32_t slot, const void *from, size_t n_bytes);
void links_release(struct device *d, uint32_t slot);
void links_claim(struct device *d, uint32_t slot);
bool links_all_sent(struct device *d);

#endif

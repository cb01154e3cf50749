/* NCCL communicators of this rank's device: one for each of the axes tp, ep and etp with several
 * ranks, which all have NCCL and a GPU of their own, and one for each neighbour in the pipeline.
 * Ranks that share a GPU have none; device_comm.c copies their arrays through host memory.
 * Operations are put on the device's streams; the host does not wait until they have run. It waits
 * in device_wait, whose hooks (kernels/cuda/device_state.h) look for errors of peers here. */
#ifndef SHOAL_COLLECTIVE_LINKS_PRIVATE_H
#define SHOAL_COLLECTIVE_LINKS_PRIVATE_H

#include "collective/collective.h"
#include "kernels/cuda/nccl_table.h"
#include "kernels/device.h"

enum { LINK_HOST_BYTES = 64, LINK_PCI_BYTES = 32, LINK_AXES = 3 };
enum { LINK_BEFORE, LINK_BEHIND, LINK_PAIRS }; /* the pipeline's stage before, and after */

/* The host and PCI address of a rank's GPU; gathered from all ranks. */
struct link_member {
    char host[LINK_HOST_BYTES], pci[LINK_PCI_BYTES];
    uint32_t has_nccl;
};

/* A communicator. */
struct link {
    void *comm; /* NULL: no communicator; arrays go through host memory */
    int n_ranks, rank;
    const int *world; /* [n_ranks] ranks of the world, owned by links */
    enum comm_axis axis;
    const char *last;         /* name of the last operation */
    uint64_t n_asked, n_done; /* operations started, and known to have finished */
};

/* The streams of a pipeline's rows. Each slot has two events: its rows have arrived, and its array
 * may be overwritten. */
struct link_pipe {
    void *in, *out, *computed;
    void *arrived[DEVICE_PIPE_SLOTS], *left[DEVICE_PIPE_SLOTS];
    uint32_t last_sent;
};

/* A second stream, for the sums of one part of a step while another part is computed on the compute
 * stream. */
struct link_side {
    void *stream;
    void *computed;             /* event: the inputs of the sums have been computed */
    void *done[GRID_SUM_LANES]; /* [lane] event: the lane's latest sum is finished */
    void *last;                 /* the latest of `done`; NULL: the compute stream has waited for
                                   all of them */
};

struct links {
    const struct nccl_table *nccl; /* NULL: no NCCL library; then every comm is NULL */
    struct comm *comm;             /* borrowed */
    struct link_member *members;   /* [size of the world], owned */
    struct link axes[LINK_AXES];   /* axes of the same ranks have the same communicator */
    struct link pairs[LINK_PAIRS];
    struct link_pipe pipe;
    struct link_side side;
    size_t parts_from; /* device_comm_options.flags.parts_bytes */
    bool aborted;
};

/* Local. True when the ranks world[n] can form one communicator: all have NCCL, and no two of them
 * use the same GPU. If not, writes the reason to `why`. */
bool links_possible(const struct link_member *members, const int *world, int n, char *why,
                    size_t why_bytes);

/* **Collective (world)**. Opens the communicators that are possible, and sets the device's hooks.
 * Errors: device_comm_open's. */
struct status links_open(struct device *d, struct comm *c, const struct device_comm_options *o);

/* Local. Returns this rank's communicator of an axis; NULL: none. */
struct link *links_of(struct device *d, enum comm_axis axis);

/* Local. Logs the device's failure and ends the job with the status of a lost rank: a rank without
 * communicators could only wait for ranks that wait for it. */
void links_leave(struct device *d) __attribute__((noreturn));

/* Local. Waits until the library has accepted an operation, not until the device has run it;
 * `error` is the result of the call. On failure sets the device's failure and returns false; that
 * failure has the code `code` if the device reports no error of its own, and STATUS_LOST after the
 * deadline. */
bool links_settle(struct device *d, const struct link *link, int error, enum status_code code);

/* **Collective (axis)** each, on the compute stream. The arguments are those of device_or_u32,
 * device_gather_words and device_exchange_rows. */
void links_max_u32(struct device *d, struct link *l, uint32_t *buf, size_t n);
void links_gather_words(struct device *d, struct link *l, void *all, const int *counts,
                        const int *displs);
void links_exchange_rows(struct device *d, struct link *l, const struct comm_exchange *x);

/* **Collective (axis)**. Starts adding s->sums over the ranks: on the side stream with a lane, on
 * the compute stream with GRID_SUM_NOW. After finish, ops see s->y and s->bad. */
void links_sum_start(struct device *d, struct link *l, const struct grid_sum *s, int lane);
void links_sum_finish(struct device *d, struct link *l, const struct grid_sum *s, int lane,
                      bool adds);

/* Local. The side stream. open creates it; close releases it, also after a failed open. After
 * settle, new work on the compute stream waits for all work that the side stream holds now. */
struct status links_side_open(struct device *d);
void links_side_close(struct device *d);
void links_side_settle(struct device *d);

/* Local. links_begin records the start of an operation and returns the time for links_asked, which
 * takes the library's answer and accounts n_bytes; on failure it calls links_leave. */
uint64_t links_begin(struct device *d, struct link *link, enum flight_op op, uint64_t count);
void links_asked(struct device *d, struct link *link, int error, uint64_t since, size_t n_bytes);

/* Local. Records the driver's answer `error` as a failure to do `what`. Returns the device's
 * failure; OK: there is none. */
struct status links_made(struct device *d, int error, const char *what);

/* Local. links_put_behind makes all later work on the stream wait for the event. links_record makes
 * the event wait for the work that the stream holds now. Both return false after a failure. */
bool links_put_behind(struct device *d, void *stream, void *event);
bool links_record(struct device *d, void *event, void *stream);

/* Local. The pipeline's streams. close also accepts the result of a failed open. */
struct status links_pipe_open(struct device *d);
void links_pipe_close(struct device *d);

/* Local. As device_pipe_* of device_comm.h. */
void links_receive(struct device *d, uint32_t slot, void *to, size_t n_bytes);
void links_send(struct device *d, uint32_t slot, const void *from, size_t n_bytes);
void links_release(struct device *d, uint32_t slot);
void links_claim(struct device *d, uint32_t slot);

/* Local. True when the rows of the last links_send have left. */
bool links_all_sent(struct device *d);

#endif

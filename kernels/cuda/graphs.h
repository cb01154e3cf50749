/* Work on its way to the compute stream. What ops launch is held back as a list until somebody else
 * needs the stream (a copy, a collective, the host that waits): a run. A run that was seen before
 * in the same place of a step goes to the device as one graph, whose launches are changed where
 * grids or arguments are others now. A graph does what its list does, so it never shows in a
 * result. Called by device_cuda.c. */
#ifndef SHOAL_KERNELS_CUDA_GRAPHS_H
#define SHOAL_KERNELS_CUDA_GRAPHS_H

#include "kernels/cuda/driver.h"

struct device;
struct graphs;

enum {
    RUN_WORKS = 4096, /* of one run; a longer one is cut */
    RUN_BYTES = 2 << 20,
    GRAPH_WORKS_LEAST = 4,   /* below, launches of their own are as good */
    GRAPHS_MAX = 2048,       /* runs that are known */
    GRAPH_NODES_MAX = 16384, /* of all graphs kept; the one used longest ago goes first */
    GRAPHS_ALIKE = 4,        /* of the same kernels, with arguments that come in turn */
};

/* Counted since the device was opened. */
struct graphs_count {
    uint64_t n_made, n_replayed, n_changed; /* graphs, their launches, launches in them changed */
    uint64_t n_plain, n_in_graphs;          /* works put one by one, works in graphs that ran */
};

/* Local. `on` false: all is put on the stream at once. Errors: STATUS_MEMORY. close accepts a
 * device without, and waits for what still runs. */
struct status graphs_open(struct device *d, bool on);
void graphs_close(struct device *d);

/* Local. A step of n_rows begins: runs are known by their place in it. */
void graphs_step(struct device *d, size_t n_rows);

/* Local. Puts on the stream what is held back. */
void graphs_flush(struct device *d);

/* Local. All that was put on the stream has ended. */
void graphs_waited(struct device *d);

struct graphs_count graphs_counted(const struct device *d);

#endif

/* Launches on their way to the compute stream. Launches by ops are held back in a list, called a
 * run, until another user needs the stream: a copy, a collective, or the waiting host. A run that
 * was seen before at the same place of a step goes to the device as one CUDA graph; launches whose
 * grid or arguments differ are changed in the graph first. A graph does exactly what its list
 * does, so results never depend on it. Called by device_cuda.c and ops_cuda.c. */
#ifndef SHOAL_KERNELS_CUDA_GRAPHS_H
#define SHOAL_KERNELS_CUDA_GRAPHS_H

#include "kernels/cuda/driver.h"

struct device;
struct graphs;

enum {
    RUN_WORKS = 4096, /* most launches and products of a run; a longer run is divided */
    RUN_BYTES = 2 << 20,
    GRAPH_WORKS_LEAST = 4,   /* shorter runs are not worth a graph */
    GRAPHS_MAX = 2048,       /* most runs that are known */
    GRAPH_NODES_MAX = 16384, /* most nodes in all graphs; for more, old graphs are dropped */
    GRAPHS_ALIKE = 4,        /* most graphs of the same kernels, which differ in their arguments */
};

/* Counts since the device was opened. */
struct graphs_count {
    uint64_t n_made, n_replayed, n_changed; /* graphs made, launches of graphs, launches changed */
    uint64_t n_plain, n_in_graphs; /* launches put one by one; launches in replayed graphs */
};

/* Local. With `on` false, work is put on the stream immediately. Errors: STATUS_MEMORY.
 * graphs_close waits for running graphs; it also accepts a device without graphs. */
struct status graphs_open(struct device *d, bool on);
void graphs_close(struct device *d);

/* Local. Begins a step of n_rows. Runs are recognized by their place in the step. */
void graphs_step(struct device *d, size_t n_rows);

/* Local. Puts the held-back work on the stream. */
void graphs_flush(struct device *d);

/* Local. Notes that all work put on the stream has ended. */
void graphs_waited(struct device *d);

struct graphs_count graphs_counted(const struct device *d);

#endif

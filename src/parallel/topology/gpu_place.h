/* Assigns the GPUs of a host to its ranks: evenly, and where possible on the rank's NUMA node. Pure
 * functions. Called by the device and the job at start, and by `shoal plan`. */
#ifndef SHOAL_PARALLEL_TOPOLOGY_GPU_PLACE_H
#define SHOAL_PARALLEL_TOPOLOGY_GPU_PLACE_H

#include "base/strbuf.h"
#include "parallel/topology/topo.h"

/* Local. Sets gpu_of [n_ranks] from the NUMA nodes of n_gpus > 0 GPUs and of n_ranks ranks (-1:
 * unknown, or several). The numbers of ranks on any two GPUs differ by at most one. Within that
 * limit a rank gets a GPU of its own NUMA node, if one is left; lower ranks choose first. Errors:
 * STATUS_MEMORY. */
struct status gpu_place(const int32_t *gpu_numa, uint32_t n_gpus, const int32_t *rank_numa,
                        uint32_t n_ranks, uint32_t *gpu_of);

/* Local. Returns the NUMA node of the GPU with this PCI bus id (upper or lower case); -1 when
 * unknown. */
int32_t gpu_numa_of(const struct topo_node *n, const char *pci);

/* Local. Writes the section "GPUs" of a plan: for each kind of node with GPUs, the GPUs of the
 * first such node and the ranks to which they are assigned. order: as in plan_report. Errors:
 * STATUS_MEMORY. */
struct status gpu_report(const struct topo *t, const uint32_t *order, struct strbuf *out);

#endif

/* Which GPU of a host belongs to which of its ranks: near ranks first, and evenly. Pure. Called by
 * the device at start and by `shoal plan`. */
#ifndef SHOAL_PARALLEL_TOPOLOGY_GPU_PLACE_H
#define SHOAL_PARALLEL_TOPOLOGY_GPU_PLACE_H

#include "base/strbuf.h"
#include "parallel/topology/topo.h"

/* Local. A GPU for each rank: gpu_of[n_ranks] from the NUMA nodes of n_gpus > 0 GPUs and n_ranks
 * ranks (-1: unknown, or several). No GPU gets more than one rank more than another; as far as that
 * goes a rank gets a GPU of its own NUMA node, the first ranks first. Errors: STATUS_MEMORY. */
struct status gpu_place(const int32_t *gpu_numa, uint32_t n_gpus, const int32_t *rank_numa,
                        uint32_t n_ranks, uint32_t *gpu_of);

/* Local. The NUMA node of the GPU with this PCI bus id on a node, in any case of letters; -1. */
int32_t gpu_numa_of(const struct topo_node *n, const char *pci);

/* Local. The section "GPUs" of a plan: those of the first node of each kind that has some, and
 * whose they are. order as in plan_report. Errors: STATUS_MEMORY. */
struct status gpu_report(const struct topo *t, const uint32_t *order, struct strbuf *out);

#endif

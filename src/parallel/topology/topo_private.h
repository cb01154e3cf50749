/* Reads an hwloc topology into topo's structures. Included only by topo*.c. */
#ifndef SHOAL_PARALLEL_TOPOLOGY_TOPO_PRIVATE_H
#define SHOAL_PARALLEL_TOPOLOGY_TOPO_PRIVATE_H

#include "parallel/topology/topo.h"

#include <hwloc.h>

/* Local. Loads a topology: the running machine (both NULL), a synthetic string or an XML file. PCI
 * devices come from XML only: on the running machine hwloc's plugin for them leaks, and topo_self.c
 * reads /sys. The caller frees *out with hwloc_topology_destroy. Errors: STATUS_USAGE
 * quotes the string or path; STATUS_MEMORY. */
struct status topo_load(const char *synthetic, const char *xml, hwloc_topology_t *out);

/* Local. True for a display device (PCI class 0x03xx) of a maker of compute GPUs, so a server's
 * management VGA does not count. */
bool topo_is_gpu(uint32_t pci_class, uint32_t pci_vendor);

/* Local. Adds a GPU to n_gpus; the first TOPO_GPUS_MAX by bus id are kept, sorted by it. */
void topo_add_gpu(struct topo_node *n, const char *pci, int32_t numa, uint64_t memory_bytes);

/* Local. Counts a node's parts; name is left empty. */
void topo_read_node(hwloc_topology_t h, struct topo_node *out);

/* Local. Finds the place of a set of processing units; leaves host and local ranks 0. Errors:
 * STATUS_MEMORY. */
struct status topo_read_place(hwloc_topology_t h, hwloc_const_cpuset_t set, struct topo_rank *out);

/* Local. Cuts n_cores cores into n parts, and sets [*begin, *end) to part i. With more parts than
 * cores several parts get the same core. */
void topo_share(uint32_t n_cores, uint32_t n, uint32_t i, uint32_t *begin, uint32_t *end);

/* Local. Returns the next core that intersects `set`, or the next processing unit when the machine
 * shows no cores. */
hwloc_obj_t topo_next_core(hwloc_topology_t h, hwloc_const_cpuset_t set, hwloc_obj_t previous);

#endif

/* The machine: the place of each rank (host, package, NUMA node, L3) and the parts of each host.
 * Read by hwloc from the running machine, a synthetic description, or XML files. Knows nothing of
 * models and layouts. */
#ifndef SHOAL_PARALLEL_TOPOLOGY_TOPO_H
#define SHOAL_PARALLEL_TOPOLOGY_TOPO_H

#include "base/status.h"
#include "base/team.h"

#include <stdbool.h>
#include <stdint.h>

enum { TOPO_RANKS_MAX = 65536, TOPO_GPUS_MAX = 16 };

/* One GPU of a node. */
struct topo_gpu {
    char pci[16];          /* bus id, "0000:3b:00.0"; empty: unknown */
    int32_t numa;          /* node index inside the host; -1: unknown */
    uint64_t memory_bytes; /* 0: unknown */
};

/* One node. */
struct topo_node {
    char name[64];
    uint32_t n_packages, n_numa, n_l3, n_cores, n_pus, n_gpus;
    uint64_t memory_bytes;
    bool memory_is_assumed;              /* the description gives no memory, so memory_bytes is
                                            256 GiB */
    struct topo_gpu gpus[TOPO_GPUS_MAX]; /* the first n_gpus by bus id, as far as they fit */
};

/* One rank's place. Indices count inside the rank's host; -1: there is none, or the rank may run in
 * several. */
struct topo_rank {
    uint32_t host;
    int32_t package, numa, l3, first_pu;
    uint32_t n_pus; /* processing units that the launcher gave to this rank */
    uint32_t n_cores;
    uint32_t local_rank, n_local_ranks; /* among the ranks of its host */
    uint64_t cpuset_hash;               /* ranks with equal hashes on a host share their cores */
};

struct topo {
    uint32_t n_nodes;
    struct topo_node *nodes; /* [n_nodes], owned */
    uint32_t n_ranks;
    struct topo_rank *ranks; /* [n_ranks], owned; in the launcher's order */
};

/* Local. Makes a topology from a description: `N x "hwloc synthetic"`, a synthetic string alone
 * (one node), or a folder of hwloc XML files, one per node. gpus_per_node > 0 replaces the number
 * of GPUs of each node. With n_ranks = 0 there is one rank per GPU on a node with GPUs, otherwise
 * one per NUMA node; other n_ranks are spread evenly over the nodes. With memory_per_node_bytes = 0
 * the description's memory is used, or 256 GiB when it gives none. Errors: STATUS_USAGE quotes the
 * text that was not understood; STATUS_MEMORY. */
struct status topo_describe(const char *spec, uint32_t n_ranks, uint32_t gpus_per_node,
                            uint64_t memory_per_node_bytes, struct topo **out);
void topo_destroy(struct topo **t);

/* This process on the running machine: its own entry (host is 0) and its node. Holds no pointers,
 * so comm gathers it as bytes. */
struct topo_self {
    struct topo_rank rank;
    struct topo_node node;
};

/* Local. Fills `out` from hwloc and this process's binding. Errors: STATUS_MEMORY, STATUS_USAGE
 * when hwloc cannot load the machine. */
struct status topo_self_read(struct topo_self *out);

/* Local. Makes a topology from the entries of all ranks ([n_ranks], in the launcher's order);
 * entries with the same node name are on one host. The caller frees *out with topo_destroy. Errors:
 * STATUS_MEMORY. */
struct status topo_join(const struct topo_self *selves, uint32_t n_ranks, struct topo **out);

/* Local. Returns the number of compute threads for this rank, at least 1: its share of the cores
 * that the launcher gave. Ranks of a host with the same CPU set divide its cores. */
uint32_t topo_threads(const struct topo *t, uint32_t rank);

/* Local. Binds each thread of a team (NULL: the calling thread) to one core of this rank's share of
 * the CPU set that the launcher gave. Binds no thread if there are more threads than cores, or if
 * the launcher bound nothing and cores would be left idle. A failure is a warning, never an error.
 */
void topo_bind_threads(const struct topo *t, uint32_t rank, struct team *team);

/* Local. Binds the calling thread, and the memory that it will touch, to a NUMA node of this
 * machine (index inside the host), within the CPU set that the launcher gave; threads created later
 * inherit both. *moved: whether the thread may now run on fewer cores. A failure is a warning,
 * never an error. */
void topo_bind_near(int32_t numa, bool *moved);

#endif

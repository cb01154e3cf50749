/* Facts about hosts and ranks, before any rule judges them: from the system's files, and measured
 * by diagnose_measure. Plain bytes, so that ranks can gather them. 0 means not known unless said
 * otherwise. */
#ifndef SHOAL_DIAGNOSE_FACTS_H
#define SHOAL_DIAGNOSE_FACTS_H

#include "parallel/topology/topo.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FACTS_NUMA_MAX = 32, FACTS_PORTS_MAX = 8, FACTS_NAME_BYTES = 64 };

enum facts_pages { PAGES_UNKNOWN, PAGES_ALWAYS, PAGES_MADVISE, PAGES_NEVER };

/* A port of a fast network (InfiniBand, Omni-Path, RoCE). */
struct facts_port {
    char name[FACTS_NAME_BYTES]; /* "mlx5_0" */
    uint32_t gbit;
    bool is_active;
};

/* Facts of a host from the system's files. */
struct facts_system {
    uint64_t memory_bytes, swap_used_bytes;
    uint32_t n_numa;
    uint64_t numa_bytes[FACTS_NUMA_MAX],
        numa_free_bytes[FACTS_NUMA_MAX]; /* numa_free_bytes: free, or used by the file cache */
    enum facts_pages pages;              /* transparent huge pages of private memory */
    char governor[FACTS_NAME_BYTES], driver[FACTS_NAME_BYTES]; /* of the first core's frequency */
    uint64_t shm_bytes, shm_free_bytes;                        /* /dev/shm */
    uint64_t locked_bytes_max; /* memory that a process may lock; UINT64_MAX: any */
    uint32_t n_ports;          /* in `ports` */
    uint32_t ethernet_mbit;    /* of the fastest Ethernet that is up */
    struct facts_port ports[FACTS_PORTS_MAX];
    uint32_t n_gpu_files; /* device files of NVIDIA GPUs */
    uint32_t n_modules;   /* memory modules */
    double modules_gbs;   /* the most that they can give together, in GB/s */
};

/* Measurements of a host: read_gbs is the sum over its ranks, the rest is from its first rank. */
struct facts_measured {
    double read_gbs;                   /* reads from memory */
    double others_cores, stolen_cores; /* cores busy with other processes; kept by the hypervisor */
    double mhz_part;                   /* frequency under load, as a fraction of the highest */
    double link_gbit, link_us;         /* between the first rank's host and this one */
    double write_mbs, read_mbs;        /* of --directory */
};

/* One rank. */
struct facts_rank {
    uint32_t n_threads; /* threads that a job's rank would have */
    char cpu[FACTS_NAME_BYTES];
    struct facts_system system;
    struct facts_measured measured; /* of its host; used only from the host's first rank */
};

/* All facts, as the rules read them. */
struct facts {
    const struct topo *topo;        /* borrowed */
    const struct facts_rank *ranks; /* [topo->n_ranks], borrowed, in the launcher's order */
    const uint32_t *first;          /* [topo->n_nodes], borrowed: the first rank of each host */
    const char *directory;          /* the folder that was measured; NULL: none */
};

/* Local. Reads the files below `root` ("" for this machine), and this process's limit of locked
 * memory. A fact that cannot be read becomes 0. */
void facts_read_system(const char *root, struct facts_system *out);

/* Local. Reads a table of memory modules (DMTF SMBIOS 3.7, section 7.18, structures of type 17):
 * adds to *out the number of modules that are there, and the sum of their transfer rates (the
 * configured ones, if known) times 8 bytes. Two modules of one channel count twice, so the sum is
 * an upper bound. Of a damaged table, the modules before the damage count. */
void facts_read_modules(const uint8_t *table, size_t n_bytes, struct facts_system *out);

/* Local. first[h] = the first rank of host h, for all hosts. */
void facts_first_ranks(const struct topo *t, uint32_t *first);

#endif

/* Measures the facts on which a job's speed depends: memory, other processes, frequency, links
 * between hosts, and a folder. Each measurement takes about a second. */
#ifndef SHOAL_DIAGNOSE_MEASURE_H
#define SHOAL_DIAGNOSE_MEASURE_H

#include "diagnose/facts.h"
#include "parallel/comm/comm.h"

/* The ranks that measure; all borrowed. */
struct machine {
    struct comm *comm; /* COMM_WORLD is enough */
    const struct topo *topo;
    struct team *team;     /* this rank's */
    const uint32_t *first; /* [topo->n_nodes] the first rank of each host */
};

/* **Collective (world)**. Fills *out on every rank; the first rank of each host measures links and
 * the folder `directory` (NULL: none), in which it writes, reads and removes a file
 * "shoal-diagnose.RANK". Errors, the same on all ranks: STATUS_MEMORY, STATUS_IO (the file cannot
 * be written or read), STATUS_USAGE (the folder's path is too long). */
struct status diagnose_measure(const struct machine *m, const char *directory,
                               struct facts_measured *out);

#endif

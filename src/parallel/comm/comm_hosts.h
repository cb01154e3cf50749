/* Knows on which host each rank of an axis is, and holds the host group of the ranks on this rank's
 * host. An axis inside one host has one group. An axis over several hosts has a group on each host
 * with several of its ranks, which sums and mails between hosts use (host_sum.h, comm_mail.h).
 * Private to comm. */
#ifndef SHOAL_PARALLEL_COMM_COMM_HOSTS_H
#define SHOAL_PARALLEL_COMM_COMM_HOSTS_H

#include "parallel/comm/host_group.h"

#include <mpi.h>

/* Hosts are numbered in the order of their first ranks. A rank that cannot share memory with the
 * others of its machine counts as a host of its own. */
struct comm_hosts {
    int n_ranks;        /* ranks of the axis */
    int n_hosts, host;  /* host: this rank's */
    int n_local, local; /* ranks on this host; this rank's number among them, in the axis's order */
    int n_least;        /* the smallest n_local of all hosts */
    int *host_of;       /* [n_ranks] */
    int *local_of;      /* [n_ranks] a rank's number on its host */
    int *n_on;          /* [n_hosts] ranks of each host */
    struct host_group *group; /* of this host's ranks; NULL: this rank is alone on its host */
};

/* **Collective (axis)**. Opens the hosts of an axis. `host_id`, at least 0, is the same for the
 * ranks of one host. Returns NULL when memory ran out or MPI failed; the caller closes the result.
 */
struct comm_hosts *comm_hosts_open(MPI_Comm axis, int host_id, struct host_group_waiting w);
void comm_hosts_close(struct comm_hosts **h);

/* Local. Returns the axis rank with number `local` on a host; -1: none. */
int comm_hosts_rank_of(const struct comm_hosts *h, int host, int local);

#endif

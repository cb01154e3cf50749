/* Measures the curves of a node for `shoal bench --machine --save`. All ranks of a host measure at
 * the same time, so that times are those of a host whose ranks share it (cost/node_file.h). */
#ifndef SHOAL_BENCH_BENCH_NODE_H
#define SHOAL_BENCH_BENCH_NODE_H

#include "base/team.h"
#include "cost/node_file.h"
#include "kernels/kern.h"
#include "parallel/comm/comm.h"

struct bench_node {
    struct comm *comm; /* with its axes split; borrowed, as are the other pointers */
    const struct topo *topo;
    struct team *team;
    struct kern_table kern;
    size_t n_cache_bytes; /* of a host's last-level caches */
};

/* **Collective (world)**. Sets *out; the caller fills `read` and `flops`, which are empty. Takes
 * one to two minutes. Errors, the same on all ranks: STATUS_INPUT (a time is beyond a curve's
 * bounds), STATUS_MEMORY. */
struct status bench_node_measure(const struct bench_node *b, struct node *out);

/* **Collective (host)**. Returns the seconds of run(user) on all ranks at the same time: the lower
 * quartile of five calls or more (fewer if these would take too long), because other work on the
 * host only lengthens a call. A call takes as long as its slowest rank. */
double bench_node_time(struct comm *c, void (*run)(void *user), void *user);

/* **Collective (world)**. Sets out->step_s and out->sequence_s: the scheduler's time for planning
 * and committing a step, and for each sequence in it. Errors: STATUS_MEMORY. */
struct status bench_node_lead(const struct bench_node *b, struct node *out);

/* **Collective (world)**. Sets out->network_s and out->network_bytes_s, if there are two hosts or
 * more: by link_measure, on rank 0 and the rank of another host with which it measures. Errors:
 * STATUS_MEMORY. */
struct status bench_node_link(const struct bench_node *b, struct node *out);

/* Local. Raises the points of n->read, in proportion, to the rate at which the one-row linears read
 * their weights, if that is higher: other work disturbs the longer passes of the bandwidth's
 * measurement more. */
void bench_node_see_reads(struct node *n);

#endif

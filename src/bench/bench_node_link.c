/* Measures the link between the hosts of rank 0 and of another rank, while the other ranks wait. */
#include "bench/bench_node.h"

#include "base/mem.h"
#include "parallel/comm/link.h"

/* Returns the first rank that is not on the host of rank 0; 0: there is none. */
static int other_host(const struct topo *t)
{
    for (uint32_t r = 1; r < t->n_ranks; r++)
        if (t->ranks[r].host != t->ranks[0].host) return (int)r;
    return 0;
}

struct status bench_node_link(const struct bench_node *b, struct node *out)
{
    const int other = other_host(b->topo), rank = comm_rank(b->comm, COMM_WORLD);
    char *buf = NULL;
    if (other == 0) return status_ok();
    TRY(comm_agree(b->comm, mem_alloc(&buf, LINK_BYTES, 1, "message")));
    if (rank == 0 || rank == other) {
        const struct link_speed speed =
            link_measure(b->comm, rank == 0 ? other : 0, rank == 0, buf);
        out->network_s = speed.latency_s;
        out->network_bytes_s = speed.bytes_s;
    }
    comm_barrier(b->comm, COMM_WORLD);
    mem_free(&buf);
    return status_ok();
}

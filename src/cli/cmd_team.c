/* Starts the threads of convert, quantize and pack. */
#include "cli/cmd_team.h"

#include "parallel/topology/topo.h"

static struct status cmd_team_topo(struct comm *comm, struct topo **out)
{
    struct topo_self self;
    if (comm != NULL) return comm_gather_topo(comm, out);
    TRY(topo_self_read(&self));
    return topo_join(&self, 1, out);
}

struct status cmd_team_create(uint32_t n_wanted, struct config env, struct comm *comm,
                              struct team **out)
{
    const uint32_t rank = comm == NULL ? 0 : (uint32_t)comm_rank(comm, COMM_WORLD);
    struct topo *topo = NULL;
    TRY(cmd_team_topo(comm, &topo));
    const uint32_t n = n_wanted > 0        ? n_wanted
                       : env.n_threads > 0 ? env.n_threads
                                           : topo_threads(topo, rank);
    const struct status st = team_create(n, out);
    if (!status_failed(&st)) topo_bind_threads(topo, rank, *out);
    topo_destroy(&topo);
    return st;
}

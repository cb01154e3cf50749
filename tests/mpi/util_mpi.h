/* Shared by the MPI suites: a communicator split for a layout, random numbers, one small model. */
#ifndef SHOAL_TESTS_UTIL_MPI_H
#define SHOAL_TESTS_UTIL_MPI_H

#include "parallel/comm/comm.h"
#include "parallel/layout/layout.h"
#include "tensor/dtype.h"

#include <CUnit/CUnit.h>

/* Local. The number of ranks in MPI_COMM_WORLD; the number of this rank there. */
uint32_t util_n_ranks(void);
uint32_t util_rank(void);

/* Local. A MoE model of four layers with these sizes; a leaf of o_proj has 16 elements. Its
 * description goes to *arch. */
struct util_shape {
    uint32_t width, n_experts, n_chosen, expert_ffn, expert_leaf, vocab;
};
struct layout_model util_layout_model(const struct util_shape *shape, struct arch *arch);

/* **Collective (world)**. Writes to out [n] the path of a temporary file, the same on all ranks;
 * `what` tells the files of a test apart. */
void util_shared_path(const char *what, char *out, size_t n);

/* **Collective (world)**. A communicator split for the layout, in which the launcher's ranks are
 * rotated by `turn`. Ends the test if it cannot be made. */
struct comm *util_comm(const struct layout *l, uint32_t turn);

/* **Collective (world)**. As util_comm; this rank is on the pretended host number `host`. */
struct comm *util_comm_on_host(const struct layout *l, uint32_t turn, int host);

/* **Collective (world)**. As util_comm_on_host, all ranks as replicas of one stage, so that
 * COMM_STAGE has them all. */
struct comm *util_comm_of_replicas(uint32_t turn, int host);

/* Local. Calls use(layout, ctx) for every (tp, pp, dp, ep) that layout_build takes, where tp x pp x
 * dp is the number of ranks; returns how many. */
typedef void util_layout_use(const struct layout *l, void *ctx);
size_t util_each_layout(const struct layout_model *model, util_layout_use *use, void *ctx);

/* Local. Pseudo-random numbers: the same sequence from the same state everywhere. */
uint32_t util_next(uint64_t *state);
float util_uniform(uint64_t *state); /* [-1, 1) */

/* **Collective (world)**. Returns whether `mine` is true on every rank. */
bool util_all(struct comm *c, bool mine);

#endif

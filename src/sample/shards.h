/* The vocabulary's shards over tp, and whole rows of logits put together from them: whose a row is,
 * and what goes where. Moves nothing itself. Called by vocab_parallel.c and draw_device.c. */
#ifndef SHOAL_SAMPLE_SHARDS_H
#define SHOAL_SAMPLE_SHARDS_H

#include "parallel/comm/comm.h"
#include "parallel/layout/layout.h"

struct shards {
    struct comm *comm; /* borrowed, as the layout */
    const struct layout *layout;
    struct range mine;      /* of the vocabulary, held here */
    uint32_t n_ranks, rank; /* tp */
    int *counts;            /* [4, tp] as comm_exchange has them */
};

/* Local. Errors: STATUS_MEMORY. fini accepts zeros. */
struct status shards_init(struct shards *s, struct comm *comm, const struct layout *layout);
void shards_fini(struct shards *s);

/* Local. Row j of n becomes whole on tp rank j mod n_owners. order [n]: the rows as they stand
 * behind each other in what is sent; out: the exchange, in words because shards differ in width,
 * without its arrays. What is received is, source after source, [rows owned here, the source's
 * width]. Returns how many rows are owned here. */
size_t shards_plan(const struct shards *s, size_t n, uint32_t n_owners, size_t *order,
                   struct comm_exchange *out);

#endif

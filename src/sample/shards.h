/* The vocabulary's shards over tp, and whole rows of logits put together from them: which rank owns
 * a row, and the exchange that brings its parts there. Moves nothing itself. Called by
 * vocab_parallel.c and draw_device.c. */
#ifndef SHOAL_SAMPLE_SHARDS_H
#define SHOAL_SAMPLE_SHARDS_H

#include "parallel/comm/comm.h"
#include "parallel/layout/layout.h"

struct shards {
    struct comm *comm; /* borrowed, as is the layout */
    const struct layout *layout;
    struct range mine;      /* the part of the vocabulary on this rank */
    uint32_t n_ranks, rank; /* tp */
    int *counts;            /* owned [4, tp]: counts and displacements for a comm_exchange */
};

/* Local. Errors: STATUS_MEMORY. fini accepts zeros. */
struct status shards_init(struct shards *s, struct comm *comm, const struct layout *layout);
void shards_fini(struct shards *s);

/* Local. Plans the exchange that makes row j of n whole on tp rank j mod n_owners. order [n] out:
 * the rows in the order in which they must be sent. out: the exchange except for the buffers; its
 * counts are in 4-byte words, because shards differ in width. out borrows s->counts. The received
 * array holds, for one source rank after another, [rows owned here, width of the source's shard].
 * Returns the number of rows owned here. */
size_t shards_plan(const struct shards *s, size_t n, uint32_t n_owners, size_t *order,
                   struct comm_exchange *out);

#endif

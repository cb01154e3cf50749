/* Makes the tp ranks owners of rows, round robin, and plans the exchange that brings each owner its
 * whole rows. */
#include "sample/shards.h"

#include "base/mem.h"

struct status shards_init(struct shards *s, struct comm *comm, const struct layout *layout)
{
    *s = (struct shards){.comm = comm,
                         .layout = layout,
                         .n_ranks = (uint32_t)comm_size(comm, COMM_TP),
                         .rank = (uint32_t)comm_rank(comm, COMM_TP)};
    s->mine = layout_vocab(layout, s->rank);
    return mem_alloc(&s->counts, 4 * (size_t)s->n_ranks, sizeof *s->counts, "sampler");
}

void shards_fini(struct shards *s)
{
    mem_free(&s->counts);
}

size_t shards_plan(const struct shards *s, size_t n, uint32_t n_owners, size_t *order,
                   struct comm_exchange *out)
{
    const size_t width = range_count(s->mine);
    int *send_counts = s->counts, *send_displs = send_counts + s->n_ranks;
    int *recv_counts = send_displs + s->n_ranks, *recv_displs = recv_counts + s->n_ranks;
    size_t at = 0, n_own = 0;
    for (uint32_t r = 0; r < s->n_ranks; r++) {
        const size_t first = at;
        for (size_t j = r; r < n_owners && j < n; j += n_owners) order[at++] = j;
        if (r == s->rank) n_own = at - first;
        send_displs[r] = (int)(first * width);
        send_counts[r] = (int)((at - first) * width);
    }
    int displ = 0;
    for (uint32_t r = 0; r < s->n_ranks; r++) {
        recv_counts[r] = (int)(n_own * range_count(layout_vocab(s->layout, r)));
        recv_displs[r] = displ;
        displ += recv_counts[r];
    }
    *out = (struct comm_exchange){.row_words = 1,
                                  .send_counts = send_counts,
                                  .send_displs = send_displs,
                                  .recv_counts = recv_counts,
                                  .recv_displs = recv_displs};
    return n_own;
}

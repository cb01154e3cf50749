/* Counts the rows that this rank's experts compute in each pass through a layer's experts, so that
 * a job can report how even the ranks' work was: the busiest rank of each pass sets its time. */
#include "base/mem.h"
#include "moe/moe_private.h"

enum {
    BLOCKS_MOST = 1 << 20, /* passes that are counted; their counts take 4 MiB */
    BLOCKS_FIRST = 1 << 10,
    BLOCKS_AT_ONCE = 512,
};

struct status moe_note_rows(struct moe *m, size_t n_rows)
{
    struct row_counts *r = &m->row_counts;
    if (r->n == BLOCKS_MOST) return status_ok();
    if (r->n == r->capacity) {
        const size_t grown = r->capacity == 0 ? BLOCKS_FIRST : 2 * r->capacity;
        TRY(mem_grow(&r->of_block, r->n, grown, sizeof *r->of_block, "MoE counts"));
        r->capacity = grown;
    }
    r->of_block[r->n++] = (uint32_t)n_rows;
    m->traffic.n_rows += n_rows;
    return status_ok();
}

void moe_count_busiest(struct moe *m)
{
    const struct row_counts *r = &m->row_counts;
    uint64_t most[BLOCKS_AT_ONCE], sum = 0;
    for (size_t at = 0, n; at < r->n; at += n) {
        n = r->n - at < BLOCKS_AT_ONCE ? r->n - at : BLOCKS_AT_ONCE;
        for (size_t i = 0; i < n; i++) most[i] = r->of_block[at + i];
        comm_max_u64(m->o.comm, COMM_EP, most, n);
        for (size_t i = 0; i < n; i++) sum += most[i];
    }
    m->traffic.busiest_rows = sum;
}

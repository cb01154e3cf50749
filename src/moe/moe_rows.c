/* Counts the rows that this rank computes in each call of a MoE block, so that a job can report how
 * even the ranks' work was: a call takes as long as its busiest rank. */
#include "base/mem.h"
#include "moe/moe_private.h"

enum {
    CALLS_MOST = 1 << 20, /* calls that are counted; their counts take 4 MiB */
    CALLS_FIRST = 1 << 10,
    CALLS_AT_ONCE = 512,
};

struct status moe_note_rows(struct moe *m, size_t n_rows)
{
    struct row_counts *r = &m->row_counts;
    if (r->n == CALLS_MOST) return status_ok();
    if (r->n == r->capacity) {
        const size_t grown = r->capacity == 0 ? CALLS_FIRST : 2 * r->capacity;
        TRY(mem_grow(&r->of_call, r->n, grown, sizeof *r->of_call, "MoE counts"));
        r->capacity = grown;
    }
    r->of_call[r->n++] = (uint32_t)n_rows;
    m->traffic.n_rows += n_rows;
    return status_ok();
}

void moe_count_busiest(struct moe *m)
{
    const struct row_counts *r = &m->row_counts;
    uint64_t most[CALLS_AT_ONCE], sum = 0;
    for (size_t at = 0, n; at < r->n; at += n) {
        n = r->n - at < CALLS_AT_ONCE ? r->n - at : CALLS_AT_ONCE;
        for (size_t i = 0; i < n; i++) most[i] = r->of_call[at + i];
        comm_max_u64(m->o.comm, COMM_EP, most, n);
        for (size_t i = 0; i < n; i++) sum += most[i];
    }
    m->traffic.busiest_rows = sum;
}

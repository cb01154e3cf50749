/* The blocks of running sequences: takes them from the replica's pool, gives them back, and lists
 * their tables for plans. A sequence has a table for each group of layers (plan_tables); windowed
 * tables hold only the blocks that a row can still see. */
#include "base/mem.h"
#include "serve/schedule/scheduler_private.h"

#include <assert.h>
#include <string.h>

struct status scheduler_grow_table(const struct scheduler *s, struct sequence *q, size_t n_needed)
{
    if (n_needed <= q->blocks_capacity) return status_ok();
    const size_t grown = n_needed + n_needed / 2,
                 n_tables = (size_t)plan_tables_count(&s->o.tables);
    const size_t n_now = q->n_blocks > q->window_end ? q->n_blocks : q->window_end;
    TRY(mem_grow(&q->blocks, n_now * n_tables, grown * n_tables, sizeof *q->blocks, "block table"));
    TRY(mem_grow(&q->nodes, q->n_cached, grown, sizeof *q->nodes, "block table"));
    q->blocks_capacity = grown;
    return status_ok();
}

int64_t scheduler_blocks_lacking(const struct scheduler *s, const struct sequence *q, size_t n_full,
                                 size_t n_window)
{
    const struct plan_tables *t = &s->o.tables;
    const int64_t full = n_full > q->n_blocks ? (int64_t)(n_full - q->n_blocks) : 0;
    const int64_t windows = n_window > q->window_end ? (int64_t)(n_window - q->window_end) : 0;
    return full * t->n_full + windows * t->n_windowed;
}

int64_t scheduler_blocks_held(const struct scheduler *s, size_t n_tokens)
{
    const struct plan_tables *t = &s->o.tables;
    const struct schedule_flags *f = &s->o.flags;
    const int64_t all = scheduler_blocks_for(n_tokens);
    if (t->n_windowed == 0) return t->n_full * all;
    const int64_t rows = f->chunk_tokens < f->step_tokens ? f->chunk_tokens : f->step_tokens;
    /* n consecutive positions lie in at most (n + 62) / 64 + 1 blocks */
    const int64_t seen = (t->window - 1 + rows + PLAN_BLOCK_TOKENS - 2) / PLAN_BLOCK_TOKENS + 1;
    return t->n_full * all + t->n_windowed * (seen < all ? seen : all);
}

/* Takes a free block, or evicts cached ones to get it; the replica must have one of the two. */
static int32_t take_block(struct scheduler *s, int32_t replica_index)
{
    struct replica *replica = &s->replicas[replica_index];
    const int32_t id = block_pool_take(&replica->pool);
    if (id >= 0) return id;
    scheduler_tier_save(s, replica_index);
    int32_t freed[PLAN_TABLES_MAX];
    const int32_t n = prefix_cache_evict(&replica->cache, freed);
    assert(n > 0);
    block_pool_give(&replica->pool, freed, n);
    return block_pool_take(&replica->pool);
}

struct status scheduler_take_blocks(struct scheduler *s, struct sequence *q, size_t n_full,
                                    size_t n_window)
{
    const struct plan_tables *t = &s->o.tables;
    struct replica *replica = &s->replicas[q->replica];
    const int64_t n = scheduler_blocks_lacking(s, q, n_full, n_window);
    TRY(scheduler_grow_table(s, q, n_full > n_window ? n_full : n_window));
    for (; q->n_blocks < n_full; q->n_blocks++) {
        for (int32_t i = 0; i < t->n_full; i++)
            sequence_blocks_at(s, q, q->n_blocks)[i] = take_block(s, q->replica);
    }
    for (; t->n_windowed > 0 && q->window_end < n_window; q->window_end++) {
        for (int32_t i = t->n_full; i < plan_tables_count(t); i++)
            sequence_blocks_at(s, q, q->window_end)[i] = take_block(s, q->replica);
    }
    q->n_own += (int32_t)n;
    replica->groups[q->group].n_blocks += (int32_t)n;
    return status_ok();
}

static void give_back(struct scheduler *s, struct sequence *q, const int32_t *ids, int32_t n)
{
    struct replica *replica = &s->replicas[q->replica];
    block_pool_give(&replica->pool, ids, n);
    q->n_own -= n;
    replica->groups[q->group].n_blocks -= n;
}

void scheduler_disown(struct scheduler *s, struct sequence *q, int32_t n)
{
    q->n_own -= n;
    s->replicas[q->replica].groups[q->group].n_blocks -= n;
}

void scheduler_give_full(struct scheduler *s, struct sequence *q, size_t b)
{
    give_back(s, q, sequence_blocks_at(s, q, b), s->o.tables.n_full);
}

void scheduler_give_windows(struct scheduler *s, struct sequence *q, size_t b)
{
    if (b < q->window_begin || b >= q->window_end) return;
    give_back(s, q, sequence_blocks_at(s, q, b) + s->o.tables.n_full, s->o.tables.n_windowed);
}

/* Gives up q's hold on the windowed blocks at place b. */
static void drop_windows(struct scheduler *s, struct sequence *q, size_t b)
{
    if (b < q->n_cached)
        prefix_cache_release_windows(&s->replicas[q->replica].cache, q->nodes[b]);
    else
        scheduler_give_windows(s, q, b);
}

void scheduler_release_window(struct scheduler *s, struct sequence *q)
{
    if (s->o.tables.n_windowed == 0) return;
    scheduler_skip_windows(s, q, scheduler_window_begin(s, q->n_computed));
}

void scheduler_skip_windows(struct scheduler *s, struct sequence *q, size_t begin)
{
    for (; q->window_begin < begin && q->window_begin < q->window_end; q->window_begin++)
        drop_windows(s, q, q->window_begin);
    if (q->window_begin < begin) q->window_begin = q->window_end = begin;
}

void scheduler_release_blocks(struct scheduler *s, struct sequence *q)
{
    for (; q->window_end > q->window_begin; q->window_end--) drop_windows(s, q, q->window_end - 1);
    for (; q->n_blocks > q->n_cached; q->n_blocks--) scheduler_give_full(s, q, q->n_blocks - 1);
    while (q->n_cached > 0)
        prefix_cache_release(&s->replicas[q->replica].cache, q->nodes[--q->n_cached]);
    /* n_own still counts blocks that q took from the pool and that are now in the cache */
    s->replicas[q->replica].groups[q->group].n_blocks -= q->n_own;
    q->n_blocks = q->window_begin = q->window_end = 0;
    q->n_own = 0;
}

struct status scheduler_list_blocks(struct scheduler *s, const struct sequence *q, size_t end,
                                    struct plan_seq *seq, const int32_t **blocks)
{
    const struct plan_tables *t = &s->o.tables;
    const size_t n = (size_t)scheduler_blocks_for(end), n_tables = (size_t)plan_tables_count(t);
    seq->n_blocks = (int32_t)n;
    *blocks = q->blocks;
    if (n_tables == 1 && t->n_windowed == 0) return status_ok();
    if (n * n_tables > s->table_capacity) {
        TRY(mem_grow(&s->table, 0, 2 * n * n_tables, sizeof *s->table, "scheduler"));
        s->table_capacity = 2 * n * n_tables;
    }
    int32_t *to = s->table;
    for (size_t i = 0; i < n_tables; i++) {
        size_t b = i < (size_t)t->n_full ? 0 : q->window_begin;
        for (; b < n; b++) *to++ = sequence_blocks_at(s, q, b)[i];
    }
    seq->first_block = t->n_windowed > 0 ? (int32_t)q->window_begin : 0;
    seq->n_blocks = (int32_t)(to - s->table);
    *blocks = s->table;
    return status_ok();
}

/* KV blocks on disk: --kv-tier and --prefix-store. The full blocks of a preempted sequence stay in
 * the prefix cache until their space is needed; then they are copied to the ranks' files instead of
 * being dropped. Before the sequence runs again they are read back and enter the cache like
 * computed blocks. Blocks with which several prompts begin are also written to the prefix store,
 * for other jobs. Measured rates decide whether a block is moved or computed again; its bytes are
 * the same. */
#include "base/log.h"
#include "base/mem.h"
#include "serve/schedule/scheduler_private.h"

#include <assert.h>

enum {
    TRIED_PART = 16, /* one in this many blocks that are not worth moving is moved all the same,
                        to measure the rate */
    READS_ON_WAY_MOST = 8192 /* with more reads than this under way, a replica orders none */
};

/* Returns the seconds for moving one block of each table at `rate`, in blocks per 1,000 s; 0: not
 * measured yet. */
static double move_s(const struct scheduler *s, uint64_t rate)
{
    return rate == 0 ? 0 : 1e3 * plan_tables_count(&s->o.tables) / (double)rate;
}

static double compute_s(const struct scheduler *s)
{
    return PLAN_BLOCK_TOKENS * s->row_s;
}

static bool is_worth_out(struct scheduler *s)
{
    if (s->row_s == 0 || s->rate_in == 0 || s->rate_out == 0) return true;
    if (move_s(s, s->rate_in) + move_s(s, s->rate_out) < compute_s(s)) return true;
    return s->n_not_worth++ % TRIED_PART == 0;
}

static bool is_worth_in(const struct scheduler *s)
{
    return s->row_s == 0 || s->rate_in == 0 || move_s(s, s->rate_in) < compute_s(s);
}

void scheduler_tier_want(struct scheduler *s, struct sequence *q)
{
    struct replica *replica = &s->replicas[q->replica];
    if (replica->tier.n_slots == 0) return;
    q->n_wanted = q->n_cached;
    for (size_t b = 0; b < q->n_cached; b++) replica->cache.nodes[q->nodes[b]].n_wanted++;
}

void scheduler_tier_save(struct scheduler *s, int32_t replica_index)
{
    struct replica *replica = &s->replicas[replica_index];
    struct tier_index *x = &replica->tier;
    if (x->n_slots == 0) return;
    const struct prefix_victim v = prefix_cache_victim(&replica->cache);
    if (v.node < 0 || !is_worth_out(s)) return;
    const struct prefix_node *node = &replica->cache.nodes[v.node];
    const uint64_t before = node->parent >= 0 ? replica->cache.nodes[node->parent].key : 0;
    const int32_t entry =
        tier_index_get(x, node->key, before, prefix_cache_tokens(&replica->cache, v.node));
    if (entry < 0) return;
    for (int32_t t = v.table_begin; t < v.table_end; t++) {
        if (x->entries[entry].slots[t] >= 0) continue; /* the slot already has the block */
        const struct plan_move move = {.kind = PLAN_MOVE_OUT,
                                       .replica = replica_index,
                                       .block = prefix_cache_blocks(&replica->cache, v.node)[t],
                                       .slot = tier_index_place(x, entry, t)};
        struct status st = status_ok();
        if (move.slot >= 0) st = step_plan_add_move(s->plan, &move);
        if (move.slot < 0 || status_failed(&st)) { /* without a copy the block will be computed
                                                      again */
            tier_index_forget(x, entry);
            return;
        }
        s->stats->tier.n_out++;
    }
}

/* Where a block can be read. */
enum tier_source { SOURCE_NONE, SOURCE_FILE, SOURCE_STORE };

/* A block of a sequence outside memory: its entry in the tier's file, and its key in the store. */
struct tier_find {
    enum tier_source source;
    int32_t entry;
    uint64_t key[2];
    bool has_windows;
};

/* Finds where block b of q can be read. key: the store's key of the block before b; becomes that of
 * block b. */
static struct tier_find find_block(const struct scheduler *s, const struct sequence *q, size_t b,
                                   uint64_t *key)
{
    const struct plan_tables *t = &s->o.tables;
    const struct tier_index *x = &s->replicas[q->replica].tier;
    const int32_t *tokens = q->r->tokens + b * PLAN_BLOCK_TOKENS;
    struct tier_find f = {
        .entry = tier_index_find(x, q->block_keys[b], b > 0 ? q->block_keys[b - 1] : 0, tokens)};
    bool has_full = f.entry >= 0;
    for (int32_t i = 0; has_full && i < t->n_full; i++)
        has_full = x->entries[f.entry].slots[i] >= 0;
    f.has_windows = has_full;
    for (int32_t i = t->n_full; f.has_windows && i < plan_tables_count(t); i++)
        f.has_windows = x->entries[f.entry].slots[i] >= 0;
    if (has_full) f.source = SOURCE_FILE;
    if (s->o.store.has == NULL) return f;
    s->o.store.key(key, tokens, key);
    f.key[0] = key[0];
    f.key[1] = key[1];
    if (!has_full && !q->store_failed && s->o.store.has(s->o.store.user, key))
        f.source = SOURCE_STORE;
    return f;
}

/* Sets key to the store's key of the block before block b of q. */
static void start_key(const struct scheduler *s, const struct sequence *q, size_t b, uint64_t *key)
{
    const uint32_t adapter = q->r->ask->adapter;
    for (int i = 0; i < 2; i++) {
        key[i] = s->o.store.root[i];
        if (adapter > 0) key[i] ^= s->o.rules->adapters[adapter - 1].digest[i];
    }
    for (size_t i = 0; s->o.store.has != NULL && i < b; i++)
        s->o.store.key(key, q->r->tokens + i * PLAN_BLOCK_TOKENS, key);
}

/* Returns the end of the run of blocks after q's cached ones that can be read back. */
static size_t blocks_to_find(const struct scheduler *s, const struct sequence *q)
{
    const struct plan_tables *t = &s->o.tables;
    size_t end = q->n_cached, complete_from = q->n_cached;
    uint64_t key[2];
    start_key(s, q, q->n_cached, key);
    for (size_t b = q->n_cached; b < scheduler_prefix_sharable(s, q); b++) {
        const struct tier_find f = find_block(s, q, b, key);
        if (f.source == SOURCE_NONE) break;
        if (!f.has_windows && t->n_windowed > 0) complete_from = b + 1;
        const size_t seen_from =
            t->n_windowed > 0 ? scheduler_window_begin(s, (b + 1) * PLAN_BLOCK_TOKENS) : 0;
        if (complete_from == q->n_cached || seen_from >= complete_from) end = b + 1;
    }
    return end;
}

static void set_key(struct plan_move *m, const uint64_t *key)
{
    for (int i = 0; i < 4; i++) m->key[i] = (uint32_t)(key[i / 2] >> (i % 2 * 32));
}

/* Adds to the plan a read for block b of q. */
static struct status order_read(struct scheduler *s, struct sequence *q, size_t b,
                                const struct plan_move *move)
{
    struct replica *replica = &s->replicas[q->replica];
    const bool is_stored = move->kind == PLAN_MOVE_GET;
    if (replica->n_reads - replica->n_reads_ended == replica->reads_capacity)
        TRY(scheduler_tier_grow(replica));
    TRY(step_plan_add_move(s->plan, move));
    replica->reads[replica->n_reads++ % replica->reads_capacity] =
        (struct tier_read){.q = q, .block = b, .is_stored = is_stored};
    q->n_arriving++;
    s->stats->tier.n_in += !is_stored;
    s->stats->store.n_in += is_stored;
    q->n_stored += is_stored;
    return status_ok();
}

/* Adds to the plan the reads of block b of q, for the full tables and, with `windows`, the windowed
 * ones. */
static struct status order_block(struct scheduler *s, struct sequence *q, size_t b,
                                 const struct tier_find *f, bool windows)
{
    struct tier_index *x = &s->replicas[q->replica].tier;
    if (f->source == SOURCE_FILE) tier_index_touch(x, f->entry);
    const int32_t n = windows ? plan_tables_count(&s->o.tables) : s->o.tables.n_full;
    for (int32_t t = 0; t < n; t++) {
        struct plan_move move = {.kind = f->source == SOURCE_FILE ? PLAN_MOVE_IN : PLAN_MOVE_GET,
                                 .replica = q->replica,
                                 .block = sequence_blocks_at(s, q, b)[t]};
        if (f->source == SOURCE_FILE)
            move.slot = x->entries[f->entry].slots[t];
        else
            set_key(&move, f->key);
        TRY(order_read(s, q, b, &move));
    }
    return status_ok();
}

struct status scheduler_store_save(struct scheduler *s, struct sequence *q, size_t begin,
                                   size_t end)
{
    struct prefix_cache *cache = &s->replicas[q->replica].cache;
    uint64_t key[2];
    if (s->o.store.has == NULL) return status_ok();
    start_key(s, q, begin, key);
    for (size_t b = begin; b < end && (b + 1) * PLAN_BLOCK_TOKENS <= q->r->n_prompt; b++) {
        struct prefix_node *node = &cache->nodes[q->nodes[b]];
        s->o.store.key(key, q->r->tokens + b * PLAN_BLOCK_TOKENS, key);
        if (node->is_stored) continue;
        node->is_stored = true;
        if (s->o.store.has(s->o.store.user, key)) continue;
        struct plan_move move = {
            .kind = PLAN_MOVE_PUT, .replica = q->replica, .block = sequence_blocks_at(s, q, b)[0]};
        set_key(&move, key);
        TRY(step_plan_add_move(s->plan, &move));
        s->stats->store.n_out++;
    }
    return status_ok();
}

struct status scheduler_tier_grow(struct replica *replica)
{
    const size_t n = replica->reads_capacity, grown = n > 0 ? 2 * n : 64;
    struct tier_read *more = NULL;
    TRY(mem_alloc(&more, grown, sizeof *more, "KV tier"));
    for (uint64_t i = replica->n_reads_ended; i < replica->n_reads; i++)
        more[i % grown] = replica->reads[i % n];
    mem_free(&replica->reads);
    replica->reads = more;
    replica->reads_capacity = grown;
    return status_ok();
}

struct status scheduler_tier_fetch(struct scheduler *s, struct sequence *q)
{
    struct replica *replica = &s->replicas[q->replica];
    if ((replica->tier.n_slots == 0 && s->o.store.has == NULL) || !is_worth_in(s) ||
        replica->n_reads - replica->n_reads_ended > READS_ON_WAY_MOST)
        return status_ok();
    const size_t end = blocks_to_find(s, q);
    if (end == q->n_cached) return status_ok();
    size_t windows_from = end;
    if (s->o.tables.n_windowed > 0) {
        windows_from = scheduler_window_begin(s, end * PLAN_BLOCK_TOKENS);
        if (windows_from < q->window_end) windows_from = q->window_end;
        /* checks the room again: q gives up windowed blocks that admission counted as shared */
        const size_t n_full = (size_t)scheduler_blocks_for(q->r->n_tokens) - q->n_blocks;
        if (replica_n_free(replica) < (int64_t)n_full * s->o.tables.n_full +
                                          (int64_t)(end - windows_from) * s->o.tables.n_windowed)
            return status_ok();
        scheduler_skip_windows(s, q, scheduler_window_begin(s, end * PLAN_BLOCK_TOKENS));
    }
    TRY(scheduler_take_blocks(s, q, end, s->o.tables.n_windowed > 0 ? end : 0));
    uint64_t key[2];
    start_key(s, q, q->n_cached, key);
    for (size_t b = q->n_cached; b < end; b++) {
        const struct tier_find f = find_block(s, q, b, key);
        TRY(order_block(s, q, b, &f, s->o.tables.n_windowed > 0 && b >= windows_from));
    }
    q->n_back = end;
    return status_ok();
}

void scheduler_tier_leave(struct scheduler *s, struct sequence *q)
{
    struct replica *replica = &s->replicas[q->replica];
    for (uint64_t i = replica->n_reads_ended; q->n_arriving > 0 && i < replica->n_reads; i++) {
        struct tier_read *read = &replica->reads[i % replica->reads_capacity];
        if (read->q != q) continue;
        read->q = NULL;
        q->n_arriving--;
    }
    q->n_arriving = 0;
    q->n_back = 0;
    q->n_stored = 0;
}

/* Lets q continue, because all its blocks have been read. */
static struct status let_continue(struct scheduler *s, struct sequence *q)
{
    const size_t n_before = q->n_computed;
    q->n_computed = q->n_back * PLAN_BLOCK_TOKENS;
    q->n_back = 0;
    const size_t n_stored = q->n_stored * PLAN_BLOCK_TOKENS; /* with a store, a sequence has one
                                                                table */
    s->stats->store.n_tokens += n_stored;
    s->stats->tier.n_tokens += q->n_computed - n_before - n_stored;
    q->n_stored = 0;
    scheduler_count_jump(s, q);
    return scheduler_prefix_publish(s, q);
}

/* Handles a block that could not be read back as it was written: its sequence computes the tokens
 * after those in the cache. With windowed tables it begins again, because it may have given up
 * blocks that it now needs. Reads into its blocks that are still under way do no harm: the ranks
 * await them before they write there. */
static void fail_read(struct scheduler *s, const struct tier_read *read)
{
    struct sequence *q = read->q;
    const size_t b = read->block;
    struct tier_index *x = &s->replicas[q->replica].tier;
    const int32_t entry = tier_index_find(x, q->block_keys[b], b > 0 ? q->block_keys[b - 1] : 0,
                                          q->r->tokens + b * PLAN_BLOCK_TOKENS);
    if (s->stats->n_tier_failed++ == 0)
        log_line(LOG_WARN,
                 "%s: a KV block could not be read back as it was written: its tokens are computed "
                 "again",
                 read->is_stored ? "--prefix-store" : "--kv-tier");
    if (read->is_stored)
        q->store_failed = true;
    else if (entry >= 0)
        tier_index_forget(x, entry);
    scheduler_tier_leave(s, q);
    if (s->o.tables.n_windowed == 0) return;
    scheduler_release_blocks(s, q);
    q->n_computed = 0;
}

struct status scheduler_tier_take(struct scheduler *s, const struct step_result *result)
{
    struct replica *replica = &s->replicas[result->replica];
    const uint64_t *m = result->moved;
    if (result->n_moved == 0) return status_ok();
    if (m[PLAN_MOVED_RATE_IN] != UINT64_MAX) s->rate_in = m[PLAN_MOVED_RATE_IN];
    if (m[PLAN_MOVED_RATE_OUT] != UINT64_MAX) s->rate_out = m[PLAN_MOVED_RATE_OUT];
    const uint64_t from = m[PLAN_MOVED_FROM], n_known = result->n_moved - PLAN_MOVED_READS;
    while (replica->n_reads_ended < m[PLAN_MOVED_N_ENDED]) {
        const uint64_t i = replica->n_reads_ended;
        if (i < from || i - from >= n_known || i >= replica->n_reads)
            return status_make(STATUS_BUG, "a report of read %llu, from %llu on, of %llu",
                               (unsigned long long)i, (unsigned long long)from,
                               (unsigned long long)n_known);
        const struct tier_read read = replica->reads[i % replica->reads_capacity];
        replica->n_reads_ended++;
        if (read.q == NULL) continue;
        read.q->n_arriving--;
        if (m[PLAN_MOVED_READS + i - from] == 0)
            fail_read(s, &read);
        else if (read.q->n_arriving == 0)
            TRY(let_continue(s, read.q));
    }
    return status_ok();
}

struct status scheduler_tier_ask(struct scheduler *s)
{
    bool in_flight = false;
    for (int32_t i = 0; i < s->o.n_replicas; i++)
        for (int32_t g = 0; g < s->o.n_groups; g++)
            in_flight = in_flight || s->replicas[i].groups[g].n_flight > 0;
    /* a plan that has nothing but requests for reports is sent only if no step is in flight; the
     * ranks then wait for their reads */
    if (s->plan->n_seqs == 0 && s->plan->n_moves == 0 && in_flight) return status_ok();
    for (int32_t i = 0; i < s->o.n_replicas; i++) {
        const struct replica *replica = &s->replicas[i];
        if (replica->n_reads == replica->n_reads_ended) continue;
        struct plan_move move = {.kind = PLAN_MOVE_ASK, .replica = i, .block = !in_flight};
        set_key(&move, (const uint64_t[2]){replica->n_reads_ended});
        TRY(step_plan_add_move(s->plan, &move));
    }
    return status_ok();
}

/* Shares blocks between requests that begin alike. The first q->n_cached blocks of a running
 * request are in its replica's prefix cache and held by the request; the others are its own. A
 * block enters the cache once the step that computed its last row has been committed without a bad
 * row, or once it has been read back from disk, so a request that takes the block would have
 * computed the same rows. */
#include "base/mem.h"
#include "serve/schedule/scheduler_private.h"

#include <string.h>

static const size_t block_tokens = PLAN_BLOCK_TOKENS;

/* Returns the key before block b of q. With another adapter the same tokens have other K and V, so
 * each adapter has its own key before the first block. */
static uint64_t key_before(const struct scheduler *s, const struct sequence *q, size_t b)
{
    if (b > 0) return q->block_keys[b - 1];
    return q->r->ask->adapter > 0 ? s->o.rules->adapters[q->r->ask->adapter - 1].key : 0;
}

struct status scheduler_prefix_keys(const struct scheduler *s, struct sequence *q)
{
    const size_t n = q->r->n_tokens / block_tokens;
    if (!s->o.flags.prefix_cache || n <= q->n_block_keys) return status_ok();
    if (n > q->block_keys_capacity) {
        const size_t grown = n + n / 2;
        TRY(mem_grow(&q->block_keys, q->n_block_keys, grown, sizeof *q->block_keys, "block keys"));
        q->block_keys_capacity = grown;
    }
    for (size_t b = q->n_block_keys; b < n; b++) {
        const uint64_t before = key_before(s, q, b);
        q->block_keys[b] = prefix_key(before, q->r->tokens + b * block_tokens);
    }
    q->n_block_keys = n;
    return status_ok();
}

/* Finds block b of q in the cache, after node `parent`; -1: not cached. */
static int32_t scheduler_prefix_find(const struct replica *replica, const struct sequence *q,
                                     size_t b, int32_t parent)
{
    return prefix_cache_find(&replica->cache, parent, q->block_keys[b],
                             q->r->tokens + b * block_tokens);
}

/* Returns the number of q's first blocks that it may take from others: those before the first row
 * that q must compute. If rows are pooled or stored, or log-probabilities of the prompt are wanted,
 * that is the first such row; otherwise it is the last token's row, from which the next token is
 * drawn. */
size_t scheduler_prefix_sharable(const struct scheduler *s, const struct sequence *q)
{
    const struct request *r = q->r;
    const enum request_pool pool = r->ask->pool;
    if (pool == POOL_CLS || pool == POOL_MEAN) return 0;
    const size_t first = (r->ask->n_prompt_tops >= 0 ? r->logprobs.score_from : r->n_tokens) - 1;
    const struct request_span stored = scheduler_hidden_rows(s, r, 0, r->n_tokens);
    const bool stores_first = stored.begin < stored.end && stored.begin < first;
    return (stores_first ? stored.begin : first) / block_tokens;
}

/* How far q can continue with cached blocks. */
struct prefix_way {
    size_t n;     /* q's first n blocks; all that the row after them can see are cached */
    int32_t last; /* the node of the last of these blocks */
};

/* Follows the cached nodes of q's tokens from block `begin` on. parent: the node before that block.
 * q already holds all earlier blocks that a row can see. */
static struct prefix_way find_way(const struct scheduler *s, const struct replica *replica,
                                  const struct sequence *q, size_t begin, int32_t parent)
{
    struct prefix_way way = {begin, parent};
    size_t complete_from = begin; /* from this block on no windowed block is missing */
    for (size_t b = begin; b < scheduler_prefix_sharable(s, q); b++) {
        parent = scheduler_prefix_find(replica, q, b, parent);
        if (parent < 0) break;
        const bool has_all =
            s->o.tables.n_windowed == 0 || replica->cache.nodes[parent].has_windows;
        if (!has_all) complete_from = b + 1;
        const size_t seen_from =
            s->o.tables.n_windowed == 0 ? begin : scheduler_window_begin(s, (b + 1) * block_tokens);
        if (complete_from == begin || seen_from >= complete_from)
            way = (struct prefix_way){b + 1, parent};
    }
    return way;
}

/* Counts the blocks that a waiting sequence would share if it continued after way->n blocks. */
static void count_shared(const struct scheduler *s, const struct replica *replica,
                         const struct prefix_way *way, struct prefix_match *m)
{
    const struct plan_tables *t = &s->o.tables;
    const size_t seen_from =
        t->n_windowed > 0 ? scheduler_window_begin(s, way->n * block_tokens) : way->n;
    int32_t node = way->last;
    for (size_t b = way->n; b > 0; b--, node = replica->cache.nodes[node].parent) {
        const struct prefix_node *at = &replica->cache.nodes[node];
        const int32_t n_windowed = b > seen_from ? t->n_windowed : 0;
        m->n_shared += t->n_full + n_windowed;
        m->n_idle += at->n_refs == 0 ? t->n_full : 0;
        m->n_idle += at->n_window_refs == 0 ? n_windowed : 0;
    }
}

/* True when `other` will compute q's block b: it has the same key, so the same tokens up to the
 * block's end, and has not computed the block yet. */
static bool will_have(const struct sequence *other, const struct sequence *q, size_t b)
{
    return other != q && b < other->n_block_keys && other->n_computed < (b + 1) * block_tokens &&
           other->block_keys[b] == q->block_keys[b];
}

struct prefix_match scheduler_prefix_match(const struct scheduler *s, const struct replica *replica,
                                           const struct sequence *q)
{
    struct prefix_match m = {0};
    if (!s->o.flags.prefix_cache) return m;
    const struct prefix_way way = find_way(s, replica, q, 0, -1);
    count_shared(s, replica, &way, &m);
    m.n_blocks = way.n;
    m.n_coming = m.n_blocks;
    for (int32_t g = 0; g < s->o.n_groups; g++) {
        const struct sequence *other = replica->groups[g].running.head;
        for (; other != NULL; other = other->next) {
            while (m.n_coming < scheduler_prefix_sharable(s, q) && will_have(other, q, m.n_coming))
                m.n_coming++;
        }
    }
    return m;
}

bool scheduler_prefix_is_coming(const struct scheduler *s, const struct sequence *q)
{
    const size_t b = q->n_computed / block_tokens;
    if (!s->o.flags.prefix_cache || q->n_computed % block_tokens != 0 ||
        b >= scheduler_prefix_sharable(s, q))
        return false;
    const struct replica *replica = &s->replicas[q->replica];
    for (int32_t g = 0; g < s->o.n_groups; g++) {
        const struct sequence *other = replica->groups[g].running.head;
        for (; other != NULL && sequence_is_before(other, q); other = other->next) {
            if (will_have(other, q, b)) return true;
        }
    }
    return false;
}

/* Replaces q's blocks of full tables at place b by those of the cached node `id`. From now on q
 * holds the node, but not its windowed blocks. */
static void take_full(struct scheduler *s, struct sequence *q, size_t b, int32_t id)
{
    struct prefix_cache *cache = &s->replicas[q->replica].cache;
    prefix_cache_hold(cache, id);
    if (b < q->n_blocks)
        scheduler_give_full(s, q, b);
    else
        q->n_blocks++;
    memcpy(sequence_blocks_at(s, q, b), prefix_cache_blocks(cache, id),
           (size_t)s->o.tables.n_full * sizeof *q->blocks);
    q->nodes[b] = id;
    if (b < q->n_wanted && cache->nodes[id].n_wanted > 0) cache->nodes[id].n_wanted--;
}

/* Sets the windowed blocks at place b to those of q's node there, and holds them. */
static void take_window_blocks(struct scheduler *s, struct sequence *q, size_t b)
{
    struct prefix_cache *cache = &s->replicas[q->replica].cache;
    const size_t n_full = (size_t)s->o.tables.n_full;
    prefix_cache_hold_windows(cache, q->nodes[b]);
    memcpy(sequence_blocks_at(s, q, b) + n_full, prefix_cache_blocks(cache, q->nodes[b]) + n_full,
           (size_t)s->o.tables.n_windowed * sizeof *q->blocks);
}

/* Makes a running or starting q continue after its first `end` blocks. last: the node of the last
 * of these. */
static void go_on_after(struct scheduler *s, struct sequence *q, size_t end, int32_t last)
{
    const struct prefix_cache *cache = &s->replicas[q->replica].cache;
    const size_t begin = q->n_cached;
    int32_t node = last;
    for (size_t b = end; b > begin; b--, node = cache->nodes[node].parent) q->nodes[b - 1] = node;
    for (size_t b = begin; b < end; b++) {
        if (s->o.tables.n_windowed > 0) scheduler_give_windows(s, q, b);
        take_full(s, q, b, q->nodes[b]);
    }
    q->n_computed = end * block_tokens;
    if (s->o.tables.n_windowed > 0) {
        size_t seen_from = scheduler_window_begin(s, q->n_computed);
        if (q->window_end < end) q->window_end = end;
        /* places before `begin` are already held */
        for (size_t b = seen_from > begin ? seen_from : begin; b < end; b++)
            take_window_blocks(s, q, b);
        for (; q->window_begin < seen_from && q->window_begin < begin; q->window_begin++)
            prefix_cache_release_windows(&s->replicas[q->replica].cache, q->nodes[q->window_begin]);
        q->window_begin = seen_from;
    }
    q->n_cached = end;
}

struct status scheduler_prefix_adopt(struct scheduler *s, struct sequence *q)
{
    if (!s->o.flags.prefix_cache) return status_ok();
    const struct replica *replica = &s->replicas[q->replica];
    const size_t n_before = q->n_computed;
    if (q->n_computed != q->n_cached * block_tokens) return status_ok();
    const size_t begin = q->n_cached;
    const struct prefix_way way =
        find_way(s, replica, q, q->n_cached, q->n_cached > 0 ? q->nodes[q->n_cached - 1] : -1);
    if (way.n == q->n_cached) return status_ok();
    go_on_after(s, q, way.n, way.last);
    s->stats->n_prefix_hits++;
    s->stats->n_prefix_hit_tokens += q->n_computed - n_before;
    scheduler_count_jump(s, q);
    return scheduler_store_save(s, q, begin, q->n_cached);
}

void scheduler_count_jump(struct scheduler *s, struct sequence *q)
{
    const size_t prompt_end = q->n_computed < q->r->n_prompt ? q->n_computed : q->r->n_prompt;
    if (prompt_end > q->n_high) s->stats->n_prompt_tokens += prompt_end - q->n_high;
    if (q->n_computed > q->n_high) q->n_high = q->n_computed;
}

/* Puts q's windowed blocks at place b, if q has any, into q's node for b, which was already in the
 * cache; if the node has windowed blocks, gives up q's and takes the node's. */
static void publish_windows(struct scheduler *s, struct sequence *q, size_t b)
{
    struct prefix_cache *cache = &s->replicas[q->replica].cache;
    if (b < q->window_begin || b >= q->window_end) return;
    if (cache->nodes[q->nodes[b]].has_windows) {
        scheduler_give_windows(s, q, b);
        take_window_blocks(s, q, b);
    } else {
        prefix_cache_give_windows(cache, q->nodes[b], sequence_blocks_at(s, q, b));
        scheduler_disown(s, q, s->o.tables.n_windowed);
    }
}

/* Enters q's block b into the cache; if an equal block is there, gives up q's and takes that one.
 * False: the cache has no room. */
static bool publish_block(struct scheduler *s, struct sequence *q, size_t b)
{
    struct replica *replica = &s->replicas[q->replica];
    const int32_t parent = b > 0 ? q->nodes[b - 1] : -1;
    const int32_t id = scheduler_prefix_find(replica, q, b, parent);
    if (id >= 0) { /* another sequence has entered the same block; one copy suffices */
        take_full(s, q, b, id);
        if (s->o.tables.n_windowed > 0) publish_windows(s, q, b);
        return true;
    }
    const bool has_windows = b >= q->window_begin && b < q->window_end;
    q->nodes[b] =
        prefix_cache_add(&replica->cache, parent, q->block_keys[b], q->r->tokens + b * block_tokens,
                         sequence_blocks_at(s, q, b), has_windows);
    if (q->nodes[b] >= 0 && has_windows) scheduler_disown(s, q, s->o.tables.n_windowed);
    return q->nodes[b] >= 0;
}

struct status scheduler_prefix_publish(struct scheduler *s, struct sequence *q)
{
    if (!s->o.flags.prefix_cache || (q->n_cached + 1) * block_tokens > q->n_computed)
        return status_ok();
    TRY(scheduler_prefix_keys(s, q));
    while ((q->n_cached + 1) * block_tokens <= q->n_computed) {
        if (!publish_block(s, q, q->n_cached)) break;
        q->n_cached++;
    }
    return status_ok();
}

/* Sharing blocks between requests that begin alike. The first r->n_cached blocks of a running
 * request are in its replica's prefix cache, held by it; the others are its own. A block enters the
 * cache when the step that computed its last row was committed without a bad row, so that every
 * request that relies on it would have got the same rows itself. */
#include "base/mem.h"
#include "serve/schedule/scheduler_private.h"

static const size_t block_tokens = PLAN_BLOCK_TOKENS;

struct status scheduler_prefix_keys(const struct scheduler *s, struct request *r)
{
    const size_t n = r->n_tokens / block_tokens;
    if (!s->o.prefix_cache || n <= r->n_block_keys) return status_ok();
    if (n > r->block_keys_capacity) {
        const size_t grown = n + n / 2;
        TRY(mem_grow(&r->block_keys, r->n_block_keys, grown, sizeof *r->block_keys, "block keys"));
        r->block_keys_capacity = grown;
    }
    for (size_t b = r->n_block_keys; b < n; b++) {
        const uint64_t before = b > 0 ? r->block_keys[b - 1] : 0;
        r->block_keys[b] = prefix_key(before, r->tokens + b * block_tokens);
    }
    r->n_block_keys = n;
    return status_ok();
}

/* Block b of r in the cache, behind block `parent`; -1: it is not there. */
static int32_t find(const struct replica *replica, const struct request *r, size_t b,
                    int32_t parent)
{
    return prefix_cache_find(&replica->cache, parent, r->block_keys[b],
                             r->tokens + b * block_tokens);
}

/* Blocks that r may take from others: its last token is always computed, for what follows it, and
 * all of them where each is asked for. */
static size_t n_sharable(const struct request *r)
{
    if (r->n_prompt_logprobs >= 0) return 0;
    return (r->n_tokens - 1) / block_tokens;
}

/* True when q computes, or is going to, block b of r: they are the same up to its end. */
static bool will_have(const struct request *q, const struct request *r, size_t b)
{
    return q != r && b < q->n_block_keys && q->n_computed < (b + 1) * block_tokens &&
           q->block_keys[b] == r->block_keys[b];
}

struct prefix_match scheduler_prefix_match(const struct scheduler *s, const struct replica *replica,
                                           const struct request *r)
{
    struct prefix_match m = {0};
    if (!s->o.prefix_cache) return m;
    int32_t parent = -1;
    while (m.n_blocks < n_sharable(r)) {
        parent = find(replica, r, m.n_blocks, parent);
        if (parent < 0) break;
        m.n_idle += replica->cache.nodes[parent].n_refs == 0;
        m.n_blocks++;
    }
    m.n_coming = m.n_blocks;
    for (int32_t g = 0; g < s->o.n_groups; g++) {
        const struct request *q = replica->groups[g].running.head;
        for (; q != NULL; q = q->next) {
            while (m.n_coming < n_sharable(r) && will_have(q, r, m.n_coming)) m.n_coming++;
        }
    }
    return m;
}

bool scheduler_prefix_is_coming(const struct scheduler *s, const struct request *r)
{
    const size_t b = r->n_computed / block_tokens;
    if (!s->o.prefix_cache || r->n_computed % block_tokens != 0 || b >= n_sharable(r)) return false;
    const struct replica *replica = &s->replicas[r->replica];
    for (int32_t g = 0; g < s->o.n_groups; g++) {
        const struct request *q = replica->groups[g].running.head;
        for (; q != NULL && request_is_before(q, r); q = q->next) {
            if (will_have(q, r, b)) return true;
        }
    }
    return false;
}

/* Block b of r becomes cached block `id`, which r holds from here on. */
static void exchange(struct scheduler *s, struct request *r, size_t b, int32_t id)
{
    struct replica *replica = &s->replicas[r->replica];
    prefix_cache_hold(&replica->cache, id);
    if (b < r->n_blocks) {
        block_pool_give(&replica->pool, &r->blocks[b], 1);
        r->n_own--;
        replica->groups[r->group].n_blocks--;
    } else {
        r->n_blocks++;
    }
    r->blocks[b] = id;
}

void scheduler_prefix_adopt(struct scheduler *s, struct request *r)
{
    if (!s->o.prefix_cache) return;
    const struct replica *replica = &s->replicas[r->replica];
    const size_t n_before = r->n_computed;
    while (r->n_computed == r->n_cached * block_tokens && r->n_cached < n_sharable(r)) {
        const size_t b = r->n_cached;
        const int32_t id = find(replica, r, b, b > 0 ? r->blocks[b - 1] : -1);
        if (id < 0) break;
        exchange(s, r, b, id);
        r->n_cached++;
        r->n_computed += block_tokens;
    }
    if (r->n_computed == n_before) return;
    s->stats->n_prefix_hits++;
    s->stats->n_prefix_hit_tokens += r->n_computed - n_before;
    const size_t prompt_end = r->n_computed < r->n_prompt ? r->n_computed : r->n_prompt;
    if (prompt_end > r->n_high) s->stats->n_prompt_tokens += prompt_end - r->n_high;
    if (r->n_computed > r->n_high) r->n_high = r->n_computed;
}

struct status scheduler_prefix_publish(struct scheduler *s, struct request *r)
{
    if (!s->o.prefix_cache || (r->n_cached + 1) * block_tokens > r->n_computed) return status_ok();
    TRY(scheduler_prefix_keys(s, r));
    struct replica *replica = &s->replicas[r->replica];
    for (; (r->n_cached + 1) * block_tokens <= r->n_computed; r->n_cached++) {
        const size_t b = r->n_cached;
        const int32_t parent = b > 0 ? r->blocks[b - 1] : -1;
        const int32_t id = find(replica, r, b, parent);
        if (id >= 0) { /* somebody else was first: one copy is enough */
            exchange(s, r, b, id);
        } else {
            prefix_cache_add(&replica->cache, r->blocks[b], parent, r->block_keys[b],
                             r->tokens + b * block_tokens);
        }
    }
    return status_ok();
}

/* Sharing blocks between requests that begin alike. The first q->n_cached blocks of a running
 * request are in its replica's prefix cache, held by it; the others are its own. A block enters the
 * cache when the step that computed its last row was committed without a bad row, so that every
 * request that relies on it would have got the same rows itself. */
#include "base/mem.h"
#include "serve/schedule/scheduler_private.h"

static const size_t block_tokens = PLAN_BLOCK_TOKENS;

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
        const uint64_t before = b > 0 ? q->block_keys[b - 1] : 0;
        q->block_keys[b] = prefix_key(before, q->r->tokens + b * block_tokens);
    }
    q->n_block_keys = n;
    return status_ok();
}

/* Block b of q in the cache, after block `parent`; -1: it is not there. */
static int32_t scheduler_prefix_find(const struct replica *replica, const struct sequence *q,
                                     size_t b, int32_t parent)
{
    return prefix_cache_find(&replica->cache, parent, q->block_keys[b],
                             q->r->tokens + b * block_tokens);
}

/* The number of blocks that q may take from others: none of a prompt whose log-probabilities are
 * requested; never the block of the last token, whose row must be computed to draw the next token.
 */
static size_t n_sharable(const struct sequence *q)
{
    if (q->r->ask->n_prompt_logprobs >= 0) return 0;
    return (q->r->n_tokens - 1) / block_tokens;
}

/* Whether `other` computes, or will compute, block b of q: both are equal up to its end. */
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
    int32_t parent = -1;
    while (m.n_blocks < n_sharable(q)) {
        parent = scheduler_prefix_find(replica, q, m.n_blocks, parent);
        if (parent < 0) break;
        m.n_idle += replica->cache.nodes[parent].n_refs == 0;
        m.n_blocks++;
    }
    m.n_coming = m.n_blocks;
    for (int32_t g = 0; g < s->o.n_groups; g++) {
        const struct sequence *other = replica->groups[g].running.head;
        for (; other != NULL; other = other->next) {
            while (m.n_coming < n_sharable(q) && will_have(other, q, m.n_coming)) m.n_coming++;
        }
    }
    return m;
}

bool scheduler_prefix_is_coming(const struct scheduler *s, const struct sequence *q)
{
    const size_t b = q->n_computed / block_tokens;
    if (!s->o.flags.prefix_cache || q->n_computed % block_tokens != 0 || b >= n_sharable(q))
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

/* Block b of q becomes the cached block `id`, which q holds from now on. */
static void scheduler_prefix_exchange(struct scheduler *s, struct sequence *q, size_t b, int32_t id)
{
    struct replica *replica = &s->replicas[q->replica];
    prefix_cache_hold(&replica->cache, id);
    if (b < q->n_blocks) {
        block_pool_give(&replica->pool, &q->blocks[b], 1);
        q->n_own--;
        replica->groups[q->group].n_blocks--;
    } else {
        q->n_blocks++;
    }
    q->blocks[b] = id;
}

void scheduler_prefix_adopt(struct scheduler *s, struct sequence *q)
{
    if (!s->o.flags.prefix_cache) return;
    const struct replica *replica = &s->replicas[q->replica];
    const size_t n_before = q->n_computed;
    while (q->n_computed == q->n_cached * block_tokens && q->n_cached < n_sharable(q)) {
        const size_t b = q->n_cached;
        const int32_t id = scheduler_prefix_find(replica, q, b, b > 0 ? q->blocks[b - 1] : -1);
        if (id < 0) break;
        scheduler_prefix_exchange(s, q, b, id);
        q->n_cached++;
        q->n_computed += block_tokens;
    }
    if (q->n_computed == n_before) return;
    s->stats->n_prefix_hits++;
    s->stats->n_prefix_hit_tokens += q->n_computed - n_before;
    const size_t prompt_end = q->n_computed < q->r->n_prompt ? q->n_computed : q->r->n_prompt;
    if (prompt_end > q->n_high) s->stats->n_prompt_tokens += prompt_end - q->n_high;
    if (q->n_computed > q->n_high) q->n_high = q->n_computed;
}

struct status scheduler_prefix_publish(struct scheduler *s, struct sequence *q)
{
    if (!s->o.flags.prefix_cache || (q->n_cached + 1) * block_tokens > q->n_computed)
        return status_ok();
    TRY(scheduler_prefix_keys(s, q));
    struct replica *replica = &s->replicas[q->replica];
    for (; (q->n_cached + 1) * block_tokens <= q->n_computed; q->n_cached++) {
        const size_t b = q->n_cached;
        const int32_t parent = b > 0 ? q->blocks[b - 1] : -1;
        const int32_t id = scheduler_prefix_find(replica, q, b, parent);
        if (id >= 0) { /* another sequence was faster; one copy suffices */
            scheduler_prefix_exchange(s, q, b, id);
        } else {
            prefix_cache_add(&replica->cache, q->blocks[b], parent, q->block_keys[b],
                             q->r->tokens + b * block_tokens);
        }
    }
    return status_ok();
}

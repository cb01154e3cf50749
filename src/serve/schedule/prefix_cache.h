/* Which full KV blocks of one replica hold which tokens, so that prompts that begin alike share
 * them: a radix tree whose edges are whole blocks, found through a hash table. Counts who holds a
 * block and evicts the longest unused ones. Knows ids and tokens only. Called by the scheduler. */
#ifndef SHOAL_SERVE_SCHEDULE_PREFIX_CACHE_H
#define SHOAL_SERVE_SCHEDULE_PREFIX_CACHE_H

#include "base/status.h"
#include "plan/step_plan.h"

#include <stdint.h>

/* Block `id` as a node of the tree; links are block ids, -1: none. */
struct prefix_node {
    uint64_t key;
    int32_t parent;         /* the block before it; -1: it begins a prompt */
    int32_t next;           /* in its bucket */
    int32_t younger, older; /* among the idle ones */
    int32_t n_refs;         /* sequences that hold it; 0: idle */
    int32_t n_children;
    bool is_cached;
};

struct prefix_cache {
    struct prefix_node *nodes; /* [n_blocks], owned */
    int32_t *tokens;           /* [n_blocks, B], owned */
    int32_t *buckets;          /* [n_buckets], owned; n_buckets is a power of two */
    int32_t n_blocks, n_buckets;
    int32_t oldest, youngest; /* idle blocks, by their last use */
    int32_t n_idle, n_cached;
};

/* Local. An empty tree over the blocks [0, n_blocks). Errors: STATUS_MEMORY. */
struct status prefix_cache_init(struct prefix_cache *c, int32_t n_blocks);
void prefix_cache_fini(struct prefix_cache *c);

/* Local. The key of a block: a hash of its B tokens and of the key before it (0: none). Two
 * prompts with equal keys are very likely, but not surely, equal up to there. */
uint64_t prefix_key(uint64_t before, const int32_t *tokens);

/* Local. The cached block with these B tokens behind cached block `parent` (-1: at the start), or
 * -1. Compares the tokens themselves. */
int32_t prefix_cache_find(const struct prefix_cache *c, int32_t parent, uint64_t key,
                          const int32_t *tokens);

/* Local. Block `id` enters the tree, held once by its maker, who holds `parent`, too. The same
 * tokens must not stand there yet (assert). */
void prefix_cache_add(struct prefix_cache *c, int32_t id, int32_t parent, uint64_t key,
                      const int32_t *tokens);

/* Local. One holder more or less. Who holds a block holds all before it, and releases the last one
 * first; so an idle block never stands before one that is held, nor is it older than any behind it.
 */
void prefix_cache_hold(struct prefix_cache *c, int32_t id);
void prefix_cache_release(struct prefix_cache *c, int32_t id);

/* Local. Takes the idle block that was not used for longest out of the tree; -1 when none is idle.
 * Owner: the caller. */
int32_t prefix_cache_evict(struct prefix_cache *c);

#endif

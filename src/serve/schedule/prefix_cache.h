/* The tokens of full KV blocks of one replica, so that prompts with a common prefix share blocks: a
 * radix tree whose edges are whole blocks, found through a hash table. Counts who holds a block and
 * evicts the longest unused ones. Knows ids and tokens only. Called by the scheduler. */
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

/* Local. The cached block with these B tokens after cached block `parent` (-1: at the start), or
 * -1. Compares the tokens themselves. */
int32_t prefix_cache_find(const struct prefix_cache *c, int32_t parent, uint64_t key,
                          const int32_t *tokens);

/* Local. Adds block `id` to the tree with one holder, the sequence that computed it, which also
 * holds `parent`. The same tokens must not be there yet (assert). */
void prefix_cache_add(struct prefix_cache *c, int32_t id, int32_t parent, uint64_t key,
                      const int32_t *tokens);

/* Local. Adds or removes a holder of a block. A holder of a block holds all blocks before it, and
 * releases the last one first. So no idle block stands before a held one, and an idle block is not
 * older than the blocks after it. */
void prefix_cache_hold(struct prefix_cache *c, int32_t id);
void prefix_cache_release(struct prefix_cache *c, int32_t id);

/* Local. Removes the least recently used idle block and returns it to the caller, who owns it; -1:
 * no block is idle. */
int32_t prefix_cache_evict(struct prefix_cache *c);

#endif

/* Lists the tokens whose KV blocks are in the slots of one replica's files (attention/kv_tier.h).
 * An entry is found by its tokens and a hash of all tokens before them; the least recently used
 * entry is evicted first. Knows ids and tokens only. Called by the scheduler. */
#ifndef SHOAL_SERVE_SCHEDULE_TIER_INDEX_H
#define SHOAL_SERVE_SCHEDULE_TIER_INDEX_H

#include "base/status.h"
#include "plan/step_plan.h"

/* An entry: 64 tokens after a given prefix. */
struct tier_entry {
    uint64_t key, before; /* prefix_key of these tokens, and of the 64 tokens before */
    int32_t next;         /* the next entry in its bucket, or in the list of free entries; -1:
                             none */
    int32_t younger, older;
    int32_t slots[PLAN_TABLES_MAX]; /* slot of each block table; -1: not in the file */
    int32_t tokens[PLAN_BLOCK_TOKENS];
};

struct tier_index {
    struct tier_entry *entries; /* [n_slots], owned; enough, because each entry in use has a slot */
    int32_t *buckets;           /* [n_buckets], owned */
    int32_t *free_slots;        /* [n_free_slots] of n_slots, owned */
    int32_t n_slots, n_free_slots, n_buckets, n_tables;
    int32_t free, oldest, youngest; /* entries; -1: none */
};

/* Local. Makes an empty index with n_slots free slots. Errors: STATUS_MEMORY. */
struct status tier_index_init(struct tier_index *x, int32_t n_slots, int32_t n_tables);
void tier_index_fini(struct tier_index *x);

/* Local. Finds the entry with this key and these tokens [B] after a block with key `before`; -1:
 * none. Compares the block's own tokens, but only the key of the tokens before it. */
int32_t tier_index_find(const struct tier_index *x, uint64_t key, uint64_t before,
                        const int32_t *tokens);

/* Local. Finds or makes the entry of these tokens, and may evict another for it; -1: the index has
 * no slots. */
int32_t tier_index_get(struct tier_index *x, uint64_t key, uint64_t before, const int32_t *tokens);

/* Local. Gives the entry a slot for a table that has none, and returns the slot. Evicts the least
 * recently used other entries if needed; -1: none is left to evict. */
int32_t tier_index_place(struct tier_index *x, int32_t entry, int32_t table);

/* Local. Make the entry the most recently used, or remove it. */
void tier_index_touch(struct tier_index *x, int32_t entry);
void tier_index_forget(struct tier_index *x, int32_t entry);

#endif

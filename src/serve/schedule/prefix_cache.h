/* Finds one replica's computed KV blocks by their tokens, so that prompts with a common prefix
 * share blocks. It is a radix tree whose edges are 64 tokens, found through a hash table. A node
 * stands for 64 tokens after a given prefix, and has a block for each block table (plan_tables).
 * The blocks of windowed tables may be evicted before the others. Counts the holders of each node
 * and of its windowed blocks, and evicts those without a holder, the least recently used first.
 * Knows ids and tokens only. Called by the scheduler. */
#ifndef SHOAL_SERVE_SCHEDULE_PREFIX_CACHE_H
#define SHOAL_SERVE_SCHEDULE_PREFIX_CACHE_H

#include "base/status.h"
#include "plan/step_plan.h"

#include <stdint.h>

/* Two lists in order of last use: nodes without a holder, and nodes whose windowed blocks have no
 * holder. */
enum prefix_list { PREFIX_IDLE, PREFIX_IDLE_WINDOWS, PREFIX_LISTS };

struct prefix_link {
    int32_t younger, older; /* nodes; -1: none */
    uint64_t used;          /* the clock at the last use */
};

struct prefix_node {
    uint64_t key;
    int32_t parent; /* the node of the 64 tokens before; -1: this node begins a prompt */
    int32_t next;   /* the next node in its bucket, or in the list of free nodes; -1: none */
    struct prefix_link links[PREFIX_LISTS];
    int32_t n_refs;        /* sequences that hold the node; 0: idle */
    int32_t n_window_refs; /* sequences that hold its windowed blocks too */
    int32_t n_children;
    int32_t n_wanted; /* preempted sequences that will need the node again */
    bool is_cached;
    bool is_stored;   /* the node is in the prefix store, or is being written there */
    bool has_windows; /* the node has its windowed blocks */
};

struct prefix_ends {
    int32_t oldest, youngest, n;
};

struct prefix_cache {
    struct plan_tables tables;
    struct prefix_node *nodes; /* [n_nodes], owned */
    int32_t *tokens;           /* [n_nodes, B], owned */
    int32_t *blocks;           /* [n_nodes, tables], owned */
    int32_t *buckets;          /* [n_buckets], owned; n_buckets is a power of two */
    int32_t n_nodes, n_buckets;
    int32_t free; /* the first free node; -1: none */
    struct prefix_ends lists[PREFIX_LISTS];
    int32_t n_cached;
    uint64_t clock;
};

/* Local. Makes an empty tree of at most n_nodes nodes. Errors: STATUS_MEMORY. */
struct status prefix_cache_init(struct prefix_cache *c, int32_t n_nodes,
                                const struct plan_tables *tables);
void prefix_cache_fini(struct prefix_cache *c);

/* Local. Returns the key of a node: a hash of its B tokens and of the key `before` of the node
 * before it (at a prompt's start: 0, or the adapter's key). Prompts with equal keys are very
 * likely, but not certainly, equal up to the node's end. */
uint64_t prefix_key(uint64_t before, const int32_t *tokens);

/* Local. Finds the node with these B tokens after node `parent` (-1: at the start); -1: none.
 * Compares the tokens themselves. */
int32_t prefix_cache_find(const struct prefix_cache *c, int32_t parent, uint64_t key,
                          const int32_t *tokens);

/* Local. Adds a node and makes the sequence that computed it its holder; the sequence must hold
 * `parent`. Of blocks [tables], those of full tables become the cache's; with has_windows, also
 * those of windowed tables, which the sequence then holds. The tree must not have these tokens yet
 * (assert). Returns the node; -1, with nothing changed, if no node is free. */
int32_t prefix_cache_add(struct prefix_cache *c, int32_t parent, uint64_t key,
                         const int32_t *tokens, const int32_t *blocks, bool has_windows);

/* Local. Returns a node's blocks, [tables], borrowed. */
int32_t *prefix_cache_blocks(const struct prefix_cache *c, int32_t node);

/* Local. Add or remove a holder of a node. A holder of a node holds all nodes before it, and
 * releases the last one first. Therefore no idle node precedes a held one, and the nodes after an
 * idle node were not used later than it. */
void prefix_cache_hold(struct prefix_cache *c, int32_t node);
void prefix_cache_release(struct prefix_cache *c, int32_t node);

/* Local. prefix_cache_hold_windows and prefix_cache_release_windows add or remove a holder of a
 * node's windowed blocks, which it must have (assert). The holder also holds the node, and releases
 * the windowed blocks first. prefix_cache_give_windows puts windowed blocks into a node that has
 * none, and holds them. */
void prefix_cache_hold_windows(struct prefix_cache *c, int32_t node);
void prefix_cache_release_windows(struct prefix_cache *c, int32_t node);
void prefix_cache_give_windows(struct prefix_cache *c, int32_t node, const int32_t *blocks);

/* Local. Returns the number of blocks without a holder. */
int32_t prefix_cache_n_idle(const struct prefix_cache *c);

/* Local. Evicts what was used least recently: a node without a holder, or only the windowed blocks
 * of a node. Writes the blocks, which are then the caller's, to out [tables] and returns their
 * number; 0: nothing is idle. */
int32_t prefix_cache_evict(struct prefix_cache *c, int32_t *out);

/* The node that prefix_cache_evict would take next, if preempted sequences want it, and the tables
 * whose blocks it would take. Valid until the cache changes. */
struct prefix_victim {
    int32_t node; /* -1: nothing is idle, or the next node is not wanted or is still held */
    int32_t table_begin, table_end;
};

/* Local. Returns the next victim of prefix_cache_evict. */
struct prefix_victim prefix_cache_victim(const struct prefix_cache *c);

/* Local. Returns the B tokens of a node; borrowed. */
const int32_t *prefix_cache_tokens(const struct prefix_cache *c, int32_t node);

#endif

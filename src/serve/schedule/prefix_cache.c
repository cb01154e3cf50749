/* The tree of cached blocks. */
#include "serve/schedule/prefix_cache.h"

#include "base/mem.h"

#include <assert.h>
#include <string.h>
#include <xxhash.h>

static const size_t block_bytes = PLAN_BLOCK_TOKENS * sizeof(int32_t);

struct status prefix_cache_init(struct prefix_cache *c, int32_t n_nodes,
                                const struct plan_tables *tables)
{
    *c = (struct prefix_cache){.tables = *tables, .n_nodes = n_nodes, .n_buckets = 1, .free = -1};
    for (int i = 0; i < PREFIX_LISTS; i++) c->lists[i] = (struct prefix_ends){-1, -1, 0};
    while (c->n_buckets < n_nodes && c->n_buckets < 1 << 30) c->n_buckets *= 2;
    struct status st;
    const size_t n = (size_t)n_nodes, n_tables = (size_t)plan_tables_count(tables);
    TRY_GOTO(st, mem_alloc(&c->nodes, n, sizeof *c->nodes, "prefix cache"), fail);
    TRY_GOTO(st, mem_alloc(&c->tokens, n, block_bytes, "prefix cache"), fail);
    TRY_GOTO(st, mem_alloc(&c->blocks, n * n_tables, sizeof *c->blocks, "prefix cache"), fail);
    TRY_GOTO(st, mem_alloc(&c->buckets, (size_t)c->n_buckets, sizeof *c->buckets, "prefix cache"),
             fail);
    for (int32_t i = 0; i < c->n_buckets; i++) c->buckets[i] = -1;
    for (int32_t i = n_nodes - 1; i >= 0; i--) {
        c->nodes[i].next = c->free;
        c->free = i;
    }
    return st;
fail:
    prefix_cache_fini(c);
    return st;
}

void prefix_cache_fini(struct prefix_cache *c)
{
    mem_free(&c->nodes);
    mem_free(&c->tokens);
    mem_free(&c->blocks);
    mem_free(&c->buckets);
    for (int i = 0; i < PREFIX_LISTS; i++) c->lists[i] = (struct prefix_ends){-1, -1, 0};
    c->n_cached = 0;
}

uint64_t prefix_key(uint64_t before, const int32_t *tokens)
{
    return XXH3_64bits_withSeed(tokens, block_bytes, before);
}

static int32_t *prefix_cache_bucket_of(const struct prefix_cache *c, uint64_t key)
{
    return &c->buckets[key & (uint64_t)(c->n_buckets - 1)];
}

static int32_t *tokens_of(const struct prefix_cache *c, int32_t node)
{
    return c->tokens + (size_t)node * PLAN_BLOCK_TOKENS;
}

int32_t *prefix_cache_blocks(const struct prefix_cache *c, int32_t node)
{
    return c->blocks + (size_t)node * (size_t)plan_tables_count(&c->tables);
}

int32_t prefix_cache_find(const struct prefix_cache *c, int32_t parent, uint64_t key,
                          const int32_t *tokens)
{
    int32_t id = *prefix_cache_bucket_of(c, key);
    while (id >= 0) {
        const struct prefix_node *node = &c->nodes[id];
        if (node->key == key && node->parent == parent &&
            memcmp(tokens_of(c, id), tokens, block_bytes) == 0) {
            break;
        }
        id = node->next;
    }
    return id;
}

int32_t prefix_cache_add(struct prefix_cache *c, int32_t parent, uint64_t key,
                         const int32_t *tokens, const int32_t *blocks, bool has_windows)
{
    const int32_t id = c->free;
    if (id < 0) return -1;
    assert(prefix_cache_find(c, parent, key, tokens) < 0);
    assert(parent < 0 || c->nodes[parent].n_refs > 0);
    c->free = c->nodes[id].next;
    int32_t *bucket = prefix_cache_bucket_of(c, key);
    has_windows = has_windows && c->tables.n_windowed > 0;
    c->nodes[id] = (struct prefix_node){.key = key,
                                        .parent = parent,
                                        .next = *bucket,
                                        .n_refs = 1,
                                        .n_window_refs = has_windows,
                                        .is_cached = true,
                                        .has_windows = has_windows};
    *bucket = id;
    memcpy(tokens_of(c, id), tokens, block_bytes);
    memcpy(prefix_cache_blocks(c, id), blocks,
           (size_t)plan_tables_count(&c->tables) * sizeof *blocks);
    if (parent >= 0) c->nodes[parent].n_children++;
    c->n_cached++;
    return id;
}

static void leave_list(struct prefix_cache *c, int32_t id, enum prefix_list which)
{
    struct prefix_ends *l = &c->lists[which];
    const struct prefix_link *at = &c->nodes[id].links[which];
    *(at->older >= 0 ? &c->nodes[at->older].links[which].younger : &l->oldest) = at->younger;
    *(at->younger >= 0 ? &c->nodes[at->younger].links[which].older : &l->youngest) = at->older;
    l->n--;
}

static void enter_list(struct prefix_cache *c, int32_t id, enum prefix_list which)
{
    struct prefix_ends *l = &c->lists[which];
    c->nodes[id].links[which] =
        (struct prefix_link){.older = l->youngest, .younger = -1, .used = ++c->clock};
    *(l->youngest >= 0 ? &c->nodes[l->youngest].links[which].younger : &l->oldest) = id;
    l->youngest = id;
    l->n++;
}

void prefix_cache_hold(struct prefix_cache *c, int32_t id)
{
    assert(c->nodes[id].is_cached);
    if (c->nodes[id].n_refs++ == 0) leave_list(c, id, PREFIX_IDLE);
}

void prefix_cache_release(struct prefix_cache *c, int32_t id)
{
    struct prefix_node *node = &c->nodes[id];
    assert(node->is_cached && node->n_refs > node->n_window_refs);
    if (--node->n_refs == 0) enter_list(c, id, PREFIX_IDLE);
}

void prefix_cache_hold_windows(struct prefix_cache *c, int32_t id)
{
    assert(c->nodes[id].has_windows);
    if (c->nodes[id].n_window_refs++ == 0) leave_list(c, id, PREFIX_IDLE_WINDOWS);
}

void prefix_cache_release_windows(struct prefix_cache *c, int32_t id)
{
    assert(c->nodes[id].has_windows && c->nodes[id].n_window_refs > 0);
    if (--c->nodes[id].n_window_refs == 0) enter_list(c, id, PREFIX_IDLE_WINDOWS);
}

void prefix_cache_give_windows(struct prefix_cache *c, int32_t id, const int32_t *blocks)
{
    struct prefix_node *node = &c->nodes[id];
    assert(node->is_cached && !node->has_windows);
    const size_t n_full = (size_t)c->tables.n_full;
    memcpy(prefix_cache_blocks(c, id) + n_full, blocks + n_full,
           (size_t)c->tables.n_windowed * sizeof *blocks);
    node->has_windows = true;
    node->n_window_refs = 1;
}

int32_t prefix_cache_n_idle(const struct prefix_cache *c)
{
    return c->lists[PREFIX_IDLE].n * c->tables.n_full +
           c->lists[PREFIX_IDLE_WINDOWS].n * c->tables.n_windowed;
}

/* Evicts a node's windowed blocks, which have no holder, and writes them to `out`. Returns their
 * number. */
static int32_t evict_windows(struct prefix_cache *c, int32_t id, int32_t *out)
{
    if (!c->nodes[id].has_windows) return 0;
    leave_list(c, id, PREFIX_IDLE_WINDOWS);
    c->nodes[id].has_windows = false;
    memcpy(out, prefix_cache_blocks(c, id) + c->tables.n_full,
           (size_t)c->tables.n_windowed * sizeof *out);
    return c->tables.n_windowed;
}

static int32_t evict_node(struct prefix_cache *c, int32_t id, int32_t *out)
{
    struct prefix_node *node = &c->nodes[id];
    assert(node->n_children == 0); /* children were used no later, so they were evicted before
                                      (prefix_cache_hold) */
    int32_t n = evict_windows(c, id, out);
    leave_list(c, id, PREFIX_IDLE);
    memcpy(out + n, prefix_cache_blocks(c, id), (size_t)c->tables.n_full * sizeof *out);
    n += c->tables.n_full;
    int32_t *link = prefix_cache_bucket_of(c, node->key);
    while (*link != id) link = &c->nodes[*link].next;
    *link = node->next;
    if (node->parent >= 0) c->nodes[node->parent].n_children--;
    *node = (struct prefix_node){.parent = -1, .next = c->free};
    c->free = id;
    c->n_cached--;
    return n;
}

/* Returns the list whose oldest node was used less recently; PREFIX_LISTS: both are empty. */
static enum prefix_list older_list(const struct prefix_cache *c)
{
    const int32_t node = c->lists[PREFIX_IDLE].oldest;
    const int32_t windows = c->lists[PREFIX_IDLE_WINDOWS].oldest;
    if (node < 0 && windows < 0) return PREFIX_LISTS;
    const bool node_first =
        windows < 0 || (node >= 0 && c->nodes[node].links[PREFIX_IDLE].used <
                                         c->nodes[windows].links[PREFIX_IDLE_WINDOWS].used);
    return node_first ? PREFIX_IDLE : PREFIX_IDLE_WINDOWS;
}

int32_t prefix_cache_evict(struct prefix_cache *c, int32_t *out)
{
    int32_t n = 0;
    while (n == 0) { /* a node may have no blocks; then evicts the next one too */
        const enum prefix_list which = older_list(c);
        if (which == PREFIX_LISTS) return 0;
        const int32_t node = c->lists[which].oldest;
        n = which == PREFIX_IDLE ? evict_node(c, node, out) : evict_windows(c, node, out);
    }
    return n;
}

struct prefix_victim prefix_cache_victim(const struct prefix_cache *c)
{
    const enum prefix_list which = older_list(c);
    struct prefix_victim v = {.node = -1};
    if (which == PREFIX_LISTS) return v;
    const int32_t node = c->lists[which].oldest;
    const struct prefix_node *at = &c->nodes[node];
    /* a held node's idle windowed blocks lie before its holders' windows, so they are not wanted */
    if (at->n_wanted == 0 || at->n_refs > 0) return v;
    v.node = node;
    v.table_begin = which == PREFIX_IDLE ? 0 : c->tables.n_full;
    v.table_end = at->has_windows ? plan_tables_count(&c->tables) : c->tables.n_full;
    return v;
}

const int32_t *prefix_cache_tokens(const struct prefix_cache *c, int32_t node)
{
    return tokens_of(c, node);
}

/* The tree of cached blocks. */
#include "serve/schedule/prefix_cache.h"

#include "base/mem.h"

#include <assert.h>
#include <string.h>
#include <xxhash.h>

static const size_t block_bytes = PLAN_BLOCK_TOKENS * sizeof(int32_t);

struct status prefix_cache_init(struct prefix_cache *c, int32_t n_blocks)
{
    *c = (struct prefix_cache){.n_blocks = n_blocks, .n_buckets = 1, .oldest = -1, .youngest = -1};
    while (c->n_buckets < n_blocks && c->n_buckets < 1 << 30) c->n_buckets *= 2;
    struct status st;
    const size_t n = (size_t)n_blocks;
    TRY_GOTO(st, mem_alloc(&c->nodes, n, sizeof *c->nodes, "prefix cache"), fail);
    TRY_GOTO(st, mem_alloc(&c->tokens, n, block_bytes, "prefix cache"), fail);
    TRY_GOTO(st, mem_alloc(&c->buckets, (size_t)c->n_buckets, sizeof *c->buckets, "prefix cache"),
             fail);
    for (int32_t i = 0; i < c->n_buckets; i++) c->buckets[i] = -1;
    return st;
fail:
    prefix_cache_fini(c);
    return st;
}

void prefix_cache_fini(struct prefix_cache *c)
{
    mem_free(&c->nodes);
    mem_free(&c->tokens);
    mem_free(&c->buckets);
    c->n_idle = c->n_cached = 0;
}

uint64_t prefix_key(uint64_t before, const int32_t *tokens)
{
    return XXH3_64bits_withSeed(tokens, block_bytes, before);
}

static int32_t *prefix_cache_bucket_of(const struct prefix_cache *c, uint64_t key)
{
    return &c->buckets[key & (uint64_t)(c->n_buckets - 1)];
}

static int32_t *tokens_of(const struct prefix_cache *c, int32_t id)
{
    return c->tokens + (size_t)id * PLAN_BLOCK_TOKENS;
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

void prefix_cache_add(struct prefix_cache *c, int32_t id, int32_t parent, uint64_t key,
                      const int32_t *tokens)
{
    assert(!c->nodes[id].is_cached && prefix_cache_find(c, parent, key, tokens) < 0);
    assert(parent < 0 || c->nodes[parent].n_refs > 0);
    int32_t *bucket = prefix_cache_bucket_of(c, key);
    c->nodes[id] = (struct prefix_node){.key = key,
                                        .parent = parent,
                                        .next = *bucket,
                                        .younger = -1,
                                        .older = -1,
                                        .n_refs = 1,
                                        .is_cached = true};
    *bucket = id;
    memcpy(tokens_of(c, id), tokens, block_bytes);
    if (parent >= 0) c->nodes[parent].n_children++;
    c->n_cached++;
}

static void take_from_idle(struct prefix_cache *c, int32_t id)
{
    const struct prefix_node *node = &c->nodes[id];
    *(node->older >= 0 ? &c->nodes[node->older].younger : &c->oldest) = node->younger;
    *(node->younger >= 0 ? &c->nodes[node->younger].older : &c->youngest) = node->older;
    c->n_idle--;
}

void prefix_cache_hold(struct prefix_cache *c, int32_t id)
{
    assert(c->nodes[id].is_cached);
    if (c->nodes[id].n_refs++ == 0) take_from_idle(c, id);
}

void prefix_cache_release(struct prefix_cache *c, int32_t id)
{
    struct prefix_node *node = &c->nodes[id];
    assert(node->is_cached && node->n_refs > 0);
    if (--node->n_refs > 0) return;
    node->older = c->youngest;
    node->younger = -1;
    *(c->youngest >= 0 ? &c->nodes[c->youngest].younger : &c->oldest) = id;
    c->youngest = id;
    c->n_idle++;
}

int32_t prefix_cache_evict(struct prefix_cache *c)
{
    const int32_t id = c->oldest;
    if (id < 0) return -1;
    struct prefix_node *node = &c->nodes[id];
    assert(node->n_children == 0); /* they would be older, see prefix_cache_hold */
    take_from_idle(c, id);
    int32_t *link = prefix_cache_bucket_of(c, node->key);
    while (*link != id) link = &c->nodes[*link].next;
    *link = node->next;
    if (node->parent >= 0) c->nodes[node->parent].n_children--;
    *node = (struct prefix_node){.parent = -1};
    c->n_cached--;
    return id;
}

/* The index of blocks on disk: a hash table and a list by last use. */
#include "serve/schedule/tier_index.h"

#include "base/mem.h"

#include <string.h>

static const size_t block_bytes = PLAN_BLOCK_TOKENS * sizeof(int32_t);

struct status tier_index_init(struct tier_index *x, int32_t n_slots, int32_t n_tables)
{
    *x = (struct tier_index){.n_slots = n_slots,
                             .n_buckets = 1,
                             .n_tables = n_tables,
                             .free = -1,
                             .oldest = -1,
                             .youngest = -1};
    if (n_slots == 0) return status_ok();
    while (x->n_buckets < n_slots && x->n_buckets < 1 << 30) x->n_buckets *= 2;
    const size_t n = (size_t)n_slots;
    struct status st = mem_alloc(&x->entries, n, sizeof *x->entries, "KV tier");
    if (!status_failed(&st)) st = mem_alloc(&x->free_slots, n, sizeof(int32_t), "KV tier");
    if (!status_failed(&st))
        st = mem_alloc(&x->buckets, (size_t)x->n_buckets, sizeof(int32_t), "KV tier");
    if (status_failed(&st)) {
        tier_index_fini(x);
        return st;
    }
    for (int32_t i = 0; i < x->n_buckets; i++) x->buckets[i] = -1;
    for (int32_t i = n_slots - 1; i >= 0; i--) {
        x->free_slots[x->n_free_slots++] = i;
        x->entries[i].next = x->free;
        x->free = i;
    }
    return st;
}

void tier_index_fini(struct tier_index *x)
{
    mem_free(&x->entries);
    mem_free(&x->free_slots);
    mem_free(&x->buckets);
    x->n_slots = 0;
}

static int32_t *tier_index_bucket(const struct tier_index *x, uint64_t key)
{
    return &x->buckets[key & (uint64_t)(x->n_buckets - 1)];
}

int32_t tier_index_find(const struct tier_index *x, uint64_t key, uint64_t before,
                        const int32_t *tokens)
{
    if (x->n_slots == 0) return -1;
    int32_t i = *tier_index_bucket(x, key);
    for (; i >= 0; i = x->entries[i].next) {
        const struct tier_entry *e = &x->entries[i];
        if (e->key == key && e->before == before && memcmp(e->tokens, tokens, block_bytes) == 0)
            break;
    }
    return i;
}

static void unlink_entry(struct tier_index *x, int32_t i)
{
    const struct tier_entry *e = &x->entries[i];
    *(e->older >= 0 ? &x->entries[e->older].younger : &x->oldest) = e->younger;
    *(e->younger >= 0 ? &x->entries[e->younger].older : &x->youngest) = e->older;
}

static void tier_link_youngest(struct tier_index *x, int32_t i)
{
    x->entries[i].older = x->youngest;
    x->entries[i].younger = -1;
    *(x->youngest >= 0 ? &x->entries[x->youngest].younger : &x->oldest) = i;
    x->youngest = i;
}

void tier_index_touch(struct tier_index *x, int32_t i)
{
    unlink_entry(x, i);
    tier_link_youngest(x, i);
}

void tier_index_forget(struct tier_index *x, int32_t i)
{
    struct tier_entry *e = &x->entries[i];
    unlink_entry(x, i);
    int32_t *link = tier_index_bucket(x, e->key);
    while (*link != i) link = &x->entries[*link].next;
    *link = e->next;
    for (int32_t t = 0; t < x->n_tables; t++)
        if (e->slots[t] >= 0) x->free_slots[x->n_free_slots++] = e->slots[t];
    e->next = x->free;
    x->free = i;
}

int32_t tier_index_get(struct tier_index *x, uint64_t key, uint64_t before, const int32_t *tokens)
{
    int32_t i = tier_index_find(x, key, before, tokens);
    if (i >= 0 || x->n_slots == 0) return i;
    if (x->free < 0) tier_index_forget(x, x->oldest);
    i = x->free;
    struct tier_entry *e = &x->entries[i];
    x->free = e->next;
    int32_t *bucket = tier_index_bucket(x, key);
    e->key = key;
    e->before = before;
    e->next = *bucket;
    memcpy(e->tokens, tokens, block_bytes);
    for (int32_t t = 0; t < PLAN_TABLES_MAX; t++) e->slots[t] = -1;
    *bucket = i;
    tier_link_youngest(x, i);
    return i;
}

int32_t tier_index_place(struct tier_index *x, int32_t i, int32_t table)
{
    tier_index_touch(x, i);
    while (x->n_free_slots == 0 && x->oldest != i) tier_index_forget(x, x->oldest);
    if (x->n_free_slots == 0) return -1;
    return x->entries[i].slots[table] = x->free_slots[--x->n_free_slots];
}

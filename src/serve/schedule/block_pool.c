/* A stack of free block ids. */
#include "serve/schedule/block_pool.h"

#include "base/mem.h"

#include <assert.h>

struct status block_pool_init(struct block_pool *p, int32_t n_blocks)
{
    *p = (struct block_pool){0};
    struct status st;
    TRY_GOTO(st, mem_alloc(&p->free_ids, (size_t)n_blocks, sizeof *p->free_ids, "block pool"),
             fail);
    TRY_GOTO(st, mem_alloc(&p->is_free, (size_t)n_blocks, sizeof *p->is_free, "block pool"), fail);
    p->n_free = p->n_blocks = n_blocks;
    for (int32_t i = 0; i < n_blocks; i++) {
        p->free_ids[i] = n_blocks - 1 - i;
        p->is_free[i] = true;
    }
    return st;
fail:
    block_pool_fini(p);
    return st;
}

void block_pool_fini(struct block_pool *p)
{
    mem_free(&p->free_ids);
    mem_free(&p->is_free);
    p->n_free = p->n_blocks = 0;
}

int32_t block_pool_take(struct block_pool *p)
{
    if (p->n_free == 0) return -1;
    const int32_t id = p->free_ids[--p->n_free];
    p->is_free[id] = false;
    return id;
}

void block_pool_give(struct block_pool *p, const int32_t *ids, int32_t n)
{
    for (int32_t i = n - 1; i >= 0; i--) {
        assert(ids[i] >= 0 && ids[i] < p->n_blocks && !p->is_free[ids[i]]);
        p->is_free[ids[i]] = true;
        p->free_ids[p->n_free++] = ids[i];
    }
}

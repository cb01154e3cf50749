/* The free KV blocks of one replica's pool, or its free slots of recurrent states. Knows ids only,
 * neither contents nor owners. Called by the scheduler. */
#ifndef SHOAL_SERVE_SCHEDULE_BLOCK_POOL_H
#define SHOAL_SERVE_SCHEDULE_BLOCK_POOL_H

#include "base/status.h"

#include <stdint.h>

struct block_pool {
    int32_t *free_ids; /* a stack, [n_free] of n_blocks; owned */
    bool *is_free;     /* [n_blocks]; owned */
    int32_t n_free, n_blocks;
};

/* Local. Makes a pool in which all ids [0, n_blocks) are free. Errors: STATUS_MEMORY. */
struct status block_pool_init(struct block_pool *p, int32_t n_blocks);
void block_pool_fini(struct block_pool *p);

/* Local. Takes the free block that was given back last, and returns its id; -1 if none is free. */
int32_t block_pool_take(struct block_pool *p);

/* Local. Gives n blocks back, the last one first, so that a table's blocks are handed out again in
 * the table's order. Each block must be taken (assert). */
void block_pool_give(struct block_pool *p, const int32_t *ids, int32_t n);

#endif

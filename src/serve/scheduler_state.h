/* The scheduler's inside, shared by scheduler.c (planning) and scheduler_commit.c (results). */
#ifndef SHOAL_SERVE_SCHEDULER_STATE_H
#define SHOAL_SERVE_SCHEDULER_STATE_H

#include "serve/block_pool.h"
#include "serve/request_list.h"
#include "serve/scheduler.h"

/* The sequences of one group in one replica. */
struct microbatch {
    struct request_list running; /* oldest first */
    int32_t n_blocks;            /* that they hold */
    int32_t n_rows;              /* planned so far in the step being planned */
    uint64_t step;               /* of the last plan */
    struct request **flight;     /* [n_flight], owned memory: the last plan's sequences in order; a
                                    preempted one stays until its result comes */
    size_t n_flight, flight_capacity;
};

struct replica {
    struct block_pool pool;
    struct microbatch *groups; /* [n_groups] */
    size_t n_running;          /* over all groups */
};

struct scheduler {
    struct scheduler_options o;
    struct serve_summary *stats;
    struct request_list waiting; /* oldest first */
    struct request_list finished;
    struct replica *replicas; /* [n_replicas] */
    size_t n_running;
};

static inline int64_t scheduler_blocks_for(size_t n_tokens)
{
    return (int64_t)((n_tokens + SCHEDULER_BLOCK_TOKENS - 1) / SCHEDULER_BLOCK_TOKENS);
}

/* Local. Takes a running request out of its group and frees its blocks. */
void scheduler_leave(struct scheduler *s, struct request *r);

#endif

/* A request while the scheduler has it: where it runs, which of its tokens are computed, which KV
 * blocks hold them, and the draft tokens of its step in flight. Planning never changes the request
 * itself; submission, results and cancellation do. Called by scheduler*.c. */
#ifndef SHOAL_SERVE_SCHEDULE_SEQUENCE_H
#define SHOAL_SERVE_SCHEDULE_SEQUENCE_H

#include "serve/request/request.h"
#include "serve/request/request_list.h"
#include "serve/schedule/adjusts.h"
#include "serve/schedule/drafting.h"

enum { SEQUENCE_DRAFTS_MAX = 31 }; /* the most drafts of a sequence in one step */

enum sequence_state { SEQUENCE_WAITING, SEQUENCE_RUNNING, SEQUENCE_FINISHED };

struct sequence {
    struct request *r; /* owned until scheduler_take_finished returns it */
    int32_t id;        /* identifies the sequence in plans */
    enum sequence_state state;
    int32_t replica, group; /* where the sequence runs, or ran last */

    /* its tokens, which are in r */
    size_t n_computed; /* tokens whose KV rows are in its blocks */
    size_t n_high;     /* the largest value that n_computed has had */
    size_t pos0;       /* rows in the step being planned or in flight: [pos0, pos0 + n_rows) */
    int32_t n_rows;
    bool in_flight; /* the result of its last planned step has not been committed */
    bool is_scored; /* its last planned step gives log-probabilities of prompt tokens */

    /* its KV blocks. The first n_cached are in nodes of the prefix cache, and other sequences may
     * hold them too. Full tables have the blocks [0, n_blocks), windowed tables [window_begin,
     * window_end). */
    int32_t *blocks; /* [blocks_capacity, tables], owned memory */
    int32_t *nodes;  /* [n_cached] of blocks_capacity, owned memory */
    size_t n_blocks, blocks_capacity;
    size_t window_begin, window_end;
    size_t n_cached;
    int32_t n_own;        /* blocks of all tables taken from the pool for this sequence, without the
                             windowed ones that have become the cache's */
    uint64_t *block_keys; /* [n_block_keys] keys of its full blocks (prefix_cache.h); owned */
    size_t n_block_keys, block_keys_capacity;

    /* its next draw, and the n_drafts draft tokens after r's that the step in flight checks */
    struct adjusts adjusts;
    struct drafting drafting; /* while it runs */
    int32_t *drafts;          /* [SEQUENCE_DRAFTS_MAX], owned; NULL before the first ones */
    int32_t n_drafts;
    bool may_draft;     /* the sequence may get drafts in the step being planned */
    bool is_predicted;  /* the step's draft is the prediction layer's guess */
    int32_t predicted;  /* the layer's guess of the token after the first n_before tokens */
    size_t n_before;    /* 0: no guess */
    int32_t n_proposed; /* drafts that the draft model proposed for the step; 0: none, so n_drafts
                           counts drafts from elsewhere */

    /* its blocks on disk (scheduler_tier.c) */
    size_t n_wanted;   /* how many of its first blocks the cache counts as wanted while the
                          sequence waits */
    size_t n_back;     /* how many of its first blocks it will have once all reads have ended; 0: no
                          reads */
    bool store_failed; /* a read from the prefix store failed, so the sequence no longer uses it */
    size_t n_stored;   /* how many of the n_back blocks come from the prefix store */
    int32_t n_arriving; /* reads that have not ended; the sequence gets no rows until they have */

    int32_t slot; /* the slot of its recurrent states while it runs; -1: none */

    uint64_t first_plan_ns;       /* when its first step was planned; 0: not yet */
    struct sequence *prev, *next; /* links of the list of sequences in the same state */
};

/* Local. Makes a waiting sequence of r and takes ownership of r. Errors: STATUS_MEMORY (r stays the
 * caller's). */
struct status sequence_create(struct request *r, struct sequence **out);

/* Local. Destroys a sequence and its request, unless the request was taken (r NULL). Accepts
 * NULL. */
void sequence_destroy(struct sequence **q);

/* Local. True when a runs before b. */
static inline bool sequence_is_before(const struct sequence *a, const struct sequence *b)
{
    return request_is_before(a->r, b->r);
}

/* A doubly linked list of sequences in the order in which they run; finished ones are in the order
 * of finishing. Zero-initialised: empty. */
struct sequence_list {
    struct sequence *head, *tail; /* the first and the last in this order */
    size_t n;
};

/* Local. Puts q before `next` (NULL: at the tail); takes q out. */
void sequence_list_put(struct sequence_list *l, struct sequence *q, struct sequence *next);
void sequence_list_take(struct sequence_list *l, struct sequence *q);

/* Local. Insert q at its place in the running order. One function searches from the head, the other
 * from the tail. */
void sequence_list_put_from_head(struct sequence_list *l, struct sequence *q);
void sequence_list_put_from_tail(struct sequence_list *l, struct sequence *q);

/* Local. Destroys every sequence of the list. */
void sequence_list_clear(struct sequence_list *l);

#endif

/* The scheduler's internals, shared by scheduler.c (planning), scheduler_commit.c (results),
 * scheduler_prefix.c (blocks that requests share) and scheduler_drafts.c (draft tokens). */
#ifndef SHOAL_SERVE_SCHEDULE_SCHEDULER_PRIVATE_H
#define SHOAL_SERVE_SCHEDULE_SCHEDULER_PRIVATE_H

#include "serve/schedule/block_pool.h"
#include "serve/schedule/prefix_cache.h"
#include "serve/schedule/scheduler.h"
#include "serve/schedule/sequence.h"

/* The sequences of one group in one replica. */
struct microbatch {
    struct sequence_list running; /* oldest first */
    int32_t n_blocks;             /* blocks that they took from the pool */
    int32_t n_rows;               /* planned so far in the step being planned, or in flight */
    uint64_t step, plan_ns;       /* of the last plan: its number and its time */
    struct sequence **flight;     /* [n_flight], owned memory: the last plan's sequences in order; a
                                    preempted one stays until its result comes */
    size_t n_flight, flight_capacity;
    size_t n_entries; /* entries of the plan: one for each of these, and one for each of their
                         drafts */
};

struct replica {
    struct block_pool pool;
    struct block_pool slots;   /* of recurrent states; empty where the model has none */
    struct prefix_cache cache; /* empty when o.flags.prefix_cache is off */
    struct microbatch *groups; /* [n_groups] */
    size_t n_running;          /* over all groups */
    int32_t n_kept; /* blocks kept free for running sequences, because some were preempted */
    int32_t n_calm; /* plans since the last preemption, or since n_kept shrank */
};

struct scheduler {
    struct scheduler_options o;
    struct serve_summary *stats;
    struct sequence_list waiting; /* oldest first */
    struct sequence_list finished;
    struct replica *replicas; /* [n_replicas] */
    size_t n_running;
    uint64_t n_submitted;
    int32_t step_rows;            /* the budget of a replica in one step: step_tokens, or less */
    float predicted_odds;         /* that a guess of the prediction layer is right, of late */
    struct adjusts draft_adjusts; /* of a sequence and its drafts so far, while drafts are
                                     planned */
    uint32_t *allowed; /* [ceil(vocab_size / 32)] a bit for each token that the draw being
                          planned may give */
};

static inline int64_t scheduler_blocks_for(size_t n_tokens)
{
    return (int64_t)((n_tokens + PLAN_BLOCK_TOKENS - 1) / PLAN_BLOCK_TOKENS);
}

/* Blocks that can be taken: those without a holder. */
static inline int32_t replica_n_free(const struct replica *r)
{
    return r->pool.n_free + r->cache.n_idle;
}

/* Local. Removes a running request from its group and returns its blocks; cached blocks stay cached
 * until others need them. */
void scheduler_leave(struct scheduler *s, struct sequence *q);

/* Local. Takes blocks until q's table has n_needed; its replica must have them. Cached blocks
 * without a holder are taken when no others are left. Errors: STATUS_MEMORY. */
struct status scheduler_take_blocks(struct scheduler *s, struct sequence *q, size_t n_needed);

/* scheduler_drafts.c. Local. Gives the group's decoding requests in all replicas drafts, and blocks
 * for them, if they are worth their rows. Called after all other rows of the step were given.
 * Errors: STATUS_MEMORY. */
struct status scheduler_give_drafts(struct scheduler *s, int32_t group);

/* scheduler_drafts.c. Local. Whether the prediction layer is to guess in this step of the group,
 * whose rows are planned. */
bool scheduler_predicts(struct scheduler *s, int32_t group);

/* scheduler_drafts.c. Local. Keeps the odds of drafts from the text, from the result `first` of q's
 * own entry; n_right of its drafts were right. Called before q takes the results' tokens. */
void scheduler_learn(struct sequence *q, const struct result_seq *first, int32_t n_right);

/* scheduler_drafts.c. Local. Keeps the odds of the prediction layer's guesses: compares the last
 * one with q's next token, before q takes it; -1: none was sampled. */
void scheduler_learn_guess(struct scheduler *s, struct sequence *q, int32_t token);

/* How many of a sequence's first blocks a replica has. */
struct prefix_match {
    size_t n_blocks; /* in its cache */
    size_t n_idle;   /* of these: without a holder */
    size_t n_coming; /* n_blocks, plus the next ones that a running request computes */
};

/* scheduler_prefix.c; all Local, and all do nothing when the prefix cache is off. */

/* Keys for all full blocks of q's tokens; before any of the others. Errors: STATUS_MEMORY. */
struct status scheduler_prefix_keys(const struct scheduler *s, struct sequence *q);
struct prefix_match scheduler_prefix_match(const struct scheduler *s, const struct replica *replica,
                                           const struct sequence *q);

/* Whether an older running request computes the next block of running q, so that waiting is
 * cheaper. The oldest never waits. */
bool scheduler_prefix_is_coming(const struct scheduler *s, const struct sequence *q);

/* Running q, not in flight, with room in its table, continues after the cached blocks that come
 * next; its own blocks in their place return to the pool. */
void scheduler_prefix_adopt(struct scheduler *s, struct sequence *q);

/* The full blocks that running q has computed enter the cache, or are exchanged for their equals
 * there. Only after a result without a bad row. Errors: STATUS_MEMORY. */
struct status scheduler_prefix_publish(struct scheduler *s, struct sequence *q);

#endif

/* The scheduler's internals, shared by scheduler.c (planning), scheduler_emit.c (a plan's entries),
 * scheduler_commit.c (results), scheduler_blocks.c (blocks of a sequence), scheduler_prefix.c
 * (blocks that requests share), scheduler_tier.c (blocks on disk), scheduler_drafts.c (draft
 * tokens) and scheduler_model.c (those of a draft model). */
#ifndef SHOAL_SERVE_SCHEDULE_SCHEDULER_PRIVATE_H
#define SHOAL_SERVE_SCHEDULE_SCHEDULER_PRIVATE_H

#include "serve/request/request_choice.h"
#include "serve/schedule/block_pool.h"
#include "serve/schedule/prefix_cache.h"
#include "serve/schedule/scheduler.h"
#include "serve/schedule/sequence.h"
#include "serve/schedule/tier_index.h"

/* The sequences of one group in one replica. */
struct microbatch {
    struct sequence_list running; /* oldest first */
    int32_t n_blocks;             /* blocks that these sequences took from the pool */
    int32_t n_rows;               /* rows planned so far in the step being planned, or rows in
                                     flight */
    int32_t n_open;               /* sequences that may get drafts in the step being planned */
    uint64_t step, plan_ns;       /* number and time of the last plan; plan_ns 0: not needed */
    uint64_t drafting_ns;         /* time that the draft model had taken in all when the last plan
                                     was made */
    struct sequence **flight;     /* [n_flight], owned memory: the last plan's sequences in
                                     order; a preempted sequence stays until its result comes */
    size_t n_flight, flight_capacity;
    size_t n_entries; /* entries of the plan: one for each sequence in flight, and one for each of
                         their drafts */
};

/* A read from --kv-tier or --prefix-store that has not ended. */
struct tier_read {
    struct sequence *q; /* NULL: the sequence has left */
    size_t block;       /* the block's place in q */
    bool is_stored;     /* from the prefix store */
};

struct replica {
    struct block_pool pool;
    struct block_pool slots;   /* slots of recurrent states; empty if the model has none */
    struct prefix_cache cache; /* empty when o.flags.prefix_cache is off */
    struct microbatch *groups; /* [n_groups] */
    size_t n_running;          /* running sequences of all groups */
    int32_t n_kept; /* blocks kept free for running sequences, because some were preempted */
    struct tier_index tier;  /* the blocks on disk; empty without --kv-tier */
    struct tier_read *reads; /* ring [reads_capacity], owned: reads n_reads_ended to n_reads - 1 */
    uint64_t n_reads, n_reads_ended;
    size_t reads_capacity;
    int32_t n_calm; /* plans since the last preemption, or since n_kept shrank */
};

/* The drafts that are asked for in a step. */
struct model_asks {
    struct draft_ask *asks; /* [n] of capacity, as the next two; owned */
    struct sequence **of;   /* the sequence of each */
    float *odds;            /* probability that a draft of it is right */
    size_t n, capacity;
};

/* A bound on the time of a step. */
struct step_bound {
    uint64_t most_ns; /* 0: none */
    int32_t rows;     /* the rows of a replica that it allows in one step: step_tokens or less */
};

struct scheduler {
    struct scheduler_options o;
    struct serve_summary *stats;
    struct sequence_list waiting; /* oldest first */
    struct sequence_list finished;
    struct replica *replicas; /* [n_replicas], owned */
    size_t n_running;
    uint64_t n_submitted;
    struct step_bound bound, eased; /* flags.step_ns and eased_step_ns */
    int32_t budget;                 /* the most rows of a replica in the step being planned */
    size_t n_streams;               /* unfinished sequences that are streamed */
    size_t n_last, n_others;        /* unfinished sequences that run last, and all others */
    uint64_t came_ns;               /* when the last sequence came that does not run last */
    float predicted_odds;           /* recent probability that a guess of the prediction layer, or a
                                       draft of the draft model, is right */
    double row_ns;                  /* time of a step of one row, from recent decoding steps; 0: not
                                       measured. Only with a draft model */
    int32_t n_timed;                /* steps on which row_ns rests, up to a limit */
    struct model_asks model_asks;
    struct adjusts draft_adjusts; /* for a sequence and its drafts so far, while its drafts are
                                     planned */
    struct step_plan *plan;       /* the plan that is being made */
    double row_s;               /* seconds that a row took in recent large steps; 0: not measured */
    uint64_t rate_in, rate_out; /* blocks moved in and out per 1,000 s, as measured; 0: not
                                   measured yet */
    uint64_t n_not_worth;       /* how often moving blocks out did not seem worth the time */
    int32_t *table;             /* [table_capacity] the block tables of the entry being planned */
    size_t table_capacity;
    uint32_t *allowed; /* [ceil(vocab_size / 32)] a bit for each token that may be drawn by the draw
                          being planned */
};

/* Returns the number of entries that a block table for n_tokens has. */
static inline int64_t scheduler_blocks_for(size_t n_tokens)
{
    return (int64_t)((n_tokens + PLAN_BLOCK_TOKENS - 1) / PLAN_BLOCK_TOKENS);
}

/* Returns the first block of a windowed table that the row at `position`, or a later one, can
 * see. */
static inline size_t scheduler_window_begin(const struct scheduler *s, size_t position)
{
    const size_t window = (size_t)s->o.tables.window;
    return position + 1 > window ? (position + 1 - window) / PLAN_BLOCK_TOKENS : 0;
}

/* Returns the number of blocks that can be taken: free ones, and cached ones without a holder. */
static inline int32_t replica_n_free(const struct replica *r)
{
    return r->pool.n_free + prefix_cache_n_idle(&r->cache);
}

/* True when tokens are sampled for r; false if only its prompt, the prompt's scores or a vector is
 * wanted. */
static inline bool scheduler_samples(const struct scheduler *s, const struct request *r)
{
    return !s->o.rules->score && r->ask->pool == POOL_NONE && r->ask->max_tokens > 0;
}

/* Returns the rows of the positions [pos0, end) that are to be stored: those that are wanted and
 * not stored yet; [begin, end) with begin >= end if there are none. After a preemption, rows that
 * are stored already are computed again. */
static inline struct request_span
scheduler_hidden_rows(const struct scheduler *s, const struct request *r, size_t pos0, size_t end)
{
    const struct request_span wanted = request_hidden_span(r, s->o.rules);
    const size_t from = wanted.begin > r->hidden.n_tokens ? wanted.begin : r->hidden.n_tokens;
    return (struct request_span){.begin = from > pos0 ? from : pos0,
                                 .end = end < wanted.end ? end : wanted.end};
}

/* Returns q's blocks at place b, one for each table. */
static inline int32_t *sequence_blocks_at(const struct scheduler *s, const struct sequence *q,
                                          size_t b)
{
    return q->blocks + b * (size_t)plan_tables_count(&s->o.tables);
}

/* scheduler_blocks.c; all Local. */

/* Makes room in q's tables for n_needed entries. Errors: STATUS_MEMORY. */
struct status scheduler_grow_table(const struct scheduler *s, struct sequence *q, size_t n_needed);

/* Returns the number of blocks, over all tables, that q lacks for entries up to n_full of its full
 * tables and up to n_window of the windowed ones. */
int64_t scheduler_blocks_lacking(const struct scheduler *s, const struct sequence *q, size_t n_full,
                                 size_t n_window);

/* Returns the most blocks, over all tables, that a sequence of n_tokens holds at a time. */
int64_t scheduler_blocks_held(const struct scheduler *s, size_t n_tokens);

/* scheduler_give_full gives up q's own blocks of the full tables at place b; scheduler_give_windows
 * those of the windowed tables, if q has any there. */
void scheduler_give_full(struct scheduler *s, struct sequence *q, size_t b);
void scheduler_give_windows(struct scheduler *s, struct sequence *q, size_t b);

/* Counts n of the blocks that q took from the pool as the cache's, no longer as q's. */
void scheduler_disown(struct scheduler *s, struct sequence *q, int32_t n);

/* Gives up the windowed blocks that no row from q->n_computed on can see. */
void scheduler_release_window(struct scheduler *s, struct sequence *q);

/* Gives up the windowed blocks before place `begin`, because q continues at that place. */
void scheduler_skip_windows(struct scheduler *s, struct sequence *q, size_t begin);

/* Gives up all of q's blocks. */
void scheduler_release_blocks(struct scheduler *s, struct sequence *q);

/* Lists the block tables of the plan's entry for q that ends before position `end`; borrowed until
 * the next call. Sets n_blocks and first_block of seq. Errors: STATUS_MEMORY. */
struct status scheduler_list_blocks(struct scheduler *s, const struct sequence *q, size_t end,
                                    struct plan_seq *seq, const int32_t **blocks);

/* scheduler.c. Local. Removes a running request from its group and returns its blocks; cached
 * blocks stay cached until others need them. */
void scheduler_leave(struct scheduler *s, struct sequence *q);

/* scheduler_blocks.c. Local. Takes blocks until q's full tables have n_full entries and the
 * windowed tables end at n_window; q's replica must have these blocks. Takes cached blocks without
 * a holder when no others are left. Errors: STATUS_MEMORY. */
struct status scheduler_take_blocks(struct scheduler *s, struct sequence *q, size_t n_full,
                                    size_t n_window);

/* scheduler.c. Local. Makes a running sequence wait again. */
void scheduler_wait_again(struct scheduler *s, struct sequence *q);

/* scheduler_emit.c. Local. Adds to the plan of step `step` the entries of the group's sequences in
 * replica i that have rows, each with its drafts. Errors: STATUS_MEMORY. */
struct status scheduler_emit(struct scheduler *s, int32_t i, int32_t group, uint64_t step,
                             struct step_plan *plan);

/* scheduler_tier.c; all Local, and all but scheduler_tier_grow do nothing if neither --kv-tier nor
 * --prefix-store is given. */

/* Notes that q, which is about to be preempted, will want its cached blocks again. */
void scheduler_tier_want(struct scheduler *s, struct sequence *q);

/* Adds to the plan copies to disk of the blocks that the replica's cache evicts next, if they are
 * wanted. */
void scheduler_tier_save(struct scheduler *s, int32_t replica);

/* For a starting q that has taken all it can from the cache: finds the next blocks on disk, takes
 * blocks for them, and adds reads to the plan. scheduler_tier_grow makes room for more reads.
 * Errors: STATUS_MEMORY. */
struct status scheduler_tier_fetch(struct scheduler *s, struct sequence *q);
struct status scheduler_tier_grow(struct replica *replica);

/* Called when q has taken its blocks [begin, end) from the cache, usually because another request
 * begins with them too. Adds to the plan writes to the prefix store of those that hold only prompt
 * tokens and are not there. Errors: STATUS_MEMORY. */
struct status scheduler_store_save(struct scheduler *s, struct sequence *q, size_t begin,
                                   size_t end);

/* Detaches the reads under way from q, which leaves its group. */
void scheduler_tier_leave(struct scheduler *s, struct sequence *q);

/* Takes what a replica's ranks report about their reads. Errors: STATUS_BUG, STATUS_MEMORY. */
struct status scheduler_tier_take(struct scheduler *s, const struct step_result *result);

/* Adds to the plan a request for a report to each replica with reads under way, unless the plan is
 * empty and a step is in flight. Errors: STATUS_MEMORY. */
struct status scheduler_tier_ask(struct scheduler *s);

/* scheduler_drafts.c. Local. Gives drafts, with their blocks, to the group's decoding requests in
 * all replicas, as far as the drafts are worth their rows. Called after all other rows of the step
 * have been given out. Errors: STATUS_MEMORY. */
struct status scheduler_give_drafts(struct scheduler *s, int32_t group);

/* scheduler_drafts.c. Local. True when the prediction layer is to guess in this step of the group,
 * whose rows are planned. */
bool scheduler_predicts(struct scheduler *s, int32_t group);

/* scheduler_drafts.c. Local. Updates the probabilities of q's drafts from the text and from the
 * draft model. first: the result of q's own entry; n_right: how many of its drafts were right.
 * Called before q takes the results' tokens. */
void scheduler_learn(struct scheduler *s, struct sequence *q, const struct result_seq *first,
                     int32_t n_right);

/* scheduler_drafts.c. Local. scheduler_drafts_usable returns the most drafts that q can use.
 * scheduler_drafts_placed returns how many of n drafts have room in blocks: those that q holds, and
 * the free ones of its replica beyond those that are kept (n_kept). */
int32_t scheduler_drafts_usable(const struct scheduler *s, const struct sequence *q);
int32_t scheduler_drafts_placed(const struct scheduler *s, const struct sequence *q, int32_t n);

/* scheduler_drafts.c. Local. Makes room for q's drafts. Errors: STATUS_MEMORY. */
struct status scheduler_drafts_room(struct sequence *q);

/* scheduler_drafts.c. Local. Returns how many drafts the step being planned has room for. */
int32_t scheduler_drafts_left(const struct scheduler *s, const struct microbatch *m);

/* scheduler_model.c. Local. Lets the draft model propose drafts for the group's sequences that may
 * get some, if that is worth its time. Sets their q->drafts and q->n_proposed, and adds the drafts
 * to *step. Errors: STATUS_MEMORY, the draft model's. */
struct status scheduler_ask_model(struct scheduler *s, int32_t group, struct drafting_step *step);

/* scheduler_model.c. Local. Updates row_ns with the time of m's step, whose result has just come,
 * if a draft model's cost is weighed and the step only decoded, in at most DRAFTING_ROWS rows. */
void scheduler_time_step(struct scheduler *s, const struct replica *replica,
                         const struct microbatch *m);

/* scheduler_model.c. Local. Updates the probabilities of q's drafts from the draft model; as
 * scheduler_learn, which calls it. */
void scheduler_learn_model(struct scheduler *s, struct sequence *q, const struct result_seq *first,
                           int32_t n_right);

/* scheduler_drafts.c. Local. Updates the probability of the prediction layer's guesses by comparing
 * the last guess with `token`, before q takes it; token -1: none was sampled. */
void scheduler_learn_guess(struct scheduler *s, struct sequence *q, int32_t token);

/* How many of a sequence's first blocks a replica has. */
struct prefix_match {
    size_t n_blocks;  /* in its cache, with all windowed blocks that the next row sees */
    int64_t n_shared; /* blocks over all tables that q would hold with others */
    int64_t n_idle;   /* how many of n_shared have no holder */
    size_t n_coming;  /* n_blocks plus the next blocks that a running request will compute */
};

/* scheduler_prefix.c; all Local. When the prefix cache is off, no keys are made, nothing matches
 * and nothing enters the cache. */

/* Adds to the statistics the prompt tokens up to q->n_computed that q has without computing them.
 */
void scheduler_count_jump(struct scheduler *s, struct sequence *q);

/* Returns how many of q's first blocks it may take from others. */
size_t scheduler_prefix_sharable(const struct scheduler *s, const struct sequence *q);

/* Makes the keys of all full blocks of q's tokens; call it before the functions below. Errors:
 * STATUS_MEMORY. */
struct status scheduler_prefix_keys(const struct scheduler *s, struct sequence *q);

/* Returns how many of waiting q's first blocks the replica has. */
struct prefix_match scheduler_prefix_match(const struct scheduler *s, const struct replica *replica,
                                           const struct sequence *q);

/* True when an older running request will compute the next block of running q, so waiting is
 * cheaper than computing it. The oldest request never waits. */
bool scheduler_prefix_is_coming(const struct scheduler *s, const struct sequence *q);

/* Makes q continue after the cached blocks that come next; q's own blocks in their places return to
 * the pool. q is not in flight and has room in its table. Errors: STATUS_MEMORY. */
struct status scheduler_prefix_adopt(struct scheduler *s, struct sequence *q);

/* Enters the full blocks that running q has computed into the cache, or exchanges them for equal
 * ones in the cache. Called only after a result without a bad row, or when all of q's reads from
 * disk have succeeded. Errors: STATUS_MEMORY. */
struct status scheduler_prefix_publish(struct scheduler *s, struct sequence *q);

#endif

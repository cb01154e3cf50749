/* The engine's state, shared by engine.c (messages, steps), engine_batch.c (a plan's sequences and
 * their results) and engine_moves.c (KV blocks on disk). Private to this room. */
#ifndef SHOAL_ENGINE_ENGINE_PRIVATE_H
#define SHOAL_ENGINE_ENGINE_PRIVATE_H

#include "engine/engine.h"
#include "parallel/layout/kv_groups.h"
#include "sample/vocab_parallel.h"

/* Hidden rows of three steps: one being received, one computed, one still being sent. */
enum { N_HIDDEN = 3, N_RESULTS = 3 };

struct outgoing_plan {
    struct plan_message message;
    struct comm_request *sends; /* [pp] */
};

struct engine {
    struct stage_options o;
    struct layout_place place;
    bool is_first, is_last, is_lead, is_stage_root;
    struct stage *stage;
    struct vocab_parallel *vocab; /* last stage */

    void *hidden[N_HIDDEN]; /* hidden rows in the memory of the stage's kernels */
    void *wire[N_HIDDEN]; /* copies in host memory, for messages; without a device the same pointers
                           */
    int32_t *counters;    /* last stage: [2 * max_rows] bad and dropped, host memory */
    struct comm_request received[N_HIDDEN], sent[N_HIDDEN];
    uint64_t n_runs; /* steps run so far; selects the hidden buffer */

    struct step_plan plan;          /* followers: the plan being run */
    struct plan_message incoming;   /* plan or result received */
    struct plan_message shared;     /* the plan as the stage's ranks share it: length, then words */
    struct outgoing_plan *outgoing; /* lead: [pp + 1] */
    uint64_t n_submitted;

    struct step_result result; /* last stage */
    struct plan_message result_messages[N_RESULTS];
    struct comm_request result_sends[N_RESULTS];

    /* [max_rows] each: the step's runs of rows, and what the last stage computes of its rows */
    struct seq_rows *seqs; /* [max_rows] for each block table */
    struct kv_groups groups;
    int32_t *windowed; /* [windowed_capacity] the windowed tables of the step's runs, owned */
    size_t windowed_capacity;
    size_t *rows;
    struct vocab_want *wants;
    struct vocab_got *got;
    /* the same of a prediction layer's guesses; NULL: the model has none */
    int32_t *next; /* the token after each row */
    size_t *guess_rows;
    struct vocab_want *guess_wants;
    struct vocab_got *guesses;
    size_t n_guesses;      /* of the step; they belong to its draws in order */
    float *normed;         /* [max_rows, D] */
    float *scores;         /* [max_rows] */
    float *pooled;         /* [max_rows, D] pooled rows in host memory; NULL before the first ones,
                              and without a device */
    struct plan_top *tops; /* of the wants, one after another; grows */
    size_t tops_capacity;

    /* blocks on disk: NULL and 0 without a tier */
    struct kv_tier *tier;
    struct kv_store *store;
    uint64_t n_reads; /* reads ordered so far */
    uint64_t *moved;  /* [moved_capacity] the report that is being sent */
    size_t moved_capacity;
    struct comm_request moved_send;
    bool *asked;           /* lead: [pp + 1, dp] which replicas report, for each plan in flight */
    uint64_t *n_collected; /* lead: [dp] results so far */
    uint64_t *collected;   /* lead: [collected_capacity] a report received */
    size_t collected_capacity;

    uint64_t step;           /* of the last plan */
    uint64_t n_before_steps; /* collectives before the first step */
    struct engine_stats stats;
};

/* This replica's sequences of a plan. */
struct batch {
    const struct plan_seq *seqs; /* [n_seqs] */
    size_t n_seqs, n_rows;
    size_t n_runs;         /* runs in e->seqs: consecutive entries of one sequence make one run */
    const int32_t *blocks; /* of all sequences */
    const struct plan_move *ask;       /* NULL: no report is wanted */
    const int32_t *tokens;             /* [n_rows] */
    const struct plan_adjust *adjusts; /* sequence after sequence */
    const uint32_t *allowed;           /* the same */
};

/* engine_batch.c; all Local. */

/* Takes this replica's part of a plan, borrowed from it, and writes its runs of rows to e->seqs.
 * Errors: STATUS_BUG when the plan does not fit the engine's rows or the vocabulary. */
struct status engine_open_batch(struct engine *e, const struct step_plan *plan, struct batch *out);

/* engine_moves.c; Local where not said otherwise. Opens the tier, if there is one. Errors:
 * kv_tier_create's, kv_store_create's. */
struct status engine_create_tier(struct engine *e, const struct engine_tier *o);

/* Gives the plan's orders to the tier, and waits for blocks of the batch that are on their way.
 * Sets b->ask. Errors: STATUS_BUG, STATUS_MEMORY. */
struct status engine_run_moves(struct engine *e, const struct step_plan *plan, struct batch *b);

/* **Collective (TP)** where b->ask is set. Reports to the lead. Errors: STATUS_MEMORY. */
struct status engine_report_moves(struct engine *e, const struct batch *b);

/* Lead. Remembers which replicas a plan asks for a report; and collects the reports of a replica's
 * ranks for its oldest plan. Errors: STATUS_BUG, STATUS_MEMORY. */
void engine_note_asked(struct engine *e, const struct step_plan *plan);
struct status engine_collect_moved(struct engine *e, int32_t replica, struct step_result *out);

/* Last stage. Lists the rows that need logits: e->rows and e->wants [*n]. Errors: STATUS_MEMORY. */
struct status engine_list_wants(struct engine *e, const struct batch *b, size_t *n);

/* Last stage. Lists the token after each row, e->next, from the plan and from e->got [n_wants]; and
 * the rows that drew a token, e->guess_rows and e->guess_wants [e->n_guesses]. */
void engine_list_guesses(struct engine *e, const struct batch *b, size_t n_wants);

/* Last stage, first tp rank. Adds one result per sequence to e->result, from e->counters of the
 * rows and from e->got [n_wants]. Errors: STATUS_MEMORY. */
struct status engine_write_result(struct engine *e, const struct batch *b, size_t n_wants);

/* Last stage, first tp rank, after engine_write_result. Adds the sums of the rows that PLAN_POOL
 * asks for, and counts values beyond the grid as bad rows. Overwrites e->rows and e->normed. The
 * sums are of integers, so no chunk and no order changes them. Errors: STATUS_MEMORY, the
 * device's. */
struct status engine_write_pools(struct engine *e, const struct batch *b, const struct hidden *h);

#endif

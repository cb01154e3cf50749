/* The engine's state, shared by engine.c (messages, steps), engine_batch.c (a plan's sequences and
 * their results), engine_moves.c (KV blocks on disk) and engine_hidden.c (rows that are saved).
 * Private to this room. */
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

/* Memory for the guesses of a prediction layer in a step. rows, wants and got are as in struct
 * engine. [max_rows] each; NULL: the model has no prediction layer. */
struct engine_guesses {
    int32_t *next; /* the token after each row */
    size_t *rows;
    struct vocab_want *wants;
    struct vocab_got *got;
    size_t n; /* of the step, in the order of its draws */
};

/* KV blocks that move to disk and back; NULL and 0 without a tier. */
struct engine_moves {
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
};

/* The layers of a stage that are saved. */
struct hidden_part {
    uint32_t n, entries[HIDDEN_LAYERS_MAX]; /* [n] indices in o.hidden->at */
};

struct hidden_slot {
    char *bytes;
    size_t capacity;
    struct comm_request sent;
};

/* Rows that are saved; NULL and 0: none. */
struct engine_hidden {
    size_t layer_bytes;        /* of one row of one layer */
    struct hidden_slot *slots; /* [n_slots] messages of this rank */
    size_t n_slots;
    size_t *rows;              /* [max_rows] rows of the step that are wanted */
    struct hidden_part *parts; /* [pp] */
    float *floats;             /* [max_rows, D] rows of a layer in host memory; with a device */
    char *received;            /* lead: a message */
    size_t received_capacity;
};

/* Hidden rows and their counters on their way from stage to stage. */
struct engine_pipe {
    void *hidden[N_HIDDEN]; /* in the memory of the stage's kernels */
    void *wire[N_HIDDEN]; /* copies in host memory, for messages; without a device the same pointers
                           */
    int32_t *counters;    /* last stage: [2 * max_rows] bad and dropped, host memory */
    struct comm_request received[N_HIDDEN], sent[N_HIDDEN];
};

/* The results of steps on their way to the lead. */
struct engine_results {
    struct step_result own;
    struct plan_message messages[N_RESULTS];
    struct comm_request sends[N_RESULTS];
};

struct engine {
    struct stage_options o;
    struct layout_place place;
    bool is_first, is_last, is_lead, is_stage_root;
    struct stage *stage;
    struct vocab_parallel *vocab; /* last stage */

    struct engine_pipe pipe;
    uint64_t n_runs; /* steps run so far; selects the buffers of pipe, result and saved */

    struct step_plan plan;          /* followers: the plan being run */
    struct plan_message incoming;   /* plan or result received */
    struct plan_message shared;     /* the plan as the stage's ranks share it: length, then words */
    struct outgoing_plan *outgoing; /* lead: [pp + 1] */
    uint64_t n_submitted;

    struct engine_results result; /* last stage */

    /* the step's runs of rows, and what the last stage computes from its rows; [max_rows] where
     * no other size is given */
    struct seq_rows *seqs; /* [max_rows] for each block table */
    uint32_t *adapters;    /* of each run, as in plan_seq */
    int32_t *second_from;  /* likewise */
    struct kv_groups groups;
    int32_t *windowed; /* [windowed_capacity] the windowed tables of the step's runs, owned */
    size_t windowed_capacity;
    size_t *rows;
    struct vocab_want *wants;
    struct vocab_got *got;
    struct engine_guesses guess;
    float *normed;         /* [max_rows, D] */
    float *scores;         /* [max_rows] */
    float *pooled;         /* [max_rows, D] normed rows in host memory, to be pooled or saved; NULL
                              before the first ones, and without a device */
    struct plan_top *tops; /* of the wants, one after another; grows */
    size_t tops_capacity;

    struct engine_moves moves;
    struct engine_hidden saved;

    uint64_t step;           /* of the last plan */
    uint64_t n_before_steps; /* collectives before the first step */
    struct engine_stats stats;
};

/* This replica's sequences of a plan. */
struct batch {
    const struct plan_seq *seqs; /* [n_seqs] */
    size_t n_seqs, n_rows;
    size_t n_runs;         /* runs in e->seqs: consecutive entries of one sequence make one run */
    const int32_t *blocks; /* of these sequences */
    const struct plan_move *ask;       /* NULL: no report is wanted */
    const int32_t *tokens;             /* [n_rows] */
    const struct plan_adjust *adjusts; /* sequence after sequence */
    const uint32_t *allowed; /* bit masks of tokens that may be drawn, sequence after sequence */
};

/* engine_batch.c; all Local. */

/* Sets *out to this replica's part of a plan, borrowed from it, and writes its runs of rows to
 * e->seqs. Errors: STATUS_BUG when the plan does not fit the engine; STATUS_MEMORY. */
struct status engine_open_batch(struct engine *e, const struct step_plan *plan, struct batch *out);

/* engine_moves.c; Local where not said otherwise. Opens the prefix store and the tier that o asks
 * for. Errors: kv_tier_create's, kv_store_create's. */
struct status engine_create_tier(struct engine *e, const struct engine_tier *o);

/* Gives the plan's orders for this replica to the tier, and waits for blocks of the batch that are
 * on their way. Sets b->ask if the plan asks for a report. Errors: STATUS_BUG, STATUS_MEMORY. */
struct status engine_run_moves(struct engine *e, const struct step_plan *plan, struct batch *b);

/* **Collective (TP)** where b->ask is set. Reports to the lead. Errors: STATUS_MEMORY. */
struct status engine_report_moves(struct engine *e, const struct batch *b);

/* Lead. engine_note_asked remembers which replicas the plan to be submitted asks for a report.
 * engine_collect_moved adds to *out the reports of a replica's stages on its oldest plan not yet
 * collected, if that asked for one. Errors: STATUS_BUG, STATUS_MEMORY. */
void engine_note_asked(struct engine *e, const struct step_plan *plan);
struct status engine_collect_moved(struct engine *e, int32_t replica, struct step_result *out);

/* engine_hidden.c. Local. Errors: STATUS_MEMORY. */
struct status engine_create_hidden(struct engine *e);
void engine_destroy_hidden(struct engine *e);

/* Local. Sends to the lead the rows of this stage's saved layers that the batch asks for. Must come
 * after the stage's layers, and on the last stage after the result. Errors: STATUS_MEMORY, the
 * device's. */
struct status engine_send_hidden(struct engine *e, const struct batch *b, const struct hidden *h);

/* Lead. Receives the rows that belong to *out, a replica's result, from its stages. Errors:
 * STATUS_BUG, STATUS_MEMORY. */
struct status engine_collect_hidden(struct engine *e, int32_t replica, struct step_result *out);

/* Last stage. Sets *rows to [n, D], the hidden states after the final norm of the rows in list [n],
 * in host memory; borrowed until the next call. Overwrites e->normed. Errors: STATUS_MEMORY, the
 * device's. */
struct status engine_normed_rows(struct engine *e, const struct hidden *h, const size_t *list,
                                 size_t n, const float **rows);

/* Last stage. Lists the rows that need logits: e->rows and e->wants [*n]. Errors: STATUS_MEMORY. */
struct status engine_list_wants(struct engine *e, const struct batch *b, size_t *n);

/* Last stage. Lists the token after each row, e->guess.next (0: unknown), from the plan and from
 * e->got [n_wants]; and the rows that drew a token, e->guess.rows and e->guess.wants [e->guess.n].
 */
void engine_list_guesses(struct engine *e, const struct batch *b, size_t n_wants);

/* Last stage, first tp rank. Adds one result per sequence to e->result.own, from e->pipe.counters
 * of the rows and from e->got [n_wants]. Errors: STATUS_MEMORY. */
struct status engine_write_result(struct engine *e, const struct batch *b, size_t n_wants);

/* Last stage, first tp rank, after engine_write_result. Adds the sums of the rows that PLAN_POOL
 * asks for, and adds the number of values beyond the grid to n_bad. Overwrites e->rows and
 * e->normed. The sums are of integers, so neither chunks nor order change them. Errors:
 * STATUS_MEMORY, the device's. */
struct status engine_write_pools(struct engine *e, const struct batch *b, const struct hidden *h);

#endif

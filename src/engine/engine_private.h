/* The engine from inside, shared by engine.c (messages, steps) and engine_batch.c (a plan's
 * sequences and their results); not for others. */
#ifndef SHOAL_ENGINE_ENGINE_PRIVATE_H
#define SHOAL_ENGINE_ENGINE_PRIVATE_H

#include "engine/engine.h"
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

    void *hidden[N_HIDDEN]; /* where the stage works */
    void *wire[N_HIDDEN];   /* the same in host memory, for messages; without a device it is it */
    int32_t *counters;      /* last stage: [2 * max_rows] bad and dropped, host memory */
    struct comm_request received[N_HIDDEN], sent[N_HIDDEN];
    uint64_t n_runs; /* steps run so far: names the hidden buffer */

    struct step_plan plan;          /* followers: the plan being run */
    struct plan_message incoming;   /* plan or result received */
    struct outgoing_plan *outgoing; /* lead: [pp + 1] */
    uint64_t n_submitted;

    struct step_result result; /* last stage */
    struct plan_message result_messages[N_RESULTS];
    struct comm_request result_sends[N_RESULTS];

    /* [max_rows] each: the step's runs of rows and what the last stage wants of its rows */
    struct seq_rows *seqs;
    size_t *rows;
    struct vocab_want *wants;
    struct vocab_got *got;
    float *normed;         /* [max_rows, D] */
    float *scores;         /* [max_rows] */
    struct plan_top *tops; /* of the wants, one after another; grows */
    size_t tops_capacity;

    uint64_t step; /* the last plan's */
    struct engine_stats stats;
};

/* This replica's sequences of a plan. */
struct batch {
    const struct plan_seq *seqs; /* [n_seqs] */
    size_t n_seqs, n_rows;
    size_t n_runs; /* of e->seqs: entries that are one sequence's rows behind each other are one */
    const int32_t *tokens;             /* [n_rows] */
    const struct plan_adjust *adjusts; /* sequence after sequence */
    const uint32_t *allowed;           /* the same */
};

/* engine_batch.c; all Local. */

/* This replica's part of a plan, borrowed from it; e->seqs gets where its rows stand. Errors:
 * STATUS_BUG when it does not fit the engine's rows or the vocabulary. */
struct status engine_open_batch(struct engine *e, const struct step_plan *plan, struct batch *out);

/* Last stage. Lists the rows whose logits somebody wants: e->rows and e->wants [*n]. Errors:
 * STATUS_MEMORY. */
struct status engine_list_wants(struct engine *e, const struct batch *b, size_t *n);

/* Last stage, first tp rank. Adds one result for each sequence to e->result: e->counters of the
 * n_rows rows, and what e->got [n_wants] answers. Errors: STATUS_MEMORY. */
struct status engine_write_result(struct engine *e, const struct batch *b, size_t n_wants);

#endif

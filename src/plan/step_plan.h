/* The interface between scheduling and computing. In each step the lead sends all ranks a
 * step_plan, and the last pipeline stage answers with a step_result. Both are flat integers and
 * floats without pointers to requests or weights, and each packs into one int32 message (without
 * step_result's `moved` and `hidden`). Ranks keep nothing between steps but KV blocks, recurrent
 * states and the places of experts, so a plan carries tokens, positions, block tables and sampling
 * values in full. */
#ifndef SHOAL_PLAN_STEP_PLAN_H
#define SHOAL_PLAN_STEP_PLAN_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum plan_kind {
    PLAN_RUN,
    PLAN_STOP,
    PLAN_MOVE_EXPERTS /* no rows and no result: the ranks sum the experts' load, and move experts
                         with --expert-replan (parallel/layout/expert_replan.h) */
};

/* The block tables of a sequence. Most models have one. Where layers have a window, each group of
 * layers may have a table of its own (parallel/layout/kv_groups.h), so that blocks that have left
 * the window are freed; all ids are those of one pool. */
struct plan_tables {
    int32_t n_full;     /* tables with a block for every position */
    int32_t n_windowed; /* tables with blocks only for the positions that a row can still see */
    int32_t window;     /* positions that a row sees in the windowed layers */
};

enum { PLAN_TABLES_MAX = 8 };

static inline int32_t plan_tables_count(const struct plan_tables *t)
{
    return t->n_full + t->n_windowed;
}

/* Orders to move KV blocks between a replica's pool and its ranks' files (attention/kv_tier.h).
 * Ranks start them in the plan's order, before they compute the step's rows. */
enum plan_move_kind {
    PLAN_MOVE_OUT, /* copy the block to the slot */
    PLAN_MOVE_IN,  /* read the slot into the block, during this and later steps */
    PLAN_MOVE_PUT, /* copy the block to the prefix store, under its key */
    PLAN_MOVE_GET, /* read the block from the prefix store, as PLAN_MOVE_IN does */
    PLAN_MOVE_ASK  /* after the step, report the replica's reads from read number
                      plan_move_from on; if `block` is 1, wait until all of them have ended */
};

struct plan_move {
    int32_t kind, replica;
    int32_t block, slot;
    uint32_t key[4]; /* in the prefix store, low word first; of PLAN_MOVE_ASK: a read number */
};

/* Local. Returns the number of the first read that a PLAN_MOVE_ASK asks for. */
static inline uint64_t plan_move_from(const struct plan_move *m)
{
    return (uint64_t)m->key[1] << 32 | m->key[0];
}

/* The results that the last stage computes from a sequence's rows: bits of plan_seq.want. */
enum plan_want {
    PLAN_SAMPLE = 1,  /* sample one token from the last row */
    PLAN_SCORE = 2,   /* log-probability of each row's next token */
    PLAN_LOGITS = 4,  /* send every row's logits back */
    PLAN_LOGPROB = 8, /* log-probabilities of the sampled token and of the n_logprobs most likely */
    PLAN_POOL = 16,  /* the sum of the hidden rows [pool_from, pool_from + n_pool) after the model's
                        last norm */
    PLAN_HIDDEN = 32 /* the rows [hidden_from, hidden_from + n_hidden) of the saved layers
                        (arch/hidden_layers.h) */
};

enum {
    PLAN_BLOCK_TOKENS =
        64, /* B, tokens in a KV block; equal to KV_BLOCK_TOKENS (the engine asserts it) */
    PLAN_TOPS_MAX = 256,      /* the most likely tokens that can be asked for per row */
    PLAN_POOL_BITS = 28,      /* pooled rows are added as integers in units of 2^-28 */
    PLAN_POOL_MOST = 1 << 14, /* the largest magnitude of a pooled value; larger ones are bad */
};

/* Penalties on tokens that occurred before. 1, 0 and 0 change nothing. */
struct plan_penalties {
    /* above 0; for tokens of the prompt and the answer: divides a positive logit, multiplies a
     * negative one */
    float repetition;
    float frequency; /* subtracted from a token's logit once for each time that it was sampled */
    float presence;  /* subtracted once from the logit of a token that was sampled */
};

/* bits of plan_adjust.flags */
enum { PLAN_IN_PROMPT = 1, PLAN_FORBIDDEN = 2 };

/* A change of one token's logit before a token is sampled. */
struct plan_adjust {
    int32_t id;
    int32_t n_sampled; /* how often it has been sampled so far */
    uint32_t flags;
    float bias; /* added before the penalties */
};

/* One sequence's part of a step. */
struct plan_seq {
    int32_t id;          /* the lead's own number, returned in the result */
    int32_t n_rows;      /* tokens computed in this step */
    int32_t pos0;        /* absolute position of the first of these tokens */
    int32_t n_blocks;    /* entries of its block tables: with n = ceil((pos0 + n_rows) / B), first n
                            of each full table, then n - first_block of each windowed one */
    int32_t first_block; /* the block of the sequence that is the first entry of its windowed
                            tables; 0 if there are none */
    int32_t slot;        /* of its recurrent states; 0 if the model has none */
    uint32_t adapter;    /* 1 + the number of its adapter; 0: none */
    int32_t want;        /* plan_want bits */
    int32_t next_token;  /* the token after the last row; -1: none, or yet to be sampled */
    int32_t top_k;       /* 0: off */
    int32_t n_logprobs;  /* PLAN_LOGPROB: 0 to PLAN_TOPS_MAX */
    int32_t
        n_prompt_logprobs; /* PLAN_SCORE: 0 to PLAN_TOPS_MAX, for every row that has a next token */
    int32_t n_adjusts;     /* PLAN_SAMPLE: entries of `adjusts`, ids ascending */
    int32_t n_allowed_words;   /* PLAN_SAMPLE: words of `allowed`; 0: every token may be drawn */
    int32_t second_from;       /* encoders: the first row of type 1; 0: all have type 0 */
    int32_t pool_from, n_pool; /* PLAN_POOL: rows of this entry, n_pool above 0 */
    int32_t hidden_from, n_hidden; /* PLAN_HIDDEN: rows of this entry; otherwise 0 */
    struct plan_penalties penalties;
    float temperature; /* 0: greedy */
    float top_p, min_p;
    uint32_t key[2]; /* Philox key, of the request's seed or custom_id */
    uint32_t choice; /* counter: (choice, position of the sampled token) */
};

/* The arrays are owned and grow; the caller calls init and fini. Replica r has the sequences
 * [replica_begin[r], replica_begin[r + 1]); tokens, blocks, adjusts and allowed are in the order of
 * the sequences. */
struct step_plan {
    enum plan_kind kind;
    bool predicts; /* the prediction layer guesses the token after each sampled one */
    uint64_t step;
    int32_t n_replicas;
    int32_t *replica_begin;      /* [n_replicas + 1] */
    struct plan_seq *seqs;       /* [n_seqs] */
    int32_t *tokens;             /* [n_tokens] */
    int32_t *blocks;             /* [n_blocks] */
    struct plan_adjust *adjusts; /* [n_adjusts] */
    uint32_t *allowed;       /* [n_allowed]; in a sequence's words, bit i: token i may be drawn */
    struct plan_move *moves; /* [n_moves] */
    size_t n_seqs, n_tokens, n_blocks, n_adjusts, n_allowed, n_moves;
    size_t moves_capacity;
    size_t seqs_capacity, tokens_capacity, blocks_capacity, adjusts_capacity; /* elements */
    size_t allowed_capacity;
};

/* Local. init makes an empty plan for n_replicas; clear empties a plan again and keeps its memory.
 * Errors: STATUS_MEMORY. */
struct status step_plan_init(struct step_plan *p, int32_t n_replicas);
void step_plan_fini(struct step_plan *p);
void step_plan_clear(struct step_plan *p, enum plan_kind kind, uint64_t step);

/* The arrays of one sequence, whose lengths are in plan_seq. Borrowed; `adjusts` and `allowed` may
 * be NULL if their length is 0. */
struct plan_lists {
    const int32_t *tokens;             /* [n_rows] */
    const int32_t *blocks;             /* [n_blocks] */
    const struct plan_adjust *adjusts; /* [n_adjusts] */
    const uint32_t *allowed;           /* [n_allowed_words] */
};

/* Local. Appends a sequence to replica `replica` and copies the lists. Fill the replicas in
 * ascending order. Errors: STATUS_MEMORY. */
struct status step_plan_add(struct step_plan *p, int32_t replica, const struct plan_seq *seq,
                            const struct plan_lists *lists);

/* Local. Appends an order. Errors: STATUS_MEMORY. */
struct status step_plan_add_move(struct step_plan *p, const struct plan_move *move);

/* Local. Ends replica `replica`; must be called for each, in order, after its sequences. */
void step_plan_end_replica(struct step_plan *p, int32_t replica);

/* One sequence's result. */
struct result_seq {
    int32_t id;
    int32_t token; /* sampled; -1 if none was asked for, or the row's logits were bad */
    int32_t draft; /* a guess of the token after it; -1: none */
    float logprob; /* PLAN_LOGPROB: natural log of the sampled token's probability, from the
                      unchanged logits */
    int32_t n_bad; /* sums beyond the integer grid and values that are not finite; one is enough for
                      an error row */
    int32_t n_dropped; /* expert choices dropped by a capacity factor */
    int32_t n_scores;  /* entries in `scores` (PLAN_SCORE), one per row that has a next token */
    int32_t n_logits;  /* rows in `logits` (PLAN_LOGITS) */
    int32_t n_tops;    /* entries in `tops`: n_prompt_logprobs for each score, then n_logprobs */
    int32_t n_pools;   /* rows in `pools`: 1 with PLAN_POOL */
    int32_t n_hidden;  /* rows in `hidden`: the plan's n_hidden */
};

/* One of a row's most likely tokens. They are ordered by logit, descending, then by id,
 * ascending. */
struct plan_top {
    int32_t id;
    float logprob;
};

/* The report of a replica's ranks on PLAN_MOVE_ASK. The minimum of each number over the ranks
 * counts. After these numbers the report has one number for each read from read number
 * moved[PLAN_MOVED_FROM] on: 0 if the read has failed, else 1. */
enum plan_moved {
    PLAN_MOVED_FROM,
    PLAN_MOVED_N_ENDED,
    PLAN_MOVED_RATE_IN,
    PLAN_MOVED_RATE_OUT,
    PLAN_MOVED_READS
};

struct step_result {
    uint64_t *moved; /* [n_moved], owned; rates in blocks per 1000 s, UINT64_MAX: not measured. Not
                        packed: the engine joins the reports of all stages. n_moved 0: no report was
                        asked for */
    size_t n_moved, moved_capacity;
    char *hidden; /* [n_hidden_rows, hidden_row_bytes], owned; sequence after sequence. Not packed
                     either: stages send these rows themselves */
    size_t n_hidden_rows, hidden_row_bytes;
    size_t hidden_capacity; /* bytes */
    uint64_t step;
    int32_t replica;
    int32_t vocab;           /* V; width of a logits row */
    int32_t width;           /* D; width of a pools row */
    struct result_seq *seqs; /* [n_seqs], owned; in the plan's order */
    float *scores;           /* [n_scores], owned; sequence after sequence */
    float *logits;           /* [n_logit_rows, V], owned */
    struct plan_top *tops;   /* [n_tops], owned; sequence after sequence */
    int64_t *pools;          /* [n_pools, D], owned; sums in units of 2^-PLAN_POOL_BITS */
    size_t n_seqs, n_scores, n_logit_rows, n_tops, n_pools;
    size_t seqs_capacity, scores_capacity, logits_capacity, tops_capacity; /* elements */
    size_t pools_capacity;
};

/* Local. init makes a result without sequences; clear empties it, sets width to 0 and keeps its
 * memory; fini frees it. */
void step_result_init(struct step_result *r);
void step_result_fini(struct step_result *r);
void step_result_clear(struct step_result *r, uint64_t step, int32_t replica, int32_t vocab);

/* Local. Append copies of a sequence's result, and of its scores [n], tops [n] and logits [n_rows,
 * V]; its result_seq says how many of each. Errors: STATUS_MEMORY. */
struct status step_result_add(struct step_result *r, const struct result_seq *seq);
struct status step_result_add_scores(struct step_result *r, const float *scores, size_t n);
struct status step_result_add_tops(struct step_result *r, const struct plan_top *tops, size_t n);
struct status step_result_add_logits(struct step_result *r, const float *rows, size_t n_rows);

/* Local. Appends a row of zeros to `pools`, for the caller to add to: *row [r->width], borrowed
 * until the next one. Errors: STATUS_MEMORY. */
struct status step_result_add_pool(struct step_result *r, int64_t **row);

/* Local. Takes a report, moved [n], of some ranks of a replica, with the same n for all. r->moved
 * keeps the minimum of each number over the reports so far. Errors: STATUS_MEMORY. */
struct status step_result_take_moved(struct step_result *r, const uint64_t *moved, size_t n);

/* Local. Sets n_hidden_rows and hidden_row_bytes and makes room for these rows, whose content is
 * undefined. Errors: STATUS_MEMORY. */
struct status step_result_place_hidden(struct step_result *r, size_t n_rows, size_t row_bytes);

/* A message buffer, empty when it is all zeros. */
struct plan_message {
    int32_t *words; /* [n_words] of capacity, owned */
    size_t n_words, capacity;
};

/* Local. fini frees the buffer. reserve makes room for n_words, without changing m->n_words; words
 * beyond m->n_words may be lost. Errors: STATUS_MEMORY. */
void plan_message_fini(struct plan_message *m);
struct status plan_message_reserve(struct plan_message *m, size_t n_words);

/* Local. Pack into m (which grows), and unpack from n_words words; unpack checks the arrays'
 * counts against the message's length. Errors: STATUS_BUG when a message does not parse,
 * STATUS_MEMORY. */
struct status step_plan_pack(const struct step_plan *p, struct plan_message *m);
struct status step_plan_unpack(const int32_t *words, size_t n_words, struct step_plan *p);
struct status step_result_pack(const struct step_result *r, struct plan_message *m);
struct status step_result_unpack(const int32_t *words, size_t n_words, struct step_result *r);

#endif

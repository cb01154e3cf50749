/* The state of a MoE block, for the files of src/moe alone. */
#ifndef SHOAL_MOE_MOE_PRIVATE_H
#define SHOAL_MOE_MOE_PRIVATE_H

#include "moe/balance.h"
#include "moe/moe.h"
#include "parallel/comm/comm_mail.h"
#include "parallel/wire/exchange_memory.h"
#include "parallel/wire/result_block.h"
#include "parallel/wire/token_block.h"
#include "weights/expert_stream.h"

/* An array that grows to the size that the largest step needs, and is freed at the end only. */
struct grown {
    void *data;
    size_t n_bytes;
    bool on_device, is_mapped;
};

enum buffer {
    BUF_LOGITS,   /* [n, E and zero-computation experts] router logits of the tokens that this rank
                     routes */
    BUF_IDS,      /* [n, K] chosen experts, ascending */
    BUF_LIST_IDS, /* the same in host memory; -1: dropped, or a zero-computation expert */
    BUF_WEIGHTS,  /* [n, K] */
    BUF_SLOT,     /* [n, K] the number of each choice in the order of experts, then tokens */
    BUF_SEND,     /* [rows out, D] rows to send, in the order of their experts */
    BUF_RECV,     /* [rows in, D] by source, then expert */
    BUF_X,        /* [rows in, D] by expert, then source */
    BUF_GATE,
    BUF_UP,          /* [rows in, F], as is BUF_GATE */
    BUF_CODES,       /* [rows in, D] quantized, for quantized experts */
    BUF_INNER_CODES, /* [rows in, F] likewise */
    BUF_SUMS,        /* [rows in, D + 1] */
    BUF_Y,           /* [rows in, D] */
    BUF_BAD,         /* [rows in] */
    BUF_BACK,        /* [rows in, D + 1] by source, then expert; the last word is the counter */
    BUF_RESULT,      /* [rows out, D + 1] in the send order */
    BUF_OUT,         /* [T, D] the block's output */
    BUF_MARKS,       /* [T, 2] bad and dropped of each token */
    BUF_MOVE,        /* [rows in, 2] a permutation, or the row of each choice; this array and all
                        below are in host memory */
    BUF_ALL_LOGITS,
    BUF_ALL_IDS,
    BUF_ALL_WEIGHTS, /* this and the two above: of the whole microbatch, for a capacity factor */
    BUF_KEPT_IDS,
    BUF_KEPT_WEIGHTS,
    BUF_LOAD,
    BUF_DROPPED, /* this and the three above: struct capacity_work */
    BUF_HOST_LOGITS,
    BUF_HOST_WEIGHTS, /* copies of a device's arrays, for a capacity factor */
    BUF_MARK_LIST,    /* [n, 2] */
    BUF_TOKEN_CODES,  /* [T, D] quantized, before they are copied to the experts' rows */
    BUF_CHOICES,      /* [T, 2 K] chosen experts and their weights' bits, of all tokens */
    BUF_ROW_OF,       /* this and the four below: arrays of one call of exchange_between_hosts */
    BUF_HOST_SLOTS,
    BUF_ROW_WEIGHTS,
    BUF_GROUP_SUMS,
    BUF_PIECES,
    BUF_WEIGHED, /* [T, D] rows times their weights, for experts that read such rows; BUF_ONES:
                    their new weights */
    BUF_ONES,
    BUF_ZERO,         /* [T, D] the output of zero-computation experts */
    BUF_ZERO_WEIGHTS, /* [T] */
    BUF_ROW_ADAPTERS, /* [rows in]; BUF_SENT_ADAPTERS: [rows out], BUF_CAME_ADAPTERS: [rows in], of
                         exchange_of_rows; BUF_ADAPTED_..: the arrays of struct adapted */
    BUF_SENT_ADAPTERS,
    BUF_CAME_ADAPTERS,
    BUF_ADAPTED_ROWS,
    BUF_ADAPTED_PAIRS,
    BUF_ADAPTED_X,
    BUF_ADAPTED_LOW,
    BUF_ADAPTED_WIDE,
    BUF_ADAPTED_SUMS,
    BUF_ADAPTED_BAD,
    BUF_ADAPTED_GROUPS,
    BUF_GIVEN, /* [n, K] the experts that a table gives */
    BUF_COUNT
};

/* Rows of one expert among those that this rank computes. */
struct expert_rows {
    uint32_t expert; /* the expert's place (layer.place) */
    size_t n_rows;
};

/* How many words each rank of an axis sends or receives, and where its words begin. */
struct word_counts {
    int *counts, *displs; /* [ranks], owned */
};

/* Counts and lists of exchange_rows.c in one call. Arrays are [n_group] unless their comment gives
 * another size; all are owned. */
struct travel {
    struct word_counts send, recv; /* in rows */
    int32_t *source_at;            /* the next row of each source, while rows are listed */
    int32_t *rows_out, *rows_in;   /* [n_group, n_local_max] rows per expert */
};

/* The plan of exchange_host.c: which rank computes which rows. The `rank` of a piece is the ep
 * number of a rank, not its number in an axis. All arrays are owned, except `inputs`. */
struct sharing {
    struct expert_piece *pieces; /* [n_work_max] */
    size_t *piece_rows;          /* [n_work_max] the first row of a piece among the rows of its
                                    rank */
    size_t *first_piece;         /* [P] the first piece of each place that has rows */
    uint64_t *part_load;         /* [ep] rows that each ep number computes */
    uint32_t *homes;             /* [P] the ep number of the ranks that hold each place */
    struct range *outputs;       /* [etp] the columns of D that each of the ranks sharing an
                                    expert computes */
    unsigned turn;               /* which of two shared segments receives the outputs of this
                                    block */
    void *inputs; /* the down projection's inputs of all etp ranks, shared by them; used if its
                     outputs are cut */
    size_t inputs_bytes;
};

/* Numbers of tokens in the whole microbatch, for moe_limit.c; [dp * tp] each, owned. */
struct limit {
    struct word_counts words;
    int32_t *n_tokens; /* that each rank of the stage routes */
};

/* The block of tokens that this rank sends to a host. */
struct block_to {
    size_t n_rows, n_choices;
    struct token_block block;
    size_t first_row;    /* rows of the ranks before this one on its host, for the same host */
    size_t first_result; /* the first of the result blocks that come back */
};

/* The first block and the first row from a host, among all that came to this host. */
struct host_rows {
    size_t block, row;
};

/* The experts' outputs of a rank of this host, for choices [first, first + n). */
struct host_outputs {
    struct range
        experts; /* places; empty unless the rank is the first of those that share its experts */
    int32_t first, n;
    const float *y;     /* [n, D] */
    const int32_t *bad; /* [n] */
};

/* The state of exchange_hosts.c. Arrays are owned, except those of one call, which are buffers. */
struct by_host {
    struct comm_mail *mail; /* NULL: there is one rank, no shared memory, or a device */
    struct comm_mail_places at;
    int *host_of;                 /* [P] of each place */
    struct block_to *to;          /* [n_hosts] */
    struct host_rows *from;       /* [n_hosts + 1] */
    struct token_block *blocks;   /* [n_group] that came to this host, by host, then rank */
    struct result_block *results; /* [n_group] that came back, by host, then rank */
    struct host_outputs *outputs; /* [n_local] */
    struct token_format format;   /* of the call's layer */
    struct exchange_shape shape;  /* of the call; its numbers are filled in as they become known */
    int32_t *row_of;              /* [listed, n_hosts] the row of a token in the block for a host;
                                     -1: none */
    int32_t *slots;               /* [rows that came, K] choices by place, then row; -1: none */
    int32_t *to_slots;            /* [rows that came, K] among this rank's rows; -1: of others */
    const float **weights;        /* [rows that came] each row's weights */
};

/* How the copies of experts share the rows that chose them; the last four arrays are those of one
 * call. Owned; NULL without copies. */
struct copies {
    uint8_t *distance;  /* [ep] of each part from this rank */
    int64_t *others;    /* [layers of the stage, ep] rows that each part is expected to get from the
                           ranks of all parts but this rank's */
    int64_t *own;       /* [layers of the stage] rows that this rank is expected to send */
    int64_t *rows;      /* [E] */
    int64_t *share;     /* [P] in the order of layer.place */
    int64_t *before;    /* [ep] */
    int64_t *part_rows; /* [ep] */
};

/* The rows of one expert that have the same adapter. */
struct adapter_pair {
    size_t work;                       /* in m->work, of the whole call */
    const struct adapter_layer *layer; /* of the adapter */
    uint32_t expert;                   /* its id */
    size_t row0, n_rows;               /* among the adapted rows */
};

/* The rows of a call that have an adapter: N of the rows that this rank computes, pair by pair.
 * Arrays are buffers. */
struct adapted {
    struct adapter_pair *pairs;  /* [n_pairs] in the order of m->work */
    size_t n_pairs, n_rows;      /* N; 0: nothing is adapted */
    int32_t *rows;               /* [N] their numbers among the n_in rows, ascending in a pair */
    struct linear_group *groups; /* [n_pairs] */
    float *x;                    /* [N, inputs] */
    float *low;                  /* [N, R], R the largest rank of an expert's linear */
    float *wide;                 /* [N, outputs] */
    int64_t *sums;               /* of `low`, for each rank r of down in turn [N, r + 1], and room;
                                    NULL: this rank has all K-blocks */
    int32_t *bad;                /* [N] counters of `low` */
    struct range run;            /* of m->work: that which expert_linears computes now */
    size_t run_row0;             /* its first row */
};

/* The rows that this rank computed in each call so far (moe_rows.c bounds n). */
struct row_counts {
    uint32_t *of_call; /* [n] owned, one for each call */
    size_t n, capacity;
};

struct expert_exchange;
struct expert_inner;

/* The state of one call, until moe_finish. */
struct pass {
    const struct moe_weights *w;
    uint32_t in_stage;            /* the layer's number in the stage */
    float cap;                    /* the layer's expert_cap (struct arch_layers) */
    const struct moe_rows *given; /* the rows of moe_start's caller */
    const struct moe_rows *rows;  /* `given`, or `weighed` */
    struct moe_rows weighed;      /* for experts that read weighted rows */
    size_t n_tokens;              /* T */
    struct range own;    /* the tokens whose choices this rank counts: its slice of all tokens
                            over tp */
    struct range listed; /* the tokens whose choices are in ids, weights and slots */
    size_t n_out, n_in;  /* rows of the listed tokens, one for each choice; rows that this rank
                            computes */
    int32_t *ids;        /* [listed, K] ascending ids; places after moe_take_places */
    float *weights;      /* [listed, K] */
    int32_t *slots;      /* [listed, K] */
    float *x;            /* [n_in, D] the experts' inputs, sorted by expert; NULL: the experts
                            read only quantized rows */
    /* **Local**. Makes the quantized values of the n_in rows; NULL: the rows are floats, in x */
    struct status (*spread)(struct moe *m, const struct pass *p, struct act_rows *rows);
    const int32_t *to_slots; /* [T, K] with moe_spread_codes: the row of each choice among the n_in
                                rows, negative for none */
    int32_t *row_adapters; /* [n_in] 1 + the number of each row's adapter, 0: none; NULL: no adapter
                              changes the layer's experts */
    float *out;            /* [T, D] */
    float *zero;    /* [T, D] the output of zero-computation experts, in the rows of moe_zero_rows;
                       NULL: the model has none */
    int32_t *marks; /* [T, 2] */
    /* [n_in, columns] and [n_in]: the experts' outputs, to which all K-blocks have been added, and
     * their counters */
    float *y;
    int32_t *bad;
};

struct moe {
    struct moe_options o;
    struct layout_place place;
    struct range experts;                   /* the places of the experts that this rank holds;
                                               equal to their ids where layer.place is NULL */
    uint32_t n_group;                       /* ranks of the EP axis */
    uint32_t n_places;                      /* P of a layer: its experts and their copies */
    uint32_t n_local_max;                   /* the largest number of places that a rank holds */
    size_t n_work_max;                      /* expert pieces that a rank may have to compute */
    const struct expert_exchange *exchange; /* chosen by moe_create, as are the next two */
    struct status (*add_blocks)(struct moe *m, struct pass *p); /* called by moe_run_experts */
    const struct expert_inner *inner;
    struct grown buffers[MOE_LANES][BUF_COUNT]; /* those not kept until moe_finish: lane 0's */
    int lane;                                   /* of the current call */
    struct pass passes[MOE_LANES];
    int32_t *per_expert; /* [P] element e: the number of rows of places 0 to e, among the listed
                            tokens or the rows that came; this array and all below are owned */
    struct expert_rows *work;       /* [n_work] the rows that this rank computes, in the order of
                                       computation */
    size_t n_work;                  /* at most n_work_max */
    struct expert_need *needs;      /* [n_work_max] the same for streamed experts */
    struct linear_group *groups;    /* [n_work] of the gate projection, later of the down
                                       projection */
    struct linear_group *up_groups; /* [n_work] */
    struct word_counts tp;          /* [tp] */
    struct travel travel;
    struct sharing sharing;
    struct by_host by_hosts[MOE_LANES];
    struct by_host *by_host; /* of the current call's lane */
    struct moe_traffic traffic;
    struct limit limit;
    struct copies copies;
    struct row_counts row_counts;
    struct adapted adapted;
};

/* A way in which tokens reach their experts. It is chosen when the block is created, the same for
 * all ranks of a stage. The file of each way begins with a drawing of what each rank holds. No
 * member is NULL. */
struct expert_exchange {
    const char *name;
    bool takes_slices; /* ranks may hold slices of h, shared and the counters (moe_rows.own) */
    bool lists_all; /* all ranks list the choices of all tokens, and make the same plan from them */
    /* Local. Allocates the arrays of this way. Errors: STATUS_MEMORY. */
    struct status (*create)(struct moe *m);
    void (*destroy)(struct moe *m);
    /* Local. Returns the tokens that this rank routes. */
    struct range (*routed)(const struct moe *m, const struct pass *p);
    /* **Collective (STAGE, EP)**. Called after the router, with its logits. May change p->listed,
     * the tokens that this rank lists from now on, and their p->ids and p->weights. Errors:
     * STATUS_MEMORY, the device's. */
    struct status (*agree)(struct moe *m, struct pass *p, const float *logits);
    /* **Collective (EP)**. Starts to send rows to their experts, if they can travel while the
     * caller computes. Errors: STATUS_MEMORY. */
    struct status (*send)(struct moe *m, struct pass *p);
    /* **Collective (EP)**. Brings this rank the rows that it computes. Sets p->n_in, m->work, and
     * p->x or p->spread. Errors: STATUS_MEMORY. */
    struct status (*dispatch)(struct moe *m, struct pass *p);
    /* **Collective (ETP, EP)**. Runs the experts' FFN over these rows. Errors: STATUS_MEMORY, those
     * of streamed experts. */
    struct status (*compute)(struct moe *m, struct pass *p);
    /* **Collective (EP)**. Starts to send the results back, if they can travel while the caller
     * computes. Errors: STATUS_MEMORY. */
    struct status (*reply)(struct moe *m, struct pass *p);
    /* **Collective (EP, TP)**. h += scale.residual * (the experts' output for each token + shared),
     * in the rows that this rank holds. Errors: STATUS_MEMORY, the device's. */
    struct status (*combine)(struct moe *m, struct pass *p);
};

/* How an expert's down projection gets its inputs, the inner rows of the FFN: from this rank alone,
 * or from all ranks that share the expert. Both are in moe_experts.c. */
struct expert_inner {
    /* Local. out = this rank's inner rows gate [n_in, f], with memory for their quantized values.
     * Errors: STATUS_MEMORY. */
    struct status (*rows)(struct moe *m, const struct pass *p, const float *gate, size_t f,
                          struct act_rows *out);
    /* **Collective (ETP)**, after the rows are quantized. a->x, a->x_stride = the inputs of down.
     */
    void (*read)(struct moe *m, const struct act_rows *inner, struct linear_args *a);
    /* **Collective (ETP)**, before the rows are quantized, when this rank has adapted rows: calls
     * moe_adapt_inner with the inputs of down. */
    void (*adapt)(struct moe *m, const struct act_rows *inner);
};

extern const struct expert_exchange exchange_local, exchange_in_host, exchange_between_hosts,
    exchange_of_rows;

/* Local. True when the layout, the model, the flags and the machine allow exchange_in_host; the
 * same on all ranks. */
bool exchange_may_stay_in_host(const struct moe *m);

/* Local. True when exchange_between_hosts works: by_host->mail is open, the ranks of each expert
 * are on one host, and experts are not cut by outputs. The same on all ranks. */
bool exchange_may_go_by_host(const struct moe *m);

/* The `send` and `reply` of exchanges in which nothing travels while the caller computes. */
struct status moe_sends_nothing(struct moe *m, struct pass *p);

/* exchange_hosts_combine.c. **Collective (EP, TP)**. The `reply` and the `combine` of
 * exchange_between_hosts. */
struct status exchange_hosts_reply(struct moe *m, struct pass *p);
struct status exchange_hosts_combine(struct moe *m, struct pass *p);

/* Local. Ends the job, because a host's message is damaged: the others wait for this rank. */
void moe_damaged(const struct moe *m, int host) __attribute__((noreturn));

/* Local. Gives a buffer room for n elements and sets *out to it; its content is lost if it grows.
 * Errors: STATUS_MEMORY. */
struct status moe_grow(struct moe *m, enum buffer which, size_t n, size_t elem_bytes, void *out);

/* Local. As moe_grow for n_bytes, but in a shared segment of the axis, if its ranks share memory
 * and there is no device. Errors: STATUS_MEMORY. */
struct status moe_grow_shared(struct moe *m, enum buffer which, enum comm_axis axis,
                              enum comm_lane lane, size_t n_bytes, void *out);

/* Local. Allocates counts for n ranks. Errors: STATUS_MEMORY. word_counts_fini accepts zeroed
 * counts. */
struct status word_counts_init(struct word_counts *w, size_t n);
void word_counts_fini(struct word_counts *w);

/* Local. Sets m->tp to the numbers of words in each tp rank's slice of n_tokens tokens. */
void moe_count_slices(struct moe *m, size_t n_tokens, size_t words_per_token);

/* Local. Returns how many of the rows counted in m->per_expert are of places before `expert`, which
 * is a place. */
int32_t moe_rows_before(const struct moe *m, uint32_t expert);

/* Local. Copies each listed token's row to `to` [rows, D], once for each choice, to the row that
 * slots [listed, K] gives; a negative slot copies nothing. */
void moe_scatter(const struct moe *m, const struct pass *p, const int32_t *slots, float *to);

/* moe_limit.c. Local. Allocates the arrays for a capacity factor. Errors: STATUS_MEMORY. */
struct status moe_limit_create(struct moe *m);
void moe_limit_destroy(struct moe *m);

/* moe_limit.c. **Collective (STAGE)**. The `agree` of the exchanges in which ranks route different
 * tokens: allocates p->out and p->marks, and applies the capacity factor, if there is one, to the
 * whole microbatch. Errors: STATUS_MEMORY, the device's. */
struct status moe_limit(struct moe *m, struct pass *p, const float *logits);

/* The results of the experts at the rank that sent the rows, in the order of the slots. */
struct results {
    const float *y;     /* [n_out] rows of D, y_stride apart */
    const int32_t *bad; /* [n_out] counters, bad_stride apart */
    size_t y_stride, bad_stride;
};

/* Local. For each listed token: p->out = the sum over its experts of weight times result, added on
 * the integer grid; then moe_add_zero. Adds the token's counter to p->marks. */
void moe_combine(struct moe *m, struct pass *p, const struct results *r);

/* moe_zero.c. Local. For models with zero-computation experts, which return their input: sets
 * p->zero to the weighted sum of their outputs, and the ids of their choices to -1, so that no
 * exchange sees them. Called after all listed choices are known. Errors: STATUS_MEMORY. */
struct status moe_take_zero(struct moe *m, struct pass *p);

/* moe_zero.c. Local. moe_zero_rows returns the tokens whose sums over experts this rank completes;
 * moe_add_zero adds p->zero, unless it is NULL, to these rows of p->out. */
struct range moe_zero_rows(const struct moe *m, const struct pass *p);
void moe_add_zero(const struct moe *m, const struct pass *p);

/* **Collective (TP)**. Gives every tp rank the outputs and the marks of all tokens. */
void moe_gather_outputs(struct moe *m, struct pass *p);

/* Local. h += scale.residual * (p->out + shared), for all tokens, and adds the counters. Changes
 * p->out. Errors: the device's. */
struct status moe_add_output(struct moe *m, const struct pass *p);

/* moe_copies.c. Local. Replaces the experts' ids in p->ids by their places, which all later code
 * uses. Create's errors: STATUS_MEMORY. */
struct status moe_copies_create(struct moe *m);
void moe_copies_destroy(struct moe *m);
void moe_take_places(struct moe *m, struct pass *p);

/* moe_adapters.c. Local. True when some adapter changes the layer's experts; the same on all ranks
 * of the stage. The rows then travel as floats, and p->row_adapters is set. */
bool moe_is_adapted(const struct moe *m, const struct pass *p);

/* moe_adapters.c. Local. Returns the adapter of a token of the call, as p->row_adapters has it. */
int32_t moe_adapter_of(const struct pass *p, size_t token);

/* moe_adapters.c. Local. Sets p->row_adapters from the listed tokens, whose choices lie in the rows
 * slots [listed, K], if the layer is adapted. Errors: STATUS_MEMORY. */
struct status moe_list_adapters(struct moe *m, struct pass *p, const int32_t *slots);

/* moe_adapters.c. Local. Finds the pairs of p->row_adapters, before the experts' linears. Errors:
 * STATUS_MEMORY. */
struct status moe_adapt_begin(struct moe *m, const struct pass *p);

/* moe_adapters.c. Local. For the run of m->work that is computed now: moe_adapt_gate_up adds B (A
 * x), x [n, D], to gate and up [n, F]; moe_adapt_inner keeps A x of the down projections, x [n,
 * x_stride] being their inputs. */
void moe_adapt_gate_up(struct moe *m, const float *x, float *gate, float *up, size_t f);
void moe_adapt_inner(struct moe *m, const float *x, size_t x_stride, size_t n_in);

/* moe_adapters.c. **Collective (ETP)**. p->y += B (A x) of the down projections, after all runs.
 * Adds the counters of A x to p->bad. */
void moe_adapt_down(struct moe *m, struct pass *p);

/* moe_rows.c. Local. Notes how many rows this rank computes in a call. Errors: STATUS_MEMORY. */
struct status moe_note_rows(struct moe *m, size_t n_rows);

/* moe_experts.c. Local. True on a CPU when this rank's experts read only quantized rows, p->n_in is
 * at least the number of tokens, and there is no tap. If so, each token is quantized once, and
 * moe_spread_codes, as p->spread, copies its values to the rows p->to_slots. */
bool moe_takes_codes(const struct moe *m, const struct pass *p);
struct status moe_spread_codes(struct moe *m, const struct pass *p, struct act_rows *rows);

/* moe_experts.c. Local. Chooses how the ranks that share an expert add up its outputs, and from
 * whom its down projection reads. */
void moe_choose_sums(struct moe *m);

/* moe_experts.c. **Collective (ETP)**. The `compute` of exchanges that leave p->y [n_in, D] and
 * p->bad [n_in] with this rank. Errors: STATUS_MEMORY, those of streamed experts. */
struct status moe_compute(struct moe *m, struct pass *p);

/* moe_experts.c. **Collective (ETP)**. As moe_compute, but the caller gives p->y and p->bad; their
 * content may be undefined before. */
struct status moe_run_experts(struct moe *m, struct pass *p);

/* moe_experts.c. **Collective (ETP)**. Sets sums [n_in, D + 1] to this rank's part of the experts'
 * FFN over p->x (not read when p->spread is set), with the counters last. With sums NULL it writes
 * p->y instead, the columns of layout_expert_outputs, if the down projection is cut by outputs, or
 * all, and adds the counters to p->bad. Errors: as moe_compute. */
struct status moe_expert_sums(struct moe *m, struct pass *p, int64_t *sums);

#endif

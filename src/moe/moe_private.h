/* The internals of a MoE block, shared by the files of this room only. */
#ifndef SHOAL_MOE_MOE_PRIVATE_H
#define SHOAL_MOE_MOE_PRIVATE_H

#include "moe/balance.h"
#include "moe/moe.h"

/* An array that grows to the largest step seen and is never returned before the end. */
struct grown {
    void *data;
    size_t n_bytes;
    bool on_device, is_mapped;
};

enum buffer {
    BUF_LOGITS,   /* [n, E] router logits of the tokens that this rank routes */
    BUF_IDS,      /* [n, K] chosen experts, ascending */
    BUF_LIST_IDS, /* the same in host memory; -1 dropped */
    BUF_WEIGHTS,  /* [n, K] */
    BUF_SLOT,     /* [n, K] where a choice's row stands in the order of experts, then tokens */
    BUF_SEND,     /* [rows out, D] rows in the order of their experts */
    BUF_RECV,     /* [rows in, D] by source, then expert */
    BUF_X,        /* [rows in, D] by expert, then source */
    BUF_GATE,
    BUF_UP,          /* [rows in, F] */
    BUF_CODES,       /* [rows in, D] quantized, for quantized experts */
    BUF_INNER_CODES, /* [rows in, F] likewise */
    BUF_SUMS,        /* [rows in, D + 1] */
    BUF_Y,           /* [rows in, D] */
    BUF_BAD,         /* [rows in] */
    BUF_BACK,        /* [rows in, D + 1] by source, then expert; the last word is the counter */
    BUF_RESULT,      /* [rows out, D + 1] in the send order */
    BUF_OUT,         /* [T, D] the block's output */
    BUF_MARKS,       /* [T, 2] bad and dropped of each token */
    BUF_MOVE,        /* [rows in, 2] a permutation; host memory, as all that follow */
    BUF_ALL_LOGITS,
    BUF_ALL_IDS,
    BUF_ALL_WEIGHTS, /* capacity: the whole microbatch */
    BUF_KEPT_IDS,
    BUF_KEPT_WEIGHTS,
    BUF_LOAD,
    BUF_DROPPED, /* capacity_work */
    BUF_HOST_LOGITS,
    BUF_HOST_WEIGHTS, /* copies of a device's arrays, for the capacity */
    BUF_MARK_LIST,    /* [n, 2] */
    BUF_TOKEN_CODES,  /* [T, D] quantized, before they are copied to the experts' rows */
    BUF_CHOICES,      /* [T, 2 K] chosen experts and their weights' bits, of all tokens */
    BUF_COUNT
};

/* Rows of one expert among those that this rank computes. */
struct expert_rows {
    uint32_t expert; /* its place */
    size_t n_rows;
};

/* How many words each rank of an axis sends or receives, and where its words begin. */
struct word_counts {
    int *counts, *displs; /* [ranks], owned */
};

/* exchange_hosts.c: what it counts in each call. [n_group] each unless said; owned. */
struct travel {
    struct word_counts send, recv; /* in rows */
    int32_t *source_at;            /* the next row of each source, while listed */
    int32_t *rows_out, *rows_in;   /* [n_group, n_local_max] rows per expert */
};

/* exchange_host.c: who computes which rows; a piece's rank is its ep, not one of the axis. Owned,
 * but for `inputs`. */
struct sharing {
    struct expert_piece *pieces; /* [n_work_max] */
    size_t *piece_rows;          /* [n_work_max] where a piece's rows begin among its rank's */
    size_t *first_piece;         /* [E] of each expert that has rows */
    uint64_t *part_load;         /* [ep] */
    uint32_t *homes;             /* [E] the ep of the ranks that hold each expert */
    struct range *outputs;       /* [etp] of the ranks that share experts: their columns of D */
    unsigned turn;               /* which of two segments this block's outputs go to */
    void *inputs; /* where down is cut by outputs: what it reads, of all these ranks */
    size_t inputs_bytes;
};

/* moe_limit.c: the tokens of the whole microbatch, [dp * tp] each; owned. */
struct limit {
    struct word_counts words;
    int32_t *n_tokens; /* of each source of the stage */
};

struct expert_exchange;
struct pass;

struct moe {
    struct moe_options o;
    struct layout_place place;
    struct range experts;                   /* places held here; ids where experts stand by id */
    uint32_t n_group;                       /* ranks of the EP axis */
    uint32_t n_local_max;                   /* experts of the rank that holds most */
    size_t n_work_max;                      /* expert pieces that a rank may have to compute */
    const struct expert_exchange *exchange; /* chosen by moe_create, as is the next */
    struct status (*add_blocks)(struct moe *m, struct pass *p); /* moe_compute's, moe_experts.c */
    struct grown buffers[BUF_COUNT];
    int32_t *per_expert;            /* [E] rows of the listed tokens; owned, as all below */
    struct expert_rows *work;       /* [n_work] the rows in, in the order of computation */
    size_t n_work;                  /* at most n_work_max */
    struct linear_group *groups;    /* [n_work] the gates', the downs' */
    struct linear_group *up_groups; /* [n_work] */
    struct word_counts tp;          /* [tp] */
    struct travel travel;
    struct sharing sharing;
    struct limit limit;
};

/* One call's state. */
struct pass {
    const struct moe_weights *w;
    const struct moe_rows *rows;
    size_t n_tokens;     /* T */
    struct range own;    /* tokens whose choices this rank counts: its slice of all over tp */
    struct range listed; /* tokens whose choices stand in ids, weights and slots */
    size_t n_out, n_in;  /* rows of the listed tokens; rows that this rank computes */
    int32_t *ids;        /* [listed, K] ascending; places once moe_take_places ran */
    float *weights;      /* [listed, K] */
    int32_t *slots;      /* [listed, K] */
    float *x;            /* [n_in, D] by expert; NULL: the experts read quantized rows alone */
    /* where each choice's row stands among the rows in, or negative; NULL: rows in are floats */
    const int32_t *to_slots; /* [T, K] */
    float *out;              /* [T, D] */
    int32_t *marks;          /* [T, 2] */
    /* [n_in, outputs held] and [n_in]: the experts' outputs, where a rank has all K-blocks of them,
       and the counters added */
    float *y;
    int32_t *bad;
};

/* How tokens meet their experts: chosen once, when the block is created, and the same on all ranks
 * of a stage. Each choice is one file with a drawing of who holds what. No entry is NULL. */
struct expert_exchange {
    const char *name;
    bool takes_slices; /* ranks may hold slices of h, shared and the counters (moe_rows.own) */
    /* Local. Its arrays. Errors: STATUS_MEMORY. */
    struct status (*create)(struct moe *m);
    void (*destroy)(struct moe *m);
    /* Local. The tokens that this rank routes. */
    struct range (*routed)(const struct moe *m, const struct pass *p);
    /* **Collective (STAGE, EP)**. After the router, whose logits these are: p->ids and p->weights
     * of the tokens that this rank lists from now on, p->listed. Errors: STATUS_MEMORY. */
    struct status (*agree)(struct moe *m, struct pass *p, const float *logits);
    /* **Collective (EP)**. Brings this rank the rows that it computes: m->work and p->x or
     * p->to_slots. Errors: STATUS_MEMORY. */
    struct status (*dispatch)(struct moe *m, struct pass *p);
    /* **Collective (ETP, EP)**. The experts' FFN over these rows. Errors: STATUS_MEMORY. */
    struct status (*compute)(struct moe *m, struct pass *p);
    /* **Collective (EP, TP)**. h += what the experts made of each token, in the rows that this rank
     * holds. Errors: STATUS_MEMORY. */
    struct status (*combine)(struct moe *m, struct pass *p);
};

extern const struct expert_exchange exchange_local, exchange_in_host, exchange_across_hosts;

/* Local. Whether the layout and the machine allow exchange_in_host: the same on all ranks. */
bool exchange_may_stay_in_host(const struct moe *m);

/* Local. The buffer with room for n elements; its content is not kept. Errors: STATUS_MEMORY. */
struct status moe_grow(struct moe *m, enum buffer which, size_t n, size_t elem_bytes, void *out);

/* Local. The same in a shared segment of the axis where its ranks share memory. Errors:
 * STATUS_MEMORY. */
struct status moe_grow_shared(struct moe *m, enum buffer which, enum comm_axis axis,
                              enum comm_lane lane, size_t n_bytes, void *out);

/* Local. Counts for n ranks. Errors: STATUS_MEMORY. fini accepts what was never made. */
struct status word_counts_init(struct word_counts *w, size_t n);
void word_counts_fini(struct word_counts *w);

/* Local. Sets m->tp to the numbers of words in each tp rank's slice of n_tokens tokens. */
void moe_count_slices(struct moe *m, size_t n_tokens, size_t words_per_token);

/* Local. Rows of the listed tokens whose expert stands before place `expert`. */
int32_t moe_rows_before(const struct moe *m, uint32_t expert);

/* Local. to [rows, D] = the rows of the listed tokens, one for each choice, at slots [listed, K] of
 * it; negative: nowhere. */
void moe_scatter(const struct moe *m, const struct pass *p, const int32_t *slots, float *to);

/* moe_limit.c. Local. Arrays of a capacity factor. Errors: STATUS_MEMORY. */
struct status moe_limit_create(struct moe *m);
void moe_limit_destroy(struct moe *m);

/* moe_limit.c. **Collective (STAGE)**. The `agree` of exchanges without shared rows: applies the
 * capacity factor, if there is one, over the whole microbatch. Errors: STATUS_MEMORY. */
struct status moe_limit(struct moe *m, struct pass *p, const float *logits);

/* The experts' rows at their source, in the order of the slots. */
struct results {
    const float *y;     /* [n_out] rows of D, y_stride apart */
    const int32_t *bad; /* [n_out] counters, bad_stride apart */
    size_t y_stride, bad_stride;
};

/* Local. p->out and p->marks of the listed tokens: the sum over each token's
 * experts, by ascending id, of weight times result. */
void moe_combine(struct moe *m, struct pass *p, const struct results *r);

/* Local. h += residual_scale * (p->out + shared), and the counters, of all tokens.
 */
struct status moe_add_output(struct moe *m, const struct pass *p);

/* moe_experts.c. Local. Whether the experts read quantized rows only, of no more tokens than rows:
 * then each token is quantized once, and p->to_slots tells where its values go. */
bool moe_takes_codes(const struct moe *m, const struct pass *p);

/* moe_experts.c. Local. Chooses how the ranks that share an expert add up its outputs. */
void moe_choose_sums(struct moe *m);

/* moe_experts.c. **Collective (ETP)**. The `compute` of exchanges that leave p->y [n_in, D] and
 * p->bad [n_in] with this rank. Errors: STATUS_MEMORY. */
struct status moe_compute(struct moe *m, struct pass *p);

/* moe_experts.c. **Collective (ETP)**. sums [n_in, D + 1] = this rank's part of the experts' FFN
 * over p->x (not read where p->to_slots is set), counters last; or, sums NULL, p->y and p->bad, of
 * layout_expert_outputs where down is cut so. Errors: STATUS_MEMORY. */
struct status moe_expert_sums(struct moe *m, struct pass *p, int64_t *sums);

#endif

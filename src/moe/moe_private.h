/* A MoE block from inside, shared by the moe*.c files; not for others. */
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
    BUF_LOGITS,   /* [n, E] router logits of this rank's slice */
    BUF_IDS,      /* [n, K] chosen experts, ascending */
    BUF_LIST_IDS, /* the same in host memory; -1 dropped */
    BUF_WEIGHTS,  /* [n, K] */
    BUF_SLOT,     /* [n, K] where a choice's row stands in the send order */
    BUF_SEND,     /* [rows out, D] rows in the order of their experts */
    BUF_RECV,     /* [rows in, D] by source, then expert */
    BUF_X,        /* [rows in, D] by expert, then source */
    BUF_GATE,
    BUF_UP,          /* [rows in, F] */
    BUF_CODES,       /* [rows in, D] as codes, for quantized experts */
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
    BUF_HOST_WEIGHTS, /* what a device holds, for the capacity */
    BUF_MARK_LIST,    /* [n, 2] */
    BUF_TOKEN_CODES,  /* [T, D] as codes, before they are spread over the experts */
    BUF_CHOICES,      /* [T, 2 K] chosen experts and their weights' bits, of all tokens */
    BUF_COUNT
};

/* Rows of one expert among those that this rank computes. */
struct expert_rows {
    uint32_t expert; /* its place */
    size_t n_rows;
};

struct moe {
    struct moe_options o;
    struct layout_place place;
    struct range experts; /* places held here; ids where experts stand by id */
    uint32_t n_group;     /* ranks of the EP axis */
    uint32_t n_local_max; /* experts of the rank that holds most */
    struct grown buffers[BUF_COUNT];
    int *ints; /* owned; the arrays below, [n_group] each unless said */
    int *send_counts, *send_displs, *recv_counts, *recv_displs; /* in rows */
    int32_t *source_at;               /* [n_group] the next row of each source, while listed */
    int32_t *count_out, *count_in;    /* [n_group, n_local_max] rows per expert */
    int32_t *per_expert;              /* [E] rows of this rank's slice */
    struct expert_rows *work;         /* [n_work] the rows in, in the order of computation */
    size_t n_work;                    /* at most n_pieces_max, as are groups */
    struct linear_group *groups;      /* [n_work] the gates', the downs' */
    struct linear_group *up_groups;   /* [n_work] */
    int *tp_counts, *tp_displs;       /* [tp] */
    int *stage_counts, *stage_displs; /* [dp * tp] */
    int32_t *stage_sizes;             /* [dp * tp] tokens of each source of the stage */
    struct range *outputs;            /* [etp] of the ranks that share experts: their D */
    uint32_t *homes;                  /* [E] which part of the experts each belongs to: ep */
    unsigned turn;                    /* which of two lanes moe_together writes */
    /* moe_together's: who computes which rows; a piece's rank is its ep, not one of the axis */
    struct expert_piece *pieces; /* [n_pieces_max] */
    size_t *piece_rows;          /* [n_pieces_max] where a piece's rows begin among its rank's */
    size_t *first_piece;         /* [E] of each expert that has rows */
    uint64_t *part_load;         /* [ep] */
    /* where down is cut by outputs: what it reads, of all ranks that share the experts */
    void *inputs;
    size_t inputs_bytes;
};

/* One call's state. */
struct pass {
    const struct moe_weights *w;
    const float *x;      /* [T, D] */
    struct act_rows *in; /* the same; or NULL */
    size_t n_tokens;     /* T */
    struct range slice;  /* tokens whose source this rank is */
    size_t n_out, n_in;  /* rows sent and received */
    int32_t *ids;        /* [n, K] ascending; places once moe_take_places ran */
    float *weights;      /* [n, K] */
    int32_t *slots;      /* [n, K] */
    float *out;          /* [T, D] */
    /* where each choice's row stands among the rows in, or negative; NULL: rows in are floats */
    const int32_t *to_slots; /* [T, K] */
    int32_t *marks;          /* [T, 2] */
    /* [n_in, outputs held] and [n_in]: the experts' outputs, where a rank has all leaves of them,
       and the counters added; NULL: sums */
    float *rounded;
    int32_t *rounded_bad;
};

/* Local. The buffer with room for n elements; its content is not kept. Errors: STATUS_MEMORY. */
struct status moe_grow(struct moe *m, enum buffer which, size_t n, size_t elem_bytes, void *out);

/* Local. The same in memory that the ranks of an axis share, where there is such memory. Errors:
 * STATUS_MEMORY. */
struct status moe_grow_shared(struct moe *m, enum buffer which, enum comm_axis axis,
                              enum comm_lane lane, size_t n_bytes, void *out);

/* moe.c. Local. The router over tokens [slice.begin, slice.end): p->ids, p->weights, *logits.
 * Errors: STATUS_MEMORY. */
struct status moe_route(struct moe *m, struct pass *p, float **logits);

/* moe.c. Local. Counts the choices p->ids of the source's own tokens into load [E]: n_choices of
 * them from `first` on. */
void moe_count_load(const struct pass *p, size_t first, size_t n_choices, uint64_t *load);

/* moe.c. Local. From here on experts are known by their places: p->ids of the slice. A token's
 * choices keep their order, so that its sum does, too. */
void moe_take_places(const struct moe *m, struct pass *p);

/* moe.c. Local. Counts the choices p->ids per expert, p->slots in the order of experts, then
 * tokens; m->per_expert[e] = the rows of experts up to e. */
void moe_assign_slots(struct moe *m, struct pass *p);

/* moe_together.c. **Collective (EP)**. moe_forward where slices are taken: no row is sent. Errors:
 * STATUS_MEMORY. */
struct status moe_forward_together(struct moe *m, const struct moe_weights *w,
                                   const struct moe_rows *rows);

/* moe_experts.c. Local. Whether the experts need their rows as codes only, of no more tokens than
 * rows: then each token is quantized once, and p->to_slots tells where its codes go. */
bool moe_takes_codes(const struct moe *m, const struct pass *p);

/* moe_experts.c. **Collective (ETP)**. sums [n_in, D + 1] = this rank's part of the experts' FFN
 * over x [n_in, D] (not read where p->to_slots is set), counters last; or, sums NULL, p->rounded,
 * of layout_expert_outputs where down is cut so. Errors: STATUS_MEMORY. */
struct status moe_expert_sums(struct moe *m, struct pass *p, const float *x, int64_t *sums);

/* moe_experts.c. **Collective (ETP)**. The experts' FFN over x [n_in, D]: *y [n_in, D] and the
 * rows' counters. Errors: STATUS_MEMORY. */
struct status moe_run_experts(struct moe *m, struct pass *p, const float *x, float **y,
                              int32_t **bad);

#endif

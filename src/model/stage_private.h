/* A stage from inside, shared by the stage_*.c files; not for others. */
#ifndef SHOAL_MODEL_STAGE_PRIVATE_H
#define SHOAL_MODEL_STAGE_PRIVATE_H

#include "attention/attention.h"
#include "collective/grid_sum.h"
#include "kernels/act.h"
#include "model/stage.h"

/* A part's row-parallel sum that travels over ranks while another part computes. */
struct part_sum {
    bool is_open;
    int64_t *sums; /* [T, D + 1] and room (grid_sum_room) */
    struct grid_sum sum;
    const float *bias; /* [D] or NULL, added behind it */
};

/* Rows that go through the layers one behind the other: all of a step, or half of it, so that one
 * half computes while the other's sums travel. */
struct part {
    struct hidden hidden; /* of these rows alone, as all below */
    size_t row0;          /* their first in the step */
    struct range own;     /* those whose h and bad this rank holds, of the part */
    const struct seq_rows *seqs;
    size_t n_seqs;
    float *cos, *sin;
    int lane;                  /* of its sums: GRID_SUM_NOW where there is but one part */
    struct part_sum under_way; /* by grid sums */
};
enum { STAGE_PARTS = GRID_SUM_LANES };

/* Whether this rank holds a slice of the part's rows only. */
static inline bool part_is_cut(const struct part *p)
{
    return range_count(p->own) < p->hidden.n_rows;
}

/* The state of row_sum_outputs.c. Shared segments belong to the communicator. */
struct by_outputs {
    float *outputs;     /* [max_rows, this rank's outputs], then counters, for the others to read */
    void *inputs;       /* of all tp ranks, quantized or floats; NULL: not yet asked for */
    bool slices;        /* each tp rank holds a slice of many rows */
    float *normed;      /* [T, D] the slices' normed rows, of all tp ranks */
    void *normed_codes; /* likewise quantized, for the first linear that reads them */
    int *counts, *displs; /* [tp] owned */
};

/* The state of row_sum_grid.c: [T, D + 1] of all parts. */
struct grid_sums {
    int64_t *sums; /* owned, or memory that the tp ranks share */
    int64_t *owned;
};

struct row_sum;
struct stage;

/* **Collective (TP)**. s->attended = attention of the normed rows `in` of a layer and a part. */
typedef void stage_attend(struct stage *s, const struct layer *layer, const struct part *p,
                          struct act_rows *in);

struct stage {
    struct stage_options o;
    const struct row_sum *row_sum; /* chosen by stage_create, as is the next */
    stage_attend *attend;
    struct part parts[STAGE_PARTS]; /* of the step */
    struct seq_rows *part_seqs;     /* [max_rows + 1] */
    struct attention_shape attention;
    uint8_t kv_of_head[4096]; /* local kv head of each local head */
    struct kv_pool *kv;
    struct moe *moe;       /* NULL for dense models */
    uint64_t *expert_load; /* [layers, E] */
    uint64_t workspace_bytes;
    void *workspace; /* owned; the arrays below stand in it, for T <= max_rows, and those that are
                        not alive at the same time share memory (parallel/layout/workspace.h) */
    float *x;        /* [T, D] normed input of a block */
    float *q, *attended; /* [T, H query_dim], [T, H value_dim] */
    float *k, *v;        /* [T, G, Hd] */
    /* Heads whose width is not that of the cache: latent attention, and heads that are padded.
     * Elsewhere the narrow ones are k and v, and the wide ones q and attended. */
    float *k_narrow, *v_narrow; /* [T, G, query_dim] */
    float *q_wide, *o_wide;     /* [T, H, Hd] */
    /* latent attention */
    float *q_low;                /* [T, q_lora] */
    float *k_rope;               /* [T, rotary] */
    struct linear_args *heads;   /* [H] of the heads' own linears */
    struct linear_group *groups; /* [H] */
    float *gate, *up;            /* [T, F] */
    float *shared;               /* [T, D] what all tokens pass beside the experts */
    float *mix;                  /* [T] its gate */
    float *tile_parts;           /* WORKSPACE_TILE_PARTS_BYTES, of attention by tiles */
    uint32_t *head_sums;         /* [T, H + G] of norms over whole projections, as bits */
    struct by_outputs by_outputs;
    struct grid_sums grid;
    float *cos, *sin;   /* [T, rotary / 2] */
    int32_t *positions; /* [T] host memory, as is the next */
    int32_t *final_rows;
    void *codes;       /* the rows that meet quantized weights; NULL: there are none */
    void *inner_codes; /* likewise, of [T, F] */
};

/* stage_linear.c. Local. Rows x [n_rows, n] as linears read them. */
struct act_rows stage_input(const struct stage *s, const float *x, size_t n_rows, size_t n);

/* This rank's inputs of a row-parallel linear. */
struct inner_rows {
    const float *x; /* [n_rows, held] */
    size_t n_rows;
    struct range held; /* of the linear's n_all inputs */
    size_t n_all;
    void *memory; /* for quantized rows that this rank alone reads; NULL: there are none */
};

/* How a stage's row-parallel linears (o_proj and the down projections) work: which inputs and
 * outputs of them a tp rank has, where it finds the others', and which rows of h it holds. One of
 * three, chosen once by stage_create, the same on all tp ranks. Each is one file with a drawing of
 * who holds what. No entry is NULL. */
struct row_sum {
    const char *name;
    /* Local. Memory beside the workspace, added to workspace_bytes. Errors: STATUS_MEMORY. */
    struct status (*create)(struct stage *s);
    void (*destroy)(struct stage *s);
    /* **Collective (TP)**. Before the layers of a step. */
    void (*begin_step)(struct stage *s);
    /* Local. Before the layers of a part: p->own. */
    void (*begin_part)(struct stage *s, struct part *p);
    /* **Collective (TP)**. The normed h of all rows of the part; norm NULL: h as it is. `first`, the
     * linear that reads them first, has its quantized rows made on the way; NULL: made when a linear
     * asks. They stand until h changes. */
    struct act_rows (*norm)(struct stage *s, const struct part *p, const float *norm,
                            const struct packed *first);
    /* Local. x as the row-parallel linear reads it. */
    struct act_rows (*input)(const struct stage *s, const struct inner_rows *x);
    /* **Collective (TP)**. y [T, D] = x w^T in the rows that this rank holds; their counters go to
     * the part. */
    void (*assign)(struct stage *s, const struct packed *w, struct act_rows *in, float *y,
                   struct part *p);
    /* **Collective (TP)**. h += scale.residual * (x w^T + bias [D] or NULL), likewise; with two
     * parts h may have it only after `complete`. */
    void (*add)(struct stage *s, const struct packed *w, const float *bias, struct act_rows *in,
                struct part *p);
    /* **Collective (TP)**. The part's last `add` is done. */
    void (*complete)(struct stage *s, struct part *p);
    /* **Collective (TP)**. After the last layer: all ranks have all rows of h and counters. */
    void (*gather)(struct stage *s, struct part *p);
};

extern const struct row_sum row_sum_whole, row_sum_by_outputs, row_sum_by_grid;

/* row_sum.c. Local. Which of the three the layout and the ranks allow. */
const struct row_sum *row_sum_choose(const struct stage *s);

/* row_sum.c. Local. sums [T, D + 1] = this rank's K-blocks of x w^T; or, sums NULL, y [T, D], and
 * the part's counters are added to. */
void row_sum_blocks(struct stage *s, const struct packed *w, struct act_rows *in, int64_t *sums,
                    float *y, const struct part *p);

/* row_sum.c. Local. Whether the model scales what is added to h. Then the sum of a linear goes to y
 * first, else into h itself. row_sum_add_rest follows it: y += bias, and h += scale * y. */
bool row_sum_is_scaled(const struct stage *s);
void row_sum_add_rest(struct stage *s, float *y, const float *bias, const struct part *p);

/* row_sum.c. Local. y [T, D] = the normed h of the rows that this rank holds (norm NULL: h), and the
 * same quantized in `rows`, which describes all of y. */
void row_sum_norm_own(struct stage *s, const struct part *p, const float *norm,
                      const struct packed *first, float *y, struct act_rows *rows);

/* row_sum.c. Local. Entries of ways in which every rank holds all rows, and reads its inputs alone.
 */
struct act_rows row_sum_norm_all(struct stage *s, const struct part *p, const float *norm,
                                 const struct packed *first);
struct act_rows row_sum_own_input(const struct stage *s, const struct inner_rows *x);
void row_sum_whole_part(struct stage *s, struct part *p);
void row_sum_no_step(struct stage *s);
void row_sum_no_part(struct stage *s, struct part *p);

/* The row-parallel linear at the end of a block, and what follows it before the residual stream. */
struct block_output {
    const struct packed *w;
    const float *bias; /* [D] or NULL */
    const float *norm; /* [D] of an RMSNorm of the output; or NULL */
};

/* stage_linear.c. **Collective (TP)**. h += norm(x w^T + bias) in the rows that this rank holds. */
void stage_add(struct stage *s, const struct block_output *out, struct act_rows *in,
               struct part *p);

/* One column-parallel linear: y [T, N] = x w^T + bias, this rank's outputs. */
struct column {
    const struct packed *w;
    float *y;
    const float *bias; /* [N] or NULL */
};

/* Local. Column-parallel linears of one input, at most three, in one op unless their quantization
 * groups differ. */
void stage_columns(struct stage *s, const struct column *columns, size_t n, struct act_rows *in);

/* Local. y of gate_up[0] = op_gated of gate_up[0] and gate_up[1], which have no biases and one
 * quantization group. With `codes`, y's quantized rows go there, and y itself is defined only where
 * there is a tap. */
void stage_gated(struct stage *s, const struct column gate_up[2], struct act_rows *in,
                 const struct quant_rows *codes);

/* Local. Shows x [n_rows, n] to the tap, if there is one. */
void stage_show(const struct stage *s, enum tap_site site, const float *x, size_t n_rows, size_t n);

/* stage_attention.c. Local. Fills s->attention and chooses s->attend. */
void stage_describe_attention(struct stage *s);

/* Local. Whether heads are padded with zeros to the width that the cache has. */
bool stage_is_padded(const struct stage *s);

/* Local. Positions of all rows, and their rotations, which all layers share. */
void stage_rotate(struct stage *s, const struct seq_rows *seqs, size_t n_seqs, size_t n_rows);

/* **Collective (TP)**. h += attention of the normed h. */
void stage_attention(struct stage *s, const struct layer *layer, struct part *p);

/* stage_latent.c. Local. Memory for latent attention, if the model has it. Errors: STATUS_MEMORY.
 */
struct status stage_make_latent(struct stage *s);
void stage_free_latent(struct stage *s);

/* Local. Latent attention: a stage_attend. */
stage_attend stage_latent;

/* stage_ffn.c. Local. The MoE block, if the model has experts. Errors: STATUS_MEMORY. */
struct status stage_make_moe(struct stage *s);

/* **Collective (STAGE)**. h += FFN or MoE of the normed h. Errors: STATUS_MEMORY. */
struct status stage_ffn(struct stage *s, const struct layer *layer, struct part *p);

#endif

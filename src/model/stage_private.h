/* A stage from inside, shared by the stage_*.c files; not for others. */
#ifndef SHOAL_MODEL_STAGE_PRIVATE_H
#define SHOAL_MODEL_STAGE_PRIVATE_H

#include "attention/attention.h"
#include "kernels/act.h"
#include "kernels/grid_sum.h"
#include "model/stage.h"

/* Rows that go through the layers one behind the other: all of a step, or half of it, so that one
 * half computes while the other's sums travel. */
struct part {
    struct hidden hidden; /* of these rows alone, as all below */
    size_t row0;          /* their first in the step */
    struct range own;     /* those whose h and bad this rank holds, of the part */
    const struct seq_rows *seqs;
    size_t n_seqs;
    float *cos, *sin;
    int64_t *sums;
    int lane;            /* of its sums: GRID_SUM_NOW where there is but one part */
    struct grid_sum sum; /* under way; sums NULL: none */
    const float *bias;   /* [D] or NULL, added behind it */
};
enum { STAGE_PARTS = GRID_SUM_LANES };

struct stage {
    struct stage_options o;
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
    float *k, *v;        /* [T, G Hd] */
    /* latent attention */
    float *q_low;                /* [T, q_lora] */
    float *k_rope;               /* [T, rotary] */
    float *q_latent, *o_latent;  /* [T, H, Hd] */
    struct linear_args *heads;   /* [H] of the heads' own linears */
    struct linear_group *groups; /* [H] */
    float *gate, *up;            /* [T, F] */
    float *shared;               /* [T, D] what all tokens pass beside the experts */
    float *mix;                  /* [T] its gate */
    float *tile_parts;           /* WORKSPACE_TILE_PARTS_BYTES, of attention by tiles */
    uint32_t *head_sums;         /* [T, H + G] of norms over whole projections, as bits */
    /* [T, D + 1] of all parts; own_sums, or memory that the tp ranks share; NULL: all leaves of an
       output are added up here */
    int64_t *sums;
    int64_t *own_sums;
    /* of linears that are cut by outputs: */
    float *outputs;     /* this rank's, for the others to read */
    void *inputs;       /* of all tp ranks, codes or floats; NULL: not yet asked for */
    bool slices;        /* each tp rank holds a slice of many rows: stage_rows.c */
    float *shared_x;    /* [T, D] the slices' x of all tp ranks; NULL: not yet asked for */
    void *shared_codes; /* likewise, of the first linear that meets them */
    int *slice_words;   /* [2, tp] */
    float *cos, *sin;   /* [T, Hd / 2] */
    int32_t *positions; /* [T] host memory, as is the next */
    int32_t *final_rows;
    void *codes;       /* the rows that meet quantized weights; NULL: there are none */
    void *inner_codes; /* likewise, of [T, F] */
};

/* stage_linear.c. Local. Rows x [n_rows, n] as linears read them. */
struct act_rows stage_input(const struct stage *s, const float *x, size_t n_rows, size_t n);

/* stage_outputs.c. Local. This rank's inputs x [n_rows, held] of a row-parallel linear of n_all
 * inputs; memory for their codes, or NULL, where they meet this rank's weights alone. */
struct act_rows stage_row_input(const struct stage *s, const float *x, size_t n_rows,
                                struct range held, size_t n_all, void *memory);

/* **Collective (TP)**. Before a step: where the ranks put these inputs. */
void stage_share_inputs(struct stage *s);

/* Local. What this rank's outputs take. */
size_t stage_outputs_bytes(const struct stage *s);

/* **Collective (TP)**. y [T, D] = x w^T, or adds it, cut by outputs, in the rows that this rank
 * holds; their counters go to hidden. */
void stage_outputs(struct stage *s, const struct packed *w, struct act_rows *in, float *y,
                   bool adds, struct part *p);

/* stage_rows.c. Local. Whether tp ranks hold slices of rows, which they do where all of a stage
 * share a host. After stage_make_moe. Errors: STATUS_MEMORY. */
struct status stage_make_slices(struct stage *s);

/* **Collective (TP)**. Before a step: where the slices' normed rows and codes meet. */
void stage_share_normed(struct stage *s);

/* Local. The rows of n_rows that this rank holds: all, or its slice of many. */
struct range stage_own_rows(const struct stage *s, size_t n_rows);

/* **Collective (TP)**. The normed h of the part, shown as `site`; as `first`, the first linear that
 * meets it, reads it: codes are made on the way. NULL: no linear does. They stand until h changes.
 */
struct act_rows stage_norm(struct stage *s, const struct part *p, const float *norm,
                           enum tap_site site, const struct packed *first);

/* stage_linear.c. Local. Whether this rank has all leaves of all outputs, whose sums its kernels
 * round at once. */
bool stage_has_all_leaves(const struct stage *s);

/* One column-parallel linear: y [T, N] = x w^T + bias, this rank's outputs. */
struct column {
    const struct packed *w;
    float *y;
    const float *bias; /* [N] or NULL */
};

/* Local. Column-parallel linears of one input, at most three, in one op unless their codes differ.
 */
void stage_columns(struct stage *s, const struct column *columns, size_t n, struct act_rows *in);

/* Local. y of gate_up[0] = the product that op_gated makes of both, without biases, with codes of
 * one kind, and its codes unless NULL; with codes y is undefined unless a tap is there to see it.
 */
void stage_gated(struct stage *s, const struct column gate_up[2], struct act_rows *in,
                 const struct quant_rows *codes);

/* **Collective (TP)**. After the last layer: all ranks get all rows of h and their counters. */
void stage_gather_rows(struct stage *s, const struct part *p);

/* **Collective (TP)**. h [T, D] += x w^T, a row-parallel linear: the ranks' leaves summed on the
 * integer grid. Then, once, bias [D] unless NULL. With two parts h has it when the part is entered
 * again, or left. */
void stage_row_parallel(struct stage *s, const struct packed *w, const float *bias,
                        struct act_rows *in, struct part *p);

/* **Collective (TP)**. What follows works on the rows of this part, whose h is complete; the same
 * for the last time. */
void stage_enter(struct stage *s, struct part *p);
void stage_leave(struct stage *s, struct part *p);

/* **Collective (TP)**. y [T, D] = x w^T, likewise, in the rows that this rank holds; their counters
 * go to hidden. */
void stage_row_parallel_to(struct stage *s, const struct packed *w, struct act_rows *in, float *y,
                           struct part *p);

/* Local. Shows x [n_rows, n] to the tap, if there is one. */
void stage_show(const struct stage *s, enum tap_site site, const float *x, size_t n_rows, size_t n);

/* stage_attention.c. Local. What attention needs to know of this stage's heads. */
void stage_describe_attention(struct stage *s);

/* Local. Positions of all rows, and their rotations, which all layers share. */
void stage_rotate(struct stage *s, const struct seq_rows *seqs, size_t n_seqs, size_t n_rows);

/* **Collective (TP)**. h += attention of the normed h; `layer` counts from the stage's first. */
void stage_attention(struct stage *s, uint32_t layer, const struct layer_weights *w,
                     struct part *p);

/* stage_latent.c. Local. Memory for latent attention, if the model has it. Errors: STATUS_MEMORY.
 */
struct status stage_make_latent(struct stage *s);
void stage_free_latent(struct stage *s);

/* Local. s->attended = latent attention of the normed rows `in`. */
void stage_latent(struct stage *s, uint32_t layer, const struct layer_weights *w,
                  const struct part *p, struct act_rows *in);

/* stage_ffn.c. Local. The MoE block, if the model has experts. Errors: STATUS_MEMORY. */
struct status stage_make_moe(struct stage *s);

/* **Collective (STAGE)**. h += FFN or MoE of the normed h. Errors: STATUS_MEMORY. */
struct status stage_ffn(struct stage *s, uint32_t layer, const struct layer_weights *w,
                        struct part *p);

#endif

/* A stage's state, and the ways to add row-parallel sums. Private to this room. */
#ifndef SHOAL_MODEL_STAGE_PRIVATE_H
#define SHOAL_MODEL_STAGE_PRIVATE_H

#include "attention/attention.h"
#include "collective/grid_sum.h"
#include "kernels/act.h"
#include "model/stage.h"
#include "parallel/layout/kv_groups.h"

/* A part's row-parallel sum that is exchanged between ranks while another part computes. */
struct part_sum {
    bool is_open;
    int64_t *sums; /* [T, D + 1] and room (grid_sum_room) */
    struct grid_sum sum;
    const float *bias; /* [D] or NULL; added to the sum */
};

/* The rotations of rows in layers with a window, where these differ from other layers'. */
struct local_rotation {
    float *cos, *sin; /* [T, arch_local_rotary / 2] */
};

/* Consecutive rows of a part that have the same adapter. */
struct adapter_run {
    uint32_t adapter; /* in s->o.adapters */
    size_t row0, n_rows;
};

/* Rows that go through the layers together: all of a step, or one half of it, so that a half
 * computes while the sums of the other are exchanged. */
struct part {
    struct hidden hidden; /* of these rows only, like all members */
    size_t row0;          /* first row, counted in the step */
    struct range own;     /* rows, counted in the part, whose h and bad this rank holds */
    const struct seq_rows *seqs;
    size_t n_seqs, table_stride;    /* the sequences with the blocks of table t: seqs + t *
                                       table_stride */
    const struct adapter_run *runs; /* [n_runs] ascending */
    size_t n_runs;
    const uint32_t *adapters; /* [T] 1 + each row's adapter, 0: none; NULL: no row has one */
    float *cos, *sin;
    struct local_rotation local;
    int lane;                   /* lane for its sums; GRID_SUM_NOW if the step has one part */
    struct part_sum under_way;  /* used by row_sum_grid.c only */
    int number;                 /* below STAGE_PARTS */
    struct moe_rows at_experts; /* the rows of the MoE block's call, while calls_experts */
    const struct layer *calls;  /* the layer of that call */
    bool calls_experts;         /* from stage_send_rows until stage_take_results */
};
enum { STAGE_PARTS = GRID_SUM_LANES };

/* True when this rank holds only a slice of the part's rows. */
static inline bool part_is_cut(const struct part *p)
{
    return range_count(p->own) < p->hidden.n_rows;
}

/* Returns the part's sequences with the blocks of a layer's table. */
static inline const struct seq_rows *part_seqs(const struct part *p, const struct layer *layer)
{
    return p->seqs + layer->kv_table * p->table_stride;
}

/* The state of row_sum_outputs.c. Shared segments belong to the communicator. */
struct by_outputs {
    float *outputs; /* [max_rows, this rank's outputs], then counters; the other ranks read them */
    void *inputs;   /* inputs of all tp ranks, quantized or floats; NULL: before the first step */
    bool slices;    /* each tp rank holds a slice of the rows if there are many */
    float *normed;  /* [T, D] the slices' normed rows, of all tp ranks */
    void *normed_codes;   /* likewise quantized, for the first linear that reads them */
    int *counts, *displs; /* [tp] owned */
};

/* The state of row_sum_grid.c: [T, D + 1] of all parts. */
struct grid_sums {
    int64_t *sums; /* owned, or memory that the tp ranks share */
    int64_t *owned;
};

/* A norm in front of a block: w [D] or NULL for none; bias [D] makes it a layer norm. */
struct norm_weights {
    const float *w, *bias;
};

static inline struct norm_weights stage_norm(const float *w, const float *bias)
{
    return (struct norm_weights){w, bias};
}

/* Memory of a prediction layer; all NULL: the stage has no such layer. Owned. */
struct prediction {
    void *hidden;  /* hidden_bytes of T rows: the layer's rows */
    float *joined; /* [T, 2 D] the normed embedding of a row's next token, and the normed row */
    float *half;   /* [T, D] one of these two at a time */
};

/* Memory of sparse and of compressed attention, in the workspace except `rows`. */
struct index_work {
    float *q, *turned; /* [T, heads of the index, dim]; their rotated parts [T, heads, rotary] */
    float *k, *mix;    /* [T, dim], [T, heads] */
    int32_t *chosen;   /* [T, n_chosen]; with blocks [T, G, n_chosen / block] */
    float *scores;     /* as for op_index */
    void *gathered;    /* this and the next two: as in struct sparse_args */
    int32_t *blocks;   /* if the index chooses blocks, `tables` of struct block_attention */
    struct seq_rows *rows; /* owned; in that case, as in struct block_attention */
};

/* Memory of adapters, of which the largest has rank R; all NULL: there are none. Owned. */
struct adapter_work {
    float *low, *wide;           /* [T, R] A x; [T, outputs] B times it */
    int64_t *sums;               /* [T, R + 1] and room (grid_sum_room) */
    struct linear_group *groups; /* [T] of one linear */
    struct adapter_run *runs;    /* of the step's parts */
    uint32_t *of_row;            /* [T] of the step, as struct part has it */
};

/* The rows of h after those layers of this stage that --save-hidden names (stage_keep.c). */
struct kept_layers {
    uint32_t n, entries[HIDDEN_LAYERS_MAX]; /* entries: indices in o.hidden->at */
    float *rows; /* [n, max_rows, D], owned; NULL if n is 0, and on all tp ranks except the first */
};

struct row_sum;
struct stage;

/* **Collective (TP)**. Sets s->qkv.attended to the attention of a part's normed rows `in` in a
 * layer.
 */
typedef void stage_attend(struct stage *s, const struct layer *layer, const struct part *p,
                          struct act_rows *in);

/* In a stage's workspace: q, k, v and attention's output. */
struct qkv_work {
    float *q, *attended; /* [T, H query_dim], [T, H value_dim], or in layers with heads of another
                            width both [T, H full_dim] */
    float *k, *v;        /* [T, G, Hd] */
    /* Heads of another width than in the cache: those of latent attention, and padded heads. In
     * other models k_narrow is k, v_narrow v, q_wide q, and o_wide attended. */
    float *k_narrow, *v_narrow; /* [T, G, query_dim], [T, G, value_dim]; a layer that computes fewer
                                   heads than the cache has fills only its own; heads of a width of
                                   their own: [T, heads, full_dim] */
    float *q_wide, *o_wide;     /* [T, H, Hd] */
    float *q_gated;             /* [T, H, 2 query_dim] q and gate of each head */
    float *gates;               /* [T, H] one gate for each head */
};

/* In the workspace: a gated delta rule, of the key heads held here; or a Mamba-2 scan. */
struct delta_work {
    float *qkvz, *ba;     /* the projections */
    float *mixed, *gates; /* work of op_delta or op_mamba */
};

/* Latent attention. The arrays of floats are in the workspace, the others owned. */
struct latent_work {
    float *q_low;                /* [T, q_lora] */
    float *k_rope;               /* [T, rotary] */
    struct linear_args *heads;   /* [H] the heads' own linears */
    struct linear_group *groups; /* [H] */
};

/* In the workspace: compressed attention. */
struct entry_work {
    float *kv, *gate;             /* [T, parts * elements of an entry] */
    float *index_kv, *index_gate; /* [T, parts * elements of an index key] */
    void *keys;                   /* index keys of one sequence, as blocks of a cache */
    int32_t *key_blocks;          /* 0, 1, ... */
};

/* In the workspace: work on rows of n residual streams. */
struct streams_work {
    float *rows;              /* [T, D] a block's input before its norm */
    float *normed;            /* [T, n D] */
    float *mix;               /* [T, (2 + n) n] */
    float *pre, *post, *comb; /* [T, n], [T, n], [T, n, n], as op_stream_weights makes them */
};

/* In the workspace: the FFN, and the experts beside it. */
struct ffn_work {
    float *gate, *up; /* [T, F] */
    uint32_t *sums;   /* [T, partials] of an inner norm, as head_sums */
    float *shared;    /* [T, D] output of the shared experts */
    float *shortcut;  /* [T, D] output of experts that is not added to h at once */
    float *routed;    /* [T, D] the router's input, if it is not that of the experts */
    float *mix;       /* [T] the shared experts' gate */
};

/* The step's rotary factors: cos, sin and local in the workspace, q_scale owned. */
struct rotation_work {
    float *cos, *sin; /* [T, rotary / 2] */
    struct local_rotation local;
    float *q_scale; /* [T] factors on q (struct arch_tuning); NULL: the model has none */
};

struct stage {
    struct stage_options o;
    const struct row_sum *row_sum; /* chosen by stage_create, as is attend */
    stage_attend *attend;
    struct part parts[STAGE_PARTS]; /* of the step */
    struct seq_rows *part_seqs;     /* [tables, max_rows + 1] */
    struct kv_groups kv_groups;     /* of layers that share KV blocks */
    struct attention_shape attention;
    struct attention_shape full_attention; /* of layers without a window */
    uint8_t kv_of_head[4096];              /* local kv head of each local head */
    uint8_t kv_of_full_head[4096];         /* the same in full_attention */
    struct kv_pool *kv;
    struct state_pool *states; /* NULL: no layer of the stage has states */
    struct moe *moe;           /* NULL for dense models */
    uint64_t *expert_load;     /* [layers, E] */
    uint64_t workspace_bytes;
    void *workspace; /* owned; holds most arrays below, for T <= max_rows; arrays that are not alive
                        at the same time share memory (parallel/layout/workspace.h) */
    float *x;        /* [T, D] normed input of a block */
    struct qkv_work qkv;
    struct delta_work delta;
    struct latent_work latent;
    struct index_work index;
    struct entry_work entries;
    struct streams_work streams;
    struct ffn_work ffn;
    struct prediction prediction;
    float *tile_parts;   /* WORKSPACE_TILE_PARTS_BYTES, for attention by tiles */
    uint32_t *head_sums; /* [T, H + G] sums of squares for norms over several heads, as bits; in
                            Mamba-2 layers [T, value heads], with an o_norm [T, H] */
    struct by_outputs by_outputs;
    struct grid_sums grid;
    struct adapter_work adapt;
    struct kept_layers kept;
    struct rotation_work rotation;
    float *ones; /* [the widest head, or a row of all streams] 1.0, for norms that have no weights;
                    NULL: the model has no such norm */
    const int32_t *tokens; /* [T] of the step, borrowed; read by hashed layers */
    int32_t *positions;    /* [T] in host memory, as is final_rows */
    int32_t *final_rows;
    void *codes;       /* quantized input rows; NULL: no dense linear reads such rows */
    void *inner_codes; /* likewise, for inner rows [T, F] */
};

/* Returns the number of block tables of a sequence. */
static inline size_t stage_n_tables(const struct stage *s)
{
    return s->kv_groups.n_full + s->kv_groups.n_windowed;
}

/* stage_linear.c. Local. Describes rows x [n_rows, n] as linears read them. */
struct act_rows stage_input(const struct stage *s, const float *x, size_t n_rows, size_t n);

/* This rank's inputs of a row-parallel linear. */
struct inner_rows {
    const float *x; /* [n_rows, held] */
    size_t n_rows;
    struct range held; /* of the linear's n_all inputs */
    size_t n_all;
    void *memory; /* for quantized rows that this rank alone reads; NULL: there are none */
};

/* stage.c. Local. True when a linear of the layer's attention or recurrence, of its dense FFN or of
 * its shared experts has quantized weights, so that the stage needs memory for quantized rows. */
bool stage_layer_is_quantized(const struct layer *l);

/* A way to compute a stage's row-parallel linears (o_proj and the down projections): which of their
 * inputs and outputs a tp rank has, where it finds those of the other ranks, and which rows of h it
 * holds. stage_create chooses one of three, the same on all tp ranks. Each is a file with a drawing
 * of what each rank holds. No entry is NULL. */
struct row_sum {
    const char *name;
    /* Local. Allocates memory besides the workspace and adds its size to workspace_bytes. Errors:
     * STATUS_MEMORY. */
    struct status (*create)(struct stage *s);
    void (*destroy)(struct stage *s);
    /* **Collective (TP)**. Called before the layers of a step. */
    void (*begin_step)(struct stage *s);
    /* Local. Called before the layers of a part. Sets p->own. */
    void (*begin_part)(struct stage *s, struct part *p);
    /* **Collective (TP)**. Returns the normed h of all rows of the part, valid until h changes. The
     * norm also quantizes the rows for `first`, the linear that reads them first; NULL: they are
     * quantized when a linear asks. */
    struct act_rows (*norm)(struct stage *s, const struct part *p, struct norm_weights norm,
                            const struct packed *first);
    /* Local. Returns x as the row-parallel linear reads it. */
    struct act_rows (*input)(const struct stage *s, const struct inner_rows *x);
    /* **Collective (TP)**. y [T, D] = x w^T for the rows that this rank holds; adds their counters
     * to the part's. */
    void (*assign)(struct stage *s, const struct packed *w, struct act_rows *in, float *y,
                   struct part *p);
    /* **Collective (TP)**. h += scale.residual * (x w^T + bias), for the rows that this rank holds;
     * bias [D] or NULL. With two parts, h may be incomplete until `complete`. */
    void (*add)(struct stage *s, const struct packed *w, const float *bias, struct act_rows *in,
                struct part *p);
    /* **Collective (TP)**. Completes the part's last `add`. */
    void (*complete)(struct stage *s, struct part *p);
    /* **Collective (TP)**. Called after the last layer, and after a layer whose rows are kept.
     * Gives all ranks all rows of h and bad. */
    void (*gather)(struct stage *s, struct part *p);
};

extern const struct row_sum row_sum_whole, row_sum_by_outputs, row_sum_by_grid;

/* row_sum.c. Local. Chooses the way that the layout and the ranks allow. */
const struct row_sum *row_sum_choose(const struct stage *s);

/* The arrays that row_sum_blocks writes. */
struct block_sums {
    int64_t *sums; /* [T, D + 1]; NULL: the sums' values go to y instead, and the numbers of
                      K-blocks that left the grid are added to the part's counters */
    float *y;      /* [T, D] */
    bool adds;     /* y += the values; devices only */
};

/* row_sum.c. Local. Computes the sums of this rank's K-blocks of x w^T. */
void row_sum_blocks(struct stage *s, const struct packed *w, struct act_rows *in,
                    const struct block_sums *out, const struct part *p);

/* row_sum.c. Local. row_sum_is_scaled: true when scale.residual is not 1; a linear's sum then goes
 * to an array y of its own, which row_sum_add_rest adds to h. row_sum_add_rest: y += bias; and if
 * scaled, h += scale * y, otherwise y is h. */
bool row_sum_is_scaled(const struct stage *s);
void row_sum_add_rest(struct stage *s, float *y, const float *bias, const struct part *p);

/* row_sum.c. Local. y [T, D] = the normed h of the rows that this rank holds, also quantized for
 * `first` (NULL: no linear) in `rows`, which describes all of y. */
void row_sum_norm_own(struct stage *s, const struct part *p, struct norm_weights norm,
                      const struct packed *first, float *y, struct act_rows *rows);

/* row_sum.c. Local. Entries for ways in which every rank holds all rows and reads only its own
 * inputs. */
struct act_rows row_sum_norm_all(struct stage *s, const struct part *p, struct norm_weights norm,
                                 const struct packed *first);
struct act_rows row_sum_own_input(const struct stage *s, const struct inner_rows *x);
void row_sum_whole_part(struct stage *s, struct part *p);
void row_sum_no_step(struct stage *s);
void row_sum_no_part(struct stage *s, struct part *p);

/* The row-parallel linear at the end of a block, and the steps from it to the residual stream. */
struct block_output {
    const struct packed *w;
    const float *bias;         /* [D] or NULL */
    const float *norm;         /* [D] of an RMSNorm of the output; or NULL */
    const struct layer *layer; /* whose adapters change the linear at `site` */
    enum adapter_site site;
};

/* stage_linear.c. **Collective (TP)**. h += scale.residual * norm(x w^T + bias + the adapters'
 * output) in the rows that this rank holds; without a norm and adapters it is row_sum.add. */
void stage_add(struct stage *s, const struct block_output *out, struct act_rows *in,
               struct part *p);

/* An RMSNorm of rows whose elements are spread over the tp ranks: each rank supplies an f32 partial
 * sum of squares for each `unit` of its own elements, and all ranks add those of the whole row,
 * ascending. The result is rounded to 8 bits if the model's linears read such rows. */
struct whole_norm {
    float *x;       /* [n_rows, held], in place */
    const float *w; /* [held] */
    size_t n_rows;
    struct range held; /* of n_all elements; begins at a multiple of the unit */
    size_t n_all, unit;
    uint32_t *sums; /* [n_rows, units in n_all] as bits */
};

/* stage_linear.c. **Collective (TP)**. Runs struct whole_norm. */
void stage_norm_whole(struct stage *s, const struct whole_norm *a);

/* One column-parallel linear: y [T, N] = x w^T + bias, this rank's outputs. */
struct column {
    const struct packed *w;
    float *y;
    const float *bias; /* [N] or NULL */
};

/* Local. Computes at most three column-parallel linears of one input, in one op unless their
 * quantization groups differ. */
void stage_columns(struct stage *s, const struct column *columns, size_t n, struct act_rows *in);

/* Local. y of gate_up[0] = op_gated of gate_up[0] and gate_up[1], which have no biases and one
 * quantization group. If `codes` is not NULL, y's quantized rows go there, and y itself is defined
 * only if there is a tap. */
void stage_gated(struct stage *s, const struct column gate_up[2], struct act_rows *in,
                 const struct quant_rows *codes);

/* Local. Shows x [n_rows, n] to the tap, if there is one. */
void stage_show(const struct stage *s, enum tap_site site, const float *x, size_t n_rows, size_t n);

/* stage_adapter.c. Local. Allocates memory for adapters, if there are any. Errors: STATUS_MEMORY.
 */
struct status stage_make_adapters(struct stage *s);
void stage_free_adapters(struct stage *s);

/* stage_adapter.c. Local. Finds the runs of rows with an adapter in each of the step's parts. */
void stage_adapters_begin(struct stage *s, const struct seq_rows *seqs, size_t n_seqs,
                          const uint32_t *adapters, size_t n_parts);

/* stage_adapter.c. Local. True when an adapter of the part's rows changes the layer's dense FFN, or
 * its shared experts. */
bool stage_adapts_ffn(const struct stage *s, const struct layer *layer, const struct part *p);

/* Column-parallel linears of a layer, whose sites follow each other from `first` on. */
struct adapter_columns {
    const struct layer *layer;
    enum adapter_site first;
    const struct column *columns; /* [n] */
    size_t n;
};

/* stage_adapter.c. Local. Adds the adapters' B (A x) to the columns' y, x the rows `in`. */
void stage_adapt_columns(struct stage *s, const struct adapter_columns *c, const struct part *p,
                         const struct act_rows *in);

/* The rows of the local heads: an array [T, H, stride]. */
struct head_rows {
    float *rows;
    size_t stride;
};

/* The heads' linears of latent attention at a site of a layer: ADAPTER_K_B or ADAPTER_V_B. */
struct adapter_heads {
    const struct layer *layer;
    enum adapter_site site;
    struct head_rows x, y;
};

/* stage_adapter.c. Local. Adds, for each head, the adapters' b (a x) to y. */
void stage_adapt_heads(struct stage *s, const struct adapter_heads *a, const struct part *p);

/* stage_adapter.c. **Collective (TP)**. y [T, D] += scale * B (A x) for the rows that this rank
 * holds, x the inputs `in` of the row-parallel linear `out`. Counts values of A x that left the
 * integer grid. */
void stage_adapt_output(struct stage *s, const struct block_output *out, const struct act_rows *in,
                        const struct part *p, float scale, float *y);

/* stage.c. **Collective (TP)**. Gives all ranks all rows of h as they are after the layer that ran
 * last. Errors: moe_finish's. */
struct status stage_settle(struct stage *s, size_t n_parts);

/* stage_keep.c. Local. Finds the stage's layers that are kept, and allocates memory for their rows.
 * Errors: STATUS_MEMORY. */
struct status stage_make_kept(struct stage *s);
void stage_free_kept(struct stage *s);

/* stage_keep.c. **Collective (TP)**. If the layer's rows are kept, copies those of all parts.
 * Errors: stage_settle's. */
struct status stage_keep(struct stage *s, const struct layer *layer, size_t n_parts);

/* stage.c. Local. In BERT, the normed rows x [T, D] of a block replace the rows of h that this rank
 * holds: its residual stream is normed; in ModernBERT only those of the model's first block. In
 * other models does nothing. */
void stage_keep_normed(struct stage *s, const struct part *p, bool is_first, const float *x);

/* stage_attention.c. Local. Fills s->attention and s->full_attention, and chooses s->attend. */
void stage_describe_attention(struct stage *s);

/* Local. True when heads are padded with zeros to the width that they have in the cache. */
bool stage_is_padded(const struct stage *s);

/* Local. Announces the step's rows to the ops; computes their positions, and the rotations and
 * factors on q that all layers share. */
void stage_rotate(struct stage *s, const struct seq_rows *seqs, size_t n_seqs, size_t n_rows);

/* **Collective (TP)**. h += attention of the normed h. */
void stage_attention(struct stage *s, const struct layer *layer, struct part *p);

/* stage_latent.c. Local. Allocates memory for latent attention, if the model has it. Errors:
 * STATUS_MEMORY. */
struct status stage_make_latent(struct stage *s);
void stage_free_latent(struct stage *s);

/* Local. Latent attention: a stage_attend. */
stage_attend stage_latent;

/* stage_index.c. Local. Allocates memory for an index, if the model has one. Errors: STATUS_MEMORY.
 */
struct status stage_make_index(struct stage *s);
void stage_free_index(struct stage *s);

/* Local. Computes an index's keys and the weights of its heads from the part's normed rows `in`.
 * Called before q's latent is quantized, because that reuses the memory of the rows' quantized
 * values. */
void stage_index_project(struct stage *s, const struct index_weights *w, struct act_rows *in);

/* Local. Norms and rotates the projected keys and writes them to the cache; rotates the queries and
 * scales the heads' weights. */
void stage_index_keys(struct stage *s, const struct layer *layer, const struct part *p);

/* Local. Attends as `args` says, each row over the positions that the layer's index chooses; a
 * layer without an index takes those of the last layer that had one. */
void stage_attend_chosen(struct stage *s, const struct layer *layer, const struct part *p,
                         const struct attn_args *args);

/* Local. Attends as `work` says in a layer with an index that chooses blocks, whose keys and
 * queries are made from the part's normed rows `in`. */
void stage_attend_blocks(struct stage *s, const struct layer *layer, const struct part *p,
                         struct act_rows *in, const struct attention_work *work);

/* stage_compressed.c. Local. Compressed attention: a stage_attend. */
stage_attend stage_compressed;

/* stage_streams.c. Local. In a model with several residual streams: stage_collapse returns the part
 * as a block sees it, whose h is the block's input; stage_expand mixes the streams and adds the
 * block's output y [T, D], both for the rows that this rank holds. */
struct part stage_collapse(struct stage *s, const struct stream_weights *w, const struct part *p);
void stage_expand(struct stage *s, const struct part *p, const float *y);

/* stage_streams.c. Local. out [n, D] = the weighted sum of the streams of rows [n] of h, which
 * s->final_rows lists. */
void stage_sum_streams(struct stage *s, const float *h, size_t n, float *out);

/* stage_delta.c. Local. Allocates the slots of states, if the stage has recurrent layers or layers
 * with compressed entries. Errors: STATUS_MEMORY. */
struct status stage_make_states(struct stage *s);

/* Local. Returns the shape of the recurrent layers for this rank. */
struct delta_shape stage_delta_shape(const struct stage *s);

/* Gated delta rule, and the Mamba-2 scan of stage_mamba.c: a stage_attend each. */
stage_attend stage_delta, stage_mamba;

/* stage.c. Local. stage_norm_rows: out [n, D] = the normed rows [n] of h. stage_scale_rows
 * multiplies n rows by the model's scale.logits, for the head. */
void stage_scale_rows(struct stage *s, size_t n, float *rows);
void stage_norm_rows(struct stage *s, const float *h, const struct norm_weights *norm,
                     const size_t *rows, size_t n, float *out);

/* stage_predict.c. Local. Allocates memory for the prediction layer, if the stage has it. Errors:
 * STATUS_MEMORY. */
struct status stage_make_prediction(struct stage *s);
void stage_free_prediction(struct stage *s);

/* **Collective (TP)**. Returns the rows that the prediction layer begins with, in its own memory.
 * next [T] as for stage_predict; hidden: the rows after the model's last ordinary layer. */
struct hidden stage_join(struct stage *s, const int32_t *next, const struct hidden *hidden);

/* stage_ffn.c. Local. Creates the MoE block, if the model has experts. Errors: STATUS_MEMORY,
 * STATUS_USAGE (a capacity factor, for a routing that supports none). */
struct status stage_make_moe(struct stage *s);

/* **Collective (STAGE)**. h += FFN or MoE of the normed h. Errors: moe_forward's. */
struct status stage_ffn(struct stage *s, const struct layer *layer, struct part *p);

/* **Collective (STAGE)**, instead of stage_ffn for a MoE whose rows travel (moe_travels): three
 * steps, between which other parts compute. stage_send_rows also computes the shared experts, or
 * the dense FFN beside the experts. stage_take_results does nothing if nothing is under way; after
 * it h is complete, unless the next layer adds the experts' output. Errors: moe_start's. */
struct status stage_send_rows(struct stage *s, const struct layer *layer, struct part *p);
struct status stage_run_experts(struct stage *s, struct part *p);
struct status stage_take_results(struct stage *s, struct part *p);

#endif

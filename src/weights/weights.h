/* A rank's weights: which slabs of which tensors a place in the layout holds, and their memory as
 * packed for the kernels. The list is pure; loading fills it from a checkpoint. */
#ifndef SHOAL_WEIGHTS_WEIGHTS_H
#define SHOAL_WEIGHTS_WEIGHTS_H

#include "arch/arch.h"
#include "arch/arch_tensors.h"
#include "checkpoint/file/ckpt.h"
#include "checkpoint/load/loader.h"
#include "parallel/comm/comm.h"
#include "parallel/layout/layout.h"
#include "weights/layer.h"

/* One slab: of the whole tensor [n_outer, n_rows, n_cols], the ranges that a place holds. */
struct weight_spec {
    char name[128];
    enum weight_role role;
    uint32_t layer; /* absolute; 0 for roles outside layers */
    bool is_vector; /* a norm or a bias: kept in f32; the tensor is [n_cols] */
    bool is_expert; /* the tensor is [E, out, in]; outer is the range of places of experts. With
                       is_vector it is [E, n_cols], rows is that range */
    uint32_t n_outer, n_rows, n_cols;
    struct range outer, rows, cols;
};

/* Local. Whether a role is a matrix of an FFN that all tokens pass: a dense layer's, or what is
 * shared beside the experts. */
bool weight_role_is_ffn(enum weight_role role);

/* Takes one slab; ctx is weights_list's. */
typedef struct status weight_emit(void *ctx, const struct weight_spec *spec);

/* Local. Calls emit for each slab of the place, in a fixed order, until one fails. Empty slabs are
 * left out. A tied head is emitted where the embedding is not already held. Errors: emit's. */
struct status weights_list(const struct arch *m, const struct layout *l, struct layout_place place,
                           weight_emit *emit, void *ctx);

/* Local. Completes the layout's model with the K-blocks that the checkpoint stores, and its weight
 * type. Errors: STATUS_INPUT when a tensor the model needs is missing, has another shape, or when
 * the file has a tensor that the model does not know (a bias, say): nothing is ignored. */
struct status weights_check(const struct arch *m, const struct ckpt *c, struct layout_model *out);

/* Mapped memory that tensors are cut from. */
struct weights_block {
    void *base; /* owned */
    size_t n_bytes, n_used;
    bool on_device; /* where the ops work, else the host's */
};

struct weights {
    struct layout_place place;
    struct range layers, heads, kv_heads, vocab, experts;
    struct layer *stage_layers; /* [layers], owned */
    struct packed embed;        /* [vocab rows, D], first stage */
    struct packed head;         /* [vocab rows, D], last stage; may share embed's data */
    float *final_norm;          /* [D], last stage */
    float *inv_freq;            /* [rotary / 2] */
    struct ckpt_rope_factors rope_factors;
    uint64_t n_bytes;             /* all of the above */
    struct weights_block *blocks; /* owned; memory of everything here */
    size_t n_blocks, blocks_capacity;
    const struct kern_table *kern; /* borrowed: where matrices, vectors and inv_freq stand */
    /* where the layout lends experts: borrowed, outlives the weights; else NULL. lent_bytes: the
     * part of COMM_LANE_EXPERTS that they take */
    struct comm *lends_by;
    size_t lent_bytes;
};

/* A place's weights, and where they come from. All pointers are borrowed; kern outlives the
 * weights. Where the layout lends experts, these stand in the one COMM_LANE_EXPERTS of comm, which
 * then outlives the weights, too. */
struct weights_source {
    const struct arch *model;
    const struct layout *layout;
    struct layout_place place;
    const struct kern_table *kern; /* its ops work where the weights will stand */
    struct ckpt *ckpt;
    struct comm *comm;
};

/* **Collective (world)**. Allocates and fills the weights of a place. Errors, the same on all
 * ranks: STATUS_INPUT, STATUS_MEMORY. */
struct status weights_load(const struct weights_source *from, struct weights **out,
                           struct loader_stats *stats);
/* Local. Accepts NULL. Experts that are lent go, too: the other ranks' last step must be over,
 * which it is once this rank's own last step is, since each MoE block ends with a barrier. */
void weights_destroy(struct weights **w);

#endif

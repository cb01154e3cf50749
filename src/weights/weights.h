/* A rank's weights: the slabs that its place holds (parallel/layout/weights_list.h), packed for the
 * kernels and filled from a checkpoint. */
#ifndef SHOAL_WEIGHTS_WEIGHTS_H
#define SHOAL_WEIGHTS_WEIGHTS_H

#include "arch/arch_tensors.h"
#include "checkpoint/file/ckpt.h"
#include "checkpoint/load/loader.h"
#include "parallel/comm/comm.h"
#include "parallel/layout/weights_list.h"
#include "weights/layer.h"

/* Local. The layout's model of m, with the K-blocks and formats that the checkpoint stores; borrows
 * m. Errors: STATUS_INPUT when a tensor the model needs is missing, has another shape, or when
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
    enum loader_cache cache;
    uint64_t free_bytes; /* of the host; 0: unknown (loader.h) */
};

/* **Collective (world)**. Allocates and fills the weights of a place. Errors, the same on all
 * ranks: STATUS_INPUT, STATUS_MEMORY. */
struct status weights_load(const struct weights_source *from, struct weights **out,
                           struct loader_stats *stats);
/* Local. Accepts NULL. Experts that are lent go, too: the other ranks' last step must be over,
 * which it is once this rank's own last step is, since each MoE block ends with a barrier. */
void weights_destroy(struct weights **w);

#endif

/* A rank's weights: its slabs of the tensors (parallel/layout/weights_list.h), read from a
 * checkpoint and packed for the kernels. */
#ifndef SHOAL_WEIGHTS_WEIGHTS_H
#define SHOAL_WEIGHTS_WEIGHTS_H

#include "arch/arch_tensors.h"
#include "base/failpoint.h"
#include "checkpoint/file/ckpt.h"
#include "checkpoint/load/loader.h"
#include "parallel/comm/comm.h"
#include "parallel/layout/weights_list.h"
#include "weights/expert_stream.h"
#include "weights/layer.h"

/* Local. Describes m for the layout, with the K-blocks and formats that the checkpoint stores;
 * borrows m. Errors: STATUS_INPUT when a tensor that the model needs is missing or has another
 * shape or a format that the runtime cannot take, when a tied model's head differs from its
 * embedding, or when the file has a tensor that the model does not know (a bias, say), except some
 * that no forward pass reads. STATUS_MEMORY. */
struct status weights_check(const struct arch *m, const struct ckpt *c, struct layout_model *out);

/* Local. True when the model may have a prediction layer and the checkpoint has tensors of it. */
bool weights_may_predict(const struct arch *m, const struct ckpt *c);

/* Memory that tensors are cut from. */
struct weights_block {
    void *base; /* owned */
    size_t n_bytes, n_used;
    bool on_device; /* on the device; else in the host's memory */
};

struct weights {
    struct layout_place place;
    struct range layers, heads, full_heads, kv_heads, delta_heads, vocab, experts;
    struct layer *stage_layers; /* [layers], owned */
    struct packed embed;        /* [vocab rows, D], first stage */
    float *positions, *types;   /* [n_positions, D], [n_types, D] of an encoder, first stage; or
                                   NULL */
    struct packed head;         /* [vocab rows, D], last stage, unless headless; may share embed's
                                   data */
    float *final_norm_bias;     /* [D] of a layer norm, or NULL */
    float *head_bias;           /* [this rank's vocabulary] or NULL */
    float *final_norm;          /* [D], last stage */
    struct stream_weights final_streams; /* last stage; empty: there is one residual stream */
    float *inv_freq;                     /* [rotary / 2] */
    float *local_inv_freq; /* [arch_local_rotary / 2] of layers with a window; NULL: the same */
    struct ckpt_rope_factors rope_factors;
    uint64_t n_bytes;             /* all of the above */
    struct weights_block *blocks; /* owned; memory of everything but lent and streamed experts */
    size_t n_blocks, blocks_capacity;
    bool streams_experts;          /* the experts' matrices stay on disk; `stream` reads them */
    struct expert_stream *stream;  /* owned; NULL unless streams_experts */
    const struct kern_table *kern; /* borrowed; matrices, vectors and inv_freq are in its memory */
    /* if the layout lends experts: the communicator whose shared segment holds them, borrowed,
     * outlives the weights; else NULL. lent_bytes: their bytes in COMM_LANE_EXPERTS */
    struct comm *lends_by;
    size_t lent_bytes;
};

/* The weights to load. All pointers are borrowed; kern outlives the weights. If the layout lends
 * experts, they are in comm's COMM_LANE_EXPERTS, so comm also outlives the weights, and a comm
 * serves only one such set. */
struct weights_source {
    const struct arch *model;
    const struct layout *layout;
    struct layout_place place;
    const struct kern_table *kern; /* the weights go to its memory */
    struct ckpt *ckpt;
    struct comm *comm;
    enum loader_cache cache;
    uint64_t free_bytes; /* free memory of the host; 0: unknown (loader.h) */
    /* the packed copy of the experts, which then stream from it; NULL: all weights stay in memory.
     * Must be NULL where the layout lends experts, and on a device */
    const char *expert_file;
    struct failpoint *failpoint; /* of the stream's reads; tests only; NULL: none */
    bool fp8_as_int8; /* express fp8 weights as int8 (kernels/fp8_int8.h), except embedding, head,
                         router and those whose leaves are not whole groups; on the CPU */
};

/* **Collective (world)**. Allocates and fills the weights of a place; `stats` may be NULL. Errors,
 * the same on all ranks: STATUS_INPUT, STATUS_IO, STATUS_MEMORY; STATUS_USAGE for fp8_as_int8 on a
 * device, or with an expert_file. */
struct status weights_load(const struct weights_source *from, struct weights **out,
                           struct loader_stats *stats);

/* **Collective (world)**, between two steps. Moves experts to the places of `to`, of the same
 * layout and with as many places: reads from the checkpoint each expert that is new at a place of
 * this rank, into the memory of the expert that was there. `from` is as for weights_load, w its
 * result; the weights are on the CPU and do not stream. The caller then copies `to` to
 * from->layout->expert_places (expert_places_take). *stats counts what was read. Errors, the same
 * on all ranks: STATUS_INPUT, STATUS_IO, STATUS_MEMORY; then the weights cannot be used any more.
 */
struct status weights_move_experts(const struct weights_source *from, struct weights *w,
                                   const struct expert_places *to, struct loader_stats *stats);

/* Local. Accepts NULL. Also frees lent experts, which other ranks read until the end of their last
 * step. So call it after this rank's own last step: each MoE block ends with a barrier, so the
 * others have then read them. */
void weights_destroy(struct weights **w);

#endif

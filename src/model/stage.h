/* One pipeline stage of one rank: its weights, its KV pool, its workspace; and the forward pass of
 * a microbatch through its layers. Knows its own slice only: no other stages, no requests. */
#ifndef SHOAL_MODEL_STAGE_H
#define SHOAL_MODEL_STAGE_H

#include "arch/arch.h"
#include "arch/hidden_layers.h"
#include "attention/kv_pool.h"
#include "attention/state_pool.h"
#include "model/model_flags.h"
#include "moe/moe.h"
#include "parallel/comm/comm.h"
#include "tensor/tap.h"
#include "weights/adapters.h"

/* The hidden rows that stages send to each other, as one message: h, then the counters. */
struct hidden {
    size_t n_rows;    /* T */
    float *h;         /* [T, D] residual stream; [T, n D] if the model has n streams */
    int32_t *bad;     /* [T] sums of K-blocks or of experts that left the integer grid */
    int32_t *dropped; /* [T] expert choices dropped by a capacity factor */
};

/* Local. Bytes of a message of n_rows rows of `width` (arch_row_width); and `buffer` seen as that
 * message. */
size_t hidden_bytes(size_t n_rows, uint32_t width);
struct hidden hidden_view(void *buffer, size_t n_rows, uint32_t width);

struct stage_options {
    const struct arch *model; /* all borrowed */
    const struct layout *layout;
    const struct weights *weights;
    const struct adapters *adapters; /* NULL: none */
    const struct kern_table *kern;
    struct comm *comm;
    uint32_t rank;
    size_t max_rows;    /* T of the largest step of a replica */
    size_t halves_from; /* the engine runs a step in two halves when a replica has this many rows or
                           more; the same on all ranks; 0: never */
    uint32_t n_kv_blocks;
    uint32_t n_state_slots; /* of recurrent states; 0: the model has none */
    const struct model_flags *flags;
    const struct capacity_flags *capacity;
    const struct tap *tap;              /* hook for calibration; NULL: none */
    const struct hidden_layers *hidden; /* layers whose rows are kept for the engine, the same on
                                           all ranks; NULL: none */
};

/* Local. True when quantized weights are multiplied with f32 activations: by the flag, or because
 * the model itself rounds its activations with one scale for a whole row (BitNet). */
static inline bool stage_is_weight_only(const struct stage_options *o)
{
    return o->flags->activations == ACTIVATIONS_F32 || o->model->rounds_inputs;
}

/* **Collective (world)**, after comm_split and before weights are listed. Decides whether the
 * layout cuts o_proj and the dense down projections by outputs (if the tp ranks of every stage
 * share a host's memory), whether it cuts the experts' down projections likewise (if no rows of
 * experts are sent, moe/exchange_host.c), and whether ranks lend each other their experts
 * (moe/balance.h). */
void stage_choose_cuts(const struct kern_table *kern, struct comm *c, enum capacity_policy policy,
                       struct layout *l);

struct stage;

/* Local. Allocates everything that a step needs except the MoE's exchange buffers, which grow, and
 * the inputs and normed rows that tp ranks share, whose memory the first step gets. Errors:
 * STATUS_MEMORY, the device's, STATUS_USAGE (a capacity factor, for a routing that supports none).
 * destroy accepts NULL. */
struct status stage_create(const struct stage_options *options, struct stage **out);
void stage_destroy(struct stage **s);

/* **Collective (TP)**. First stage: sets h to the embeddings of tokens [T] and the counters to
 * zero. */
void stage_embed(struct stage *s, const int32_t *tokens, struct hidden *hidden);

/* The rows of an encoder's texts. */
struct encoder_rows {
    const int32_t *tokens;       /* [T] */
    const struct seq_rows *seqs; /* [n_seqs], covering all rows, each a whole text */
    const int32_t *second_from;  /* [n_seqs] first row of type 1, counted in the text; 0: none */
    size_t n_seqs;
};

/* Local. First stage, after stage_embed: in an encoder with a table of positions, adds the
 * embeddings of the rows' types and positions to h. In other models does nothing. */
void stage_embed_places(struct stage *s, const struct encoder_rows *rows, struct hidden *hidden);

/* Local. Lends the stage the tokens [T] of the rows of the next stage_forward, which layers with
 * hashed experts read. */
void stage_take_tokens(struct stage *s, const int32_t *tokens);

/* **Collective (STAGE)**. Runs this stage's layers over the rows; seqs [n_seqs] cover the rows. The
 * array has a copy of them for each block table of the model (parallel/layout/kv_groups.h),
 * max_rows apart; the copies differ only in their blocks, of which those that the rows see must be
 * valid. adapters [n_seqs]: 1 + the number of each sequence's adapter, 0: none; NULL: all have
 * none. With in_halves (the same on all ranks) two halves of the rows take turns in each layer.
 * While one half is computed, the sums over tp of the other half are exchanged (on a device), or
 * its rows travel to experts on other hosts. The bytes are the same. Errors: STATUS_MEMORY, the
 * device's, those of streamed experts. */
struct status stage_forward(struct stage *s, const struct seq_rows *seqs, size_t n_seqs,
                            const uint32_t *adapters, bool in_halves, struct hidden *hidden);

/* Local. Last stage: out [n, D] = the final norm of rows [n] of h, times the model's scale.logits,
 * ready for the head. */
void stage_final_norm(struct stage *s, const struct hidden *hidden, const size_t *rows, size_t n,
                      float *out);

/* Local. As stage_final_norm, but not times scale.logits: the model's hidden states. */
void stage_hidden_rows(struct stage *s, const struct hidden *hidden, const size_t *rows, size_t n,
                       float *out);

/* Local, first tp rank, after stage_forward. Returns [T, D], the rows of the residual stream after
 * `layer`, one of this stage's layers that o->hidden names; in the memory of the stage's kernels,
 * valid until the next step. */
const float *stage_kept_rows(const struct stage *s, uint32_t layer);

/* **Collective (STAGE)**. Last stage of a model with a prediction layer, after stage_forward: runs
 * that layer over the same rows. next [T] are the tokens that follow the rows. Errors: as
 * stage_forward. */
struct status stage_predict(struct stage *s, const struct seq_rows *seqs, size_t n_seqs,
                            bool in_halves, const int32_t *next, const struct hidden *hidden);

/* Local. As stage_final_norm, for the prediction layer's rows: the head then gives the logits of
 * the tokens after `next`. */
void stage_predicted_norm(struct stage *s, const size_t *rows, size_t n, float *out);

/* Local. Returns [layers of this stage, E]: how often this rank's tokens have chosen each expert so
 * far; borrowed; NULL for dense models. */
const uint64_t *stage_expert_load(const struct stage *s);

/* Local. Returns the counts of this rank's MoE block, over all layers so far; zeros without
 * experts. */
struct moe_traffic stage_moe_traffic(const struct stage *s);
/* **Collective (EP)**, between steps. Counts the rows of the busiest ranks (moe_count_busiest). */
void stage_count_busiest(struct stage *s);

/* Local, between steps. Takes note that the places of the layout's experts have changed
 * (moe_expect_rows). Errors: STATUS_MEMORY. */
struct status stage_take_places(struct stage *s);

/* Local. Returns the KV pool; borrowed. */
const struct kv_pool *stage_kv_pool(const struct stage *s);

/* Local. Bytes of the KV pool, of the recurrent states and of the workspace. */
uint64_t stage_kv_bytes(const struct stage *s);
uint64_t stage_state_bytes(const struct stage *s);
uint64_t stage_workspace_bytes(const struct stage *s);

#endif

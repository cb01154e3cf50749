/* The layout: which rank holds which part of the model. It is a pure function of the model's shape,
 * the number of ranks and the flags, so every rank computes the same one without communication.
 *
 * World = dp x pp x tp. Inside one stage the experts spread over `ep` of the stage's dp x tp ranks;
 * what is left over, dp x tp / ep, splits each expert (etp = gcd(dp x tp / ep, tp)) and then
 * replicates them. Everything is split in whole units, unevenly where it does not divide: layers,
 * heads (in units of o_proj's leaves), FFN columns (in leaves), experts, vocabulary rows. */
#ifndef SHOAL_PARALLEL_LAYOUT_LAYOUT_H
#define SHOAL_PARALLEL_LAYOUT_LAYOUT_H

#include "arch/arch_tensors.h"
#include "base/status.h"
#include "parallel/layout/layout_flags.h"
#include "parallel/wire/wire_bytes.h"

#include <stdbool.h>
#include <stdint.h>

struct range {
    uint32_t begin, end; /* [begin, end) */
};

static inline uint32_t range_count(struct range r)
{
    return r.end - r.begin;
}

enum {
    LAYOUT_RANKS_MAX = 65536,
};

/* How the weights of a class stand in memory. Each output has ceil(inputs / group) groups of
 * group_bytes, scales and zeros included; group 1: plain elements; group 0: not said, elements of
 * weight_bytes. */
struct layout_weight {
    uint32_t group, group_bytes;
};

/* The model that is laid out: its description, and how a checkpoint stores it. Leaves are in
 * elements (tensor/leaf.h). */
struct layout_model {
    const struct arch *arch; /* borrowed; outlives the layout */
    char name[64];
    uint32_t o_leaf; /* a multiple of value_dim */
    uint32_t ffn_leaf, expert_leaf, shared_leaf;
    uint32_t delta_leaf; /* of a gated delta rule's output projection: whole key heads */
    /* unit in which the inputs of o_proj and the down projections are cut where outputs are cut:
     * the longest quantization group; 0: leaves */
    uint32_t inner_unit;
    uint32_t weight_bytes; /* bytes of one weight element in memory, where not said otherwise */
    struct layout_weight weights[CLASS_COUNT];
    bool streams_experts;       /* their matrices stand on disk (weights/expert_stream.h) */
    bool on_device;             /* ranks compute on GPUs */
    uint32_t expert_code_group; /* the experts' gate and up read int8 values in groups of so many
                                   inputs (of the last layer with experts); 0: floats */
    uint32_t expert_fp8_group;  /* the same where they are fp8 and become int8 on loading
                                   (--fp8-activations int8); 0: they are not fp8 */
    bool keeps_windows; /* layers with a window keep all their KV blocks (kv_groups.h): on devices,
                           and where no context is longer than the window */
};

/* Local. The model m with leaves chosen as convert does; borrows m. weight_bytes: of one weight
 * element in memory. */
void layout_describe(const struct arch *m, uint32_t weight_bytes, struct layout_model *out);

/* One rank's place. */
struct layout_place {
    uint32_t dp, pp, tp; /* coordinates in the world */
    uint32_t ep, etp;    /* which experts, which part of them */
    uint32_t expert_replica;
};

struct expert_places; /* parallel/layout/expert_places.h */

struct layout {
    uint32_t n_ranks, tp, pp, ep, dp, etp, n_expert_replicas;
    bool pp_outermost; /* rank order: pp, dp, tp when ep spans replicas, else dp, pp, tp */
    struct layout_model model;
    /* o_proj and the down projections are cut by outputs instead of inputs; likewise the experts'
     * (over etp). For ranks that read each other's inputs in a host's memory: model/stage.h sets
     * both before weights are listed. Off at first. */
    bool cuts_outputs, cuts_expert_outputs;
    /* hosts of the ranks that hold a replica of the experts, the most of any; layout_choose sets
     * it. 0: not known, taken as one */
    uint32_t expert_hosts;
    /* ranks compute rows of each other's experts, which they can read (moe/balance.h); likewise */
    bool lends_experts;
    /* where the experts of a layer stand; borrowed; NULL at first: expert e at place e */
    const struct expert_places *expert_places;
    /* places of a layer beyond the number of its experts, for their copies (--expert-copies) */
    uint32_t n_expert_copies;
    uint32_t stage_begin[ARCH_LAYERS_MAX + 1]; /* layers of stage s: [begin[s], begin[s + 1]) */
    char why[1024]; /* one sentence per choice, for people; written by layout_choose */
};

/* Local. The largest tp: query heads in units of o_proj's leaves. */
uint32_t layout_tp_max(const struct layout_model *model);

/* Local. Builds the layout of n_ranks ranks. tp beyond the query heads (in units of o_leaf), pp
 * beyond the layers, ep that does not divide dp x tp or exceeds the experts, --ep above 1 for a
 * dense model, a product unlike n_ranks: STATUS_USAGE with a sentence. A model that cannot be cut
 * (heads, layers, experts): STATUS_INPUT. `--ep N` alone means tp N with ep N. Flags left at 0 must
 * have been chosen by layout_choose or follow from the others; what cannot be derived defaults to:
 * ep = dp x tp for MoE (1 for dense), pp = 1, dp = rest. */
struct status layout_build(const struct layout_model *model, uint32_t n_ranks,
                           const struct layout_flags *flags, struct layout *out);

/* Local. Whether the layout allows cutting by outputs, for dense linears and for experts. The ranks
 * must also share a host's memory and compute on CPUs. */
bool layout_may_cut_outputs(const struct layout *l);
bool layout_may_cut_expert_outputs(const struct layout *l);

/* Local. Whether the layout allows ranks to compute rows of each other's experts: all have the same
 * rows, and each has an expert. */
bool layout_may_lend_experts(const struct layout *l);

/* Local. The place of a rank of the reordered world, and back. */
struct layout_place layout_place_of(const struct layout *l, uint32_t rank);
uint32_t layout_rank_of(const struct layout *l, uint32_t dp, uint32_t pp, uint32_t tp);
/* The first of the etp ranks of a stage that hold part ep of the experts, in one of their replicas.
 */
uint32_t layout_expert_rank(const struct layout *l, uint32_t pp, uint32_t replica, uint32_t ep);

/* Local. The parts that a place holds. A range may be empty if there are more ranks than units. */
struct range layout_layers(const struct layout *l, uint32_t pp);
struct range layout_heads(const struct layout *l, uint32_t tp);
/* The kv heads that these query heads read: [floor(h0 / (H/G)), ceil(h1 / (H/G))); kv heads that
 * several ranks need are held by each of them. */
struct range layout_kv_heads(const struct layout *l, uint32_t tp);
struct range layout_ffn(const struct layout *l, uint32_t tp);
struct range layout_vocab(const struct layout *l, uint32_t tp);
/* Places of experts, which are their ids where there are no expert_places; and the number of a
 * layer's places. */
struct range layout_experts(const struct layout *l, uint32_t ep);
uint32_t layout_n_places(const struct layout *l);
struct range layout_expert_ffn(const struct layout *l, uint32_t etp);
struct range layout_shared_ffn(const struct layout *l, uint32_t tp);
/* Key heads of a gated delta rule, with their value heads. */
struct range layout_delta_heads(const struct layout *l, uint32_t tp);
/* Outputs of o_proj and down, and of the experts' down, in whole panels where these are cut so. */
struct range layout_outputs(const struct layout *l, uint32_t tp);
struct range layout_expert_outputs(const struct layout *l, uint32_t etp);

/* Local. The even split in whole units that all of the above use: part `i` of `n_parts` of
 * [0, total), cut at multiples of `unit`; earlier parts get the remainders. */
struct range layout_split(uint32_t total, uint32_t unit, uint32_t n_parts, uint32_t i);

/* Bytes a rank needs. Shapes: weights as packed for the kernels, KV per block of 64 tokens. */
struct layout_memory {
    uint64_t weights_bytes;
    uint64_t kv_block_bytes;  /* of the layers of one group (parallel/layout/kv_groups.h) */
    uint64_t state_bytes;     /* of one sequence's recurrent states; 0: the model has none */
    uint64_t workspace_bytes; /* a stage's arrays (parallel/layout/workspace.h) */
    uint64_t exchange_bytes;  /* largest buffers for data to and from other ranks */
    /* of streamed experts: the least memory that they pass through, and all of their weights, which
     * are not in weights_bytes */
    uint64_t stream_bytes, on_disk_bytes;
};

enum { LAYOUT_STREAM_LEAST = 4 /* experts that the least memory holds */ };

/* Local. The exchange between the hosts of the experts, for its bytes on the wire. */
struct wire_shape layout_wire_shape(const struct layout *l);

/* Local. Rows that come to the experts of a place in one layer of a step in which each replica has
 * step_tokens rows, on average; n_experts of the place hold them. */
double layout_expert_rows(const struct layout *l, struct layout_place place, uint64_t step_tokens);

/* Local. The bytes of exchange_bytes, and the part of them that a MoE block allocates
 * (moe_memory_bytes) when routers choose evenly; up to twice as many rows as that are counted, but
 * no more than there can be. Where experts stream, all that there can be: a plan is a bound then.
 */
uint64_t layout_exchange_bytes(const struct layout *l, struct layout_place place,
                               uint64_t step_tokens);
uint64_t layout_moe_bytes(const struct layout *l, struct layout_place place, uint64_t step_tokens);

/* Local. All of it but the KV cache and the recurrent states. */
uint64_t layout_fixed_bytes(const struct layout_memory *m);

enum {
    LAYOUT_SLOTS = 64,      /* sequences whose recurrent states a replica holds, unless --max-batch
                               says more or fewer */
    LAYOUT_STATES_PART = 4, /* the states take at most this part of the room for KV and states */
};

/* Local. Slots of recurrent states that a replica wants, 0 where the model has none; and those that
 * fit into the room beside the fixed bytes, at least one. */
uint32_t layout_slots_wanted(const struct arch *m, int32_t max_batch);
uint32_t layout_slots_in(uint64_t room_bytes, uint64_t slot_bytes, uint32_t n_wanted);

/* Bytes of one cached element, and of the scale that a token's head has beside its elements (int8,
 * else 0). */
struct layout_kv {
    uint32_t element_bytes, scale_bytes;
};

struct layout_budget {
    struct layout_kv kv;
    uint32_t step_tokens;   /* rows of the largest step */
    uint32_t min_kv_blocks; /* one full context, in blocks of one table (kv_groups_context) */
    uint32_t n_state_slots; /* slots of recurrent states that are wanted; 0: the model has none */
    uint64_t rank_bytes;    /* that a rank may use; 0: nine tenths of its part of the host */
    uint64_t device_bytes;  /* of the GPUs, the part of the rank with the least; 0: ranks compute on
                               CPUs. Then nine tenths of this, not of the host, may be used */
    double network_bytes_s; /* of a host; 0: 100 Gbit/s */
};

/* Local. Bytes of the k inputs of one output; and of one weight on average, over whole groups. */
uint64_t layout_row_bytes(const struct layout_model *m, enum arch_class c, uint64_t k);
double layout_weight_bytes(const struct layout_model *m, enum arch_class c);

/* Local. step_tokens: rows of the largest step. */
struct layout_memory layout_memory_of(const struct layout *l, struct layout_place place,
                                      struct layout_kv kv, uint32_t step_tokens);

#endif

/* The layout: which rank holds which part of the model. It is a pure function of the model's shape,
 * the number of ranks and the flags, so every rank computes the same one without communication.
 *
 * World = dp x pp x tp. Inside one stage the experts spread over `ep` of the stage's dp x tp ranks;
 * the remaining factor, dp x tp / ep, first splits each expert over etp = gcd(dp x tp / ep, tp)
 * ranks and then replicates the experts. Everything is split in whole units, unevenly where the
 * numbers do not divide: layers, heads and FFN columns (in leaves or, where outputs are cut, in
 * quantization groups), experts, vocabulary rows (in panels). */
#ifndef SHOAL_PARALLEL_LAYOUT_LAYOUT_H
#define SHOAL_PARALLEL_LAYOUT_LAYOUT_H

#include "arch/arch_tensors.h"
#include "base/status.h"
#include "parallel/layout/layout_flags.h"
#include "parallel/wire/wire_bytes.h"
#include "tensor/quant_format.h"

#include <stdbool.h>
#include <stdint.h>

struct topo; /* parallel/topology/topo.h */

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

/* How the weights of a class are stored in memory. Each output has ceil(inputs / group) groups of
 * group_bytes each, including scales and zero points. group 1: plain elements; group 0: unknown, so
 * counted as elements of weight_bytes. */
struct layout_weight {
    uint32_t group, group_bytes;
    enum quant_kind kind; /* read, like dtype, by the cost model alone */
    enum dtype dtype;     /* type of plain elements */
};

/* The model that is laid out: its description, and how a checkpoint stores it. Leaves are in
 * elements (tensor/leaf.h). */
struct layout_model {
    const struct arch *arch; /* borrowed; outlives the layout */
    char name[64];
    uint32_t o_leaf; /* a multiple of value_dim */
    uint32_t ffn_leaf, expert_leaf, shared_leaf;
    uint32_t delta_leaf; /* of the gated delta rule's output projection; holds the value heads of
                            whole key heads */
    /* when o_proj and the down projections are cut by outputs, ranks divide their inputs in this
     * unit: the longest quantization group; 0: in leaves */
    uint32_t inner_unit;
    uint32_t weight_bytes; /* bytes of a weight in memory, unless `weights` says otherwise */
    struct layout_weight weights[CLASS_COUNT];
    bool streams_experts;       /* the experts' matrices stay on disk (weights/expert_stream.h) */
    bool on_device;             /* ranks compute on GPUs */
    uint32_t expert_code_group; /* the experts' gate and up read int8 values in groups of this
                                   size, that of the last layer with experts; 0: they read floats */
    uint32_t expert_fp8_group;  /* the value for expert_code_group with --fp8-activations int8,
                                   when the experts are fp8; 0: they are not fp8 */
    bool keeps_windows; /* layers with a window keep all their KV blocks (kv_groups.h), for instance
                           on devices, and where no context is longer than the window */
};

/* Local. Describes the model m with the leaves that convert would choose; *out borrows m.
 * weight_bytes: bytes of one weight element in memory. */
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
    /* cuts_outputs: o_proj and the down projections are cut by outputs instead of inputs.
     * cuts_expert_outputs: so are the experts' down projections, over etp. Both need ranks that
     * read each other's inputs in their host's memory; stage_choose_cuts sets them before weights
     * are listed, in a plan layout_expect_cuts. Off at first. */
    bool cuts_outputs, cuts_expert_outputs;
    /* the largest number of hosts over which a replica of the experts spreads; set by
     * layout_choose. 0: unknown, treated as 1 */
    uint32_t expert_hosts;
    /* a step in which a replica has at least this many rows is divided into two halves: one half is
     * computed while the rows of the other half travel to experts on other hosts. 0: never. Set by
     * layout_choose */
    uint32_t halves_from;
    /* ranks compute rows for each other's experts, whose weights they can read (moe/balance.h); set
     * by stage_choose_cuts */
    bool lends_experts;
    /* the places of each layer's experts; borrowed. NULL, the initial value: expert e is at place e
     */
    const struct expert_places *expert_places;
    /* extra places in each layer, for copies of its experts (--expert-copies) */
    uint32_t n_expert_copies;
    uint32_t stage_begin[ARCH_LAYERS_MAX + 1]; /* layers of stage s: [begin[s], begin[s + 1]) */
    char why[1024]; /* one sentence per choice, for people; written by layout_choose */
};

/* Local. Returns the largest possible tp: the number of query heads, in units of o_proj's leaves.
 */
uint32_t layout_tp_max(const struct layout_model *model);

/* Local. Builds the layout of n_ranks ranks. STATUS_USAGE with a sentence: tp above the query heads
 * (in units of o_leaf), pp above the layers, ep that does not divide dp x tp or exceeds the
 * experts, flags of experts for a dense model, --expert-copies without a load or --expert-replan,
 * or a product other than n_ranks. STATUS_INPUT: a model that cannot be cut (heads, layers,
 * experts). STATUS_MEMORY. `--ep N` alone means ep N with the largest tp that divides N and that
 * the heads allow. Otherwise a flag of 0 follows from the others if it can; the defaults are tp =
 * 1, pp = 1, dp = rest, and for MoE the largest ep that divides dp x tp and does not exceed the
 * experts (dense: 1). */
struct status layout_build(const struct layout_model *model, uint32_t n_ranks,
                           const struct layout_flags *flags, struct layout *out);

/* Local. True when the layout allows cutting by outputs, for dense linears and for experts. The
 * caller checks the other conditions: that the ranks share a host's memory and compute on CPUs. */
bool layout_may_cut_outputs(const struct layout *l);
bool layout_may_cut_expert_outputs(const struct layout *l);

/* Local. True when the layout allows ranks to compute rows for each other's experts: all ranks have
 * the same rows, and each has an expert, in memory and without biases. */
bool layout_may_lend_experts(const struct layout *l);

/* Local. Returns the place of a rank in the reordered world, and the rank at a place. */
struct layout_place layout_place_of(const struct layout *l, uint32_t rank);
uint32_t layout_rank_of(const struct layout *l, uint32_t dp, uint32_t pp, uint32_t tp);
/* Local. Returns the first of the etp ranks of stage pp that hold part ep of the given replica of
 * the experts. */
uint32_t layout_expert_rank(const struct layout *l, uint32_t pp, uint32_t replica, uint32_t ep);

/* Local. Return the layers, heads, columns or experts that a place holds. A range may be empty if
 * there are more ranks than units. */
struct range layout_layers(const struct layout *l, uint32_t pp);
struct range layout_heads(const struct layout *l, uint32_t tp);
/* The query heads that a rank holds in layers without a window, if these have another number
 * (struct arch_attention, n_full_heads); else none. They read the KV heads of layout_kv_heads. */
struct range layout_full_heads(const struct layout *l, uint32_t tp);
/* Returns the kv heads that a rank's query heads [h0, h1) read: [floor(h0 / (H/G)), ceil(h1 /
 * (H/G))). Each rank that needs a kv head holds it. */
struct range layout_kv_heads(const struct layout *l, uint32_t tp);
/* The KV heads that a rank computes in layers without a window, if these have fewer (struct
 * arch_attention, n_full_kv_heads); else none. */
struct range layout_full_kv_heads(const struct layout *l, uint32_t tp);
struct range layout_ffn(const struct layout *l, uint32_t tp);
struct range layout_vocab(const struct layout *l, uint32_t tp);
/* Return the places of part ep of the experts (without expert_places a place is an expert's id),
 * and the number of places in a layer. */
struct range layout_experts(const struct layout *l, uint32_t ep);
uint32_t layout_n_places(const struct layout *l);
struct range layout_expert_ffn(const struct layout *l, uint32_t etp);
struct range layout_shared_ffn(const struct layout *l, uint32_t tp);
/* Returns the key heads of a gated delta rule, with their value heads; or the heads of a Mamba-2
 * scan, whose groups are on all ranks. */
struct range layout_delta_heads(const struct layout *l, uint32_t tp);
/* Return the outputs of o_proj and down, and of the experts' down, that a rank holds: all of them,
 * or whole panels when they are cut by outputs. */
struct range layout_outputs(const struct layout *l, uint32_t tp);
struct range layout_expert_outputs(const struct layout *l, uint32_t etp);

/* Local. Returns the even split in whole units that most of the above use: part `i` of `n_parts` of
 * [0, total), cut at multiples of `unit`; earlier parts get the remainders. */
struct range layout_split(uint32_t total, uint32_t unit, uint32_t n_parts, uint32_t i);

/* Bytes that a rank needs: weights as packed for the kernels, KV per block of 64 tokens. */
struct layout_memory {
    uint64_t weights_bytes;
    uint64_t kv_block_bytes;  /* bytes of a KV block: the layers of one group
                                 (parallel/layout/kv_groups.h) */
    uint64_t state_bytes;     /* bytes of one sequence's recurrent states; 0: the model has none */
    uint64_t workspace_bytes; /* a stage's arrays (parallel/layout/workspace.h) */
    uint64_t exchange_bytes;  /* largest buffers for data to and from other ranks */
    /* for streamed experts: the least memory through which they can pass; and the bytes of all
     * their weights, which weights_bytes does not include */
    uint64_t stream_bytes, on_disk_bytes;
};

enum { LAYOUT_STREAM_LEAST = 4 /* experts that the least memory holds */ };

/* Local. Describes the exchange between the experts' hosts, so that its bytes can be counted. */
struct wire_shape layout_wire_shape(const struct layout *l);

/* Local. Returns the mean number of rows that reach the experts of a place in one layer of a step
 * in which each replica has step_tokens rows. */
double layout_expert_rows(const struct layout *l, struct layout_place place, uint64_t step_tokens);

/* Local. Returns the bytes of an array with row_bytes for each row that reaches the experts of a
 * place, as a MoE block allocates it. Counts rows as the next two functions do. */
uint64_t layout_expert_array_bytes(const struct layout *l, struct layout_place place,
                                   uint64_t step_tokens, uint64_t row_bytes);

/* Local. Return the value of exchange_bytes, and the part of it that a MoE block allocates
 * (moe_memory_bytes). Count twice the rows that evenly choosing routers send, but no more rows than
 * there can be. Where experts stream, count all rows that there can be, because a plan is then a
 * bound. */
uint64_t layout_exchange_bytes(const struct layout *l, struct layout_place place,
                               uint64_t step_tokens);
uint64_t layout_moe_bytes(const struct layout *l, struct layout_place place, uint64_t step_tokens);

/* Local. Returns the bytes of everything but the KV cache and the recurrent states. */
uint64_t layout_fixed_bytes(const struct layout_memory *m);

enum {
    LAYOUT_SLOTS = 64,      /* sequences whose recurrent states a replica holds, unless --max-batch
                               says more or fewer */
    LAYOUT_STATES_PART = 4, /* the states take at most a quarter of the room for KV and states */
};

/* Local. layout_slots_wanted returns how many slots of recurrent states a replica wants; 0: the
 * model has no such states. layout_slots_in returns how many of n_wanted slots fit in their part of
 * room_bytes, at least 1 if n_wanted is not 0; room_bytes is the memory that layout_fixed_bytes
 * leaves. */
uint32_t layout_slots_wanted(const struct arch *m, int32_t max_batch);
uint32_t layout_slots_in(uint64_t room_bytes, uint64_t slot_bytes, uint32_t n_wanted);

/* Bytes of one cached element, and of the scale stored with each head of a token (int8; else 0). */
struct layout_kv {
    uint32_t element_bytes, scale_bytes;
};

/* Estimates from measured speeds, by which layouts are compared (src/cost). */
struct layout_estimate {
    /* Returns the seconds of a step of n_rows rows of each replica; 0: cannot be estimated. t and
     * order as in layout_choose; l->expert_hosts is set. */
    double (*step_s)(void *user, const struct layout *l, const struct topo *t,
                     const uint32_t *order, double n_rows);
    void *user;
};

struct layout_budget {
    struct layout_kv kv;
    uint32_t step_tokens;   /* rows of the largest step */
    uint32_t min_kv_blocks; /* KV blocks that a full context needs in one block table (in all
                               tables: kv_groups_context) */
    uint32_t n_state_slots; /* slots of recurrent states that are wanted; 0: the model has none */
    uint64_t rank_bytes;    /* memory that a rank may use; 0: nine tenths of its share of the host's
                               memory */
    uint64_t adapter_bytes; /* of all adapters' matrices (weights/adapters.h) over all layers; each
                               tp rank is assumed to hold those of its stage's layers */
    uint64_t lead_bytes;    /* needed on rank 0 alone, for a draft model; where rank_bytes is 0,
                               the ranks of its host share their memory */
    uint64_t device_bytes;  /* GPU memory of the rank with the smallest share, of which nine tenths
                               may be used instead of the host's memory; 0: ranks compute on CPUs */
    double network_bytes_s; /* bandwidth of a host's network; 0: 100 Gbit/s */
    const struct layout_estimate *estimate; /* borrowed; NULL: round numbers (layout_cost.c) */
};

/* Local. Return the bytes of one output's k weights, and the mean bytes of one weight over whole
 * groups. */
uint64_t layout_row_bytes(const struct layout_model *m, enum arch_class c, uint64_t k);
double layout_weight_bytes(const struct layout_model *m, enum arch_class c);

/* Local. Returns the memory that a place needs. step_tokens: rows of the largest step. */
struct layout_memory layout_memory_of(const struct layout *l, struct layout_place place,
                                      struct layout_kv kv, uint32_t step_tokens);

#endif

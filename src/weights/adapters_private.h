/* Shared by adapters*.c: the linears that tensors name, the loading of a file, and the parts for
 * heads (kv_b_proj) and for routed experts. */
#ifndef SHOAL_WEIGHTS_ADAPTERS_PRIVATE_H
#define SHOAL_WEIGHTS_ADAPTERS_PRIVATE_H

#include "base/json.h"
#include "base/mem.h"
#include "kernels/ops.h"
#include "weights/adapters.h"

/* Ends of the names of A and B. */
#define ADAPTER_A_END ".lora_A.weight"
#define ADAPTER_B_END ".lora_B.weight"

/* Local. Returns r of A or B of a linear of the model. */
uint32_t adapter_rank_of(const struct arch *m, const struct arch_tensor *linear,
                         const struct ckpt_tensor *t, bool is_b);

/* Local. Sets *out to the site of a role; of kv_b_proj, which has two, to ADAPTER_K_B. False: an
 * adapter cannot change linears with this role. */
bool adapter_site_of(enum weight_role role, enum adapter_site *out);

/* Local. Returns why a tensor of the model takes no adapter; NULL: it takes one. */
const char *adapter_linear_refusal(const struct arch *m, const struct arch_tensor *t);

/* Local. Returns why the model has no linear of this name. */
const char *adapter_name_refusal(const char *linear);

/* Local. Reads N of "model.layers.N."; false: there is none, or the model has no such layer. */
bool adapter_layer_index(const struct arch *m, const char *name, uint32_t *layer);

/* Local. Sets `linear` to that of tensor t of an adapter's file c, and *is_b. The experts' linears
 * that are one parameter get the name of the parameter, by the shapes of A and B, unless these fit
 * none. false: the tensor is no A or B of a linear. */
bool adapter_linear_name(const struct arch *m, const struct ckpt *c, const struct ckpt_tensor *t,
                         char linear[CKPT_NAME_MAX + 32], bool *is_b);

/* Local. True when A and B of all experts are one matrix each, as of a parameter gate_up_proj or
 * down_proj: A [E r, inputs] by expert, B [outputs, r E] with the expert's number last. */
bool adapter_is_joined(const struct ckpt_tensor *t, const struct arch_tensor *linear);

/* Local. Finds the next row of the table of tensors, from row *i on, that the layer's linear has
 * (arch_tensors.h), and sets *i to the row after it. NULL: there is none. */
const struct arch_tensor *adapter_row_of(const struct arch *m, uint32_t layer, const char *linear,
                                         size_t *i);

/* A tensor of an adapter, and the slab of it that this rank holds. */
struct adapter_target {
    const struct ckpt_tensor *tensor;
    const struct arch_tensor *linear; /* borrowed: its linear's row in the table of tensors */
    uint32_t layer;                   /* in the model */
    enum adapter_site site;
    bool is_b;
    struct range rows, cols;
    double scaling; /* of B */
    struct packed
        *packed; /* NULL: this rank holds nothing of it, or it is of kv_b_proj or experts */
    struct range outputs; /* of an expert's linear: those of this rank */
};

struct adapter_loading {
    const struct weights_source *from; /* its ckpt is the model's */
    const struct weights *base;
    struct adapter *adapter;
    struct ckpt *ckpt;              /* the adapter's */
    struct js_doc *config;          /* of the adapter */
    struct weights_cut cut;         /* of this rank's place */
    struct adapter_target *targets; /* [n_targets] one for each tensor of the file, two for those of
                                       kv_a_proj_with_mqa and of a parameter gate_up_proj */
    size_t n_targets;
    struct slab_want *wants; /* [n_wants] */
    uint32_t *want_target;   /* [n_wants] the target of each want */
    size_t n_wants;
    uint32_t max_rank, max_expert_rank; /* the largest r of the file */
    uint32_t max_outputs;
};

static inline struct range adapter_all_of(uint64_t n)
{
    return (struct range){0, (uint32_t)n};
}

/* Local. Returns r of a target. */
static inline uint32_t adapter_target_rank(const struct adapter_loading *ld,
                                           const struct adapter_target *t)
{
    return adapter_rank_of(ld->from->model, t->linear, t->tensor, t->is_b);
}

/* Local. Returns the layer of a target that this stage has. */
static inline struct adapter_layer *adapter_layer_of(const struct adapter_loading *ld,
                                                     const struct adapter_target *t)
{
    return &ld->adapter->layers[t->layer - ld->base->layers.begin];
}

/* Local. Sets K-blocks and grid of *a, A of o or down, to those of the weight. Errors:
 * STATUS_INPUT. */
struct status adapter_take_leaves(const struct adapter_loading *ld, const struct adapter_target *t,
                                  struct packed *a);

/* Local. True for a tensor of routed experts. */
static inline bool adapter_is_of_experts(const struct adapter_target *t)
{
    return t->site >= ADAPTER_OF_EXPERTS;
}

/* Local. Returns how many matrices the target's tensor has: E for experts unless it is joined. */
uint32_t adapter_n_outer(const struct adapter_loading *ld, const struct adapter_target *t);

/* Local. Cuts A or B of all experts as the ranks of an expert share it, whoever holds the expert.
 * Errors: STATUS_INPUT (the file has the linears twice, or joined in a family with weighs_inputs),
 * STATUS_MEMORY. */
struct status adapter_experts_cut(struct adapter_loading *ld, struct adapter_target *t,
                                  const struct weight_spec *s);

/* Local. Sets the memory of A or B of all experts, and returns its bytes. memory NULL: only counts
 * them. */
size_t adapter_experts_place(const struct adapter_loading *ld, const struct adapter_target *t,
                             char *memory);

/* Consecutive f32 rows of a slab. */
struct adapter_rows {
    const float *values; /* [n, the slab's columns] */
    size_t row0, n;      /* row0 counts from the slab's first */
};

/* Local. Packs rows of an expert, or of a joined tensor. Errors: STATUS_MEMORY. */
struct status adapter_experts_take(const struct adapter_loading *ld, const struct adapter_target *t,
                                   uint64_t expert, const struct adapter_rows *rows);

/* Local. Returns the bytes to reserve for a matrix of an adapter. */
static inline size_t adapter_packed_room(const struct packed *p)
{
    return (packed_bytes_of(p) + MEM_ALIGN - 1) / MEM_ALIGN * MEM_ALIGN;
}

/* Local. Makes k_b and v_b of a layer for n_heads heads, without memory for their matrices; does
 * nothing if they exist. rank: r. Errors: STATUS_MEMORY. */
struct status adapter_heads_make(const struct arch *m, uint32_t n_heads, uint32_t rank,
                                 struct adapter_layer *layer);

/* Local. Sets the memory of the heads' matrices made of B (is_b) or of A, and returns its bytes.
 * memory NULL: only counts them. */
size_t adapter_heads_place(struct adapter_layer *layer, bool is_b, char *memory);

/* Local. Returns the bytes of what all heads need of B (is_b) or of A. */
size_t adapter_heads_bytes(const struct arch *m, uint32_t rank, bool is_b);

/* Local. Packs f32 rows of B, counted from this rank's first, or of A. */
void adapter_heads_take(const struct kern_table *kern, const struct adapter_layer *layer, bool is_b,
                        const struct matrix_rows *rows);

#endif

/* Low-rank adapters (LoRA, Hu et al., 2021, arXiv 2106.09685) as a rank holds them. A linear
 * y = W x with an adapter gives y + B (A x), A [r, inputs], B [outputs, r], in the rows of requests
 * that name the adapter; W is not changed, so one step may have rows of several adapters and of
 * none. Each adapter comes from a checkpoint of its own, which `shoal convert` makes of a folder of
 * Hugging Face's peft. */
#ifndef SHOAL_WEIGHTS_ADAPTERS_H
#define SHOAL_WEIGHTS_ADAPTERS_H

#include "checkpoint/file/ckpt.h"
#include "weights/weights.h"

/* The linears that an adapter may change. */
enum adapter_site {
    ADAPTER_Q,
    ADAPTER_K,
    ADAPTER_V,
    ADAPTER_O,
    ADAPTER_GATE, /* of a dense FFN or of the shared experts, as the next two */
    ADAPTER_UP,
    ADAPTER_DOWN,
    ADAPTER_Q_A,    /* latent attention: q_a_proj; the next two: the parts of kv_a_proj_with_mqa */
    ADAPTER_KV_A,   /* the latent of keys and values */
    ADAPTER_K_ROPE, /* the rotated key, which all heads share; must follow ADAPTER_KV_A */
    ADAPTER_SITE_COUNT,
    ADAPTER_K_B = ADAPTER_SITE_COUNT, /* the heads' parts of kv_b_proj: adapter_layer.k_b, v_b */
    ADAPTER_V_B,
    ADAPTER_OF_EXPERTS, /* from here on: adapter_layer.experts[site - ADAPTER_OF_EXPERTS] */
};

/* The linears of a routed expert, in adapter_layer.experts. */
enum { ADAPTER_EXPERT_GATE, ADAPTER_EXPERT_UP, ADAPTER_EXPERT_DOWN, ADAPTER_EXPERT_LINEARS };

/* a and b are f32. Rows of B are in the order of the model's checkpoint (arch_rope_in_pairs). Where
 * the adapter leaves the linear alone, or this rank holds none of its outputs (q, k, v, gate, up),
 * both are zeros. If the layout cuts row-parallel linears by outputs (layout.cuts_outputs), A of o
 * and down has all inputs, so no rank needs another's sums. */
struct adapter_linear {
    uint32_t rank;   /* r; 0: none; the same on all ranks */
    struct packed a; /* o and down: [r, the weight's inputs on this rank], with the K-blocks and
                        grid of the weight; n_in 0 and no data if this rank holds none of them.
                        Others: [r, the weight's inputs] */
    struct packed b; /* times the adapter's scaling (in f64, rounded once to f32). o and down: [D,
                        r], on every rank. Others: [this rank's outputs, r] */
};

/* kv_b_proj gives each head a key part K_h and a value part V_h, and latent attention reads them in
 * its absorbed form: K_h^T takes q into the space of the latents, V_h takes the output out of it.
 * An adapter of kv_b_proj has A [r, kv_lora] and a B with rows [K_B,h; V_B,h] for each head, so it
 * adds A^T (K_B,h^T q) to K_h^T q, and V_B,h (A x) to V_h x. A head has an adapter_linear for each:
 *     k_b[h]: a = K_B,h^T [r, query_dim - rotary]    b = A^T [kv_lora, r]
 *     v_b[h]: a = A [r, kv_lora]                     b = V_B,h [value_dim, r]
 * with the scaling in the matrix of B. All heads share one A, and one A^T.
 *
 * Routed experts: each rank holds the linears of all experts, so that their places may change
 * (layout_experts, copies, --expert-replan), and one rank may compute rows of another's experts. Of
 * a linear that the ranks of an expert share, each rank holds its part:
 *     gate, up    a = [r, D]    b = [this rank's outputs, r]
 *     down        a = [r, the weight's inputs on this rank], with K-blocks and grid
 *                 b = [outputs, r] */
struct adapter_layer {
    struct adapter_linear at[ADAPTER_SITE_COUNT];
    struct adapter_linear *k_b, *v_b; /* owned [heads of this rank]; NULL: kv_b_proj has no adapter,
                                         or this rank has no heads */
    uint32_t n_heads;                 /* of k_b and v_b */
    struct adapter_linear
        *experts[ADAPTER_EXPERT_LINEARS]; /* owned [E] by the experts' ids, on every
                                             rank of the stage; NULL: not adapted */
};

struct adapter {
    const char *name;             /* borrowed from the source */
    struct ckpt_digest digest;    /* of its checkpoint */
    struct adapter_layer *layers; /* owned [layers of the stage] */
};

struct adapters {
    size_t n;
    struct adapter *all;  /* [n] */
    uint32_t max_rank;    /* the largest r of any linear outside routed experts, in all stages */
    uint32_t max_outputs; /* the most outputs of any B of such linears on this rank */
    uint32_t max_expert_rank; /* the largest r of routed experts' linears, in all stages; 0: none is
                                 adapted */
    uint64_t n_bytes;         /* of all weights above on this rank */
    uint64_t expert_row_bytes;    /* of the arrays for a row of an expert; 0: none is adapted */
    size_t n_layers;              /* of the stage */
    struct weights_block *blocks; /* owned memory */
    size_t n_blocks;
};

/* An adapter to load. */
struct adapter_file {
    const char *name, *path;
};

/* **Collective (world)**. Loads n adapters for the layers of `base`; on the CPU, which the caller
 * has checked. from->ckpt is the model's, and gives A of o and down its K-blocks. The files' names
 * are borrowed and outlive the adapters. Errors, the same on all ranks: STATUS_INPUT (not an
 * adapter's checkpoint; a tensor of a layer or linear that the model does not have or that cannot
 * be adapted, by name; another shape; ranks with different files), STATUS_IO, STATUS_MEMORY. */
struct status adapters_load(const struct weights_source *from, const struct weights *base,
                            const struct adapter_file *files, size_t n, struct adapters **out);

/* Local. Returns the bytes that the matrices of an adapter's checkpoint take on a rank that holds
 * all layers whole. Those that adapters_load would refuse by their names do not count. */
uint64_t adapters_file_bytes(const struct arch *m, const struct ckpt *c);

/* Local. True when an adapter's checkpoint has linears of routed experts. */
bool adapters_file_has_experts(const struct ckpt *c);

/* Local. Returns the bytes of the forward pass's arrays for one row, without those of experts
 * (expert_row_bytes); 0 if a is NULL. */
static inline uint64_t adapters_row_bytes(const struct adapters *a)
{
    if (a == NULL) return 0;
    return ((uint64_t)a->max_rank + a->max_outputs) * sizeof(float) +
           ((uint64_t)a->max_rank + 1) * sizeof(int64_t);
}

/* Local. Accepts NULL. */
void adapters_destroy(struct adapters **a);

#endif

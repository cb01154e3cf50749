/* The description of a model, read from its config.json: sizes, and the few switches in which the
 * families differ. A family is one row of data in arch_family.c; no code is copied per family.
 * A field that changes the arithmetic and is not implemented is refused by name, never ignored. */
#ifndef SHOAL_ARCH_ARCH_H
#define SHOAL_ARCH_ARCH_H

#include "base/status.h"
#include "tensor/router_rule.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ARCH_LAYERS_MAX = 512 };

/* How a family names its experts' tensors, behind "model.layers.N."; NULL: it has no such tensor.
 */
struct arch_names {
    const char *router, *gate, *up, *down; /* up to ".weight" and ".bias"; gate is up: the halves of
                                              one tensor [E, 2 F, D] */
    const char *select_bias;               /* [E] added to a sigmoid's score for the choice */
    const char *shared;     /* the FFN that all tokens pass, up to "gate_proj.weight" */
    const char *shared_mix; /* [1, D]: its sigmoid times the shared output */
};

/* The layers that "sliding_window" is for, unless "layer_types" lists them. */
enum window_rule {
    WINDOW_NONE,
    WINDOW_ALL,
    WINDOW_UPPER, /* from "max_window_layers" on */
    WINDOW_EVEN,  /* 0, 2, 4, ... */
};

/* A family: a row of arch_family.c. */
struct arch_family {
    const char *architecture; /* config.json "architectures"[0] */
    const char *title;
    bool qk_norm;         /* per-head RMSNorm of q and k before RoPE */
    bool qk_norm_switch;  /* the same where "use_qk_norm" says so */
    bool qk_norm_whole;   /* RMSNorm of all of q and all of k */
    bool qkv_bias;        /* q, k and v have biases, o has none (else "attention_bias" says: all) */
    bool qkv_bias_switch; /* unless "qkv_bias" says no */
    bool o_unbiased;      /* "attention_bias" says q, k and v only */
    bool o_bias_switch;   /* "attention_out_bias" says o, "attention_bias" q, k and v */
    bool clips;           /* q, k and v may stay within "clip_qkv" */
    bool sinks;           /* a score per head that takes weight and has no value */
    bool mla;             /* multi-head latent attention; rotates neighbours, unless
                             "rope_interleave" says no */
    bool partial_rotary;  /* only a part of a head may be rotated: "partial_rotary_factor" */
    bool rotary_dim;      /* the same as a number of elements: "rotary_dim" */
    bool out_norms;       /* attention and the FFN norm what they add to the residual stream, not
                             what they read */
    bool unrotated;       /* some layers rotate nothing: "no_rope_layers" */
    bool theta_required;  /* "rope_theta" must be given: other programs assume another value than 1e4 */
    bool tied;            /* the head is the embedding unless "tie_word_embeddings" says no */
    enum window_rule window;
    uint32_t window_from; /* WINDOW_UPPER: "max_window_layers" where it is absent; 0: 28 */
    bool window_switch; /* there is a window only where "use_sliding_window" is true */
    bool mlp_bias;      /* may have biases of the dense FFN: "mlp_bias" */
    bool scales;        /* of rows, scores and logits: "embedding_multiplier" and its like */
    bool has_experts;
    bool expert_bias; /* router and experts have biases */
    bool clamped;     /* clamped SwiGLU in the experts */
    bool sigmoid;     /* the router's score, with a bias for the choice; else softmax */
    /* its own code drops the scale where "norm_topk_prob" is true, others keep it or never read the
       field; no published config has it */
    bool never_renormalised;
    bool sparsity_keys;    /* decoder_sparse_step, mlp_only_layers choose the MoE layers */
    bool renormalise;      /* chosen weights always sum to 1 (else "norm_topk_prob" says) */
    bool own_expert_width; /* "moe_intermediate_size" of an expert; else intermediate_size */
    bool own_shared_width; /* "shared_expert_intermediate_size" of what all tokens pass */
    bool counts_shared;    /* the same as "n_shared_experts" experts' widths */
    const struct arch_names *names; /* of the experts' tensors; NULL: there are none */
};

/* Factors. */
struct arch_scales {
    float attention;               /* of q.k */
    float embed, residual, logits; /* of rows; 1: none */
};

/* Clamped SwiGLU. */
struct arch_swiglu {
    float alpha;
    float limit; /* 0: SwiGLU is the plain one */
};

struct arch {
    const struct arch_family *family;
    uint32_t n_layers, width, n_heads, n_kv_heads; /* L, D, H, G */
    uint32_t head_dim;  /* Hd, elements of a head in the cache and in attention's kernels: the
                           published head_dim rounded up to LANES, behind which zeros stand */
    uint32_t rotary;    /* elements of a head that are rotated, from its first on */
    uint32_t query_dim; /* elements of a head of q as published, which the weights have */
    uint32_t value_dim; /* of a head of o_proj's input; likewise. Both are the published head_dim,
                           and k and v have as many, but for latent attention */
    uint32_t kv_lora;   /* latent attention, where kv_lora + rotary is Hd, cached once for a token;
                           0: the model has none */
    uint32_t q_lora;    /* latent attention with q made in two steps; 0: in one */
    bool rope_pairs;
    bool layer_is_unrotated[ARCH_LAYERS_MAX]; /* q and k stay as they are */
    bool qk_norm, qk_norm_whole; /* RMSNorm of each head of q and k; of all of q and all of k */
    bool sinks;
    uint32_t ffn;                             /* F of dense layers */
    uint32_t n_experts, n_chosen, expert_ffn; /* E, K, F of an expert; 0: dense */
    uint32_t shared_ffn;     /* F of what all tokens pass in MoE layers; 0: nothing */
    uint32_t vocab, context; /* V, max_position_embeddings */
    uint32_t window; /* positions that a row sees in layers that have a window; 0: none has */
    bool layer_has_window[ARCH_LAYERS_MAX];
    float norm_eps;
    double rope_theta;
    bool tied;
    bool qkv_bias, o_bias, ffn_bias;
    bool expert_bias; /* router and experts have biases */
    bool select_bias; /* of the choice of experts alone */
    bool shared_mix;  /* the shared output is times a sigmoid of its own */
    float clip_qkv;   /* q, k and v stay within it; 0: no limit */
    struct arch_scales scale;
    struct arch_swiglu swiglu;
    struct router_rule router;
    bool layer_is_moe[ARCH_LAYERS_MAX];
    int32_t eos_ids[16]; /* from config.json; the lead adds its own */
    uint32_t n_eos_ids;
};

/* Local. The i-th family; NULL behind the last. */
const struct arch_family *arch_family_at(size_t i);

/* Local. Parses n bytes of a config.json; `what` names them in errors. Errors: STATUS_INPUT names
 * the field, what was expected and what was found; STATUS_MEMORY. */
struct status arch_parse(const char *json, size_t n, const char *what, struct arch *out);

#endif

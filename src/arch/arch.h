/* The description of a model, read from its config.json: sizes, and the few switches in which the
 * families differ. A family is one row of data in arch_family.c; no code is copied per family.
 * A field that changes the arithmetic and is not implemented is refused by name, never ignored. */
#ifndef SHOAL_ARCH_ARCH_H
#define SHOAL_ARCH_ARCH_H

#include "base/status.h"
#include "tensor/gate_kind.h"
#include "tensor/router_rule.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ARCH_LAYERS_MAX = 512, ARCH_TAPS_MAX = 16 };

/* The names of a family's expert tensors, after "model.layers.N."; NULL: the family has no such
 * tensor. */
struct arch_names {
    const char *router, *gate, *up, *down; /* without ".weight" or ".bias"; when gate and up are
                                              equal, both are halves of one tensor [E, 2 F, D] */
    const char *select_bias; /* [E], added to the sigmoid scores for the choice of experts only */
    const char *shared;      /* the shared experts, without "gate_proj.weight" and the like */
    const char *shared_mix;  /* [1, D], the gate of the shared experts: sigmoid(x . gate) multiplies
                                their output */
};

/* The layers that use "sliding_window", unless "layer_types" lists them. */
enum window_rule {
    WINDOW_NONE,
    WINDOW_ALL,
    WINDOW_UPPER, /* from "max_window_layers" on */
    WINDOW_EVEN,  /* 0, 2, 4, ... */
    WINDOW_MOST,  /* all but each "sliding_window_pattern"-th; without it, each fourth */
};

/* A family: a row of arch_family.c. */
struct arch_family {
    const char *architecture; /* config.json "architectures"[0] */
    const char *title;
    bool qk_norm;        /* per-head RMSNorm of q and k before RoPE */
    bool qk_norm_switch; /* likewise, if "use_qk_norm" is true */
    bool qk_norm_whole;  /* RMSNorm of all of q and all of k */
    bool qkv_bias; /* q, k and v have biases, o has none; else "attention_bias" decides for all four
                    */
    bool qkv_bias_switch; /* "qkv_bias": false removes those biases */
    bool o_unbiased;      /* "attention_bias" is of q, k and v only */
    bool o_bias_switch;   /* "attention_out_bias" says o, "attention_bias" q, k and v */
    bool clips;           /* "clip_qkv", if given, clamps q, k and v */
    bool sinks; /* attention sinks: a learned score per head that joins the softmax and has no value
                 */
    bool mla;   /* multi-head latent attention; RoPE rotates neighbouring elements, unless
                   "rope_interleave" is false */
    bool partial_rotary; /* only a part of a head may be rotated: "partial_rotary_factor" */
    bool rotary_dim;     /* the same as a number of elements: "rotary_dim" */
    bool out_norms;      /* attention and the FFN norm their outputs, not their inputs */
    bool after_norms;    /* they norm their inputs and their outputs, with GLM-4's names */
    bool both_norms;     /* they norm their inputs and their outputs, with Gemma's names */
    bool gelu;           /* GEGLU: "hidden_activation" is "gelu_pytorch_tanh" */
    bool root_embed;     /* embeddings are multiplied by sqrt(hidden_size) */
    bool query_scalar;   /* scores are divided by sqrt("query_pre_attn_scalar") */
    bool caps_scores;    /* "attn_logit_softcapping" must be given, null for none */
    bool caps_logits;    /* "final_logit_softcapping", likewise where caps_scores */
    bool states_heads;   /* "head_dim" must be given: other programs have defaults of their own */
    bool states_kv;      /* likewise "num_key_value_heads" */
    bool states_bias;    /* likewise "attention_bias" */
    bool unbiased;       /* "attention_bias" says nothing: no linear has a bias */
    bool use_bias;       /* "use_bias": biases in attention and in the dense FFN */
    bool longrope;       /* RoPE may be scaled by "short_factor" and "long_factor" */
    bool ntk_alpha;      /* RoPE of type "dynamic" has a fixed "alpha" */
    bool xielu;          /* a dense FFN without a gate, whose activation is xIELU; RoPE scaling must
                            be given */
    bool layer_norms;    /* layer norms with biases in place of RMSNorms */
    bool head_bias;      /* "lm_head_bias": the head has a bias */
    bool mixer;          /* the router is ROUTER_MIXER with "router_jitter_noise" */
    bool qk_norm_last;   /* norms of q and k come after RoPE */
    bool unrotated;      /* some layers have no RoPE: "no_rope_layers" */
    bool unrotated_full; /* where there is a window, the layers without one have no RoPE */
    bool local_rope;     /* layers with a window have a plain RoPE, whatever rule the others have */
    bool local_theta;    /* whose theta is "rope_local_base_freq" */
    bool states_base;    /* "rope_theta" and "rms_norm_eps" must be given: other programs have other
                            defaults than 1e4 and 1e-6 */
    bool tied;           /* the head is the embedding unless "tie_word_embeddings" is false */
    enum window_rule window;
    uint32_t window_from;   /* WINDOW_UPPER: default of "max_window_layers"; 0: 28 */
    bool window_switch;     /* there is a window only where "use_sliding_window" is true */
    bool window_pattern;    /* WINDOW_MOST: "sliding_window_pattern" gives the period */
    uint32_t window_period; /* its default; 0: 4 */
    bool window_listed;     /* "layer_types" may differ from a rule for all layers */
    bool window_stated; /* "sliding_window" must be given, null for none: other programs assume one
                         */
    bool mlp_bias;      /* "mlp_bias": biases in the dense FFN */
    bool scales; /* multipliers of embeddings, residuals, scores and logits: "embedding_multiplier"
                    and its like */
    bool has_experts;
    bool expert_bias; /* router and experts have biases */
    bool clamped;     /* clamped SwiGLU in the experts */
    bool sigmoid;     /* router scores are sigmoids, with a bias for the choice; else a softmax */
    /* "norm_topk_prob": true is refused: the published code then drops the scale, other programs
     * keep it or never read the field, and no published config sets it */
    bool never_renormalised;
    bool sparsity_keys;    /* decoder_sparse_step, mlp_only_layers choose the MoE layers */
    bool renormalise;      /* chosen weights always sum to 1 (else "norm_topk_prob" says) */
    bool own_expert_width; /* "moe_intermediate_size" of an expert; else intermediate_size */
    bool own_shared_width; /* F of the shared experts is "shared_expert_intermediate_size" */
    bool counts_shared;  /* or "n_shared_experts" times the F of an expert; this field and those of
                            the chosen weights must be given, because defaults differ */
    bool sigmoid_groups; /* "n_group" must be given, for the same reason */
    bool moe_range; /* "moe_layer_start_index", "..._interval" and "..._end_index" choose the MoE
                       layers; "moe_k", "moe_num_experts" and "moe_num_shared_experts" count */
    bool moe_topk;  /* "moe_topk" is "num_experts_per_tok"; a shared expert of
                       intermediate_size */
    bool biased_softmax; /* router scores are a softmax, with a bias for the choice */
    bool granite_shared; /* "shared_intermediate_size": F of the shared experts; 0: none */
    bool counts_dense;   /* "first_k_dense_replace" must be given, for the same reason */
    bool typed_mlps; /* "mlp_layer_types" lists dense and sparse layers; else the first is dense */
    const struct arch_names *names; /* of the expert tensors; NULL: none */
    /* layers with a gated delta rule between those with attention: "layer_types" or
     * "full_attention_interval", and sizes in "linear_*". Fields whose defaults are the family's
     * own must be given */
    bool delta;
    bool delta_apart; /* its projections are tensors of their own */
    bool states_topk; /* "norm_topk_prob" must be given, for the same reason */
    bool gated_heads; /* q_proj has a gate behind each head: attention's output times its sigmoid
                       */
    bool chunked;     /* rotated layers see the positions of their chunk alone:
                         "attention_chunk_size" */
    bool l2_norm;     /* "use_qk_norm": RMSNorms of q and k without weights, in rotated layers */
    bool tunes;       /* "attn_temperature_tuning": q of the other layers grows with the position */
    bool weighs_inputs; /* one expert, whose input is multiplied by its weight; "moe_layers", and
                           "intermediate_size_mlp" of dense layers */
    bool predicts;      /* the layer after the last may be a prediction layer:
                              "num_nextn_predict_layers" */
};

/* A layer with a gated delta rule instead of attention; all 0: the model has none. Value head v
 * reads key head v / (n_value_heads / n_key_heads). */
struct arch_delta {
    uint32_t n_key_heads, n_value_heads;
    uint32_t key_dim, value_dim; /* elements of a key head's q and k, of a value head */
    uint32_t n_taps;             /* rows that its convolution reads */
};

/* Multipliers; 1: none. */
struct arch_scales {
    float attention;               /* of the scores q.k */
    float embed, residual, logits; /* of embeddings, of what attention and FFN add to the residual
                                      stream, of the head's input */
};

/* Llama-4: at position p, q of layers without RoPE is multiplied by
 * 1 + scale * log(1 + floor((p + 1) / step)). */
struct arch_tuning {
    uint32_t step;
    float scale; /* 0: none */
};

/* Clamped SwiGLU. */
struct arch_swiglu {
    float alpha;
    float limit; /* 0: plain SwiGLU */
};

struct arch {
    const struct arch_family *family;
    uint32_t n_layers, width, n_heads, n_kv_heads; /* L, D, H, G */
    /* Layer number n_layers may be a prediction layer (multi-token prediction of DeepSeek-V3, arXiv
     * 2412.19437, section 2.2), from which draft tokens come. n_predict: 1 where it is loaded; 0,
     * as arch_parse leaves it, where the checkpoint has none or nothing reads it. */
    bool may_predict;
    uint32_t n_predict;
    uint32_t
        head_dim;    /* Hd, elements of a head in the cache and in attention kernels: the published
                        head_dim rounded up to a multiple of LANES and padded with zeros */
    uint32_t rotary; /* RoPE rotates the first `rotary` elements of a head */
    uint32_t query_dim; /* elements of a head of q in the weights; the published head_dim */
    uint32_t
        value_dim; /* elements of a head of o_proj's input in the weights. Without latent attention,
                      a head of q, k and v and one of o's input have the published head_dim */
    uint32_t kv_lora; /* latent attention: width of the latent; Hd = kv_lora + rotary, cached once
                         per token; 0: none */
    uint32_t
        q_lora; /* latent attention whose q is computed through a latent: its width; 0: directly */
    bool rope_pairs; /* RoPE rotates elements 2i and 2i + 1; else i and i + rotary / 2 */
    bool layer_is_unrotated[ARCH_LAYERS_MAX]; /* no RoPE */
    bool local_rope;             /* layers with a window have rotary frequencies of their own */
    bool qk_norm, qk_norm_whole; /* RMSNorm of each head of q and k; of all of q and all of k */
    bool sinks;
    uint32_t ffn;                             /* F of dense layers */
    uint32_t n_experts, n_chosen, expert_ffn; /* E, K, F of an expert; 0: dense */
    uint32_t shared_ffn;                      /* F of all shared experts together; 0: none */
    uint32_t vocab, context;                  /* V, max_position_embeddings */
    uint32_t window; /* sliding window, in positions, of the layers that have one; 0: none has */
    bool chunked;    /* the window is a chunk: the positions from its last multiple on */
    bool layer_has_window[ARCH_LAYERS_MAX];
    bool l2_norm; /* see struct arch_family, as weighs_inputs */
    struct arch_tuning tuning;
    bool weighs_inputs;
    float norm_eps;
    float latent_norm_eps; /* of the norms inside latent attention */
    double rope_theta;
    bool tied;
    bool qkv_bias, o_bias, ffn_bias;
    bool expert_bias; /* router and experts have biases */
    bool head_bias;
    bool select_bias; /* the router adds a bias for the choice of experts only */
    bool shared_mix;  /* a sigmoid gate multiplies the shared experts' output */
    float clip_qkv;   /* q, k and v are clamped to [-clip_qkv, clip_qkv]; 0: not clamped */
    struct arch_delta delta;
    bool layer_is_delta[ARCH_LAYERS_MAX];
    bool gated_heads; /* see struct arch_family */
    struct arch_scales scale;
    struct arch_swiglu swiglu;
    enum gate_kind gate;
    float softcap, logit_cap; /* c of c tanh(x / c) over scores and logits; 0: none */
    struct router_rule router;
    bool layer_is_moe[ARCH_LAYERS_MAX];
    int32_t eos_ids[16]; /* from config.json; the lead adds its own */
    uint32_t n_eos_ids;
};

/* Local. The layers that have weights and KV rows, the prediction layer included. */
static inline uint32_t arch_all_layers(const struct arch *m)
{
    return m->n_layers + m->n_predict;
}

/* Local. Value heads of each key head of a gated delta rule; 0: the model has none. */
static inline uint32_t arch_delta_per_key(const struct arch *m)
{
    return m->delta.n_key_heads > 0 ? m->delta.n_value_heads / m->delta.n_key_heads : 0;
}

/* Local. The widest input of an output projection: of attention, or of a gated delta rule. */
static inline uint64_t arch_mixed_inputs(const struct arch *m)
{
    const uint64_t o = (uint64_t)m->n_heads * m->value_dim;
    const uint64_t delta = (uint64_t)m->delta.n_value_heads * m->delta.value_dim;
    return o > delta ? o : delta;
}

/* Local. The layers of [begin, end) with a gated delta rule. */
static inline uint32_t arch_delta_layers(const struct arch *m, uint32_t begin, uint32_t end)
{
    uint32_t n = 0;
    for (uint32_t l = begin; l < end; l++) n += m->layer_is_delta[l];
    return n;
}

/* Local. The i-th family; NULL after the last. */
const struct arch_family *arch_family_at(size_t i);

/* Local. Parses n bytes of a config.json; `what` names them in errors. Errors: STATUS_INPUT names
 * the field, what was expected and what was found; STATUS_MEMORY. */
struct status arch_parse(const char *json, size_t n, const char *what, struct arch *out);

#endif

/* The description of a model, read from its config.json: its sizes, and the switches in which
 * families differ. A family is one row of data in arch_family.c; no code is copied per family. A
 * field that changes the arithmetic and is not implemented is refused by name, never ignored. */
#ifndef SHOAL_ARCH_ARCH_H
#define SHOAL_ARCH_ARCH_H

#include "base/status.h"
#include "tensor/gate_kind.h"
#include "tensor/router_rule.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ARCH_LAYERS_MAX = 512, ARCH_TAPS_MAX = 16, ARCH_STREAMS_MAX = 8 };

/* The names of a family's expert tensors, after "model.layers.N."; NULL: the family has no such
 * tensor. */
struct arch_names {
    const char *router, *gate, *up, *down; /* without ".weight" or ".bias"; if gate and up are
                                              equal, both are halves of one tensor [E, 2 F, D] */
    const char *select_bias; /* [outputs of the router], added to its scores only to choose
                                experts */
    const char *shared;      /* the shared experts' prefix, before "gate_proj.weight" and the
                                like */
    const char *shared_mix;  /* [1, D], the gate of the shared experts, whose output is multiplied
                                by sigmoid(x . gate) */
};

/* The layers that have a window, unless "layer_types" lists them. */
enum window_rule {
    WINDOW_NONE,
    WINDOW_ALL,
    WINDOW_UPPER, /* from layer "max_window_layers" on */
    WINDOW_EVEN,  /* layers 0, 2, 4, ... */
    WINDOW_INNER, /* as WINDOW_MOST, but layer 0 has none */
    WINDOW_MOST,  /* all but every n-th: n is "sliding_window_pattern", or else window_period */
    WINDOW_AFTER, /* all but 0, n, 2n, ...: n is "global_attn_every_n_layers" */
};

/* A family: a row of arch_family.c. */
struct arch_family {
    const char *architecture; /* config.json "architectures"[0] */
    const char *alias;        /* another spelling of `architecture`; NULL: none */
    const char *title;
    bool qk_norm;        /* per-head RMSNorm of q and k, before RoPE unless qk_norm_last */
    bool qk_norm_switch; /* the same, if "use_qk_norm" is true */
    bool qk_norm_whole;  /* RMSNorm of all of q and all of k */
    bool qkv_bias; /* q, k and v have biases, o has none; else "attention_bias" decides for all four
                    */
    bool qkv_bias_switch; /* "qkv_bias": false removes these biases */
    bool o_unbiased;      /* "attention_bias" concerns q, k and v only */
    bool o_bias_switch;   /* "attention_out_bias" decides for o, "attention_bias" for q, k and v */
    bool clips;           /* "clip_qkv", if given, clamps q, k and v */
    bool sinks; /* attention sinks: the softmax gets a learned score per head that has no value */
    bool hybrid_kv;   /* MiMo-V2: layers without a window have no sinks and "num_key_value_heads" KV
                         heads, the others twice as many; heads of v have "v_head_dim" elements and
                         are multiplied by "attention_value_scale"; the fields of the published file
                         are checked by arch_hybrid.c */
    bool typed_heads; /* Gemma-4: heads of layers without a window have "global_head_dim" elements,
                         all of which rotate (with "proportional" RoPE the last ones by angles of
                         0). These layers may have fewer KV heads, and v may be k before its norm.
                         In all layers v is normed, and a scalar multiplies the residual stream
                         after the layer; experts stand beside a dense FFN. arch_typed.c */
    bool mla;         /* multi-head latent attention; RoPE rotates neighbouring elements, unless
                         "rope_interleave" is false */
    bool partial_rotary; /* only a part of a head may be rotated: "partial_rotary_factor" */
    bool rotary_dim;     /* the rotated part may be a number of elements: "rotary_dim" */
    bool out_norms;      /* attention and the FFN normalize their outputs, not their inputs */
    bool after_norms;    /* both normalize inputs and outputs, with GLM-4's names */
    bool both_norms;     /* both normalize inputs and outputs, with Gemma's names */
    bool gelu;           /* GEGLU: "hidden_activation" is "gelu_pytorch_tanh" */
    bool root_embed;     /* embeddings are multiplied by sqrt(hidden_size) */
    bool query_scalar;   /* scores are divided by sqrt("query_pre_attn_scalar") */
    bool caps_scores;    /* scores have a softcap: "attn_logit_softcapping" must be given, null for
                            none */
    bool caps_logits;    /* so have logits: "final_logit_softcapping"; with caps_scores it must be
                            given too */
    bool states_heads;   /* "head_dim" must be given: other programs have defaults of their own */
    bool states_kv;      /* "num_key_value_heads" must be given */
    bool states_bias;    /* "attention_bias" must be given */
    bool unbiased;       /* "attention_bias" has no effect: no linear has a bias */
    bool use_bias;       /* "use_bias": biases in attention and in the dense FFN */
    bool longrope;       /* RoPE may be LongRoPE, within the original context: only "short_factor"
                            is used */
    bool ntk_alpha;      /* RoPE of type "dynamic" has a fixed "alpha" */
    bool xielu;          /* a dense FFN without a gate, with the activation xIELU; RoPE scaling must
                            be given */
    bool layer_norms;    /* layer norms in place of RMSNorms; with biases, except for `modern`
                            without "norm_bias" */
    bool head_bias;      /* "lm_head_bias": the head has a bias */
    bool mixer;          /* the router is ROUTER_MIXER with "router_jitter_noise" */
    bool qk_norm_last;   /* norms of q and k come after RoPE */
    bool unrotated;      /* some layers have no RoPE: "no_rope_layers", or each
                            "no_rope_layer_interval"-th */
    bool unrotated_full; /* if there is a window, the layers without one have no RoPE */
    bool local_rope;     /* layers with a window have plain RoPE, whatever the other layers have */
    bool local_theta;    /* theta of the layers with a window is "rope_local_base_freq", unless
                            "rope_parameters" gives it */
    bool states_base;    /* "rope_theta" and "rms_norm_eps" must be given: other programs' defaults
                            are not 1e4 and 1e-6 */
    bool tied;           /* the head is the embedding unless "tie_word_embeddings" is false */
    enum window_rule window;
    uint32_t window_from;   /* WINDOW_UPPER: default of "max_window_layers"; 0: 28 */
    bool window_switch;     /* there is a window only if "use_sliding_window" is true */
    bool window_pattern;    /* WINDOW_MOST: "sliding_window_pattern" gives the period */
    uint32_t window_period; /* default of that period; 0: 4 */
    bool window_listed;     /* "layer_types" may override a rule for all or no layers (WINDOW_ALL,
                               WINDOW_NONE) */
    bool window_stated;     /* "sliding_window" must be given, null for none: defaults differ */
    bool mlp_bias;          /* "mlp_bias": biases in the dense FFN */
    bool scales; /* multipliers of embeddings, residuals, scores and logits: "embedding_multiplier"
                    and others */
    bool has_experts;
    bool expert_bias; /* router and experts have biases */
    bool clamped;     /* clamped SwiGLU in the experts */
    bool clamps_all;  /* with `clamped`: also in dense FFNs and shared experts. F of dense layers is
                         "dense_intermediate_size", that of the shared experts
                         "shared_intermediate_size" */
    bool sigmoid;     /* router scores are sigmoids, with a bias only for the choice; else a
                         softmax, except with `mixer`, `weighs_inputs` and `compressed` */
    /* "norm_topk_prob": true is refused: with it the published code drops the scale, while other
     * programs keep it or never read the field; no published config sets it */
    bool never_renormalised;
    bool sparsity_keys;    /* decoder_sparse_step and mlp_only_layers choose the MoE layers */
    bool renormalise;      /* chosen weights are divided by their sum, except with `mixer`; if
                              false, "norm_topk_prob" decides, except with `weighs_inputs` */
    bool own_expert_width; /* an expert's F is "moe_intermediate_size", which must be given; else
                              intermediate_size, except with mamba_blocks and shortcut */
    bool own_shared_width; /* F of the shared experts is "shared_expert_intermediate_size" */
    bool counts_shared;    /* F of the shared experts is "n_shared_experts" times an expert's F;
                              this, "norm_topk_prob" and "routed_scaling_factor" must be given,
                              because defaults differ. Families with other names or rules for them:
                              arch_fields.c */
    bool num_shared;       /* with counts_shared: the field is "num_shared_experts" */
    bool router_scaling;   /* the scale of chosen weights is "router_scaling_factor"; no groups */
    bool sigmoid_groups;   /* "n_group" must be given, because defaults differ */
    bool moe_range; /* "moe_layer_start_index", "..._interval" and "..._end_index" choose the MoE
                       layers; "moe_k", "moe_num_experts" and "moe_num_shared_experts" are counts */
    bool moe_topk;  /* "moe_topk", if given, replaces "num_experts_per_tok"; one shared expert of
                       intermediate_size */
    bool biased_softmax; /* router scores are a softmax, with a bias only to choose experts */
    bool granite_shared; /* "shared_intermediate_size": F of the shared experts; 0: none */
    bool counts_dense;   /* "first_k_dense_replace" must be given, because defaults differ */
    bool typed_mlps;     /* "mlp_layer_types" may list dense and sparse layers; without the list the
                            first layer is dense, or as many as "first_k_dense_replace" says
                            (arch_derive_typed_mlps) */
    bool moe_flags;      /* with typed_mlps: "is_moe_layer" may repeat the list; without the list
                            the first "first_k_dense_replace" layers are dense, by default one */
    const struct arch_names *names; /* names of the expert tensors; NULL: none */
    /* some layers have a gated delta rule instead of attention, chosen by "layer_types" or
     * "full_attention_interval"; its sizes, the "linear_*" fields, must be given */
    bool delta;
    bool delta_apart;      /* the delta rule's projections are separate tensors */
    bool delta_by_channel; /* some layers have a delta rule with a decay for each channel, by
                              "linear_attn_config" or "layer_types"; no layer has RoPE */
    /* Ling 3: the same rule by "layer_types" or "layer_group_size", with one linear for all decays
     * and one for all gates; its decays have a bound if "kda_safe_gate" is true. Latent attention
     * with RoPE; each of its heads has a gate, which multiplies its output */
    bool ling;
    bool sub_norms;   /* BitNet: RMSNorms of all of attention's output and of all inner elements of
                         the FFN, which computes relu2(gate) * up */
    bool states_topk; /* "norm_topk_prob" must be given, because defaults differ */
    bool gated_heads; /* q_proj gives a gate after each head's q: the head's output is multiplied by
                         the gate's sigmoid */
    bool chunked;     /* in layers with RoPE, a row sees only the positions of its own chunk:
                         "attention_chunk_size" */
    bool l2_norm;     /* "use_qk_norm": per-head RMSNorms of q and k without weights, after RoPE, in
                         layers with RoPE */
    bool tunes;       /* "attn_temperature_tuning": in layers without RoPE, q grows with the
                         position */
    bool grows;       /* q of all layers grows with the position: "llama_4_scaling_beta" in
                         "rope_parameters", whose type must be "yarn" */
    bool weighs_inputs; /* the only chosen expert's input is multiplied by the router's weight;
                           "moe_layers" may list the MoE layers, "intermediate_size_mlp" is F of
                           dense layers */
    bool indexed;       /* sparse attention: a row attends to "index_topk" positions, found by an
                           index of "index_n_heads" heads */
    bool index_pairs;   /* the index's RoPE rotates neighbouring elements, as attention's does; a
                           layer may reuse the positions of the layer before it, by "indexer_types"
                           or other fields (arch_index.c) */
    bool block_indexed; /* MiniMax-M3: in some layers the rows of each KV head attend to blocks of
                           positions, found by an index head of its own; arch_block_index.c */
    bool shortcut;      /* each of "num_layers" published layers is two of shoal's. The first of the
                           two has experts beside its dense FFN; their output is added at the end of
                           the second. "zero_expert_num" experts have no weights and give back their
                           input. Each latent is scaled by sqrt(D / its width) */
    bool compressed;    /* DeepSeek-V4: rows attend to a window and to compressed entries
                           (struct arch_compression); the residual stream is several streams; an
                           expert's SwiGLU has clamped inputs; arch_compressed.c */
    bool predicts;      /* the layer after the last may be a prediction layer:
                           "num_nextn_predict_layers" */
    /* some layers have a Mamba-2 scan instead of attention, by "layer_types" or
     * "layers_block_type"; each family has fields of its own for the sizes */
    bool mamba;
    bool mamba_granite; /* FFNs are shared experts, beside experts or alone; no layer has RoPE
                           unless "position_embedding_type" is "rope" */
    bool mamba_blocks;  /* a layer has a mixer or an FFN, not both; "hybrid_override_pattern" may
                           list the layers; no RoPE; FFNs and experts are relu2 without a gate */
    bool encoder;       /* tokens also attend to later ones, and there is no head; with `bert` or
                           `modern` */
    bool bert;   /* layer norms follow the sums; embeddings of positions and types are added to
                    those of tokens; all linears have biases, and FFNs are GELU without a gate */
    bool modern; /* ModernBERT: layers as decoders have them, but for a norm of the embeddings
                    in place of the norm of the first layer's input; FFNs are GEGLU with exact
                    GELU; a window reaches "local_attention" / 2 positions to either side of its
                    row; "norm_bias": norms have biases */
    /* Step-3.5 and 3.7: number of query heads and RoPE by the kind of the layer, a gate for each
     * head, limits of SwiGLU for each layer; arch_step.c */
    bool stepped;
    bool pad_positions; /* positions count from "pad_token_id" + 1; padding tokens are not counted
                           and have the position "pad_token_id" */
};

/* The sizes of recurrent layers, which have a gated delta rule or a Mamba-2 scan instead of
 * attention; n_key_heads 0: the model has none. Value head v reads key head v / (n_value_heads /
 * n_key_heads). The key heads of a Mamba-2 scan are its groups, key_dim its state size. */
struct arch_delta {
    uint32_t n_key_heads, n_value_heads;
    uint32_t key_dim, value_dim; /* elements of a key head's q and k; elements of a value head */
    uint32_t n_taps;             /* rows that the convolution reads */
    bool is_mamba;               /* the layers are Mamba-2 */
    bool by_channel; /* delta rule: a decay for each channel of a key; key_dim is value_dim, and
                        there are as many key as value heads */
    /* with by_channel: decays are exp(least_log * sigmoid(...)), so at least exp(least_log); if
     * false, they are exp(-rate * softplus(...)) */
    bool is_bounded;
    float least_log;             /* at most 0 */
    bool conv_bias;              /* Mamba-2: the convolution has a bias */
    float step_least, step_most; /* Mamba-2: bounds of the step */
};

/* The index of sparse attention (DeepSeek-V3.2-Exp, 2025, section 2.1): a row attends to the
 * n_chosen positions with the largest scores. With compressed attention it attends to the n_chosen
 * entries with the largest scores. With blocks (MiniMax-M3), each KV head has an index head, and
 * its queries attend to n_chosen / `block` blocks. All 0: the model has no index, and a row attends
 * to all positions. */
struct arch_index {
    uint32_t n_heads, dim; /* index heads; elements of a head, of which `rotary` rotate: the first
                              ones, with compressed attention the last */
    uint32_t n_chosen;     /* at most the context; with blocks, the context rounded up to whole
                              blocks */
    uint32_t block;        /* positions of a block, a multiple of 64; 0: single positions */
    uint32_t n_local;      /* the last blocks up to a row's own, which are always chosen */
    bool pairs; /* elements 2i and 2i + 1 rotate together; otherwise i and i + rotary / 2. Not read
                   with compressed attention, which always rotates such pairs */
};

/* Compressed attention (DeepSeek-V4, 2026, section 2.3): a window of the last positions, and
 * entries that each stand for `rate` positions. A key is also the value. All query heads share one
 * head of head_dim elements, the last `rotary` of which rotate. All 0: the model has none. */
struct arch_compression {
    uint32_t sparse_rate; /* rate in layers whose index chooses entries. An entry there also reads
                             the sparse_rate positions before its own */
    uint32_t full_rate;   /* rate in layers whose rows see all entries */
    uint32_t o_groups;    /* groups of heads; each has a linear that reads its heads' outputs */
    uint32_t o_lora;      /* outputs of each of these linears; o reads those of all groups */
};

/* The entries that rows see in a layer of compressed attention: none, those that the layer's index
 * chooses, or all. */
enum compression { COMPRESSION_NONE, COMPRESSION_SPARSE, COMPRESSION_FULL };

/* Hyper-connections with doubly stochastic matrices (mHC; Xie et al., 2025, arXiv 2512.24880): the
 * residual stream is n streams of the model's width. A block reads their weighted sum; then they
 * are mixed by a matrix of the row's own, and the block's output is added to each, times a weight.
 */
struct arch_streams {
    uint32_t n;          /* 0: one residual stream, to which outputs are added */
    uint32_t iterations; /* of Sinkhorn's algorithm, which normalises the matrix */
    float eps;
};

/* Multipliers; 1: none. */
struct arch_scales {
    float attention;               /* multiplies the scores q.k */
    float values;                  /* multiplies v; 0: nothing does */
    float embed, residual, logits; /* multiply the embeddings, what attention and FFN add to the
                                      residual stream, and the head's input */
};

/* At position p, q is multiplied by 1 + scale * log(1 + floor((p + first) / step)): in layers
 * without RoPE (Llama-4), or in all layers (Ministral-3, Mistral-4). */
struct arch_tuning {
    uint32_t step, first;
    float scale; /* 0: none */
    bool everywhere;
};

/* The constants of clamped SwiGLU. */
struct arch_swiglu {
    float alpha;
    float limit; /* 0: plain SwiGLU. With alpha 0 (DeepSeek-V4), gate and up of the shared experts
                    are clamped too, and 1 is not added to up */
    bool everywhere; /* with an alpha: dense FFNs and shared experts have it as the experts do */
};

/* Attention: its heads, their widths, the window and what is done to q, k and v. */
struct arch_attention {
    uint32_t n_heads, n_kv_heads; /* H, G */
    /* query heads of the layers without a window; 0: all layers have H */
    uint32_t n_full_heads;
    /* KV heads of the layers without a window, a divisor of G; 0: all layers have G. The cache has
     * G in all layers: it has each of these heads G / n_full_kv_heads times. */
    uint32_t n_full_kv_heads;
    uint32_t full_dim;  /* elements of a head of q, k and v in the layers without a window, all of
                           which rotate; 0: query_dim and value_dim, as in the other layers */
    bool full_k_is_v;   /* in these layers v is k before its norm */
    bool v_norm;        /* an RMSNorm without weights of each head of v */
    uint32_t head_dim;  /* Hd, elements of a head in the cache and in attention kernels: the
                           published head_dim (the largest of all layers), padded with zeros to a
                           multiple of LANES; with latent attention see kv_lora */
    uint32_t rotary;    /* elements of a head that RoPE rotates: the first ones; with latent and
                           compressed attention the last. With a window: arch_local_rotary */
    uint32_t query_dim; /* elements of a head of q in the weights: the published head_dim; with
                           latent attention qk_nope_head_dim + qk_rope_head_dim */
    uint32_t value_dim; /* elements of a head of o_proj's input in the weights. Without latent and
                           compressed attention, heads of q, k, v and of o's input all have the
                           published head_dim, except that MiMo's v and o may have fewer */
    uint32_t kv_lora;   /* latent attention: width of the latent; Hd = kv_lora + rotary, cached once
                           per token. Compressed attention: Hd. 0: neither */
    uint32_t q_lora;    /* latent and compressed attention: width of q's latent; 0: q is computed
                           directly */
    /* `rotary` of layers with a window; 0: as in the others */
    uint32_t local_rotary;
    float latent_norm_eps; /* eps of the norms inside latent attention */
    float latent_scale;    /* multiplies the normed latent of keys and values; 0: nothing does */
    bool head_gates;       /* each head's output is multiplied by a sigmoid of one number */
    bool qk_norm, qk_norm_whole; /* RMSNorm of each head of q and k; of all of q and of all of k */
    bool l2_norm, sinks, gated_heads; /* see struct arch_family */
    bool qkv_bias, o_bias;
    float clip_qkv;  /* q, k and v are clamped to [-clip_qkv, clip_qkv]; 0: not clamped */
    float softcap;   /* c in c tanh(score / c); 0: none */
    uint32_t window; /* sliding window, in positions, of layers that have one; 0: no layer has one.
                        In an encoder it has as many positions after the row as before it */
    bool chunked;    /* the window is a chunk: it begins at the last multiple of `window` */
};

/* The experts and their router; n_experts 0: a dense model. */
struct arch_experts {
    uint32_t n_experts, n_chosen, ffn; /* E, K, F of an expert */
    uint32_t n_zero;     /* experts that give back their input: the router's last outputs */
    uint32_t shared_ffn; /* F of all shared experts together; 0: none */
    struct router_rule router;
    bool bias;          /* router and experts have biases */
    bool select_bias;   /* the router adds a bias only to choose experts */
    bool shared_mix;    /* a sigmoid gate multiplies the shared experts' output */
    bool lone_shared;   /* the FFN of dense layers has the shared experts' names */
    bool weighs_inputs; /* see struct arch_family */
    bool joins;         /* shared and routed experts each have a norm of their input and one of
                           their output; the router's input has a norm, too */
};

/* The kinds of layers: an array for each property, by the layer's number. */
struct arch_layers {
    bool is_moe[ARCH_LAYERS_MAX];
    bool has_window[ARCH_LAYERS_MAX];
    bool is_unrotated[ARCH_LAYERS_MAX]; /* the layer has no RoPE */
    bool shares_index[ARCH_LAYERS_MAX]; /* the layer has no index of its own and attends to the
                                           positions of the layer before it */
    bool lacks_index[ARCH_LAYERS_MAX];  /* the layer attends to all positions, in a model with an
                                           index */
    bool is_delta[ARCH_LAYERS_MAX];     /* recurrent: a delta rule or a Mamba-2 scan */
    bool is_hashed[ARCH_LAYERS_MAX];    /* a table gives the experts of each token */
    enum compression compression[ARCH_LAYERS_MAX];
    bool lacks_mixer[ARCH_LAYERS_MAX], lacks_ffn[ARCH_LAYERS_MAX];
    /* limits behind the activation (struct swiglu_args, caps) of routed experts, and of a dense FFN
     * or shared experts; 0: none */
    float expert_cap[ARCH_LAYERS_MAX], ffn_cap[ARCH_LAYERS_MAX];
};

struct arch {
    const struct arch_family *family;
    uint32_t n_layers, width; /* L, D */
    uint32_t vocab, context;  /* V; the most positions of a sequence */
    struct arch_layers layer;
    struct arch_attention attn;
    struct arch_index index;
    struct arch_compression compression;
    struct arch_streams streams;
    bool rope_pairs; /* latent attention: RoPE rotates elements 2i and 2i + 1; otherwise i and i +
                        rotary / 2 */
    bool local_rope; /* layers with a window have rotary frequencies of their own */
    double rope_theta;
    struct arch_tuning tuning;
    struct arch_delta delta;
    uint32_t ffn; /* F of dense layers */
    bool ffn_bias;
    bool sub_norms;     /* see struct arch_family; `gate` is not read */
    bool rounds_inputs; /* the layers' linears read rows rounded to 8 bits (struct round_rows) */
    enum gate_kind gate;
    struct arch_swiglu swiglu;
    struct arch_experts moe;
    bool shortcut; /* see struct arch_family */
    struct arch_scales scale;
    float norm_eps;
    bool norm_bias;   /* the norms of the residual stream have biases */
    bool layer_scale; /* a scalar multiplies the residual stream after each layer */
    float logit_cap;  /* c in c tanh(logit / c); 0: none */
    bool tied, head_bias;
    bool headless; /* the head is not loaded. arch_parse sets false; a caller that does not use the
                      head sets true */
    /* Layer number n_layers may be a prediction layer (multi-token prediction of DeepSeek-V3, arXiv
     * 2412.19437, section 2.2), which gives draft tokens. n_predict: 1 if the layer is loaded; 0,
     * as set by arch_parse, if the checkpoint has none or nothing reads it. */
    bool may_predict;
    uint32_t n_predict;
    bool encoder;                  /* see struct arch_family */
    uint32_t n_positions, n_types; /* encoders: embeddings of positions and of types of tokens; 0:
                                      there are none */
    int32_t pad_id;                /* encoders with pad_positions; -1: other encoders */
    int32_t eos_ids[16];           /* ids in config.json; job_text.c has a list with others too */
    uint32_t n_eos_ids;
};

/* Local. Returns the number of layers that have weights: all, and a loaded prediction layer. */
static inline uint32_t arch_all_layers(const struct arch *m)
{
    return m->n_layers + m->n_predict;
}

/* Local. True when the layer has an index of its own. */
static inline bool arch_has_index(const struct arch *m, uint32_t layer)
{
    const bool may =
        m->compression.o_groups == 0 || m->layer.compression[layer] == COMPRESSION_SPARSE;
    return m->index.n_heads > 0 && may && !m->layer.shares_index[layer] &&
           !m->layer.lacks_index[layer];
}

/* Local. True when an index, the layer's own or that of an earlier layer, chooses the positions,
 * blocks or entries to which the layer's rows attend. */
static inline bool arch_is_sparse(const struct arch *m, uint32_t layer)
{
    return arch_has_index(m, layer) || m->layer.shares_index[layer];
}

/* Local. Returns the positions of one compressed entry of the layer; 0: it has no entries. */
static inline uint32_t arch_rate(const struct arch *m, uint32_t layer)
{
    const enum compression kind = m->layer.compression[layer];
    return kind == COMPRESSION_SPARSE ? m->compression.sparse_rate
           : kind == COMPRESSION_FULL ? m->compression.full_rate
                                      : 0;
}

/* Local. Returns the elements of an index key of the layer's entries; 0: they have no index keys.
 */
static inline uint32_t arch_entry_key_dim(const struct arch *m, uint32_t layer)
{
    return arch_has_index(m, layer) ? m->index.dim : 0;
}

/* Local. Returns the elements that each of a KV block's 64 tokens takes so that the block has room
 * for its entries of `dim` elements: one for each `rate` tokens, at least one. */
static inline uint32_t arch_entry_share(uint32_t dim, uint32_t rate)
{
    const uint32_t n = rate < 64 ? rate : 64;
    return (dim + n - 1) / n;
}

/* Local. Returns the elements that a token takes in the cache beside its key, in the layers where
 * arch_has_beside is true. Sparse attention: an index key. Compressed attention: the token's share
 * of its block's entries and their index keys, the larger of the two rates' shares. */
static inline uint32_t arch_beside_dim(const struct arch *m)
{
    const struct arch_compression *c = &m->compression;
    if (c->o_groups == 0) return m->index.dim;
    const uint32_t sparse = arch_entry_share(m->attn.kv_lora + m->index.dim, c->sparse_rate);
    const uint32_t full = arch_entry_share(m->attn.kv_lora, c->full_rate);
    return sparse > full ? sparse : full;
}

/* Local. True when the layer has index keys or entries in the cache. */
static inline bool arch_has_beside(const struct arch *m, uint32_t layer)
{
    return m->compression.o_groups > 0 ? arch_rate(m, layer) > 0 : arch_has_index(m, layer);
}

/* Local. Returns the floats that a layer with entries keeps of each sequence: three for each
 * channel of the two unfinished entries and of their index keys (struct pool_args). */
static inline uint64_t arch_entry_floats(const struct arch *m)
{
    return 6ull * (m->attn.kv_lora + m->index.dim);
}

/* Local. Returns how many layers of [begin, end) have entries. */
static inline uint32_t arch_entry_layers(const struct arch *m, uint32_t begin, uint32_t end)
{
    uint32_t n = 0;
    for (uint32_t l = begin; l < end; l++) n += arch_rate(m, l) > 0;
    return n;
}

/* Local. True when the model keeps, for each sequence, states that are not in KV blocks. */
static inline bool arch_has_states(const struct arch *m)
{
    return m->delta.n_key_heads > 0 || m->compression.o_groups > 0;
}

/* Local. Returns the elements of a row of the residual stream, over all streams. */
static inline uint32_t arch_row_width(const struct arch *m)
{
    return m->streams.n > 0 ? m->streams.n * m->width : m->width;
}

/* Local. Returns the length of the runs of columns of o's input that ranks do not divide: those of
 * a head, or of a group of heads. */
static inline uint32_t arch_o_unit(const struct arch *m)
{
    return m->compression.o_groups > 0 ? m->compression.o_lora : m->attn.value_dim;
}

/* Local. True when the layer needs arrays that the layer before it made (the chosen positions, or
 * the output of experts); both must then be in one stage. */
static inline bool arch_continues(const struct arch *m, uint32_t layer)
{
    return m->layer.shares_index[layer] || (m->shortcut && layer % 2 == 1);
}

/* Local. True when the layer's experts stand beside a dense FFN, and the next layer adds their
 * output. */
static inline bool arch_starts_shortcut(const struct arch *m, uint32_t layer)
{
    return m->shortcut && layer % 2 == 0;
}

/* Local. Returns the number of the router's outputs. */
static inline uint32_t arch_n_routed(const struct arch *m)
{
    return m->moe.n_experts + m->moe.n_zero;
}

/* Local. Returns the value heads per key head of recurrent layers; 0: the model has none. */
static inline uint32_t arch_delta_per_key(const struct arch *m)
{
    return m->delta.n_key_heads > 0 ? m->delta.n_value_heads / m->delta.n_key_heads : 0;
}

/* Local. Ranks divide recurrent layers by units: key heads of a gated delta rule, heads of a
 * Mamba-2 scan. Return the number of units, and the value heads of a unit. */
static inline uint32_t arch_delta_units(const struct arch *m)
{
    return m->delta.is_mamba ? m->delta.n_value_heads : m->delta.n_key_heads;
}

static inline uint32_t arch_delta_per_unit(const struct arch *m)
{
    return m->delta.is_mamba ? 1 : arch_delta_per_key(m);
}

/* Local. Return the query heads of a layer, and the most of any layer. */
static inline uint32_t arch_heads(const struct arch *m, bool has_window)
{
    return m->attn.n_full_heads > 0 && !has_window ? m->attn.n_full_heads : m->attn.n_heads;
}

static inline uint32_t arch_heads_most(const struct arch *m)
{
    return m->attn.n_full_heads > m->attn.n_heads ? m->attn.n_full_heads : m->attn.n_heads;
}

/* Local. Returns the widest input of an output projection, attention's or a recurrent layer's. */
static inline uint64_t arch_mixed_inputs(const struct arch *m)
{
    const uint32_t dim =
        m->attn.full_dim > m->attn.value_dim ? m->attn.full_dim : m->attn.value_dim;
    const uint64_t o = (uint64_t)arch_heads_most(m) * dim;
    const uint64_t delta = (uint64_t)m->delta.n_value_heads * m->delta.value_dim;
    return o > delta ? o : delta;
}

/* Local. True when the layer has keys and values in the cache. */
static inline bool arch_layer_has_kv(const struct arch *m, uint32_t layer)
{
    return !m->layer.is_delta[layer] && !m->layer.lacks_mixer[layer];
}

/* Local. Returns how many KV heads of the cache have the same keys and values, because the layer
 * computes fewer. */
static inline uint32_t arch_shares_keys(const struct arch *m, uint32_t layer)
{
    const bool fewer = m->attn.n_full_kv_heads > 0 && !m->layer.has_window[layer];
    return fewer ? m->attn.n_kv_heads / m->attn.n_full_kv_heads : 1;
}

/* Local. Returns the rotated elements of a head in layers with a window. */
static inline uint32_t arch_local_rotary(const struct arch *m)
{
    if (m->attn.local_rotary > 0) return m->attn.local_rotary;
    return m->attn.full_dim > 0 ? m->attn.query_dim : m->attn.rotary;
}

/* Local. Return the elements of a head of q and k, and of v, in a layer's weights; and the largest
 * in any layer. */
static inline uint32_t arch_query_dim(const struct arch *m, bool has_window)
{
    return m->attn.full_dim > 0 && !has_window ? m->attn.full_dim : m->attn.query_dim;
}

static inline uint32_t arch_value_dim_of(const struct arch *m, bool has_window)
{
    return m->attn.full_dim > 0 && !has_window ? m->attn.full_dim : m->attn.value_dim;
}

static inline uint32_t arch_query_dim_most(const struct arch *m)
{
    return m->attn.full_dim > m->attn.query_dim ? m->attn.full_dim : m->attn.query_dim;
}

static inline uint32_t arch_value_dim_most(const struct arch *m)
{
    return m->attn.full_dim > m->attn.value_dim ? m->attn.full_dim : m->attn.value_dim;
}

/* Local. Returns the length of the K-blocks of an output projection whose heads have `dim`
 * elements, in a model where that length is `leaf` for heads of value_dim elements: a K-block has
 * as many heads in every layer. */
static inline uint32_t arch_o_leaf(const struct arch *m, uint32_t leaf, uint32_t dim)
{
    return dim == m->attn.value_dim ? leaf : leaf / m->attn.value_dim * dim;
}

/* Local. True when heads are computed in other widths or numbers than those of the cache. */
static inline bool arch_pads_heads(const struct arch *m)
{
    return m->attn.kv_lora == 0 &&
           (m->attn.head_dim != m->attn.query_dim || m->attn.head_dim != m->attn.value_dim ||
            m->attn.n_full_kv_heads > 0);
}

/* Local. Returns how many layers of [begin, end) are recurrent. */
static inline uint32_t arch_delta_layers(const struct arch *m, uint32_t begin, uint32_t end)
{
    uint32_t n = 0;
    for (uint32_t l = begin; l < end; l++) n += m->layer.is_delta[l];
    return n;
}

/* Local. Returns the i-th family; NULL after the last. */
const struct arch_family *arch_family_at(size_t i);

/* Local. Returns the family of an architecture's name; NULL: none, or the name is NULL. */
const struct arch_family *arch_family_find(const char *architecture);

/* Local. Parses n bytes of a config.json; `what` names them in errors. Errors: STATUS_INPUT names
 * the field, what was expected and what was found; STATUS_MEMORY. */
struct status arch_parse(const char *json, size_t n, const char *what, struct arch *out);

#endif

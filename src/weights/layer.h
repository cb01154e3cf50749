/* One layer of the model as this rank holds it: its position in the model, its kind and its
 * weights. weights_load fills it, and calibrate changes it; the forward pass, attention and MoE
 * read it through a const pointer. Absent parts are zero. */
#ifndef SHOAL_WEIGHTS_LAYER_H
#define SHOAL_WEIGHTS_LAYER_H

#include "kernels/kern.h"

/* Weights of compressed attention that turn rows into an entry, or into its index key: kv gives a
 * row's values, and gate the logits of the weights with which an entry sums the values. */
struct pool_weights {
    struct packed kv, gate; /* [channels, D] */
    float *bias;            /* [rate, channels] added to the logits, by the row's position */
    float *norm;            /* [elements of an entry] */
};

/* Weights of hyper-connections: how a block (attention or FFN) reads and writes n residual
 * streams. */
struct stream_weights {
    struct packed mix;   /* [(2 + n) n, n D]; after the last layer [n, n D] */
    float *base, *scale; /* [(2 + n) n], [3]; after the last layer [n], [1] */
};

/* Weights of sparse attention's index. Every rank of tp has all of its heads, except in an index
 * that chooses blocks: there a rank has those of its KV heads. */
struct index_weights {
    struct packed q;             /* [heads * dim, q_lora]; if it chooses blocks [heads * dim, D] */
    struct packed k, mix;        /* [dim, D], [heads, D]; no mix if it chooses blocks */
    float *q_norm;               /* [dim] of each query, if it chooses blocks; else NULL */
    float *k_norm, *k_norm_bias; /* [dim] of a layer norm, or of an RMSNorm without a bias */
    struct pool_weights pool;    /* of compressed attention, which has no k and k_norm */
};

/* Weights of latent attention. Each local head has a k_b, which maps its q into the space of the
 * latents, and a v_b, which maps its output out of that space. */
struct latent_weights {
    struct packed q_a, kv_a, k_rope; /* [q_lora, D], [kv_lora, D], [rotary, D] */
    float *q_a_norm, *kv_a_norm;     /* [q_lora], [kv_lora] */
    struct packed *k_b, *v_b; /* [heads] of [kv_lora, query_dim - rotary], [value_dim, kv_lora] */
    /* compressed attention only, which has no k_rope, k_b and v_b */
    struct pool_weights pool;
    struct packed
        o_a; /* [heads * value_dim, inputs of a group] one linear for each group of heads */
};

/* Weights of a gated delta rule, for the key heads that a rank holds and their value heads. A
 * Mamba-2 scan has C, B, x, z and dt as q, k, v, z and a: C and B of all groups. */
struct delta_weights {
    struct packed qkvz;         /* [key heads * (2 key_dim + 2 per_key value_dim), D] */
    struct packed ba;           /* [key heads * 2 per_key, D] */
    struct packed q, k, v, z;   /* of separate projections: q, k [key heads * key_dim, D]; v, z [o's
                                   inputs, D] */
    struct packed b, a;         /* of separate projections: [value heads, D] each; with a decay for
                                   each channel (arch_delta.by_channel) a is as z */
    struct packed a_low, z_low; /* by_channel, or empty: [value_dim, D] each, whole on each rank; a
                                   and z then read their outputs and are [o's inputs, value_dim] */
    struct packed o;            /* [D, value heads * value_dim], K-blocks */
    float *conv; /* [n_taps, channels]: those of q, of k, of v; Mamba-2: one row more, the bias,
                    before the others */
    float *decay_log, *step_bias; /* [value heads]; step_bias by channel: [o's inputs] */
    float *norm;                  /* [value_dim]; Mamba-2: [value heads * value_dim] */
    float *skip;                  /* [value heads] of Mamba-2 */
};

/* In Gemma-4's layers without a window, global_head_dim stands for query_dim and value_dim. */
struct attention_weights {
    struct packed q, k, v;                    /* [heads * query_dim, D]; v: value_dim */
    struct packed o;                          /* [D, heads * value_dim], K-blocks */
    struct packed gate;                       /* [heads, D] gates of the heads' outputs; or empty */
    float *q_bias, *k_bias, *v_bias, *o_bias; /* [outputs of q, ...] or NULL */
    float *q_norm, *k_norm; /* [query_dim]; [heads * query_dim] of a norm over all heads; or NULL */
    float *sinks;           /* [heads] or NULL */
    float *o_norm;          /* [heads * value_dim] of o's inputs, normed over all ranks; or NULL */
    struct latent_weights latent;
    struct index_weights index;
};

/* The FFN of a dense layer or beside experts, or the shared experts of a MoE layer. */
struct ffn_weights {
    struct packed gate, up; /* [F, D] */
    struct packed down;     /* [D, F], K-blocks */
    float xielu[4];    /* alpha_p, alpha_n, beta, eps of an FFN without a gate, where `gate` is the
                          linear before the activation and `up` is empty; in host memory */
    struct packed mix; /* [1, D] gate of the shared experts, or empty */
    float *gate_bias, *up_bias, *down_bias; /* [F], [F], [D], dense, or NULL */
    float *down_norm; /* [F] of down's inputs, normed over all ranks; or NULL */
};

/* A layer has P places, each for one copy of an expert's weights: place e holds expert e, unless
 * `place` says otherwise; it may give an expert several places. A rank holds a range of places
 * (layout_experts). */
struct moe_weights {
    struct packed router; /* [E, D]; experts without weights count among E here, and below */
    float *table;         /* [V, K] the experts of each token, which are not chosen then; or NULL */
    float *router_bias;   /* [E] added to the router's logits; or NULL */
    float *select_bias;   /* [E] for the choice of experts only (router_args); or NULL */
    uint32_t n_experts;   /* places held here */
    uint32_t grid_bits;   /* g of the down projections and of the sum over a token's experts;
                             also on ranks without a K-block */
    struct packed reads;  /* no data; describes the rows that gate and up read: gate's quantization
                             if both read the same quantized values, else none. Set on all ranks,
                             also on those without experts */
    struct packed *gate, *up;   /* [n_experts] of [F, D]; without a gate (GATE_RELU2) both are the
                                   same array, the linear before the activation */
    struct packed *down;        /* [n_experts] of [D, F] with K-blocks */
    float *gate_bias, *up_bias; /* [n_experts, F]; or NULL */
    /* the next five are of experts beside a dense FFN (struct arch_experts, joins); else NULL */
    float *shared_out_norm, *norm, *out_norm; /* [D] of the FFN's output, of the experts' input and
                                                 of their output */
    float *router_norm;                       /* [D] of the router's input */
    float *scale;              /* [E] multiplies the chosen weights; in host memory */
    float *down_bias;          /* [n_experts, D] added once, after the sum; or NULL */
    const uint32_t *place;     /* [P] borrowed: the places of each expert; or NULL: by id */
    const uint32_t *first;     /* [E + 1] borrowed: where an expert's places begin in `place` */
    const uint32_t *expert_at; /* [P] borrowed: the expert at each place */
    /* gate, up and down also have the other EP ranks' experts, in memory that all these ranks can
     * read; an index counts from this rank's first place, so it may be negative */
    bool has_others;
    /* borrowed; gate, up and down have memory only while the stream has given them a run
     * (weights/expert_stream.h); NULL: they always have memory */
    struct expert_stream *stream;
};

/* Weights that only a prediction layer has. */
struct predict_weights {
    float *token_norm, *row_norm; /* [D] of the next token's embedding, of the hidden row */
    struct packed join;           /* [D, 2 D] */
    float *norm;                  /* [D] of the head's input */
};

struct layer {
    uint32_t index;    /* in the model */
    uint32_t in_stage; /* counted from the first layer of the stage */
    uint32_t window;   /* positions that a row sees, as attn_args has it; 0: all */
    bool is_unrotated; /* q and k stay as they are (NoPE) */
    bool has_window;   /* window is not 0 */
    bool is_local;     /* RoPE with the frequencies of layers with a window */
    uint32_t kv_share; /* KV heads of the cache with the same keys and values */
    bool is_moe;
    bool starts_shortcut; /* LongCat-Flash: a dense FFN stands beside the layer's experts, and the
                             next layer adds the experts' output */
    bool ends_shortcut;   /* LongCat-Flash: it adds the output of the previous layer's experts */
    bool is_delta;        /* recurrent: a gated delta rule or a Mamba-2 scan instead of attention */
    bool has_kv;          /* attention with keys and values in the cache */
    bool has_mixer, has_ffn; /* a layer of Nemotron-H has only one of them */
    uint32_t kv_table;       /* of its KV blocks (parallel/layout/kv_groups.h) */
    uint32_t in_cache;  /* its place among the layers of a KV block; of a recurrent layer, among the
                           recurrent layers of the stage */
    float scale;        /* multiplies the residual stream after the layer, if the model has such
                           scalars */
    uint32_t in_states; /* its place among the layers of the stage that have compressed entries */
    uint32_t rate;      /* positions of one of its compressed entries; 0: it has none */
    struct stream_weights attn_streams, ffn_streams; /* empty: there is one residual stream */
    float *attn_norm, *ffn_norm;           /* [D] of the input of attention, of the FFN; or NULL */
    float *attn_norm_bias, *ffn_norm_bias; /* [D] of layer norms; NULL: these are RMSNorms */
    float *attn_out_norm, *ffn_out_norm;   /* [D] of the output of attention, of the FFN; or NULL */
    struct attention_weights attention;
    struct delta_weights delta;
    struct ffn_weights ffn; /* dense, or shared experts */
    struct moe_weights moe;
    struct predict_weights predict;
};

#endif

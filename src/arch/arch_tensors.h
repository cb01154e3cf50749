/* The tensors of a model: one table of roles, published names, shapes in the letters of
 * tensor/dims.h, and the axes along which ranks divide them. Read by lists of weights, the checks
 * of a checkpoint, convert and forecasts. */
#ifndef SHOAL_ARCH_ARCH_TENSORS_H
#define SHOAL_ARCH_ARCH_TENSORS_H

#include "arch/arch.h"

/* The role of a tensor in the model. The roles of a layer are next to each other. */
enum weight_role {
    WEIGHT_EMBED,
    WEIGHT_POSITIONS,     /* embeddings of an encoder's positions */
    WEIGHT_TYPES,         /* embeddings of an encoder's types of tokens */
    WEIGHT_ATTN_NORM,     /* norm of attention's input */
    WEIGHT_ATTN_OUT_NORM, /* norm of attention's output */
    WEIGHT_Q,
    WEIGHT_K,
    WEIGHT_V,
    WEIGHT_Q_NORM,
    WEIGHT_K_NORM,
    WEIGHT_Q_A, /* latent attention: makes q's latent, from which WEIGHT_Q makes q */
    WEIGHT_Q_A_NORM,
    WEIGHT_KV_A,
    WEIGHT_K_ROPE,
    WEIGHT_KV_A_NORM,
    WEIGHT_KV_B,        /* the heads' own parts of keys and values, never quantized */
    WEIGHT_HEAD_GATE,   /* one gate for each head */
    WEIGHT_INDEX_Q, /* the index of sparse attention: its queries, from q's latent or from rows */
    WEIGHT_INDEX_Q_NORM, /* norm of each of its queries */
    WEIGHT_INDEX_K,      /* its keys, one head */
    WEIGHT_INDEX_K_NORM,
    WEIGHT_INDEX_K_NORM_BIAS,
    WEIGHT_INDEX_MIX, /* the weights of its heads */
    WEIGHT_Q_BIAS,
    WEIGHT_K_BIAS,
    WEIGHT_V_BIAS,
    WEIGHT_O_BIAS,
    WEIGHT_SINKS,
    WEIGHT_POOL_KV,   /* compressed attention: values of a row, which entries sum with weights */
    WEIGHT_POOL_GATE, /* the logits of these weights */
    WEIGHT_POOL_BIAS, /* added to the logits, by the row's position in the entry */
    WEIGHT_POOL_NORM, /* norm of entries; the next four: the same for the index keys of entries */
    WEIGHT_INDEX_POOL_KV,
    WEIGHT_INDEX_POOL_GATE,
    WEIGHT_INDEX_POOL_BIAS,
    WEIGHT_INDEX_POOL_NORM,
    WEIGHT_O_A,       /* the linears of groups of heads, whose outputs WEIGHT_O reads */
    WEIGHT_O_IN_NORM, /* norm of all inputs of WEIGHT_O */
    WEIGHT_O,
    WEIGHT_DELTA_QKVZ, /* gated delta rule: for each key head q, k, and its value heads' v and z */
    WEIGHT_DELTA_BA,   /* for each key head, its value heads' b and a */
    WEIGHT_DELTA_Q,    /* the same as separate tensors: q of all heads */
    WEIGHT_DELTA_K,
    WEIGHT_DELTA_V,
    WEIGHT_DELTA_Z,
    WEIGHT_DELTA_B,
    WEIGHT_DELTA_A,
    WEIGHT_DELTA_A_LOW, /* Kimi-Linear: makes the narrow rows that DELTA_A reads */
    WEIGHT_DELTA_Z_LOW, /* Kimi-Linear: makes the narrow rows that DELTA_Z reads */
    WEIGHT_CONV_Q,      /* the convolution of the channels of q, k and v, in this order */
    WEIGHT_CONV_K,
    WEIGHT_CONV_V,
    WEIGHT_DECAY_LOG,
    WEIGHT_STEP_BIAS,
    WEIGHT_DELTA_NORM,
    WEIGHT_DELTA_O,
    WEIGHT_CONV_BIAS_Q, /* biases of Mamba-2's convolution. Mamba-2 has the roles of a delta rule
                           with separate tensors: C is q, B is k, x is v, dt is a */
    WEIGHT_CONV_BIAS_K,
    WEIGHT_CONV_BIAS_V,
    WEIGHT_SKIP,     /* Mamba-2's D */
    WEIGHT_FFN_NORM, /* norm of the FFN's input */
    WEIGHT_FFN_OUT_NORM,
    WEIGHT_GATE,
    WEIGHT_UP,
    WEIGHT_DOWN_IN_NORM, /* norm of all inputs of WEIGHT_DOWN */
    WEIGHT_DOWN,
    WEIGHT_GATE_BIAS,
    WEIGHT_UP_BIAS,
    WEIGHT_DOWN_BIAS,
    WEIGHT_XIELU_P, /* the activation's parameters, one number each, as in the file */
    WEIGHT_XIELU_N,
    WEIGHT_XIELU_BETA,
    WEIGHT_XIELU_EPS,
    WEIGHT_ATTN_NORM_BIAS,
    WEIGHT_FFN_NORM_BIAS,
    WEIGHT_SHARED_GATE, /* the gate projection of the shared experts */
    WEIGHT_SHARED_UP,
    WEIGHT_SHARED_DOWN,
    WEIGHT_SHARED_MIX,      /* [1, D] the sigmoid gate of the shared experts */
    WEIGHT_SHARED_OUT_NORM, /* norm of the shared experts' output */
    WEIGHT_EXPERT_NORM,     /* norm of the routed experts' input */
    WEIGHT_EXPERT_OUT_NORM, /* norm of the routed experts' output */
    WEIGHT_ROUTER_NORM,     /* norm of the router's input */
    WEIGHT_EXPERT_SCALE,    /* [E] multiply the chosen weights */
    WEIGHT_LAYER_SCALE,     /* multiplies the residual stream after the layer */
    WEIGHT_ROUTER,
    WEIGHT_ROUTER_TABLE, /* the experts of each token of the vocabulary, as floats */
    WEIGHT_ROUTER_BIAS,
    WEIGHT_SELECT_BIAS,      /* added only to choose experts */
    WEIGHT_EXPERT_GATE_BIAS, /* biases of the experts that a rank holds: [experts, outputs] */
    WEIGHT_EXPERT_UP_BIAS,
    WEIGHT_EXPERT_DOWN_BIAS,
    WEIGHT_EXPERT_GATE,
    WEIGHT_EXPERT_UP,
    WEIGHT_EXPERT_DOWN,
    WEIGHT_ATTN_STREAMS,       /* hyper-connections: the linear that gives a block's weights */
    WEIGHT_ATTN_STREAMS_BASE,  /* added to that linear's outputs, after the scale */
    WEIGHT_ATTN_STREAMS_SCALE, /* multiplies that linear's outputs */
    WEIGHT_FFN_STREAMS,
    WEIGHT_FFN_STREAMS_BASE,
    WEIGHT_FFN_STREAMS_SCALE,
    WEIGHT_PREDICT_TOKEN_NORM, /* in a prediction layer: norm of the token's embedding */
    WEIGHT_PREDICT_ROW_NORM,   /* norm of the hidden row that is joined to the embedding */
    WEIGHT_PREDICT_JOIN,       /* [D, 2 D], which makes the layer's input from both */
    WEIGHT_PREDICT_NORM,       /* norm of the head's input after the prediction layer */
    WEIGHT_FINAL_STREAMS,      /* hyper-connections after the last layer: the linear that gives the
                                  weights of the streams' sum; its base and scale */
    WEIGHT_FINAL_STREAMS_BASE,
    WEIGHT_FINAL_STREAMS_SCALE,
    WEIGHT_FINAL_NORM,
    WEIGHT_FINAL_NORM_BIAS,
    WEIGHT_HEAD,
    WEIGHT_HEAD_BIAS,
    WEIGHT_ROLE_COUNT
};

/* Tensors of one class usually have one format in a file. */
enum arch_class {
    CLASS_VECTOR, /* norms, biases, convolutions and other floats: f32 in memory */
    CLASS_ATTENTION,
    CLASS_LATENT, /* KV_B: never quantized */
    CLASS_FFN,    /* dense layers' FFN, and shared experts */
    CLASS_EXPERTS,
    CLASS_ROUTER,
    CLASS_EMBED,
    CLASS_HEAD,
    CLASS_COUNT
};

/* The axis along which ranks divide a dimension of a tensor. */
enum arch_axis {
    AXIS_NONE, /* not divided: every rank that holds the tensor holds all of this dimension */
    AXIS_HEADS,
    AXIS_FULL_HEADS, /* query heads of the layers without a window, if these have another number */
    AXIS_KV_HEADS,
    AXIS_FULL_KV_HEADS, /* KV heads of the layers without a window, if n_full_kv_heads > 0 */
    AXIS_FFN,
    AXIS_SHARED_FFN,
    AXIS_EXPERT_FFN,
    AXIS_VOCAB,
    AXIS_DELTA, /* key heads of a gated delta rule, with their value heads; heads of Mamba-2 */
    AXIS_COUNT
};

/* A dimension of a tensor: its size and its axis. */
enum arch_dim {
    DIM_NONE,
    DIM_ONE,
    DIM_D,
    DIM_PAIR,    /* 2 D */
    DIM_V,       /* AXIS_VOCAB */
    DIM_HEAD,    /* query_dim: one head's elements */
    DIM_H,       /* one element for each query head */
    DIM_Q,       /* H query_dim (2 H query_dim with gates): outputs of q */
    DIM_O,       /* H value_dim: inputs of o */
    DIM_KV,      /* G query_dim: outputs of k */
    DIM_VALUES,  /* G value_dim: outputs of v */
    DIM_FULL_KV, /* the same two where layers without a window have fewer KV heads */
    DIM_FULL_VALUES,
    DIM_TYPED_HEAD, /* full_dim: one head's elements in layers whose heads are of another width */
    DIM_TYPED_Q,    /* H full_dim: outputs of q and inputs of o there */
    DIM_TYPED_KV,   /* n_full_kv_heads full_dim: outputs of k, and of v, there */
    /* the layers without a window, if these have another number of query heads: one element for
     * each head; query_dim elements each, the outputs of q and inputs of o */
    DIM_FULL_H,
    DIM_FULL_Q,
    DIM_KV_B,     /* H (query_dim - rotary + value_dim): the heads' own parts of keys and values */
    DIM_Q_LORA,   /* q's latent */
    DIM_KV_LORA,  /* the latent of keys and values */
    DIM_ROTARY,   /* rotated elements */
    DIM_INDEX,    /* one index head's elements */
    DIM_INDEX_H,  /* one element for each index head; never divided, nor is the next */
    DIM_INDEX_Q,  /* all index heads */
    DIM_INDEX_KV, /* all index heads, one for each KV head; AXIS_KV_HEADS */
    DIM_F,        /* AXIS_FFN */
    DIM_SHARED_F, /* AXIS_SHARED_FFN */
    DIM_EXPERT_F, /* AXIS_EXPERT_FFN */
    DIM_E,        /* all outputs of the router: never divided */
    DIM_DELTA_K,  /* q, or k, of all key heads; AXIS_DELTA, as the next four */
    DIM_DELTA_V,  /* v of all value heads */
    DIM_DELTA_H,  /* one element for each value head */
    DIM_DELTA_QKVZ,
    DIM_DELTA_BA,
    DIM_DELTA_HEAD, /* one value head's elements */
    DIM_DELTA_TAPS,
    DIM_POSITIONS, /* embedded positions and types of tokens; never divided */
    DIM_TYPES,
    DIM_GROUPS,      /* B, or C, of all groups of a Mamba-2 scan: never divided */
    DIM_GROUP,       /* outputs of attention that one linear of WEIGHT_O_A reads */
    DIM_POOLS,       /* 2 kv_lora: a part for the entry after a row's own, and one for its own */
    DIM_SPARSE_RATE, /* positions of an entry, by the kind of the layer */
    DIM_FULL_RATE,
    DIM_INDEX_POOLS,    /* twice an index head's elements */
    DIM_TOKENS,         /* the vocabulary; never divided, as all that follow */
    DIM_CHOSEN,         /* experts of a token */
    DIM_STREAM_ROW,     /* n D: a row of all streams */
    DIM_STREAMS,        /* n */
    DIM_STREAM_WEIGHTS, /* (2 + n) n */
    DIM_THREE,
    DIM_COUNT
};

/* The parts that a model or a layer may have. A tensor exists if its part does. */
#define ARCH_PARTS(PART)                                                                           \
    PART(EMBED)                                                                                    \
    PART(PLACES)       /* EMBED of an encoder: embeddings of positions and types */                \
    PART(PREDICT)      /* of a prediction layer only */                                            \
    PART(HEADS)        /* attention with its own keys and values */                                \
    PART(FULL_HEADS)   /* HEADS with the KV heads of a layer without a window */                   \
    PART(TYPED_HEADS)  /* HEADS with heads of full_dim elements, with norms */                     \
    PART(TYPED_VALUES) /* TYPED_HEADS with a v of its own */                                       \
    PART(QKV_BIAS)                                                                                 \
    PART(O_BIAS)                                                                                   \
    PART(QK_NORM)                                                                                  \
    PART(QK_NORM_WHOLE)                                                                            \
    PART(SUB_NORMS) /* norms of the inputs of O and of DOWN */                                     \
    PART(SINKS)                                                                                    \
    PART(SINK_BIAS)    /* SINKS under MiMo's name */                                               \
    PART(LATENT)       /* latent attention */                                                      \
    PART(Q_STEPS)      /* LATENT with a latent for q */                                            \
    PART(Q_STEP)       /* LATENT without a latent for q */                                         \
    PART(HEAD_GATES)   /* a gate for each head */                                                  \
    PART(FULL_QUERIES) /* HEADS with the query heads of a layer without a window, and gates */     \
    PART(INDEX)        /* an index of LATENT, for sparse attention */                              \
    PART(BLOCK_INDEX)  /* an index of HEADS, which chooses blocks */                               \
    PART(SHARED_KV)    /* compressed attention: one head of keys that are values */                \
    PART(POOL_SPARSE)  /* entries that an index chooses */                                         \
    PART(POOL_FULL)    /* entries that all rows behind them see */                                 \
    PART(DELTA)        /* a gated delta rule */                                                    \
    PART(APART)        /* a DELTA with separate projections */                                     \
    PART(CHANNELS)     /* a DELTA with a decay for each channel */                                 \
    PART(LOW_GATES)    /* CHANNELS whose decays and gates come from narrow rows */                 \
    PART(DIRECT_GATES) /* CHANNELS with one linear for decays and one for gates */                 \
    PART(MAMBA)        /* a Mamba-2 scan */                                                        \
    PART(CONV_BIAS)                                                                                \
    PART(DENSE)   /* a dense FFN */                                                                \
    PART(UNGATED) /* DENSE without a gate, with xIELU */                                           \
    PART(RELU2)   /* DENSE without a gate, with relu2 or GELU */                                   \
    PART(RELU2_BIAS)                                                                               \
    PART(LONE_SHARED) /* DENSE under the names of shared experts */                                \
    PART(LONE_MIXER)  /* the norm of a layer without an FFN */                                     \
    PART(LONE_FFN)    /* the norm of a layer without a mixer */                                    \
    PART(FFN_BIAS)                                                                                 \
    PART(MOE)                                                                                      \
    PART(SELECT_BIAS)                                                                              \
    PART(HASHED)       /* a MOE with a table of experts */                                         \
    PART(MOE_UP)       /* a MOE whose experts have a gate and an up */                             \
    PART(SHARED)       /* shared experts of any kind */                                            \
    PART(SHARED_UP)    /* shared experts with a gate and an up */                                  \
    PART(SHARED_RELU2) /* shared experts without a gate */                                         \
    PART(SHARED_MIX)                                                                               \
    PART(JOINED) /* a MOE with norms of shared and of routed experts */                            \
    PART(LAYER_SCALE)                                                                              \
    PART(EXPERT_BIAS)                                                                              \
    PART(IN_NORMS)                                                                                 \
    PART(OUT_NORMS)                                                                                \
    PART(AFTER_NORMS)  /* OUT_NORMS under the names used with IN_NORMS */                          \
    PART(BEFORE_NORMS) /* IN_NORMS under the names used with OUT_NORMS */                          \
    PART(NORM_BIAS)                                                                                \
    PART(STREAMS) /* several residual streams */                                                   \
    PART(FINAL_STREAMS)                                                                            \
    PART(FINAL)                                                                                    \
    PART(FINAL_BIAS)                                                                               \
    PART(HEAD)                                                                                     \
    PART(HEAD_TIED) /* the embedding, used as head */                                              \
    PART(HEAD_BIAS)

enum arch_part_bit {
#define PART_BIT(name) PART_BIT_##name,
    ARCH_PARTS(PART_BIT)
#undef PART_BIT
        PART_BIT_COUNT
};
_Static_assert(PART_BIT_COUNT <= 63, "a part's bit fits a long long");

enum arch_part {
#define PART_FLAG(name) PART_##name = 1ll << PART_BIT_##name,
    ARCH_PARTS(PART_FLAG)
#undef PART_FLAG
        PART_ANY_HEADS = PART_HEADS | PART_FULL_HEADS,
    PART_USUAL_KV = PART_HEADS | PART_FULL_QUERIES, /* G heads of k and v */
    PART_ATTENTION = PART_ANY_HEADS | PART_LATENT, /* o reads value_dim elements of a head */
    PART_ANY_INDEX = PART_INDEX | PART_POOL_SPARSE,
    PART_ANY_POOL = PART_POOL_SPARSE | PART_POOL_FULL,
    PART_RECURRENT = PART_DELTA | PART_APART,
    PART_ANY_DELTA = PART_RECURRENT | PART_CHANNELS,
    PART_CHANNEL_GATES = PART_LOW_GATES | PART_DIRECT_GATES,
    PARTS_OUTSIDE = PART_EMBED | PART_PLACES | PART_FINAL | PART_HEAD | PART_HEAD_TIED |
                    PART_FINAL_BIAS | PART_HEAD_BIAS | PART_FINAL_STREAMS, /* outside layers */
};

/* One row of the table: a tensor [rows, cols], a vector [cols], or either once for each expert. */
struct arch_tensor {
    enum weight_role role;
    enum arch_class class;
    enum arch_part part;
    const char *name; /* after "model.layers.N." in a layer, and after the family's prefix */
    bool is_named;    /* the name begins with one of the family's prefixes */
    size_t prefix;    /* offset of the prefix in struct arch_names, a const char * */
    enum arch_dim rows, cols;
    bool is_vector;  /* of CLASS_VECTOR; may have several rows */
    bool is_expert;  /* in the file once for each expert */
    bool has_leaves; /* row-parallel: K-blocks along cols (tensor/leaf.h); else divided by rows */
    /* The file's tensor may hold the rows of two or three roles, one after the other: the
     * dimensions of those before and after this role's rows. Applies to experts only if gate and up
     * have the same name. */
    enum arch_dim before[2], behind[2];
};

/* Local. Returns the i-th row; NULL after the last. */
const struct arch_tensor *arch_tensor_at(size_t i);

/* Local. Writes the tensor's name in a checkpoint of the family, at most n bytes. `layer` is used
 * only for a tensor of a layer. */
void arch_tensor_name(const struct arch_tensor *t, const struct arch_family *family, uint32_t layer,
                      char *out, size_t n);

/* Local. Returns the row that has this name in some family: `name` is the family's prefix and the
 * row's name, alone or after a dot. NULL: none. */
const struct arch_tensor *arch_tensor_find(const char *name);

/* Local. True when the file's tensor also holds rows of other roles (t->before, t->behind). */
bool arch_tensor_is_joined(const struct arch_tensor *t, const struct arch_family *family);

/* Local. Return a dimension's elements; the axis along which ranks divide it; the elements of one
 * unit of that axis (such as a head). */
uint32_t arch_dim_size(const struct arch *m, enum arch_dim dim);
enum arch_axis arch_dim_axis(enum arch_dim dim);
uint32_t arch_dim_unit(const struct arch *m, enum arch_dim dim);

/* Local. Returns the number of the model's parameters: the elements of all its tensors, without a
 * prediction layer's. */
uint64_t arch_params(const struct arch *m);

/* Local. Return the elements of all matrices in layers by which one token is multiplied, counting
 * the K chosen experts; and those of the experts alone. */
uint64_t arch_token_params(const struct arch *m);
uint64_t arch_token_expert_params(const struct arch *m);

/* Local. Returns the parts after the last layer, without the head's matrix. */
uint64_t arch_final_parts(const struct arch *m);

/* Local. Returns the parts of a layer. */
uint64_t arch_layer_parts(const struct arch *m, uint32_t layer);

#endif

/* What a model is, read from its config.json: sizes, and the few switches in which the families
 * differ. A family is one row of data in model_family.c; no code is copied per family.
 * A field that changes the arithmetic and is not implemented is refused by name, never ignored. */
#ifndef SHOAL_MODEL_MODEL_CONFIG_H
#define SHOAL_MODEL_MODEL_CONFIG_H

#include "base/status.h"
#include "kernels/kern.h"
#include "parallel/layout/layout.h"

#include <stdbool.h>
#include <stdint.h>

/* Where a family keeps its experts: tensor names behind "model.layers.N.". */
struct family_names {
    const char *router, *gate, *up, *down; /* gate is up: the halves of one tensor [E, 2 F, D] */
    const char *bias;        /* [E] added to a sigmoid's score for the choice; NULL: none */
    const char *shared;      /* what all tokens pass, up to "gate_proj.weight"; NULL: nothing */
    const char *shared_gate; /* [1, D]: its sigmoid times the shared output; NULL: none */
};

/* The layers that "sliding_window" is for, unless "layer_types" lists them. */
enum window_rule {
    WINDOW_NONE,
    WINDOW_ALL,
    WINDOW_UPPER, /* from "max_window_layers" on */
    WINDOW_EVEN,  /* 0, 2, 4, ... */
};

struct family {
    const char *architecture; /* config.json "architectures"[0] */
    const char *title;
    bool qk_norm;       /* per-head RMSNorm of q and k before RoPE */
    bool qk_norm_whole; /* RMSNorm of all of q and all of k */
    bool qkv_bias;      /* q, k and v have biases, o has none (else "attention_bias" says: all) */
    enum window_rule window;
    bool sinks;         /* a score per head that takes weight and has no value */
    bool expert_bias;   /* router and experts have biases */
    bool clamped;       /* clamped SwiGLU in the experts */
    bool window_switch; /* there is a window only where "use_sliding_window" is true */
    bool o_unbiased;    /* "attention_bias" says q, k and v only */
    bool mlp_bias;      /* may have biases of the dense FFN: "mlp_bias" */
    bool mla;           /* multi-head latent attention */
    bool rope_pairs;    /* rotates neighbours, unless "rope_interleave" says no */
    bool has_experts;
    bool sigmoid;                /* the router's score; else softmax */
    bool scaled_or_renormalised; /* "routed_scaling_factor" only where weights are not renormalised
                                  */
    bool sparsity_keys;          /* decoder_sparse_step, mlp_only_layers choose the MoE layers */
    bool renormalise;            /* chosen weights always sum to 1 (else "norm_topk_prob" says) */
    const char *expert_ffn;      /* config field with one expert's width; NULL: intermediate_size */
    const char *shared_ffn;      /* config field with the shared width; or */
    const char *shared_count;    /* config field with the same as a number of experts' widths */
    struct family_names moe;
};

struct model_config {
    const struct family *family;
    uint32_t n_layers, width, n_heads, n_kv_heads, head_dim; /* L, D, H, G, Hd */
    uint32_t rotary;    /* elements of a head that are rotated */
    uint32_t query_dim; /* elements of a head of q; Hd but for latent attention */
    uint32_t value_dim; /* of a head of o_proj's input; likewise */
    uint32_t kv_lora;   /* latent attention, where kv_lora + rotary is Hd, cached once for a token;
                           0: the model has none */
    uint32_t q_lora;    /* latent attention with q made in two steps; 0: in one */
    bool rope_pairs, qk_norm;
    uint32_t ffn;                             /* F of dense layers */
    uint32_t n_experts, n_chosen, expert_ffn; /* E, K, F of an expert; 0: dense */
    uint32_t shared_ffn;     /* F of what all tokens pass in MoE layers; 0: nothing */
    uint32_t vocab, context; /* V, max_position_embeddings */
    uint32_t window; /* positions that a row sees in layers that have a window; 0: none has */
    bool layer_has_window[LAYOUT_LAYERS_MAX];
    float norm_eps;
    double rope_theta;
    bool tied;
    bool qkv_bias, o_bias, ffn_bias;
    float clip_qkv;                                  /* q, k and v stay within it; 0: no limit */
    float attention_scale;                           /* of q.k */
    float embed_scale, residual_scale, logits_scale; /* of rows; 1: none */
    float swiglu_alpha, swiglu_limit;                /* of clamped SwiGLU; limit 0: the plain one */
    struct router_rule router;
    bool layer_is_moe[LAYOUT_LAYERS_MAX];
    int32_t eos_ids[16]; /* from config.json; the lead adds its own */
    uint32_t n_eos_ids;
};

/* Local. The i-th family; NULL behind the last. */
const struct family *model_family_at(size_t i);

/* Local. Parses n bytes of a config.json; `what` names them in errors. Errors: STATUS_INPUT names
 * the field, what was expected and what was found; STATUS_MEMORY. */
struct status model_config_parse(const char *json, size_t n, const char *what,
                                 struct model_config *out);

/* Local. The layout's view of the model, with leaves chosen as convert does. */
void model_config_layout(const struct model_config *m, uint32_t weight_bytes,
                         struct layout_model *out);

/* Local. Whether the kernels of --device `name` can run the model. Errors: STATUS_USAGE names the
 * size that is beyond them. */
struct status model_on_device(const struct model_config *m, const char *name);

#endif

/* The state while a config.json is read, shared by arch.c (derives values from the fields),
 * arch_fields.c (the table of fields) and arch_fields_read.c, arch_rope_fields.c and the files with
 * the derivations of some families only. Private to this folder. */
#ifndef SHOAL_ARCH_ARCH_PRIVATE_H
#define SHOAL_ARCH_ARCH_PRIVATE_H

#include "arch/arch.h"
#include "base/json.h"

/* ModernBERT's thetas of layers without and with a window, where config.json does not say. */
enum { ARCH_GLOBAL_THETA = 160000, ARCH_LOCAL_THETA = 10000 };

/* Numbers that say which layers are of which kind. A field that is absent, or that the family does
 * not read, leaves its default (arch_parse, or the field's row). */
struct arch_pattern {
    uint32_t sparse_step;     /* one layer in sparse_step has experts */
    uint32_t n_dense_layers;  /* the first layers, which have no experts */
    uint32_t moe_every;       /* only layers 0, moe_every, 2 moe_every, ... have experts */
    uint32_t moe_last;        /* no layer beyond it has experts */
    uint32_t window_from;     /* the first layer with a window */
    uint32_t full_every;      /* one layer in this many has attention, or has it without a window;
                                 0: absent */
    uint32_t unrotated_every; /* without no_rope_layers: one layer in this many has no RoPE */
    uint32_t index_every, index_from; /* from layer index_from - 1 on, only one layer in index_every
                                         has an index of its own; index_every 0 or 1: all have */
    uint32_t group_size; /* Ling 3: layers of a group, of which the last has attention; 0: absent */
};

/* Fields of config.json that are objects, lists, texts, or numbers whose absence means something;
 * NULL: absent. Borrowed. */
struct arch_nodes {
    const struct js_node *rope_scaling, *rope_parameters;
    const struct js_node
        *local_rope; /* RoPE of layers with a window; NULL: it has no object of its own */
    const struct js_node *layer_types, *no_rope_layers, *window_pattern;
    const struct js_node *mlp_layer_types, *mlp_only_layers, *is_moe_layer;
    const struct js_node *moe_layers; /* a list of layers; NULL: each sparse_step-th layer */
    const struct js_node *moe_topk;   /* a number, or a list of the same number for each layer */
    const struct js_node *moe_end;    /* a number */
    const struct js_node *scoring_func, *topk_method, *eos_token_id;
    const struct js_node *quantization; /* "quantization_config" */
    const struct js_node *indexer_types, *index_pattern;
    const struct js_node *sparse_config; /* MiniMax-M3: sizes and layers of the index */
    const struct js_node *moe_freq;      /* MiniMax-M3: 1 for a layer with experts, else 0 */
    const struct js_node *tuning;        /* a bool or a number: on unless it is false or 0 */
    /* models with Mamba-2 layers: a list; a text with a letter for each layer */
    const struct js_node *block_types, *block_pattern;
    const struct js_node *step_limit, *position_type;
    const struct js_node *linear_config; /* sizes and layers of Kimi-Linear's delta rule */
    const struct js_node *layer_config;  /* Gemma-4, Step-3.5: heads of single layers */
    /* DeepSeek-V4: an object with the rate of each kind of layers; for each layer the number of its
     * kind */
    const struct js_node *rates, *ratios;
};

/* The description being read, and values needed only to derive it. An absent or null field leaves
 * the default of its row, or else that of arch_parse, mostly 0. */
struct arch_reading {
    struct arch m;
    const char *what;           /* borrowed: names the file in sentences */
    const struct js_node *root; /* borrowed */
    struct arch_nodes node;
    struct arch_pattern pattern;
    double rotary_part;  /* rotated fraction of a head */
    uint32_t rotary_dim; /* the rotated part as a number of elements; 0: absent */
    uint32_t query_own;  /* latent attention: elements of a head of q that are not rotated */
    uint32_t n_shared;   /* shared experts, of m.moe.ffn columns each */
    uint32_t expert_width_again; /* a second field for m.moe.ffn; 0: absent */
    uint32_t window;
    uint32_t window_before; /* positions of the window before the row's own; 0: absent */
    float norm_eps;         /* a second field for m.norm_eps; 0: absent */
    uint32_t chunk;         /* 0: absent, or null */
    bool uses_window;
    bool attention_bias, attention_out_bias, qkv_bias, norm_topk_prob;
    float routed_scale, logits_divisor;
    float query_scalar;        /* 0: absent */
    float jitter;              /* Phi-3.5-MoE: "router_jitter_noise" */
    uint32_t original_context; /* 0: absent */
    uint32_t ffn_mlp;          /* F of dense layers, when intermediate_size is that of experts */
    uint32_t pad_id;           /* read by families with pad_positions */
    uint32_t n_predict;        /* published prediction layers; the first one is used */
    double unread;             /* receives fields whose value is only checked */
    double local_theta;        /* theta of layers with a window; 0: absent */
    uint32_t local_attention;  /* the width of ModernBERT's window */
    uint32_t top_k;            /* a field for m.moe.n_chosen in Gemma-4; 0: absent */
    bool has_moe;              /* Gemma-4: "enable_moe_block" */
    uint32_t expand;           /* Mamba-2: inputs of the output projection, in model widths */
    uint32_t delta_width, delta_taps; /* Ling 3: second fields for m.delta.key_dim and n_taps */
    uint32_t n_blocks;                /* MiniMax-M3: blocks that an index head chooses */
    uint32_t n_hashed;                /* DeepSeek-V4: how many of the first layers are hashed */
};

/* Local. Reads every field of r->root into r, by the table and for the family r->m.family. Errors:
 * STATUS_INPUT names a field that is missing, has a wrong type or value, or is not off although it
 * is unknown or not implemented for the family. */
struct status arch_fields_read(struct arch_reading *r);

/* Local. Makes the error for a missing field. */
struct status arch_field_missing(const struct arch_reading *r, const char *key);

/* arch_latent.c. Local. For latent attention: derives the widths of its heads, and refuses fields
 * that its published code reads in another way. Errors: STATUS_INPUT. */
struct status arch_derive_latent(struct arch_reading *r);

/* arch_special.c. Local. Derives the features of families like Gemma: GEGLU, softcaps, scales.
 * Errors: STATUS_INPUT. */
struct status arch_derive_gemma(struct arch_reading *r);

/* arch_special.c. Local. For BitNet: finds out whether linears read rounded rows, and refuses heads
 * that do not have hidden_size elements together, because the norm of attention's output has as
 * many. For other families: refuses BitNet's quantization. Errors: STATUS_INPUT. */
struct status arch_derive_sub_norms(struct arch_reading *r);

/* arch_delta.c. Local. Marks the layers with a gated delta rule, by "layer_types" or
 * "full_attention_interval", and checks the rule's sizes. Errors: STATUS_INPUT. */
struct status arch_derive_delta(struct arch_reading *r);

/* arch_kimi.c. Local. For Kimi-Linear and for Ling 3: marks the layers with a delta rule, sets the
 * rule's sizes, and refuses config fields that shoal cannot run. Errors: STATUS_INPUT. */
struct status arch_derive_kimi(struct arch_reading *r);
struct status arch_derive_ling(struct arch_reading *r);

/* arch_mamba.c. Local. For models with Mamba-2 layers: arch_derive_blocks sets the number of layers
 * from their lists; arch_derive_mamba marks each kind and checks the scan's sizes. Errors:
 * STATUS_INPUT. */
struct status arch_derive_blocks(struct arch_reading *r);
struct status arch_derive_mamba(struct arch_reading *r);

/* arch_index.c. Local. Checks the sizes of an index, and marks the layers without one of their own.
 * Errors: STATUS_INPUT. */
struct status arch_derive_index(struct arch_reading *r);

/* arch_block_index.c. Local. For MiniMax-M3: reads the sizes of an index that chooses blocks, and
 * marks the layers without one. Errors: STATUS_INPUT. */
struct status arch_derive_block_index(struct arch_reading *r);

/* arch_shortcut.c. Local. For LongCat-Flash: doubles the number of layers, sets the scales of
 * latents, and refuses fields that contradict each other. Errors: STATUS_INPUT. */
struct status arch_derive_shortcut(struct arch_reading *r);

/* arch_hybrid.c. Local. For MiMo-V2: arch_derive_hybrid, before RoPE is read, sets the KV heads,
 * the window and the eps of norms, and checks RoPE; arch_check_hybrid, after all derivations,
 * checks that the published file's own fields agree with the results. Errors: STATUS_INPUT. */
struct status arch_derive_hybrid(struct arch_reading *r);
struct status arch_check_hybrid(const struct arch_reading *r);

/* arch_typed.c. Local. For Gemma-4: arch_derive_typed, before RoPE is read, sets the heads of
 * layers without a window; arch_derive_typed_heads, when the other heads are known too, sets the
 * sizes that depend on both; arch_check_typed, after all derivations, checks the window and the
 * lists of layers. Errors: STATUS_INPUT. */
struct status arch_derive_typed(struct arch_reading *r);
struct status arch_derive_typed_heads(struct arch_reading *r);
struct status arch_check_typed(const struct arch_reading *r);

/* arch_step.c. Local. For Step-3.5 and Step-3.7, before the other derivations: marks the kinds of
 * layers, sets heads, the window, the rotated parts of heads and the limits of FFNs, and refuses
 * fields that contradict each other. Errors: STATUS_INPUT. */
struct status arch_derive_step(struct arch_reading *r);

/* arch_compressed.c. Local. For DeepSeek-V4: arch_find_compressed_rope finds the RoPE of layers
 * with entries and of the others; arch_derive_compressed_heads sets the widths of heads;
 * arch_derive_compressed, called after these two, sets the kinds of layers. Errors: STATUS_INPUT.
 */
struct status arch_find_compressed_rope(struct arch_reading *r);
struct status arch_derive_compressed_heads(struct arch_reading *r);
struct status arch_derive_compressed(struct arch_reading *r);

/* arch_encoder.c. Local. Sets norm_bias. For encoders: also sets the members that describe their
 * layers, and refuses fields that the reference would not read, or would read otherwise. Errors:
 * STATUS_INPUT. */
struct status arch_derive_encoder(struct arch_reading *r);

/* Local. True for a field of an encoder's config.json that changes nothing in a forward pass. */
bool arch_encoder_ignores(const struct arch_family *f, const char *key);

/* Local. For Llama-4: derives which layers see chunks and how q grows; marks the layers that have
 * experts. Errors: STATUS_INPUT. */
struct status arch_derive_chunks(struct arch_reading *r);
struct status arch_derive_moe_layers(struct arch_reading *r);

/* Local. Marks the MoE layers that "mlp_layer_types" lists. Without the list, the first layers are
 * dense: as many as "first_k_dense_replace" says, in families that must give this number or have a
 * default for it (MiniMax-M3: 0); else one. In MiniMax-M3 "moe_layer_freq" may list the layers
 * instead. "first_k_dense_replace", "moe_layer_freq" and "is_moe_layer", which other programs read
 * instead of the list, must agree with the marks. Errors: STATUS_INPUT. */
struct status arch_derive_typed_mlps(struct arch_reading *r);

/* Local. For families with `grows`: reads from "rope_parameters" how q grows. Errors: STATUS_INPUT.
 */
struct status arch_derive_growth(struct arch_reading *r);

/* Local. For LongRoPE: limits the context to that for which the short factors hold. For Apertus:
 * refuses a config without RoPE scaling. Errors: STATUS_INPUT. */
struct status arch_derive_longrope(struct arch_reading *r);

/* Local. Reads the experts' fields that some families name differently, before the number of chosen
 * experts is compared with that of all. Errors: STATUS_INPUT. */
struct status arch_derive_experts(struct arch_reading *r);

/* arch_rope_fields.c. Local. Returns the rule of a RoPE object, such as "yarn", under either of its
 * two names; NULL: it has none. Borrowed. */
const char *arch_rope_rule(const struct js_node *rope);

/* arch_rope_fields.c. Local. Checks a RoPE object (r->node.rope_scaling, rope_parameters or
 * local_rope): its rule, and the names and types of its members. Sentences call it `where`.
 * arch_rope.c interprets the values, when convert runs. Errors: STATUS_INPUT. */
struct status arch_rope_fields_check(const struct arch_reading *r, const struct js_node *rope,
                                     const char *where);

/* Local. Refuses the family's config if one of n fields is on, for fields that shoal would read and
 * transformers would not. Errors: STATUS_INPUT names the field. */
struct status arch_refuse_fields(const struct arch_reading *r, const char *const *keys, size_t n);

/* Local. True when the node is absent, null, false, 0, or an empty text, list or object. */
bool arch_field_is_off(const struct js_node *node);

#endif

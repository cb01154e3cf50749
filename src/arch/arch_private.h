/* The reading of a config.json, shared by arch.c (what follows from its fields) and arch_fields.c
 * (the table of its fields). Private to this room. */
#ifndef SHOAL_ARCH_ARCH_PRIVATE_H
#define SHOAL_ARCH_ARCH_PRIVATE_H

#include "arch/arch.h"
#include "base/json.h"

/* The description while it is read, and the values that only help to derive it. Fields that are
 * absent or null leave 0 or their row's default. */
struct arch_reading {
    struct arch m;
    const char *what;           /* borrowed: names the file in sentences */
    const struct js_node *root; /* borrowed */
    /* objects, lists and texts; NULL: absent */
    const struct js_node *rope_scaling, *rope_parameters, *layer_types, *mlp_only_layers;
    const struct js_node *no_rope_layers;
    const struct js_node *scoring_func, *topk_method, *eos_token_id;
    double rotary_part;      /* of a head */
    uint32_t rotary_dim;     /* the same as elements of a head; 0: absent */
    uint32_t query_own;      /* latent attention: elements of a head of q that are not rotated */
    uint32_t n_shared;       /* shared experts, of expert_ffn columns each */
    uint32_t sparse_step;    /* every so many layers one has experts */
    uint32_t n_dense_layers; /* the first ones */
    uint32_t moe_every;      /* only layers whose number, from 0, is a multiple have experts */
    uint32_t window, window_from;
    uint32_t unrotated_every; /* without no_rope_layers: every so many layers one is not rotated */
    bool uses_window;
    bool attention_bias, attention_out_bias, qkv_bias, norm_topk_prob;
    float routed_scale, logits_divisor;
};

/* Local. Reads every field of r->root into r by the table, for the family r->m.family. Errors:
 * STATUS_INPUT names a field that is set and unknown or means nothing to the family, has another
 * type or a value out of bounds, or is missing. */
struct status arch_fields_read(struct arch_reading *r);

/* Local. The sentence for a count that the model needs and the file lacks. */
struct status arch_field_missing(const struct arch_reading *r, const char *key);

/* Local. Checks the names in a RoPE object, r->rope_scaling or r->rope_parameters, named `where` in
 * sentences. arch_rope.c gives the values their meaning, when convert runs. */
struct status arch_fields_check_rope(const struct arch_reading *r, const struct js_node *rope,
                                     const char *where);

/* Local. True for what says "nothing": absent, null, false, 0, an empty text, list or object. */
bool arch_field_is_off(const struct js_node *node);

#endif

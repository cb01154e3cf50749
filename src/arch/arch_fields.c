/* The table of config.json's fields. A field without a row is refused by name unless it is off, so
 * that no model runs with arithmetic that differs from its training. */
#include "arch/arch_private.h"

#include <stdio.h>
#include <string.h>

enum field_type {
    FIELD_INERT,  /* changes nothing in a forward pass */
    FIELD_COUNT,  /* uint32_t: an integer from 1, or from 0 with may_be_zero, to `most` */
    FIELD_FLOAT,  /* float: above `above`, or 0 with may_be_zero, up to `most` */
    FIELD_DOUBLE, /* double: as FIELD_FLOAT */
    FIELD_SWITCH, /* bool */
    FIELD_WORD,   /* must be `word` */
    FIELD_TRUE,   /* must be true */
    FIELD_ONES,   /* must be a list of ones */
    FIELD_NODE,   /* const struct js_node *, for arch.c to read */
};

/* One field. A family whose member `only` is false takes no value from it. */
struct field {
    const char *key;
    enum field_type type;
    bool required, may_be_zero;
    bool refused_elsewhere; /* if `only` is false, the field is refused, unless it is off, or 1
                               where `otherwise` is 1 */
    size_t at;              /* offset in struct arch_reading */
    double above, most;
    double otherwise; /* value when the field is absent; 0: the member keeps its value */
    const char *word;
    size_t only; /* offset of a bool in struct arch_family; 0: all families */
};

#define AT(member)  .at = offsetof(struct arch_reading, member)
#define ONLY(trait) .only = offsetof(struct arch_family, trait)

static const struct field fields[] = {
    /* sizes */
    {"num_hidden_layers", FIELD_COUNT, AT(m.n_layers), .most = ARCH_LAYERS_MAX, ONLY(mamba_blocks)},
    {"num_hidden_layers", FIELD_INERT, ONLY(shortcut)}, /* arch_shortcut.c compares it */
    {"num_hidden_layers", FIELD_COUNT, AT(m.n_layers), .most = ARCH_LAYERS_MAX, .required = true},
    {"num_layers", FIELD_COUNT, AT(m.n_layers), .most = ARCH_LAYERS_MAX / 2, ONLY(shortcut),
     .required = true, .refused_elsewhere = true},
    {"hidden_size", FIELD_COUNT, AT(m.width), .most = 1 << 20, .required = true},
    {"vocab_size", FIELD_COUNT, AT(m.vocab), .most = 1 << 24, .required = true},
    {"max_position_embeddings", FIELD_COUNT, AT(m.context), .most = 1 << 24, .required = true},
    {"intermediate_size", FIELD_INERT, ONLY(shortcut)}, /* arch_shortcut.c compares it */
    {"intermediate_size", FIELD_COUNT, AT(m.ffn), .most = 1 << 24},
    {"ffn_hidden_size", FIELD_COUNT, AT(m.ffn), .most = 1 << 24, ONLY(shortcut), .required = true,
     .refused_elsewhere = true},
    {"tie_word_embeddings", FIELD_SWITCH, AT(m.tied)},
    {"layer_norm_epsilon", FIELD_FLOAT, AT(m.norm_eps), .most = 1, .may_be_zero = true,
     ONLY(mamba_blocks), .required = true, .refused_elsewhere = true},
    {"rms_norm_eps", FIELD_INERT, ONLY(mamba_blocks)}, /* of older files; nothing reads it */
    {"rms_norm_eps", FIELD_FLOAT, AT(m.norm_eps), .most = 1, .may_be_zero = true, .required = true,
     ONLY(states_base)},
    {"rms_norm_eps", FIELD_FLOAT, AT(m.norm_eps), .most = 1, .may_be_zero = true,
     .otherwise = 1e-6},
    {"hidden_act", FIELD_INERT, ONLY(gelu)}, /* for older programs; hidden_activation decides */
    {"hidden_act", FIELD_WORD, .word = "xielu", ONLY(xielu)},
    {"hidden_act", FIELD_WORD, .word = "silu"},
    {"qk_norm", FIELD_TRUE, ONLY(xielu), .refused_elsewhere = true},
    {"lm_head_bias", FIELD_SWITCH, AT(m.head_bias), ONLY(head_bias), .refused_elsewhere = true},
    {"router_jitter_noise", FIELD_FLOAT, AT(jitter), .most = 1, .may_be_zero = true, ONLY(mixer),
     .required = true},
    {.key = "input_jitter_noise", .type = FIELD_INERT}, /* for training only */
    {"hidden_activation", FIELD_WORD, .word = "gelu_pytorch_tanh", ONLY(gelu),
     .refused_elsewhere = true},
    {"mlp_bias", FIELD_SWITCH, AT(m.ffn_bias), ONLY(mlp_bias), .refused_elsewhere = true},
    {"eos_token_id", FIELD_NODE, AT(eos_token_id)},
    /* attention */
    {"num_attention_heads", FIELD_COUNT, AT(m.n_heads), .most = 4096, .required = true},
    {"num_key_value_heads", FIELD_COUNT, AT(m.n_kv_heads), .most = 4096, ONLY(states_kv),
     .required = true},
    {"num_key_value_heads", FIELD_COUNT, AT(m.n_kv_heads), .most = 4096},
    {"head_dim", FIELD_COUNT, AT(m.head_dim), .most = 1024, ONLY(states_heads), .required = true},
    {"head_dim", FIELD_COUNT, AT(m.head_dim), .most = 1024},
    {"query_pre_attn_scalar", FIELD_FLOAT, AT(query_scalar), .most = 1e6, .otherwise = 256,
     ONLY(query_scalar), .refused_elsewhere = true},
    {"attn_logit_softcapping", FIELD_FLOAT, AT(m.softcap), .most = 1e6, ONLY(caps_scores),
     .refused_elsewhere = true},
    {"final_logit_softcapping", FIELD_FLOAT, AT(m.logit_cap), .most = 1e6, ONLY(caps_logits),
     .refused_elsewhere = true},
    {"attention_bias", FIELD_SWITCH, AT(attention_bias), .required = true, ONLY(o_bias_switch)},
    {"attention_bias", FIELD_SWITCH, AT(attention_bias), .required = true, ONLY(states_bias)},
    {"attention_bias", FIELD_INERT, ONLY(unbiased)}, /* the linears have none */
    {"use_bias", FIELD_SWITCH, AT(attention_bias), ONLY(use_bias), .refused_elsewhere = true},
    {"attention_bias", FIELD_SWITCH, AT(attention_bias)},
    {"attention_out_bias", FIELD_SWITCH, AT(attention_out_bias), ONLY(o_bias_switch),
     .refused_elsewhere = true},
    {"qkv_bias", FIELD_SWITCH, AT(qkv_bias), ONLY(qkv_bias_switch)},
    {"use_qk_norm", FIELD_SWITCH, AT(m.qk_norm), ONLY(qk_norm_switch), .refused_elsewhere = true},
    {"use_qk_norm", FIELD_SWITCH, AT(m.l2_norm), ONLY(l2_norm), .required = true},
    {"use_qk_norm", FIELD_TRUE, ONLY(qk_norm_last)},
    {"use_qk_norm", FIELD_TRUE, ONLY(qk_norm_whole), .refused_elsewhere = true},
    {"qk_norm_type", FIELD_WORD, .word = "per_layer", ONLY(qk_norm_whole),
     .refused_elsewhere = true},
    {.key = "attn_type_list", .type = FIELD_ONES}, /* 1: softmax attention; others are linear */
    {"clip_qkv", FIELD_FLOAT, AT(m.clip_qkv), .most = 1e6, .may_be_zero = true, ONLY(clips),
     .refused_elsewhere = true},
    {"attention_chunk_size", FIELD_COUNT, AT(chunk), .most = 1 << 24, ONLY(chunked),
     .refused_elsewhere = true},
    {"attn_temperature_tuning", FIELD_NODE, AT(tuning), ONLY(tunes), .refused_elsewhere = true},
    {"floor_scale", FIELD_COUNT, AT(m.tuning.step), .most = 1 << 24, .otherwise = 8192, ONLY(tunes),
     .refused_elsewhere = true},
    {"attn_scale", FIELD_FLOAT, AT(m.tuning.scale), .most = 1e3, .otherwise = 0.1, ONLY(tunes),
     .refused_elsewhere = true},
    {"sliding_window", FIELD_COUNT, AT(window), .most = 1 << 24, .may_be_zero = true},
    {"use_sliding_window", FIELD_SWITCH, AT(uses_window)},
    {"max_window_layers", FIELD_COUNT, AT(window_from), .most = 1 << 20, .may_be_zero = true,
     .otherwise = 28},
    {"layer_types", FIELD_NODE, AT(layer_types)},
    {"sliding_window_pattern", FIELD_NODE, AT(window_pattern), ONLY(window_pattern),
     .refused_elsewhere = true},
    /* gated delta rule */
    {"linear_num_key_heads", FIELD_COUNT, AT(m.delta.n_key_heads), .most = 4096, ONLY(delta),
     .required = true},
    {"linear_num_value_heads", FIELD_COUNT, AT(m.delta.n_value_heads), .most = 4096, ONLY(delta),
     .required = true},
    {"linear_key_head_dim", FIELD_COUNT, AT(m.delta.key_dim), .most = 1024, ONLY(delta),
     .required = true},
    {"linear_value_head_dim", FIELD_COUNT, AT(m.delta.value_dim), .most = 1024, ONLY(delta),
     .required = true},
    {"linear_conv_kernel_dim", FIELD_COUNT, AT(m.delta.n_taps), .most = ARCH_TAPS_MAX, ONLY(delta),
     .required = true},
    {"full_attention_interval", FIELD_COUNT, AT(full_every), .most = ARCH_LAYERS_MAX, ONLY(delta),
     .refused_elsewhere = true},
    /* Mamba-2: Granite-4, Nemotron-H */
    {"mamba_n_groups", FIELD_COUNT, AT(m.delta.n_key_heads), .most = 4096, .otherwise = 1,
     ONLY(mamba_granite), .refused_elsewhere = true},
    {"mamba_n_heads", FIELD_COUNT, AT(m.delta.n_value_heads), .most = 4096, ONLY(mamba_granite),
     .required = true, .refused_elsewhere = true},
    {"mamba_d_state", FIELD_COUNT, AT(m.delta.key_dim), .most = 1024, ONLY(mamba_granite),
     .required = true, .refused_elsewhere = true},
    {"mamba_d_head", FIELD_COUNT, AT(m.delta.value_dim), .most = 1024, ONLY(mamba_granite),
     .required = true, .refused_elsewhere = true},
    {"mamba_d_conv", FIELD_COUNT, AT(m.delta.n_taps), .most = ARCH_TAPS_MAX, .otherwise = 4,
     ONLY(mamba_granite), .refused_elsewhere = true},
    {"mamba_expand", FIELD_COUNT, AT(expand), .most = 64, .otherwise = 2, ONLY(mamba_granite),
     .refused_elsewhere = true},
    {"mamba_conv_bias", FIELD_SWITCH, AT(m.delta.conv_bias), ONLY(mamba_granite),
     .refused_elsewhere = true},
    {"mamba_chunk_size", FIELD_INERT, ONLY(mamba_granite), .refused_elsewhere = true},
    {"position_embedding_type", FIELD_NODE, AT(position_type), ONLY(mamba_granite),
     .refused_elsewhere = true},
    {"normalization_function", FIELD_WORD, .word = "rmsnorm", ONLY(mamba_granite),
     .refused_elsewhere = true},
    {"init_method", FIELD_INERT, ONLY(mamba_granite), .refused_elsewhere = true},
    {"n_groups", FIELD_COUNT, AT(m.delta.n_key_heads), .most = 4096, .otherwise = 8,
     ONLY(mamba_blocks), .refused_elsewhere = true},
    {"mamba_num_heads", FIELD_COUNT, AT(m.delta.n_value_heads), .most = 4096, ONLY(mamba_blocks),
     .required = true, .refused_elsewhere = true},
    {"ssm_state_size", FIELD_COUNT, AT(m.delta.key_dim), .most = 1024, .otherwise = 128,
     ONLY(mamba_blocks), .refused_elsewhere = true},
    {"mamba_head_dim", FIELD_COUNT, AT(m.delta.value_dim), .most = 1024, .otherwise = 64,
     ONLY(mamba_blocks), .refused_elsewhere = true},
    {"conv_kernel", FIELD_COUNT, AT(m.delta.n_taps), .most = ARCH_TAPS_MAX, .otherwise = 4,
     ONLY(mamba_blocks), .refused_elsewhere = true},
    {"use_conv_bias", FIELD_SWITCH, AT(m.delta.conv_bias), ONLY(mamba_blocks),
     .refused_elsewhere = true},
    {"time_step_min", FIELD_FLOAT, AT(m.delta.step_least), .most = 1e3, .may_be_zero = true,
     .otherwise = 1e-3, ONLY(mamba_blocks), .refused_elsewhere = true},
    {"time_step_limit", FIELD_NODE, AT(step_limit), ONLY(mamba), .refused_elsewhere = true},
    {"layers_block_type", FIELD_NODE, AT(block_types), ONLY(mamba), .refused_elsewhere = true},
    {"hybrid_override_pattern", FIELD_NODE, AT(block_pattern), ONLY(mamba_blocks),
     .refused_elsewhere = true},
    {"mamba_hidden_act", FIELD_WORD, .word = "silu", ONLY(mamba_blocks), .refused_elsewhere = true},
    {"mlp_hidden_act", FIELD_WORD, .word = "relu2", ONLY(mamba_blocks), .refused_elsewhere = true},
    {"mamba_ssm_cache_dtype", FIELD_WORD, .word = "float32", ONLY(mamba_blocks),
     .refused_elsewhere = true},
    /* sizes that follow from others, training, and kernels of other programs */
    {"expand", FIELD_INERT, ONLY(mamba_blocks), .refused_elsewhere = true},
    {"chunk_size", FIELD_INERT, ONLY(mamba_blocks), .refused_elsewhere = true},
    {"time_step_max", FIELD_INERT, ONLY(mamba_blocks), .refused_elsewhere = true},
    {"time_step_floor", FIELD_INERT, ONLY(mamba_blocks), .refused_elsewhere = true},
    {"time_step_rank", FIELD_INERT, ONLY(mamba_blocks), .refused_elsewhere = true},
    {"use_mamba_kernels", FIELD_INERT, ONLY(mamba_blocks), .refused_elsewhere = true},
    {"rescale_prenorm_residual", FIELD_INERT, ONLY(mamba_blocks), .refused_elsewhere = true},
    {"residual_in_fp32", FIELD_INERT, ONLY(mamba_blocks), .refused_elsewhere = true},
    {"num_logits_to_keep", FIELD_INERT, ONLY(mamba_blocks), .refused_elsewhere = true},
    {"moe_shared_expert_intermediate_size", FIELD_COUNT, AT(m.shared_ffn), .most = 1 << 24,
     ONLY(mamba_blocks), .refused_elsewhere = true},
    {"moe_shared_expert_overlap", FIELD_INERT, ONLY(mamba_blocks), .refused_elsewhere = true},
    {"mtp_layers_block_type", FIELD_INERT, ONLY(mamba_blocks), .refused_elsewhere = true},
    {"mtp_hybrid_override_pattern", FIELD_INERT, ONLY(mamba_blocks), .refused_elsewhere = true},
    /* latent attention */
    {"kv_lora_rank", FIELD_COUNT, AT(m.kv_lora), .most = 960, ONLY(mla), .required = true},
    {"q_lora_rank", FIELD_COUNT, AT(m.q_lora), .most = 1 << 20, ONLY(shortcut), .required = true},
    {"q_lora_rank", FIELD_COUNT, AT(m.q_lora), .most = 1 << 20, ONLY(mla)},
    {"mla_scale_q_lora", FIELD_TRUE, ONLY(shortcut), .refused_elsewhere = true},
    {"mla_scale_kv_lora", FIELD_TRUE, ONLY(shortcut), .refused_elsewhere = true},
    {"attention_method", FIELD_WORD, .word = "MLA", ONLY(shortcut), .refused_elsewhere = true},
    {"qk_rope_head_dim", FIELD_COUNT, AT(m.rotary), .most = 1024, ONLY(mla), .required = true},
    {"qk_nope_head_dim", FIELD_COUNT, AT(query_own), .most = 1024, ONLY(mla), .required = true},
    {"v_head_dim", FIELD_COUNT, AT(m.value_dim), .most = 1024, ONLY(mla), .required = true},
    {.key = "qk_head_dim", .type = FIELD_INERT},
    {"rope_interleave", FIELD_TRUE, ONLY(indexed)},
    {"rope_interleave", FIELD_TRUE, ONLY(shortcut)},
    {"rope_interleave", FIELD_SWITCH, AT(m.rope_pairs), ONLY(mla)},
    {"index_topk", FIELD_COUNT, AT(m.index.n_chosen), .most = 1 << 24, ONLY(indexed),
     .required = true, .refused_elsewhere = true},
    {"index_n_heads", FIELD_COUNT, AT(m.index.n_heads), .most = 4096, ONLY(indexed),
     .required = true, .refused_elsewhere = true},
    {"index_head_dim", FIELD_COUNT, AT(m.index.dim), .most = 1024, ONLY(indexed), .required = true,
     .refused_elsewhere = true},
    {"indexer_types", FIELD_NODE, AT(indexer_types), ONLY(index_pairs), .refused_elsewhere = true},
    {"index_topk_pattern", FIELD_NODE, AT(index_pattern), ONLY(index_pairs),
     .refused_elsewhere = true},
    {"index_topk_freq", FIELD_COUNT, AT(index_every), .most = 1 << 20, .may_be_zero = true,
     ONLY(index_pairs), .refused_elsewhere = true},
    {"index_skip_topk_offset", FIELD_COUNT, AT(index_from), .most = 1 << 20, .may_be_zero = true,
     .otherwise = 2, ONLY(index_pairs), .refused_elsewhere = true},
    {"indexer_rope_interleave", FIELD_TRUE, ONLY(index_pairs), .refused_elsewhere = true},
    /* rotary embedding */
    {"rope_theta", FIELD_DOUBLE, AT(m.rope_theta), .above = 1, .most = 1e12, .otherwise = 1e4},
    {"rope_local_base_freq", FIELD_DOUBLE, AT(local_theta), .above = 1, .most = 1e12,
     ONLY(local_theta), .refused_elsewhere = true},
    {"original_max_position_embeddings", FIELD_COUNT, AT(original_context), .most = 1 << 24,
     ONLY(longrope), .refused_elsewhere = true},
    {"rope_scaling", FIELD_NODE, AT(rope_scaling)},
    {"rope_parameters", FIELD_NODE, AT(rope_parameters)},
    {"partial_rotary_factor", FIELD_DOUBLE, AT(rotary_part), .most = 1, .otherwise = 1,
     ONLY(partial_rotary), .refused_elsewhere = true},
    {"rotary_dim", FIELD_COUNT, AT(rotary_dim), .most = 1024, ONLY(rotary_dim),
     .refused_elsewhere = true},
    {"no_rope_layers", FIELD_NODE, AT(no_rope_layers), ONLY(unrotated), .refused_elsewhere = true},
    {"no_rope_layer_interval", FIELD_COUNT, AT(unrotated_every), .most = 1 << 20, .otherwise = 4,
     ONLY(unrotated), .refused_elsewhere = true},
    /* experts */
    /* Nemotron-H may give these fields although no layer has experts */
    {"n_routed_experts", FIELD_COUNT, AT(m.n_experts), .most = 4096, .may_be_zero = true,
     ONLY(mamba_blocks)},
    {"num_experts_per_tok", FIELD_COUNT, AT(m.n_chosen), .most = ROUTER_CHOSEN_MAX,
     .may_be_zero = true, ONLY(mamba_blocks)},
    {"moe_intermediate_size", FIELD_COUNT, AT(m.expert_ffn), .most = 1 << 24, ONLY(mamba_blocks)},
    {"n_shared_experts", FIELD_COUNT, AT(n_shared), .most = 1, ONLY(mamba_blocks)},
    {"topk_group", FIELD_COUNT, AT(m.router.n_groups_chosen), .most = ROUTER_GROUPS_MAX,
     .otherwise = 1, ONLY(mamba_blocks)},
    {"num_local_experts", FIELD_COUNT, AT(m.n_experts), .most = 4096, .may_be_zero = true,
     .otherwise = 8, ONLY(mamba_granite)},
    {"num_local_experts", FIELD_INERT, ONLY(shortcut)},
    {"num_experts", FIELD_INERT, ONLY(shortcut)},
    {"num_experts_per_tok", FIELD_INERT, ONLY(shortcut)},
    {"moe_intermediate_size", FIELD_INERT, ONLY(shortcut)},
    {"n_routed_experts", FIELD_COUNT, AT(m.n_experts), .most = 4096, ONLY(shortcut),
     .required = true},
    {"zero_expert_num", FIELD_COUNT, AT(m.n_zero_experts), .most = 4096, .may_be_zero = true,
     ONLY(shortcut), .required = true, .refused_elsewhere = true},
    {"router_dtype", FIELD_WORD, .word = "float32", ONLY(shortcut), .refused_elsewhere = true},
    {"rounter_params_dtype", FIELD_WORD, .word = "float32", ONLY(shortcut),
     .refused_elsewhere = true}, /* published under this name */
    {"nextn_use_scmoe", FIELD_INERT, ONLY(shortcut), .refused_elsewhere = true},
    {"zero_expert_type", FIELD_WORD, .word = "identity", ONLY(shortcut), .refused_elsewhere = true},
    {"expert_ffn_hidden_size", FIELD_COUNT, AT(m.expert_ffn), .most = 1 << 24, ONLY(shortcut),
     .required = true, .refused_elsewhere = true},
    {"moe_topk", FIELD_COUNT, AT(m.n_chosen), .most = ROUTER_CHOSEN_MAX, ONLY(shortcut),
     .required = true},
    {"num_local_experts", FIELD_COUNT, AT(m.n_experts), .most = 4096, ONLY(has_experts)},
    {"n_routed_experts", FIELD_COUNT, AT(m.n_experts), .most = 4096, ONLY(has_experts)},
    {"num_experts", FIELD_COUNT, AT(m.n_experts), .most = 4096, ONLY(has_experts)},
    {"num_experts_per_tok", FIELD_COUNT, AT(m.n_chosen), .most = ROUTER_CHOSEN_MAX,
     .may_be_zero = true, .otherwise = 2, ONLY(mamba_granite)},
    {"num_experts_per_tok", FIELD_COUNT, AT(m.n_chosen), .most = ROUTER_CHOSEN_MAX,
     ONLY(has_experts)},
    {"moe_topk", FIELD_NODE, AT(moe_topk), ONLY(moe_topk), .refused_elsewhere = true},
    {"moe_k", FIELD_COUNT, AT(m.n_chosen), .most = ROUTER_CHOSEN_MAX, ONLY(moe_range),
     .required = true, .refused_elsewhere = true},
    {"moe_num_experts", FIELD_COUNT, AT(m.n_experts), .most = 4096, ONLY(moe_range),
     .required = true, .refused_elsewhere = true},
    {"moe_num_shared_experts", FIELD_COUNT, AT(n_shared), .most = 256, .may_be_zero = true,
     ONLY(moe_range), .required = true, .refused_elsewhere = true},
    {"moe_layer_start_index", FIELD_COUNT, AT(n_dense_layers), .most = 1 << 20, .may_be_zero = true,
     ONLY(moe_range), .required = true, .refused_elsewhere = true},
    {"moe_layer_interval", FIELD_COUNT, AT(sparse_step), .most = 1 << 20, ONLY(moe_range),
     .required = true, .refused_elsewhere = true},
    {"moe_layer_end_index", FIELD_NODE, AT(moe_end), ONLY(moe_range), .refused_elsewhere = true},
    {"moe_norm_min", FIELD_DOUBLE, AT(unread), .most = 1e-9, ONLY(moe_range),
     .refused_elsewhere = true}, /* the least sum of chosen weights; that of a softmax is larger */
    {"moe_use_aux_free", FIELD_TRUE, ONLY(moe_range), .refused_elsewhere = true},
    {"moe_gate", FIELD_WORD, .word = "topk", ONLY(moe_range), .refused_elsewhere = true},
    {.key = "moe_capacity", .type = FIELD_INERT}, /* for training only */
    {"use_mixed_mlp_moe", FIELD_TRUE, ONLY(moe_topk), .refused_elsewhere = true},
    {"use_rotary_pos_emb", FIELD_TRUE, ONLY(ntk_alpha), .refused_elsewhere = true},
    {"shared_intermediate_size", FIELD_COUNT, AT(m.shared_ffn), .most = 1 << 24,
     .may_be_zero = true, ONLY(granite_shared), .required = true, .refused_elsewhere = true},
    {.key = "experts_per_token", .type = FIELD_INERT}, /* gpt-oss also gives num_experts_per_tok */
    {"moe_intermediate_size", FIELD_COUNT, AT(m.expert_ffn), .most = 1 << 24,
     ONLY(own_expert_width), .required = true},
    {"shared_expert_intermediate_size", FIELD_COUNT, AT(m.shared_ffn), .most = 1 << 24,
     ONLY(own_shared_width), .required = true},
    {"n_shared_experts", FIELD_INERT, ONLY(num_shared)},
    {"n_shared_experts", FIELD_COUNT, AT(n_shared), .most = 256, .may_be_zero = true,
     ONLY(counts_shared), .required = true},
    {"num_shared_experts", FIELD_COUNT, AT(n_shared), .most = 256, .may_be_zero = true,
     ONLY(num_shared), .required = true, .refused_elsewhere = true},
    {"intermediate_size_mlp", FIELD_COUNT, AT(ffn_mlp), .most = 1 << 24, ONLY(weighs_inputs),
     .required = true, .refused_elsewhere = true},
    {"moe_layers", FIELD_NODE, AT(moe_layers), ONLY(weighs_inputs), .refused_elsewhere = true},
    {"interleave_moe_layer_step", FIELD_COUNT, AT(sparse_step), .most = 1 << 20,
     ONLY(weighs_inputs), .refused_elsewhere = true},
    {"decoder_sparse_step", FIELD_COUNT, AT(sparse_step), .most = 1 << 20, ONLY(sparsity_keys)},
    {"mlp_only_layers", FIELD_NODE, AT(mlp_only_layers), ONLY(sparsity_keys)},
    {"first_k_dense_replace", FIELD_COUNT, AT(n_dense_layers), .most = 1 << 20, .may_be_zero = true,
     ONLY(counts_dense), .required = true},
    {"first_k_dense_replace", FIELD_COUNT, AT(n_dense_layers), .most = 1 << 20, .may_be_zero = true,
     .otherwise = 1, ONLY(moe_flags)},
    {"first_k_dense_replace", FIELD_COUNT, AT(n_dense_layers), .most = 1 << 20,
     .may_be_zero = true},
    {"is_moe_layer", FIELD_NODE, AT(is_moe_layer), ONLY(moe_flags), .refused_elsewhere = true},
    {"first_last_k_dense_replace", FIELD_INERT, ONLY(moe_flags), .refused_elsewhere = true},
    {"mlp_layer_types", FIELD_NODE, AT(mlp_layer_types), ONLY(typed_mlps),
     .refused_elsewhere = true},
    {"moe_layer_freq", FIELD_COUNT, AT(moe_every), .most = 1 << 20},
    {"n_group", FIELD_COUNT, AT(m.router.n_groups), .most = ROUTER_GROUPS_MAX, .may_be_zero = true,
     ONLY(sigmoid_groups), .required = true},
    {"n_group", FIELD_COUNT, AT(m.router.n_groups), .most = ROUTER_GROUPS_MAX, .may_be_zero = true,
     ONLY(has_experts)},
    {"topk_group", FIELD_COUNT, AT(m.router.n_groups_chosen), .most = ROUTER_GROUPS_MAX,
     .may_be_zero = true, ONLY(has_experts)},
    {"topk_method", FIELD_NODE, AT(topk_method), ONLY(has_experts)},
    {"scoring_func", FIELD_NODE, AT(scoring_func), ONLY(has_experts)},
    {"use_routing_bias", FIELD_TRUE, ONLY(sigmoid), .refused_elsewhere = true},
    {"norm_topk_prob", FIELD_SWITCH, AT(norm_topk_prob), ONLY(counts_shared), .required = true},
    {"norm_topk_prob", FIELD_SWITCH, AT(norm_topk_prob), ONLY(states_topk), .required = true},
    {"norm_topk_prob", FIELD_SWITCH, AT(norm_topk_prob), ONLY(has_experts)},
    {"routed_scaling_factor", FIELD_FLOAT, AT(routed_scale), .most = 1e6, ONLY(shortcut),
     .required = true},
    {"routed_scaling_factor", FIELD_FLOAT, AT(routed_scale), .most = 1e6, ONLY(counts_shared),
     .required = true},
    {"routed_scaling_factor", FIELD_FLOAT, AT(routed_scale), .most = 1e6, ONLY(has_experts)},
    {"swiglu_alpha", FIELD_FLOAT, AT(m.swiglu.alpha), .most = 1e3, .otherwise = 1.702,
     ONLY(clamped)},
    {"swiglu_limit", FIELD_FLOAT, AT(m.swiglu.limit), .most = 1e6, .otherwise = 7, ONLY(clamped),
     .refused_elsewhere = true},
    /* multipliers of rows, scores and logits */
    {"embedding_multiplier", FIELD_FLOAT, AT(m.scale.embed), .most = 1e6, .otherwise = 1,
     ONLY(scales), .refused_elsewhere = true},
    {"residual_multiplier", FIELD_FLOAT, AT(m.scale.residual), .most = 1e6, .otherwise = 1,
     ONLY(scales), .refused_elsewhere = true},
    {"attention_multiplier", FIELD_FLOAT, AT(m.scale.attention), .most = 1e6, .otherwise = 1,
     ONLY(scales), .refused_elsewhere = true},
    {"logits_scaling", FIELD_FLOAT, AT(logits_divisor), .most = 1e6, .otherwise = 1, ONLY(scales),
     .refused_elsewhere = true},
    {"attn_output_gate", FIELD_TRUE, ONLY(gated_heads), .refused_elsewhere = true},
    {"mamba_ssm_dtype", FIELD_WORD, .word = "float32", ONLY(delta_apart),
     .refused_elsewhere = true},
    {.key = "mtp_num_hidden_layers", .type = FIELD_INERT},
    {.key = "mtp_use_dedicated_embeddings", .type = FIELD_INERT},
    /* for training, for generation, or for other programs */
    {.key = "architectures", .type = FIELD_INERT}, /* identified the family */
    {.key = "model_type", .type = FIELD_INERT},
    {.key = "torch_dtype", .type = FIELD_INERT},
    {.key = "dtype", .type = FIELD_INERT},
    {.key = "params_dtype", .type = FIELD_INERT},
    {.key = "transformers_version", .type = FIELD_INERT},
    {.key = "transformers.js_config", .type = FIELD_INERT},
    {.key = "quantization_config",
     .type = FIELD_INERT}, /* the checkpoint says how its own tensors are stored */
    {.key = "use_cache", .type = FIELD_INERT},
    {.key = "cache_implementation", .type = FIELD_INERT},
    {.key = "initializer_range", .type = FIELD_INERT},
    {.key = "embedding_initializer_range", .type = FIELD_INERT},
    {.key = "initial_context_length",
     .type = FIELD_INERT}, /* of the training; rope_scaling has it too */
    {.key = "attention_dropout", .type = FIELD_INERT},
    {.key = "hidden_dropout", .type = FIELD_INERT},
    {.key = "residual_dropout", .type = FIELD_INERT},
    {.key = "resid_pdrop", .type = FIELD_INERT},
    {.key = "embd_pdrop", .type = FIELD_INERT},
    {.key = "eod_token_id", .type = FIELD_INERT},
    {.key = "sep_token_id", .type = FIELD_INERT},
    {.key = "bos_token_id", .type = FIELD_INERT},
    {.key = "pad_token_id", .type = FIELD_INERT},
    {.key = "unk_token_id", .type = FIELD_INERT},
    {.key = "pretraining_tp", .type = FIELD_INERT},
    {.key = "router_aux_loss_coef", .type = FIELD_INERT},
    {.key = "router_jitter_noise", .type = FIELD_INERT},
    {.key = "output_router_logits", .type = FIELD_INERT},
    {.key = "output_attentions", .type = FIELD_INERT},
    {.key = "output_hidden_states", .type = FIELD_INERT},
    {.key = "return_dict", .type = FIELD_INERT},
    {.key = "is_encoder_decoder", .type = FIELD_INERT},
    {.key = "id2label", .type = FIELD_INERT},
    {.key = "label2id", .type = FIELD_INERT},
    {.key = "problem_type", .type = FIELD_INERT},
    {.key = "chunk_size_feed_forward", .type = FIELD_INERT},
    {.key = "is_llama_config", .type = FIELD_INERT},
    {.key = "rope_interleaved", .type = FIELD_INERT},
    {.key = "use_mems", .type = FIELD_INERT},
    {.key = "auto_map", .type = FIELD_INERT},
    {"num_nextn_predict_layers", FIELD_COUNT, AT(n_predict), .most = 64, .may_be_zero = true,
     ONLY(predicts)}, /* elsewhere convert leaves these layers out */
    {.key = "num_mtp_layers", .type = FIELD_INERT},
    {.key = "num_mtp_modules", .type = FIELD_INERT},
    {.key = "mtp_transformer_layers", .type = FIELD_INERT},
    {.key = "use_mtp", .type = FIELD_INERT},
    {.key = "seq_aux", .type = FIELD_INERT},
    {.key = "aux_loss_alpha", .type = FIELD_INERT},
    {.key = "ep_size", .type = FIELD_INERT},
};
enum { N_FIELDS = sizeof fields / sizeof fields[0] };

bool arch_field_is_off(const struct js_node *node)
{
    bool flag;
    double number;
    size_t n;
    if (js_bool(node, &flag)) return !flag;
    if (js_number(node, &number)) return number == 0;
    if (js_string(node, &n) != NULL) return n == 0;
    return js_count(node) == 0;
}

static bool applies(const struct field *f, const struct arch_family *family)
{
    return f->only == 0 || *((const bool *)family + f->only);
}

/* Returns the key's row that applies to the family, else any row of the key; NULL: none. */
static const struct field *field_of(const char *key, const struct arch_family *family)
{
    const struct field *found = NULL;
    for (size_t i = 0; i < N_FIELDS; i++) {
        if (strcmp(key, fields[i].key) != 0) continue;
        if (applies(&fields[i], family)) return &fields[i];
        found = &fields[i];
    }
    return found;
}

static struct status wrong_count(const struct arch_reading *r, const struct field *f,
                                 const char *found)
{
    return status_make(STATUS_INPUT,
                       "%s: field \"%s\": expected an integer from %d to %.0f, found "
                       "%s",
                       r->what, f->key, f->may_be_zero ? 0 : 1, f->most, found);
}

static struct status field_missing(const struct arch_reading *r, const struct field *f)
{
    if (f->type == FIELD_COUNT) return wrong_count(r, f, "nothing");
    return status_make(STATUS_INPUT, "%s: field \"%s\": expected %s, found nothing", r->what,
                       f->key, f->type == FIELD_SWITCH ? "true or false" : "a number");
}

struct status arch_field_missing(const struct arch_reading *r, const char *key)
{
    return field_missing(r, field_of(key, r->m.family));
}

static struct status arch_fields_read_count(struct arch_reading *r, const struct field *f,
                                            const struct js_node *node, void *to)
{
    int64_t value;
    char found[32];
    if (!js_int(node, &value)) return wrong_count(r, f, "another type");
    snprintf(found, sizeof found, "%lld", (long long)value);
    if (value < (f->may_be_zero ? 0 : 1) || (double)value > f->most)
        return wrong_count(r, f, found);
    *(uint32_t *)to = (uint32_t)value;
    return status_ok();
}

static struct status arch_fields_read_number(struct arch_reading *r, const struct field *f,
                                             const struct js_node *node, void *to)
{
    double value;
    if (!js_number(node, &value)) {
        return status_make(STATUS_INPUT, "%s: field \"%s\": expected a number, found another type",
                           r->what, f->key);
    }
    if (!(value > f->above && value <= f->most) && !(f->may_be_zero && value == 0)) {
        return status_make(STATUS_INPUT,
                           "%s: field \"%s\": expected a number above %g, at most %g, found %g",
                           r->what, f->key, f->above, f->most, value);
    }
    if (f->type == FIELD_FLOAT) *(float *)to = (float)value;
    if (f->type == FIELD_DOUBLE) *(double *)to = value;
    return status_ok();
}

static struct status read_true(const struct arch_reading *r, const struct field *f,
                               const struct js_node *node)
{
    bool is_true;
    if (js_bool(node, &is_true) && is_true) return status_ok();
    return status_make(STATUS_INPUT, "%s: %s: expected true for %s, found another value", r->what,
                       f->key, r->m.family->title);
}

static struct status read_ones(const struct arch_reading *r, const struct field *f,
                               const struct js_node *node)
{
    if (js_type(node) != JS_ARRAY) {
        return status_make(STATUS_INPUT, "%s: field \"%s\": expected a list, found another type",
                           r->what, f->key);
    }
    for (size_t i = 0; i < js_count(node); i++) {
        int64_t value;
        if (js_int(js_at(node, i), &value) && value == 1) continue;
        return status_make(STATUS_INPUT, "%s: %s: entry %zu is not 1, which is not implemented",
                           r->what, f->key, i);
    }
    return status_ok();
}

static struct status read_field(struct arch_reading *r, const struct field *f,
                                const struct js_node *node)
{
    void *to = (char *)r + f->at;
    switch (f->type) {
    case FIELD_COUNT:
        return arch_fields_read_count(r, f, node, to);
    case FIELD_FLOAT:
    case FIELD_DOUBLE:
        return arch_fields_read_number(r, f, node, to);
    case FIELD_SWITCH:
        if (js_bool(node, to)) return status_ok();
        return status_make(STATUS_INPUT,
                           "%s: field \"%s\": expected true or false, found another type", r->what,
                           f->key);
    case FIELD_WORD: {
        const char *word = js_string(node, NULL);
        if (word != NULL && strcmp(word, f->word) == 0) return status_ok();
        return status_make(STATUS_INPUT, "%s: %s \"%s\" is not implemented", r->what, f->key,
                           word == NULL ? "(no text)" : word);
    }
    case FIELD_TRUE:
        return read_true(r, f, node);
    case FIELD_ONES:
        return read_ones(r, f, node);
    case FIELD_NODE:
        *(const struct js_node **)to = node;
        return status_ok();
    default:
        return status_ok();
    }
}

/* Refuses a field that does not apply to the family, unless it has no effect. */
static struct status check_elsewhere(const struct arch_reading *r, const struct field *f,
                                     const struct js_node *node)
{
    double value;
    const bool is_neutral = f->otherwise == 1 && js_number(node, &value) && value == 1;
    if (!f->refused_elsewhere || arch_field_is_off(node) || is_neutral) return status_ok();
    return status_make(STATUS_INPUT, "%s: %s is not implemented for %s", r->what, f->key,
                       r->m.family->title);
}

static void set_default(struct arch_reading *r, const struct field *f)
{
    void *to = (char *)r + f->at;
    if (f->otherwise == 0) return;
    if (f->type == FIELD_COUNT) *(uint32_t *)to = (uint32_t)f->otherwise;
    if (f->type == FIELD_FLOAT) *(float *)to = (float)f->otherwise;
    if (f->type == FIELD_DOUBLE) *(double *)to = f->otherwise;
}

static struct status read_member(struct arch_reading *r, const char *key,
                                 const struct js_node *node)
{
    const struct field *f = field_of(key, r->m.family);
    if (js_type(node) == JS_NULL || key[0] == '_') return status_ok();
    if (f == NULL && !arch_field_is_off(node)) {
        return status_make(STATUS_INPUT,
                           "%s: field \"%s\" is set, and shoal does not know whether it changes "
                           "the arithmetic; it is not implemented",
                           r->what, key);
    }
    if (f == NULL) return status_ok();
    return applies(f, r->m.family) ? read_field(r, f, node) : check_elsewhere(r, f, node);
}

struct status arch_fields_read(struct arch_reading *r)
{
    const void *it = NULL;
    const char *key;
    const struct js_node *value;
    for (size_t i = 0; i < N_FIELDS; i++) {
        const struct field *f = &fields[i];
        if (applies(f, r->m.family)) set_default(r, f);
    }
    while (js_next(r->root, &it, &key, &value)) TRY(read_member(r, key, value));
    for (size_t i = 0; i < N_FIELDS; i++) {
        const struct field *f = &fields[i];
        if (f->required && field_of(f->key, r->m.family) == f && applies(f, r->m.family) &&
            js_type(js_get(r->root, f->key)) == JS_NULL)
            return field_missing(r, f);
    }
    return status_ok();
}

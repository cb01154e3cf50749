#include "checkpoint/convert/gguf_family.h"

#include <string.h>

static const struct gguf_member no_members[] = {{0}};
static const struct gguf_name no_names[] = {{0}};

/* If a family's list lacks "expert_feed_forward_length", the config's "intermediate_size" is the
 * width of its experts, and also of dense FFNs, except in Llama-4. */
static const struct gguf_member mixtral[] = {
    {"expert_count", "num_local_experts", GGUF_MEMBER_INT, NULL},
    {"expert_used_count", "num_experts_per_tok", GGUF_MEMBER_INT, NULL},
    {0}};

static const struct gguf_member gpt_oss[] = {
    {"expert_count", "num_local_experts", GGUF_MEMBER_INT, NULL},
    {"expert_used_count", "num_experts_per_tok", GGUF_MEMBER_INT, NULL},
    {"attention.sliding_window", "sliding_window", GGUF_MEMBER_INT, NULL},
    {0}};

static const struct gguf_member qwen3_moe[] = {
    {"expert_count", "num_experts", GGUF_MEMBER_INT, NULL},
    {"expert_used_count", "num_experts_per_tok", GGUF_MEMBER_INT, NULL},
    {"expert_feed_forward_length", "moe_intermediate_size", GGUF_MEMBER_INT, NULL},
    {0}};

static const struct gguf_member olmoe[] = {
    {"expert_count", "num_experts", GGUF_MEMBER_INT, NULL},
    {"expert_used_count", "num_experts_per_tok", GGUF_MEMBER_INT, NULL},
    {0}};

/* The last column has llama.cpp's defaults, for files written before these keys existed. */
static const struct gguf_member gemma2[] = {
    {"attention.sliding_window", "sliding_window", GGUF_MEMBER_INT, "4096"},
    {"attn_logit_softcapping", "attn_logit_softcapping", GGUF_MEMBER_FLOAT, "50.0"},
    {"final_logit_softcapping", "final_logit_softcapping", GGUF_MEMBER_FLOAT, "30.0"},
    {0}};

static const struct gguf_member gemma3[] = {
    {"attention.sliding_window", "sliding_window", GGUF_MEMBER_INT, NULL},
    {"attention.sliding_window_pattern", "sliding_window_pattern", GGUF_MEMBER_INT, "6"},
    {"final_logit_softcapping", "final_logit_softcapping", GGUF_MEMBER_FLOAT, ""},
    {"rope.freq_base_swa", "rope_local_base_freq", GGUF_MEMBER_FLOAT, "10000.0"},
    {0}};

#define GRANITE_MEMBERS                                                                            \
    {"attention.scale", "attention_multiplier", GGUF_MEMBER_FLOAT, NULL},                          \
        {"embedding_scale", "embedding_multiplier", GGUF_MEMBER_FLOAT, "1.0"},                     \
        {"residual_scale", "residual_multiplier", GGUF_MEMBER_FLOAT, "1.0"},                       \
    {                                                                                              \
        "logit_scale", "logits_scaling", GGUF_MEMBER_FLOAT, NULL                                   \
    }
static const struct gguf_member granite[] = {GRANITE_MEMBERS, {0}};

static const struct gguf_member granite_moe[] = {
    GRANITE_MEMBERS,
    {"expert_count", "num_local_experts", GGUF_MEMBER_INT, NULL},
    {"expert_used_count", "num_experts_per_tok", GGUF_MEMBER_INT, NULL},
    {0}};

static const struct gguf_member granite_moe_shared[] = {
    GRANITE_MEMBERS,
    {"expert_count", "num_local_experts", GGUF_MEMBER_INT, NULL},
    {"expert_used_count", "num_experts_per_tok", GGUF_MEMBER_INT, NULL},
    {"expert_shared_feed_forward_length", "shared_intermediate_size", GGUF_MEMBER_INT, NULL},
    {0}};

static const struct gguf_member llama4[] = {
    {"expert_count", "num_local_experts", GGUF_MEMBER_INT, NULL},
    {"expert_used_count", "num_experts_per_tok", GGUF_MEMBER_INT, NULL},
    {"interleave_moe_layer_step", "interleave_moe_layer_step", GGUF_MEMBER_INT, NULL},
    {0}};

static const struct gguf_member glm4_moe[] = {
    {"expert_count", "n_routed_experts", GGUF_MEMBER_INT, NULL},
    {"expert_used_count", "num_experts_per_tok", GGUF_MEMBER_INT, NULL},
    {"expert_feed_forward_length", "moe_intermediate_size", GGUF_MEMBER_INT, NULL},
    {"expert_shared_count", "n_shared_experts", GGUF_MEMBER_INT, NULL},
    {"expert_group_count", "n_group", GGUF_MEMBER_INT, "1"},
    {"expert_group_used_count", "topk_group", GGUF_MEMBER_INT, "1"},
    {"expert_weights_scale", "routed_scaling_factor", GGUF_MEMBER_FLOAT, "1.0"},
    {"expert_weights_norm", "norm_topk_prob", GGUF_MEMBER_BOOL, "false"},
    {"leading_dense_block_count", "first_k_dense_replace", GGUF_MEMBER_INT, "0"},
    {0}};

static const struct gguf_member deepseek2[] = {
    {"expert_count", "n_routed_experts", GGUF_MEMBER_INT, NULL},
    {"expert_used_count", "num_experts_per_tok", GGUF_MEMBER_INT, NULL},
    {"expert_feed_forward_length", "moe_intermediate_size", GGUF_MEMBER_INT, NULL},
    {"expert_shared_count", "n_shared_experts", GGUF_MEMBER_INT, NULL},
    {"expert_weights_scale", "routed_scaling_factor", GGUF_MEMBER_FLOAT, "1.0"},
    {"expert_weights_norm", "norm_topk_prob", GGUF_MEMBER_BOOL, "false"},
    {"leading_dense_block_count", "first_k_dense_replace", GGUF_MEMBER_INT, "0"},
    {"attention.q_lora_rank", "q_lora_rank", GGUF_MEMBER_INT, "null"},
    {"attention.kv_lora_rank", "kv_lora_rank", GGUF_MEMBER_INT, NULL},
    {0}};

static const struct gguf_member qwen3_next[] = {
    {"expert_count", "num_experts", GGUF_MEMBER_INT, NULL},
    {"expert_used_count", "num_experts_per_tok", GGUF_MEMBER_INT, NULL},
    {"expert_feed_forward_length", "moe_intermediate_size", GGUF_MEMBER_INT, NULL},
    {"expert_shared_feed_forward_length", "shared_expert_intermediate_size", GGUF_MEMBER_INT, NULL},
    {"full_attention_interval", "full_attention_interval", GGUF_MEMBER_INT, "4"},
    {"ssm.conv_kernel", "linear_conv_kernel_dim", GGUF_MEMBER_INT, NULL},
    {"ssm.state_size", "linear_key_head_dim", GGUF_MEMBER_INT, NULL},
    {"ssm.group_count", "linear_num_key_heads", GGUF_MEMBER_INT, NULL},
    {"ssm.time_step_rank", "linear_num_value_heads", GGUF_MEMBER_INT, NULL},
    {0}};

static const struct gguf_name gpt_oss_names[] = {
    {"post_attention_norm.weight", "post_attention_layernorm.weight"},
    {"attn_sinks.weight", "self_attn.sinks"},
    {0}};

static const struct gguf_name gemma_names[] = {
    {"post_attention_norm.weight", "post_attention_layernorm.weight"},
    {"ffn_norm.weight", "pre_feedforward_layernorm.weight"},
    {"post_ffw_norm.weight", "post_feedforward_layernorm.weight"},
    {0}};

#define SHARED_NAMES                                                                               \
    {"ffn_gate_shexp.weight", "mlp.shared_experts.gate_proj.weight"},                              \
        {"ffn_up_shexp.weight", "mlp.shared_experts.up_proj.weight"},                              \
        {"ffn_down_shexp.weight", "mlp.shared_experts.down_proj.weight"},                          \
    {                                                                                              \
        "exp_probs_b.bias", "mlp.gate.e_score_correction_bias"                                     \
    }

static const struct gguf_name glm4_moe_names[] = {
    {"post_attention_norm.weight", "post_attention_layernorm.weight"}, SHARED_NAMES, {0}};

static const struct gguf_name deepseek2_names[] = {
    {"attn_q_a.weight", "self_attn.q_a_proj.weight"},
    {"attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight"},
    {"attn_q_b.weight", "self_attn.q_b_proj.weight"},
    {"attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa.weight"},
    {"attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight"},
    {"attn_kv_b.weight", "self_attn.kv_b_proj.weight"},
    SHARED_NAMES,
    {0}};

static const struct gguf_name qwen3_next_names[] = {
    {"post_attention_norm.weight", "post_attention_layernorm.weight"},
    {"ssm_in.weight", "linear_attn.in_proj_qkvz.weight"},
    {"ssm_ba.weight", "linear_attn.in_proj_ba.weight"},
    {"ssm_conv1d.weight", "linear_attn.conv1d.weight"},
    {GGUF_DECAYS, "linear_attn.A_log"},
    {"ssm_dt.bias", "linear_attn.dt_bias"},
    {"ssm_norm.weight", "linear_attn.norm.weight"},
    {"ssm_out.weight", "linear_attn.out_proj.weight"},
    {"ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight"},
    {"ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight"},
    {"ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight"},
    {"ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight"},
    {0}};

static const struct gguf_name granite_moe_names[] = {
    {"ffn_gate_inp.weight", "block_sparse_moe.router.layer.weight"},
    {"ffn_down_exps.weight", "block_sparse_moe.output_linear.weight"},
    {"ffn_gate_shexp.weight", "shared_mlp.gate_proj.weight"},
    {"ffn_up_shexp.weight", "shared_mlp.up_proj.weight"},
    {"ffn_down_shexp.weight", "shared_mlp.down_proj.weight"},
    {0}};

static const struct gguf_name llama4_names[] = {
    {"ffn_gate_shexp.weight", "feed_forward.shared_expert.gate_proj.weight"},
    {"ffn_up_shexp.weight", "feed_forward.shared_expert.up_proj.weight"},
    {"ffn_down_shexp.weight", "feed_forward.shared_expert.down_proj.weight"},
    {0}};

const char *const gguf_expert_halves[2] = {"ffn_gate_exps.weight", "ffn_up_exps.weight"};

static const struct gguf_name common_names[] = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_q.bias", "self_attn.q_proj.bias"},
    {"attn_k.bias", "self_attn.k_proj.bias"},
    {"attn_v.bias", "self_attn.v_proj.bias"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"attn_output.bias", "self_attn.o_proj.bias"},
    {"attn_q_norm.weight", "self_attn.q_norm.weight"},
    {"attn_k_norm.weight", "self_attn.k_norm.weight"},
    {"ffn_gate.weight", "mlp.gate_proj.weight"},
    {"ffn_up.weight", "mlp.up_proj.weight"},
    {"ffn_down.weight", "mlp.down_proj.weight"},
    {0}};

#define EXPERTS_BY_PROJ                                                                            \
    .experts = "mlp", .gate_proj = "gate_proj", .up_proj = "up_proj", .down_proj = "down_proj",    \
    .router = "gate"
#define SILU "\"hidden_act\": \"silu\""
#define GELU "\"hidden_activation\": \"gelu_pytorch_tanh\""

static const struct gguf_family families[GGUF_ARCH_COUNT] = {
    [GGUF_LLAMA] = {.gguf = "llama",
                    .architecture = "LlamaForCausalLM",
                    .model_type = "llama",
                    .paired = true,
                    .members = no_members,
                    .names = no_names,
                    .fixed = SILU},
    [GGUF_MIXTRAL] = {.gguf = "llama",
                      .architecture = "MixtralForCausalLM",
                      .model_type = "mixtral",
                      .experts = "block_sparse_moe",
                      .gate_proj = "w1",
                      .up_proj = "w3",
                      .down_proj = "w2",
                      .router = "gate",
                      .paired = true,
                      .implies_bias = true,
                      .members = mixtral,
                      .names = no_names,
                      .fixed = SILU},
    [GGUF_QWEN2] = {.gguf = "qwen2",
                    .architecture = "Qwen2ForCausalLM",
                    .model_type = "qwen2",
                    .implies_bias = true,
                    .members = no_members,
                    .names = no_names,
                    .fixed = SILU},
    [GGUF_QWEN3] = {.gguf = "qwen3",
                    .architecture = "Qwen3ForCausalLM",
                    .model_type = "qwen3",
                    .members = no_members,
                    .names = no_names,
                    .fixed = SILU},
    [GGUF_QWEN3_MOE] = {.gguf = "qwen3moe",
                        .architecture = "Qwen3MoeForCausalLM",
                        .model_type = "qwen3_moe",
                        EXPERTS_BY_PROJ,
                        .members = qwen3_moe,
                        .names = no_names,
                        .fixed = SILU ", \"norm_topk_prob\": true, \"decoder_sparse_step\": 1, "
                                      "\"mlp_only_layers\": []"},
    [GGUF_GPT_OSS] = {.gguf = "gpt-oss",
                      .architecture = "GptOssForCausalLM",
                      .model_type = "gpt_oss",
                      .experts = "mlp",
                      .gate_proj = "gate_proj",
                      .up_proj = "up_proj",
                      .down_proj = "down_proj",
                      .router = "router",
                      .members = gpt_oss,
                      .names = gpt_oss_names,
                      .fixed = SILU},
    [GGUF_GEMMA2] = {.gguf = "gemma2",
                     .architecture = "Gemma2ForCausalLM",
                     .model_type = "gemma2",
                     .members = gemma2,
                     .names = gemma_names,
                     .fixed = GELU},
    [GGUF_GEMMA3] = {.gguf = "gemma3",
                     .architecture = "Gemma3ForCausalLM",
                     .model_type = "gemma3_text",
                     .members = gemma3,
                     .names = gemma_names,
                     .fixed = GELU},
    [GGUF_GRANITE] = {.gguf = "granite",
                      .architecture = "GraniteForCausalLM",
                      .model_type = "granite",
                      .paired = true,
                      .may_not_rotate = true,
                      .members = granite,
                      .names = no_names,
                      .fixed = SILU},
    [GGUF_GRANITE_MOE] = {.gguf = "granitemoe",
                          .architecture = "GraniteMoeForCausalLM",
                          .model_type = "granitemoe",
                          .joined_experts = "block_sparse_moe.input_linear.weight",
                          .paired = true,
                          .may_not_rotate = true,
                          .members = granite_moe,
                          .names = granite_moe_names,
                          .fixed = SILU},
    [GGUF_GRANITE_MOE_SHARED] = {.gguf = "granitemoe",
                                 .architecture = "GraniteMoeSharedForCausalLM",
                                 .model_type = "granitemoeshared",
                                 .joined_experts = "block_sparse_moe.input_linear.weight",
                                 .paired = true,
                                 .may_not_rotate = true,
                                 .members = granite_moe_shared,
                                 .names = granite_moe_names,
                                 .fixed = SILU},
    /* no key states the values of `fixed`: llama.cpp has them in its code */
    [GGUF_LLAMA4] = {.gguf = "llama4",
                     .architecture = "Llama4ForCausalLM",
                     .model_type = "llama4_text",
                     .experts = "feed_forward",
                     .gate_proj = "gate_proj",
                     .up_proj = "up_proj",
                     .down_proj = "down_proj",
                     .router = "router",
                     .paired = true,
                     .members = llama4,
                     .names = llama4_names,
                     .fixed =
                         SILU ", \"attention_chunk_size\": 8192, \"no_rope_layer_interval\": 4, "
                              "\"attn_temperature_tuning\": true, \"floor_scale\": 8192, "
                              "\"attn_scale\": 0.1"},
    [GGUF_OLMOE] = {.gguf = "olmoe",
                    .architecture = "OlmoeForCausalLM",
                    .model_type = "olmoe",
                    EXPERTS_BY_PROJ,
                    .members = olmoe,
                    .names = no_names,
                    .fixed = SILU ", \"norm_topk_prob\": false"},
    [GGUF_GLM4_MOE] = {.gguf = "glm4moe",
                       .architecture = "Glm4MoeForCausalLM",
                       .model_type = "glm4_moe",
                       EXPERTS_BY_PROJ,
                       .partial = true,
                       .states_gating = true,
                       .members = glm4_moe,
                       .names = glm4_moe_names,
                       .fixed = SILU},
    [GGUF_DEEPSEEK2] = {.gguf = "deepseek2",
                        .architecture = "DeepseekV3ForCausalLM",
                        .model_type = "deepseek_v3",
                        EXPERTS_BY_PROJ,
                        .partial = true,
                        .states_gating = true,
                        .latent = true,
                        .members = deepseek2,
                        .names = deepseek2_names,
                        .fixed = SILU ", \"rope_interleave\": true"},
    [GGUF_QWEN3_NEXT] = {.gguf = "qwen3next",
                         .architecture = "Qwen3NextForCausalLM",
                         .model_type = "qwen3_next",
                         EXPERTS_BY_PROJ,
                         .partial = true,
                         .delta = true,
                         .members = qwen3_next,
                         .names = qwen3_next_names,
                         .fixed = SILU ", \"norm_topk_prob\": true, \"decoder_sparse_step\": 1, "
                                       "\"mlp_only_layers\": []"},
};

const struct gguf_family *gguf_family_at(enum gguf_arch arch)
{
    return &families[arch];
}

static const char *find(const struct gguf_name *names, const char *suffix)
{
    for (; names->gguf != NULL; names++) {
        if (strcmp(suffix, names->gguf) == 0) return names->hf;
    }
    return NULL;
}

uint32_t gguf_family_dims(const char *suffix)
{
    if (strcmp(suffix, "ssm_conv1d.weight") == 0) return 3;
    return strcmp(suffix, "ffn_gate_inp_shexp.weight") == 0 ? 2 : 0;
}

const char *gguf_family_name(const struct gguf_family *f, const char *suffix)
{
    const char *own = find(f->names, suffix);
    return own != NULL ? own : find(common_names, suffix);
}

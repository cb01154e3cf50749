/* config.json: which models are accepted, and which are refused with an error that names the field.
 * test_arch_families.c has fields of single families. */
#include "parallel/layout/layout.h"
#include "unit/util_arch.h"

static void families_are_understood(void)
{
    CU_ASSERT_EQUAL(parse(LLAMA).code, STATUS_OK);
    CU_ASSERT_EQUAL(m.attn.head_dim, 16);
    CU_ASSERT_EQUAL(m.moe.n_experts, 0);
    CU_ASSERT_EQUAL(parse(MIXTRAL ",\"sliding_window\":32").code, STATUS_OK);
    CU_ASSERT_EQUAL(m.attn.window, 32);
    CU_ASSERT_EQUAL(m.moe.router.kind, ROUTER_SOFTMAX_RENORM);
    CU_ASSERT_EQUAL(m.moe.ffn, 96);
    CU_ASSERT_EQUAL(parse(QWEN3 ",\"norm_topk_prob\":false,\"decoder_sparse_step\":2,"
                                "\"mlp_only_layers\":[3]")
                        .code,
                    STATUS_OK);
    CU_ASSERT_EQUAL(m.moe.router.kind, ROUTER_SOFTMAX);
    CU_ASSERT(!m.layer.is_moe[0] && m.layer.is_moe[1] && !m.layer.is_moe[2] && !m.layer.is_moe[3]);
    CU_ASSERT_EQUAL(m.ffn, 96);
    CU_ASSERT_EQUAL(m.moe.ffn, 48);
}

static void biases_are_those_of_the_family(void)
{
    CU_ASSERT_EQUAL(parse(LLAMA).code, STATUS_OK);
    CU_ASSERT(!m.attn.qkv_bias && !m.attn.o_bias);
    CU_ASSERT_EQUAL(parse(LLAMA ",\"attention_bias\":true").code, STATUS_OK);
    CU_ASSERT(m.attn.qkv_bias && m.attn.o_bias && !m.ffn_bias);
    CU_ASSERT_EQUAL(parse(LLAMA ",\"mlp_bias\":true").code, STATUS_OK);
    CU_ASSERT(!m.attn.qkv_bias && m.ffn_bias);
    CU_ASSERT_EQUAL(parse(OF("Qwen2ForCausalLM")).code, STATUS_OK);
    CU_ASSERT(m.attn.qkv_bias && !m.attn.o_bias && !m.family->qk_norm);
    CU_ASSERT_EQUAL(parse(OF("Qwen3ForCausalLM")).code, STATUS_OK);
    CU_ASSERT(!m.attn.qkv_bias && m.family->qk_norm);
}

static void windows_are_those_of_the_layers(void)
{
    CU_ASSERT_EQUAL(parse(OF("MistralForCausalLM") ",\"sliding_window\":32").code, STATUS_OK);
    CU_ASSERT_STRING_EQUAL(windows(), "11");
    CU_ASSERT_EQUAL(m.attn.window, 32);
    CU_ASSERT_EQUAL(parse(OF("MistralForCausalLM") ",\"sliding_window\":null").code, STATUS_OK);
    CU_ASSERT_STRING_EQUAL(windows(), "00");
    CU_ASSERT_EQUAL(parse(OF("Qwen2ForCausalLM") ",\"sliding_window\":32").code, STATUS_OK);
    CU_ASSERT_STRING_EQUAL(windows(), "00");
    CU_ASSERT_EQUAL(parse(OF("Qwen2ForCausalLM") ",\"sliding_window\":32,\"max_window_layers\":1,"
                                                 "\"use_sliding_window\":true")
                        .code,
                    STATUS_OK);
    CU_ASSERT_STRING_EQUAL(windows(), "01");
    CU_ASSERT_EQUAL(parse(OF("Qwen3ForCausalLM") ",\"sliding_window\":32,"
                                                 "\"use_sliding_window\":true,\"layer_types\":["
                                                 "\"sliding_attention\",\"full_attention\"]")
                        .code,
                    STATUS_OK);
    CU_ASSERT_STRING_EQUAL(windows(), "10");
    CU_ASSERT_EQUAL(parse(QWEN3 ",\"sliding_window\":32,\"max_window_layers\":1").code, STATUS_OK);
    CU_ASSERT_EQUAL(m.attn.window, 0);
    CU_ASSERT_EQUAL(parse(QWEN3 ",\"sliding_window\":32,\"max_window_layers\":1,"
                                "\"use_sliding_window\":true")
                        .code,
                    STATUS_OK); /* all layers have the window, as in transformers */
    CU_ASSERT(m.attn.window == 32 && m.layer.has_window[0] && m.layer.has_window[m.n_layers - 1]);
    refuse(OF("Qwen3ForCausalLM") ",\"layer_types\":[\"sliding_attention\",\"full_attention\"]",
           "layer_types[0]");
    refuse(OF("MistralForCausalLM") ",\"sliding_window\":32,\"layer_types\":["
                                    "\"sliding_attention\",\"full_attention\"]",
           "layer_types[1]");
    refuse(LLAMA ",\"layer_norm_eps\":1e-5", "layer_norm_eps");
    refuse(LLAMA ",\"type_vocab_size\":2", "type_vocab_size");
    refuse(LLAMA ",\"layer_types\":[\"full_attention\",\"chunked_attention\"]", "chunked");
    refuse(LLAMA ",\"layer_types\":[\"full_attention\"]", "layer_types");
}

static void mixtures_are_understood(void)
{
    const char *qwen = "\"architectures\":[\"Qwen2MoeForCausalLM\"],\"hidden_size\":64,"
                       "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"vocab_size\":100,"
                       "\"intermediate_size\":96,\"moe_intermediate_size\":48,\"num_experts\":8,"
                       "\"shared_expert_intermediate_size\":80,\"num_experts_per_tok\":2,"
                       "\"mlp_only_layers\":[0],\"max_position_embeddings\":128";
    CU_ASSERT_EQUAL(parse(qwen).code, STATUS_OK);
    CU_ASSERT(m.attn.qkv_bias && !m.attn.o_bias && !m.layer.is_moe[0] && m.layer.is_moe[1]);
    CU_ASSERT_EQUAL(m.moe.shared_ffn, 80);
    CU_ASSERT_EQUAL(m.moe.router.kind, ROUTER_SOFTMAX);
    CU_ASSERT_EQUAL(m.scale.attention, 0.25f);
    const char *granite =
        "\"architectures\":[\"GraniteMoeForCausalLM\"],\"hidden_size\":64,\"num_hidden_layers\":2,"
        "\"num_attention_heads\":4,\"vocab_size\":100,\"intermediate_size\":96,"
        "\"num_local_experts\":8,\"num_experts_per_tok\":2,\"max_position_embeddings\":128,"
        "\"embedding_multiplier\":12.0,\"attention_multiplier\":0.015625,"
        "\"residual_multiplier\":0.22,";
    char body[1024];
    snprintf(body, sizeof body, "%s\"logits_scaling\":8", granite);
    CU_ASSERT_EQUAL(parse(body).code, STATUS_OK);
    CU_ASSERT(m.scale.embed == 12.0f && m.scale.attention == 0.015625f);
    CU_ASSERT(m.scale.residual == 0.22f && m.scale.logits == 0.125f);
    snprintf(body, sizeof body, "%s\"logits_scaling\":0", granite);
    refuse(body, "logits_scaling");
}

/* Accepts the configs of published models (with shorter lists of layers). */
static void published_configs_are_taken(void)
{
    CU_ASSERT_EQUAL(
        parse("\"architectures\":[\"GptOssForCausalLM\"],\"attention_bias\":true,\"attention_dr"
              "opout\":0.0,\"eos_token_id\":200002,\"experts_per_token\":4,\"head_dim\":64,\"hi"
              "dden_act\":\"silu\",\"hidden_size\":2880,\"initial_context_length\":4096,\"inter"
              "mediate_size\":2880,\"layer_types\":[\"sliding_attention\",\"full_attention\"],"
              "\"max_position_embeddings\":131072,\"model_type\":\"gpt_oss\",\"num_attention_he"
              "ads\":64,\"num_experts_per_tok\":4,\"num_hidden_layers\":2,\"num_key_value_heads"
              "\":8,\"num_local_experts\":32,\"output_router_logits\":false,\"quantization_conf"
              "ig\":{\"quant_method\":\"mxfp4\"},\"rms_norm_eps\":1e-05,\"rope_scaling\":{\"bet"
              "a_fast\":32.0,\"beta_slow\":1.0,\"factor\":32.0,\"original_max_position_embeddin"
              "gs\":4096,\"rope_type\":\"yarn\",\"truncate\":false},\"rope_theta\":150000,\"rou"
              "ter_aux_loss_coef\":0.9,\"sliding_window\":128,\"swiglu_limit\":7.0,\"tie_word_e"
              "mbeddings\":false,\"use_cache\":true,\"vocab_size\":201088")
            .code,
        STATUS_OK);
    CU_ASSERT_STRING_EQUAL(windows(), "10");
    CU_ASSERT(m.attn.window == 128 && m.attn.qkv_bias && m.attn.o_bias && m.swiglu.limit == 7.0f);
    CU_ASSERT(m.swiglu.alpha == 1.702f && m.moe.ffn == 2880 && m.moe.n_chosen == 4);
    CU_ASSERT_EQUAL(m.moe.router.kind, ROUTER_SOFTMAX_RENORM);
    CU_ASSERT_EQUAL(
        parse("\"architectures\":[\"LlamaForCausalLM\"],\"attention_bias\":false,\"mlp_bias\":f"
              "alse,\"hidden_act\":\"silu\",\"hidden_size\":4096,\"intermediate_size\":14336,\""
              "max_position_embeddings\":131072,\"num_attention_heads\":32,\"num_hidden_layers"
              "\":32,\"num_key_value_heads\":8,\"pretraining_tp\":1,\"rms_norm_eps\":1e-05,\"ro"
              "pe_scaling\":{\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\""
              "original_max_position_embeddings\":8192,\"rope_type\":\"llama3\"},\"rope_theta\""
              ":500000.0,\"tie_word_embeddings\":false,\"vocab_size\":128256,\"eos_token_id\":["
              "128001,128008,128009]")
            .code,
        STATUS_OK);
    CU_ASSERT(m.attn.window == 0 && !m.attn.qkv_bias && m.swiglu.limit == 0 && m.n_eos_ids == 3);
    CU_ASSERT_EQUAL(
        parse("\"architectures\":[\"Qwen2ForCausalLM\"],\"hidden_act\":\"silu\",\"hidden_size\""
              ":3584,\"intermediate_size\":18944,\"max_position_embeddings\":32768,\"max_window"
              "_layers\":28,\"num_attention_heads\":28,\"num_hidden_layers\":28,\"num_key_value"
              "_heads\":4,\"rms_norm_eps\":1e-06,\"rope_theta\":1000000.0,\"sliding_window\":13"
              "1072,\"use_sliding_window\":false,\"tie_word_embeddings\":false,\"vocab_size\":1"
              "52064")
            .code,
        STATUS_OK);
    CU_ASSERT(m.attn.window == 0 && m.attn.qkv_bias && !m.attn.o_bias && m.attn.head_dim == 128);
    CU_ASSERT_EQUAL(
        parse("\"architectures\":[\"MistralForCausalLM\"],\"hidden_act\":\"silu\",\"hidden_size"
              "\":4096,\"intermediate_size\":14336,\"max_position_embeddings\":32768,\"num_atte"
              "ntion_heads\":32,\"num_hidden_layers\":32,\"num_key_value_heads\":8,\"rms_norm_e"
              "ps\":1e-05,\"rope_theta\":10000.0,\"sliding_window\":4096,\"tie_word_embeddings"
              "\":false,\"vocab_size\":32000")
            .code,
        STATUS_OK);
    CU_ASSERT(m.attn.window == 4096 && m.layer.has_window[0] && m.layer.has_window[31]);
    refuse(LLAMA ",\"swiglu_limit\":7.0", "swiglu_limit");
}

#define DEEPSEEK_BASE                                                                              \
    "\"architectures\":[\"DeepseekV3ForCausalLM\"],\"hidden_size\":64,\"num_hidden_layers\":4,"    \
    "\"num_attention_heads\":4,\"vocab_size\":100,\"intermediate_size\":96,"                       \
    "\"max_position_embeddings\":128,\"moe_intermediate_size\":32,\"n_routed_experts\":8,"         \
    "\"n_shared_experts\":2,\"num_experts_per_tok\":3,\"norm_topk_prob\":true,"                    \
    "\"first_k_dense_replace\":3,\"kv_lora_rank\":32,\"qk_nope_head_dim\":24,"                     \
    "\"qk_rope_head_dim\":16,\"num_nextn_predict_layers\":1,"
#define DEEPSEEK DEEPSEEK_BASE "\"n_group\":1,\"topk_group\":1,\"routed_scaling_factor\":1.0"

static void latent_attention_is_understood(void)
{
    CU_ASSERT_EQUAL(parse(DEEPSEEK_BASE
                          "\"v_head_dim\":16,\"q_lora_rank\":48,\"n_group\":4,"
                          "\"topk_group\":2,\"topk_method\":\"noaux_tc\","
                          "\"scoring_func\":\"sigmoid\",\"routed_scaling_factor\":2.5")
                        .code,
                    STATUS_OK);
    CU_ASSERT(m.attn.head_dim == 48 && m.attn.n_kv_heads == 1 && m.attn.query_dim == 40 &&
              m.attn.value_dim == 16);
    CU_ASSERT(m.attn.q_lora == 48 && m.attn.kv_lora == 32 && m.attn.rotary == 16 && m.rope_pairs);
    CU_ASSERT(m.attn.latent_norm_eps == 1e-6f);
    CU_ASSERT(m.moe.shared_ffn == 64 && !m.layer.is_moe[2] && m.layer.is_moe[3]);
    CU_ASSERT(m.may_predict && m.n_predict == 0 && m.layer.is_moe[4] && arch_all_layers(&m) == 4);
    CU_ASSERT_EQUAL(m.moe.router.kind, ROUTER_SIGMOID_RENORM);
    CU_ASSERT(m.moe.router.n_groups == 4 && m.moe.router.n_groups_chosen == 2 &&
              m.moe.router.scale == 2.5f);
    CU_ASSERT_EQUAL(parse(DEEPSEEK ",\"v_head_dim\":16,\"q_lora_rank\":null").code, STATUS_OK);
    CU_ASSERT_EQUAL(m.attn.q_lora, 0);
    refuse(DEEPSEEK, "v_head_dim");
    refuse(DEEPSEEK ",\"v_head_dim\":16,\"scoring_func\":\"softmax\"", "scoring_func");
#define GROUPED DEEPSEEK_BASE "\"v_head_dim\":16,\"routed_scaling_factor\":1.0"
    refuse(GROUPED ",\"topk_method\":\"other\",\"n_group\":2", "topk_method");
    refuse(GROUPED ",\"topk_method\":\"greedy\",\"n_group\":2,\"topk_group\":1", "topk_method");
    refuse(GROUPED ",\"n_group\":3,\"topk_group\":1", "n_group");
    refuse(GROUPED ",\"n_group\":4,\"topk_group\":1", "n_group");
    /* other programs have defaults of their own for these fields */
    refuse(GROUPED, "n_group");
    refuse(DEEPSEEK_BASE "\"v_head_dim\":16,\"n_group\":1,\"topk_group\":1",
           "routed_scaling_factor");
    refuse(DEEPSEEK ",\"v_head_dim\":16,\"head_dim\":24", "head_dim");
    CU_ASSERT_EQUAL(parse(DEEPSEEK ",\"v_head_dim\":16,\"attention_bias\":false").code, STATUS_OK);
    refuse(DEEPSEEK ",\"v_head_dim\":16,\"attention_bias\":true", "attention_bias");
    refuse(DEEPSEEK ",\"v_head_dim\":16,\"rope_scaling\":{\"type\":\"linear\",\"factor\":4,"
                    "\"mscale_all_dim\":1}",
           "mscale_all_dim");
}

static void rope_theta_is_found_in_both_places(void)
{
    CU_ASSERT_EQUAL(parse(LLAMA ",\"rope_theta\":5e5").code, STATUS_OK);
    CU_ASSERT_EQUAL(m.rope_theta, 5e5);
    CU_ASSERT_EQUAL(parse(LLAMA ",\"rope_parameters\":{\"rope_type\":\"default\","
                                "\"rope_theta\":1e6}")
                        .code,
                    STATUS_OK);
    CU_ASSERT_EQUAL(m.rope_theta, 1e6);
    refuse(LLAMA ",\"rope_theta\":1e4,\"rope_parameters\":{\"rope_theta\":1e6}", "rope_theta");
    refuse(LLAMA ",\"rope_theta\":1e4,\"rope_scaling\":{\"rope_theta\":1e6}", "rope_theta");
    refuse(LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},"
                 "\"rope_parameters\":{\"rope_theta\":1e6}",
           "rope_scaling, rope_parameters");
}

/* A value of another type is not treated as missing. */
static void values_of_rope_have_their_types(void)
{
    static const char *const wrong[][2] = {
        {"\"linear\"", "rope_parameters: expected an object"},
        {"[1]", "rope_parameters: expected an object"},
        {"5", "rope_parameters: expected an object"},
        {"{\"rope_theta\":\"1e6\"}", "rope_theta\": expected a number"},
        {"{\"rope_theta\":true}", "rope_theta\": expected a number"},
        {"{\"rope_type\":7,\"rope_theta\":1e6}", "rope_type\": expected a rule's name"},
        {"{\"type\":[],\"rope_theta\":1e6}", "type\": expected a rule's name"},
        {"{\"rope_type\":\"yarn\",\"factor\":2,\"mscale\":\"1\"}", "mscale\": expected a number"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char config[1024];
        snprintf(config, sizeof config, "%s,\"rope_parameters\":%s", LLAMA, wrong[i][0]);
        refuse(config, wrong[i][1]);
    }
    CU_ASSERT_EQUAL(parse(LLAMA ",\"rope_parameters\":{\"rope_type\":\"default\","
                                "\"rope_theta\":1e6,\"factor\":null}")
                        .code,
                    STATUS_OK);
}

static void what_is_not_implemented_is_refused_by_name(void)
{
    refuse("\"architectures\":[\"GPT2LMHeadModel\"]", "GPT2LMHeadModel");
    refuse(LLAMA ",\"rope_scaling\":{\"rope_type\":\"dynamic\",\"factor\":8}", "dynamic");
    refuse(LLAMA ",\"rope_scaling\":{\"type\":\"longrope\",\"factor\":8}", "longrope");
    refuse(LLAMA ",\"rope_scaling\":{\"type\":\"yarn\",\"sections\":[8]}", "sections");
    refuse(LLAMA ",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1e4}}",
           "full_attention");
    refuse(QWEN3 ",\"mlp_bias\":true", "mlp_bias is not implemented for Qwen3-MoE");
    refuse(LLAMA ",\"mlp_bias\":1", "true or false");
    refuse(LLAMA ",\"hidden_act\":\"gelu\"", "gelu");
    refuse(LLAMA ",\"logit_scale\":0.5", "logit_scale");
    refuse(LLAMA ",\"is_causal\":false", "is_causal");
    refuse(OF("OlmoeForCausalLM") ",\"rope_theta\":1e4,\"num_experts\":4,\"num_experts_per_tok\":2,"
                                  "\"use_sliding_window\":true",
           "use_sliding_window is not implemented for OLMoE");
    CU_ASSERT_EQUAL(parse(LLAMA ",\"mlp_bias\":false,\"logit_scale\":null").code, STATUS_OK);
}

/* Fields that only other families define are refused: a model that obeyed or ignored them could
 * silently compute something else. */
static void fields_of_other_families_are_refused(void)
{
    refuse(LLAMA ",\"partial_rotary_factor\":0.5", "partial_rotary_factor is not implemented");
    refuse(QWEN3 ",\"partial_rotary_factor\":0.5", "partial_rotary_factor is not implemented");
    refuse(LLAMA ",\"rope_parameters\":{\"rope_type\":\"default\",\"partial_rotary_factor\":0.5}",
           "partial_rotary_factor is not implemented");
    refuse(LLAMA ",\"clip_qkv\":8.0", "clip_qkv is not implemented");
    refuse(LLAMA ",\"logits_scaling\":8.0", "logits_scaling is not implemented");
    refuse(LLAMA ",\"residual_multiplier\":0.5", "residual_multiplier is not implemented");
    refuse(LLAMA ",\"use_qk_norm\":true", "use_qk_norm is not implemented");
    CU_ASSERT_EQUAL(parse(LLAMA ",\"partial_rotary_factor\":1.0,\"clip_qkv\":null,"
                                "\"residual_multiplier\":1.0,\"use_qk_norm\":false")
                        .code,
                    STATUS_OK);
    CU_ASSERT(m.attn.rotary == 16 && m.scale.embed == 1 && m.scale.logits == 1 && !m.attn.qk_norm);
}

#define DEEPSEEK_V2                                                                                \
    "\"architectures\":[\"DeepseekV2ForCausalLM\"],\"hidden_size\":64,\"num_hidden_layers\":2,"    \
    "\"num_attention_heads\":4,\"vocab_size\":100,\"intermediate_size\":96,"                       \
    "\"max_position_embeddings\":128,\"moe_intermediate_size\":32,\"n_routed_experts\":8,"         \
    "\"n_shared_experts\":0,\"num_experts_per_tok\":3,\"kv_lora_rank\":32,"                        \
    "\"qk_nope_head_dim\":24,\"qk_rope_head_dim\":16,\"v_head_dim\":16,"                           \
    "\"routed_scaling_factor\":16.0,\"first_k_dense_replace\":0"

static void implementations_that_differ_are_not_guessed(void)
{
    CU_ASSERT_EQUAL(parse(DEEPSEEK_V2 ",\"norm_topk_prob\":false").code, STATUS_OK);
    CU_ASSERT(m.moe.router.kind == ROUTER_SOFTMAX && m.moe.router.scale == 16 &&
              m.moe.shared_ffn == 0);
    refuse(DEEPSEEK_V2 ",\"norm_topk_prob\":true", "norm_topk_prob");
    refuse(DEEPSEEK_V2 ",\"norm_topk_prob\":false,\"n_group\":4,\"topk_group\":2", "topk_method");
    CU_ASSERT_EQUAL(parse(DEEPSEEK_V2 ",\"norm_topk_prob\":false,\"n_group\":4,\"topk_group\":2,"
                                      "\"topk_method\":\"greedy\"")
                        .code,
                    STATUS_OK);
    CU_ASSERT_EQUAL(m.moe.router.n_groups, 0);
    refuse(DEEPSEEK_V2, "\"norm_topk_prob\": expected true or false");
    refuse(OF("MistralForCausalLM"), "sliding_window"); /* other programs assume 4096 */
    refuse(OF("Qwen3ForCausalLM") ",\"use_sliding_window\":true", "sliding_window");
    refuse(OF("GraniteForCausalLM") ",\"clip_qkv\":8.0", "clip_qkv");
    refuse(DEEPSEEK_V2 ",\"norm_topk_prob\":1", "true or false");
}

static void switches_of_a_family_are_read(void)
{
    const char *qwen = "\"architectures\":[\"Qwen2MoeForCausalLM\"],\"hidden_size\":64,"
                       "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"vocab_size\":100,"
                       "\"moe_intermediate_size\":48,\"num_experts\":8,\"num_experts_per_tok\":2,"
                       "\"shared_expert_intermediate_size\":80,\"max_position_embeddings\":128,"
                       "\"qkv_bias\":";
    char body[1024];
    snprintf(body, sizeof body, "%sfalse", qwen);
    CU_ASSERT_EQUAL(parse(body).code, STATUS_OK);
    CU_ASSERT(!m.attn.qkv_bias && !m.attn.o_bias);
    snprintf(body, sizeof body, "%strue", qwen);
    CU_ASSERT_EQUAL(parse(body).code, STATUS_OK);
    CU_ASSERT(m.attn.qkv_bias && !m.attn.o_bias);
}

/* Kernels and the cache pad heads to whole lanes. The weights, the scale and the rotation use the
 * published head_dim. */
static void heads_are_padded(void)
{
    CU_ASSERT_EQUAL(parse("\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":3200,"
                          "\"num_hidden_layers\":26,\"num_attention_heads\":32,"
                          "\"intermediate_size\":8640,\"vocab_size\":32000,"
                          "\"max_position_embeddings\":2048")
                        .code,
                    STATUS_OK); /* OpenLLaMA-3B */
    CU_ASSERT(m.attn.head_dim == 112 && m.attn.query_dim == 100 && m.attn.value_dim == 100 &&
              m.attn.rotary == 100);
    CU_ASSERT_EQUAL(m.scale.attention, 0.1f);
    CU_ASSERT_EQUAL(arch_params(&m), 3426473600u);
    struct layout_model l;
    layout_describe(&m, 2, &l);
    CU_ASSERT_EQUAL(l.o_leaf, 300);
    const struct layout_flags flags = {.tp = 2};
    struct layout two;
    CU_ASSERT_EQUAL(layout_build(&l, 2, &flags, &two).code, STATUS_OK);
    const struct layout_kv f16 = {.element_bytes = 2};
    const struct layout_memory memory = layout_memory_of(&two, layout_place_of(&two, 0), f16, 64);
    const uint32_t n_kv_heads = range_count(layout_kv_heads(&two, 0));
    CU_ASSERT_EQUAL(memory.kv_block_bytes, 26u * n_kv_heads * 64 * 2 * 112 * 2);
    CU_ASSERT_EQUAL(parse(OF("Qwen3ForCausalLM") ",\"head_dim\":40").code, STATUS_OK);
    CU_ASSERT(m.attn.head_dim == 48 && m.attn.query_dim == 40 && m.attn.rotary == 40);
}

static void impossible_sizes_are_refused(void)
{
    refuse("\"architectures\":[\"LlamaForCausalLM\"]", "num_hidden_layers");
    refuse(LLAMA ",\"head_dim\":25", "head_dim");
    refuse("\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":2080,\"num_hidden_layers\":2,"
           "\"num_attention_heads\":1,\"intermediate_size\":96,\"vocab_size\":100,"
           "\"max_position_embeddings\":128",
           "hidden_size / num_attention_heads");
    refuse("\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":64,\"num_hidden_layers\":0",
           "num_hidden_layers");
    refuse("\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":64,\"num_hidden_layers\":2,"
           "\"num_attention_heads\":6,\"num_key_value_heads\":4,\"intermediate_size\":96,"
           "\"vocab_size\":100,\"max_position_embeddings\":128,\"head_dim\":16",
           "num_attention_heads");
    refuse("\"architectures\":[\"MixtralForCausalLM\"],\"hidden_size\":64,\"num_hidden_layers\":2,"
           "\"num_attention_heads\":4,\"intermediate_size\":96,\"vocab_size\":100,"
           "\"max_position_embeddings\":128,\"num_local_experts\":2,\"num_experts_per_tok\":3,"
           "\"rope_theta\":1e6,\"rms_norm_eps\":1e-5",
           "num_experts_per_tok");
    refuse(QWEN3 ",\"mlp_only_layers\":[9]", "mlp_only_layers");
    refuse(LLAMA ",\"rope_theta\":0", "rope_theta");
    refuse(LLAMA ",\"rms_norm_eps\":\"1e-5\"", "rms_norm_eps");
    refuse(LLAMA ",\"tie_word_embeddings\":1", "tie_word_embeddings");
}

void suite_arch(CU_pSuite suite);
void suite_arch(CU_pSuite suite)
{
    CU_add_test(suite, "families are understood", families_are_understood);
    CU_add_test(suite, "biases are those of the family", biases_are_those_of_the_family);
    CU_add_test(suite, "windows are those of the layers", windows_are_those_of_the_layers);
    CU_add_test(suite, "mixtures are understood", mixtures_are_understood);
    CU_add_test(suite, "published configs are taken", published_configs_are_taken);
    CU_add_test(suite, "latent attention is understood", latent_attention_is_understood);
    CU_add_test(suite, "rope_theta is found in both places", rope_theta_is_found_in_both_places);
    CU_add_test(suite, "values of RoPE have their types", values_of_rope_have_their_types);
    CU_add_test(suite, "what is not implemented is refused by name",
                what_is_not_implemented_is_refused_by_name);
    CU_add_test(suite, "fields of other families are refused",
                fields_of_other_families_are_refused);
    CU_add_test(suite, "implementations that differ are not guessed",
                implementations_that_differ_are_not_guessed);
    CU_add_test(suite, "switches of a family are read", switches_of_a_family_are_read);
    CU_add_test(suite, "heads are padded", heads_are_padded);
    CU_add_test(suite, "impossible sizes are refused", impossible_sizes_are_refused);
}

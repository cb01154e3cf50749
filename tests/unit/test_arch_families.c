/* config.json: fields that one or a few families have and that test_arch.c does not test. */
#include "arch/arch_tensors.h"
#include "unit/util_arch.h"

/* MiniMax-M2's published config with fewer layers is accepted. Values of its fields that would need
 * other arithmetic are refused. */
static void minimax_fields_are_read(void)
{
    static const char fields[] =
        "\"architectures\":[\"MiniMaxM2ForCausalLM\"],\"head_dim\":128,\"hidden_act\":\"silu\","
        "\"hidden_size\":3072,\"intermediate_size\":1536,\"max_position_embeddings\":196608,"
        "\"model_type\":\"minimax_m2\",\"mtp_transformer_layers\":1,\"num_attention_heads\":48,"
        "\"num_experts_per_tok\":8,\"num_hidden_layers\":2,\"num_key_value_heads\":8,"
        "\"num_local_experts\":256,\"num_mtp_modules\":3,\"rms_norm_eps\":1e-06,"
        "\"rope_theta\":5000000,\"scoring_func\":\"sigmoid\",\"shared_intermediate_size\":0,"
        "\"tie_word_embeddings\":false,\"use_cache\":true,\"use_mtp\":true,"
        "\"use_routing_bias\":true,\"vocab_size\":200064";
    char body[1900];
    snprintf(body, sizeof body,
             "%s,\"rotary_dim\":64,\"use_qk_norm\":true,\"qk_norm_type\":\"per_layer\","
             "\"attn_type_list\":[1,1]",
             fields);
    CU_ASSERT_EQUAL(parse(body).code, STATUS_OK);
    CU_ASSERT(m.attn.rotary == 64 && m.attn.head_dim == 128 && m.moe.ffn == 1536 &&
              !m.attn.qk_norm);
    CU_ASSERT(m.attn.qk_norm_whole && m.moe.router.kind == ROUTER_SIGMOID_RENORM);
    snprintf(body, sizeof body, "%s,\"attn_type_list\":[1,0]", fields);
    refuse(body, "attn_type_list");
    snprintf(body, sizeof body, "%s,\"attn_type_list\":0", fields);
    refuse(body, "attn_type_list");
    snprintf(body, sizeof body, "%s,\"use_qk_norm\":false", fields);
    refuse(body, "use_qk_norm");
    snprintf(body, sizeof body, "%s,\"qk_norm_type\":\"per_head\"", fields);
    refuse(body, "qk_norm_type");
    snprintf(body, sizeof body, "%s,\"rotary_dim\":64,\"partial_rotary_factor\":0.25", fields);
    refuse(body, "rotary_dim");
    snprintf(body, sizeof body, "%s,\"rotary_dim\":64,\"partial_rotary_factor\":1.0", fields);
    refuse(body, "rotary_dim");
    snprintf(body, sizeof body, "%s,\"rotary_dim\":192", fields);
    refuse(body, "rotary_dim");
    refuse(fields, "partial_rotary_factor"); /* no field says which part of a head is rotated */
    refuse(LLAMA ",\"rotary_dim\":64", "rotary_dim");
    refuse(LLAMA ",\"qk_norm_type\":\"per_layer\"", "qk_norm_type");
}

static bool rotates(uint32_t layer)
{
    return !m.layer.is_unrotated[layer];
}

/* SmolLM3: some layers have no RoPE, by a list or by an interval; the head is the embedding unless
 * tie_word_embeddings is false. */
static void unrotated_layers_are_found(void)
{
    CU_ASSERT_EQUAL(parse(LLAMA).code, STATUS_OK);
    CU_ASSERT(rotates(0) && rotates(1) && !m.tied);
    CU_ASSERT_EQUAL(parse(OF("SmolLM3ForCausalLM") ",\"rope_theta\":5e6").code, STATUS_OK);
    CU_ASSERT(rotates(0) && rotates(1) && m.tied);
    CU_ASSERT_EQUAL(parse(OF("SmolLM3ForCausalLM") ",\"rope_theta\":5e6,"
                                                   "\"no_rope_layer_interval\":2,"
                                                   "\"tie_word_embeddings\":false")
                        .code,
                    STATUS_OK);
    CU_ASSERT(rotates(0) && !rotates(1) && !m.tied);
    CU_ASSERT_EQUAL(
        parse(OF("SmolLM3ForCausalLM") ",\"rope_theta\":5e6,\"no_rope_layers\":[0,1]").code,
        STATUS_OK);
    CU_ASSERT(!rotates(0) && rotates(1));
    refuse(OF("SmolLM3ForCausalLM") ",\"rope_theta\":5e6,\"no_rope_layers\":[0]",
           "no_rope_layers[1]");
    refuse(OF("SmolLM3ForCausalLM") ",\"rope_theta\":5e6,\"use_sliding_window\":true,"
                                    "\"sliding_window\":8",
           "use_sliding_window");
    refuse(OF("SmolLM3ForCausalLM"), "rope_theta"); /* other programs assume 2e6 */
    refuse(LLAMA ",\"no_rope_layers\":[0,1]", "no_rope_layers");
    refuse(LLAMA ",\"no_rope_layer_interval\":4", "no_rope_layer_interval");
}

static void biases_of_seed_oss_are_found(void)
{
    CU_ASSERT_EQUAL(parse(OF("SeedOssForCausalLM") ",\"attention_bias\":true").code, STATUS_OK);
    CU_ASSERT(m.attn.qkv_bias && !m.attn.o_bias);
    CU_ASSERT_EQUAL(parse(OF("SeedOssForCausalLM") ",\"attention_bias\":false,"
                                                   "\"attention_out_bias\":true")
                        .code,
                    STATUS_OK);
    CU_ASSERT(!m.attn.qkv_bias && m.attn.o_bias);
    refuse(OF("SeedOssForCausalLM"), "attention_bias"); /* other programs assume true */
    refuse(LLAMA ",\"attention_out_bias\":true", "attention_out_bias");
}

/* A layer of OLMo-2 has norms of its outputs, and none of its inputs. */
static void norms_stand_where_the_family_has_them(void)
{
    CU_ASSERT_EQUAL(parse(LLAMA).code, STATUS_OK);
    CU_ASSERT_EQUAL(arch_layer_parts(&m, 0) & (PART_IN_NORMS | PART_OUT_NORMS), PART_IN_NORMS);
    CU_ASSERT_EQUAL(parse(OF("Olmo2ForCausalLM") ",\"rope_theta\":5e5").code, STATUS_OK);
    CU_ASSERT_EQUAL(arch_layer_parts(&m, 0) & (PART_IN_NORMS | PART_OUT_NORMS), PART_OUT_NORMS);
    CU_ASSERT(m.attn.qk_norm_whole && !m.attn.qk_norm);
    refuse("\"architectures\":[\"Olmo2ForCausalLM\"],\"hidden_size\":64,\"num_hidden_layers\":2,"
           "\"num_attention_heads\":4,\"intermediate_size\":96,\"vocab_size\":100,"
           "\"max_position_embeddings\":128,\"rope_theta\":5e5",
           "\"rms_norm_eps\": expected a number"); /* other programs assume 1e-5 */
}

#define EXAONE OF("Exaone4ForCausalLM") ",\"rope_theta\":1e6"
#define OLMO3  OF("Olmo3ForCausalLM") ",\"sliding_window\":32"

/* EXAONE-4: if some layers have a window, the others have no RoPE. */
static void windows_and_rotation_go_together(void)
{
    CU_ASSERT_EQUAL(parse(EXAONE ",\"sliding_window\":32,\"sliding_window_pattern\":2").code,
                    STATUS_OK);
    CU_ASSERT_STRING_EQUAL(windows(), "10");
    CU_ASSERT(rotates(0) && !rotates(1));
    CU_ASSERT_EQUAL(parse(EXAONE ",\"sliding_window\":32,\"sliding_window_pattern\":\"LLLG\","
                                 "\"layer_types\":[\"full_attention\",\"sliding_attention\"]")
                        .code,
                    STATUS_OK);
    CU_ASSERT_STRING_EQUAL(windows(), "01");
    CU_ASSERT(!rotates(0) && rotates(1));
    CU_ASSERT_EQUAL(parse(EXAONE ",\"sliding_window\":null").code, STATUS_OK);
    CU_ASSERT(m.attn.window == 0 && rotates(0) && rotates(1));
    refuse(EXAONE, "sliding_window");
    refuse(EXAONE ",\"sliding_window\":32,\"sliding_window_pattern\":\"LLLG\"",
           "sliding_window_pattern");
    refuse(LLAMA ",\"sliding_window_pattern\":2", "sliding_window_pattern");
}

/* The sizes of K-EXAONE-236B-A23B; fields that change nothing are left out. */
#define K_EXAONE(name)                                                                             \
    "\"architectures\":[\"" name "\"],\"head_dim\":128,\"hidden_size\":6144,"                      \
    "\"intermediate_size\":18432,\"max_position_embeddings\":262144,"                              \
    "\"moe_intermediate_size\":2048,\"n_group\":1,\"norm_topk_prob\":true,"                        \
    "\"num_attention_heads\":64,\"num_experts\":128,\"num_experts_per_tok\":8,"                    \
    "\"num_hidden_layers\":48,\"num_key_value_heads\":8,\"num_nextn_predict_layers\":1,"           \
    "\"num_shared_experts\":1,\"rms_norm_eps\":1e-05,\"rope_theta\":1000000,"                      \
    "\"routed_scaling_factor\":2.5,\"sliding_window\":128,\"topk_group\":1,\"vocab_size\":153600"
#define K_EXAONE_SMALL                                                                             \
    OF("ExaoneMoeForCausalLM")                                                                     \
    ",\"rope_theta\":1e6,\"sliding_window\":32,\"num_experts\":4,\"num_experts_per_tok\":2,"       \
    "\"moe_intermediate_size\":32,\"num_shared_experts\":1,\"norm_topk_prob\":true,"               \
    "\"routed_scaling_factor\":2.5"

static void k_exaone_has_its_sizes(void)
{
    CU_ASSERT_EQUAL_FATAL(parse(K_EXAONE("ExaoneMoEForCausalLM")).code, STATUS_OK);
    CU_ASSERT(arch_params(&m) > 234e9 && arch_params(&m) < 238e9); /* "236B" */
    CU_ASSERT(m.attn.qk_norm && m.n_predict == 0 && !m.may_predict && m.attn.window == 128);
    CU_ASSERT(m.moe.router.kind == ROUTER_SIGMOID_RENORM && m.moe.router.scale == 2.5f &&
              m.moe.select_bias);
    for (uint32_t l = 0; l < 48; l++) {
        CU_ASSERT(m.layer.has_window[l] == (l % 4 != 3) && rotates(l) == (l % 4 != 3));
        CU_ASSERT(m.layer.is_moe[l] == (l > 0));
    }
    CU_ASSERT_EQUAL(parse(K_EXAONE("ExaoneMoeForCausalLM")).code, STATUS_OK);
    refuse(K_EXAONE("ExaoneMOEForCausalLM"), "ExaoneMOEForCausalLM");
}

/* Fields that say which layers have experts must agree. */
static void k_exaone_agrees_about_its_experts(void)
{
    CU_ASSERT_EQUAL(parse(K_EXAONE_SMALL ",\"is_moe_layer\":[false,true]").code, STATUS_OK);
    CU_ASSERT_EQUAL(parse(K_EXAONE_SMALL ",\"first_k_dense_replace\":0").code, STATUS_OK);
    CU_ASSERT(m.layer.is_moe[0] && m.layer.is_moe[1] && m.ffn == 0);
    CU_ASSERT_EQUAL(parse(K_EXAONE_SMALL ",\"mlp_layer_types\":[\"sparse\",\"dense\"]").code,
                    STATUS_OK);
    CU_ASSERT(m.layer.is_moe[0] && !m.layer.is_moe[1]);
    refuse(K_EXAONE_SMALL ",\"is_moe_layer\":[true,true]", "is_moe_layer[0]");
    refuse(K_EXAONE_SMALL ",\"is_moe_layer\":[false]", "is_moe_layer[1]");
    refuse(K_EXAONE_SMALL ",\"mlp_layer_types\":[\"sparse\",\"dense\"],\"first_k_dense_replace\":1",
           "first_k_dense_replace");
    refuse(OF("ExaoneMoeForCausalLM") ",\"rope_theta\":1e6,\"sliding_window\":32,\"num_experts\":4,"
                                      "\"num_experts_per_tok\":2,\"moe_intermediate_size\":32,"
                                      "\"n_shared_experts\":1,\"norm_topk_prob\":true,"
                                      "\"routed_scaling_factor\":2.5",
           "num_shared_experts");
    refuse(LLAMA ",\"is_moe_layer\":[true,true]", "is_moe_layer");
}

/* The sizes of Hy3-preview. */
#define HY3(more)                                                                                  \
    "\"architectures\":[\"HYV3ForCausalLM\"],\"head_dim\":128,\"hidden_size\":4096,"               \
    "\"first_k_dense_replace\":1,\"intermediate_size\":13312,"                                     \
    "\"max_position_embeddings\":262144,\"moe_intermediate_size\":1536,"                           \
    "\"moe_router_use_sigmoid\":true,\"num_attention_heads\":64,\"num_experts\":192,"              \
    "\"num_experts_per_tok\":8,\"num_hidden_layers\":80,\"num_key_value_heads\":8,"                \
    "\"qk_norm\":true,\"rms_norm_eps\":1e-05,\"rope_theta\":11158840.0,\"route_norm\":true,"       \
    "\"router_scaling_factor\":2.826,\"vocab_size\":120832" more

static void hy3_has_its_sizes(void)
{
    CU_ASSERT_EQUAL_FATAL(parse(HY3(",\"num_shared_experts\":1")).code, STATUS_OK);
    CU_ASSERT(arch_params(&m) > 293e9 && arch_params(&m) < 297e9); /* "295B" */
    CU_ASSERT(m.moe.router.kind == ROUTER_SIGMOID_RENORM && m.moe.router.scale == 2.826f &&
              m.moe.select_bias);
    CU_ASSERT(m.attn.qk_norm && m.moe.shared_ffn == 1536 && !m.layer.is_moe[0] &&
              m.layer.is_moe[1]);
    refuse(HY3(""), "num_shared_experts");
    refuse(HY3(",\"num_shared_experts\":0"), "num_shared_experts");
    refuse(HY3(",\"num_shared_experts\":1,\"n_group\":2,\"topk_group\":1"), "n_group");
    refuse(HY3(",\"num_shared_experts\":1,\"norm_topk_prob\":false"), "norm_topk_prob");
    refuse(HY3(",\"num_shared_experts\":1,\"mlp_bias\":true"), "mlp_bias");
    CU_ASSERT_EQUAL(parse(HY3(",\"num_shared_experts\":1,\"expert_hidden_dim\":1536")).code,
                    STATUS_OK);
    refuse(HY3(",\"num_shared_experts\":1,\"expert_hidden_dim\":768"), "expected 1536");
    refuse(LLAMA ",\"router_scaling_factor\":2", "router_scaling_factor");
}

/* MiMo-V2-Flash with its published sizes and names of fields, and six layers. */
#define MIMO(more)                                                                                 \
    "\"architectures\":[\"MiMoV2FlashForCausalLM\"],\"head_dim\":192,\"hidden_size\":4096,"        \
    "\"attention_value_scale\":0.707,\"intermediate_size\":16384,\"layernorm_epsilon\":1e-05,"     \
    "\"max_position_embeddings\":262144,\"moe_intermediate_size\":2048,"                           \
    "\"n_routed_experts\":256,\"num_attention_heads\":64,\"num_experts_per_tok\":8,"               \
    "\"num_hidden_layers\":6,\"num_key_value_heads\":4,\"partial_rotary_factor\":0.334,"           \
    "\"sliding_window\":128,\"vocab_size\":152576" more
#define MIMO_V    ",\"v_head_dim\":128"
#define MIMO_ROPE ",\"rope_theta\":5000000,\"swa_rope_theta\":10000"
#define MIMO_TOPK MIMO_V MIMO_ROPE ",\"norm_topk_prob\":true,\"sliding_window_size\":128"

static void mimo_has_two_kinds_of_layers(void)
{
    CU_ASSERT_EQUAL_FATAL(parse(MIMO(MIMO_TOPK ",\"hybrid_layer_pattern\":[0,1,1,1,1,0],"
                                               "\"moe_layer_freq\":[0,1,1,1,1,1],"
                                               "\"swa_num_key_value_heads\":8"))
                              .code,
                          STATUS_OK);
    CU_ASSERT(m.attn.n_kv_heads == 8 && m.attn.n_full_kv_heads == 4 && m.attn.value_dim == 128);
    CU_ASSERT(m.attn.query_dim == 192 && m.attn.rotary == 64 && m.attn.window == 129 &&
              m.local_rope);
    CU_ASSERT_STRING_EQUAL(windows(), "011110");
    CU_ASSERT(m.norm_eps == 1e-5f && m.scale.values == 0.707f);
    for (uint32_t l = 0; l < 6; l++) {
        const uint64_t parts = arch_layer_parts(&m, l);
        const bool is_full = l == 0 || l == 5;
        CU_ASSERT_EQUAL((parts & PART_FULL_HEADS) != 0, is_full);
        CU_ASSERT_EQUAL((parts & PART_HEADS) != 0, !is_full);
        CU_ASSERT_EQUAL((parts & PART_SINK_BIAS) != 0, !is_full);
        CU_ASSERT(arch_shares_keys(&m, l) == (is_full ? 2 : 1) && (parts & PART_SINKS) == 0);
    }
    CU_ASSERT(arch_dim_size(&m, DIM_FULL_KV) == 768 && arch_dim_size(&m, DIM_VALUES) == 1024);
    CU_ASSERT_EQUAL(parse(MIMO(MIMO_V MIMO_ROPE ",\"norm_topk_prob\":true")).code, STATUS_OK);
    CU_ASSERT_EQUAL(m.attn.window, 128);
}

/* Fields that transformers does not read must agree with what it computes. */
static void mimo_refuses_what_transformers_ignores(void)
{
    refuse(MIMO(MIMO_V MIMO_ROPE), "norm_topk_prob");
    refuse(MIMO(MIMO_TOPK ",\"hybrid_layer_pattern\":[0,1,1,1,1,1]"), "hybrid_layer_pattern[5]");
    refuse(MIMO(MIMO_TOPK ",\"moe_layer_freq\":[1,1,1,1,1,1]"), "moe_layer_freq[0]");
    refuse(MIMO(MIMO_TOPK ",\"moe_layer_freq\":[0]"), "moe_layer_freq[1]");
    refuse(MIMO(MIMO_TOPK ",\"swa_num_key_value_heads\":4"), "swa_num_key_value_heads");
    refuse(MIMO(MIMO_TOPK ",\"swa_v_head_dim\":64"), "swa_v_head_dim");
    refuse(MIMO(MIMO_V ",\"norm_topk_prob\":true,\"rope_theta\":5000000,\"swa_rope_theta\":2e4"),
           "swa_rope_theta");
    refuse(MIMO(MIMO_V ",\"norm_topk_prob\":true,\"rope_theta\":5000000"), "swa_rope_theta");
    refuse(MIMO(MIMO_V ",\"norm_topk_prob\":true,\"rope_theta\":1e4,\"swa_rope_theta\":1e4"),
           "\"rope_theta\": expected 5e+06");
    refuse(MIMO(MIMO_TOPK ",\"rms_norm_eps\":1e-6"), "layernorm_epsilon");
    refuse(MIMO(MIMO_TOPK ",\"attention_bias\":true"), "attention_bias");
    refuse(MIMO(MIMO_TOPK ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}"), "rope_scaling");
    refuse(MIMO(MIMO_TOPK ",\"add_full_attention_sink_bias\":true"), "add_full_attention");
    refuse(MIMO(MIMO_TOPK ",\"add_swa_attention_sink_bias\":false"), "add_swa_attention");
    refuse(MIMO(MIMO_ROPE ",\"norm_topk_prob\":true,\"v_head_dim\":256"), "at most head_dim 192");
    refuse(LLAMA ",\"attention_value_scale\":0.5", "attention_value_scale");
}

/* OLMo-3: layers with a window have a RoPE of their own. */
static void local_rope_is_found(void)
{
    CU_ASSERT_EQUAL(parse(OLMO3 ",\"rope_theta\":500000").code, STATUS_OK);
    CU_ASSERT(m.local_rope && m.rope_theta == 5e5);
    CU_ASSERT_STRING_EQUAL(windows(), "11"); /* all but each fourth */
    CU_ASSERT_EQUAL(parse(OLMO3 ",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1e6},"
                                "\"sliding_attention\":{\"rope_theta\":1e4}}")
                        .code,
                    STATUS_OK);
    CU_ASSERT_EQUAL(m.rope_theta, 1e6);
    refuse(OLMO3, "rope_theta");
    /* transformers takes 5e5 in layers with a window, whatever this field says */
    refuse(OLMO3 ",\"rope_theta\":1e4", "rope_theta");
    refuse(OLMO3 ",\"rope_parameters\":{\"rope_theta\":1e6}", "full_attention");
    refuse(OLMO3 ",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1e6},"
                 "\"sliding_attention\":{\"rope_theta\":1e4,\"rope_type\":\"yarn\"}}",
           "sliding_attention");
    CU_ASSERT_EQUAL(parse(LLAMA).code, STATUS_OK);
    CU_ASSERT(!m.local_rope);
}

#define GLM_LITE                                                                                   \
    "\"architectures\":[\"Glm4MoeLiteForCausalLM\"],\"hidden_size\":64,"                           \
    "\"num_hidden_layers\":3,\"num_attention_heads\":4,\"vocab_size\":100,"                        \
    "\"intermediate_size\":96,\"max_position_embeddings\":128,\"moe_intermediate_size\":32,"       \
    "\"n_routed_experts\":8,\"n_shared_experts\":1,\"num_experts_per_tok\":3,"                     \
    "\"norm_topk_prob\":true,\"kv_lora_rank\":32,\"qk_nope_head_dim\":24,"                         \
    "\"qk_rope_head_dim\":16,\"v_head_dim\":16,\"routed_scaling_factor\":1.8,"                     \
    "\"rope_theta\":1e6,\"rms_norm_eps\":1e-5"

static void dense_layers_are_those_of_the_list(void)
{
    CU_ASSERT_EQUAL(parse(GLM_LITE).code, STATUS_OK);
    CU_ASSERT(!m.layer.is_moe[0] && m.layer.is_moe[1] && m.layer.is_moe[2]);
    CU_ASSERT_EQUAL(parse(GLM_LITE ",\"first_k_dense_replace\":1").code, STATUS_OK);
    CU_ASSERT_EQUAL(parse(GLM_LITE ",\"mlp_layer_types\":[\"sparse\",\"dense\",\"sparse\"]").code,
                    STATUS_OK);
    CU_ASSERT(m.layer.is_moe[0] && !m.layer.is_moe[1] && m.layer.is_moe[2]);
    refuse(GLM_LITE ",\"first_k_dense_replace\":2", "first_k_dense_replace");
    refuse(GLM_LITE ",\"moe_layer_freq\":2", "moe_layer_freq");
    refuse(GLM_LITE ",\"attention_bias\":true", "attention_bias");
    refuse(GLM_LITE ",\"mlp_layer_types\":[\"sparse\",\"dense\"]", "mlp_layer_types[2]");
    refuse(LLAMA ",\"mlp_layer_types\":[\"sparse\"]", "mlp_layer_types");
}

#define YARN(fields)                                                                               \
    "\"rope_parameters\":{\"rope_type\":\"yarn\",\"rope_theta\":1e4,\"factor\":4.0,"               \
    "\"original_max_position_embeddings\":32" fields "}"
#define MINISTRAL3                                                                                 \
    "\"architectures\":[\"Ministral3ForCausalLM\"],\"hidden_size\":64,\"num_hidden_layers\":2,"    \
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":16,\"vocab_size\":100,"      \
    "\"intermediate_size\":96,\"max_position_embeddings\":128,\"rms_norm_eps\":1e-5,"
#define MISTRAL4                                                                                   \
    "\"architectures\":[\"Mistral4ForCausalLM\"],\"hidden_size\":64,\"num_hidden_layers\":2,"      \
    "\"num_attention_heads\":4,\"vocab_size\":100,\"max_position_embeddings\":128,"                \
    "\"moe_intermediate_size\":32,\"n_routed_experts\":8,\"n_shared_experts\":1,"                  \
    "\"num_experts_per_tok\":2,\"norm_topk_prob\":true,\"kv_lora_rank\":32,"                       \
    "\"qk_nope_head_dim\":16,\"qk_rope_head_dim\":16,\"v_head_dim\":16,"                           \
    "\"routed_scaling_factor\":1.0,\"first_k_dense_replace\":0,"

static void queries_may_grow_in_all_layers(void)
{
    CU_ASSERT_EQUAL_FATAL(parse(MINISTRAL3 YARN(",\"llama_4_scaling_beta\":0.1")).code, STATUS_OK);
    CU_ASSERT(m.tuning.step == 32 && m.tuning.first == 0 && m.tuning.everywhere);
    CU_ASSERT(m.tuning.scale == 0.1f && !m.attn.qkv_bias);
    CU_ASSERT_EQUAL(parse(MISTRAL4 YARN(",\"llama_4_scaling_beta\":0.1,"
                                        "\"partial_rotary_factor\":0.5") ",\"head_dim\":32")
                        .code,
                    STATUS_OK);
    CU_ASSERT(m.attn.rotary == 16 && m.attn.query_dim == 32 &&
              m.moe.router.kind == ROUTER_SOFTMAX_RENORM);
    refuse(MINISTRAL3 YARN(""), "llama_4_scaling_beta");
    refuse(MINISTRAL3 "\"rope_theta\":1e4", "yarn");
    refuse(MISTRAL4 YARN(",\"llama_4_scaling_beta\":0.1") ",\"n_group\":2,\"topk_group\":1",
           "n_group");
    refuse(MISTRAL4 YARN(",\"llama_4_scaling_beta\":0.1,\"partial_rotary_factor\":0.25"),
           "partial_rotary_factor");
    refuse(LLAMA "," YARN(",\"llama_4_scaling_beta\":0.1"), "llama_4_scaling_beta");
}

#define LLAMA4                                                                                     \
    "\"architectures\":[\"Llama4ForCausalLM\"],\"hidden_size\":64,\"num_hidden_layers\":4,"        \
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":16,\"vocab_size\":100,"      \
    "\"intermediate_size\":32,\"intermediate_size_mlp\":96,\"max_position_embeddings\":128,"       \
    "\"num_local_experts\":8,\"num_experts_per_tok\":1,\"rms_norm_eps\":1e-05,\"rope_theta\":"     \
    "500000.0,\"use_qk_norm\":true"

static void chunks_and_weighed_inputs_are_understood(void)
{
    CU_ASSERT_EQUAL(parse(LLAMA4 ",\"attention_chunk_size\":24,\"attn_temperature_tuning\":4").code,
                    STATUS_OK);
    CU_ASSERT(m.attn.chunked && m.attn.window == 24 && m.layer.has_window[2] &&
              !m.layer.has_window[3]);
    CU_ASSERT(m.layer.is_unrotated[3] && m.attn.l2_norm && m.moe.weighs_inputs &&
              m.layer.is_moe[0]);
    CU_ASSERT(m.ffn == 0 && m.moe.ffn == 32 && m.moe.shared_ffn == 32);
    CU_ASSERT(m.tuning.step == 8192 && m.moe.router.kind == ROUTER_SIGMOID_AFTER);
    refuse(LLAMA4, "attention_chunk_size");
    refuse(LLAMA4 ",\"attention_chunk_size\":24,\"sliding_window\":8", "sliding_window");
    refuse(LLAMA4 ",\"attention_chunk_size\":24,\"moe_layers\":[4]", "moe_layers");
}

#define GEMMA(name) OF(name) ",\"head_dim\":16,\"sliding_window\":32"
#define GEMMA2      GEMMA("Gemma2ForCausalLM")
#define CAPS        ",\"attn_logit_softcapping\":50.0,\"final_logit_softcapping\":30.0"
#define GEMMA3      GEMMA("Gemma3ForCausalLM") ",\"rope_theta\":1e6,\"rope_local_base_freq\":1e4"

static void gemma_caps_scores_and_scales_embeddings(void)
{
    CU_ASSERT_EQUAL(parse(GEMMA2 CAPS ",\"query_pre_attn_scalar\":64").code, STATUS_OK);
    CU_ASSERT(m.gate == GATE_GEGLU && m.attn.softcap == 50 && m.logit_cap == 30 && m.tied);
    CU_ASSERT(m.scale.embed == 8 && m.scale.attention == 0.125f && m.layer.has_window[0]);
    CU_ASSERT_EQUAL(parse(GEMMA2 ",\"attn_logit_softcapping\":null,"
                                 "\"final_logit_softcapping\":null")
                        .code,
                    STATUS_OK);
    CU_ASSERT(m.attn.softcap == 0 && m.logit_cap == 0 && m.scale.attention == 0.0625f);
    refuse(GEMMA2, "attn_logit_softcapping");
    refuse(GEMMA2 CAPS ",\"hidden_activation\":\"gelu\"", "gelu");
    refuse(GEMMA2 CAPS ",\"use_bidirectional_attention\":true", "use_bidirectional_attention");
    CU_ASSERT_EQUAL(parse(GEMMA3).code, STATUS_OK);
    CU_ASSERT(m.local_rope && m.layer.has_window[0] && m.attn.qk_norm && m.attn.softcap == 0);
    CU_ASSERT_EQUAL(parse(GEMMA3 ",\"sliding_window_pattern\":2").code, STATUS_OK);
    CU_ASSERT(m.layer.has_window[0] && !m.layer.has_window[1]);
    refuse(GEMMA3 ",\"attn_logit_softcapping\":50.0", "attn_logit_softcapping");
    refuse(GEMMA("Gemma3ForCausalLM") ",\"rope_theta\":1e6", "rope_local_base_freq");
    refuse(OF("Gemma3ForCausalLM") ",\"rope_theta\":1e6", "head_dim");
    refuse(GEMMA("Gemma3ForCausalLM") ",\"rope_parameters\":{\"full_attention\":{},"
                                      "\"sliding_attention\":{\"rope_theta\":1e4}}",
           "rope_theta");
    refuse(LLAMA ",\"query_pre_attn_scalar\":64", "query_pre_attn_scalar");
}

#define PHI3 OF("Phi3ForCausalLM") ",\"rope_theta\":1e4,\"sliding_window\":null"
#define LONG                                                                                       \
    "\"partial_rotary_factor\":1.0,\"rope_scaling\":{\"type\":\"longrope\","                       \
    "\"short_factor\":[1,1,1,1,1,1,1,1],\"long_factor\":[2,2,2,2,2,2,2,2]}"

static void longrope_keeps_the_original_context(void)
{
    CU_ASSERT_EQUAL(parse(PHI3 ",\"original_max_position_embeddings\":32," LONG).code, STATUS_OK);
    CU_ASSERT_EQUAL(m.context, 32);
    refuse(PHI3 "," LONG, "original_max_position_embeddings");
    refuse(LLAMA "," LONG, "longrope");
}

#define ERNIE                                                                                      \
    OF("Ernie4_5_MoeForCausalLM")                                                                  \
    ",\"rope_theta\":5e5,\"moe_k\":2,\"moe_num_experts\":4,"                                       \
    "\"moe_num_shared_experts\":1,\"moe_intermediate_size\":32,"                                   \
    "\"moe_layer_start_index\":0,\"moe_layer_interval\":1"

static void experts_under_other_names(void)
{
    CU_ASSERT_EQUAL(parse(ERNIE ",\"moe_layer_end_index\":0").code, STATUS_OK);
    CU_ASSERT(m.layer.is_moe[0] && !m.layer.is_moe[1] && m.moe.shared_ffn == 32 &&
              m.moe.select_bias);
    CU_ASSERT_EQUAL(m.moe.router.kind, ROUTER_BIASED_RENORM);
    refuse(ERNIE ",\"moe_norm_min\":0.5", "moe_norm_min");
    refuse(ERNIE ",\"use_bias\":true", "use_bias");
#define HUNYUAN OF("HunYuanMoEV1ForCausalLM") ",\"rope_theta\":1e4,\"num_experts\":4"
    CU_ASSERT_EQUAL(parse(HUNYUAN ",\"moe_topk\":[2,2]").code, STATUS_OK);
    CU_ASSERT(m.moe.n_chosen == 2 && m.moe.shared_ffn == 96 && m.attn.qk_norm);
    refuse(HUNYUAN ",\"moe_topk\":[2,1]", "moe_topk");
    refuse(HUNYUAN, "moe_topk");
    refuse(HUNYUAN ",\"moe_topk\":2,\"head_dim\":24", "head_dim");
}

#define APERTUS OF("ApertusForCausalLM") ",\"rope_theta\":1e4"
#define PHIMOE                                                                                     \
    OF("PhimoeForCausalLM")                                                                        \
    ",\"rope_theta\":1e4,\"sliding_window\":null,\"num_local_experts\":4"                          \
    ",\"router_jitter_noise\":0.01"

static void an_activation_and_a_router_of_one_family(void)
{
    CU_ASSERT_EQUAL(parse(APERTUS ",\"rope_scaling\":{\"type\":\"default\"}").code, STATUS_OK);
    CU_ASSERT(arch_layer_parts(&m, 0) & PART_UNGATED && !(arch_layer_parts(&m, 0) & PART_DENSE));
    refuse(APERTUS, "rope_scaling");
    refuse(APERTUS ",\"rope_scaling\":{\"type\":\"default\"},\"hidden_act\":\"silu\"", "silu");
    CU_ASSERT_EQUAL(parse(PHIMOE ",\"num_experts_per_tok\":2,\"lm_head_bias\":true").code,
                    STATUS_OK);
    CU_ASSERT(m.moe.router.kind == ROUTER_MIXER && m.moe.router.scale == 2 * 0.01f && m.head_bias);
    CU_ASSERT_EQUAL(arch_final_parts(&m), PART_FINAL | PART_FINAL_BIAS | PART_HEAD_BIAS);
    refuse(PHIMOE ",\"num_experts_per_tok\":1", "num_experts_per_tok");
    refuse(LLAMA ",\"lm_head_bias\":true", "lm_head_bias");
}

#define BITNET OF("BitNetForCausalLM") ",\"rope_theta\":5e5"

/* BitNet has norms of the inputs of o and down. Fields whose defaults differ elsewhere must be
 * given, and heads that do not fill hidden_size are refused. */
static void bitnet_norms_inputs_of_output_projections(void)
{
    CU_ASSERT_EQUAL(parse(BITNET ",\"hidden_act\":\"relu2\"").code, STATUS_OK);
    CU_ASSERT(m.sub_norms && arch_layer_parts(&m, 1) & PART_SUB_NORMS && !m.attn.o_bias);
    CU_ASSERT_EQUAL(parse(BITNET ",\"attention_bias\":true").code, STATUS_OK);
    CU_ASSERT(m.attn.qkv_bias && m.attn.o_bias);
    refuse(BITNET ",\"hidden_act\":\"silu\"", "silu");
    refuse(BITNET ",\"head_dim\":32", "hidden_size 64");
    refuse(BITNET ",\"mlp_bias\":true", "mlp_bias");
    refuse(OF("BitNetForCausalLM"), "rope_theta");
    CU_ASSERT_EQUAL(parse(LLAMA).code, STATUS_OK);
    CU_ASSERT(!m.sub_norms && !(arch_layer_parts(&m, 1) & PART_SUB_NORMS));
    refuse(LLAMA ",\"hidden_act\":\"relu2\"", "relu2");
}

#define PACKED(fields) ",\"quantization_config\":{\"quant_method\":\"bitnet\"" fields "}"
#define AUTO           ",\"linear_class\":\"autobitlinear\""

/* The published checkpoint's linears read rounded rows; other forms of BitNet's linears, and other
 * families with them, are refused. */
static void bitnet_rounds_what_its_linears_read(void)
{
    CU_ASSERT_EQUAL(parse(BITNET).code, STATUS_OK);
    CU_ASSERT(!m.rounds_inputs);
    CU_ASSERT_EQUAL(parse(BITNET PACKED(AUTO ",\"quantization_mode\":\"offline\"")).code,
                    STATUS_OK);
    CU_ASSERT(m.rounds_inputs);
    CU_ASSERT_EQUAL(parse(BITNET PACKED(AUTO ",\"modules_to_not_convert\":null")).code, STATUS_OK);
    refuse(BITNET PACKED(""), "linear_class");
    refuse(BITNET PACKED(AUTO ",\"quantization_mode\":\"online\""), "online");
    refuse(BITNET PACKED(AUTO ",\"use_rms_norm\":true"), "use_rms_norm");
    CU_ASSERT_EQUAL(parse(BITNET PACKED(AUTO ",\"modules_to_not_convert\":[\"lm_head\"]")).code,
                    STATUS_OK);
    refuse(BITNET PACKED(AUTO ",\"modules_to_not_convert\":[]"), "modules_to_not_convert");
    refuse(BITNET PACKED(AUTO ",\"modules_to_not_convert\":[\"q_proj\"]"),
           "modules_to_not_convert");
    refuse(LLAMA PACKED(AUTO), "bitnet");
    refuse(LLAMA ",\"quantization_config\":{\"quant_method\":\"BitNet\"}", "bitnet");
}

void suite_arch_families(CU_pSuite suite);
void suite_arch_families(CU_pSuite suite)
{
    CU_add_test(suite, "queries may grow in all layers", queries_may_grow_in_all_layers);
    CU_add_test(suite, "chunks and weighed inputs are understood",
                chunks_and_weighed_inputs_are_understood);
    CU_add_test(suite, "MiniMax-M2's fields", minimax_fields_are_read);
    CU_add_test(suite, "layers without rotation are found", unrotated_layers_are_found);
    CU_add_test(suite, "Seed-OSS's biases are found", biases_of_seed_oss_are_found);
    CU_add_test(suite, "norms stand where the family has them",
                norms_stand_where_the_family_has_them);
    CU_add_test(suite, "windows and rotation go together", windows_and_rotation_go_together);
    CU_add_test(suite, "K-EXAONE has its sizes", k_exaone_has_its_sizes);
    CU_add_test(suite, "K-EXAONE's fields agree about its experts",
                k_exaone_agrees_about_its_experts);
    CU_add_test(suite, "Hy3 has its sizes", hy3_has_its_sizes);
    CU_add_test(suite, "MiMo-V2-Flash has two kinds of layers", mimo_has_two_kinds_of_layers);
    CU_add_test(suite, "MiMo-V2-Flash refuses what transformers ignores",
                mimo_refuses_what_transformers_ignores);
    CU_add_test(suite, "a RoPE of layers with a window is found", local_rope_is_found);
    CU_add_test(suite, "dense layers are those of the list", dense_layers_are_those_of_the_list);
    CU_add_test(suite, "Gemma caps scores and scales embeddings",
                gemma_caps_scores_and_scales_embeddings);
    CU_add_test(suite, "longrope keeps the original context", longrope_keeps_the_original_context);
    CU_add_test(suite, "experts under other names", experts_under_other_names);
    CU_add_test(suite, "BitNet norms inputs of output projections",
                bitnet_norms_inputs_of_output_projections);
    CU_add_test(suite, "BitNet rounds what its linears read", bitnet_rounds_what_its_linears_read);
    CU_add_test(suite, "an activation and a router of one family",
                an_activation_and_a_router_of_one_family);
}

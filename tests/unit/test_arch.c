/* config.json: which models are accepted, and which are refused with an error that names the field.
 */
#include "arch/arch.h"
#include "arch/arch_tensors.h"
#include "parallel/layout/layout.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <string.h>

#define LLAMA OF("LlamaForCausalLM")
#define OF(architecture)                                                                           \
    "\"architectures\":[\"" architecture "\"],\"hidden_size\":64,\"num_hidden_layers\":2,"         \
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"intermediate_size\":96,"                \
    "\"vocab_size\":100,\"max_position_embeddings\":128,\"rms_norm_eps\":1e-5"
#define MIXTRAL                                                                                    \
    "\"architectures\":[\"MixtralForCausalLM\"],\"hidden_size\":64,\"num_hidden_layers\":2,"       \
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"intermediate_size\":96,"                \
    "\"vocab_size\":100,\"max_position_embeddings\":128,\"num_local_experts\":4,"                  \
    "\"rope_theta\":1e6,\"rms_norm_eps\":1e-5,\"num_experts_per_tok\":2"
#define QWEN3                                                                                      \
    "\"architectures\":[\"Qwen3MoeForCausalLM\"],\"hidden_size\":64,\"num_hidden_layers\":4,"      \
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":32,"                         \
    "\"intermediate_size\":96,\"moe_intermediate_size\":48,\"vocab_size\":100,"                    \
    "\"max_position_embeddings\":128,\"num_experts\":8,\"num_experts_per_tok\":2"

static struct arch m;

static struct status parse(const char *body)
{
    char json[2048];
    snprintf(json, sizeof json, "{%s}", body);
    return arch_parse(json, strlen(json), "config.json", &m);
}

/* Parses a config that must be refused with an error that contains `word`. */
static void refuse(const char *body, const char *word)
{
    const struct status st = parse(body);
    CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
    if (strstr(st.text, word) == NULL) printf("[%s lacks %s] ", st.text, word);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, word));
}

static void families_are_understood(void)
{
    CU_ASSERT_EQUAL(parse(LLAMA).code, STATUS_OK);
    CU_ASSERT_EQUAL(m.head_dim, 16);
    CU_ASSERT_EQUAL(m.n_experts, 0);
    CU_ASSERT_EQUAL(parse(MIXTRAL ",\"sliding_window\":32").code, STATUS_OK);
    CU_ASSERT_EQUAL(m.window, 32);
    CU_ASSERT_EQUAL(m.router.kind, ROUTER_SOFTMAX_RENORM);
    CU_ASSERT_EQUAL(m.expert_ffn, 96);
    CU_ASSERT_EQUAL(parse(QWEN3 ",\"norm_topk_prob\":false,\"decoder_sparse_step\":2,"
                                "\"mlp_only_layers\":[3]")
                        .code,
                    STATUS_OK);
    CU_ASSERT_EQUAL(m.router.kind, ROUTER_SOFTMAX);
    CU_ASSERT(!m.layer_is_moe[0] && m.layer_is_moe[1] && !m.layer_is_moe[2] && !m.layer_is_moe[3]);
    CU_ASSERT_EQUAL(m.ffn, 96);
    CU_ASSERT_EQUAL(m.expert_ffn, 48);
}

static void biases_are_those_of_the_family(void)
{
    CU_ASSERT_EQUAL(parse(LLAMA).code, STATUS_OK);
    CU_ASSERT(!m.qkv_bias && !m.o_bias);
    CU_ASSERT_EQUAL(parse(LLAMA ",\"attention_bias\":true").code, STATUS_OK);
    CU_ASSERT(m.qkv_bias && m.o_bias && !m.ffn_bias);
    CU_ASSERT_EQUAL(parse(LLAMA ",\"mlp_bias\":true").code, STATUS_OK);
    CU_ASSERT(!m.qkv_bias && m.ffn_bias);
    CU_ASSERT_EQUAL(parse(OF("Qwen2ForCausalLM")).code, STATUS_OK);
    CU_ASSERT(m.qkv_bias && !m.o_bias && !m.family->qk_norm);
    CU_ASSERT_EQUAL(parse(OF("Qwen3ForCausalLM")).code, STATUS_OK);
    CU_ASSERT(!m.qkv_bias && m.family->qk_norm);
}

/* Returns one digit per layer: 1 if the layer has a sliding window. "1100". */
static const char *windows(void)
{
    static char text[ARCH_LAYERS_MAX + 1];
    for (uint32_t l = 0; l < m.n_layers; l++) text[l] = m.layer_has_window[l] ? '1' : '0';
    text[m.n_layers] = '\0';
    return text;
}

static void windows_are_those_of_the_layers(void)
{
    CU_ASSERT_EQUAL(parse(OF("MistralForCausalLM") ",\"sliding_window\":32").code, STATUS_OK);
    CU_ASSERT_STRING_EQUAL(windows(), "11");
    CU_ASSERT_EQUAL(m.window, 32);
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
    CU_ASSERT_EQUAL(m.window, 0);
    CU_ASSERT_EQUAL(parse(QWEN3 ",\"sliding_window\":32,\"max_window_layers\":1,"
                                "\"use_sliding_window\":true")
                        .code,
                    STATUS_OK); /* all layers have the window, as in transformers */
    CU_ASSERT(m.window == 32 && m.layer_has_window[0] && m.layer_has_window[m.n_layers - 1]);
    refuse(OF("Qwen3ForCausalLM") ",\"layer_types\":[\"sliding_attention\",\"full_attention\"]",
           "layer_types[0]");
    refuse(OF("MistralForCausalLM") ",\"sliding_window\":32,\"layer_types\":["
                                    "\"sliding_attention\",\"full_attention\"]",
           "layer_types[1]");
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
    CU_ASSERT(m.qkv_bias && !m.o_bias && !m.layer_is_moe[0] && m.layer_is_moe[1]);
    CU_ASSERT_EQUAL(m.shared_ffn, 80);
    CU_ASSERT_EQUAL(m.router.kind, ROUTER_SOFTMAX);
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
    CU_ASSERT(m.rotary == 64 && m.head_dim == 128 && m.expert_ffn == 1536 && !m.qk_norm);
    CU_ASSERT(m.qk_norm_whole && m.router.kind == ROUTER_SIGMOID_RENORM);
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
    return !m.layer_is_unrotated[layer];
}

/* SmolLM3: some layers rotate nothing, by a list or by an interval; the head is the embedding
 * unless the file says no. */
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
    refuse(OF("SmolLM3ForCausalLM"), "rope_theta"); /* others assume 2e6 */
    refuse(LLAMA ",\"no_rope_layers\":[0,1]", "no_rope_layers");
    refuse(LLAMA ",\"no_rope_layer_interval\":4", "no_rope_layer_interval");
}

static void biases_of_seed_oss_are_found(void)
{
    CU_ASSERT_EQUAL(parse(OF("SeedOssForCausalLM") ",\"attention_bias\":true").code, STATUS_OK);
    CU_ASSERT(m.qkv_bias && !m.o_bias);
    CU_ASSERT_EQUAL(parse(OF("SeedOssForCausalLM") ",\"attention_bias\":false,"
                                                   "\"attention_out_bias\":true")
                        .code,
                    STATUS_OK);
    CU_ASSERT(!m.qkv_bias && m.o_bias);
    refuse(OF("SeedOssForCausalLM"), "attention_bias"); /* others assume true */
    refuse(LLAMA ",\"attention_out_bias\":true", "attention_out_bias");
}

/* A layer of OLMo-2 has norms of its outputs, and none of its inputs. */
static void norms_stand_where_the_family_has_them(void)
{
    CU_ASSERT_EQUAL(parse(LLAMA).code, STATUS_OK);
    CU_ASSERT_EQUAL(arch_layer_parts(&m, 0) & (PART_IN_NORMS | PART_OUT_NORMS), PART_IN_NORMS);
    CU_ASSERT_EQUAL(parse(OF("Olmo2ForCausalLM") ",\"rope_theta\":5e5").code, STATUS_OK);
    CU_ASSERT_EQUAL(arch_layer_parts(&m, 0) & (PART_IN_NORMS | PART_OUT_NORMS), PART_OUT_NORMS);
    CU_ASSERT(m.qk_norm_whole && !m.qk_norm);
    refuse("\"architectures\":[\"Olmo2ForCausalLM\"],\"hidden_size\":64,\"num_hidden_layers\":2,"
           "\"num_attention_heads\":4,\"intermediate_size\":96,\"vocab_size\":100,"
           "\"max_position_embeddings\":128,\"rope_theta\":5e5",
           "\"rms_norm_eps\": expected a number"); /* others assume 1e-5 */
}

#define EXAONE OF("Exaone4ForCausalLM") ",\"rope_theta\":1e6"
#define OLMO3  OF("Olmo3ForCausalLM") ",\"sliding_window\":32"

/* EXAONE-4: layers without a window rotate nothing, unless no layer has one. */
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
    CU_ASSERT(m.window == 0 && rotates(0) && rotates(1));
    refuse(EXAONE, "sliding_window");
    refuse(EXAONE ",\"sliding_window\":32,\"sliding_window_pattern\":\"LLLG\"",
           "sliding_window_pattern");
    refuse(LLAMA ",\"sliding_window_pattern\":2", "sliding_window_pattern");
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
    refuse(OLMO3 ",\"rope_theta\":1e4", "rope_theta"); /* others take 5e5 in layers with a window */
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
    CU_ASSERT(!m.layer_is_moe[0] && m.layer_is_moe[1] && m.layer_is_moe[2]);
    CU_ASSERT_EQUAL(parse(GLM_LITE ",\"first_k_dense_replace\":1").code, STATUS_OK);
    CU_ASSERT_EQUAL(parse(GLM_LITE ",\"mlp_layer_types\":[\"sparse\",\"dense\",\"sparse\"]").code,
                    STATUS_OK);
    CU_ASSERT(m.layer_is_moe[0] && !m.layer_is_moe[1] && m.layer_is_moe[2]);
    refuse(GLM_LITE ",\"first_k_dense_replace\":2", "first_k_dense_replace");
    refuse(GLM_LITE ",\"moe_layer_freq\":2", "moe_layer_freq");
    refuse(GLM_LITE ",\"mlp_layer_types\":[\"sparse\",\"dense\"]", "mlp_layer_types[2]");
    refuse(LLAMA ",\"mlp_layer_types\":[\"sparse\"]", "mlp_layer_types");
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
    CU_ASSERT(m.window == 128 && m.qkv_bias && m.o_bias && m.swiglu.limit == 7.0f);
    CU_ASSERT(m.swiglu.alpha == 1.702f && m.expert_ffn == 2880 && m.n_chosen == 4);
    CU_ASSERT_EQUAL(m.router.kind, ROUTER_SOFTMAX_RENORM);
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
    CU_ASSERT(m.window == 0 && !m.qkv_bias && m.swiglu.limit == 0 && m.n_eos_ids == 3);
    CU_ASSERT_EQUAL(
        parse("\"architectures\":[\"Qwen2ForCausalLM\"],\"hidden_act\":\"silu\",\"hidden_size\""
              ":3584,\"intermediate_size\":18944,\"max_position_embeddings\":32768,\"max_window"
              "_layers\":28,\"num_attention_heads\":28,\"num_hidden_layers\":28,\"num_key_value"
              "_heads\":4,\"rms_norm_eps\":1e-06,\"rope_theta\":1000000.0,\"sliding_window\":13"
              "1072,\"use_sliding_window\":false,\"tie_word_embeddings\":false,\"vocab_size\":1"
              "52064")
            .code,
        STATUS_OK);
    CU_ASSERT(m.window == 0 && m.qkv_bias && !m.o_bias && m.head_dim == 128);
    CU_ASSERT_EQUAL(
        parse("\"architectures\":[\"MistralForCausalLM\"],\"hidden_act\":\"silu\",\"hidden_size"
              "\":4096,\"intermediate_size\":14336,\"max_position_embeddings\":32768,\"num_atte"
              "ntion_heads\":32,\"num_hidden_layers\":32,\"num_key_value_heads\":8,\"rms_norm_e"
              "ps\":1e-05,\"rope_theta\":10000.0,\"sliding_window\":4096,\"tie_word_embeddings"
              "\":false,\"vocab_size\":32000")
            .code,
        STATUS_OK);
    CU_ASSERT(m.window == 4096 && m.layer_has_window[0] && m.layer_has_window[31]);
    refuse(LLAMA ",\"swiglu_limit\":7.0", "swiglu_limit");
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
    CU_ASSERT(m.chunked && m.window == 24 && m.layer_has_window[2] && !m.layer_has_window[3]);
    CU_ASSERT(m.layer_is_unrotated[3] && m.l2_norm && m.weighs_inputs && m.layer_is_moe[0]);
    CU_ASSERT(m.ffn == 0 && m.expert_ffn == 32 && m.shared_ffn == 32);
    CU_ASSERT(m.tuning.step == 8192 && m.router.kind == ROUTER_SIGMOID_AFTER);
    refuse(LLAMA4, "attention_chunk_size");
    refuse(LLAMA4 ",\"attention_chunk_size\":24,\"sliding_window\":8", "sliding_window");
    refuse(LLAMA4 ",\"attention_chunk_size\":24,\"moe_layers\":[4]", "moe_layers");
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
    CU_ASSERT(m.head_dim == 48 && m.n_kv_heads == 1 && m.query_dim == 40 && m.value_dim == 16);
    CU_ASSERT(m.q_lora == 48 && m.kv_lora == 32 && m.rotary == 16 && m.rope_pairs);
    CU_ASSERT(m.latent_norm_eps == 1e-6f);
    CU_ASSERT(m.shared_ffn == 64 && !m.layer_is_moe[2] && m.layer_is_moe[3]);
    CU_ASSERT(m.may_predict && m.n_predict == 0 && m.layer_is_moe[4] && arch_all_layers(&m) == 4);
    CU_ASSERT_EQUAL(m.router.kind, ROUTER_SIGMOID_RENORM);
    CU_ASSERT(m.router.n_groups == 4 && m.router.n_groups_chosen == 2 && m.router.scale == 2.5f);
    CU_ASSERT_EQUAL(parse(DEEPSEEK ",\"v_head_dim\":16,\"q_lora_rank\":null").code, STATUS_OK);
    CU_ASSERT_EQUAL(m.q_lora, 0);
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
}

#define GEMMA(name) OF(name) ",\"head_dim\":16,\"sliding_window\":32"
#define GEMMA2      GEMMA("Gemma2ForCausalLM")
#define CAPS        ",\"attn_logit_softcapping\":50.0,\"final_logit_softcapping\":30.0"
#define GEMMA3      GEMMA("Gemma3ForCausalLM") ",\"rope_theta\":1e6,\"rope_local_base_freq\":1e4"

static void gemma_caps_scores_and_scales_embeddings(void)
{
    CU_ASSERT_EQUAL(parse(GEMMA2 CAPS ",\"query_pre_attn_scalar\":64").code, STATUS_OK);
    CU_ASSERT(m.gate == GATE_GEGLU && m.softcap == 50 && m.logit_cap == 30 && m.tied);
    CU_ASSERT(m.scale.embed == 8 && m.scale.attention == 0.125f && m.layer_has_window[0]);
    CU_ASSERT_EQUAL(parse(GEMMA2 ",\"attn_logit_softcapping\":null,"
                                 "\"final_logit_softcapping\":null")
                        .code,
                    STATUS_OK);
    CU_ASSERT(m.softcap == 0 && m.logit_cap == 0 && m.scale.attention == 0.0625f);
    refuse(GEMMA2, "attn_logit_softcapping");
    refuse(GEMMA2 CAPS ",\"hidden_activation\":\"gelu\"", "gelu");
    refuse(GEMMA2 CAPS ",\"use_bidirectional_attention\":true", "use_bidirectional_attention");
    CU_ASSERT_EQUAL(parse(GEMMA3).code, STATUS_OK);
    CU_ASSERT(m.local_rope && m.layer_has_window[0] && m.qk_norm && m.softcap == 0);
    CU_ASSERT_EQUAL(parse(GEMMA3 ",\"sliding_window_pattern\":2").code, STATUS_OK);
    CU_ASSERT(m.layer_has_window[0] && !m.layer_has_window[1]);
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
    CU_ASSERT(m.layer_is_moe[0] && !m.layer_is_moe[1] && m.shared_ffn == 32 && m.select_bias);
    CU_ASSERT_EQUAL(m.router.kind, ROUTER_BIASED_RENORM);
    refuse(ERNIE ",\"moe_norm_min\":0.5", "moe_norm_min");
    refuse(ERNIE ",\"use_bias\":true", "use_bias");
#define HUNYUAN OF("HunYuanMoEV1ForCausalLM") ",\"rope_theta\":1e4,\"num_experts\":4"
    CU_ASSERT_EQUAL(parse(HUNYUAN ",\"moe_topk\":[2,2]").code, STATUS_OK);
    CU_ASSERT(m.n_chosen == 2 && m.shared_ffn == 96 && m.qk_norm);
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
    CU_ASSERT(m.router.kind == ROUTER_MIXER && m.router.scale == 2 * 0.01f && m.head_bias);
    CU_ASSERT_EQUAL(arch_final_parts(&m), PART_FINAL | PART_FINAL_BIAS | PART_HEAD_BIAS);
    refuse(PHIMOE ",\"num_experts_per_tok\":1", "num_experts_per_tok");
    refuse(LLAMA ",\"lm_head_bias\":true", "lm_head_bias");
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
    refuse(LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},"
                 "\"rope_parameters\":{\"rope_theta\":1e6}",
           "rope_scaling, rope_parameters");
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
    CU_ASSERT(m.rotary == 16 && m.scale.embed == 1 && m.scale.logits == 1 && !m.qk_norm);
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
    CU_ASSERT(m.router.kind == ROUTER_SOFTMAX && m.router.scale == 16 && m.shared_ffn == 0);
    refuse(DEEPSEEK_V2 ",\"norm_topk_prob\":true", "norm_topk_prob");
    refuse(DEEPSEEK_V2 ",\"norm_topk_prob\":false,\"n_group\":4,\"topk_group\":2", "topk_method");
    CU_ASSERT_EQUAL(parse(DEEPSEEK_V2 ",\"norm_topk_prob\":false,\"n_group\":4,\"topk_group\":2,"
                                      "\"topk_method\":\"greedy\"")
                        .code,
                    STATUS_OK);
    CU_ASSERT_EQUAL(m.router.n_groups, 0);
    refuse(DEEPSEEK_V2, "\"norm_topk_prob\": expected true or false");
    refuse(OF("MistralForCausalLM"), "sliding_window"); /* others assume 4096 */
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
    CU_ASSERT(!m.qkv_bias && !m.o_bias);
    snprintf(body, sizeof body, "%strue", qwen);
    CU_ASSERT_EQUAL(parse(body).code, STATUS_OK);
    CU_ASSERT(m.qkv_bias && !m.o_bias);
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
    CU_ASSERT(m.head_dim == 112 && m.query_dim == 100 && m.value_dim == 100 && m.rotary == 100);
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
    CU_ASSERT(m.head_dim == 48 && m.query_dim == 40 && m.rotary == 40);
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
    CU_add_test(suite, "chunks and weighed inputs are understood",
                chunks_and_weighed_inputs_are_understood);
    CU_add_test(suite, "families are understood", families_are_understood);
    CU_add_test(suite, "biases are those of the family", biases_are_those_of_the_family);
    CU_add_test(suite, "windows are those of the layers", windows_are_those_of_the_layers);
    CU_add_test(suite, "mixtures are understood", mixtures_are_understood);
    CU_add_test(suite, "MiniMax-M2's fields", minimax_fields_are_read);
    CU_add_test(suite, "layers without rotation are found", unrotated_layers_are_found);
    CU_add_test(suite, "Seed-OSS's biases are found", biases_of_seed_oss_are_found);
    CU_add_test(suite, "norms stand where the family has them",
                norms_stand_where_the_family_has_them);
    CU_add_test(suite, "windows and rotation go together", windows_and_rotation_go_together);
    CU_add_test(suite, "a RoPE of layers with a window is found", local_rope_is_found);
    CU_add_test(suite, "dense layers are those of the list", dense_layers_are_those_of_the_list);
    CU_add_test(suite, "published configs are taken", published_configs_are_taken);
    CU_add_test(suite, "latent attention is understood", latent_attention_is_understood);
    CU_add_test(suite, "Gemma caps scores and scales embeddings",
                gemma_caps_scores_and_scales_embeddings);
    CU_add_test(suite, "longrope keeps the original context", longrope_keeps_the_original_context);
    CU_add_test(suite, "experts under other names", experts_under_other_names);
    CU_add_test(suite, "an activation and a router of one family",
                an_activation_and_a_router_of_one_family);
    CU_add_test(suite, "rope_theta is found in both places", rope_theta_is_found_in_both_places);
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

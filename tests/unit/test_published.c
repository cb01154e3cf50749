/* Tests how published checkpoints become shoal's tensors: config.json of the text model in a
 * multimodal checkpoint, names of tensors, and the rows of tensors that hold several. */
#include "checkpoint/convert/fused_experts.h"
#include "checkpoint/convert/published.h"

#include <CUnit/CUnit.h>
#include <string.h>

static struct status text_of(const char *json, struct strbuf *config, bool *is_text)
{
    strbuf_clear(config);
    strbuf_puts(config, json);
    return published_text_config(config, "config.json", is_text);
}

static void a_text_model_gets_a_config_of_its_own(void)
{
    struct strbuf c;
    bool is_text;
    strbuf_init(&c);
    CU_ASSERT_EQUAL(text_of("{\"architectures\":[\"Gemma3ForConditionalGeneration\"],"
                            "\"image_token_index\":7,\"eos_token_id\":[1,106],"
                            "\"text_config\":{\"hidden_size\":64,\"num_hidden_layers\":2,"
                            "\"eos_token_id\":1,\"intermediate_size\":96,\"sliding_window\":16}}",
                            &c, &is_text)
                        .code,
                    STATUS_OK);
    CU_ASSERT(is_text);
    CU_ASSERT_PTR_NOT_NULL(strstr(c.data, "\"architectures\": [\"Gemma3ForCausalLM\"]"));
    CU_ASSERT_PTR_NOT_NULL(strstr(c.data, "\"hidden_size\": 64"));
    CU_ASSERT_PTR_NOT_NULL(strstr(c.data, "\"num_attention_heads\": 8"));
    CU_ASSERT_PTR_NOT_NULL(strstr(c.data, "\"rope_local_base_freq\": 10000.0"));
    CU_ASSERT_PTR_NOT_NULL(strstr(c.data, "\"eos_token_id\": ["));
    CU_ASSERT_PTR_NOT_NULL(strstr(c.data, "106"));
    CU_ASSERT_PTR_NULL(strstr(c.data, "\"eos_token_id\": 1"));
    CU_ASSERT_PTR_NULL(strstr(c.data, "image_token_index"));
    CU_ASSERT_EQUAL(text_of("{\"architectures\":[\"Gemma3ForConditionalGeneration\"],"
                            "\"tie_word_embeddings\":false,\"text_config\":{}}",
                            &c, &is_text)
                        .code,
                    STATUS_INPUT);
    CU_ASSERT_EQUAL(text_of("{\"architectures\":[\"Gemma3ForConditionalGeneration\"],"
                            "\"final_logit_softcapping\":5.0,\"text_config\":{}}",
                            &c, &is_text)
                        .code,
                    STATUS_INPUT);
    CU_ASSERT_EQUAL(text_of("{\"architectures\":[\"LlamaForCausalLM\"]}", &c, &is_text).code,
                    STATUS_OK);
    CU_ASSERT(!is_text && strcmp(c.data, "{\"architectures\":[\"LlamaForCausalLM\"]}") == 0);
    strbuf_fini(&c);
}

static void names_of_an_encoder(void)
{
    static const struct arch_family bert = {0}, roberta = {.pad_positions = true};
    struct arch m = {.family = &bert, .n_layers = 3};
    static const char *const names[][2] = {
        {"embeddings.word_embeddings.weight", "model.embed_tokens.weight"},
        {"bert.embeddings.LayerNorm.gamma", "model.layers.0.input_layernorm.weight"},
        {"bert.encoder.layer.1.output.LayerNorm.beta", "model.layers.2.input_layernorm.bias"},
        {"encoder.layer.2.output.LayerNorm.bias", "model.norm.bias"},
        {"encoder.layer.12.attention.output.LayerNorm.weight",
         "model.layers.12.post_attention_layernorm.weight"},
        {"roberta.encoder.layer.0.attention.output.dense.bias",
         "model.layers.0.self_attn.o_proj.bias"},
        {"encoder.layer.0.output.dense.weight", "model.layers.0.mlp.down_proj.weight"},
        {"encoder.layer.x.output.dense.weight", "encoder.layer.x.output.dense.weight"},
        {"bert.pooler.dense.weight", "score.dense.weight"},
        {"classifier.weight", "score.weight"},
        {"classifier.dense.bias", "score.dense.bias"},
        {"classifier.out_proj.bias", "score.bias"},
        {"encoder.layer.0.crossattention.self.key.bias",
         "encoder.layer.0.crossattention.self.key.bias"}};
    char name[CKPT_NAME_MAX];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        published_encoder_name(&m, names[i][0], name, sizeof name);
        CU_ASSERT_STRING_EQUAL(name, names[i][1]);
    }
    m.family =
        &roberta; /* a RoBERTa's head has a dense layer of its own and does not use the pooler */
    published_encoder_name(&m, "roberta.pooler.dense.weight", name, sizeof name);
    CU_ASSERT_STRING_EQUAL(name, "pooler.dense.weight");
    CU_ASSERT(published_encoder_is_unread("pooler.dense.weight", true));
    CU_ASSERT(published_encoder_is_unread("decoder.bias", true));
    CU_ASSERT(published_encoder_is_unread("score.dense.weight", false));
    CU_ASSERT(!published_encoder_is_unread("score.dense.weight", true));
    CU_ASSERT(!published_encoder_is_unread("model.norm.bias", false));
}

static void names_of_modern_bert(void)
{
    static const struct arch_family modern = {.encoder = true, .modern = true};
    const struct arch m = {.family = &modern, .n_layers = 3};
    static const char *const names[][2] = {
        {"embeddings.tok_embeddings.weight", "model.embed_tokens.weight"},
        {"model.embeddings.norm.weight", "model.layers.0.input_layernorm.weight"},
        {"layers.2.attn_norm.bias", "model.layers.2.input_layernorm.bias"},
        {"model.layers.0.attn.q_proj.weight", "model.layers.0.self_attn.q_proj.weight"},
        {"layers.11.attn.Wo.bias", "model.layers.11.self_attn.o_proj.bias"},
        {"layers.0.mlp_norm.weight", "model.layers.0.post_attention_layernorm.weight"},
        {"layers.1.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight"},
        {"layers.1.mlp.Wo.weight", "model.layers.1.mlp.down_proj.weight"},
        {"model.final_norm.weight", "model.norm.weight"},
        {"head.dense.weight", "score.dense.weight"},
        {"classifier.bias", "score.bias"},
        {"layers.x.mlp.Wo.weight", "layers.x.mlp.Wo.weight"}};
    char name[CKPT_NAME_MAX];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        published_encoder_name(&m, names[i][0], name, sizeof name);
        CU_ASSERT_STRING_EQUAL(name, names[i][1]);
    }
}

static void names_of_a_multimodal_checkpoint(void)
{
    char name[CKPT_NAME_MAX];
    CU_ASSERT(published_is_vision("vision_tower.encoder.layers.0.layer_norm1.bias"));
    CU_ASSERT(published_is_vision("model.multi_modal_projector.mm_soft_emb_norm.weight"));
    CU_ASSERT(published_is_vision("vit_large_projector.weight"));
    CU_ASSERT(!published_is_vision("language_model.model.norm.weight"));
    published_text_name("language_model.model.norm.weight", name, sizeof name);
    CU_ASSERT_STRING_EQUAL(name, "model.norm.weight");
    published_text_name("model.language_model.norm.weight", name, sizeof name);
    CU_ASSERT_STRING_EQUAL(name, "model.norm.weight");
}

#define SIZES                                                                                      \
    "\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,"                        \
    "\"num_key_value_heads\":2,\"intermediate_size\":96,\"vocab_size\":100,"                       \
    "\"max_position_embeddings\":128,\"rms_norm_eps\":1e-5,\"rope_theta\":1e4,"                    \
    "\"partial_rotary_factor\":0.5"

static struct published *open_config(const char *json)
{
    struct strbuf c;
    struct published *p = NULL;
    strbuf_init(&c);
    strbuf_puts(&c, json);
    CU_ASSERT_EQUAL(published_open(&c, &p).code, STATUS_OK);
    strbuf_fini(&c);
    return p;
}

static void rows_of_a_fused_linear(void)
{
    struct published *p =
        open_config("{\"architectures\":[\"Phi3ForCausalLM\"],\"sliding_window\":null," SIZES "}");
    struct published_part parts[PUBLISHED_PARTS_MAX];
    const uint64_t qkv[2] = {128, 64}, wrong[2] = {120, 64}, ffn[2] = {192, 64};
    size_t n;
    CU_ASSERT_EQUAL(
        published_parts(p, "model.layers.1.self_attn.qkv_proj.weight", 2, qkv, parts, &n).code,
        STATUS_OK);
    CU_ASSERT(n == 3 && parts[0].dims[0] == 64 && parts[1].dims[0] == 32 && parts[2].row0 == 96);
    CU_ASSERT_STRING_EQUAL(parts[2].name, "model.layers.1.self_attn.v_proj.weight");
    CU_ASSERT_EQUAL(
        published_parts(p, "model.layers.1.self_attn.qkv_proj.weight", 2, wrong, parts, &n).code,
        STATUS_INPUT);
    CU_ASSERT_EQUAL(
        published_parts(p, "model.layers.0.mlp.gate_up_proj.weight", 2, ffn, parts, &n).code,
        STATUS_OK);
    CU_ASSERT(n == 2 && parts[1].row0 == 96 && parts[1].dims[0] == 96);
    CU_ASSERT(published_splits(p, "model.layers.0.mlp.gate_up_proj.weight"));
    CU_ASSERT(!published_splits(p, "model.layers.0.mlp.down_proj.weight"));
    published_close(&p);
}

/* Quantized rows are read with a step, so gate and up must alternate. */
static void quantized_experts_must_alternate(void)
{
    static const char *const configs[] = {"{\"architectures\":[\"GptOssForCausalLM\"]}",
                                          "{\"architectures\":[\"Mistral4ForCausalLM\"]}"};
    static const char name[] = "model.layers.0.mlp.experts.gate_up_proj.weight";
    const uint64_t dims[3] = {2, 8, 32};
    for (size_t i = 0; i < 2; i++) {
        struct fused_part parts[FUSED_PARTS_MAX];
        struct js_doc *doc = NULL;
        size_t n;
        CU_ASSERT_EQUAL_FATAL(js_parse(configs[i], strlen(configs[i]), "c", &doc).code, STATUS_OK);
        const struct status st = fused_experts_parts(js_root(doc), name, 3, dims, true, parts, &n);
        CU_ASSERT_EQUAL(st.code, i == 0 ? STATUS_OK : STATUS_INPUT);
        CU_ASSERT(i > 0 || (n == 2 && parts[1].first == 1 && parts[1].step == 2));
        CU_ASSERT(i == 0 || strstr(st.text, name) != NULL);
        js_destroy(&doc);
    }
}

static void pairs_and_norms(void)
{
    struct published *p = open_config("{\"architectures\":[\"Glm4ForCausalLM\"],\"head_dim\":16,"
                                      "\"attention_bias\":true," SIZES "}");
    struct published_part parts[PUBLISHED_PARTS_MAX];
    const uint64_t q[2] = {64, 64}, one[1] = {64};
    size_t n;
    CU_ASSERT_EQUAL(
        published_parts(p, "model.layers.0.self_attn.q_proj.weight", 2, q, parts, &n).code,
        STATUS_OK);
    CU_ASSERT(n == 1 && parts[0].head_rows == 16 && parts[0].rotated == 8);
    CU_ASSERT_EQUAL(
        published_parts(p, "model.layers.0.self_attn.v_proj.weight", 2, q, parts, &n).code,
        STATUS_OK);
    CU_ASSERT(n == 1 && parts[0].head_rows == 0 && !parts[0].adds_one);
    published_close(&p);
    p = open_config("{\"architectures\":[\"Gemma2ForCausalLM\"],\"head_dim\":16,"
                    "\"attn_logit_softcapping\":null,\"final_logit_softcapping\":null,"
                    "\"sliding_window\":16,\"hidden_size\":64,\"num_hidden_layers\":2,"
                    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"vocab_size\":100,"
                    "\"intermediate_size\":96,\"max_position_embeddings\":128}");
    CU_ASSERT_EQUAL(published_parts(p, "model.norm.weight", 1, one, parts, &n).code, STATUS_OK);
    CU_ASSERT(n == 1 && parts[0].adds_one);
    published_close(&p);
}

/* A layer of LongCat-Flash is two of shoal's. */
static void layers_in_pairs(void)
{
    static const char *const names[][2] = {
        {"model.layers.3.self_attn.0.q_a_proj.weight", "model.layers.6.self_attn.q_a_proj.weight"},
        {"model.layers.3.self_attn.1.q_a_proj.weight", "model.layers.7.self_attn.q_a_proj.weight"},
        {"model.layers.12.mlps.1.up_proj.weight", "model.layers.25.mlp.up_proj.weight"},
        {"model.layers.0.input_layernorm.1.weight", "model.layers.1.input_layernorm.weight"},
        {"model.layers.1.post_attention_layernorm.0.weight",
         "model.layers.2.post_attention_layernorm.weight"},
        {"model.layers.1.mlp.experts.1.up_proj.weight",
         "model.layers.2.mlp.experts.1.up_proj.weight"},
        {"model.layers.1.mlp.router.classifier.weight",
         "model.layers.2.mlp.router.classifier.weight"},
        {"model.layers.1.self_attn.2.q_a_proj.weight",
         "model.layers.2.self_attn.2.q_a_proj.weight"},
        {"model.norm.weight", "model.norm.weight"},
    };
    struct published *p = open_config(
        "{\"architectures\":[\"LongcatFlashForCausalLM\"],\"hidden_size\":64,\"num_layers\":20,"
        "\"num_attention_heads\":4,\"ffn_hidden_size\":96,\"expert_ffn_hidden_size\":32,"
        "\"n_routed_experts\":4,\"zero_expert_num\":2,\"moe_topk\":2,\"q_lora_rank\":32,"
        "\"kv_lora_rank\":32,\"qk_nope_head_dim\":16,\"qk_rope_head_dim\":16,\"v_head_dim\":16,"
        "\"vocab_size\":100,\"max_position_embeddings\":128,\"rms_norm_eps\":1e-5,"
        "\"rope_theta\":1e4,\"routed_scaling_factor\":6.0}");
    struct published_part parts[PUBLISHED_PARTS_MAX];
    const uint64_t dims[2] = {64, 32};
    size_t n;
    CU_ASSERT(published_only_renames(p) && !published_only_renames(NULL));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        CU_ASSERT_EQUAL(published_parts(p, names[i][0], 2, dims, parts, &n).code, STATUS_OK);
        CU_ASSERT(n == 1 && parts[0].dims[0] == 64 && parts[0].dims[1] == 32);
        CU_ASSERT_STRING_EQUAL(parts[0].name, names[i][1]);
    }
    published_close(&p);
}

static void recurrent_layers_with_attentions_names(void)
{
    static const char *const names[][2] = {
        {"model.layers.0.self_attn.q_proj.weight", "model.layers.0.linear_attn.q_proj.weight"},
        {"model.layers.0.self_attn.o_proj.weight", "model.layers.0.linear_attn.out_proj.weight"},
        {"model.layers.0.self_attn.o_norm.weight", "model.layers.0.linear_attn.norm.weight"},
        {"model.layers.0.self_attn.A_log", "model.layers.0.linear_attn.A_log"},
        {"model.layers.0.block_sparse_moe.up_proj.weight", "model.layers.0.mlp.up_proj.weight"},
        {"model.layers.1.block_sparse_moe.shared_experts.up_proj.weight",
         "model.layers.1.block_sparse_moe.shared_experts.up_proj.weight"},
        {"model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn.q_proj.weight"},
        {"model.layers.9.self_attn.q_proj.weight", "model.layers.9.self_attn.q_proj.weight"}};
    const uint64_t dims[4] = {1, 1, 3, 1};
    struct published_part parts[PUBLISHED_PARTS_MAX];
    struct published *p = open_config(
        "{\"architectures\":[\"KimiLinearForCausalLM\"],\"hidden_size\":64,"
        "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"intermediate_size\":96,"
        "\"vocab_size\":100,\"model_max_length\":128,\"rms_norm_eps\":1e-5,\"kv_lora_rank\":32,"
        "\"qk_rope_head_dim\":16,\"qk_nope_head_dim\":16,\"v_head_dim\":16,\"num_experts\":4,"
        "\"num_experts_per_token\":2,\"moe_intermediate_size\":16,\"num_shared_experts\":1,"
        "\"moe_renormalize\":true,\"routed_scaling_factor\":1.0,\"num_expert_group\":1,"
        "\"topk_group\":1,\"linear_attn_config\":{\"full_attn_layers\":[2],\"kda_layers\":[1],"
        "\"head_dim\":16,\"num_heads\":3,\"short_conv_kernel_size\":4}}");
    size_t n;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        CU_ASSERT_EQUAL(published_parts(p, names[i][0], 4, dims, parts, &n).code, STATUS_OK);
        CU_ASSERT_EQUAL_FATAL(n, 1);
        CU_ASSERT_STRING_EQUAL(parts[0].name, names[i][1]);
        CU_ASSERT_EQUAL(parts[0].n_dims, strstr(names[i][0], "A_log") != NULL ? 1 : 4);
        CU_ASSERT_EQUAL(parts[0].dims[0], strstr(names[i][0], "A_log") != NULL ? 3 : 1);
    }
    CU_ASSERT(published_only_renames(p));
    published_close(&p);
}

static void names_of_ling(void)
{
    static const char *const names[][2] = {
        {"model.word_embeddings.weight", "model.embed_tokens.weight"},
        {"model.layers.0.attention.f_proj.weight", "model.layers.0.linear_attn.f_proj.weight"},
        {"model.layers.0.attention.dense.weight", "model.layers.0.linear_attn.out_proj.weight"},
        {"model.layers.0.attention.o_proj.weight", "model.layers.0.linear_attn.out_proj.weight"},
        {"model.layers.0.attention.o_norm.weight", "model.layers.0.linear_attn.norm.weight"},
        {"model.layers.0.attention.A_log", "model.layers.0.linear_attn.A_log"},
        {"model.layers.1.attention.dense.weight", "model.layers.1.self_attn.o_proj.weight"},
        {"model.layers.1.attention.g_proj.weight", "model.layers.1.self_attn.g_proj.weight"},
        {"model.layers.1.mlp.gate.expert_bias", "model.layers.1.mlp.gate.e_score_correction_bias"},
        {"model.layers.1.post_attention_layernorm.weight",
         "model.layers.1.post_attention_layernorm.weight"}};
    const uint64_t dims[4] = {1, 1, 3, 1};
    struct published_part parts[PUBLISHED_PARTS_MAX];
    struct published *p = open_config(
        "{\"architectures\":[\"BailingMoeV3ForCausalLM\"],\"hidden_size\":64,"
        "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"intermediate_size\":96,"
        "\"vocab_size\":100,\"max_position_embeddings\":128,\"rms_norm_eps\":1e-6,"
        "\"rope_theta\":6e6,\"kv_lora_rank\":32,\"qk_rope_head_dim\":16,"
        "\"qk_nope_head_dim\":16,\"v_head_dim\":16,\"head_dim\":16,\"num_experts\":4,"
        "\"num_experts_per_tok\":2,\"moe_intermediate_size\":16,\"num_shared_experts\":1,"
        "\"norm_topk_prob\":true,\"routed_scaling_factor\":2.5,\"n_group\":1,"
        "\"topk_group\":1,\"first_k_dense_replace\":1,\"layer_group_size\":2,"
        "\"short_conv_kernel_size\":4,\"kda_safe_gate\":true,\"kda_lower_bound\":-5}");
    size_t n;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        CU_ASSERT_EQUAL(published_parts(p, names[i][0], 4, dims, parts, &n).code, STATUS_OK);
        CU_ASSERT_EQUAL_FATAL(n, 1);
        CU_ASSERT_STRING_EQUAL(parts[0].name, names[i][1]);
        CU_ASSERT_EQUAL(parts[0].n_dims, strstr(names[i][0], "A_log") != NULL ? 1 : 4);
    }
    CU_ASSERT(published_only_renames(p));
    published_close(&p);
}

static void names_of_deepseek_v4(void)
{
    static const char *const names[][2] = {
        {"embed.weight", "model.embed_tokens.weight"},
        {"head.weight", "lm_head.weight"},
        {"norm.weight", "model.norm.weight"},
        {"model.norm.weight", "model.norm.weight"},
        {"hc_head_scale", "model.hc_head.hc_scale"},
        {"model.hc_head.hc_fn", "model.hc_head.hc_fn"},
        {"layers.1.attn.wq_b.weight", "model.layers.1.self_attn.q_b_proj.weight"},
        {"layers.1.attn.kv_norm.weight", "model.layers.1.self_attn.kv_norm.weight"},
        {"model.layers.1.attn.norm.weight", "model.layers.1.self_attn.kv_norm.weight"},
        {"model.layers.1.attn_norm.weight", "model.layers.1.input_layernorm.weight"},
        {"layers.1.attn.attn_sink", "model.layers.1.self_attn.sinks"},
        {"layers.0.hc_ffn_base", "model.layers.0.ffn_hc.base"},
        {"layers.0.attn.compressor.ape", "model.layers.0.self_attn.compressor.position_bias"},
        {"layers.0.attn.compressor.norm.weight", "model.layers.0.self_attn.compressor.norm.weight"},
        {"layers.0.attn.indexer.compressor.wgate.weight",
         "model.layers.0.self_attn.indexer.gate_proj.weight"},
        {"layers.0.attn.indexer.wq_b.weight", "model.layers.0.self_attn.indexer.wq_b.weight"},
        {"layers.0.ffn.gate.tid2eid", "model.layers.0.mlp.gate.tid2eid"},
        {"layers.0.ffn.gate.bias", "model.layers.0.mlp.gate.e_score_correction_bias"},
        {"layers.0.ffn.experts.11.w3.weight", "model.layers.0.mlp.experts.11.up_proj.weight"},
        {"mtp.0.norm.weight", "mtp.0.norm.weight"}};
    const uint64_t dims[2] = {1, 1};
    struct published_part parts[PUBLISHED_PARTS_MAX];
    struct published *p = open_config(
        "{\"architectures\":[\"DeepseekV4ForCausalLM\"],\"hidden_size\":64,"
        "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":1,"
        "\"vocab_size\":100,\"max_position_embeddings\":128,\"rms_norm_eps\":1e-6,"
        "\"rope_theta\":1e4,\"compress_rope_theta\":1e5,\"q_lora_rank\":32,"
        "\"qk_rope_head_dim\":16,\"head_dim\":16,\"n_routed_experts\":4,"
        "\"num_experts_per_tok\":2,\"moe_intermediate_size\":16,\"n_shared_experts\":1,"
        "\"norm_topk_prob\":true,\"routed_scaling_factor\":2.5,\"compress_ratios\":[0,4],"
        "\"num_hash_layers\":1,\"o_groups\":2,\"o_lora_rank\":16,\"index_topk\":8,"
        "\"index_n_heads\":2,\"index_head_dim\":16,\"hc_mult\":4,\"hc_eps\":1e-6,"
        "\"hc_sinkhorn_iters\":20,\"sliding_window\":16,\"swiglu_limit\":10}");
    size_t n;
    CU_ASSERT_PTR_NOT_NULL_FATAL(p);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        CU_ASSERT_EQUAL(published_parts(p, names[i][0], 2, dims, parts, &n).code, STATUS_OK);
        CU_ASSERT_EQUAL_FATAL(n, 1);
        CU_ASSERT_STRING_EQUAL(parts[0].name, names[i][1]);
    }
    CU_ASSERT(published_only_renames(p));
    published_close(&p);
}

void suite_published(CU_pSuite suite);
void suite_published(CU_pSuite suite)
{
    CU_add_test(suite, "a text model gets a config of its own",
                a_text_model_gets_a_config_of_its_own);
    CU_add_test(suite, "names of a multimodal checkpoint", names_of_a_multimodal_checkpoint);
    CU_add_test(suite, "names of an encoder", names_of_an_encoder);
    CU_add_test(suite, "names of ModernBERT", names_of_modern_bert);
    CU_add_test(suite, "rows of a fused linear", rows_of_a_fused_linear);
    CU_add_test(suite, "quantized experts must alternate", quantized_experts_must_alternate);
    CU_add_test(suite, "pairs and norms", pairs_and_norms);
    CU_add_test(suite, "layers in pairs", layers_in_pairs);
    CU_add_test(suite, "names of Ling 3", names_of_ling);
    CU_add_test(suite, "names of DeepSeek-V4", names_of_deepseek_v4);
    CU_add_test(suite, "recurrent layers with attention's names",
                recurrent_layers_with_attentions_names);
}

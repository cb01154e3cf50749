/* Families with sparse attention: the published configs of DeepSeek-V3.2-Exp and GLM-5, what their
 * index adds to a KV block, and configs that are refused. */
#include "arch/arch_tensors.h"
#include "attention/kv_pool.h"
#include "parallel/layout/layout.h"
#include "util_arch.h"

#include <stdlib.h>

/* The values of the published config.json files; fields that change nothing are left out. */
#define DEEPSEEK                                                                                   \
    "\"architectures\":[\"DeepseekV32ForCausalLM\"],\"attention_bias\":false,"                     \
    "\"first_k_dense_replace\":3,\"hidden_act\":\"silu\",\"hidden_size\":7168,"                    \
    "\"index_head_dim\":128,\"index_n_heads\":64,\"index_topk\":2048,"                             \
    "\"intermediate_size\":18432,\"kv_lora_rank\":512,\"max_position_embeddings\":163840,"         \
    "\"moe_intermediate_size\":2048,\"moe_layer_freq\":1,\"n_group\":8,\"n_routed_experts\":256,"  \
    "\"n_shared_experts\":1,\"norm_topk_prob\":true,\"num_attention_heads\":128,"                  \
    "\"num_experts_per_tok\":8,\"num_hidden_layers\":61,\"num_key_value_heads\":128,"              \
    "\"num_nextn_predict_layers\":1,\"q_lora_rank\":1536,\"qk_nope_head_dim\":128,"                \
    "\"qk_rope_head_dim\":64,\"rms_norm_eps\":1e-06,\"rope_scaling\":{\"beta_fast\":32,"           \
    "\"beta_slow\":1,\"factor\":40,\"mscale\":1.0,\"mscale_all_dim\":1.0,"                         \
    "\"original_max_position_embeddings\":4096,\"type\":\"yarn\"},\"rope_theta\":10000,"           \
    "\"routed_scaling_factor\":2.5,\"scoring_func\":\"sigmoid\",\"topk_group\":4,"                 \
    "\"topk_method\":\"noaux_tc\",\"v_head_dim\":128,\"vocab_size\":129280"
#define GLM                                                                                        \
    "\"architectures\":[\"GlmMoeDsaForCausalLM\"],\"attention_bias\":false,"                       \
    "\"first_k_dense_replace\":3,\"hidden_act\":\"silu\",\"head_dim\":64,\"hidden_size\":6144,"    \
    "\"index_head_dim\":128,\"index_n_heads\":32,\"index_topk\":2048,"                             \
    "\"indexer_rope_interleave\":true,\"intermediate_size\":12288,\"kv_lora_rank\":512,"           \
    "\"max_position_embeddings\":202752,\"moe_intermediate_size\":2048,\"moe_layer_freq\":1,"      \
    "\"n_group\":1,\"n_routed_experts\":256,\"n_shared_experts\":1,\"norm_topk_prob\":true,"       \
    "\"num_attention_heads\":64,\"num_experts_per_tok\":8,\"num_hidden_layers\":78,"               \
    "\"num_key_value_heads\":64,\"num_nextn_predict_layers\":1,\"q_lora_rank\":2048,"              \
    "\"qk_nope_head_dim\":192,\"qk_rope_head_dim\":64,\"rms_norm_eps\":1e-05,"                     \
    "\"rope_parameters\":{\"rope_theta\":1000000,\"rope_type\":\"default\"},"                      \
    "\"routed_scaling_factor\":2.5,\"scoring_func\":\"sigmoid\",\"topk_group\":1,"                 \
    "\"topk_method\":\"noaux_tc\",\"v_head_dim\":256,\"vocab_size\":154880"

static void deepseek_has_its_sizes(void)
{
    CU_ASSERT_EQUAL_FATAL(parse(DEEPSEEK).code, STATUS_OK);
    CU_ASSERT(m.index.n_heads == 64 && m.index.dim == 128 && m.index.n_chosen == 2048);
    CU_ASSERT(!m.index.pairs && m.rope_pairs);
    CU_ASSERT(!m.layer.is_moe[2] && m.layer.is_moe[3] && m.layer.is_moe[60]);
    CU_ASSERT_EQUAL(arch_dim_size(&m, DIM_INDEX_Q), 64 * 128);
    /* 671 billion parameters of DeepSeek-V3, and 0.85 billion of the indices */
    CU_ASSERT(arch_params(&m) > 671.8e9 && arch_params(&m) < 672.0e9);
}

static void glm_has_its_sizes(void)
{
    CU_ASSERT_EQUAL_FATAL(parse(GLM).code, STATUS_OK);
    CU_ASSERT(m.index.n_heads == 32 && m.index.pairs && m.moe.router.n_groups <= 1);
    CU_ASSERT(arch_params(&m) > 743e9 && arch_params(&m) < 745e9);
    CU_ASSERT_EQUAL(parse(GLM ",\"mlp_layer_types\":[\"dense\"]").code, STATUS_INPUT);
}

/* A layout counts the bytes that the pool allocates. */
static void index_keys_lie_in_the_blocks(void)
{
    struct layout_model *model = calloc(1, sizeof *model);
    struct layout *l = calloc(1, sizeof *l);
    CU_ASSERT_EQUAL_FATAL(parse(DEEPSEEK).code, STATUS_OK);
    layout_describe(&m, 2, model);
    const struct layout_flags flags = {.tp = 2, .pp = 1, .ep = 2, .dp = 1};
    CU_ASSERT_EQUAL_FATAL(layout_build(model, 2, &flags, l).code, STATUS_OK);
    static const enum dtype types[] = {DTYPE_F16, DTYPE_I8};
    for (int i = 0; i < 2; i++) {
        const struct layout_memory found =
            layout_memory_of(l, layout_place_of(l, 0), kv_layout(types[i]), 256);
        CU_ASSERT_EQUAL(found.kv_block_bytes, kv_pool_block_bytes(61, 1, 576, types[i], true) +
                                                  61 * kv_pool_index_bytes(types[i], 128));
    }
    CU_ASSERT_EQUAL(kv_pool_block_bytes(1, 1, 576, DTYPE_F16, true), 64 * 576 * 2);
    CU_ASSERT_EQUAL(kv_pool_index_bytes(DTYPE_F16, 128), 64 * 128 * 2);
    free(model);
    free(l);
}

#define TINY(fields)                                                                               \
    "\"architectures\":[\"GlmMoeDsaForCausalLM\"],\"first_k_dense_replace\":1,\"hidden_size\":64," \
    "\"index_head_dim\":32,\"index_n_heads\":4,\"index_topk\":8,\"intermediate_size\":96,"         \
    "\"kv_lora_rank\":32,\"max_position_embeddings\":128,\"moe_intermediate_size\":32,"            \
    "\"n_routed_experts\":4,\"n_shared_experts\":1,\"norm_topk_prob\":true,"                       \
    "\"num_attention_heads\":4,\"num_experts_per_tok\":2,\"num_hidden_layers\":6,"                 \
    "\"q_lora_rank\":32,\"qk_nope_head_dim\":16,\"qk_rope_head_dim\":16,\"rms_norm_eps\":1e-5,"    \
    "\"rope_theta\":1e4,\"routed_scaling_factor\":1.0,\"v_head_dim\":16,\"vocab_size\":100" fields

/* Returns one letter for each layer: S if it reuses positions, else F. */
static const char *sharing(const char *config)
{
    static char letters[ARCH_LAYERS_MAX + 1];
    CU_ASSERT_EQUAL_FATAL(parse(config).code, STATUS_OK);
    for (uint32_t l = 0; l < m.n_layers; l++) letters[l] = m.layer.shares_index[l] ? 'S' : 'F';
    letters[m.n_layers] = '\0';
    return letters;
}

static void layers_may_share_an_index(void)
{
    static const char list[] = "[\"full\",\"shared\",\"full\",\"full\",\"shared\",\"shared\"]";
    char text[2048];
    CU_ASSERT_STRING_EQUAL(sharing(TINY("")), "FFFFFF");
    CU_ASSERT_STRING_EQUAL(sharing(TINY(",\"index_topk_freq\":3")), "FFSSFS");
    CU_ASSERT_STRING_EQUAL(sharing(TINY(",\"index_topk_freq\":2,\"index_skip_topk_offset\":4")),
                           "FFFFSF");
    CU_ASSERT_STRING_EQUAL(sharing(TINY(",\"index_topk_pattern\":\"FSSFSF\"")), "FSSFSF");
    snprintf(text, sizeof text, TINY(",\"index_topk_pattern\":\"F\",\"indexer_types\":%s"), list);
    CU_ASSERT_STRING_EQUAL(sharing(text), "FSFFSS");
    CU_ASSERT((arch_layer_parts(&m, 0) & PART_INDEX) && !(arch_layer_parts(&m, 1) & PART_INDEX));
    refuse(TINY(",\"index_topk_pattern\":\"SFFFFF\""), "index_topk_pattern: layer 0");
    refuse(TINY(",\"index_topk_freq\":2,\"index_skip_topk_offset\":0"),
           "index_skip_topk_offset: layer 0");
    refuse(TINY(",\"index_topk_pattern\":\"FFFFFX\""), "index_topk_pattern");
}

/* A layer that reuses positions is in the stage of the layer that has the index. */
static void stages_begin_with_an_index(void)
{
    struct layout_model *model = calloc(1, sizeof *model);
    struct layout *l = calloc(1, sizeof *l);
    sharing(TINY(",\"index_topk_pattern\":\"FSSSSF\""));
    layout_describe(&m, 2, model);
    struct layout_flags flags = {.tp = 1, .pp = 2, .ep = 1, .dp = 1};
    CU_ASSERT_EQUAL_FATAL(layout_build(model, 2, &flags, l).code, STATUS_OK);
    CU_ASSERT(layout_layers(l, 0).end == 5 && layout_layers(l, 1).end == 6);
    flags.pp = 3;
    const struct status st = layout_build(model, 3, &flags, l);
    CU_ASSERT(st.code == STATUS_USAGE && strstr(st.text, "at most 2") != NULL);
    CU_ASSERT(strstr(st.text, "6 layers, of which 4 continue") != NULL);
    free(model);
    free(l);
}

/* Layers that reuse positions have no index keys in a KV block. */
static void only_an_index_has_keys(void)
{
    struct layout_model *model = calloc(1, sizeof *model);
    struct layout *l = calloc(1, sizeof *l);
    sharing(TINY(",\"index_topk_pattern\":\"FSSSSF\""));
    layout_describe(&m, 2, model);
    CU_ASSERT_EQUAL_FATAL(layout_build(model, 1, &(struct layout_flags){0}, l).code, STATUS_OK);
    const struct layout_memory found =
        layout_memory_of(l, layout_place_of(l, 0), kv_layout(DTYPE_F16), 64);
    CU_ASSERT_EQUAL(found.kv_block_bytes, 64 * (6 * (32 + 16) + 2 * 32) * 2);
    free(model);
    free(l);
}

static void other_configs_are_refused(void)
{
    refuse(GLM ",\"index_topk_pattern\":\"FS\"", "index_topk_pattern");
    refuse(GLM ",\"indexer_types\":[\"full\"]", "indexer_types");
    refuse(GLM ",\"layer_types\":[\"full_attention\"]", "layer_types");
    refuse(GLM ",\"rope_interleave\":false", "rope_interleave");
    refuse(DEEPSEEK ",\"index_topk_freq\":4", "index_topk_freq");
    refuse(DEEPSEEK ",\"indexer_types\":[\"shared\"]", "indexer_types");
    refuse(DEEPSEEK ",\"moe_layer_freq\":2", "moe_layer_freq");
    refuse(DEEPSEEK ",\"index_skip_topk_offset\":3", "index_skip_topk_offset");
    refuse(LLAMA ",\"index_skip_topk_offset\":3", "index_skip_topk_offset");
    refuse(LLAMA ",\"index_topk\":4", "index_topk");
    refuse(GLM ",\"indexer_types\":7", "indexer_types");
    CU_ASSERT_EQUAL(parse(GLM ",\"index_topk_freq\":1,\"index_skip_topk_offset\":3").code,
                    STATUS_OK);
}

/* Returns GLM's config with `wrong` in the place of `right`. */
static const char *glm_with(const char *right, const char *wrong)
{
    static const char glm[] = GLM;
    static char text[2048];
    const char *at = strstr(glm, right);
    CU_ASSERT_PTR_NOT_NULL_FATAL(at);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - glm), glm, wrong, at + strlen(right));
    return text;
}

static void sizes_must_fit(void)
{
    refuse(glm_with("\"index_head_dim\":128", "\"index_head_dim\":40"), "index_head_dim");
    refuse(glm_with("\"index_head_dim\":128", "\"index_head_dim\":16"), "index_head_dim");
    refuse(glm_with("\"q_lora_rank\":2048", "\"q_lora_rank\":null"), "q_lora_rank");
}

/* index_topk is cut to the context, because no row sees more positions. */
static void a_choice_is_within_the_context(void)
{
    CU_ASSERT_EQUAL_FATAL(parse(glm_with("\"index_topk\":2048", "\"index_topk\":202751")).code,
                          STATUS_OK);
    CU_ASSERT_EQUAL(m.index.n_chosen, 202751);
    CU_ASSERT_EQUAL_FATAL(parse(glm_with("\"index_topk\":2048", "\"index_topk\":16777216")).code,
                          STATUS_OK);
    CU_ASSERT_EQUAL(m.index.n_chosen, 202752);
    refuse(glm_with("\"index_topk\":2048", "\"index_topk\":16777217"), "index_topk");
}

void suite_arch_index(CU_pSuite suite);
void suite_arch_index(CU_pSuite suite)
{
    CU_add_test(suite, "deepseek has its sizes", deepseek_has_its_sizes);
    CU_add_test(suite, "glm has its sizes", glm_has_its_sizes);
    CU_add_test(suite, "index keys lie in the blocks", index_keys_lie_in_the_blocks);
    CU_add_test(suite, "layers may share an index", layers_may_share_an_index);
    CU_add_test(suite, "stages begin with an index", stages_begin_with_an_index);
    CU_add_test(suite, "only an index has keys", only_an_index_has_keys);
    CU_add_test(suite, "other configs are refused", other_configs_are_refused);
    CU_add_test(suite, "sizes must fit", sizes_must_fit);
    CU_add_test(suite, "a choice is within the context", a_choice_is_within_the_context);
}

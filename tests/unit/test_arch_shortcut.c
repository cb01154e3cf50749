/* LongCat-Flash: the sizes of the published model, layers that come in pairs, and configs that are
 * refused. */
#include "arch/arch_tensors.h"
#include "parallel/layout/layout.h"
#include "util_arch.h"

#include <math.h>
#include <stdlib.h>

/* The values of LongCat-Flash-Chat's config.json; fields that change nothing are left out. */
#define LONGCAT(fields)                                                                            \
    "\"architectures\":[\"LongcatFlashForCausalLM\"],\"attention_bias\":false,"                    \
    "\"attention_method\":\"MLA\",\"expert_ffn_hidden_size\":2048,\"ffn_hidden_size\":12288,"      \
    "\"hidden_size\":6144,\"kv_lora_rank\":512,\"max_position_embeddings\":131072,"                \
    "\"mla_scale_kv_lora\":true,\"mla_scale_q_lora\":true,\"moe_topk\":12,"                        \
    "\"n_routed_experts\":512,\"num_attention_heads\":64,\"num_layers\":28,"                       \
    "\"q_lora_rank\":1536,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,"                       \
    "\"rms_norm_eps\":1e-05,\"rope_theta\":10000000.0,\"routed_scaling_factor\":6.0,"              \
    "\"router_bias\":false,\"v_head_dim\":128,\"vocab_size\":131072,\"zero_expert_num\":256,"      \
    "\"zero_expert_type\":\"identity\"" fields

static void the_published_model_has_its_sizes(void)
{
    CU_ASSERT_EQUAL_FATAL(parse(LONGCAT("")).code, STATUS_OK);
    CU_ASSERT(m.n_layers == 56 && m.moe.n_experts == 512 && m.moe.n_zero == 256);
    CU_ASSERT(m.moe.n_chosen == 12 && m.moe.ffn == 2048 && m.ffn == 12288);
    CU_ASSERT(m.moe.router.kind == ROUTER_BIASED && m.moe.router.scale == 6.0f &&
              m.moe.select_bias);
    CU_ASSERT_EQUAL(arch_dim_size(&m, DIM_E), 768);
    CU_ASSERT_DOUBLE_EQUAL(m.scale.attention, 2 / sqrt(192), 1e-7);
    CU_ASSERT_DOUBLE_EQUAL(m.attn.latent_scale, sqrt(12), 1e-6);
    /* "560B": without the prediction layer */
    CU_ASSERT(arch_params(&m) > 560e9 && arch_params(&m) < 563e9);
}

static void layers_come_in_pairs(void)
{
    CU_ASSERT_EQUAL_FATAL(parse(LONGCAT("")).code, STATUS_OK);
    for (uint32_t l = 0; l < m.n_layers; l++) {
        const uint64_t parts = arch_layer_parts(&m, l);
        CU_ASSERT(m.layer.is_moe[l] == (l % 2 == 0) && arch_continues(&m, l) == (l % 2 == 1));
        CU_ASSERT((parts & PART_DENSE) != 0 && ((parts & PART_MOE) != 0) == (l % 2 == 0));
    }
}

/* A pair of layers is never cut by a border of stages. */
static void stages_begin_with_a_pair(void)
{
    struct layout_model *model = calloc(1, sizeof *model);
    struct layout *l = calloc(1, sizeof *l);
    CU_ASSERT_EQUAL_FATAL(parse(LONGCAT("")).code, STATUS_OK);
    layout_describe(&m, 2, model);
    for (uint32_t pp = 2; pp <= 28; pp++) {
        struct layout_flags flags = {.tp = 1, .pp = pp, .ep = 1, .dp = 1};
        CU_ASSERT_EQUAL_FATAL(layout_build(model, pp, &flags, l).code, STATUS_OK);
        for (uint32_t s = 0; s < pp; s++) CU_ASSERT_EQUAL(layout_layers(l, s).end % 2, 0);
    }
    struct layout_flags flags = {.tp = 1, .pp = 29, .ep = 1, .dp = 1};
    const struct status st = layout_build(model, 29, &flags, l);
    CU_ASSERT(st.code == STATUS_USAGE && strstr(st.text, "at most 28") != NULL);
    free(model);
    free(l);
}

static void other_configs_are_refused(void)
{
    refuse(LONGCAT(",\"zero_expert_type\":\"copy\""), "zero_expert_type");
    refuse(LONGCAT(",\"mla_scale_q_lora\":false"), "mla_scale_q_lora");
    refuse(LONGCAT(",\"mla_scale_kv_lora\":false"), "mla_scale_kv_lora");
    refuse(LONGCAT(",\"attention_method\":\"MHA\""), "attention_method");
    refuse(LONGCAT(",\"router_bias\":true"), "router_bias");
    refuse(LONGCAT(",\"norm_topk_prob\":true"), "norm_topk_prob");
    refuse(LONGCAT(",\"num_hidden_layers\":28"), "num_hidden_layers");
    refuse(LONGCAT(",\"num_experts_per_tok\":8"), "num_experts_per_tok");
    refuse(LONGCAT(",\"num_experts\":256"), "num_experts");
    refuse(LONGCAT(",\"intermediate_size\":100"), "intermediate_size");
    refuse(LONGCAT(",\"moe_intermediate_size\":100"), "moe_intermediate_size");
    refuse(LONGCAT(",\"qk_head_dim\":64"), "qk_head_dim");
    refuse(LONGCAT(",\"num_key_value_heads\":8"), "num_key_value_heads");
    refuse(LONGCAT(",\"head_dim\":192"), "head_dim");
    refuse(LONGCAT(",\"n_group\":4,\"topk_group\":2"), "n_group");
    refuse(LONGCAT(",\"rope_interleave\":false"), "rope_interleave");
    refuse(LONGCAT(",\"attention_bias\":true"), "attention_bias");
    refuse(LONGCAT(",\"scoring_func\":\"sigmoid\""), "scoring_func");
    refuse(LLAMA ",\"zero_expert_num\":4", "zero_expert_num");
    refuse(LLAMA ",\"num_layers\":4", "num_layers");
    refuse(LONGCAT(",\"router_dtype\":\"bfloat16\""), "router_dtype");
    refuse(LONGCAT(",\"ngram_vocab_size_ratio\":78"), "ngram_vocab_size_ratio");
    refuse(LONGCAT(",\"index_topk\":2048"), "index_topk");
    CU_ASSERT_EQUAL(parse(LONGCAT(",\"router_dtype\":\"float32\",\"params_dtype\":\"bfloat16\","
                                  "\"num_nextn_predict_layers\":1,\"topk_method\":null"))
                        .code,
                    STATUS_OK);
    CU_ASSERT_EQUAL(parse(LONGCAT(",\"num_hidden_layers\":56,\"qk_head_dim\":192")).code,
                    STATUS_OK);
}

void suite_arch_shortcut(CU_pSuite suite);
void suite_arch_shortcut(CU_pSuite suite)
{
    CU_add_test(suite, "the published model has its sizes", the_published_model_has_its_sizes);
    CU_add_test(suite, "layers come in pairs", layers_come_in_pairs);
    CU_add_test(suite, "stages begin with a pair", stages_begin_with_a_pair);
    CU_add_test(suite, "other configs are refused", other_configs_are_refused);
}

/* The table of tensors: parameter counts of published models, and the roles that convert finds by
 * name. */
#include "arch/arch_tensors.h"

#include <CUnit/CUnit.h>
#include <string.h>

static struct arch m;

static void parse(const char *json)
{
    CU_ASSERT_EQUAL_FATAL(arch_parse(json, strlen(json), "config.json", &m).code, STATUS_OK);
}

/* The parameter counts that the publishers give: 134,515,008; 235,093,634,560; 46,702,792,704. */
static void published_models_have_their_parameters(void)
{
    parse("{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":576,"
          "\"num_hidden_layers\":30,\"num_attention_heads\":9,\"num_key_value_heads\":3,"
          "\"intermediate_size\":1536,\"vocab_size\":49152,\"max_position_embeddings\":8192,"
          "\"tie_word_embeddings\":true}");
    CU_ASSERT_EQUAL(arch_params(&m), 134515008);
    CU_ASSERT_EQUAL(arch_token_params(&m), 30ull * 576 * (2 * 576 + 2 * 192 + 3 * 1536));
    parse("{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"hidden_size\":4096,\"head_dim\":128,"
          "\"num_hidden_layers\":94,\"num_attention_heads\":64,\"num_key_value_heads\":4,"
          "\"moe_intermediate_size\":1536,\"num_experts\":128,\"num_experts_per_tok\":8,"
          "\"vocab_size\":151936,\"max_position_embeddings\":40960}");
    CU_ASSERT_EQUAL(arch_params(&m), 235093634560);
    parse("{\"architectures\":[\"MixtralForCausalLM\"],\"hidden_size\":4096,"
          "\"num_hidden_layers\":32,\"num_attention_heads\":32,\"num_key_value_heads\":8,"
          "\"intermediate_size\":14336,\"num_local_experts\":8,\"num_experts_per_tok\":2,"
          "\"vocab_size\":32000,\"max_position_embeddings\":32768,"
          "\"rope_theta\":1e6,\"rms_norm_eps\":1e-5}");
    CU_ASSERT_EQUAL(arch_params(&m), 46702792704);
}

static enum weight_role role_of(const char *name)
{
    const struct arch_tensor *t = arch_tensor_find(name);
    return t == NULL ? WEIGHT_ROLE_COUNT : t->role;
}

static void roles_are_found_by_published_names(void)
{
    CU_ASSERT_EQUAL(role_of("model.layers.3.self_attn.o_proj.weight"), WEIGHT_O);
    CU_ASSERT_EQUAL(role_of("model.layers.3.mlp.down_proj.weight"), WEIGHT_DOWN);
    CU_ASSERT_EQUAL(role_of("model.layers.3.mlp.experts.down_proj.weight"), WEIGHT_EXPERT_DOWN);
    CU_ASSERT_EQUAL(role_of("model.layers.0.block_sparse_moe.experts.w2.weight"),
                    WEIGHT_EXPERT_DOWN);
    CU_ASSERT_EQUAL(role_of("model.layers.0.block_sparse_moe.output_linear.weight"),
                    WEIGHT_EXPERT_DOWN);
    CU_ASSERT_EQUAL(role_of("model.layers.1.mlp.shared_experts.down_proj.weight"),
                    WEIGHT_SHARED_DOWN);
    CU_ASSERT_EQUAL(role_of("model.layers.1.mlp.shared_expert.down_proj.weight"),
                    WEIGHT_SHARED_DOWN);
    CU_ASSERT_EQUAL(role_of("model.layers.1.mlp.gate.e_score_correction_bias"), WEIGHT_SELECT_BIAS);
    CU_ASSERT_EQUAL(role_of("model.layers.1.self_attn.kv_b_proj.weight"), WEIGHT_KV_B);
    CU_ASSERT_EQUAL(role_of("model.layers.1.xmlp.down_proj.weight"), WEIGHT_ROLE_COUNT);
    CU_ASSERT_EQUAL(role_of("o_proj.weight"), WEIGHT_ROLE_COUNT);
}

/* Exactly the row-parallel tensors of every family have K-blocks (leaves). */
static void leaves_are_of_sums_alone(void)
{
    for (size_t i = 0; arch_tensor_at(i) != NULL; i++) {
        const struct arch_tensor *t = arch_tensor_at(i);
        const bool is_cut = arch_dim_axis(t->cols) != AXIS_NONE && !t->is_vector;
        CU_ASSERT_EQUAL(t->has_leaves, is_cut);
    }
}

void suite_arch_tensors(CU_pSuite suite);
void suite_arch_tensors(CU_pSuite suite)
{
    CU_add_test(suite, "published models have their parameters",
                published_models_have_their_parameters);
    CU_add_test(suite, "roles are found by published names", roles_are_found_by_published_names);
    CU_add_test(suite, "leaves are of sums alone", leaves_are_of_sums_alone);
}

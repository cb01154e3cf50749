/* Families with Mamba-2 layers: published configs of Granite-4.0-H-Tiny and Nemotron-Nano-9B-v2,
 * their parts, and configs that are refused. */
#include "arch/arch_tensors.h"
#include "base/strbuf.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* The values of the published files; fields that change nothing are left out. The first %s is
 * a list of layers, the second further fields. */
static const char granite[] =
    "{\"architectures\": [\"GraniteMoeHybridForCausalLM\"], \"attention_multiplier\": 0.0078125,"
    " \"embedding_multiplier\": 12, \"hidden_size\": 1536, \"init_method\": \"mup\","
    " \"intermediate_size\": 512, \"layer_types\": [%s], \"logits_scaling\": 6,"
    " \"mamba_chunk_size\": 256, \"mamba_conv_bias\": true, \"mamba_d_conv\": 4,"
    " \"mamba_d_head\": 64, \"mamba_d_state\": 128, \"mamba_expand\": 2, \"mamba_n_groups\": 1,"
    " \"mamba_n_heads\": 48, \"mamba_proj_bias\": false, \"max_position_embeddings\": 131072,"
    " \"normalization_function\": \"rmsnorm\", \"num_attention_heads\": 12,"
    " \"num_experts_per_tok\": 6, \"num_hidden_layers\": 40, \"num_key_value_heads\": 4,"
    " \"num_local_experts\": 64, \"position_embedding_type\": \"nope\","
    " \"residual_multiplier\": 0.22, \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000,"
    " \"shared_intermediate_size\": 1024, \"tie_word_embeddings\": true, \"vocab_size\": 100352%s}";
static const char nemotron[] =
    "{\"architectures\": [\"NemotronHForCausalLM\"], \"attention_bias\": false,"
    " \"chunk_size\": 128, \"conv_kernel\": 4, \"expand\": 2, \"head_dim\": 128,"
    " \"hidden_size\": 4480, \"hybrid_override_pattern\": \"%s\", \"intermediate_size\": 15680,"
    " \"layer_norm_epsilon\": 1e-05, \"mamba_head_dim\": 80, \"mamba_hidden_act\": \"silu\","
    " \"mamba_num_heads\": 128, \"max_position_embeddings\": 131072, \"mlp_bias\": false,"
    " \"mlp_hidden_act\": \"relu2\", \"n_groups\": 8, \"num_attention_heads\": 40,"
    " \"num_hidden_layers\": 56, \"num_key_value_heads\": 8, \"num_logits_to_keep\": 1,"
    " \"rescale_prenorm_residual\": true, \"residual_in_fp32\": false, \"rms_norm_eps\": 1e-05,"
    " \"ssm_state_size\": 128, \"time_step_floor\": 0.0001, \"time_step_max\": 0.1,"
    " \"time_step_min\": 0.001, \"time_step_rank\": 256, \"use_bias\": false,"
    " \"use_conv_bias\": true, \"use_mamba_kernels\": true, \"vocab_size\": 131072%s}";
static const char nemotron_layers[] = "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-";

/* Parses a config with a list of layers and further fields. Returns whether it is accepted; `found`
 * [STATUS_TEXT_MAX], unless it is NULL, gets the error's sentence. */
static bool parse(const char *text, const char *layers, const char *more, struct arch *m,
                  char *found)
{
    char all[8192];
    const int n = snprintf(all, sizeof all, text, layers, more);
    const struct status st = arch_parse(all, (size_t)n, "config.json", m);
    if (found != NULL) snprintf(found, STATUS_TEXT_MAX, "%s", st.text);
    return !status_failed(&st);
}

/* The list of Granite-4.0-H-Tiny: attention in layers 5, 15, 25 and 35. */
static const char *granite_layers(struct strbuf *out)
{
    strbuf_init(out);
    for (int l = 0; l < 40; l++)
        strbuf_printf(out, "%s\"%s\"", l > 0 ? ", " : "", l % 10 == 5 ? "attention" : "mamba");
    return out->data;
}

static void granite_has_its_sizes(void)
{
    struct strbuf layers;
    struct arch m;
    CU_ASSERT_FATAL(parse(granite, granite_layers(&layers), "", &m, NULL));
    CU_ASSERT(m.delta.is_mamba && m.delta.conv_bias && m.delta.n_taps == 4);
    CU_ASSERT(m.layer.is_delta[0] && !m.layer.is_delta[35] && arch_layer_has_kv(&m, 35));
    CU_ASSERT_EQUAL(arch_delta_layers(&m, 0, 40), 36);
    CU_ASSERT(m.layer.is_unrotated[5] && m.layer.is_moe[0] && !m.moe.lone_shared);
    CU_ASSERT(m.delta.step_least == 0 && isinf(m.delta.step_most));
    /* heads are divided, their one group is not */
    CU_ASSERT(arch_delta_units(&m) == 48 && arch_dim_unit(&m, DIM_DELTA_V) == 64);
    CU_ASSERT(arch_dim_size(&m, DIM_DELTA_V) == 3072 && arch_dim_size(&m, DIM_GROUPS) == 128);
    CU_ASSERT(arch_dim_axis(DIM_GROUPS) == AXIS_NONE && arch_dim_axis(DIM_DELTA_V) == AXIS_DELTA);
    /* 7 billion parameters, over 1 billion of them for each token */
    CU_ASSERT(arch_params(&m) > 6.9e9 && arch_params(&m) < 7.0e9);
    CU_ASSERT(arch_token_params(&m) > 1.2e9 && arch_token_params(&m) < 1.4e9);
    CU_ASSERT(parse(granite, layers.data,
                    ", \"time_step_limit\": [0.5, {\"__float__\": \"Infinity\"}]", &m, NULL));
    CU_ASSERT(m.delta.step_least == 0.5f && isinf(m.delta.step_most));
    strbuf_fini(&layers);
}

/* Granite-4 without experts: the shared MLP is a dense FFN. */
static void granite_may_lack_experts(void)
{
    char text[4096];
    struct strbuf layers;
    struct arch m;
    snprintf(text, sizeof text, "%s", granite);
    memcpy(strstr(text, "num_local_experts\": 64") + strlen("num_local_experts\": "), " 0", 2);
    CU_ASSERT_FATAL(parse(text, granite_layers(&layers), "", &m, NULL));
    CU_ASSERT(m.moe.lone_shared && m.ffn == 1024 && m.moe.shared_ffn == 0 && !m.layer.is_moe[0]);
    CU_ASSERT(m.moe.n_experts == 0 && m.moe.n_chosen == 0);
    CU_ASSERT((arch_layer_parts(&m, 0) & (PART_LONE_SHARED | PART_DENSE)) == PART_LONE_SHARED);
    strbuf_fini(&layers);
}

static void a_layer_of_nemotron_is_one_block(void)
{
    struct arch m;
    CU_ASSERT_FATAL(parse(nemotron, nemotron_layers, ", \"num_experts_per_tok\": 2", &m, NULL));
    CU_ASSERT_EQUAL(arch_delta_layers(&m, 0, 56), 27);
    CU_ASSERT(arch_layer_parts(&m, 0) == (PART_LONE_MIXER | PART_MAMBA | PART_CONV_BIAS));
    CU_ASSERT(arch_layer_parts(&m, 1) == (PART_LONE_FFN | PART_RELU2));
    CU_ASSERT(arch_layer_parts(&m, 14) == (PART_LONE_MIXER | PART_HEADS));
    CU_ASSERT(!arch_layer_has_kv(&m, 0) && !arch_layer_has_kv(&m, 1) && arch_layer_has_kv(&m, 14));
    CU_ASSERT(m.delta.step_least == 0.001f && m.norm_eps == 1e-5f && m.moe.n_chosen == 0);
    CU_ASSERT(arch_params(&m) > 8.8e9 && arch_params(&m) < 8.95e9);
}

/* A list of words beside the pattern must agree with it, and both with num_hidden_layers. */
static void lists_and_patterns_agree(void)
{
    static const char list[] = ", \"layers_block_type\": [\"mamba\", \"mlp\", \"full_attention\"]";
    static const char other[] = ", \"layers_block_type\": [\"mamba\", \"mlp\", \"mlp\"]";
    char text[4096], found[STATUS_TEXT_MAX];
    struct arch m;
    snprintf(text, sizeof text, "%s", nemotron);
    memcpy(strstr(text, ": 56"), ":  3", 4);
    CU_ASSERT(parse(text, "M-*", list, &m, NULL) && m.n_layers == 3);
    CU_ASSERT(!parse(text, "M-*", other, &m, found) && strstr(found, "layer 2") != NULL);
    CU_ASSERT(!parse(text, "M-*-", list, &m, found) && strstr(found, "expected 3 layers") != NULL);
    CU_ASSERT(!parse(text, "M-x", "", &m, found) && strstr(found, "layer 2") != NULL);
    CU_ASSERT(!parse(text, "M--", "", &m, found) && strstr(found, "without attention") != NULL);
    CU_ASSERT(!parse(text, "ME*", "", &m, found) && strstr(found, "n_routed_experts") != NULL);
}

/* Expects that the config with this field, whose value replaces the one in `text`, is refused by a
 * sentence with `named` in it. */
static void expect_refused(const char *text, const char *layers, const char *field,
                           const char *value, const char *named)
{
    char quoted[64], more[128], found[STATUS_TEXT_MAX], copy[4096];
    struct arch m;
    snprintf(quoted, sizeof quoted, "\"%s\":", field);
    snprintf(more, sizeof more, ", %s %s", quoted, value);
    snprintf(copy, sizeof copy, "%s", text);
    char *given = strstr(copy, quoted);
    if (given != NULL) given[1] = '_'; /* a name that is ignored */
    CU_ASSERT(!parse(copy, layers, more, &m, found) && strstr(found, named) != NULL);
    if (strstr(found, named) == NULL) fprintf(stderr, "%s %s: %s\n", field, value, found);
}

static void what_is_not_implemented_is_named(void)
{
    static const char *const of_nemotron[][2] = {
        {"use_bias", "true"},     {"mlp_bias", "true"},        {"mlp_hidden_act", "\"silu\""},
        {"moe_latent_size", "8"}, {"mamba_proj_bias", "true"}, {"time_step_limit", "[0.0, 0.5]"}};
    static const char *const of_granite[][2] = {{"mamba_proj_bias", "true"},
                                                {"mamba_expand", "3"},
                                                {"position_embedding_type", "\"alibi\""},
                                                {"time_step_limit", "[1.0, 0.5]"}};
    struct strbuf layers;
    granite_layers(&layers);
    for (size_t i = 0; i < sizeof of_nemotron / sizeof of_nemotron[0]; i++)
        expect_refused(nemotron, nemotron_layers, of_nemotron[i][0], of_nemotron[i][1],
                       of_nemotron[i][0]);
    for (size_t i = 0; i < sizeof of_granite / sizeof of_granite[0]; i++)
        expect_refused(granite, layers.data, of_granite[i][0], of_granite[i][1], of_granite[i][0]);
    expect_refused(granite, layers.data, "mamba_n_groups", "5", "multiple of the 5 groups");
    strbuf_fini(&layers);
}

void suite_arch_mamba(CU_pSuite suite);
void suite_arch_mamba(CU_pSuite suite)
{
    CU_add_test(suite, "Granite-4 has its sizes", granite_has_its_sizes);
    CU_add_test(suite, "Granite-4 may lack experts", granite_may_lack_experts);
    CU_add_test(suite, "a layer of Nemotron-H is one block", a_layer_of_nemotron_is_one_block);
    CU_add_test(suite, "lists and patterns agree", lists_and_patterns_agree);
    CU_add_test(suite, "what is not implemented is named", what_is_not_implemented_is_named);
}

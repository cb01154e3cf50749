/* Ling 3: the published config of Ling-3.0-tiny, its parts over ranks, its workspace, the other
 * spelling of its fields, and configs that are refused. */
#include "arch/arch_rope.h"
#include "arch/arch_tensors.h"
#include "base/json.h"
#include "parallel/layout/layout.h"
#include "parallel/layout/workspace.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The values of the published config.json, without fields that name code or tokens. */
static const char published[] =
    "{\"architectures\": [\"BailingMoeV3ForCausalLM\"], \"model_type\": \"bailing_hybrid\","
    " \"dtype\": \"bfloat16\", \"attention_dropout\": 0.0, \"embedding_dropout\": 0.0,"
    " \"expert_swiglu_limit_list\": null, \"first_k_dense_replace\": 1,"
    " \"gated_attention_proj_granularity_type\": \"head_wise\", \"group_norm_size\": 1,"
    " \"head_dim\": 128, \"hidden_act\": \"silu\", \"hidden_size\": 1536,"
    " \"initializer_range\": 0.02, \"intermediate_size\": 4608, \"kda_lower_bound\": -5,"
    " \"kda_safe_gate\": true, \"kv_lora_rank\": 512, \"layer_group_size\": 4,"
    " \"linear_silu\": true, \"max_position_embeddings\": 131072, \"max_window_layers\": 20,"
    " \"moe_intermediate_size\": 512, \"moe_router_enable_expert_bias\": true,"
    " \"moe_shared_expert_intermediate_size\": 512, \"mtp_loss_scaling_factor\": 0,"
    " \"mtp_use_kda\": false, \"n_group\": 8, \"no_kda_lora\": true, \"norm_topk_prob\": true,"
    " \"num_attention_heads\": 16, \"num_experts\": 128, \"num_experts_per_tok\": 8,"
    " \"num_hidden_layers\": 24, \"num_key_value_heads\": 16, \"num_kv_heads_for_linear_attn\": 0,"
    " \"num_nextn_predict_layers\": 0, \"num_shared_experts\": 1, \"output_dropout\": 0.0,"
    " \"output_router_logits\": false, \"partial_rotary_factor\": 0.5, \"q_lora_rank\": 256,"
    " \"qk_head_dim\": 192, \"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64,"
    " \"rms_norm_eps\": 1e-06, \"rope_interleave\": true, \"rope_scaling\": null,"
    " \"rope_theta\": 6000000, \"rotary_dim\": 64, \"routed_scaling_factor\": 2.5,"
    " \"router_dtype\": \"fp32\", \"scale_router_input\": false, \"score_function\": \"sigmoid\","
    " \"scoring_func\": \"sigmoid\", \"seq_aux\": true, \"share_expert_swiglu_limit_list\": null,"
    " \"short_conv_kernel_size\": 4, \"tie_word_embeddings\": false, \"topk_group\": 4,"
    " \"topk_method\": \"noaux_tc\", \"up_proj_norm\": false, \"use_bias\": false,"
    " \"use_cache\": true, \"use_kda_lora\": false, \"use_mla_nope\": false, \"use_nGPT\": false,"
    " \"use_qk_norm\": true, \"use_qkv_bias\": false, \"v_head_dim\": 128, \"value_norm\": false,"
    " \"vocab_size\": 157184}";

static struct status parse(const char *text, struct arch *m)
{
    return arch_parse(text, strlen(text), "config.json", m);
}

static void published_model_has_its_sizes(void)
{
    struct arch m;
    const struct status st = parse(published, &m);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    CU_ASSERT(m.layer.is_delta[2] && !m.layer.is_delta[3] && !m.layer.is_delta[23]);
    CU_ASSERT_EQUAL(arch_delta_layers(&m, 0, 24), 18);
    CU_ASSERT(m.delta.by_channel && m.delta.n_value_heads == 16 && m.delta.value_dim == 128);
    CU_ASSERT(m.delta.is_bounded && m.delta.least_log == -5.0f && m.delta.n_taps == 4);
    CU_ASSERT(m.attn.head_gates && m.rope_pairs && !m.layer.is_unrotated[3] &&
              m.attn.query_dim == 192);
    CU_ASSERT(m.moe.router.kind == ROUTER_SIGMOID_RENORM && m.moe.router.n_groups == 8);
    CU_ASSERT(!m.layer.is_moe[0] && m.layer.is_moe[1] && m.moe.shared_ffn == 512 &&
              m.moe.n_chosen == 8);
    CU_ASSERT((arch_layer_parts(&m, 0) & (PART_ANY_DELTA | PART_CHANNEL_GATES)) ==
              (PART_CHANNELS | PART_DIRECT_GATES));
    CU_ASSERT((arch_layer_parts(&m, 3) & (PART_HEAD_GATES | PART_Q_STEPS)) ==
              (PART_HEAD_GATES | PART_Q_STEPS));
    CU_ASSERT_EQUAL(arch_layer_parts(&m, 0) & PART_HEAD_GATES, 0);
    /* 7.9 billion parameters */
    CU_ASSERT(arch_params(&m) > 7.7e9 && arch_params(&m) < 8.1e9);
}

/* Ranks divide the gates by heads. Latent attention's gates take one number for each row and each
 * head of the rank. */
static void gates_are_cut_by_heads(void)
{
    struct arch m;
    struct layout_model model;
    struct layout *l = calloc(1, sizeof *l);
    struct status st = parse(published, &m);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    layout_describe(&m, 2, &model);
    st = layout_build(&model, 4, &(struct layout_flags){.tp = 4}, l);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    const struct workspace_shape shape = workspace_shape_of(l, layout_place_of(l, 3), 64);
    CU_ASSERT_EQUAL(shape.per_row[WORKSPACE_HEAD_GATES], 4);
    CU_ASSERT_EQUAL(shape.per_row[WORKSPACE_DELTA_BA], 4 + 4 * 128);
    const struct arch_tensor *t;
    uint32_t n_found = 0;
    for (size_t i = 0; (t = arch_tensor_at(i)) != NULL; i++) {
        if (t->part != PART_HEAD_GATES && t->part != PART_DIRECT_GATES) continue;
        const bool is_latent = t->part == PART_HEAD_GATES;
        CU_ASSERT_EQUAL(arch_dim_axis(t->rows), is_latent ? AXIS_HEADS : AXIS_DELTA);
        CU_ASSERT_EQUAL(arch_dim_size(&m, t->rows), is_latent ? 16 : 2048);
        n_found++;
    }
    CU_ASSERT_EQUAL(n_found, 3);
    free(l);
}

/* Parses the published config with `from` replaced by `to`. */
static struct status parse_changed(const char *from, const char *to, struct arch *m)
{
    char text[2 * sizeof published];
    const char *at = strstr(published, from);
    CU_ASSERT_PTR_NOT_NULL_FATAL(at);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - published), published, to,
             at + strlen(from));
    return parse(text, m);
}

static void refuse(const char *from, const char *to, const char *wanted)
{
    struct arch m;
    const struct status st = parse_changed(from, to, &m);
    CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, wanted));
    if (strstr(st.text, wanted) == NULL) printf("\n  %s\n", st.text);
}

static void fields_of_the_delta_rule_are_checked(void)
{
    refuse("\"layer_group_size\": 4", "\"layer_group_size\": 5", "a divisor of the 24 layers");
    refuse("\"layer_group_size\": 4", "\"layer_group_size\": 1", "layers of both kinds");
    refuse("\"layer_group_size\": 4,", "", "layer_group_size");
    refuse("\"layer_group_size\": 4", "\"layer_types\": [\"full_attention\"]",
           "expected a list of 24");
    refuse("\"kda_lower_bound\": -5,", "", "kda_lower_bound");
    refuse("\"kda_lower_bound\": -5", "\"kda_lower_bound\": 1", "kda_lower_bound");
    refuse("\"kda_safe_gate\": true,", "", "kda_safe_gate");
    refuse("\"no_kda_lora\": true", "\"no_kda_lora\": false", "no_kda_lora");
    refuse("\"use_kda_lora\": false", "\"use_kda_lora\": true", "use_kda_lora");
    refuse("\"head_dim\": 128, ", "", "head_dim");
    refuse("\"short_conv_kernel_size\": 4", "\"short_conv_kernel_size\": 17",
           "short_conv_kernel_size");
    refuse("\"short_conv_kernel_size\": 4,", "", "short_conv_kernel_size");
    refuse("\"group_norm_size\": 1", "\"group_norm_size\": 4", "group_norm_size");
}

static void fields_of_the_rest_are_checked(void)
{
    refuse("\"expert_swiglu_limit_list\": null", "\"expert_swiglu_limit_list\": [0, 4.0]",
           "expert_swiglu_limit_list");
    refuse("\"share_expert_swiglu_limit_list\": null", "\"share_expert_swiglu_limit_list\": [5.0]",
           "share_expert_swiglu_limit_list");
    refuse("head_wise", "element_wise", "element_wise");
    refuse("\"use_mla_nope\": false", "\"use_mla_nope\": true", "use_mla_nope");
    refuse("\"rope_interleave\": true", "\"rope_interleave\": false", "rope_interleave");
    refuse("\"rotary_dim\": 64", "\"rotary_dim\": 32", "rotary_dim");
    refuse("\"rope_scaling\": null", "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4.0}",
           "partial_rotary_factor");
    refuse("\"num_key_value_heads\": 16", "\"num_key_value_heads\": 8", "num_key_value_heads");
    refuse("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true",
           "tie_word_embeddings");
    refuse("\"n_group\": 8", "\"n_group\": 8, \"num_expert_group\": 8", "found both");
    refuse("\"norm_topk_prob\": true,", "", "found none");
    refuse("\"num_shared_experts\": 1", "\"n_shared_experts\": 1", "num_shared_experts");
    refuse("\"moe_shared_expert_intermediate_size\": 512",
           "\"moe_shared_expert_intermediate_size\": 1024", "moe_shared_expert_intermediate_size");
    refuse("\"moe_router_enable_expert_bias\": true", "\"moe_router_enable_expert_bias\": false",
           "moe_router_enable_expert_bias");
    refuse("\"score_function\": \"sigmoid\"", "\"score_function\": \"softmax\"", "softmax");
    refuse("\"first_k_dense_replace\": 1,", "", "first_k_dense_replace");
    refuse("\"BailingMoeV3ForCausalLM\"", "\"BailingMoeV2_5ForCausalLM\"", "not implemented");
    refuse("\"BailingMoeV3ForCausalLM\"", "\"DeepseekV3ForCausalLM\"", "not implemented for");
}

/* Fields as transformers writes them. */
static void other_spellings_are_read(void)
{
    struct arch m;
    struct status st =
        parse_changed("\"head_dim\": 128, ",
                      "\"head_dim\": 64, \"linear_head_dim\": 96, \"linear_num_heads\": 24,"
                      " \"linear_conv_kernel_dim\": 3,",
                      &m);
    CU_ASSERT_EQUAL(st.code, STATUS_OK);
    if (st.code != STATUS_OK) printf("\n  %s\n", st.text);
    CU_ASSERT(m.delta.n_key_heads == 24 && m.delta.key_dim == 96 && m.delta.n_taps == 3);
    st = parse_changed("\"n_group\": 8", "\"num_expert_group\": 4", &m);
    CU_ASSERT(st.code == STATUS_OK && m.moe.router.n_groups == 4);
    st = parse_changed("\"norm_topk_prob\": true", "\"moe_renormalize\": false", &m);
    CU_ASSERT(st.code == STATUS_OK && m.moe.router.kind == ROUTER_SIGMOID);
    st = parse_changed("\"kda_safe_gate\": true", "\"kda_safe_gate\": false", &m);
    CU_ASSERT(st.code == STATUS_OK && !m.delta.is_bounded);
}

/* arch_delta_unit gives one head: convert cuts the output projection into K-blocks only between
 * heads. */
static void a_head_is_the_unit_of_its_output(void)
{
    static const char *const texts[] = {
        "{\"kda_safe_gate\": true, \"head_dim\": 48}",
        "{\"kda_safe_gate\": true, \"head_dim\": 16, \"linear_head_dim\": 48}"};
    for (int i = 0; i < 2; i++) {
        struct js_doc *doc = NULL;
        const struct status st = js_parse(texts[i], strlen(texts[i]), "config.json", &doc);
        CU_ASSERT_FALSE_FATAL(status_failed(&st));
        CU_ASSERT_EQUAL(arch_delta_unit(js_root(doc)), 48);
        js_destroy(&doc);
    }
}

void suite_arch_ling(CU_pSuite suite);
void suite_arch_ling(CU_pSuite suite)
{
    CU_add_test(suite, "the published model has its sizes", published_model_has_its_sizes);
    CU_add_test(suite, "gates are cut by heads", gates_are_cut_by_heads);
    CU_add_test(suite, "fields of the delta rule are checked",
                fields_of_the_delta_rule_are_checked);
    CU_add_test(suite, "fields of the rest are checked", fields_of_the_rest_are_checked);
    CU_add_test(suite, "other spellings are read", other_spellings_are_read);
    CU_add_test(suite, "a head is the unit of its output", a_head_is_the_unit_of_its_output);
}

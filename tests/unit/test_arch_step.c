/* Step-3.5 and Step-3.7: the published sizes, their parts over ranks, rotary frequencies by the
 * kind of a layer, both spellings of a config, and configs that are refused. */
#include "arch/arch_rope.h"
#include "arch/arch_tensors.h"
#include "base/json.h"
#include "base/mem.h"
#include "parallel/layout/layout.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FULL  "\"full_attention\""
#define SLIDE "\"sliding_attention\""
#define HEADS                                                                                      \
    "\"attention_other_setting\": {\"attention_type\": \"sliding_attention\","                     \
    " \"num_attention_heads\": 96, \"num_attention_groups\": 8, \"head_dim\": 128}"
#define THETAS "\"rope_theta\": [5e6, 1e4, 1e4, 1e4, 5e6, 1e4]"
#define PARTS  "\"partial_rotary_factors\": [0.5, 1.0, 1.0, 1.0, 0.5, 1.0]"
#define SCALED                                                                                     \
    "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 2.0, \"low_freq_factor\": 1.0,"     \
    " \"high_freq_factor\": 32.0, \"original_max_position_embeddings\": 131072}"
#define ROPE  THETAS ", " PARTS ", " SCALED ", \"yarn_only_types\": [\"full_attention\"]"
#define KINDS "\"layer_types\": [" FULL "," SLIDE "," SLIDE "," SLIDE "," FULL "," SLIDE "]"
#define MOE   "\"moe_layers_enum\": \"1,2,3,4\""

/* Step-3.7-Flash's text_config, with 5 of its 45 layers and one of its 3 prediction layers. */
static const char published[] =
    "{\"architectures\": [\"Step3p5ForCausalLM\"], \"model_type\": \"step3p5\","
    " \"hidden_size\": 4096, \"intermediate_size\": 11264, \"num_hidden_layers\": 5,"
    " \"max_seq_len\": 262144, \"max_position_embeddings\": 262144, \"vocab_size\": 128896,"
    " \"rms_norm_eps\": 1e-5, " MOE ", \"num_attention_heads\": 64,"
    " \"num_attention_groups\": 8, \"head_dim\": 128, \"use_moe\": true, \"moe_num_experts\": 288,"
    " \"moe_top_k\": 8, \"moe_intermediate_size\": 1280, \"share_expert_dim\": 1280,"
    " \"moe_layer_offset\": 0, \"moe_every_n_layer\": 1, \"norm_expert_weight\": true,"
    " \"moe_router_activation\": \"sigmoid\", \"moe_router_scaling_factor\": 3.0,"
    " \"att_impl_type\": \"GQA\", \"num_nextn_predict_layers\": 1,"
    " \"use_head_wise_attn_gate\": true, \"sliding_window\": 512, \"use_moe_router_bias\": true,"
    " \"need_fp32_gate\": true, \"sink\": false, \"use_rope_layers\": [], " KINDS ", " ROPE
    ", " HEADS ", \"swiglu_limits\": [0.0, 0.0, null, 0.0, 7, 0.0],"
    " \"swiglu_limits_shared\": [0.0, 0.0, 0.0, 0.0, 16, 0.0], \"eos_token_id\": [1, 2, 128007]}";

static struct status parse_changed(const char *from, const char *to, struct arch *m)
{
    char text[4096];
    const char *at = strstr(published, from);
    CU_ASSERT_PTR_NOT_NULL_FATAL(at);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - published), published, to,
             at + strlen(from));
    return arch_parse(text, strlen(text), "config.json", m);
}

static void refuse(const char *from, const char *to, const char *word)
{
    struct arch m;
    const struct status st = parse_changed(from, to, &m);
    CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, word));
    if (strstr(st.text, word) == NULL) printf("\n  %s: %s\n", word, st.text);
}

static void layers_differ_by_their_kind(void)
{
    struct arch m;
    const struct status st = parse_changed("{", "{", &m);
    CU_ASSERT_EQUAL_FATAL(st.code, STATUS_OK);
    CU_ASSERT(m.attn.n_heads == 96 && m.attn.n_full_heads == 64 && m.attn.n_kv_heads == 8);
    CU_ASSERT(arch_heads(&m, true) == 96 && arch_heads(&m, false) == 64);
    CU_ASSERT(m.attn.rotary == 64 && arch_local_rotary(&m) == 128 && m.local_rope);
    CU_ASSERT(m.attn.window == 512 && m.layer.has_window[1] && !m.layer.has_window[4]);
    CU_ASSERT(m.attn.qk_norm && m.attn.head_gates && m.rope_theta == 5e6 && !m.may_predict);
    CU_ASSERT(arch_dim_size(&m, DIM_Q) == 12288 && arch_dim_size(&m, DIM_FULL_Q) == 8192);
    CU_ASSERT(arch_dim_size(&m, DIM_H) == 96 && arch_dim_size(&m, DIM_FULL_H) == 64);
    const uint64_t all = PART_ANY_HEADS | PART_FULL_QUERIES | PART_HEAD_GATES | PART_QK_NORM;
    CU_ASSERT_EQUAL(arch_layer_parts(&m, 0) & all, PART_FULL_QUERIES | PART_QK_NORM);
    CU_ASSERT_EQUAL(arch_layer_parts(&m, 1) & all, PART_HEADS | PART_HEAD_GATES | PART_QK_NORM);
    CU_ASSERT(arch_mixed_inputs(&m) == 12288 && arch_heads_most(&m) == 96);
}

static void experts_and_limits_are_read(void)
{
    struct arch m;
    struct status st = parse_changed("{", "{", &m);
    CU_ASSERT_EQUAL_FATAL(st.code, STATUS_OK);
    CU_ASSERT(m.moe.n_experts == 288 && m.moe.n_chosen == 8 && m.moe.ffn == 1280);
    CU_ASSERT(m.moe.shared_ffn == 1280 && m.ffn == 11264 && !m.moe.shared_mix);
    CU_ASSERT(m.moe.router.kind == ROUTER_SIGMOID_RENORM && m.moe.router.scale == 3);
    CU_ASSERT(m.moe.select_bias && !m.layer.is_moe[0] && m.layer.is_moe[1] && m.layer.is_moe[4]);
    CU_ASSERT(m.layer.expert_cap[4] == 7 && m.layer.ffn_cap[4] == 16);
    CU_ASSERT(m.layer.expert_cap[2] == 0 && m.layer.expert_cap[3] == 0 && m.layer.ffn_cap[0] == 0);
    CU_ASSERT(m.n_eos_ids == 3 && m.swiglu.limit == 0);
    st = parse_changed(MOE, "\"moe_layers_enum\": [4, 2, 9]", &m);
    CU_ASSERT(st.code == STATUS_OK && m.layer.is_moe[2] && !m.layer.is_moe[1]);
    st = parse_changed("\"sliding_window\": 512", "\"sliding_window\": 512, \"swiglu_alpha\": null",
                       &m);
    CU_ASSERT_EQUAL(st.code, STATUS_OK);
}

/* The form in which transformers saves the same model. */
static void both_spellings_are_read(void)
{
    struct arch m;
    struct status st = parse_changed(HEADS,
                                     "\"num_sliding_attention_heads\": 96, \"per_layer_config\": "
                                     "{\"1\": {\"num_attention_heads\": 96},"
                                     " \"2\": {\"num_attention_heads\": 96},"
                                     " \"3\": {\"num_attention_heads\": 96}}",
                                     &m);
    CU_ASSERT(st.code == STATUS_OK && m.attn.n_heads == 96 && m.attn.n_full_heads == 64);
    st = parse_changed(ROPE,
                       "\"rope_parameters\": {\"full_attention\": {\"rope_theta\": 5e6,"
                       " \"rope_type\": \"default\", \"partial_rotary_factor\": 0.5},"
                       " \"sliding_attention\": {\"rope_theta\": 1e4, \"rope_type\": \"default\"}}",
                       &m);
    CU_ASSERT(st.code == STATUS_OK && m.rope_theta == 5e6);
    CU_ASSERT(m.attn.rotary == 64 && arch_local_rotary(&m) == 128);
    st = parse_changed(HEADS, "\"query_pre_attn_scalar\": 64", &m);
    CU_ASSERT(st.code == STATUS_OK && m.attn.n_heads == 64 && m.attn.n_full_heads == 0);
    CU_ASSERT(m.scale.attention == 0.125f);
    CU_ASSERT((arch_layer_parts(&m, 0) & (PART_HEADS | PART_HEAD_GATES)) ==
              (PART_HEADS | PART_HEAD_GATES));
    st =
        parse_changed(KINDS, "\"layer_types\": [" FULL "," FULL "," FULL "," FULL "," FULL "]", &m);
    CU_ASSERT_EQUAL(st.code, STATUS_INPUT); /* the thetas of one kind differ */
    st = parse_changed(MOE,
                       "\"mlp_layer_types\": [\"dense\", \"sparse\", \"dense\", \"sparse\","
                       " \"sparse\", \"sparse\"]",
                       &m);
    CU_ASSERT(st.code == STATUS_OK && !m.layer.is_moe[2] && m.layer.is_moe[3]);
}

/* Ranks are cut where heads of both kinds and their K-blocks end together. Two rows of a case:
 * heads of the layers with a window, and of the others. */
static void ranks_hold_whole_heads_of_both_kinds(void)
{
    static const struct range four[2][4] = {{{0, 24}, {24, 48}, {48, 72}, {72, 96}},
                                            {{0, 16}, {16, 32}, {32, 48}, {48, 64}}};
    struct arch m;
    struct layout_model model;
    struct layout *l = calloc(1, sizeof *l);
    const struct status st = parse_changed("{", "{", &m);
    CU_ASSERT_EQUAL_FATAL(st.code, STATUS_OK);
    layout_describe(&m, 2, &model);
    model.o_leaf = 512;
    CU_ASSERT_EQUAL(layout_tp_max(&model), 8);
    CU_ASSERT_EQUAL(layout_build(&model, 4, &(struct layout_flags){.tp = 4}, l).code, STATUS_OK);
    for (int cuts = 0; cuts < 2; cuts++) {
        l->cuts_outputs = cuts;
        for (uint32_t r = 0; r < 4; r++) {
            const struct range heads = layout_heads(l, r), full = layout_full_heads(l, r);
            CU_ASSERT(heads.begin == four[0][r].begin && heads.end == four[0][r].end);
            CU_ASSERT(full.begin == four[1][r].begin && full.end == four[1][r].end);
            CU_ASSERT_EQUAL(range_count(layout_kv_heads(l, r)), 2);
        }
    }
    model.o_leaf = 128; /* one head: ranks may share a KV head, at every third head */
    CU_ASSERT_EQUAL(layout_build(&model, 32, &(struct layout_flags){.tp = 32}, l).code, STATUS_OK);
    const struct range heads = layout_heads(l, 5), full = layout_full_heads(l, 5);
    CU_ASSERT(heads.begin == 15 && heads.end == 18 && full.begin == 10 && full.end == 12);
    CU_ASSERT(layout_kv_heads(l, 5).begin == 1 && layout_kv_heads(l, 5).end == 2);
    free(l);
}

static void frequencies_differ_by_kind(void)
{
    struct js_doc *doc = NULL;
    struct arch_rope full, local;
    uint64_t n_heads;
    CU_ASSERT_EQUAL_FATAL(js_parse(published, strlen(published), "config.json", &doc).code,
                          STATUS_OK);
    CU_ASSERT_EQUAL(arch_rope_make(js_root(doc), &full).code, STATUS_OK);
    CU_ASSERT_EQUAL(arch_rope_make_local(js_root(doc), &local).code, STATUS_OK);
    CU_ASSERT(full.n == 32 && local.n == 64);
    CU_ASSERT_DOUBLE_EQUAL(local.inv_freq[1], 0.86596432, 1e-7); /* 1e4^(-2 / 128) */
    CU_ASSERT_DOUBLE_EQUAL(full.inv_freq[1], 0.6175287, 1e-7);   /* 5e6^(-2 / 64), a short wave */
    CU_ASSERT_DOUBLE_EQUAL(full.inv_freq[31] * 5e6, 0.8096789, 1e-6); /* halved: a long wave */
    CU_ASSERT(arch_full_dim(js_root(doc), &n_heads) == 0 && n_heads == 96);
    mem_free(&full.inv_freq);
    mem_free(&local.inv_freq);
    js_destroy(&doc);
}

static void other_heads_are_refused(void)
{
    refuse(HEADS, "\"attention_other_setting\": {\"head_dim\": 64}", "head_dim: expected 128");
    refuse(HEADS, "\"attention_other_setting\": {\"num_attention_groups\": 4}",
           "num_attention_groups: expected 8");
    refuse(HEADS, "\"attention_other_setting\": {\"window\": 4}", "\"window\"");
    refuse(HEADS, "\"attention_other_setting\": {\"num_attention_heads\": \"96\"}",
           "num_attention_heads: expected an integer from 1 to 4096");
    refuse(HEADS, HEADS ", \"num_sliding_attention_heads\": 64", "attention_other_setting says");
    refuse(HEADS, HEADS ", \"per_layer_config\": {\"1\": {\"num_attention_heads\": 96}}",
           "all 3 layers");
    refuse(HEADS, HEADS ", \"per_layer_config\": {\"0\": {\"num_attention_heads\": 96}}",
           "layer 0");
    refuse(HEADS, HEADS ", \"per_layer_config\": {\"1\": {\"num_attention_heads\": 64}}",
           "layer 1");
    refuse("\"num_attention_heads\": 64,", "\"num_attention_heads\": 63,", "found 63");
    refuse("\"num_attention_groups\": 8,", "", "num_key_value_heads");
    refuse("\"num_attention_groups\": 8,",
           "\"num_attention_groups\": 8, \"num_key_value_heads\": 4,", "expected 4");
    refuse("\"use_head_wise_attn_gate\": true", "\"use_head_wise_attn_gate\": false",
           "use_head_wise_attn_gate");
    refuse("\"sink\": false", "\"sink\": true", "\"sink\"");
    refuse("\"sink\": false", "\"attention_bias\": true", "attention_bias");
}

static void other_layers_are_refused(void)
{
    refuse(KINDS, "\"layer_types\": [" FULL "," FULL "]", "layer_types: expected a list of 5");
    refuse(KINDS ", ", "", "layer_types");
    refuse("predict_layers\": 1", "predict_layers\": 9223372036854775807", "expected a list of 5");
    refuse("\"sliding_window\": 512", "\"sliding_window\": 0", "sliding_window");
    refuse(THETAS, "\"rope_theta\": [5e6, 1e4, 2e4, 1e4, 5e6]", "rope_theta[2]");
    refuse(PARTS, "\"partial_rotary_factors\": [0.01, 1, 1, 1, 0.01]", "even number");
    refuse(", \"yarn_only_types\": [\"full_attention\"]", "", "yarn_only_types");
    refuse(SCALED, SCALED ", \"rope_parameters\": {}", "expected one of them");
    refuse(MOE ", ", "", "mlp_layer_types");
    refuse(MOE, "\"moe_layers_enum\": \"1,x\"", "numbers of layers");
    refuse(MOE, MOE ", \"mlp_layer_types\": [\"dense\"]", "expected one of them");
    refuse("[0.0, 0.0, null, 0.0, 7, 0.0]", "[0.0, 0.0, -1, 0.0, 7, 0.0]", "swiglu_limits[2]");
    refuse("[0.0, 0.0, null, 0.0, 7, 0.0]", "[7]", "swiglu_limits: expected a list of 5");
    refuse("\"moe_num_experts\": 288,", "\"moe_num_experts\": 288, \"n_routed_experts\": 8,",
           "moe_num_experts: expected 8");
    refuse("\"norm_expert_weight\": true", "\"norm_expert_weight\": false", "norm_expert_weight");
    refuse("\"moe_router_activation\": \"sigmoid\"", "\"moe_router_activation\": \"softmax\"",
           "softmax");
    refuse("\"use_moe\": true", "\"routed_scaling_factor\": 2", "routed_scaling_factor");
}

void suite_arch_step(CU_pSuite suite);
void suite_arch_step(CU_pSuite suite)
{
    CU_add_test(suite, "layers differ by their kind", layers_differ_by_their_kind);
    CU_add_test(suite, "experts and limits are read", experts_and_limits_are_read);
    CU_add_test(suite, "both spellings are read", both_spellings_are_read);
    CU_add_test(suite, "ranks hold whole heads", ranks_hold_whole_heads_of_both_kinds);
    CU_add_test(suite, "frequencies differ by kind", frequencies_differ_by_kind);
    CU_add_test(suite, "other heads are refused", other_heads_are_refused);
    CU_add_test(suite, "other layers are refused", other_layers_are_refused);
}

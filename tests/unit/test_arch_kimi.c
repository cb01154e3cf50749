/* Kimi-Linear: the published config of Kimi-Linear-48B-A3B, its parts over ranks, its states in
 * bytes, and configs that are refused. */
#include "arch/arch_rope.h"
#include "arch/arch_tensors.h"
#include "base/json.h"
#include "parallel/layout/layout.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The values of the published config.json, without fields that name code or tokens. */
static const char published[] =
    "{\"architectures\": [\"KimiLinearForCausalLM\"], \"dtype\": \"bfloat16\","
    " \"first_k_dense_replace\": 1, \"head_dim\": 72, \"hidden_act\": \"silu\","
    " \"hidden_size\": 2304, \"initializer_range\": 0.02, \"intermediate_size\": 9216,"
    " \"kv_lora_rank\": 512, \"linear_attn_config\": {\"full_attn_layers\":"
    " [4, 8, 12, 16, 20, 24, 27], \"head_dim\": 128, \"kda_layers\": [1, 2, 3, 5, 6, 7, 9, 10, 11,"
    " 13, 14, 15, 17, 18, 19, 21, 22, 23, 25, 26], \"num_heads\": 32,"
    " \"short_conv_kernel_size\": 4}, \"mla_use_nope\": true, \"model_max_length\": 1048576,"
    " \"model_type\": \"kimi_linear\", \"moe_intermediate_size\": 1024, \"moe_layer_freq\": 1,"
    " \"moe_renormalize\": true, \"moe_router_activation_func\": \"sigmoid\","
    " \"num_attention_heads\": 32, \"num_expert_group\": 1, \"num_experts\": 256,"
    " \"num_experts_per_token\": 8, \"num_hidden_layers\": 27, \"num_key_value_heads\": 32,"
    " \"num_nextn_predict_layers\": 0, \"num_shared_experts\": 1, \"q_lora_rank\": null,"
    " \"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64, \"rms_norm_eps\": 1e-05,"
    " \"rope_scaling\": null, \"rope_theta\": 10000.0, \"routed_scaling_factor\": 2.446,"
    " \"tie_word_embeddings\": false, \"topk_group\": 1, \"use_cache\": true,"
    " \"use_grouped_topk\": true, \"v_head_dim\": 128, \"vocab_size\": 163840}";

static struct status parse(const char *text, struct arch *m)
{
    return arch_parse(text, strlen(text), "config.json", m);
}

static void published_model_has_its_sizes(void)
{
    struct arch m;
    const struct status st = parse(published, &m);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    CU_ASSERT(m.layer.is_delta[0] && m.layer.is_delta[2] && !m.layer.is_delta[3]);
    CU_ASSERT(m.layer.is_delta[25] && !m.layer.is_delta[26]);
    CU_ASSERT_EQUAL(arch_delta_layers(&m, 0, 27), 20);
    CU_ASSERT(m.delta.by_channel && m.delta.n_value_heads == 32 && m.delta.value_dim == 128);
    CU_ASSERT(m.layer.is_unrotated[3] && m.attn.query_dim == 192 && m.attn.head_dim == 576);
    CU_ASSERT(!m.layer.is_moe[0] && m.layer.is_moe[1] && m.moe.n_chosen == 8 &&
              m.context == 1048576);
    CU_ASSERT(m.moe.router.kind == ROUTER_SIGMOID_RENORM && m.moe.router.scale == 2.446f);
    CU_ASSERT((arch_layer_parts(&m, 0) & (PART_ANY_DELTA | PART_CHANNEL_GATES)) ==
              (PART_CHANNELS | PART_LOW_GATES));
    CU_ASSERT((arch_layer_parts(&m, 3) & (PART_ANY_DELTA | PART_Q_STEP)) == PART_Q_STEP);
    /* 48 billion parameters, 3 billion of them for each token */
    CU_ASSERT(arch_params(&m) > 48.9e9 && arch_params(&m) < 49.3e9);
    CU_ASSERT(arch_token_params(&m) > 2.5e9 && arch_token_params(&m) < 3.1e9);
}

static struct layout_memory memory_of(const struct arch *m, const struct layout_flags *f,
                                      uint32_t n_ranks, uint32_t rank)
{
    struct layout_model model;
    struct layout *l = calloc(1, sizeof *l);
    layout_describe(m, 2, &model);
    const struct status st = layout_build(&model, n_ranks, f, l);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    const struct layout_memory memory =
        layout_memory_of(l, layout_place_of(l, rank), (struct layout_kv){2, 0}, 64);
    free(l);
    return memory;
}

/* 20 layers of 32 states of 128 x 128 and 3 rows of 12288 channels; 7 layers with latents. */
static void states_are_counted_per_rank(void)
{
    const uint64_t whole = 20ull * (32 * 128 * 128 + 3 * 12288) * 4;
    struct arch m;
    const struct status st = parse(published, &m);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    const struct layout_memory one = memory_of(&m, &(struct layout_flags){.tp = 1}, 1, 0);
    CU_ASSERT_EQUAL(one.state_bytes, whole);
    CU_ASSERT_EQUAL(one.kv_block_bytes, 7ull * 64 * 576 * 2);
    for (uint32_t r = 0; r < 4; r++)
        CU_ASSERT_EQUAL(memory_of(&m, &(struct layout_flags){.tp = 4}, 4, r).state_bytes,
                        whole / 4);
}

/* The linears that give decays and gates are divided among ranks by heads. The narrow linears whose
 * outputs they read are whole on each rank. */
static void narrow_linears_are_whole(void)
{
    struct arch m;
    const struct status st = parse(published, &m);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    const struct arch_tensor *t;
    uint32_t n_found = 0;
    for (size_t i = 0; (t = arch_tensor_at(i)) != NULL; i++) {
        const bool is_low = t->role == WEIGHT_DELTA_A_LOW || t->role == WEIGHT_DELTA_Z_LOW;
        const bool reads_low = t->role == WEIGHT_DELTA_A || t->role == WEIGHT_DELTA_Z;
        if (t->part != PART_LOW_GATES || (!is_low && !reads_low)) continue;
        CU_ASSERT_EQUAL(arch_dim_axis(t->rows), is_low ? AXIS_NONE : AXIS_DELTA);
        CU_ASSERT_EQUAL(arch_dim_size(&m, t->rows), is_low ? 128 : 4096);
        CU_ASSERT_EQUAL(arch_dim_size(&m, t->cols), is_low ? 2304 : 128);
        n_found++;
    }
    CU_ASSERT_EQUAL(n_found, 4);
}

/* arch_delta_unit gives one head: convert cuts the output projection into K-blocks only between
 * heads. */
static void a_head_is_the_unit_of_its_output(void)
{
    static const char *const texts[] = {"{\"linear_attn_config\": {\"head_dim\": 48}}",
                                        "{\"linear_head_dim\": 48, \"linear_num_heads\": 3}"};
    for (int i = 0; i < 2; i++) {
        struct js_doc *doc = NULL;
        const struct status st = js_parse(texts[i], strlen(texts[i]), "config.json", &doc);
        CU_ASSERT_FALSE_FATAL(status_failed(&st));
        CU_ASSERT_EQUAL(arch_delta_unit(js_root(doc)), 48);
        js_destroy(&doc);
    }
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
    refuse("[4, 8,", "[8,", "expected layer 4 in one of");
    refuse("[4, 8,", "[3, 4, 8,", "expected layer 3 in one of");
    refuse("[4, 8,", "[0, 4, 8,", "full_attn_layers: expected layers from 1 to 27");
    refuse("25, 26]", "25, 26, 28]", "kda_layers: expected layers from 1 to 27");
    refuse("\"num_heads\": 32", "\"num_heads\": 0", "num_heads");
    refuse("\"head_dim\": 128, ", "", "head_dim");
    refuse("\"short_conv_kernel_size\": 4", "\"short_conv_kernel_size\": 17",
           "short_conv_kernel_size");
    refuse("\"num_heads\": 32", "\"num_heads\": 32, \"gate_lower_bound\": -5.0",
           "gate_lower_bound");
    refuse("\"q_lora_rank\": null", "\"layer_types\": [\"full_attention\"]",
           "expected a list of 27");
    refuse("\"full_attn_layers\"", "\"other\": 0, \"full_attn_layer\"", "full_attn_layer");
}

static void fields_of_the_rest_are_checked(void)
{
    refuse("\"mla_use_nope\": true", "\"mla_use_nope\": false", "mla_use_nope");
    refuse("\"rope_scaling\": null", "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4.0}",
           "no RoPE");
    refuse("\"moe_router_activation_func\": \"sigmoid\"",
           "\"moe_router_activation_func\": \"softmax\"", "softmax");
    refuse("\"use_grouped_topk\": true", "\"use_grouped_topk\": false", "use_grouped_topk");
    refuse("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true",
           "tie_word_embeddings");
    refuse("\"num_key_value_heads\": 32", "\"num_key_value_heads\": 8", "num_key_value_heads");
    refuse("\"moe_layer_freq\": 1", "\"moe_layer_freq\": 2", "moe_layer_freq");
    refuse("\"moe_renormalize\"", "\"norm_topk_prob\": true, \"moe_renormalize\"",
           "expected the name \"moe_renormalize\"");
    refuse("\"model_max_length\": 1048576", "\"max_position_embeddings\": 1048576",
           "model_max_length");
    refuse("\"moe_renormalize\": true, ", "", "moe_renormalize");
    refuse("\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"", "hidden_act");
    refuse("\"use_cache\": true", "\"attention_bias\": true", "attention_bias");
    refuse("\"KimiLinearForCausalLM\"", "\"DeepseekV3ForCausalLM\"", "not implemented for");
}

/* Fields outside linear_attn_config, as transformers writes them; those inside override them. */
static void other_spellings_are_read(void)
{
    struct arch m;
    struct status st = parse_changed("\"num_heads\": 32, ", "", &m);
    CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
    st = parse_changed("\"num_heads\": 32, \"short_conv_kernel_size\": 4}",
                       "\"short_conv_kernel_size\": 4}, \"linear_num_heads\": 24,"
                       " \"linear_head_dim\": 64, \"linear_conv_kernel_dim\": 3",
                       &m);
    CU_ASSERT_EQUAL(st.code, STATUS_OK);
    if (st.code != STATUS_OK) printf("\n  %s\n", st.text);
    CU_ASSERT(m.delta.n_key_heads == 24 && m.delta.key_dim == 128 && m.delta.n_taps == 4);
    st = parse_changed("\"first_k_dense_replace\": 1, ", "\"first_k_dense_replace\": 3, ", &m);
    CU_ASSERT(st.code == STATUS_OK && !m.layer.is_moe[2] && m.layer.is_moe[3]);
    st = parse_changed("\"first_k_dense_replace\": 1, ", "", &m);
    CU_ASSERT(st.code == STATUS_OK && !m.layer.is_moe[0] && m.layer.is_moe[1]);
}

void suite_arch_kimi(CU_pSuite suite);
void suite_arch_kimi(CU_pSuite suite)
{
    CU_add_test(suite, "the published model has its sizes", published_model_has_its_sizes);
    CU_add_test(suite, "states are counted per rank", states_are_counted_per_rank);
    CU_add_test(suite, "narrow linears are whole", narrow_linears_are_whole);
    CU_add_test(suite, "a head is the unit of its output", a_head_is_the_unit_of_its_output);
    CU_add_test(suite, "fields of the delta rule are checked",
                fields_of_the_delta_rule_are_checked);
    CU_add_test(suite, "fields of the rest are checked", fields_of_the_rest_are_checked);
    CU_add_test(suite, "other spellings are read", other_spellings_are_read);
}

/* Families with a gated delta rule: the published config of Qwen3-Next-80B-A3B, its parts over
 * ranks, its states in bytes, and configs that are refused. */
#include "arch/arch_tensors.h"
#include "parallel/layout/layout.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The values of the published config.json; fields that change nothing are left out. */
static const char published[] =
    "{\"architectures\": [\"Qwen3NextForCausalLM\"], \"attention_bias\": false,"
    " \"decoder_sparse_step\": 1, \"full_attention_interval\": 4, \"head_dim\": 256,"
    " \"hidden_act\": \"silu\", \"hidden_size\": 2048, \"intermediate_size\": 5120,"
    " \"linear_conv_kernel_dim\": 4, \"linear_key_head_dim\": 128, \"linear_num_key_heads\": 16,"
    " \"linear_num_value_heads\": 32, \"linear_value_head_dim\": 128,"
    " \"max_position_embeddings\": 262144, \"mlp_only_layers\": [],"
    " \"moe_intermediate_size\": 512, \"norm_topk_prob\": true, \"num_attention_heads\": 16,"
    " \"num_experts\": 512, \"num_experts_per_tok\": 10, \"num_hidden_layers\": 48,"
    " \"num_key_value_heads\": 2, \"partial_rotary_factor\": 0.25, \"rms_norm_eps\": 1e-06,"
    " \"rope_scaling\": null, \"rope_theta\": 10000000, \"shared_expert_intermediate_size\": 512,"
    " \"tie_word_embeddings\": false, \"use_sliding_window\": false, \"vocab_size\": 151936}";

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
    CU_ASSERT_EQUAL(arch_delta_layers(&m, 0, 48), 36);
    CU_ASSERT_EQUAL(m.attn.rotary, 64);
    CU_ASSERT(m.attn.qk_norm && m.attn.gated_heads && m.moe.shared_mix && m.moe.n_chosen == 10);
    CU_ASSERT_EQUAL(arch_dim_size(&m, DIM_Q), 16 * 512);
    CU_ASSERT_EQUAL(arch_dim_size(&m, DIM_DELTA_QKVZ), 12288);
    CU_ASSERT_EQUAL(arch_dim_size(&m, DIM_DELTA_BA), 64);
    /* 80 billion parameters, 3 billion of them for each token */
    CU_ASSERT(arch_params(&m) > 79.6e9 && arch_params(&m) < 79.8e9);
    CU_ASSERT(arch_token_params(&m) > 3.0e9 && arch_token_params(&m) < 3.5e9);
}

/* Qwen3.5-9B: projections apart, dense FFNs, sections of positions that only images have. */
static void projections_may_be_apart(void)
{
    static const char text[] =
        "{\"architectures\": [\"Qwen3_5ForCausalLM\"], \"attention_bias\": false,"
        " \"attn_output_gate\": true, \"full_attention_interval\": 4, \"head_dim\": 256,"
        " \"hidden_size\": 4096, \"intermediate_size\": 12288, \"linear_conv_kernel_dim\": 4,"
        " \"linear_key_head_dim\": 128, \"linear_num_key_heads\": 16,"
        " \"linear_num_value_heads\": 32, \"linear_value_head_dim\": 128,"
        " \"mamba_ssm_dtype\": \"float32\", \"max_position_embeddings\": 262144,"
        " \"mtp_num_hidden_layers\": 1, \"num_attention_heads\": 16, \"num_hidden_layers\": 32,"
        " \"num_key_value_heads\": 4, \"rms_norm_eps\": 1e-06, \"tie_word_embeddings\": false,"
        " \"rope_parameters\": {\"mrope_interleaved\": true, \"mrope_section\": [11, 11, 10],"
        " \"partial_rotary_factor\": 0.25, \"rope_theta\": 10000000, \"rope_type\": \"default\"},"
        " \"vocab_size\": 248320}";
    struct arch m;
    const struct status st = parse(text, &m);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    CU_ASSERT((arch_layer_parts(&m, 0) & (PART_APART | PART_DELTA)) == PART_APART);
    CU_ASSERT((arch_layer_parts(&m, 3) & PART_RECURRENT) == 0 && m.moe.n_experts == 0);
    CU_ASSERT(m.attn.rotary == 64 && m.attn.gated_heads && m.ffn == 12288);
    CU_ASSERT(arch_params(&m) > 8.9e9 && arch_params(&m) < 9.0e9);
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

/* 36 layers of 32 states of 128 x 128 and 3 rows of 8192 channels; 12 layers with KV. */
static void states_are_counted_per_rank(void)
{
    const uint64_t whole = 36ull * (32 * 128 * 128 + 3 * 8192) * 4;
    struct arch m;
    const struct status st = parse(published, &m);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    const struct layout_memory one = memory_of(&m, &(struct layout_flags){.tp = 1}, 1, 0);
    CU_ASSERT_EQUAL(one.state_bytes, whole);
    CU_ASSERT_EQUAL(one.kv_block_bytes, 12ull * 2 * 2 * 64 * 256 * 2);
    const struct layout_flags tp4 = {.tp = 4}, pp4 = {.pp = 4};
    for (uint32_t r = 0; r < 4; r++) {
        CU_ASSERT_EQUAL(memory_of(&m, &tp4, 4, r).state_bytes, whole / 4);
        CU_ASSERT_EQUAL(memory_of(&m, &pp4, 4, r).kv_block_bytes > 0, true);
    }
    CU_ASSERT_EQUAL(layout_slots_wanted(&m, 0), LAYOUT_SLOTS);
    CU_ASSERT_EQUAL(layout_slots_wanted(&m, 5), 5);
    CU_ASSERT_EQUAL(layout_slots_in(100 * whole, whole, LAYOUT_SLOTS), 25);
    CU_ASSERT_EQUAL(layout_slots_in(whole / 2, whole, LAYOUT_SLOTS), 1);
    CU_ASSERT_EQUAL(layout_slots_in(1000 * whole, whole, LAYOUT_SLOTS), LAYOUT_SLOTS);
}

/* The ranks' channels of the convolution are those of their heads: q, k and v of a head come from
 * three places of one tensor. */
static void parts_of_a_tensor_are_found(void)
{
    struct arch m;
    const struct status st = parse(published, &m);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    const struct arch_tensor *t;
    uint32_t n_found = 0;
    for (size_t i = 0; (t = arch_tensor_at(i)) != NULL; i++) {
        if (strcmp(t->name, "linear_attn.conv1d.weight") != 0) continue;
        uint32_t before = 0, behind = 0;
        for (int j = 0; j < 2; j++) before += arch_dim_size(&m, t->before[j]);
        for (int j = 0; j < 2; j++) behind += arch_dim_size(&m, t->behind[j]);
        CU_ASSERT_EQUAL(before + arch_dim_size(&m, t->rows) + behind, 8192);
        CU_ASSERT_EQUAL(before, 2048 * n_found);
        n_found++;
    }
    CU_ASSERT_EQUAL(n_found, 3);
}

/* Parses the published config with `from` replaced by `to`; the error must contain `wanted`. */
static void refuse(const char *from, const char *to, const char *wanted)
{
    char text[2 * sizeof published];
    const char *at = strstr(published, from);
    struct arch m;
    CU_ASSERT_PTR_NOT_NULL_FATAL(at);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - published), published, to,
             at + strlen(from));
    const struct status st = parse(text, &m);
    CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, wanted));
    if (strstr(st.text, wanted) == NULL) printf("\n  %s\n", st.text);
}

static void other_configs_are_refused(void)
{
    refuse("\"linear_num_value_heads\": 32", "\"linear_num_value_heads\": 24",
           "expected a multiple of the 16 key heads");
    refuse("\"full_attention_interval\": 4", "\"full_attention_interval\": 49",
           "without attention");
    refuse("\"full_attention_interval\": 4", "\"layer_types\": [\"linear_attention\"]",
           "expected a list of 48");
    refuse("\"linear_conv_kernel_dim\": 4, ", "", "linear_conv_kernel_dim");
    refuse("\"linear_conv_kernel_dim\": 4", "\"linear_conv_kernel_dim\": 17", "from 1 to 16");
    refuse("\"norm_topk_prob\": true, ", "", "norm_topk_prob");
    refuse("\"head_dim\": 256,", "", "head_dim");
    refuse("\"num_key_value_heads\": 2, ", "", "num_key_value_heads");
    refuse(" \"partial_rotary_factor\": 0.25,", "", "partial_rotary_factor");
    refuse("\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"", "hidden_act");
    refuse("\"Qwen3NextForCausalLM\"", "\"Qwen3MoeForCausalLM\"", "full_attention_interval");
}

void suite_arch_delta(CU_pSuite suite);
void suite_arch_delta(CU_pSuite suite)
{
    CU_add_test(suite, "projections may be apart", projections_may_be_apart);
    CU_add_test(suite, "the published model has its sizes", published_model_has_its_sizes);
    CU_add_test(suite, "states are counted per rank", states_are_counted_per_rank);
    CU_add_test(suite, "parts of a tensor are found", parts_of_a_tensor_are_found);
    CU_add_test(suite, "other configs are refused", other_configs_are_refused);
}

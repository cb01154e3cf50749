/* DeepSeek-V4: the published sizes, both spellings of its fields, its parts over ranks and in the
 * cache, and configs that are refused. */
#include "arch/arch_rope.h"
#include "arch/arch_tensors.h"
#include "attention/kv_pool.h"
#include "base/json.h"
#include "base/strbuf.h"
#include "job/job_options.h"
#include "kernels/ops.h"
#include "kernels/ops_sparse.h"
#include "parallel/layout/kv_groups.h"
#include "parallel/layout/layout.h"
#include "parallel/layout/layout_cost.h"
#include "parallel/layout/plan_report.h"
#include "parallel/layout/workspace.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The sizes of DeepSeek-V4-Flash, with six of its layers. */
#define FIELDS                                                                                     \
    "{\"architectures\": [\"DeepseekV4ForCausalLM\"], \"model_type\": \"deepseek_v4\","            \
    " \"attention_bias\": false, \"hc_eps\": 1e-6, \"hc_mult\": 4, \"hc_sinkhorn_iters\": 20,"     \
    " \"head_dim\": 512, \"hidden_act\": \"silu\", \"hidden_size\": 4096,"                         \
    " \"index_head_dim\": 128, \"index_n_heads\": 64, \"index_topk\": 512,"                        \
    " \"max_position_embeddings\": 1048576, \"moe_intermediate_size\": 2048,"                      \
    " \"n_routed_experts\": 256, \"n_shared_experts\": 1, \"norm_topk_prob\": true,"               \
    " \"num_attention_heads\": 64, \"num_experts_per_tok\": 6, \"num_hidden_layers\": 6,"          \
    " \"num_key_value_heads\": 1, \"num_nextn_predict_layers\": 1, \"o_groups\": 8,"               \
    " \"o_lora_rank\": 1024, \"q_lora_rank\": 1024, \"qk_rope_head_dim\": 64,"                     \
    " \"rms_norm_eps\": 1e-6, \"rope_theta\": 10000, \"compress_rope_theta\": 160000,"             \
    " \"routed_scaling_factor\": 1.5, \"scoring_func\": \"sqrtsoftplus\","                         \
    " \"sliding_window\": 128, \"swiglu_limit\": 10.0, \"tie_word_embeddings\": false,"            \
    " \"topk_method\": \"noaux_tc\", \"expert_dtype\": \"fp4\", \"vocab_size\": 129280"
static const char published[] =
    FIELDS ", \"compress_ratios\": [0, 0, 4, 128, 4, 128, 0], \"num_hash_layers\": 3,"
           " \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 16, \"beta_fast\": 32,"
           " \"beta_slow\": 1, \"original_max_position_embeddings\": 65536}}";
#define SLIDING "\"sliding_attention\""
#define SPARSE  "\"compressed_sparse_attention\""
#define FULL    "\"heavily_compressed_attention\""
/* The same config as transformers writes it. */
static const char listed[] = FIELDS
    ", \"layer_types\": [" SLIDING ", " SLIDING ", " SPARSE ", " FULL ", " SPARSE ", " FULL
    "], \"compress_rates\": {" SPARSE ": 4, " FULL ": 128}, \"partial_rotary_factor\": 0.125,"
    " \"mlp_layer_types\": [\"hash_moe\", \"hash_moe\", \"hash_moe\", \"moe\", \"moe\","
    " \"moe\"], \"rope_parameters\": {\"main\": {\"rope_type\": \"default\","
    " \"rope_theta\": 10000, \"partial_rotary_factor\": 0.125}, \"compress\": {"
    "\"rope_type\": \"yarn\", \"rope_theta\": 160000, \"partial_rotary_factor\": 0.125,"
    " \"factor\": 16, \"beta_fast\": 32, \"beta_slow\": 1, \"attention_factor\": 1.0,"
    " \"original_max_position_embeddings\": 65536}}}";

static struct status parse(const char *text, struct arch *m)
{
    return arch_parse(text, strlen(text), "config.json", m);
}

static void check_model(const char *text)
{
    struct arch m;
    const struct status st = parse(text, &m);
    CU_ASSERT_STRING_EQUAL(st.text, "");
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    CU_ASSERT(m.attn.query_dim == 512 && m.attn.kv_lora == 512 && m.attn.rotary == 64);
    CU_ASSERT(m.attn.value_dim == 128 && arch_o_unit(&m) == 1024 && m.attn.window == 128);
    CU_ASSERT(arch_rate(&m, 0) == 0 && arch_rate(&m, 2) == 4 && arch_rate(&m, 3) == 128);
    CU_ASSERT(m.layer.has_window[1] && !m.layer.has_window[2] && m.local_rope);
    CU_ASSERT(m.layer.is_hashed[2] && !m.layer.is_hashed[3] && m.layer.is_moe[0]);
    CU_ASSERT(arch_has_index(&m, 2) && !arch_has_index(&m, 3) && !arch_has_index(&m, 0));
    CU_ASSERT(m.moe.router.kind == ROUTER_ROOT_RENORM && m.moe.router.scale == 1.5f);
    CU_ASSERT(m.swiglu.limit == 10 && m.swiglu.alpha == 0 && m.moe.shared_ffn == 2048);
    CU_ASSERT(m.streams.n == 4 && m.streams.iterations == 20 && arch_row_width(&m) == 4 * 4096);
    CU_ASSERT_EQUAL(arch_layer_parts(&m, 0) & (PART_ANY_POOL | PART_SELECT_BIAS | PART_HASHED),
                    PART_HASHED);
    CU_ASSERT_EQUAL(arch_layer_parts(&m, 4) & (PART_ANY_POOL | PART_SELECT_BIAS | PART_HASHED),
                    PART_POOL_SPARSE | PART_SELECT_BIAS);
    CU_ASSERT(arch_has_states(&m) && arch_entry_layers(&m, 0, 6) == 4);
    /* 6.6 billion parameters in a layer, most of them in experts */
    CU_ASSERT(arch_params(&m) > 6 * 6.5e9 && arch_params(&m) < 6 * 6.5e9 + 2.5e9);
}

static void both_spellings_are_read(void)
{
    check_model(published);
    check_model(listed);
}

/* Layers with entries have YaRN without a factor on cos and sin, the others plain RoPE. */
static void layers_have_two_ropes(void)
{
    static char with_null[4096];
    snprintf(with_null, sizeof with_null, "%.*s, \"rope_parameters\": null}",
             (int)strlen(published) - 1, published);
    const char *const texts[] = {published, listed, with_null};
    for (int i = 0; i < 3; i++) {
        struct js_doc *doc = NULL;
        struct arch_rope compress, local;
        CU_ASSERT_EQUAL_FATAL(js_parse(texts[i], strlen(texts[i]), "config.json", &doc).code,
                              STATUS_OK);
        CU_ASSERT_EQUAL_FATAL(arch_rope_make(js_root(doc), &compress).code, STATUS_OK);
        CU_ASSERT_EQUAL_FATAL(arch_rope_make_local(js_root(doc), &local).code, STATUS_OK);
        CU_ASSERT(compress.n == 32 && local.n == 32);
        CU_ASSERT(compress.attention_factor == 1 && compress.softmax_factor == 1);
        CU_ASSERT_DOUBLE_EQUAL(local.inv_freq[31], 1.3335e-4, 1e-7);
        CU_ASSERT_DOUBLE_EQUAL(compress.inv_freq[31], 9.0885e-6 / 16, 1e-9);
        free(compress.inv_freq);
        free(local.inv_freq);
        js_destroy(&doc);
    }
}

/* Ranks divide whole groups of heads; the residual streams make rows wider. */
static void ranks_divide_groups(void)
{
    struct arch m;
    struct layout_model model;
    struct layout *l = calloc(1, sizeof *l);
    struct status st = parse(published, &m);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    layout_describe(&m, 2, &model);
    CU_ASSERT_EQUAL(model.o_leaf, 1024);
    CU_ASSERT_EQUAL(layout_tp_max(&model), 8);
    st = layout_build(&model, 3, &(struct layout_flags){.tp = 3}, l);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    CU_ASSERT_EQUAL(layout_heads(l, 0).end, 24);
    CU_ASSERT_EQUAL(layout_heads(l, 2).begin, 48);
    l->cuts_outputs = true;
    CU_ASSERT_EQUAL(layout_heads(l, 0).end, 24);
    const struct workspace_shape shape = workspace_shape_of(l, layout_place_of(l, 0), 64);
    CU_ASSERT_EQUAL(shape.per_row[WORKSPACE_STREAM_NORMED], 4 * 4096);
    CU_ASSERT_EQUAL(shape.per_row[WORKSPACE_POOL_KV], 1024);
    CU_ASSERT_EQUAL(shape.per_row[WORKSPACE_O_WIDE], 24 * 512);
    CU_ASSERT(shape.code_inputs >= 3 * 8 * 512);
    /* a block of 64 tokens has 16 entries of 512 elements, with keys of 128 */
    CU_ASSERT_EQUAL(arch_beside_dim(&m), 160);
    const struct layout_memory memory =
        layout_memory_of(l, layout_place_of(l, 0), (struct layout_kv){.element_bytes = 2}, 64);
    CU_ASSERT_EQUAL(memory.state_bytes, 4 * 4 * 6 * (512 + 128));
    const struct kv_groups groups = kv_groups_of(l); /* each has a layer with entries */
    CU_ASSERT_EQUAL(memory.kv_block_bytes, 64 * 2 * (512 + 160) * kv_groups_layers(&groups, l, 0));
    free(l);
}

enum { ENTRY_DIM = 32, KEY_DIM = 16, RATE_MOST = 256, CANARY_BYTES = 1 << 16 };

/* Makes the entries of one block, or their index keys, from values that are all 1. */
static void make_block(const struct kern_table *k, const struct entry_view *to, bool is_index)
{
    static float v[RATE_MOST * ENTRY_DIM], z[RATE_MOST * ENTRY_DIM], norm[ENTRY_DIM];
    static float states[3 * ENTRY_DIM];
    const int32_t blocks[RATE_MOST / KV_BLOCK_TOKENS] = {0};
    const size_t n_rows = to->rate < KV_BLOCK_TOKENS ? KV_BLOCK_TOKENS : to->rate;
    const struct seq_rows seq = {.n_rows = n_rows, .blocks = blocks};
    for (size_t i = 0; i < n_rows * ENTRY_DIM; i++) v[i] = 1;
    for (size_t i = 0; i < ENTRY_DIM; i++) norm[i] = 1;
    op_pool(k, &(struct pool_args){.v = v,
                                   .z = z,
                                   .bias = z,
                                   .norm = norm,
                                   .parts = 1,
                                   .dim = is_index ? KEY_DIM : ENTRY_DIM,
                                   .eps = 1e-6f,
                                   .rope_scale = 1,
                                   .states = states,
                                   .to = *to,
                                   .is_index = is_index,
                                   .seqs = &seq,
                                   .n_seqs = 1,
                                   .n_rows = n_rows});
}

/* Writes all entries of a block of the layer, and checks that nothing beside the room for them
 * changes: neither the keys before it nor what is behind it. */
static void check_room(const struct kern_table *k, const struct arch *m, uint32_t layer,
                       enum dtype t)
{
    const size_t keys = kv_half_bytes(t, ENTRY_DIM);
    const size_t room = kv_pool_index_bytes(t, arch_beside_dim(m));
    unsigned char *block = malloc(keys + room + CANARY_BYTES);
    const struct entry_view to = {.kv = {.base = block,
                                         .dtype = t,
                                         .n_kv_heads = 1,
                                         .head_dim = ENTRY_DIM,
                                         .latent = true,
                                         .beside_bytes = (uint32_t)room},
                                  .rate = arch_rate(m, layer),
                                  .index_dim = arch_entry_key_dim(m, layer)};
    size_t n_changed = 0, n_written = 0;
    CU_ASSERT_PTR_NOT_NULL_FATAL(block);
    memset(block, 0xA5, keys + room + CANARY_BYTES);
    make_block(k, &to, false);
    if (to.index_dim > 0) make_block(k, &to, true);
    for (size_t i = 0; i < keys + room + CANARY_BYTES; i++)
        *(i >= keys && i < keys + room ? &n_written : &n_changed) += block[i] != 0xA5;
    CU_ASSERT_EQUAL(n_changed, 0);
    CU_ASSERT(n_written > 0);
    free(block);
}

/* At all pairs of rates and in all types, a block has room for its entries, their index keys and
 * the scales of both. */
static void blocks_hold_their_entries(void)
{
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_I8, DTYPE_F8_E4M3};
    static const uint32_t rates[] = {2, 4, 8, 16, 32, 64, 128, RATE_MOST};
    enum { N_RATES = sizeof rates / sizeof rates[0] };
    struct arch *m = calloc(1, sizeof *m);
    struct kern_table k;
    CU_ASSERT_FALSE_FATAL(m == NULL || kern_select("ref", &k).code != STATUS_OK);
    m->attn.kv_lora = ENTRY_DIM;
    m->index.dim = KEY_DIM;
    m->index.n_heads = m->compression.o_groups = 1;
    m->layer.compression[0] = COMPRESSION_SPARSE;
    m->layer.compression[1] = COMPRESSION_FULL;
    for (size_t i = 0; i < (size_t)N_RATES * N_RATES * 4; i++) {
        m->compression.sparse_rate = rates[i / 4 % N_RATES];
        m->compression.full_rate = rates[i / 4 / N_RATES];
        for (uint32_t layer = 0; layer < 2; layer++) check_room(&k, m, layer, types[i % 4]);
    }
    free(m);
}

static void plans_tell_of_entries(void)
{
    static const char *const says[] = {"64 query and 1 kv heads of 512",
                                       "512 elements cached of a token and 160 of entries",
                                       "an index of 64 heads of 128 that chooses 512 entries"};
    const struct layout_budget budget = {.kv = {2, 0}, .step_tokens = 64, .min_kv_blocks = 16};
    static struct arch m;
    struct layout_model model;
    struct layout *l = calloc(1, sizeof *l);
    struct topo *topo;
    struct strbuf text;
    uint32_t order[1] = {0};
    bool fits;
    CU_ASSERT_EQUAL_FATAL(parse(published, &m).code, STATUS_OK);
    struct status st = topo_describe("1x\"core:2 pu:1\"", 1, 0, (uint64_t)1 << 40, &topo);
    CU_ASSERT_STRING_EQUAL_FATAL(st.text, "");
    layout_describe(&m, 2, &model);
    st = layout_choose(&model, topo, &(struct layout_flags){0}, &budget, l, order, &fits);
    CU_ASSERT_STRING_EQUAL_FATAL(st.text, "");
    strbuf_init(&text);
    st = plan_report(l, topo, order, &budget, &text);
    CU_ASSERT_STRING_EQUAL_FATAL(st.text, "");
    for (size_t i = 0; i < sizeof says / sizeof says[0]; i++)
        CU_ASSERT_PTR_NOT_NULL(strstr(text.data, says[i]));
    strbuf_fini(&text);
    topo_destroy(&topo);
    free(l);
}

/* The memory for the longest row's keys and entries holds those of many rows that see fewer. */
static void short_rows_are_gathered_together(void)
{
    static struct arch m;
    CU_ASSERT_EQUAL_FATAL(parse(published, &m).code, STATUS_OK);
    const struct workspace_index all = workspace_index_of(&m, 64);
    CU_ASSERT(all.n_gather == 1 && all.n_tiles == (128 + 1048576 / 128) / 64);
    const struct workspace_index some = workspace_index_seen(all, 128 + 100);
    CU_ASSERT(some.n_tiles == 4 && some.n_gather == all.n_tiles / 4);
    CU_ASSERT_EQUAL(workspace_index_seen(all, 1).n_gather, all.n_tiles);
    CU_ASSERT_EQUAL(workspace_index_seen(all, all.n_tiles * 64).n_gather, 1);
    job_bound_context(0, &m);
    CU_ASSERT_EQUAL(workspace_index_of(&m, 64).n_key_tiles, 1048576 / 4 / 64);
    job_bound_context(8192, &m); /* a job's rows see 128 positions and 512 entries */
    CU_ASSERT_EQUAL(workspace_index_of(&m, 64).n_key_tiles, 8192 / 4 / 64);
    CU_ASSERT(workspace_index_of(&m, 64).n_tiles == 10 && workspace_index_of(&m, 64).n_gather > 20);
}

/* Parses `text` with the first `from` replaced by `to`. */
static struct status parse_with(const char *text, const char *from, const char *to, struct arch *m)
{
    char copy[4096];
    const char *at = strstr(text, from);
    CU_ASSERT_PTR_NOT_NULL_FATAL(at);
    snprintf(copy, sizeof copy, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    return parse(copy, m);
}

static void other_configs_are_refused(void)
{
    static const struct {
        const char *from, *to, *says;
    } cases[] = {
        {"\"compress_ratios\": [0,", "\"compress_ratios\": [5,", "layer 0"},
        {"[0, 0, 4, 128, 4, 128, 0]", "[0, 0, 4]", "compress_ratios"},
        {"\"compress_ratios\": [0, 0, 4, 128, 4, 128, 0], ", "", "layer_types"},
        {"\"num_hash_layers\": 3,", "", "num_hash_layers"},
        {"\"num_key_value_heads\": 1", "\"num_key_value_heads\": 2", "num_key_value_heads"},
        {"\"o_groups\": 8", "\"o_groups\": 7", "o_groups"},
        {"\"o_lora_rank\": 1024", "\"o_lora_rank\": 1000", "o_lora_rank"},
        {"\"head_dim\": 512", "\"head_dim\": 500", "head_dim"},
        {"\"index_head_dim\": 128", "\"index_head_dim\": 100", "index_head_dim"},
        {"\"qk_rope_head_dim\": 64,", "", "qk_rope_head_dim"},
        {"\"qk_rope_head_dim\": 64", "\"qk_rope_head_dim\": 63", "qk_rope_head_dim"},
        {"\"norm_topk_prob\": true", "\"norm_topk_prob\": false", "norm_topk_prob"},
        {"\"n_shared_experts\": 1", "\"n_shared_experts\": 2", "n_shared_experts"},
        {"\"sqrtsoftplus\"", "\"sigmoid\"", "scoring_func"},
        {"\"hc_mult\": 4", "\"hc_mult\": 9", "hc_mult"},
        {"\"sliding_window\": 128", "\"sliding_window\": 0", "sliding_window"},
        {"\"factor\": 16", "\"factor\": 16, \"rope_theta\": 5", "rope_theta"},
        {"\"factor\": 16", "\"factor\": 16, \"truncate\": false", "truncate"},
        {"\"factor\": 16", "\"factor\": 16, \"attention_factor\": null", "attention_factor"},
        {"\"vocab_size\"", "\"first_k_dense_replace\": 1, \"vocab_size\"", "first_k_dense_replace"},
        {"\"vocab_size\"", "\"moe_layer_freq\": 2, \"vocab_size\"", "moe_layer_freq"},
        {"\"topk_method\": \"noaux_tc\"",
         "\"topk_method\": \"group_limited_greedy\", \"n_group\": 8, \"topk_group\": 4", "n_group"},
        {"\"vocab_size\"", "\"compress_rate_csa\": 48, \"vocab_size\"", "compress_rates"},
        {"\"vocab_size\"", "\"compress_rates\": {\"sliding_attention\": 4}, \"vocab_size\"",
         "compress_rates"},
        {"\"vocab_size\"", "\"mlp_bias\": true, \"vocab_size\"", "mlp_bias"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct arch m;
        const struct status st = parse_with(published, cases[i].from, cases[i].to, &m);
        CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
        CU_ASSERT_PTR_NOT_NULL(strstr(st.text, cases[i].says));
    }
}

/* One group of experts counts as none, although topk_method names a choice by groups. */
static void one_group_is_none(void)
{
    struct arch m;
    const struct status st =
        parse_with(published, "\"vocab_size\"", "\"n_group\": 1, \"vocab_size\"", &m);
    CU_ASSERT_STRING_EQUAL(st.text, "");
    CU_ASSERT(m.moe.router.n_groups == 0 && m.moe.router.n_groups_chosen == 0);
}

static void lists_must_agree(void)
{
    static const struct {
        const char *from, *to, *says;
    } cases[] = {
        {"[" SLIDING, "[" FULL ", \"x\"", "layer_types"},
        {"[" SLIDING, "[\"full_attention\"", "layer 0"},
        {"\"vocab_size\"", "\"compress_ratios\": [4, 0, 4, 128, 4, 128], \"vocab_size\"",
         "layer 0"},
        {"\"vocab_size\"", "\"num_hash_layers\": 2, \"vocab_size\"", "mlp_layer_types"},
        {"[\"hash_moe\"", "[\"dense\"", "mlp_layer_types"},
        {"{\"main\": {\"rope_type\": \"default\"", "{\"main\": {\"rope_type\": \"linear\"",
         "rope_parameters.main"},
        {"\"partial_rotary_factor\": 0.125, \"factor\"",
         "\"partial_rotary_factor\": 0.25, \"factor\"", "partial_rotary_factor"},
        {"\"partial_rotary_factor\": 0.125, \"factor\"",
         "\"partial_rotary_factor\": -1, \"factor\"", "partial_rotary_factor"},
        {"\"rope_theta\": 10000, \"partial_rotary_factor\": 0.125",
         "\"rope_theta\": 10000, \"partial_rotary_factor\": 1e300", "partial_rotary_factor"},
        {"\"factor\": 16", "\"factor\": 16, \"truncate\": false", "truncate"},
        {"\"rope_parameters\": {\"main\"", "\"rope_parameters\": {\"other\"", "rope_parameters"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct arch m;
        const struct status st = parse_with(listed, cases[i].from, cases[i].to, &m);
        CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
        CU_ASSERT_PTR_NOT_NULL(strstr(st.text, cases[i].says));
    }
}

void suite_arch_compressed(CU_pSuite suite);
void suite_arch_compressed(CU_pSuite suite)
{
    CU_add_test(suite, "both spellings are read", both_spellings_are_read);
    CU_add_test(suite, "layers have two RoPEs", layers_have_two_ropes);
    CU_add_test(suite, "ranks divide groups", ranks_divide_groups);
    CU_add_test(suite, "blocks hold their entries", blocks_hold_their_entries);
    CU_add_test(suite, "plans tell of entries", plans_tell_of_entries);
    CU_add_test(suite, "short rows are gathered together", short_rows_are_gathered_together);
    CU_add_test(suite, "other configs are refused", other_configs_are_refused);
    CU_add_test(suite, "one group is none", one_group_is_none);
    CU_add_test(suite, "lists must agree", lists_must_agree);
}

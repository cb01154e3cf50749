/* Gemma-4: the published sizes of its large models, their parts over ranks, their rotary
 * frequencies, and configs that are refused. */
#include "arch/arch_rope.h"
#include "arch/arch_tensors.h"
#include "base/json.h"
#include "base/mem.h"
#include "parallel/layout/layout.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROPE                                                                                       \
    "\"rope_parameters\": {\"full_attention\": {\"partial_rotary_factor\": 0.25, "                 \
    "\"rope_theta\": 1000000.0, \"rope_type\": \"proportional\"}, \"sliding_attention\": "         \
    "{\"rope_theta\": 10000.0, \"rope_type\": \"default\"}}"
#define SLIDES "\"sliding_attention\","
#define PERIOD SLIDES SLIDES SLIDES SLIDES SLIDES "\"full_attention\""
#define DENSE                                                                                      \
    "\"enable_moe_block\": false, \"moe_intermediate_size\": null, \"num_experts\": null, "        \
    "\"top_k_experts\": null"
#define HEADS "\"global_head_dim\": 512, \"num_global_key_value_heads\": 4"

/* Gemma-4-31B's config.json, its text_config flattened, with 12 of its 60 layers. */
static const char published[] =
    "{\"architectures\": [\"Gemma4ForCausalLM\"], \"attention_bias\": false,"
    " \"attention_dropout\": 0.0, \"attention_k_eq_v\": true, \"dtype\": \"bfloat16\","
    " " DENSE ", \"final_logit_softcapping\": 30.0, " HEADS ","
    " \"head_dim\": 256, \"hidden_activation\": \"gelu_pytorch_tanh\", \"hidden_size\": 5376,"
    " \"hidden_size_per_layer_input\": 0, \"intermediate_size\": 21504,"
    " \"layer_types\": [" PERIOD ", " PERIOD "], \"max_position_embeddings\": 262144,"
    " \"num_attention_heads\": 32,"
    " \"num_hidden_layers\": 12, \"num_key_value_heads\": 16, \"num_kv_shared_layers\": 0,"
    " \"rms_norm_eps\": 1e-06, " ROPE ", \"sliding_window\": 1024, \"tie_word_embeddings\": true,"
    " \"use_bidirectional_attention\": \"vision\","
    " \"use_double_wide_mlp\": false, \"vocab_size\": 262144,"
    " \"vocab_size_per_layer_input\": 262144}";

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

static void layers_have_heads_by_their_kind(void)
{
    struct arch m;
    const struct status st = parse_changed("{", "{", &m);
    CU_ASSERT_EQUAL_FATAL(st.code, STATUS_OK);
    CU_ASSERT(m.attn.query_dim == 256 && m.attn.full_dim == 512 && m.attn.head_dim == 512);
    CU_ASSERT(m.attn.n_kv_heads == 16 && m.attn.n_full_kv_heads == 4 && m.attn.window == 1024);
    CU_ASSERT(m.attn.rotary == 512 && arch_local_rotary(&m) == 256 && m.scale.attention == 1);
    CU_ASSERT(m.attn.full_k_is_v && m.attn.v_norm && m.layer_scale && m.logit_cap == 30 && m.tied);
    CU_ASSERT(m.moe.n_experts == 0 && !m.moe.joins && m.gate == GATE_GEGLU);
    CU_ASSERT(arch_query_dim(&m, true) == 256 && arch_value_dim_of(&m, false) == 512);
    CU_ASSERT(arch_shares_keys(&m, 5) == 4 && arch_shares_keys(&m, 4) == 1);
    CU_ASSERT(arch_dim_size(&m, DIM_TYPED_Q) == 16384 && arch_dim_size(&m, DIM_Q) == 8192);
    CU_ASSERT(arch_dim_size(&m, DIM_TYPED_KV) == 2048 && arch_dim_size(&m, DIM_KV) == 4096);
    CU_ASSERT_EQUAL(arch_layer_parts(&m, 5) &
                        (PART_ANY_HEADS | PART_TYPED_HEADS | PART_TYPED_VALUES),
                    PART_TYPED_HEADS);
    CU_ASSERT_EQUAL(arch_layer_parts(&m, 4) & (PART_ANY_HEADS | PART_TYPED_HEADS), PART_HEADS);
    /* a K-block has the same number of heads in each layer */
    CU_ASSERT(arch_o_leaf(&m, 512, 256) == 512 && arch_o_leaf(&m, 512, 512) == 1024);
}

/* transformers saves the heads of layers without a window as "per_layer_config". Without
 * attention_k_eq_v, these heads have a v of their own. */
static void heads_of_single_layers_are_read(void)
{
    struct arch m;
    const char *both = "\"per_layer_config\": {\"5\": {\"head_dim\": 384, \"num_key_value_heads\":"
                       " 8}, \"11\": {\"num_key_value_heads\": 8, \"head_dim\": 384}}";
    struct status st = parse_changed(HEADS, both, &m);
    CU_ASSERT(st.code == STATUS_OK && m.attn.full_dim == 384 && m.attn.n_full_kv_heads == 8);
    st = parse_changed("\"attention_k_eq_v\": true, ", "", &m);
    CU_ASSERT(st.code == STATUS_OK && m.attn.n_full_kv_heads == 16 && !m.attn.full_k_is_v);
    CU_ASSERT((arch_layer_parts(&m, 5) & PART_TYPED_VALUES) != 0);
    refuse(HEADS, "\"per_layer_config\": {\"5\": {\"head_dim\": 384}}", "all 2 layers");
    refuse(HEADS, "\"per_layer_config\": {\"5\": {\"head_dim\": 384}, \"11\": {\"head_dim\": 64}}",
           "layer 11");
    refuse(HEADS, "\"per_layer_config\": {\"5\": {\"head_dim\": 384}, \"4\": {\"head_dim\": 384}}",
           "layer 4");
    refuse(HEADS, "\"per_layer_config\": {\"5\": {\"sliding_window\": 8}}", "\"sliding_window\"");
    refuse(HEADS, "\"per_layer_config\": {}", "object with layers");
}

static void experts_stand_beside_a_dense_ffn(void)
{
    struct arch m;
    const struct status st =
        parse_changed(DENSE,
                      "\"enable_moe_block\": true, \"num_experts\": 128, \"top_k_experts\": 8,"
                      " \"moe_intermediate_size\": 704",
                      &m);
    CU_ASSERT_EQUAL_FATAL(st.code, STATUS_OK);
    CU_ASSERT(m.moe.n_experts == 128 && m.moe.n_chosen == 8 && m.moe.ffn == 704 && m.moe.joins);
    CU_ASSERT(m.moe.shared_ffn == 21504 && m.ffn == 0 && m.layer.is_moe[0] && m.layer.is_moe[11]);
    CU_ASSERT(m.moe.router.kind == ROUTER_SOFTMAX_RENORM && m.moe.router.scale == 0);
    CU_ASSERT((arch_layer_parts(&m, 0) & PART_JOINED) != 0);
    refuse(DENSE, "\"enable_moe_block\": true", "num_experts");
    refuse(DENSE, "\"enable_moe_block\": true, \"num_experts\": 4, \"moe_intermediate_size\": 8",
           "top_k_experts");
    refuse(DENSE, "\"num_experts_per_tok\": 2", "num_experts_per_tok");
}

static void ranks_hold_whole_heads_of_both_widths(void)
{
    struct arch m;
    struct layout_model model;
    struct layout *l = calloc(1, sizeof *l);
    const struct status st = parse_changed("{", "{", &m);
    CU_ASSERT_EQUAL_FATAL(st.code, STATUS_OK);
    layout_describe(&m, 2, &model);
    CU_ASSERT_EQUAL(layout_build(&model, 8, &(struct layout_flags){.tp = 8}, l).code, STATUS_OK);
    for (uint32_t r = 0; r < 8; r++) {
        const struct range heads = layout_heads(l, r), full = layout_full_kv_heads(l, r);
        CU_ASSERT(heads.begin == 4 * r && heads.end == 4 * r + 4);
        CU_ASSERT(full.begin == r / 2 && full.end == r / 2 + 1);
    }
    free(l);
}

/* A rank holds whole quantization groups, here of 96 values, in layers with heads of 48 values and
 * in those with heads of 64. 2 heads of 48 fill a group, 3 heads of 64 fill two, so ranks are cut
 * at multiples of 6 heads. */
static void ranks_hold_whole_groups_of_both_widths(void)
{
    static const struct range with_groups[] = {{0, 18}, {18, 30}},
                              with_leaves[] = {{0, 24}, {24, 30}};
    struct arch m;
    struct layout_model model;
    struct layout *l = calloc(1, sizeof *l);
    const struct status st = parse_changed("{", "{", &m);
    CU_ASSERT_EQUAL_FATAL(st.code, STATUS_OK);
    m.attn.n_heads = 30;
    m.attn.n_kv_heads = m.attn.n_full_kv_heads = 15;
    m.attn.query_dim = m.attn.value_dim = 48;
    m.attn.head_dim = m.attn.full_dim = 64;
    layout_describe(&m, 2, &model);
    model.o_leaf = 12 * 48;
    model.inner_unit = 96;
    CU_ASSERT_EQUAL(layout_build(&model, 2, &(struct layout_flags){.tp = 2}, l).code, STATUS_OK);
    for (int cuts = 0; cuts < 2; cuts++) {
        l->cuts_outputs = cuts;
        for (uint32_t r = 0; r < 2; r++) {
            const struct range found = layout_heads(l, r),
                               wanted = (cuts ? with_groups : with_leaves)[r];
            CU_ASSERT(found.begin == wanted.begin && found.end == wanted.end);
        }
    }
    free(l);
}

static void a_part_of_a_head_rotates(void)
{
    struct js_doc *doc = NULL;
    struct arch_rope full, local;
    uint64_t n_heads;
    const struct status st = js_parse(published, strlen(published), "config.json", &doc);
    CU_ASSERT_EQUAL_FATAL(st.code, STATUS_OK);
    CU_ASSERT_EQUAL(arch_rope_make(js_root(doc), &full).code, STATUS_OK);
    CU_ASSERT_EQUAL(arch_rope_make_local(js_root(doc), &local).code, STATUS_OK);
    CU_ASSERT(full.n == 256 && local.n == 128);
    /* 64 pairs of 1e6^(-2i / 512), the others do not rotate */
    CU_ASSERT(full.inv_freq[0] == 1 && full.inv_freq[64] == 0 && full.inv_freq[255] == 0);
    CU_ASSERT_DOUBLE_EQUAL(full.inv_freq[63], 0.0333763, 1e-6);
    CU_ASSERT_DOUBLE_EQUAL(local.inv_freq[64], 0.01, 1e-7);
    CU_ASSERT(arch_full_dim(js_root(doc), &n_heads) == 512 && n_heads == 32);
    mem_free(&full.inv_freq);
    mem_free(&local.inv_freq);
    js_destroy(&doc);
}

static void what_the_small_models_have_is_refused(void)
{
    refuse("\"hidden_size_per_layer_input\": 0", "\"hidden_size_per_layer_input\": 256",
           "hidden_size_per_layer_input");
    refuse("\"hidden_size_per_layer_input\": 0, ", "", "hidden_size_per_layer_input");
    refuse("\"num_kv_shared_layers\": 0", "\"num_kv_shared_layers\": 4", "num_kv_shared_layers");
    refuse("\"vision\"", "\"all\"", "use_bidirectional_attention");
}

static void fields_are_checked(void)
{
    refuse("\"global_head_dim\": 512, ", "", "global_head_dim");
    refuse("\"global_head_dim\": 512", "\"global_head_dim\": 511", "even number");
    refuse("_heads\": 4", "_heads\": 5", "num_global_key_value_heads");
    refuse("\"attention_bias\": false", "\"attention_bias\": true", "attention_bias");
    refuse("\"layer_types\": [" PERIOD ", " PERIOD "], ", "", "layer_types");
    refuse(PERIOD "], \"max",
           PERIOD ", " SLIDES SLIDES SLIDES SLIDES SLIDES "\"sliding_attention\"], \"max",
           "layer_types");
    refuse("\"partial_rotary_factor\": 0.25", "\"partial_rotary_factor\": 1.25",
           "partial_rotary_factor");
    refuse("\"proportional\"", "\"linear\"", "rope_parameters.full_attention");
    refuse("\"proportional\"", "\"default\"", "partial_rotary_factor");
    refuse("\"rope_theta\": 10000.0", "\"rope_theta\": 1e4, \"partial_rotary_factor\": 0.5",
           "rope_parameters.sliding_attention");
    refuse(ROPE, "\"rope_theta\": 10000.0", "rope_parameters");
    refuse("\"sliding_window\": 1024", "\"sliding_window\": 0", "sliding_window");
    refuse("\"Gemma4ForCausalLM\"", "\"Gemma3ForCausalLM\"", "not implemented for");
}

void suite_arch_typed(CU_pSuite suite);
void suite_arch_typed(CU_pSuite suite)
{
    CU_add_test(suite, "layers have heads by their kind", layers_have_heads_by_their_kind);
    CU_add_test(suite, "heads of single layers are read", heads_of_single_layers_are_read);
    CU_add_test(suite, "experts stand beside a dense FFN", experts_stand_beside_a_dense_ffn);
    CU_add_test(suite, "ranks hold whole heads of both widths",
                ranks_hold_whole_heads_of_both_widths);
    CU_add_test(suite, "ranks hold whole groups of both widths",
                ranks_hold_whole_groups_of_both_widths);
    CU_add_test(suite, "a part of a head rotates", a_part_of_a_head_rotates);
    CU_add_test(suite, "what the small models have is refused",
                what_the_small_models_have_is_refused);
    CU_add_test(suite, "fields are checked", fields_are_checked);
}

/* The formats that a policy chooses, and the leaves (K-blocks) of quantized tensors. */
#include "base/mem.h"
#include "calibrate/quantize_plan.h"
#include "unit/util_ckpt.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <string.h>

static void policies(void)
{
    struct quantize_policy p;
    CU_ASSERT_EQUAL_FATAL(quantize_policy_parse("int4", NULL, &p).code, STATUS_OK);
    CU_ASSERT_EQUAL(p.classes[QUANTIZE_ATTENTION].format.kind, QUANT_INT4);
    CU_ASSERT_EQUAL(p.classes[QUANTIZE_EXPERTS].format.group, 32);
    CU_ASSERT_EQUAL(p.classes[QUANTIZE_HEAD].format.kind, QUANT_INT8);
    CU_ASSERT_EQUAL(p.classes[QUANTIZE_EMBEDDING].format.group, 128);
    CU_ASSERT_TRUE(p.classes[QUANTIZE_ROUTER].keep);
    for (int i = 0; i < 2; i++) {
        const char *const fp = i == 0 ? "mxfp4" : "fp8";
        CU_ASSERT_EQUAL_FATAL(quantize_policy_parse(fp, NULL, &p).code, STATUS_OK);
        CU_ASSERT_EQUAL(p.classes[QUANTIZE_HEAD].format.kind, i == 0 ? QUANT_INT8 : QUANT_FP8);
        CU_ASSERT_EQUAL(p.classes[QUANTIZE_HEAD].format.group, i == 0 ? 128 : 0);
        CU_ASSERT_EQUAL(p.classes[QUANTIZE_FFN].format.group, i == 0 ? 32 : 0);
    }
    CU_ASSERT_EQUAL_FATAL(quantize_policy_parse("f16", NULL, &p).code, STATUS_OK);
    for (int i = 0; i < QUANTIZE_CLASS_COUNT; i++) {
        CU_ASSERT_TRUE(!p.classes[i].keep && p.classes[i].format.kind == QUANT_NONE);
        CU_ASSERT_EQUAL(p.classes[i].dtype, DTYPE_F16);
    }
    CU_ASSERT_EQUAL_FATAL(
        quantize_policy_parse("int8", "ffn=int4-asym-g64,head=keep,router=bf16", &p).code,
        STATUS_OK);
    CU_ASSERT_TRUE(p.classes[QUANTIZE_FFN].format.has_zeros);
    CU_ASSERT_EQUAL(p.classes[QUANTIZE_FFN].format.group, 64);
    CU_ASSERT_TRUE(p.classes[QUANTIZE_HEAD].keep);
    CU_ASSERT_EQUAL(p.classes[QUANTIZE_ROUTER].dtype, DTYPE_BF16);
    CU_ASSERT_EQUAL(p.classes[QUANTIZE_ATTENTION].format.kind, QUANT_INT8);
}

static void check_groups(const char *format, const char *policy, uint32_t embedding,
                         uint32_t attention, uint32_t ffn)
{
    struct quantize_policy p;
    CU_ASSERT_EQUAL_FATAL(quantize_policy_parse(format, policy, &p).code, STATUS_OK);
    CU_ASSERT_EQUAL(p.classes[QUANTIZE_EMBEDDING].format.group, embedding);
    CU_ASSERT_EQUAL(p.classes[QUANTIZE_HEAD].format.group, embedding);
    CU_ASSERT_EQUAL(p.classes[QUANTIZE_ATTENTION].format.group, attention);
    CU_ASSERT_EQUAL(p.classes[QUANTIZE_FFN].format.group, ffn);
    CU_ASSERT_EQUAL(p.classes[QUANTIZE_EXPERTS].format.group, ffn);
    for (int i = 0; i < QUANTIZE_CLASS_COUNT; i++) {
        CU_ASSERT_EQUAL(p.classes[i].class, (enum quantize_class)i);
        CU_ASSERT_EQUAL(p.classes[i].keep, i == QUANTIZE_ROUTER);
    }
}

static void int8_has_the_groups_that_activations_need(void)
{
    check_groups("int8", NULL, 32, 32, 64);
    check_groups("int8-asym", NULL, 32, 32, 64);
    check_groups("int8-g128", NULL, 32, 128, 128);
    check_groups("int8", "embedding=int8,head=int8,attention=int8,ffn=int8,experts=int8", 0, 0, 0);
    check_groups("int4", "attention=int8", 128, 0, 32);
}

static void wrong_policies_are_refused(void)
{
    static const char *const wrong[] = {"ffn",        "ffn=",  "ffn=int9",
                                        "norms=int8", "=int8", "ffn=int8;head=int8"};
    struct quantize_policy p;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        CU_ASSERT_EQUAL(quantize_policy_parse("int8", wrong[i], &p).code, STATUS_USAGE);
    }
    CU_ASSERT_EQUAL(quantize_policy_parse("int5", NULL, &p).code, STATUS_USAGE);
}

/* Makes a file of one dense layer with these sizes; o_proj and down_proj have leaves. */
static struct status file_make(const char *path, uint32_t n_heads, uint32_t head_dim,
                               uint32_t n_ffn)
{
    struct ckpt_writer *w = NULL;
    char config[512];
    const int n = snprintf(config, sizeof config,
                           "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\","
                           "\"hidden_size\": 32, \"num_attention_heads\": %u, \"head_dim\": %u,"
                           "\"num_key_value_heads\": 1, \"intermediate_size\": %u,"
                           "\"num_hidden_layers\": 1, \"vocab_size\": 16, \"rms_norm_eps\": 1e-5,"
                           "\"max_position_embeddings\": 64, \"rope_theta\": 10000.0,"
                           "\"hidden_act\": \"silu\", \"tie_word_embeddings\": true}",
                           n_heads, head_dim, n_ffn);
    const uint64_t d = 32, q = (uint64_t)n_heads * head_dim, kv = head_dim, f = n_ffn;
    const struct ckpt_tensor_spec specs[] = {
        {.name = "model.embed_tokens.weight", .n_dims = 2, .dims = {16, d}},
        {.name = "model.layers.0.input_layernorm.weight", .n_dims = 1, .dims = {d}},
        {.name = "model.layers.0.mlp.down_proj.weight",
         .n_dims = 2,
         .dims = {d, f},
         .leaf_elems = 32,
         .grid_bits = 32},
        {.name = "model.layers.0.mlp.gate_proj.weight", .n_dims = 2, .dims = {f, d}},
        {.name = "model.layers.0.mlp.up_proj.weight", .n_dims = 2, .dims = {f, d}},
        {.name = "model.layers.0.post_attention_layernorm.weight", .n_dims = 1, .dims = {d}},
        {.name = "model.layers.0.self_attn.k_proj.weight", .n_dims = 2, .dims = {kv, d}},
        {.name = "model.layers.0.self_attn.o_proj.weight",
         .n_dims = 2,
         .dims = {d, q},
         .leaf_elems = head_dim,
         .grid_bits = 32},
        {.name = "model.layers.0.self_attn.q_proj.weight", .n_dims = 2, .dims = {q, d}},
        {.name = "model.layers.0.self_attn.v_proj.weight", .n_dims = 2, .dims = {kv, d}},
        {.name = "model.norm.weight", .n_dims = 1, .dims = {d}},
    };
    static const float zeros[1 << 20];
    struct status st;
    TRY_GOTO(st, ckpt_writer_create(path, "a test", &w), out);
    TRY_GOTO(st, ckpt_writer_config(w, config, (size_t)n), out);
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        const uint64_t n_rows = specs[i].n_dims == 1 ? 1 : specs[i].dims[0];
        TRY_GOTO(st, ckpt_writer_tensor(w, &specs[i]), out);
        TRY_GOTO(st, ckpt_writer_rows(w, zeros, n_rows), out);
    }
    return ckpt_writer_finish(&w);
out:
    ckpt_writer_destroy(&w);
    return st;
}

/* Checks the leaves of o_proj and down_proj, and the group of o_proj. */
static void check_leaves(uint32_t n_heads, uint32_t head_dim, uint32_t n_ffn, const char *format,
                         uint32_t o_leaf, uint32_t o_group, uint32_t down_leaf)
{
    struct ckpt *c = NULL;
    struct arch m;
    struct quantize_policy p;
    struct quantize_choice *choices = NULL;
    struct status st = file_make(scratch("p.h5"), n_heads, head_dim, n_ffn);
    size_t n;
    if (!status_failed(&st)) st = ckpt_open(scratch("p.h5"), &c);
    if (!status_failed(&st)) st = quantize_policy_parse(format, NULL, &p);
    if (!status_failed(&st)) {
        const char *config = ckpt_config_json(c, &n);
        st = arch_parse(config, n, "config", &m);
    }
    if (!status_failed(&st)) st = quantize_choose(c, &m, &p, &choices);
    if (status_failed(&st)) fprintf(stderr, "%s\n", st.text);
    CU_ASSERT_EQUAL_FATAL(st.code, STATUS_OK);
    const struct ckpt_tensor *o = ckpt_find(c, "model.layers.0.self_attn.o_proj.weight");
    const struct ckpt_tensor *down = ckpt_find(c, "model.layers.0.mlp.down_proj.weight");
    CU_ASSERT_EQUAL(choices[o->index].leaf_elems, o_leaf);
    CU_ASSERT_EQUAL(choices[o->index].format.group, o_group);
    CU_ASSERT_EQUAL(choices[o->index].grid_bits, 32);
    CU_ASSERT_EQUAL(choices[down->index].leaf_elems, down_leaf);
    CU_ASSERT_TRUE(choices[ckpt_find(c, "model.norm.weight")->index].keep);
    mem_free(&choices);
    ckpt_close(&c);
    scratch_clear();
}

static void leaves_fit_heads_groups_and_ranks(void)
{
    check_leaves(9, 64, 1536, "int4", 128, 32, 256);
    check_leaves(32, 64, 5632, "int4", 256, 32, 512);
    check_leaves(32, 64, 5632, "int8", 256, 32, 512);
    check_leaves(32, 64, 5632, "int8-g128", 256, 128, 512);
    check_leaves(16, 64, 3584, "int8", 256, 32, 448);
    check_leaves(16, 64, 3584, "int8-g128", 256, 128, 512);
    check_leaves(16, 64, 3584, "int4", 256, 32, 448);
    check_leaves(
        8, 16, 160, "int8", 32, 32,
        32); /* down_proj would have too few leaves with groups of 64, and gets groups of 32 */
    check_leaves(8, 16, 160, "int4", 32, 32, 32);
    check_leaves(16, 80, 1024, "int4-g128", 320, 64, 256); /* the least common multiple of 128
                                                              and 80 is 640 */
    check_leaves(4, 64, 512, "f32", 64, 0, 32);            /* floats keep their leaves */
    check_leaves(6, 32, 192, "int8", 32, 32, 32);          /* down_proj: groups of 32 */
    check_leaves(4, 48, 192, "int8", 96, 32, 32);
}

void suite_quantize_plan(CU_pSuite suite);
void suite_quantize_plan(CU_pSuite suite)
{
    CU_add_test(suite, "policies", policies);
    CU_add_test(suite, "int8 has the groups that activations need",
                int8_has_the_groups_that_activations_need);
    CU_add_test(suite, "wrong policies are refused", wrong_policies_are_refused);
    CU_add_test(suite, "leaves fit heads, groups and ranks", leaves_fit_heads_groups_and_ranks);
}

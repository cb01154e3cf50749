/* MiniMax-M3: its published config with fewer layers, what its index adds to a KV block, and
 * configs that are refused. */
#include "arch/arch_tensors.h"
#include "attention/kv_pool.h"
#include "parallel/layout/layout.h"
#include "util_arch.h"

#include <stdlib.h>

#define SIZES                                                                                      \
    "\"architectures\":[\"MiniMaxM3VLForCausalLM\"],\"dense_intermediate_size\":12288,"            \
    "\"head_dim\":128,\"hidden_size\":6144,\"intermediate_size\":3072,"                            \
    "\"max_position_embeddings\":524288,\"num_attention_heads\":64,\"num_experts_per_tok\":4,"     \
    "\"num_hidden_layers\":5,\"num_key_value_heads\":4,\"num_local_experts\":128,"                 \
    "\"rms_norm_eps\":1e-06,\"rope_theta\":5000000,\"rotary_dim\":64,"                             \
    "\"routed_scaling_factor\":2.0,\"shared_intermediate_size\":3072,\"vocab_size\":200064,"
#define PUBLISHED                                                                                  \
    SIZES "\"hidden_act\":\"swigluoai\",\"moe_layer_freq\":[0,0,0,1,1],\"n_shared_experts\":1,"    \
          "\"num_mtp_modules\":0,\"partial_rotary_factor\":0.5,\"qk_norm_type\":\"per_head\","     \
          "\"scoring_func\":\"sigmoid\",\"swiglu_alpha\":1.702,\"swiglu_limit\":7.0,"              \
          "\"use_gemma_norm\":true,\"use_qk_norm\":true,\"use_routing_bias\":true"
#define SPARSE(more)                                                                               \
    ",\"sparse_attention_config\":{\"use_sparse_attention\":true,\"sparse_index_dim\":128,"        \
    "\"sparse_num_index_heads\":4,\"sparse_topk_blocks\":16,\"sparse_block_size\":128,"            \
    "\"sparse_score_type\":\"max\",\"sparse_init_block\":0,\"sparse_local_block\":1,"              \
    "\"sparse_disable_index_value\":[0,0,0,1,1],\"sparse_attention_freq\":[0,0,0,1,1]" more "}"
/* The config as transformers writes it. */
#define FLAT(heads, dim, block, topk, local)                                                       \
    SIZES "\"partial_rotary_factor\":0.5,\"index_n_heads\":" heads ",\"index_head_dim\":" dim      \
          ",\"index_block_size\":" block ",\"index_topk_blocks\":" topk                            \
          ",\"index_local_blocks\":" local ",\"layer_types\":[\"full_attention\","                 \
          "\"minimax_m3_sparse\",\"minimax_m3_sparse\",\"full_attention\",\"full_attention\"]"

/* Returns a config with `wrong` in the place of `right`. */
static const char *with(const char *config, const char *right, const char *wrong)
{
    static char text[2048];
    const char *at = strstr(config, right);
    CU_ASSERT_PTR_NOT_NULL_FATAL(at);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - config), config, wrong, at + strlen(right));
    return text;
}

static void published_fields_are_read(void)
{
    CU_ASSERT_EQUAL_FATAL(parse(PUBLISHED SPARSE("")).code, STATUS_OK);
    CU_ASSERT(m.index.n_heads == 4 && m.index.dim == 128 && m.index.block == 128);
    CU_ASSERT(m.index.n_chosen == 2048 && m.index.n_local == 1 && !m.index.pairs);
    CU_ASSERT(m.ffn == 12288 && m.moe.ffn == 3072 && m.moe.shared_ffn == 3072);
    CU_ASSERT(m.swiglu.everywhere && m.swiglu.alpha == 1.702f && m.swiglu.limit == 7);
    CU_ASSERT(m.attn.rotary == 64 && m.attn.qk_norm && m.moe.select_bias);
    CU_ASSERT(m.moe.router.kind == ROUTER_SIGMOID_RENORM && m.moe.router.scale == 2);
    CU_ASSERT(!m.layer.is_moe[2] && m.layer.is_moe[3]);
    CU_ASSERT(!arch_has_index(&m, 2) && arch_has_index(&m, 3) && arch_is_sparse(&m, 4));
    CU_ASSERT((arch_layer_parts(&m, 3) & PART_BLOCK_INDEX) != 0);
    CU_ASSERT((arch_layer_parts(&m, 2) & PART_BLOCK_INDEX) == 0);
    CU_ASSERT_EQUAL(arch_dim_size(&m, DIM_INDEX_KV), 4 * 128);
    CU_ASSERT_EQUAL(arch_dim_axis(DIM_INDEX_KV), AXIS_KV_HEADS);
}

static void transformers_fields_are_read(void)
{
    CU_ASSERT_EQUAL_FATAL(parse(FLAT("4", "64", "64", "3", "0")).code, STATUS_OK);
    CU_ASSERT(m.index.dim == 64 && m.index.n_chosen == 192 && m.index.n_local == 0);
    CU_ASSERT(!arch_has_index(&m, 0) && arch_has_index(&m, 1) && !arch_has_index(&m, 3));
    CU_ASSERT(m.layer.is_moe[0]); /* without lists, all layers */
    /* no layer has an index, so its sizes do not matter */
    CU_ASSERT_EQUAL_FATAL(parse(SIZES "\"partial_rotary_factor\":0.5").code, STATUS_OK);
    CU_ASSERT(m.index.n_heads == 0 && !arch_is_sparse(&m, 1));
    /* more blocks than the context has */
    CU_ASSERT_EQUAL_FATAL(parse(FLAT("4", "64", "128", "5000", "1")).code, STATUS_OK);
    CU_ASSERT_EQUAL(m.index.n_chosen, 524288);
}

/* A layout counts the bytes that the pool allocates. Each rank has all index keys of a layer,
 * however many KV heads it has. */
static void index_keys_lie_behind_the_blocks(void)
{
    static const enum dtype types[] = {DTYPE_F16, DTYPE_I8};
    struct layout_model *model = calloc(1, sizeof *model);
    struct layout *l = calloc(1, sizeof *l);
    CU_ASSERT_EQUAL_FATAL(parse(PUBLISHED SPARSE("")).code, STATUS_OK);
    layout_describe(&m, 2, model);
    for (uint32_t tp = 1; tp <= 8; tp *= 2) {
        const struct layout_flags flags = {.tp = tp, .pp = 1, .ep = tp, .dp = 1};
        const uint32_t n_kv = tp < 4 ? 4 / tp : 1;
        CU_ASSERT_EQUAL_FATAL(layout_build(model, tp, &flags, l).code, STATUS_OK);
        for (int i = 0; i < 2; i++) {
            const struct layout_memory found =
                layout_memory_of(l, layout_place_of(l, 0), kv_layout(types[i]), 256);
            CU_ASSERT_EQUAL(found.kv_block_bytes,
                            kv_pool_block_bytes(5, n_kv, 128, types[i], false) +
                                2 * kv_pool_index_bytes(types[i], 128));
        }
    }
    free(model);
    free(l);
}

static void published_configs_are_refused(void)
{
    static const char whole[] = PUBLISHED SPARSE("");
    const char *freq = "freq\":[0,0,0,1,1]}";
    refuse(PUBLISHED ",\"sparse_attention_config\":[7]", "expected an object");
    refuse(PUBLISHED SPARSE(",\"sparse_window\":4"), "sparse_window");
    refuse(with(whole, "init_block\":0", "init_block\":1"), "sparse_init_block");
    refuse(with(whole, "\"max\"", "\"mean\""), "sparse_score_type");
    refuse(with(whole, "sparse_attention\":true", "sparse_attention\":false"),
           "use_sparse_attention");
    refuse(with(whole, "value\":[0,0,0,1,1]", "value\":[0,0,0,1,0]"),
           "sparse_disable_index_value[4]");
    refuse(with(whole, freq, "freq\":[0,0,0,1]}"), "sparse_attention_freq[4]");
    refuse(with(whole, freq, "freq\":[0,0,0,1,2]}"), "sparse_attention_freq[4]");
    refuse(with(whole, "topk_blocks\":16", "topk_blocks\":\"x\""), "sparse_topk_blocks");
    refuse(with(whole, "local_block\":1", "local_block\":17"), "index_local_blocks");
    refuse(with(whole, "\"sparse_num_index_heads\":4,", ""), "index_n_heads");
    refuse(PUBLISHED ",\"layer_types\":[\"full_attention\",\"x\"]", "layer_types[1]");
    refuse(PUBLISHED SPARSE("") ",\"layer_types\":[\"minimax_m3_sparse\"]", "layer_types[0]");
    refuse(PUBLISHED ",\"mlp_layer_types\":[\"sparse\",\"dense\",\"dense\",\"sparse\",\"sparse\"]",
           "moe_layer_freq[0]");
    refuse(with(whole, "freq\":[0,0,0", "freq\":[0,0,2"), "moe_layer_freq[2]");
    refuse(with(whole, "layer_freq\":[0,0,0,1,1]", "layer_freq\":[0,0]"), "mlp_layer_types[2]");
    refuse(with(whole, "shared_experts\":1", "shared_experts\":2"), "n_shared_experts");
    refuse(with(whole, "gemma_norm\":true", "gemma_norm\":false"), "use_gemma_norm");
    refuse(with(whole, "per_head", "per_layer"), "qk_norm_type");
    refuse(with(whole, "rotary_dim\":64", "rotary_dim\":32"), "rotary_dim");
    refuse(with(whole, "\"dense_intermediate_size\":12288,", ""), "dense_intermediate_size");
    refuse(with(whole, "\"intermediate_size\":3072,", ""), "\"intermediate_size\"");
    refuse(PUBLISHED ",\"index_topk\":8", "index_topk");
    refuse(PUBLISHED ",\"n_group\":8,\"topk_group\":4", "n_group");
}

static void sizes_must_fit(void)
{
    refuse(FLAT("2", "64", "64", "3", "0"), "index_n_heads");
    refuse(FLAT("4", "72", "64", "3", "0"), "index_head_dim");
    refuse(FLAT("4", "48", "64", "3", "0"), "index_head_dim"); /* less than what RoPE rotates */
    refuse(FLAT("4", "64", "96", "3", "0"), "index_block_size");
    refuse(FLAT("4", "64", "64", "3", "4"), "index_local_blocks");
    refuse(FLAT("4", "64", "64", "0", "0"), "index_topk_blocks");
    refuse(SIZES "\"index_head_dim\":64", "partial_rotary_factor");
    refuse(LLAMA ",\"index_block_size\":64", "index_block_size");
    refuse(LLAMA ",\"sparse_attention_config\":{\"sparse_index_dim\":4}",
           "sparse_attention_config");
}

void suite_arch_block_index(CU_pSuite suite);
void suite_arch_block_index(CU_pSuite suite)
{
    CU_add_test(suite, "published fields are read", published_fields_are_read);
    CU_add_test(suite, "transformers' fields are read", transformers_fields_are_read);
    CU_add_test(suite, "index keys lie behind the blocks", index_keys_lie_behind_the_blocks);
    CU_add_test(suite, "published configs are refused", published_configs_are_refused);
    CU_add_test(suite, "sizes must fit", sizes_must_fit);
}

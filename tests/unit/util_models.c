/* The models of util_models.h. In MODEL_ODD little divides evenly: a leaf of o_proj holds two heads
 * and a kv head serves three, the last leaf of each row-parallel linear is shorter, and dense
 * layers alternate with MoE layers. */
#include "util_models.h"

static struct arch archs[MODEL_COUNT] = {
    [MODEL_SMOLLM2] = {.n_layers = 30,
                       .width = 576,
                       .attn.n_heads = 9,
                       .attn.n_kv_heads = 3,
                       .attn.head_dim = 64,
                       .attn.query_dim = 64,
                       .attn.value_dim = 64,
                       .attn.rotary = 64,
                       .ffn = 1536,
                       .vocab = 49152,
                       .tied = true,
                       .context = 8192},
    [MODEL_MIXTRAL] = {.n_layers = 32,
                       .width = 4096,
                       .attn.n_heads = 32,
                       .attn.n_kv_heads = 8,
                       .attn.head_dim = 128,
                       .attn.query_dim = 128,
                       .attn.value_dim = 128,
                       .attn.rotary = 128,
                       .moe.n_experts = 8,
                       .moe.n_chosen = 2,
                       .moe.ffn = 14336,
                       .vocab = 32000,
                       .context = 32768},
    [MODEL_QWEN3] = {.n_layers = 94,
                     .width = 4096,
                     .attn.n_heads = 64,
                     .attn.n_kv_heads = 4,
                     .attn.head_dim = 128,
                     .attn.query_dim = 128,
                     .attn.value_dim = 128,
                     .attn.rotary = 128,
                     .moe.n_experts = 128,
                     .moe.n_chosen = 8,
                     .moe.ffn = 1536,
                     .vocab = 151936,
                     .attn.qk_norm = true,
                     .context = 40960},
    [MODEL_DEMO] = {.n_layers = 4,
                    .width = 128,
                    .attn.n_heads = 8,
                    .attn.n_kv_heads = 4,
                    .attn.head_dim = 32,
                    .attn.query_dim = 32,
                    .attn.value_dim = 32,
                    .attn.rotary = 32,
                    .moe.n_experts = 8,
                    .moe.n_chosen = 2,
                    .moe.ffn = 192,
                    .vocab = 2048,
                    .tied = true,
                    .attn.qk_norm = true,
                    .context = 1024},
    [MODEL_ODD] = {.n_layers = 7,
                   .width = 80,
                   .attn.n_heads = 15,
                   .attn.n_kv_heads = 5,
                   .attn.head_dim = 8,
                   .attn.query_dim = 8,
                   .attn.value_dim = 8,
                   .attn.rotary = 8,
                   .ffn = 250,
                   .moe.n_experts = 5,
                   .moe.n_chosen = 3,
                   .moe.ffn = 70,
                   .vocab = 1003,
                   .attn.qkv_bias = true,
                   .attn.o_bias = true,
                   .context = 512},
};

/* The leaf sizes and the bytes per weight of the models. */
static const struct layout_model models[MODEL_COUNT] = {
    [MODEL_SMOLLM2] = {.name = "SmolLM2-135M", .o_leaf = 64, .ffn_leaf = 256, .weight_bytes = 2},
    [MODEL_MIXTRAL] = {.name = "Mixtral-8x7B",
                       .o_leaf = 256,
                       .expert_leaf = 512,
                       .weight_bytes = 2},
    [MODEL_QWEN3] = {.name = "Qwen3-235B-A22B",
                     .o_leaf = 256,
                     .expert_leaf = 256,
                     .weight_bytes = 2},
    [MODEL_DEMO] = {.name = "demo", .o_leaf = 32, .expert_leaf = 64, .weight_bytes = 4},
    [MODEL_ODD] =
        {.name = "odd", .o_leaf = 16, .ffn_leaf = 48, .expert_leaf = 32, .weight_bytes = 2},
};

struct layout_model util_model(enum util_model which)
{
    struct layout_model m = models[which];
    struct arch *a = &archs[which];
    for (size_t i = 0; a->family == NULL || !a->family->has_experts; i++)
        a->family = arch_family_at(i);
    for (uint32_t i = 0; i < a->n_layers; i++) {
        a->layer.is_moe[i] = a->moe.n_experts > 0 && (a->ffn == 0 || i % 2 == 1);
    }
    m.arch = a;
    return m;
}

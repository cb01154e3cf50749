/* The models of util_models.h. MODEL_ODD divides evenly by nothing: leaves have two heads and kv
 * groups three, all dimensions have a rest, and dense layers alternate with MoE layers. */
#include "util_models.h"

static struct arch archs[MODEL_COUNT] = {
    [MODEL_SMOLLM2] = {.n_layers = 30,
                       .width = 576,
                       .n_heads = 9,
                       .n_kv_heads = 3,
                       .head_dim = 64,
                       .query_dim = 64,
                       .value_dim = 64,
                       .rotary = 64,
                       .ffn = 1536,
                       .vocab = 49152,
                       .tied = true,
                       .context = 8192},
    [MODEL_MIXTRAL] = {.n_layers = 32,
                       .width = 4096,
                       .n_heads = 32,
                       .n_kv_heads = 8,
                       .head_dim = 128,
                       .query_dim = 128,
                       .value_dim = 128,
                       .rotary = 128,
                       .n_experts = 8,
                       .n_chosen = 2,
                       .expert_ffn = 14336,
                       .vocab = 32000,
                       .context = 32768},
    [MODEL_QWEN3] = {.n_layers = 94,
                     .width = 4096,
                     .n_heads = 64,
                     .n_kv_heads = 4,
                     .head_dim = 128,
                     .query_dim = 128,
                     .value_dim = 128,
                     .rotary = 128,
                     .n_experts = 128,
                     .n_chosen = 8,
                     .expert_ffn = 1536,
                     .vocab = 151936,
                     .qk_norm = true,
                     .context = 40960},
    [MODEL_DEMO] = {.n_layers = 4,
                    .width = 128,
                    .n_heads = 8,
                    .n_kv_heads = 4,
                    .head_dim = 32,
                    .query_dim = 32,
                    .value_dim = 32,
                    .rotary = 32,
                    .n_experts = 8,
                    .n_chosen = 2,
                    .expert_ffn = 192,
                    .vocab = 2048,
                    .tied = true,
                    .qk_norm = true,
                    .context = 1024},
    [MODEL_ODD] = {.n_layers = 7,
                   .width = 80,
                   .n_heads = 15,
                   .n_kv_heads = 5,
                   .head_dim = 8,
                   .query_dim = 8,
                   .value_dim = 8,
                   .rotary = 8,
                   .ffn = 250,
                   .n_experts = 5,
                   .n_chosen = 3,
                   .expert_ffn = 70,
                   .vocab = 1003,
                   .qkv_bias = true,
                   .o_bias = true,
                   .context = 512},
};

/* The formats in which the models are stored. */
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
        a->layer_is_moe[i] = a->n_experts > 0 && (a->ffn == 0 || i % 2 == 1);
    }
    m.arch = a;
    return m;
}

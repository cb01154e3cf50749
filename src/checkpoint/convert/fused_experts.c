/* Splits the fused expert tensors of gpt-oss, Llama-4, Qwen3.5-MoE, MiniMax-M3, Mistral-4 and
 * Gemma-4 into matrices and biases. */
#include "checkpoint/convert/fused_experts.h"

#include <stdio.h>
#include <string.h>

/* The architectures, and the text before the suffixes of their fused tensors. */
static const struct fused_model {
    const char *architecture, *where;
    bool has_halves; /* gate's outputs all come before up's; otherwise they alternate */
    bool by_output;  /* stored as [experts, outputs, inputs] */
} models[] = {
    {"GptOssForCausalLM", ".mlp.experts.", false, false},
    {"Llama4ForCausalLM", ".feed_forward.experts.", true, false},
    {"Qwen3_5MoeForCausalLM", ".mlp.experts.", true, true},
    {"MiniMaxM3VLForCausalLM", ".mlp.experts.", true, true},
    {"Mistral4ForCausalLM", ".mlp.experts.", true, true},
    {"Gemma4ForCausalLM", ".experts.", true, true},
};

/* The suffixes of fused tensors, and the names of their parts. */
static const struct fused_kind {
    const char *suffix, *parts[FUSED_PARTS_MAX];
    bool is_bias, by_output;
} kinds[] = {
    {"gate_up_proj", {"gate_proj.weight", "up_proj.weight"}, false, false},
    {"gate_up_proj.weight", {"gate_proj.weight", "up_proj.weight"}, false, true},
    {"gate_up_proj_bias", {"gate_proj.bias", "up_proj.bias"}, true, false},
    {"down_proj", {"down_proj.weight", NULL}, false, false},
    {"down_proj_bias", {"down_proj.bias", NULL}, true, false},
};

static const struct fused_model *fused_model_of(const struct js_node *config)
{
    const char *model = js_string(js_at(js_get(config, "architectures"), 0), NULL);
    for (size_t i = 0; model != NULL && i < sizeof models / sizeof models[0]; i++) {
        if (strcmp(model, models[i].architecture) == 0) return &models[i];
    }
    return NULL;
}

static const struct fused_kind *fused_experts_kind_of(const struct fused_model *model,
                                                      const char *name, bool by_output,
                                                      const char **end)
{
    const char *found = model == NULL ? NULL : strstr(name, model->where);
    if (found == NULL) return NULL;
    *end = found + strlen(model->where);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (by_output == kinds[i].by_output && strcmp(*end, kinds[i].suffix) == 0) return &kinds[i];
    }
    return NULL;
}

struct status fused_experts_parts(const struct js_node *config, const char *name, uint32_t n_dims,
                                  const uint64_t *dims, bool by_output,
                                  struct fused_part parts[FUSED_PARTS_MAX], size_t *n)
{
    const char *end = NULL;
    const struct fused_model *model = fused_model_of(config);
    const struct fused_kind *k = fused_experts_kind_of(model, name, by_output, &end);
    *n = 0;
    if (k == NULL) return status_ok();
    const uint64_t step = k->parts[1] != NULL ? 2 : 1;
    const bool rows = by_output || model->by_output;
    const uint32_t outputs = rows || k->is_bias ? 1 : 2; /* index of the outputs in dims */
    if (n_dims != (k->is_bias ? 2u : 3u) || dims[outputs] % step != 0) {
        return status_make(STATUS_INPUT,
                           "tensor '%.200s': expected %d dimensions, with as many outputs for "
                           "gate as for up",
                           name, k->is_bias ? 2 : 3);
    }
    if (by_output && step > 1 && model->has_halves) {
        return status_make(STATUS_INPUT,
                           "tensor '%.200s': quantized experts with all outputs of gate before "
                           "those of up are not implemented",
                           name);
    }
    for (; *n < step; (*n)++) {
        struct fused_part *p = &parts[*n];
        const int n_name =
            snprintf(p->name, sizeof p->name, "%.*s%s", (int)(end - name), name, k->parts[*n]);
        if (n_name >= (int)sizeof p->name) {
            return status_make(STATUS_INPUT, "tensor '%.100s...': its name is too long", name);
        }
        p->n_dims = n_dims;
        p->dims[0] = dims[0];
        p->dims[1] = dims[outputs] / step;
        p->dims[2] = k->is_bias ? 0 : dims[3 - outputs];
        p->step = step;
        p->first = model->has_halves ? *n * p->dims[1] : *n;
        p->apart = model->has_halves ? 1 : step;
        p->by_output = model->by_output;
    }
    return status_ok();
}

void fused_experts_take(const struct fused_part *p, const float *stored, uint64_t n_out,
                        uint64_t n_in, float *out)
{
    for (uint64_t r = 0; p->by_output && r < n_out; r++)
        memcpy(out + r * n_in, stored + (p->first + r * p->apart) * n_in, n_in * sizeof *out);
    for (uint64_t k = 0; !p->by_output && k < n_in; k++) {
        const float *row = stored + k * n_out * p->step + p->first;
        for (uint64_t r = 0; r < n_out; r++) out[r * n_in + k] = row[r * p->apart];
    }
}

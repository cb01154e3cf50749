#include "checkpoint/convert/gguf_experts.h"

#include <stdio.h>

static struct status gguf_experts_shape_check(const struct gguf_model *m,
                                              const struct gguf_tensor *t, uint64_t n_experts)
{
    if (t->n_dims == 3 && t->dims[0] == n_experts && t->dims[1] == (uint64_t)m->expert_ffn &&
        t->dims[2] == (uint64_t)m->width)
        return status_ok();
    return status_make(STATUS_INPUT, "%s: tensor '%s': expected [%llu, %lld, %lld]",
                       gguf_path(m->file), t->name, (unsigned long long)n_experts,
                       (long long)m->expert_ffn, (long long)m->width);
}

struct status gguf_experts_find(const struct gguf_model *m, const struct gguf_tensor *t,
                                bool *found, struct gguf_join *out)
{
    struct gguf_pair pair;
    *found = false;
    if (m->family->joined_experts != NULL)
        TRY(gguf_model_pair(m, t, gguf_expert_halves, found, &pair));
    if (!*found) return status_ok();
    const uint64_t n_experts = pair.first->dims[0], inner = (uint64_t)m->expert_ffn;
    *out = (struct gguf_join){.halves = {pair.first, pair.second},
                              .parts = {{0, inner, 0}, {0, inner, 1}},
                              .n_parts = 2,
                              .n_turns = n_experts,
                              .n_dims = 3,
                              .dims = {n_experts, 2 * inner, (uint64_t)m->width}};
    snprintf(out->name, sizeof out->name, "model.layers.%lld.%s", (long long)pair.layer,
             m->family->joined_experts);
    TRY(gguf_experts_shape_check(m, pair.first, n_experts));
    return gguf_experts_shape_check(m, pair.second, n_experts);
}

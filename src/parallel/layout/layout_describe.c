/* Describes a model for the layout, with the K-blocks that convert would choose. */
#include "parallel/layout/layout.h"

#include "tensor/leaf.h"

#include <stdio.h>

void layout_describe(const struct arch *m, uint32_t weight_bytes, struct layout_model *out)
{
    const uint64_t n_o = (uint64_t)m->attn.n_heads * m->attn.value_dim;
    *out = (struct layout_model){
        .arch = m,
        .o_leaf = leaf_choose(n_o, arch_o_unit(m), LEAF_COUNT_LOW),
        .ffn_leaf = leaf_choose(m->ffn, 32, LEAF_COUNT_LOW),
        .expert_leaf = leaf_choose(m->moe.ffn, 32, LEAF_EXPERT_LEAST),
        .shared_leaf = leaf_choose(m->moe.shared_ffn, 32, LEAF_COUNT_LOW),
        .delta_leaf = leaf_choose((uint64_t)m->delta.n_value_heads * m->delta.value_dim,
                                  arch_delta_per_unit(m) * m->delta.value_dim, LEAF_COUNT_LOW),
        .weight_bytes = weight_bytes,
    };
    snprintf(out->name, sizeof out->name, "%s, %u layers, D %u", m->family->title, m->n_layers,
             m->width);
}

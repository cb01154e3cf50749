/* The layout's view of a model, with the leaves that convert chooses. */
#include "parallel/layout/layout.h"

#include "tensor/leaf.h"

#include <stdio.h>
#include <string.h>

void layout_describe(const struct arch *m, uint32_t weight_bytes, struct layout_model *out)
{
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "%s, %u layers, D %u", m->family->title, m->n_layers,
             m->width);
    out->n_layers = m->n_layers;
    out->width = m->width;
    out->n_heads = m->n_heads;
    out->n_kv_heads = m->n_kv_heads;
    out->head_dim = m->value_dim;
    out->o_leaf = leaf_choose((uint64_t)m->n_heads * m->value_dim, m->value_dim, LEAF_COUNT_LOW);
    out->query_dim = m->query_dim;
    out->q_lora = m->q_lora;
    out->kv_lora = m->kv_lora;
    out->rotary = m->rotary;
    out->ffn = m->ffn;
    out->ffn_leaf = leaf_choose(m->ffn, 32, LEAF_COUNT_LOW);
    out->n_experts = m->n_experts;
    out->n_chosen = m->n_chosen;
    out->expert_ffn = m->expert_ffn;
    out->expert_leaf = leaf_choose(m->expert_ffn, 32, LEAF_EXPERT_LEAST);
    out->shared_ffn = m->shared_ffn;
    out->shared_leaf = leaf_choose(m->shared_ffn, 32, LEAF_COUNT_LOW);
    memcpy(out->layer_is_moe, m->layer_is_moe, sizeof out->layer_is_moe);
    out->vocab = m->vocab;
    out->tied = m->tied;
    out->qk_norm = m->qk_norm;
    out->qk_norm_whole = m->qk_norm_whole;
    out->attention_bias = m->qkv_bias;
    out->ffn_bias = m->ffn_bias;
    out->expert_bias = m->expert_bias;
    out->weight_bytes = weight_bytes;
    out->context = m->context;
}

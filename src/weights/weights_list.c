/* The pure part of the weights: which slabs of which tensors a place holds. */
#include "weights/weights.h"

#include <stdio.h>
#include <string.h>

/* What the walk over a place's tensors carries. */
struct walk {
    const struct arch *m;
    const struct layout *l;
    struct layout_place place;
    weight_emit *emit;
    void *ctx;
    uint32_t layer;
};

static struct range whole(uint32_t n)
{
    return (struct range){0, n};
}

bool weight_role_is_ffn(enum weight_role role)
{
    switch (role) {
    case WEIGHT_GATE:
    case WEIGHT_UP:
    case WEIGHT_DOWN:
    case WEIGHT_SHARED_GATE:
    case WEIGHT_SHARED_UP:
    case WEIGHT_SHARED_DOWN:
        return true;
    default:
        return false;
    }
}

/* Head ranges in units of rows. */
static struct range times(struct range r, uint32_t factor)
{
    return (struct range){r.begin * factor, r.end * factor};
}

static struct status emit(const struct walk *w, struct weight_spec spec, const char *name)
{
    const bool in_layer = spec.role >= WEIGHT_ATTN_NORM && spec.role <= WEIGHT_EXPERT_DOWN;
    spec.layer = in_layer ? w->layer : 0;
    if (in_layer) {
        snprintf(spec.name, sizeof spec.name, "model.layers.%u.%s", w->layer, name);
    } else {
        snprintf(spec.name, sizeof spec.name, "%s", name);
    }
    if (range_count(spec.outer) == 0 || range_count(spec.rows) == 0 ||
        range_count(spec.cols) == 0) {
        return status_ok();
    }
    return w->emit(w->ctx, &spec);
}

static struct status emit_slice(const struct walk *w, enum weight_role role, const char *name,
                                uint32_t n, struct range held)
{
    return emit(w,
                (struct weight_spec){.role = role,
                                     .is_vector = true,
                                     .n_outer = 1,
                                     .n_rows = 1,
                                     .n_cols = n,
                                     .outer = whole(1),
                                     .rows = whole(1),
                                     .cols = held},
                name);
}

static struct status emit_vector(const struct walk *w, enum weight_role role, const char *name,
                                 uint32_t n)
{
    return emit_slice(w, role, name, n, whole(n));
}

static struct status emit_matrix(const struct walk *w, enum weight_role role, const char *name,
                                 uint32_t n_rows, struct range rows, uint32_t n_cols,
                                 struct range cols)
{
    return emit(w,
                (struct weight_spec){.role = role,
                                     .n_outer = 1,
                                     .n_rows = n_rows,
                                     .n_cols = n_cols,
                                     .outer = whole(1),
                                     .rows = rows,
                                     .cols = cols},
                name);
}

/* A matrix with leaves: this place's inputs of all outputs, or all inputs of its outputs. */
static struct status emit_leafy(const struct walk *w, enum weight_role role, const char *name,
                                uint32_t n_cols, struct range cols)
{
    const struct range rows = layout_outputs(w->l, w->place.tp);
    return emit_matrix(w, role, name, w->m->width, rows, n_cols,
                       w->l->cuts_outputs ? whole(n_cols) : cols);
}

static struct status emit_experts(const struct walk *w, enum weight_role role, const char *name,
                                  uint32_t n_rows, struct range rows, uint32_t n_cols,
                                  struct range cols)
{
    return emit(w,
                (struct weight_spec){.role = role,
                                     .is_expert = true,
                                     .n_outer = w->m->n_experts,
                                     .n_rows = n_rows,
                                     .n_cols = n_cols,
                                     .outer = layout_experts(w->l, w->place.ep),
                                     .rows = rows,
                                     .cols = cols},
                name);
}

static struct status emit_expert_bias(const struct walk *w, enum weight_role role, const char *name,
                                      uint32_t n, struct range held)
{
    return emit(w,
                (struct weight_spec){.role = role,
                                     .is_vector = true,
                                     .is_expert = true,
                                     .n_outer = 1,
                                     .n_rows = w->m->n_experts,
                                     .n_cols = n,
                                     .outer = whole(1),
                                     .rows = layout_experts(w->l, w->place.ep),
                                     .cols = held},
                name);
}

/* Latent attention, under the names of DeepSeek. */
static struct status walk_latent(const struct walk *w)
{
    const struct arch *m = w->m;
    const struct range heads = layout_heads(w->l, w->place.tp), width = whole(m->width);
    const uint32_t r = m->kv_lora, both = r + m->rotary, n_q = m->n_heads * m->query_dim;
    const uint32_t own = m->query_dim - m->rotary + m->value_dim;
    const struct range q = times(heads, m->query_dim), o = times(heads, m->value_dim);
    TRY(emit_vector(w, WEIGHT_ATTN_NORM, "input_layernorm.weight", m->width));
    if (m->q_lora > 0) {
        TRY(emit_matrix(w, WEIGHT_Q_A, "self_attn.q_a_proj.weight", m->q_lora, whole(m->q_lora),
                        m->width, width));
        TRY(emit_vector(w, WEIGHT_Q_A_NORM, "self_attn.q_a_layernorm.weight", m->q_lora));
        TRY(emit_matrix(w, WEIGHT_Q, "self_attn.q_b_proj.weight", n_q, q, m->q_lora,
                        whole(m->q_lora)));
    } else {
        TRY(emit_matrix(w, WEIGHT_Q, "self_attn.q_proj.weight", n_q, q, m->width, width));
    }
    TRY(emit_matrix(w, WEIGHT_KV_A, "self_attn.kv_a_proj_with_mqa.weight", both, whole(r), m->width,
                    width));
    TRY(emit_matrix(w, WEIGHT_K_ROPE, "self_attn.kv_a_proj_with_mqa.weight", both,
                    (struct range){r, both}, m->width, width));
    TRY(emit_vector(w, WEIGHT_KV_A_NORM, "self_attn.kv_a_layernorm.weight", r));
    TRY(emit_matrix(w, WEIGHT_KV_B, "self_attn.kv_b_proj.weight", m->n_heads * own,
                    times(heads, own), r, whole(r)));
    return emit_leafy(w, WEIGHT_O, "self_attn.o_proj.weight", m->n_heads * m->value_dim, o);
}

static struct status walk_attention(const struct walk *w)
{
    const struct arch *m = w->m;
    const uint32_t n_q = m->n_heads * m->head_dim, n_kv = m->n_kv_heads * m->head_dim;
    const struct range q = times(layout_heads(w->l, w->place.tp), m->head_dim);
    const struct range kv = times(layout_kv_heads(w->l, w->place.tp), m->head_dim);
    const struct range width = whole(m->width);
    TRY(emit_vector(w, WEIGHT_ATTN_NORM, "input_layernorm.weight", m->width));
    TRY(emit_matrix(w, WEIGHT_Q, "self_attn.q_proj.weight", n_q, q, m->width, width));
    TRY(emit_matrix(w, WEIGHT_K, "self_attn.k_proj.weight", n_kv, kv, m->width, width));
    TRY(emit_matrix(w, WEIGHT_V, "self_attn.v_proj.weight", n_kv, kv, m->width, width));
    if (m->qkv_bias) {
        TRY(emit_slice(w, WEIGHT_Q_BIAS, "self_attn.q_proj.bias", n_q, q));
        TRY(emit_slice(w, WEIGHT_K_BIAS, "self_attn.k_proj.bias", n_kv, kv));
        TRY(emit_slice(w, WEIGHT_V_BIAS, "self_attn.v_proj.bias", n_kv, kv));
    }
    if (m->o_bias) TRY(emit_vector(w, WEIGHT_O_BIAS, "self_attn.o_proj.bias", m->width));
    if (m->family->qk_norm_whole) {
        TRY(emit_slice(w, WEIGHT_Q_NORM, "self_attn.q_norm.weight", n_q, q));
        TRY(emit_slice(w, WEIGHT_K_NORM, "self_attn.k_norm.weight", n_kv, kv));
    }
    if (m->family->sinks) {
        TRY(emit_slice(w, WEIGHT_SINKS, "self_attn.sinks", m->n_heads,
                       layout_heads(w->l, w->place.tp)));
    }
    if (m->qk_norm) {
        TRY(emit_vector(w, WEIGHT_Q_NORM, "self_attn.q_norm.weight", m->head_dim));
        TRY(emit_vector(w, WEIGHT_K_NORM, "self_attn.k_norm.weight", m->head_dim));
    }
    return emit_leafy(w, WEIGHT_O, "self_attn.o_proj.weight", n_q, q);
}

static struct status walk_dense(const struct walk *w)
{
    const struct arch *m = w->m;
    const struct range f = layout_ffn(w->l, w->place.tp);
    const struct range width = whole(m->width);
    TRY(emit_matrix(w, WEIGHT_GATE, "mlp.gate_proj.weight", m->ffn, f, m->width, width));
    TRY(emit_matrix(w, WEIGHT_UP, "mlp.up_proj.weight", m->ffn, f, m->width, width));
    TRY(emit_leafy(w, WEIGHT_DOWN, "mlp.down_proj.weight", m->ffn, f));
    if (!m->ffn_bias) return status_ok();
    TRY(emit_slice(w, WEIGHT_GATE_BIAS, "mlp.gate_proj.bias", m->ffn, f));
    TRY(emit_slice(w, WEIGHT_UP_BIAS, "mlp.up_proj.bias", m->ffn, f));
    return emit_vector(w, WEIGHT_DOWN_BIAS, "mlp.down_proj.bias", m->width);
}

static struct status emit_shared(const struct walk *w, enum weight_role role, const char *name,
                                 uint32_t n_rows, struct range rows, uint32_t n_cols,
                                 struct range cols)
{
    char full[96];
    snprintf(full, sizeof full, "%s%s", w->m->family->moe.shared, name);
    return emit_matrix(w, role, full, n_rows, rows, n_cols, cols);
}

static struct status walk_shared(const struct walk *w)
{
    const struct arch *m = w->m;
    const struct range f = layout_shared_ffn(w->l, w->place.tp), width = whole(m->width);
    const uint32_t n = m->shared_ffn, d = m->width;
    TRY(emit_shared(w, WEIGHT_SHARED_GATE, "gate_proj.weight", n, f, d, width));
    TRY(emit_shared(w, WEIGHT_SHARED_UP, "up_proj.weight", n, f, d, width));
    char down[96];
    snprintf(down, sizeof down, "%sdown_proj.weight", m->family->moe.shared);
    TRY(emit_leafy(w, WEIGHT_SHARED_DOWN, down, n, f));
    if (m->family->moe.shared_gate == NULL) return status_ok();
    return emit_matrix(w, WEIGHT_SHARED_MIX, m->family->moe.shared_gate, 1, whole(1), d, width);
}

/* Gate and up, which may be the halves of one tensor. */
static struct status walk_experts(const struct walk *w)
{
    const struct arch *m = w->m;
    const struct arch_names *names = &m->family->moe;
    const struct range f = layout_expert_ffn(w->l, w->place.etp), width = whole(m->width);
    const bool fused = strcmp(names->gate, names->up) == 0;
    const uint32_t n = m->expert_ffn, n_rows = fused ? 2 * n : n;
    const struct range up = fused ? (struct range){f.begin + n, f.end + n} : f;
    TRY(emit_experts(w, WEIGHT_EXPERT_GATE, names->gate, n_rows, f, m->width, width));
    TRY(emit_experts(w, WEIGHT_EXPERT_UP, names->up, n_rows, up, m->width, width));
    return emit_experts(w, WEIGHT_EXPERT_DOWN, names->down, m->width,
                        layout_expert_outputs(w->l, w->place.etp), n,
                        w->l->cuts_expert_outputs ? whole(n) : f);
}

/* Biases of gpt-oss's router and experts. */
static struct status walk_expert_biases(const struct walk *w)
{
    const struct arch *m = w->m;
    const struct range f = layout_expert_ffn(w->l, w->place.etp);
    TRY(emit_vector(w, WEIGHT_ROUTER_BIAS, "mlp.router.bias", m->n_experts));
    TRY(emit_expert_bias(w, WEIGHT_EXPERT_GATE_BIAS, "mlp.experts.gate_proj.bias", m->expert_ffn,
                         f));
    TRY(emit_expert_bias(w, WEIGHT_EXPERT_UP_BIAS, "mlp.experts.up_proj.bias", m->expert_ffn, f));
    return emit_expert_bias(w, WEIGHT_EXPERT_DOWN_BIAS, "mlp.experts.down_proj.bias", m->width,
                            whole(m->width));
}

static struct status walk_moe(const struct walk *w)
{
    const struct arch *m = w->m;
    TRY(emit_matrix(w, WEIGHT_ROUTER, m->family->moe.router, m->n_experts, whole(m->n_experts),
                    m->width, whole(m->width)));
    if (m->family->moe.bias != NULL)
        TRY(emit_vector(w, WEIGHT_SELECT_BIAS, m->family->moe.bias, m->n_experts));
    if (m->shared_ffn > 0) TRY(walk_shared(w));
    if (m->family->expert_bias) TRY(walk_expert_biases(w));
    return walk_experts(w);
}

static struct status walk_head(const struct walk *w)
{
    const struct arch *m = w->m;
    const struct range rows = layout_vocab(w->l, w->place.tp);
    TRY(emit_vector(w, WEIGHT_FINAL_NORM, "model.norm.weight", m->width));
    if (!m->tied) {
        return emit_matrix(w, WEIGHT_HEAD, "lm_head.weight", m->vocab, rows, m->width,
                           whole(m->width));
    }
    if (w->l->pp == 1) return status_ok(); /* the embedding is here already */
    return emit_matrix(w, WEIGHT_HEAD, "model.embed_tokens.weight", m->vocab, rows, m->width,
                       whole(m->width));
}

struct status weights_list(const struct arch *m, const struct layout *l, struct layout_place place,
                           weight_emit *emit_one, void *ctx)
{
    struct walk w = {.m = m, .l = l, .place = place, .emit = emit_one, .ctx = ctx};
    if (place.pp == 0) {
        TRY(emit_matrix(&w, WEIGHT_EMBED, "model.embed_tokens.weight", m->vocab,
                        layout_vocab(l, place.tp), m->width, whole(m->width)));
    }
    const struct range layers = layout_layers(l, place.pp);
    for (w.layer = layers.begin; w.layer < layers.end; w.layer++) {
        TRY(m->kv_lora > 0 ? walk_latent(&w) : walk_attention(&w));
        TRY(emit_vector(&w, WEIGHT_FFN_NORM, "post_attention_layernorm.weight", m->width));
        TRY(m->layer_is_moe[w.layer] ? walk_moe(&w) : walk_dense(&w));
    }
    return place.pp + 1 == l->pp ? walk_head(&w) : status_ok();
}

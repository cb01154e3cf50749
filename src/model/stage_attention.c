/* The attention block of a layer: norm, q k v, attention over the cache, output projection. */
#include "kernels/ops.h"
#include "model/stage_private.h"

void stage_describe_attention(struct stage *s)
{
    const struct model_config *m = s->o.model;
    const struct weights *w = s->o.weights;
    const uint32_t heads_per_kv = m->n_heads / m->n_kv_heads;
    s->attention = (struct attention_shape){.n_heads = range_count(w->heads),
                                            .n_kv_heads = range_count(w->kv_heads),
                                            .head_dim = m->head_dim,
                                            .kv_of_head = s->kv_of_head,
                                            .scale = w->rope_factors.softmax /
                                                     __builtin_sqrtf((float)m->head_dim),
                                            .norm_eps = m->norm_eps};
    for (uint32_t h = w->heads.begin; h < w->heads.end; h++) {
        s->kv_of_head[h - w->heads.begin] = (uint8_t)(h / heads_per_kv - w->kv_heads.begin);
    }
}

void stage_rotate(struct stage *s, const struct seq_rows *seqs, size_t n_seqs, size_t n_rows)
{
    for (size_t i = 0; i < n_seqs; i++) {
        for (size_t r = 0; r < seqs[i].n_rows; r++) {
            s->positions[seqs[i].row0 + r] = (int32_t)(seqs[i].pos0 + r);
        }
    }
    op_rope_table(s->positions, n_rows, s->o.weights->inv_freq, s->o.model->head_dim,
                  s->o.weights->rope_factors.attention, s->cos, s->sin);
}

static uint32_t window_of(const struct stage *s, uint32_t layer)
{
    const struct model_config *m = s->o.model;
    return m->layer_has_window[s->o.weights->layers.begin + layer] ? m->window : 0;
}

void stage_attention(struct stage *s, uint32_t layer, const struct layer_weights *w,
                     const struct seq_rows *seqs, size_t n_seqs, struct hidden *hidden)
{
    const size_t n_rows = hidden->n_rows;
    op_rmsnorm(s->o.kern, hidden->h, w->attn_norm, n_rows, s->o.model->width, s->o.model->norm_eps,
               s->x);
    stage_show(s, TAP_ATTENTION, s->x, n_rows, s->o.model->width);
    struct act_rows in = stage_input(s, s->x, n_rows, s->o.model->width);
    const struct column qkv[] = {
        {&w->q, s->q, w->q_bias}, {&w->k, s->k, w->k_bias}, {&w->v, s->v, w->v_bias}};
    stage_columns(s, qkv, 3, &in);
    const struct attention_work work = {.q = s->q,
                                        .k = s->k,
                                        .v = s->v,
                                        .out = s->attended,
                                        .q_norm = w->q_norm,
                                        .k_norm = w->k_norm,
                                        .cos = s->cos,
                                        .sin = s->sin,
                                        .window = window_of(s, layer),
                                        .kv = kv_pool_layer(s->kv, layer),
                                        .seqs = seqs,
                                        .n_seqs = n_seqs,
                                        .n_rows = n_rows};
    attention_run(s->o.kern, &s->attention, &work);
    stage_show(s, TAP_O, s->attended, n_rows, w->o.n_in);
    stage_row_parallel(s, &w->o, w->o_bias, s->attended, hidden);
}

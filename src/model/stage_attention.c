/* The attention block of a layer: norm, q k v, attention over the cache, output projection. */
#include "collective/device_comm.h"
#include "kernels/device.h"
#include "kernels/elementary.h"
#include "kernels/ops.h"
#include "model/stage_private.h"
#include "parallel/layout/workspace.h"

static stage_attend attend_heads;

/* Sets to[i] to the local kv head of the i-th head of `held`, out of n_all in the model. */
static void map_heads(const struct stage *s, struct range held, uint32_t n_all, uint8_t *to)
{
    const uint32_t per_kv = n_all / s->o.model->attn.n_kv_heads;
    for (uint32_t h = held.begin; h < held.end; h++)
        to[h - held.begin] = (uint8_t)(h / per_kv - s->o.weights->kv_heads.begin);
}

void stage_describe_attention(struct stage *s)
{
    const struct arch *m = s->o.model;
    s->attend = m->compression.o_groups > 0 ? stage_compressed
                : m->attn.kv_lora > 0       ? stage_latent
                                            : attend_heads;
    const struct weights *w = s->o.weights;
    s->attention =
        (struct attention_shape){.n_heads = range_count(w->heads),
                                 .n_kv_heads = range_count(w->kv_heads),
                                 .head_dim = m->attn.head_dim,
                                 .kv_of_head = s->kv_of_head,
                                 .scale = w->rope_factors.softmax * m->scale.attention,
                                 .softcap = m->attn.softcap,
                                 .norm_eps = m->norm_eps,
                                 .norms_last = m->family->qk_norm_last || m->attn.l2_norm,
                                 .ahead = m->encoder};
    map_heads(s, w->heads, m->attn.n_heads, s->kv_of_head);
    s->full_attention = s->attention;
    if (m->attn.n_full_heads == 0) return;
    s->full_attention.n_heads = range_count(w->full_heads);
    s->full_attention.kv_of_head = s->kv_of_full_head;
    map_heads(s, w->full_heads, m->attn.n_full_heads, s->kv_of_full_head);
}

/* The heads of a layer that this rank holds. */
static const struct attention_shape *shape_of(const struct stage *s, const struct layer *layer)
{
    return layer->has_window ? &s->attention : &s->full_attention;
}

/* Returns the factor by which q grows with the position (struct arch_tuning). */
static float tuned(const struct arch_tuning *t, int32_t position)
{
    const uint32_t n = ((uint32_t)position + t->first) / t->step;
    return (float)(1.0 + (double)t->scale * el_log(1.0 + (double)n));
}

void stage_rotate(struct stage *s, const struct seq_rows *seqs, size_t n_seqs, size_t n_rows)
{
    for (size_t i = 0; i < n_seqs; i++) {
        for (size_t r = 0; r < seqs[i].n_rows; r++) {
            s->positions[seqs[i].row0 + r] = (int32_t)(seqs[i].pos0 + r);
        }
    }
    for (size_t i = 0; s->rotation.q_scale != NULL && i < n_rows; i++)
        s->rotation.q_scale[i] = tuned(&s->o.model->tuning, s->positions[i]);
    op_step_begin(s->o.kern, seqs, n_seqs, n_rows);
    struct rope_table_args a = {.positions = s->positions,
                                .n_rows = n_rows,
                                .inv_freq = s->o.weights->inv_freq,
                                .rot = s->o.model->attn.rotary,
                                .scale = s->o.weights->rope_factors.attention,
                                .cos = s->rotation.cos,
                                .sin = s->rotation.sin};
    op_rope_table(s->o.kern, &a);
    if (s->o.weights->local_inv_freq == NULL) return;
    a.inv_freq = s->o.weights->local_inv_freq;
    a.rot = arch_local_rotary(s->o.model);
    a.scale = 1;
    a.cos = s->rotation.local.cos;
    a.sin = s->rotation.local.sin;
    op_rope_table(s->o.kern, &a);
}

/* Applies RMSNorm to q and k over all their heads, which may be on several ranks: every rank that
 * holds a head supplies its sum of squares, and all ranks add the sums in the order of the heads.
 */
static void norm_whole(struct stage *s, const struct attention_weights *w, size_t n_rows)
{
    const struct arch *m = s->o.model;
    const struct range q = s->o.weights->heads, kv = s->o.weights->kv_heads;
    const size_t n = m->attn.n_heads + m->attn.n_kv_heads;
    uint32_t *q_sums = s->head_sums, *k_sums = s->head_sums + m->attn.n_heads;
    mem_ops_fill(s->o.kern, s->head_sums, 0, n_rows * n * sizeof *s->head_sums);
    op_head_square_sums(s->o.kern, &(struct square_sums_args){.x = s->qkv.q,
                                                              .n_rows = n_rows,
                                                              .n_heads = range_count(q),
                                                              .head_dim = m->attn.query_dim,
                                                              .sums = q_sums + q.begin,
                                                              .stride = n});
    op_head_square_sums(s->o.kern, &(struct square_sums_args){.x = s->qkv.k_narrow,
                                                              .n_rows = n_rows,
                                                              .n_heads = range_count(kv),
                                                              .head_dim = m->attn.query_dim,
                                                              .sums = k_sums + kv.begin,
                                                              .stride = n});
    device_or_u32(s->o.kern, s->o.comm, COMM_TP, s->head_sums, n_rows * n);
    struct norm_whole a = {.x = s->qkv.q,
                           .w = w->q_norm,
                           .sums = q_sums,
                           .n_rows = n_rows,
                           .n = (size_t)range_count(q) * m->attn.query_dim,
                           .n_whole = (size_t)m->attn.n_heads * m->attn.query_dim,
                           .n_sums = m->attn.n_heads,
                           .stride = n,
                           .eps = m->norm_eps};
    op_norm_whole(s->o.kern, &a);
    a.x = s->qkv.k_narrow;
    a.w = w->k_norm;
    a.sums = k_sums;
    a.n = (size_t)range_count(kv) * m->attn.query_dim;
    a.n_whole = (size_t)m->attn.n_kv_heads * m->attn.query_dim;
    a.n_sums = m->attn.n_kv_heads;
    op_norm_whole(s->o.kern, &a);
}

static void clip(struct stage *s, size_t n_rows)
{
    const size_t n_q = (size_t)s->attention.n_heads * s->o.model->attn.query_dim;
    const size_t n_kv = (size_t)s->attention.n_kv_heads * s->o.model->attn.query_dim;
    op_clamp(s->o.kern, s->qkv.q, s->o.model->attn.clip_qkv, n_rows * n_q);
    op_clamp(s->o.kern, s->qkv.k_narrow, s->o.model->attn.clip_qkv, n_rows * n_kv);
    op_clamp(s->o.kern, s->qkv.v_narrow, s->o.model->attn.clip_qkv, n_rows * n_kv);
}

bool stage_is_padded(const struct stage *s)
{
    return arch_pads_heads(s->o.model);
}

/* Applies RMSNorm with w to each of n heads [width], in place; does nothing if w is NULL. */
static void norm_narrow(struct stage *s, float *x, const float *w, size_t width, size_t n)
{
    if (w == NULL) return;
    op_rmsnorm(s->o.kern,
               &(struct norm_args){
                   .x = x, .w = w, .n_rows = n, .n = width, .eps = s->o.model->norm_eps, .y = x});
}

/* Sets `to` [n, Hd] to the heads of `from` [n, width], padded with zeros. */
static void widen(struct stage *s, const float *from, size_t width, size_t n, float *to)
{
    const size_t wide = s->o.model->attn.head_dim;
    mem_ops_fill(s->o.kern, to, 0, n * wide * sizeof *to);
    op_place_rows(s->o.kern,
                  &(struct place_args){
                      .from = from, .n_rows = n, .width = width, .to_stride = wide, .to = to});
}

/* The heads of k and v that a layer computes, counted in the model. */
static struct range computed_kv(const struct stage *s, const struct layer *layer)
{
    const struct range kv = s->o.weights->kv_heads;
    const uint32_t share = layer->kv_share, begin = kv.begin / share;
    return (struct range){begin, kv.begin == kv.end ? begin : (kv.end - 1) / share + 1};
}

/* Sets `to` [T, G, Hd] to heads of `from` [T, computed, width], padded with zeros. KV head h of the
 * cache is computed head h / kv_share. */
static void widen_kv(struct stage *s, const struct layer *layer, const float *from, size_t width,
                     size_t n_rows, float *to)
{
    const struct range kv = s->o.weights->kv_heads, computed = computed_kv(s, layer);
    const size_t n_kv = range_count(kv), wide = s->o.model->attn.head_dim;
    if (layer->kv_share == 1) {
        widen(s, from, width, n_rows * n_kv, to);
        return;
    }
    mem_ops_fill(s->o.kern, to, 0, n_rows * n_kv * wide * sizeof *to);
    for (uint32_t h = kv.begin; h < kv.end; h++) {
        const size_t at = h / layer->kv_share - computed.begin;
        op_place_rows(s->o.kern,
                      &(struct place_args){.from = from + at * width,
                                           .n_rows = n_rows,
                                           .width = width,
                                           .to_stride = n_kv * wide,
                                           .to = to + (h - kv.begin) * wide,
                                           .from_stride = range_count(computed) * width});
    }
}

/* Pads the heads to the width in the cache. Norms come first: they are over the elements without
 * padding. */
static void widen_heads(struct stage *s, const struct layer *layer, const float *q_norm,
                        const float *k_norm, size_t n_rows)
{
    const struct arch *m = s->o.model;
    const size_t n_q = n_rows * shape_of(s, layer)->n_heads;
    const size_t n_kv = n_rows * range_count(computed_kv(s, layer));
    const size_t width = arch_query_dim(m, layer->has_window);
    const size_t v_width = arch_value_dim_of(m, layer->has_window);
    norm_narrow(s, s->qkv.q, q_norm, width, n_q);
    norm_narrow(s, s->qkv.k_narrow, k_norm, width, n_kv);
    norm_narrow(s, s->qkv.v_narrow, m->attn.v_norm ? s->ones : NULL, v_width, n_kv);
    widen(s, s->qkv.q, width, n_q, s->qkv.q_wide);
    widen_kv(s, layer, s->qkv.k_narrow, width, n_rows, s->qkv.k);
    widen_kv(s, layer, s->qkv.v_narrow, v_width, n_rows, s->qkv.v);
}

/* s->qkv.attended [T, H, elements of v] = s->qkv.o_wide without the padding of each head. */
static void narrow_heads(struct stage *s, const struct layer *layer, size_t n_rows)
{
    const size_t narrow = arch_value_dim_of(s->o.model, layer->has_window);
    op_place_rows(s->o.kern, &(struct place_args){.from = s->qkv.o_wide,
                                                  .n_rows = n_rows * shape_of(s, layer)->n_heads,
                                                  .width = narrow,
                                                  .to_stride = narrow,
                                                  .to = s->qkv.attended,
                                                  .from_stride = s->o.model->attn.head_dim});
}

/* s->qkv.q [T, H, query_dim] = the queries of s->qkv.q_gated. */
static void take_queries(struct stage *s, size_t n_rows)
{
    const size_t n = s->o.model->attn.query_dim;
    op_place_rows(s->o.kern, &(struct place_args){.from = s->qkv.q_gated,
                                                  .n_rows = n_rows * s->attention.n_heads,
                                                  .width = n,
                                                  .to_stride = n,
                                                  .to = s->qkv.q,
                                                  .from_stride = 2 * n});
}

/* Multiplies each head of s->qkv.attended by the sigmoid of its gate. */
static void apply_gates(struct stage *s, size_t n_rows)
{
    const size_t n = s->o.model->attn.query_dim, n_heads = s->attention.n_heads;
    op_sigmoid_heads(s->o.kern,
                     &(struct sigmoid_heads){.x = s->qkv.attended,
                                             .gate = {s->qkv.q_gated + n, 2 * n * n_heads, 2 * n},
                                             .n_rows = n_rows,
                                             .n_heads = n_heads,
                                             .width = n});
}

/* Returns how many elements of a head rotate. */
static uint32_t rotary_of(const struct stage *s, const struct layer *layer)
{
    if (layer->is_unrotated) return 0;
    return layer->is_local ? arch_local_rotary(s->o.model) : s->o.model->attn.rotary;
}

/* In a layer whose v is k: copies k, before it is normed. */
static void copy_keys(struct stage *s, const struct layer *layer, size_t n_rows)
{
    const struct arch *m = s->o.model;
    const size_t n = range_count(computed_kv(s, layer)) * m->attn.full_dim;
    if (!m->attn.full_k_is_v || layer->has_window) return;
    op_place_rows(s->o.kern, &(struct place_args){.from = s->qkv.k_narrow,
                                                  .n_rows = n_rows,
                                                  .width = n,
                                                  .to_stride = n,
                                                  .to = s->qkv.v_narrow});
}

/* s->qkv.attended = attention over the keys and values of each head, of the normed rows `in`. */
static void attend_heads(struct stage *s, const struct layer *layer, const struct part *p,
                         struct act_rows *in)
{
    const struct attention_weights *w = &layer->attention;
    const struct arch *m = s->o.model;
    const size_t n_rows = p->hidden.n_rows;
    const bool gated = m->attn.gated_heads;
    const struct column qkv[] = {{&w->q, gated ? s->qkv.q_gated : s->qkv.q, w->q_bias},
                                 {&w->k, s->qkv.k_narrow, w->k_bias},
                                 {&w->v, s->qkv.v_narrow, w->v_bias}};
    const struct column gates = {&w->gate, s->qkv.gates, NULL};
    stage_columns(s, qkv, 3, in);
    if (m->attn.head_gates) stage_columns(s, &gates, 1, in);
    stage_adapt_columns(s, &(struct adapter_columns){layer, ADAPTER_Q, qkv, 3}, p, in);
    if (gated) take_queries(s, n_rows);
    copy_keys(s, layer, n_rows);
    const bool whole = m->attn.qk_norm_whole, padded = stage_is_padded(s);
    const float *q_norm = whole ? NULL : w->q_norm, *k_norm = whole ? NULL : w->k_norm;
    if (m->attn.l2_norm && !layer->is_unrotated) q_norm = k_norm = s->ones;
    if (s->rotation.q_scale != NULL && (layer->is_unrotated || m->tuning.everywhere))
        op_scale_rows(s->o.kern, s->qkv.q, s->rotation.q_scale + p->row0, n_rows,
                      (size_t)s->attention.n_heads * m->attn.query_dim, s->qkv.q);
    if (whole) norm_whole(s, w, n_rows);
    if (m->attn.clip_qkv > 0) clip(s, n_rows);
    if (m->scale.values != 0)
        op_scale(s->o.kern, s->qkv.v_narrow, m->scale.values,
                 n_rows * range_count(computed_kv(s, layer)) * m->attn.value_dim);
    if (padded) widen_heads(s, layer, q_norm, k_norm, n_rows);
    const struct attention_work work = {.q = s->qkv.q_wide,
                                        .k = s->qkv.k,
                                        .v = s->qkv.v,
                                        .out = s->qkv.o_wide,
                                        .q_norm = padded ? NULL : q_norm,
                                        .k_norm = padded ? NULL : k_norm,
                                        .sinks = w->sinks,
                                        .rotary = rotary_of(s, layer),
                                        .cos = layer->is_local ? p->local.cos : p->cos,
                                        .sin = layer->is_local ? p->local.sin : p->sin,
                                        .window = layer->window,
                                        .kv = kv_pool_layer(s->kv, layer->in_cache),
                                        .seqs = part_seqs(p, layer),
                                        .n_seqs = p->n_seqs,
                                        .parts = s->tile_parts,
                                        .n_part_floats = WORKSPACE_TILE_PARTS_BYTES / sizeof(float),
                                        .n_rows = n_rows};
    if (m->index.block > 0 && arch_has_index(m, layer->index))
        stage_attend_blocks(s, layer, p, in, &work);
    else
        attention_run(s->o.kern, shape_of(s, layer), &work);
    if (padded) narrow_heads(s, layer, n_rows);
    if (gated) apply_gates(s, n_rows);
    if (m->attn.head_gates)
        op_sigmoid_rows(s->o.kern, s->qkv.attended, s->qkv.gates,
                        n_rows * shape_of(s, layer)->n_heads, m->attn.value_dim);
}

/* Returns the linear for which the norm quantizes rows; NULL: none. If each rank quantizes a slice,
 * the linear must be the same on all ranks, even on those that hold no part of it. */
static const struct packed *first_mixer(const struct stage *s, const struct layer *layer,
                                        const struct part *p)
{
    const struct layout *l = s->o.layout;
    const struct attention_weights *w = &layer->attention;
    if (!layer->is_delta) return s->o.model->attn.q_lora > 0 ? &w->latent.q_a : &w->q;
    const bool all_have = range_count(layout_delta_heads(l, l->tp - 1)) > 0;
    const struct arch *m = s->o.model;
    const bool are_apart = m->family->delta_apart || m->delta.is_mamba || m->delta.by_channel;
    const struct packed *first = are_apart ? &layer->delta.q : &layer->delta.qkvz;
    return !part_is_cut(p) || all_have ? first : NULL;
}

/* Returns the inputs of the output projection that this rank has computed into s->qkv.attended. */
static struct inner_rows mixed_rows(const struct stage *s, const struct layer *layer, size_t n_rows)
{
    const struct arch *m = s->o.model;
    const struct weights *w = s->o.weights;
    const bool is_few = m->attn.n_full_heads > 0 && !layer->has_window;
    const struct range held = layer->is_delta ? w->delta_heads : is_few ? w->full_heads : w->heads;
    const uint32_t n =
        layer->is_delta ? arch_dim_unit(m, DIM_DELTA_V) : arch_value_dim_of(m, layer->has_window);
    const uint32_t n_units =
        layer->is_delta ? arch_delta_units(m) : arch_heads(m, layer->has_window);
    return (struct inner_rows){.x = s->qkv.attended,
                               .n_rows = n_rows,
                               .held = {held.begin * n, held.end * n},
                               .n_all = (size_t)n_units * n,
                               .memory = s->codes};
}

void stage_attention(struct stage *s, const struct layer *layer, struct part *p)
{
    const struct attention_weights *w = &layer->attention;
    const size_t n_rows = p->hidden.n_rows;
    const bool has_streams = s->o.model->streams.n > 0;
    const struct part block = has_streams ? stage_collapse(s, &layer->attn_streams, p) : *p;
    struct act_rows in = s->row_sum->norm(
        s, &block, stage_norm(layer->attn_norm, layer->attn_norm_bias), first_mixer(s, layer, p));
    stage_keep_normed(s, p, layer->index == 0, in.x);
    stage_show(s, TAP_ATTENTION, in.x, n_rows, s->o.model->width);
    stage_attend *const recur = s->o.model->delta.is_mamba ? stage_mamba : stage_delta;
    (layer->is_delta ? recur : s->attend)(s, layer, p, &in);
    const struct inner_rows o = mixed_rows(s, layer, n_rows);
    if (s->o.model->sub_norms)
        stage_norm_whole(s, &(struct whole_norm){.x = s->qkv.attended,
                                                 .w = w->o_norm,
                                                 .n_rows = n_rows,
                                                 .held = o.held,
                                                 .n_all = o.n_all,
                                                 .unit = s->o.model->attn.value_dim,
                                                 .sums = s->head_sums});
    stage_show(s, TAP_O, s->qkv.attended, n_rows, range_count(o.held));
    in = s->row_sum->input(s, &o);
    if (has_streams) { /* nothing reads the block's input s->x any more */
        s->row_sum->assign(s, &w->o, &in, s->x, p);
        stage_expand(s, p, s->x);
        return;
    }
    const struct block_output out = {.w = layer->is_delta ? &layer->delta.o : &w->o,
                                     .bias = w->o_bias,
                                     .norm = layer->attn_out_norm,
                                     .layer = layer,
                                     .site = ADAPTER_O};
    stage_add(s, &out, &in, p);
}

/* Multi-head latent attention in its absorbed form, for prefill and decode alike: the cache holds
 * one latent and one rotated key per token; k_b takes q into the space of the latents, and v_b
 * takes the output out of it. DeepSeek-V2, 2024 (arXiv 2405.04434), section 2.1. Called by
 * stage_attention. */
#include "base/mem.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "model/stage_private.h"
#include "parallel/layout/workspace.h"

struct status stage_make_latent(struct stage *s)
{
    const size_t n_heads = s->attention.n_heads;
    if (s->o.model->attn.kv_lora == 0) return status_ok();
    TRY(mem_alloc(&s->latent.heads, n_heads, sizeof *s->latent.heads, "workspace"));
    return mem_alloc(&s->latent.groups, n_heads, sizeof *s->latent.groups, "workspace");
}

void stage_free_latent(struct stage *s)
{
    mem_free(&s->latent.heads);
    mem_free(&s->latent.groups);
}

/* Computes for each head h: y [T, outputs of w[h]] = x [T, inputs of w[h]] of the head, times
 * w[h]^T. */
static void head_linears(struct stage *s, const struct packed *w, struct head_rows x,
                         struct head_rows y, size_t n_rows)
{
    const size_t n_heads = s->attention.n_heads;
    for (size_t h = 0; h < n_heads; h++) {
        s->latent.groups[h] = (struct linear_group){.w = &w[h], .row0 = 0, .n_rows = n_rows};
        s->latent.heads[h] = (struct linear_args){.groups = &s->latent.groups[h],
                                                  .n_groups = 1,
                                                  .x = x.rows + h * x.stride,
                                                  .x_stride = n_heads * x.stride,
                                                  .y = y.rows + h * y.stride,
                                                  .y_stride = n_heads * y.stride};
    }
    op_linears(s->o.kern, s->latent.heads, n_heads);
    comm_poll(s->o.comm);
}

/* Computes s->qkv.q [T, H, query_dim]; the normed latents, s->qkv.v [T, kv_lora]; s->latent.k_rope
 * [T, rotary] before rotation; and the heads' gates and the index's linears, if there are any. */
static void project(struct stage *s, const struct layer *layer, const struct part *p,
                    struct act_rows *in)
{
    const struct attention_weights *w = &layer->attention;
    const struct latent_weights *latent = &w->latent;
    const struct arch *m = s->o.model;
    const size_t n_rows = in->n_rows;
    const bool low = m->attn.q_lora > 0;
    const struct column columns[] = {
        {low ? &latent->q_a : &w->q, low ? s->latent.q_low : s->qkv.q, NULL},
        {&latent->kv_a, s->qkv.v, NULL},
        {&latent->k_rope, s->latent.k_rope, NULL}};
    stage_columns(s, columns, 3, in);
    const enum adapter_site first = low ? ADAPTER_Q_A : ADAPTER_Q;
    stage_adapt_columns(s, &(struct adapter_columns){layer, first, columns, 1}, p, in);
    stage_adapt_columns(s, &(struct adapter_columns){layer, ADAPTER_KV_A, columns + 1, 2}, p, in);
    const struct column gates = {&w->gate, s->qkv.gates, NULL};
    if (m->attn.head_gates) stage_columns(s, &gates, 1, in);
    if (w->index.k.n_out > 0) stage_index_project(s, &w->index, in);
    op_rmsnorm(s->o.kern, &(struct norm_args){.x = s->qkv.v,
                                              .w = latent->kv_a_norm,
                                              .n_rows = n_rows,
                                              .n = m->attn.kv_lora,
                                              .eps = m->attn.latent_norm_eps,
                                              .y = s->qkv.v});
    if (m->attn.latent_scale != 0)
        op_scale(s->o.kern, s->qkv.v, m->attn.latent_scale, n_rows * m->attn.kv_lora);
    if (!low) return;
    op_rmsnorm(s->o.kern, &(struct norm_args){.x = s->latent.q_low,
                                              .w = latent->q_a_norm,
                                              .n_rows = n_rows,
                                              .n = m->attn.q_lora,
                                              .eps = m->attn.latent_norm_eps,
                                              .y = s->latent.q_low});
    stage_show(s, TAP_Q_LATENT, s->latent.q_low, n_rows, m->attn.q_lora);
    struct act_rows low_rows = stage_input(s, s->latent.q_low, n_rows, m->attn.q_lora);
    const struct column q[] = {{&w->q, s->qkv.q, NULL}, {&w->index.q, s->index.q, NULL}};
    stage_columns(s, q, w->index.q.n_out > 0 ? 2 : 1, &low_rows);
    stage_adapt_columns(s, &(struct adapter_columns){layer, ADAPTER_Q, q, 1}, p, &low_rows);
}

/* Copies the parts of q and of the key that would be rotated in a layer with RoPE. */
static void place_tails(struct stage *s, size_t n_rows)
{
    const struct arch *m = s->o.model;
    struct place_args a = {.from = s->qkv.q + m->attn.query_dim - m->attn.rotary,
                           .n_rows = n_rows * s->attention.n_heads,
                           .width = m->attn.rotary,
                           .from_stride = m->attn.query_dim,
                           .to = s->qkv.q_wide + m->attn.kv_lora,
                           .to_stride = m->attn.head_dim};
    op_place_rows(s->o.kern, &a);
    a.from = s->latent.k_rope;
    a.n_rows = n_rows;
    a.from_stride = m->attn.rotary;
    a.to = s->qkv.k + m->attn.kv_lora;
    op_place_rows(s->o.kern, &a);
}

static void rotate_tails(struct stage *s, const struct part *p)
{
    const struct arch *m = s->o.model;
    struct rope_tails a = {.x = s->qkv.q + m->attn.query_dim - m->attn.rotary,
                           .out = s->qkv.q_wide + m->attn.kv_lora,
                           .x_stride = m->attn.query_dim,
                           .out_stride = m->attn.head_dim,
                           .cos = p->cos,
                           .sin = p->sin,
                           .n_rows = p->hidden.n_rows,
                           .n_heads = s->attention.n_heads,
                           .rot = m->attn.rotary,
                           .pairs = m->rope_pairs};
    op_rope_tails(s->o.kern, &a);
    a.x = s->latent.k_rope;
    a.out = s->qkv.k + m->attn.kv_lora;
    a.x_stride = m->attn.rotary;
    a.n_heads = 1;
    op_rope_tails(s->o.kern, &a);
}

/* s->qkv.k [T, Hd] = latent and key; s->qkv.q_wide [T, H, Hd] = q in the same space. The key and
 * q's part for it are rotated, unless the layer has no RoPE. */
static void enter_latents(struct stage *s, const struct layer *layer, const struct part *p)
{
    const size_t n_rows = p->hidden.n_rows;
    const struct arch *m = s->o.model;
    const struct head_rows q = {s->qkv.q, m->attn.query_dim},
                           of_latents = {s->qkv.q_wide, m->attn.head_dim};
    head_linears(s, layer->attention.latent.k_b, q, of_latents, n_rows);
    stage_adapt_heads(s, &(struct adapter_heads){layer, ADAPTER_K_B, q, of_latents}, p);
    if (layer->is_unrotated)
        place_tails(s, n_rows);
    else
        rotate_tails(s, p);
    const struct place_args latents = {.from = s->qkv.v,
                                       .n_rows = n_rows,
                                       .width = m->attn.kv_lora,
                                       .to_stride = m->attn.head_dim,
                                       .to = s->qkv.k};
    op_place_rows(s->o.kern, &latents);
}

void stage_latent(struct stage *s, const struct layer *layer, const struct part *p,
                  struct act_rows *in)
{
    const struct latent_weights *latent = &layer->attention.latent;
    const size_t n_rows = p->hidden.n_rows;
    const struct arch *m = s->o.model;
    const struct kv_view kv = kv_pool_layer(s->kv, layer->in_cache);
    if (s->attention.n_heads == 0) return;
    project(s, layer, p, in);
    if (s->rotation.q_scale != NULL)
        op_scale_rows(s->o.kern, s->qkv.q, s->rotation.q_scale + p->row0, n_rows,
                      (size_t)s->attention.n_heads * m->attn.query_dim, s->qkv.q);
    enter_latents(s, layer, p);
    op_kv_write(s->o.kern, s->qkv.k, NULL, &kv, part_seqs(p, layer), p->n_seqs);
    if (arch_has_index(m, layer->index)) stage_index_keys(s, layer, p);
    const struct attn_args args = {.q = s->qkv.q_wide,
                                   .out = s->qkv.o_wide,
                                   .kv = kv,
                                   .kv_of_head = s->attention.kv_of_head,
                                   .n_heads = s->attention.n_heads,
                                   .scale = s->attention.scale,
                                   .seqs = part_seqs(p, layer),
                                   .n_seqs = p->n_seqs,
                                   .parts = s->tile_parts,
                                   .n_part_floats = WORKSPACE_TILE_PARTS_BYTES / sizeof(float)};
    if (m->index.n_heads > 0)
        stage_attend_chosen(s, layer, p, &args);
    else
        op_attention(s->o.kern, &args);
    const struct head_rows o = {s->qkv.o_wide, m->attn.head_dim},
                           out = {s->qkv.attended, m->attn.value_dim};
    head_linears(s, latent->v_b, o, out, n_rows);
    stage_adapt_heads(s, &(struct adapter_heads){layer, ADAPTER_V_B, o, out}, p);
    if (m->attn.head_gates)
        op_sigmoid_rows(s->o.kern, s->qkv.attended, s->qkv.gates, n_rows * s->attention.n_heads,
                        m->attn.value_dim);
}

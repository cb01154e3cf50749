/* The order of one layer's attention. */
#include "attention/attention.h"

#include "kernels/ops.h"

void attention_enter(const struct kern_table *kern, const struct attention_shape *s,
                     const struct attention_work *w)
{
    const struct rope_kv_args rows = {.q = w->q,
                                      .k = w->k,
                                      .v = w->v,
                                      .q_norm = w->q_norm,
                                      .k_norm = w->k_norm,
                                      .eps = s->norm_eps,
                                      .norms_last = s->norms_last,
                                      .cos = w->cos,
                                      .sin = w->sin,
                                      .n_rows = w->n_rows,
                                      .n_heads = s->n_heads,
                                      .rot = w->rotary,
                                      .kv = w->kv,
                                      .seqs = w->seqs,
                                      .n_seqs = w->n_seqs};
    op_rope_kv(kern, &rows);
}

struct attn_args attention_args(const struct attention_shape *s, const struct attention_work *w)
{
    return (struct attn_args){.q = w->q,
                              .out = w->out,
                              .kv = w->kv,
                              .kv_of_head = s->kv_of_head,
                              .n_heads = s->n_heads,
                              .scale = s->scale,
                              .softcap = s->softcap,
                              .sinks = w->sinks,
                              .window = w->window,
                              .ahead = s->ahead,
                              .seqs = w->seqs,
                              .n_seqs = w->n_seqs,
                              .parts = w->parts,
                              .n_part_floats = w->n_part_floats};
}

void attention_run(const struct kern_table *kern, const struct attention_shape *s,
                   const struct attention_work *w)
{
    attention_enter(kern, s, w);
    const struct attn_args args = attention_args(s, w);
    op_attention(kern, &args);
}

/* The order of one layer's attention. */
#include "attention/attention.h"

#include "kernels/ops.h"

void attention_run(const struct kern_table *kern, const struct attention_shape *s,
                   const struct attention_work *w)
{
    const size_t hd = s->head_dim;
    if (w->q_norm != NULL) {
        op_rmsnorm(kern, w->q, w->q_norm, w->n_rows * s->n_heads, hd, s->norm_eps, w->q);
        op_rmsnorm(kern, w->k, w->k_norm, w->n_rows * s->n_kv_heads, hd, s->norm_eps, w->k);
    }
    op_rope(kern, w->q, w->cos, w->sin, w->n_rows, s->n_heads, hd, s->rotary);
    op_rope(kern, w->k, w->cos, w->sin, w->n_rows, s->n_kv_heads, hd, s->rotary);
    op_kv_write(kern, w->k, w->v, &w->kv, w->seqs, w->n_seqs);
    const struct attn_args args = {.q = w->q,
                                   .out = w->out,
                                   .kv = w->kv,
                                   .kv_of_head = s->kv_of_head,
                                   .n_heads = s->n_heads,
                                   .scale = s->scale,
                                   .sinks = w->sinks,
                                   .window = w->window,
                                   .seqs = w->seqs,
                                   .n_seqs = w->n_seqs};
    op_attention(kern, &args);
}

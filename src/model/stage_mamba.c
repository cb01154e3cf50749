/* Layers with a Mamba-2 scan instead of attention (Dao and Gu, 2024, arXiv 2405.21060):
 * projections, convolution, scan and the gated norm. Their states are in the slots that
 * stage_delta.c makes. */
#include "kernels/ops.h"
#include "model/stage_private.h"

void stage_mamba(struct stage *s, const struct layer *layer, const struct part *p,
                 struct act_rows *in)
{
    const struct delta_weights *w = &layer->delta;
    const struct delta_shape shape = stage_delta_shape(s);
    const struct arch_delta *m = &s->o.model->delta;
    const size_t t = p->hidden.n_rows, n_k = (size_t)shape.n_heads * shape.key_dim;
    float *q = s->delta_qkvz, *k = q + t * n_k, *v = k + t * n_k;
    float *z = v + t * delta_value_heads(&shape) * shape.value_dim;
    const struct column first[] = {{&w->q, q, NULL}, {&w->k, k, NULL}, {&w->v, v, NULL}};
    const struct column rest[] = {{&w->z, z, NULL}, {&w->a, s->delta_ba, NULL}};
    const struct mamba_args a = {.shape = shape,
                                 .q = q,
                                 .k = k,
                                 .v = v,
                                 .z = z,
                                 .dt = s->delta_ba,
                                 .conv = w->conv,
                                 .decay_log = w->decay_log,
                                 .step_bias = w->step_bias,
                                 .skip = w->skip,
                                 .step_least = m->step_least,
                                 .step_most = m->step_most,
                                 .norm = w->norm,
                                 .states = state_pool_layer(s->states, layer->in_cache),
                                 .seqs = p->seqs,
                                 .n_seqs = p->n_seqs,
                                 .n_rows = t,
                                 .mixed = s->delta_mixed,
                                 .gates = s->delta_gates,
                                 .out = s->attended};
    stage_columns(s, first, 3, in);
    stage_columns(s, rest, 2, in);
    op_mamba(s->o.kern, &a);
}

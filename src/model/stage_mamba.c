/* Layers with a Mamba-2 scan instead of attention (Dao and Gu, 2024, arXiv 2405.21060):
 * projections, convolution, scan, gate and norm. Their states are in the slots that stage_delta.c
 * makes. Tp ranks divide the heads, not the groups: each has B and C of all groups, which are
 * small. */
#include "collective/device_comm.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "model/stage_private.h"

/* True when a group's heads are on more than one rank. */
static bool cuts_groups(const struct stage *s)
{
    const struct layout *l = s->o.layout;
    for (uint32_t i = 1; i < l->tp; i++)
        if (layout_delta_heads(l, i).begin % arch_delta_per_key(s->o.model) != 0) return true;
    return false;
}

/* Norms s->qkv.attended over the heads of each group. The rank that holds a head supplies its sum
 * of squares, and all ranks add the sums in the order of the heads. */
static void norm_groups(struct stage *s, const float *norm, size_t n_rows)
{
    if (cuts_groups(s))
        device_or_u32(s->o.kern, s->o.comm, COMM_TP, s->head_sums,
                      n_rows * s->o.model->delta.n_value_heads);
    op_mamba_norm(s->o.kern, &(struct mamba_norm){.shape = stage_delta_shape(s),
                                                  .sums = s->head_sums,
                                                  .norm = norm,
                                                  .n_rows = n_rows,
                                                  .out = s->qkv.attended});
}

/* Computes s->qkv.attended before the norm, on a rank that holds heads. */
static void scan_stage_rows(struct stage *s, const struct layer *layer, const struct part *p,
                            struct act_rows *in)
{
    const struct delta_weights *w = &layer->delta;
    const struct delta_shape shape = stage_delta_shape(s);
    const struct arch_delta *m = &s->o.model->delta;
    const size_t t = p->hidden.n_rows, n_k = (size_t)shape.n_heads * shape.key_dim;
    float *q = s->delta.qkvz, *k = q + t * n_k, *v = k + t * n_k;
    float *z = v + t * delta_value_heads(&shape) * shape.value_dim;
    const struct column first[] = {{&w->q, q, NULL}, {&w->k, k, NULL}, {&w->v, v, NULL}};
    const struct column rest[] = {{&w->z, z, NULL}, {&w->a, s->delta.ba, NULL}};
    const struct mamba_args a = {.shape = shape,
                                 .q = q,
                                 .k = k,
                                 .v = v,
                                 .z = z,
                                 .dt = s->delta.ba,
                                 .conv = w->conv,
                                 .decay_log = w->decay_log,
                                 .step_bias = w->step_bias,
                                 .skip = w->skip,
                                 .step_least = m->step_least,
                                 .step_most = m->step_most,
                                 .states = state_pool_layer(s->states, layer->in_cache),
                                 .seqs = p->seqs,
                                 .n_seqs = p->n_seqs,
                                 .n_rows = t,
                                 .mixed = s->delta.mixed,
                                 .gates = s->delta.gates,
                                 .out = s->qkv.attended,
                                 .sums = s->head_sums};
    stage_columns(s, first, 3, in);
    stage_columns(s, rest, 2, in);
    op_mamba(s->o.kern, &a);
}

void stage_mamba(struct stage *s, const struct layer *layer, const struct part *p,
                 struct act_rows *in)
{
    const size_t n = p->hidden.n_rows * s->o.model->delta.n_value_heads;
    mem_ops_fill(s->o.kern, s->head_sums, 0, n * sizeof *s->head_sums);
    if (range_count(s->o.weights->delta_heads) > 0) scan_stage_rows(s, layer, p, in);
    norm_groups(s, layer->delta.norm, p->hidden.n_rows);
}

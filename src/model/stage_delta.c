/* Layers with a gated delta rule instead of attention: projections, convolution, recurrence and the
 * gated norm. Their states are in slots, one for each sequence. */
#include "kernels/ops.h"
#include "model/stage_private.h"

static struct delta_shape shape_of(const struct stage *s)
{
    const struct arch *m = s->o.model;
    return (struct delta_shape){.n_heads = range_count(s->o.weights->delta_heads),
                                .per_key = arch_delta_per_key(m),
                                .key_dim = m->delta.key_dim,
                                .value_dim = m->delta.value_dim,
                                .n_taps = m->delta.n_taps,
                                .norm_eps = m->norm_eps};
}

struct status stage_make_states(struct stage *s)
{
    const struct range layers = s->o.weights->layers;
    const struct state_shape shape = {.n_layers =
                                          arch_delta_layers(s->o.model, layers.begin, layers.end),
                                      .n_slots = s->o.n_state_slots,
                                      .layer = shape_of(s)};
    if (shape.n_layers == 0) return status_ok();
    return state_pool_create(&shape, &s->states);
}

void stage_delta(struct stage *s, const struct layer *layer, const struct part *p,
                 struct act_rows *in)
{
    const struct delta_weights *w = &layer->delta;
    const struct delta_shape shape = shape_of(s);
    const size_t d = shape.key_dim, n_v = (size_t)shape.per_key * shape.value_dim;
    const size_t head = 2 * (d + n_v), row = shape.n_heads * head;
    const size_t gates = (size_t)shape.n_heads * 2 * shape.per_key;
    const struct column columns[] = {{&w->qkvz, s->delta_qkvz, NULL}, {&w->ba, s->delta_ba, NULL}};
    stage_columns(s, columns, 2, in);
    /* of each key head: q, k, v, z; b, a */
    const float *x = s->delta_qkvz, *ba = s->delta_ba;
    const struct delta_args a = {.shape = shape,
                                 .q = {x, row, head},
                                 .k = {x + d, row, head},
                                 .v = {x + 2 * d, row, head},
                                 .z = {x + 2 * d + n_v, row, head},
                                 .b = {ba, gates, 2 * shape.per_key},
                                 .a = {ba + shape.per_key, gates, 2 * shape.per_key},
                                 .conv = w->conv,
                                 .decay_log = w->decay_log,
                                 .step_bias = w->step_bias,
                                 .norm = w->norm,
                                 .query_scale = 1.0f / __builtin_sqrtf((float)d),
                                 .states = state_pool_layer(s->states, layer->in_cache),
                                 .seqs = p->seqs,
                                 .n_seqs = p->n_seqs,
                                 .n_rows = p->hidden.n_rows,
                                 .mixed = s->delta_mixed,
                                 .gates = s->delta_gates,
                                 .out = s->attended};
    op_delta(s->o.kern, &a);
}

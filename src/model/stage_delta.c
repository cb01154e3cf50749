/* Layers with a gated delta rule instead of attention: projections, convolution, recurrence and the
 * gated norm. Their states are in slots, one for each sequence. */
#include "kernels/ops.h"
#include "model/stage_private.h"

struct delta_shape stage_delta_shape(const struct stage *s)
{
    const struct arch *m = s->o.model;
    const struct range held = s->o.weights->delta_heads;
    if (m->delta.is_mamba) /* a rank without heads keeps no keys either */
        return (struct delta_shape){.n_heads = range_count(held) > 0 ? m->delta.n_key_heads : 0,
                                    .per_key = arch_delta_per_key(m),
                                    .is_cut = true,
                                    .first_own = held.begin,
                                    .n_own = range_count(held),
                                    .key_dim = m->delta.key_dim,
                                    .value_dim = m->delta.value_dim,
                                    .n_taps = m->delta.n_taps,
                                    .norm_eps = m->norm_eps};
    return (struct delta_shape){.n_heads = range_count(held),
                                .per_key = arch_delta_per_key(m),
                                .key_dim = m->delta.key_dim,
                                .value_dim = m->delta.value_dim,
                                .n_taps = m->delta.n_taps,
                                .norm_eps = m->norm_eps,
                                .by_channel = m->delta.by_channel,
                                .is_bounded = m->delta.is_bounded,
                                .least_log = m->delta.least_log};
}

struct status stage_make_states(struct stage *s)
{
    const struct arch *m = s->o.model;
    const struct range layers = s->o.weights->layers;
    const bool has_entries = m->compression.o_groups > 0;
    struct state_shape shape = {.n_layers = arch_delta_layers(m, layers.begin, layers.end),
                                .n_slots = s->o.n_state_slots,
                                .layer = stage_delta_shape(s)};
    if (has_entries)
        shape = (struct state_shape){.n_layers = arch_entry_layers(m, layers.begin, layers.end),
                                     .n_slots = s->o.n_state_slots,
                                     .n_floats = arch_entry_floats(m)};
    if (shape.n_layers == 0) return status_ok();
    return state_pool_create(&shape, &s->states);
}

/* Projects with two linears: one gives q, k, v, z of each key head, the other b, a. */
static void project_joined(struct stage *s, const struct delta_weights *w, struct delta_args *a,
                           struct act_rows *in)
{
    const size_t d = a->shape.key_dim, n_v = (size_t)a->shape.per_key * a->shape.value_dim;
    const size_t head = 2 * (d + n_v), row = a->shape.n_heads * head;
    const size_t gates = (size_t)a->shape.n_heads * 2 * a->shape.per_key;
    const struct column columns[] = {{&w->qkvz, s->delta.qkvz, NULL}, {&w->ba, s->delta.ba, NULL}};
    const float *x = s->delta.qkvz, *ba = s->delta.ba;
    stage_columns(s, columns, 2, in);
    a->q = (struct head_view){x, row, head};
    a->k = (struct head_view){x + d, row, head};
    a->v = (struct head_view){x + 2 * d, row, head};
    a->z = (struct head_view){x + 2 * d + n_v, row, head};
    a->b = (struct head_view){ba, gates, 2 * a->shape.per_key};
    a->a = (struct head_view){ba + a->shape.per_key, gates, 2 * a->shape.per_key};
}

/* Projects with six linears: each gives one of q, k, v, z, b, a for all heads. */
static void project_apart(struct stage *s, const struct delta_weights *w, struct delta_args *a,
                          struct act_rows *in)
{
    const size_t d = a->shape.key_dim, n_v = (size_t)a->shape.per_key * a->shape.value_dim;
    const size_t n = a->shape.n_heads, t = a->n_rows, per_key = a->shape.per_key;
    float *q = s->delta.qkvz, *k = q + t * n * d, *v = k + t * n * d, *z = v + t * n * n_v;
    float *b = s->delta.ba, *gate = b + t * n * per_key;
    const struct column first[] = {{&w->q, q, NULL}, {&w->k, k, NULL}, {&w->v, v, NULL}};
    const struct column rest[] = {{&w->z, z, NULL}, {&w->b, b, NULL}, {&w->a, gate, NULL}};
    stage_columns(s, first, 3, in);
    stage_columns(s, rest, 3, in);
    a->q = (struct head_view){q, n * d, d};
    a->k = (struct head_view){k, n * d, d};
    a->v = (struct head_view){v, n * n_v, n_v};
    a->z = (struct head_view){z, n * n_v, n_v};
    a->b = (struct head_view){b, n * per_key, per_key};
    a->a = (struct head_view){gate, n * per_key, per_key};
}

/* Projects for a delta rule with a decay for each channel. The linears of a and z may read the
 * outputs of a_low and z_low. They then come last, because quantizing what they read overwrites the
 * quantized rows of `in`. */
static void project_channels(struct stage *s, const struct delta_weights *w, struct delta_args *a,
                             struct act_rows *in)
{
    const bool is_direct = s->o.model->family->ling;
    const size_t d = a->shape.key_dim, n = a->shape.n_heads, t = a->n_rows;
    float *q = s->delta.qkvz, *k = q + t * n * d, *v = k + t * n * d, *z = v + t * n * d;
    float *b = s->delta.ba, *gate = b + t * n, *a_low = gate + t * n * d;
    float *z_low = a_low + (is_direct ? 0 : t * d);
    if (n == 0) return;
    const struct column first[] = {{&w->q, q, NULL}, {&w->k, k, NULL}, {&w->v, v, NULL}};
    const struct column of_a = {&w->a, gate, NULL}, of_z = {&w->z, z, NULL};
    const struct column narrow[] = {
        {&w->b, b, NULL}, {&w->a_low, a_low, NULL}, {&w->z_low, z_low, NULL}};
    const struct column direct[] = {{&w->b, b, NULL}, of_a, of_z};
    stage_columns(s, first, 3, in);
    stage_columns(s, is_direct ? direct : narrow, 3, in);
    if (!is_direct) {
        struct act_rows low = stage_input(s, a_low, t, d);
        stage_columns(s, &of_a, 1, &low);
        low = stage_input(s, z_low, t, d);
        stage_columns(s, &of_z, 1, &low);
    }
    a->q = (struct head_view){q, n * d, d};
    a->k = (struct head_view){k, n * d, d};
    a->v = (struct head_view){v, n * d, d};
    a->z = (struct head_view){z, n * d, d};
    a->b = (struct head_view){b, n, 1};
    a->a = (struct head_view){gate, n * d, d};
}

void stage_delta(struct stage *s, const struct layer *layer, const struct part *p,
                 struct act_rows *in)
{
    const struct delta_weights *w = &layer->delta;
    const struct delta_shape shape = stage_delta_shape(s);
    struct delta_args a = {.shape = shape,
                           .conv = w->conv,
                           .decay_log = w->decay_log,
                           .step_bias = w->step_bias,
                           .norm = w->norm,
                           .query_scale = 1.0f / __builtin_sqrtf((float)shape.key_dim),
                           .states = state_pool_layer(s->states, layer->in_cache),
                           .seqs = p->seqs,
                           .n_seqs = p->n_seqs,
                           .n_rows = p->hidden.n_rows,
                           .mixed = s->delta.mixed,
                           .gates = s->delta.gates,
                           .out = s->qkv.attended};
    (shape.by_channel                  ? project_channels
     : s->o.model->family->delta_apart ? project_apart
                                       : project_joined)(s, w, &a, in);
    op_delta(s->o.kern, &a);
}

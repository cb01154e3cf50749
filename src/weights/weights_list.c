/* The pure part of the weights: which slabs of which tensors a place holds, by the table of tensors
 * (arch/arch_tensors.h) and the layout. */
#include "weights/weights.h"

/* The state of the walk over a place's tensors. */
struct walk {
    const struct arch *m;
    const struct layout *l;
    struct layout_place place;
    weight_emit *emit;
    void *ctx;
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

/* The units of an axis that the place holds. */
static struct range units_of(const struct walk *w, enum arch_axis axis)
{
    const uint32_t tp = w->place.tp;
    switch (axis) {
    case AXIS_HEADS:
        return layout_heads(w->l, tp);
    case AXIS_KV_HEADS:
        return layout_kv_heads(w->l, tp);
    case AXIS_FFN:
        return layout_ffn(w->l, tp);
    case AXIS_SHARED_FFN:
        return layout_shared_ffn(w->l, tp);
    case AXIS_EXPERT_FFN:
        return layout_expert_ffn(w->l, w->place.etp);
    default:
        return layout_vocab(w->l, tp);
    }
}

/* The elements of a dimension that the place holds. */
static struct range held(const struct walk *w, enum arch_dim dim)
{
    if (arch_dim_axis(dim) == AXIS_NONE) return whole(arch_dim_size(w->m, dim));
    const struct range units = units_of(w, arch_dim_axis(dim));
    const uint32_t unit = arch_dim_unit(w->m, dim);
    return (struct range){units.begin * unit, units.end * unit};
}

/* A row-parallel tensor: this place's inputs of all outputs, or all inputs of its outputs. */
static void cut_leaves(const struct walk *w, bool is_expert, struct weight_spec *s)
{
    const struct layout *l = w->l;
    s->rows = is_expert ? layout_expert_outputs(l, w->place.etp) : layout_outputs(l, w->place.tp);
    if (is_expert ? l->cuts_expert_outputs : l->cuts_outputs) s->cols = whole(s->n_cols);
}

/* The rows of a role that shares its tensor with another: they stand before or behind its rows. */
static void shift_rows(const struct walk *w, const struct arch_tensor *t, struct weight_spec *s)
{
    const uint32_t other = arch_dim_size(w->m, t->beside);
    s->n_rows += other;
    if (!t->is_second) return;
    s->rows.begin += other;
    s->rows.end += other;
}

static struct weight_spec spec_of(const struct walk *w, const struct arch_tensor *t)
{
    const struct range experts = layout_experts(w->l, w->place.ep);
    struct weight_spec s = {.role = t->role,
                            .is_vector = t->is_vector,
                            .is_expert = t->is_expert,
                            .n_outer = 1,
                            .n_rows = arch_dim_size(w->m, t->rows),
                            .n_cols = arch_dim_size(w->m, t->cols),
                            .outer = whole(1),
                            .rows = held(w, t->rows),
                            .cols = held(w, t->cols)};
    if (t->has_leaves) cut_leaves(w, t->is_expert, &s);
    if (arch_tensor_is_halved(t, w->m->family)) shift_rows(w, t, &s);
    if (t->is_expert && t->is_vector) {
        s.n_rows = w->m->n_experts;
        s.rows = experts;
    } else if (t->is_expert) {
        s.n_outer = w->m->n_experts;
        s.outer = experts;
    }
    return s;
}

static bool weights_list_is_empty(const struct weight_spec *s)
{
    return range_count(s->outer) == 0 || range_count(s->rows) == 0 || range_count(s->cols) == 0;
}

/* Emits the tensors of these parts; layer 0: outside the layers. */
static struct status walk_parts(const struct walk *w, uint32_t parts, uint32_t layer)
{
    const struct arch_tensor *t;
    for (size_t i = 0; (t = arch_tensor_at(i)) != NULL; i++) {
        if ((t->part & parts) == 0) continue;
        struct weight_spec s = spec_of(w, t);
        arch_tensor_name(t, w->m->family, layer, s.name, sizeof s.name);
        s.layer = layer;
        if (!weights_list_is_empty(&s)) TRY(w->emit(w->ctx, &s));
    }
    return status_ok();
}

struct status weights_list(const struct arch *m, const struct layout *l, struct layout_place place,
                           weight_emit *emit, void *ctx)
{
    const struct walk w = {.m = m, .l = l, .place = place, .emit = emit, .ctx = ctx};
    if (place.pp == 0) TRY(walk_parts(&w, PART_EMBED, 0));
    const struct range layers = layout_layers(l, place.pp);
    for (uint32_t layer = layers.begin; layer < layers.end; layer++) {
        TRY(walk_parts(&w, arch_layer_parts(m, layer), layer));
    }
    if (place.pp + 1 < l->pp) return status_ok();
    /* with one stage a tied head is the embedding that is here already */
    const uint32_t tied = l->pp == 1 ? 0 : PART_HEAD_TIED;
    return walk_parts(&w, PART_FINAL | (m->tied ? tied : PART_HEAD), 0);
}

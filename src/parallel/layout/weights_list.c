/* Lists, tensor by tensor, the slabs (parts of tensors) that the rank at a place of the layout
 * holds. */
#include "parallel/layout/weights_list.h"

static struct range whole(uint32_t n)
{
    return (struct range){0, n};
}

struct weights_cut weights_cut_of(const struct layout *l, struct layout_place place)
{
    return (struct weights_cut){.l = l,
                                .place = place,
                                .axis = {[AXIS_HEADS] = layout_heads(l, place.tp),
                                         [AXIS_FULL_HEADS] = layout_full_heads(l, place.tp),
                                         [AXIS_KV_HEADS] = layout_kv_heads(l, place.tp),
                                         [AXIS_FULL_KV_HEADS] = layout_full_kv_heads(l, place.tp),
                                         [AXIS_FFN] = layout_ffn(l, place.tp),
                                         [AXIS_SHARED_FFN] = layout_shared_ffn(l, place.tp),
                                         [AXIS_EXPERT_FFN] = layout_expert_ffn(l, place.etp),
                                         [AXIS_VOCAB] = layout_vocab(l, place.tp),
                                         [AXIS_DELTA] = layout_delta_heads(l, place.tp)},
                                .experts = layout_experts(l, place.ep)};
}

/* Returns the elements of a dimension that the place holds. */
static struct range held(const struct weights_cut *cut, enum arch_dim dim)
{
    const struct arch *m = cut->l->model.arch;
    if (arch_dim_axis(dim) == AXIS_NONE) return whole(arch_dim_size(m, dim));
    const struct range units = cut->axis[arch_dim_axis(dim)];
    const uint32_t unit = arch_dim_unit(m, dim);
    return (struct range){units.begin * unit, units.end * unit};
}

/* Cuts a row-parallel tensor. The place holds its range of the inputs for all outputs or, when the
 * layout cuts by outputs, all inputs for its range of the outputs. */
static void cut_leaves(const struct weights_cut *cut, bool is_expert, struct weight_spec *s)
{
    const struct layout *l = cut->l;
    s->rows =
        is_expert ? layout_expert_outputs(l, cut->place.etp) : layout_outputs(l, cut->place.tp);
    if (is_expert ? l->cuts_expert_outputs : l->cuts_outputs) s->cols = whole(s->n_cols);
}

/* Shifts the rows of a role whose tensor also holds rows of other roles: those of t->before come
 * first, then the role's own, then those of t->behind. */
static void shift_rows(const struct arch *m, const struct arch_tensor *t, struct weight_spec *s)
{
    for (int i = 0; i < 2; i++) {
        const uint32_t before = arch_dim_size(m, t->before[i]);
        s->n_rows += before + arch_dim_size(m, t->behind[i]);
        s->rows.begin += before;
        s->rows.end += before;
    }
}

struct weight_spec weights_slab(const struct weights_cut *cut, const struct arch_tensor *t)
{
    const struct arch *m = cut->l->model.arch;
    struct weight_spec s = {.role = t->role,
                            .tensor = t,
                            .is_vector = t->is_vector,
                            .is_expert = t->is_expert,
                            .n_outer = 1,
                            .n_rows = arch_dim_size(m, t->rows),
                            .n_cols = arch_dim_size(m, t->cols),
                            .outer = whole(1),
                            .rows = held(cut, t->rows),
                            .cols = held(cut, t->cols)};
    if (t->has_leaves) cut_leaves(cut, t->is_expert, &s);
    if (arch_tensor_is_joined(t, m->family)) shift_rows(m, t, &s);
    if (t->is_expert && t->is_vector) {
        s.n_rows = m->moe.n_experts;
        s.rows = cut->experts;
    } else if (t->is_expert) {
        s.n_outer = m->moe.n_experts;
        s.outer = cut->experts;
    }
    return s;
}

static bool weights_list_is_empty(const struct weight_spec *s)
{
    return range_count(s->outer) == 0 || range_count(s->rows) == 0 || range_count(s->cols) == 0;
}

uint64_t weights_outer_parts(const struct layout *l, struct layout_place place)
{
    const bool first = place.pp == 0, last = place.pp + 1 == l->pp;
    const uint64_t head = !l->model.arch->tied ? PART_HEAD : first ? 0 : PART_HEAD_TIED;
    const bool embeds = first || (last && l->model.arch->n_predict > 0);
    uint64_t final = arch_final_parts(l->model.arch) | head;
    if (l->model.arch->headless) final &= ~(uint64_t)(PART_HEAD | PART_HEAD_TIED | PART_HEAD_BIAS);
    const uint64_t places = first && l->model.arch->n_positions > 0 ? PART_PLACES : 0;
    return (embeds ? PART_EMBED : 0) | places | (last ? final : 0);
}

struct listing {
    struct weights_cut cut;
    weight_emit *emit;
    void *ctx;
};

/* Emits the place's slabs of these parts. For parts outside the layers, layer is 0. */
static struct status list_tensor_parts(const struct listing *k, uint64_t parts, uint32_t layer)
{
    const struct arch_tensor *t;
    for (size_t i = 0; (t = arch_tensor_at(i)) != NULL; i++) {
        if ((t->part & parts) == 0) continue;
        struct weight_spec s = weights_slab(&k->cut, t);
        arch_tensor_name(t, k->cut.l->model.arch->family, layer, s.name, sizeof s.name);
        s.layer = layer;
        if (!weights_list_is_empty(&s)) TRY(k->emit(k->ctx, &s));
    }
    return status_ok();
}

struct status weights_list(const struct layout *l, struct layout_place place, weight_emit *emit,
                           void *ctx)
{
    const struct listing k = {.cut = weights_cut_of(l, place), .emit = emit, .ctx = ctx};
    const uint64_t outer = weights_outer_parts(l, place);
    const struct range layers = layout_layers(l, place.pp);
    TRY(list_tensor_parts(&k, outer & PART_EMBED, 0));
    for (uint32_t layer = layers.begin; layer < layers.end; layer++) {
        TRY(list_tensor_parts(&k, arch_layer_parts(l->model.arch, layer), layer));
    }
    return list_tensor_parts(&k, outer & ~(uint64_t)PART_EMBED, 0);
}

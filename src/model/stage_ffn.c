/* The FFN block of a layer: norm, then a dense FFN or the experts. */
#include "base/mem.h"
#include "kernels/ops.h"
#include "model/stage_private.h"

struct status stage_make_moe(struct stage *s)
{
    const struct arch *m = s->o.model;
    if (m->n_experts == 0) return status_ok();
    if (s->o.policy != CAPACITY_DROPLESS && (m->family->sigmoid || m->router.n_groups > 1)) {
        return status_make(STATUS_USAGE, "--capacity-factor: not implemented for the routing of %s",
                           m->family->title);
    }
    const struct moe_options o = {.kern = s->o.kern,
                                  .comm = s->o.comm,
                                  .layout = s->o.layout,
                                  .rank = s->o.rank,
                                  .width = m->width,
                                  .n_experts = m->n_experts,
                                  .n_chosen = m->n_chosen,
                                  .router = m->router,
                                  .residual_scale = m->residual_scale,
                                  .swiglu_alpha = m->swiglu_alpha,
                                  .swiglu_limit = m->swiglu_limit,
                                  .policy = s->o.policy,
                                  .capacity_factor = s->o.capacity_factor,
                                  .weight_only = s->o.weight_only,
                                  .tap = s->o.tap};
    TRY(mem_alloc(&s->expert_load, (size_t)range_count(s->o.weights->layers) * m->n_experts,
                  sizeof *s->expert_load, "expert load"));
    return moe_create(&o, &s->moe);
}

/* s->gate [T, F] = the FFN's inner rows, as the down projection reads them, of the rows `in`. */
static struct act_rows swiglu(struct stage *s, const struct layer_weights *w, struct act_rows *in)
{
    const size_t f = w->gate.n_out, n_rows = in->n_rows;
    const uint32_t tp = s->o.weights->place.tp;
    const struct range held =
        w->is_moe ? layout_shared_ffn(s->o.layout, tp) : layout_ffn(s->o.layout, tp);
    const struct inner_rows rows = {.x = s->gate,
                                    .n_rows = n_rows,
                                    .held = held,
                                    .n_all = w->is_moe ? s->o.model->shared_ffn : s->o.model->ffn,
                                    .memory = s->inner_codes};
    struct act_rows inner = s->row_sum->input(s, &rows);
    const struct column gate_up[] = {{&w->gate, s->gate, w->gate_bias},
                                     {&w->up, s->up, w->up_bias}};
    act_codes(s->o.kern, in, &w->gate);
    const bool apart = act_codes_replace(in, &w->up);
    if (f > 0 && !apart && w->gate_bias == NULL && w->up_bias == NULL) {
        stage_gated(s, gate_up, in, act_codes_to_make(&inner, &w->down));
    } else {
        stage_columns(s, gate_up, 2, in);
        if (f > 0)
            op_swiglu(s->o.kern, &(struct swiglu_args){.gate = s->gate,
                                                       .up = s->up,
                                                       .stride = f,
                                                       .n_rows = n_rows,
                                                       .n = f,
                                                       .y = s->gate,
                                                       .y_stride = f});
    }
    stage_show(s, TAP_DOWN, s->gate, n_rows, f);
    return inner;
}

static void dense_block(struct stage *s, const struct layer_weights *w, struct act_rows *in,
                        struct part *p)
{
    struct act_rows inner = swiglu(s, w, in);
    s->row_sum->add(s, &w->down, w->down_bias, &inner, p);
}

/* s->shared = what all tokens pass in a MoE layer, in the rows that this rank holds. */
static void shared_block(struct stage *s, const struct layer_weights *w, struct act_rows *in,
                         struct part *p)
{
    const size_t n_rows = range_count(p->own), d = s->o.model->width;
    struct act_rows inner = swiglu(s, w, in);
    s->row_sum->assign(s, &w->down, &inner, s->shared, p);
    if (w->mix.n_out == 0) return;
    const struct column mix = {&w->mix, s->mix, NULL};
    stage_columns(s, &mix, 1, in);
    op_sigmoid_rows(s->o.kern, s->shared + p->own.begin * d, s->mix + p->own.begin, n_rows, d);
}

/* The linear that meets the normed rows first, as all ranks see it where each makes the codes of a
 * slice: then none may be without its gate. Experts read codes of slices only. */
static const struct packed *first_linear(const struct stage *s, const struct layer_weights *w,
                                         const struct part *p)
{
    const struct layout *l = s->o.layout;
    const bool is_cut = part_is_cut(p);
    if (!w->is_moe) return !is_cut || range_count(layout_ffn(l, l->tp - 1)) > 0 ? &w->gate : NULL;
    const bool all_have = range_count(layout_experts(l, l->ep - 1)) > 0 &&
                          range_count(layout_expert_ffn(l, l->etp - 1)) > 0;
    return is_cut && all_have ? &w->expert_gate[0] : NULL;
}

struct status stage_ffn(struct stage *s, uint32_t layer, const struct layer_weights *w,
                        struct part *p)
{
    const struct hidden *hidden = &p->hidden;
    struct act_rows in = s->row_sum->norm(s, p, w->ffn_norm, first_linear(s, w, p));
    stage_show(s, TAP_FFN, in.x, hidden->n_rows, s->o.model->width);
    if (!w->is_moe) {
        dense_block(s, w, &in, p);
        return status_ok();
    }
    const bool has_shared = s->o.model->shared_ffn > 0;
    if (has_shared) shared_block(s, w, &in, p);
    const struct moe_weights moe = {.router = &w->router,
                                    .bias = w->select_bias,
                                    .gate = w->expert_gate,
                                    .up = w->expert_up,
                                    .down = w->expert_down,
                                    .has_others = w->has_others,
                                    .router_bias = w->router_bias,
                                    .gate_bias = w->expert_gate_bias,
                                    .up_bias = w->expert_up_bias,
                                    .down_bias = w->expert_down_bias,
                                    .place = w->expert_places,
                                    .expert = w->expert_at};
    const struct moe_rows rows = {.n_tokens = hidden->n_rows,
                                  .own = p->own,
                                  .x = in.x,
                                  .in = &in,
                                  .shared = has_shared ? s->shared : NULL,
                                  .h = hidden->h,
                                  .bad = hidden->bad,
                                  .dropped = hidden->dropped,
                                  .load = s->expert_load + (size_t)layer * s->o.model->n_experts};
    return moe_forward(s->moe, &moe, &rows);
}

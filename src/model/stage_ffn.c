/* The FFN block of a layer: norm, then a dense FFN or the experts. */
#include "base/mem.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "model/stage_private.h"
#include "parallel/layout/workspace.h"

#include <assert.h>

struct status stage_make_moe(struct stage *s)
{
    const struct arch *m = s->o.model;
    if (m->moe.n_experts == 0) return status_ok();
    if (s->o.capacity->policy != CAPACITY_DROPLESS &&
        (m->family->sigmoid || m->moe.weighs_inputs || m->moe.router.n_groups > 1 || m->shortcut ||
         m->moe.joins || m->streams.n > 0)) {
        return status_make(STATUS_USAGE, "--capacity-factor: not implemented for the routing of %s",
                           m->family->title);
    }
    const struct moe_options o = {.model = m,
                                  .layout = s->o.layout,
                                  .kern = s->o.kern,
                                  .comm = s->o.comm,
                                  .rank = s->o.rank,
                                  .capacity = s->o.capacity,
                                  .weight_only = stage_is_weight_only(&s->o),
                                  .tap = s->o.tap,
                                  .adapters = s->o.adapters};
    TRY(mem_alloc(&s->expert_load, (size_t)range_count(s->o.weights->layers) * m->moe.n_experts,
                  sizeof *s->expert_load, "expert load"));
    return moe_create(&o, &s->moe);
}

/* Applies the activation of an FFN with one inner linear in place to s->ffn.gate [n], which holds
 * the linear's outputs. */
static void activate(struct stage *s, const struct ffn_weights *w, size_t n)
{
    switch (s->o.model->gate) {
    case GATE_RELU2:
        op_relu2(s->o.kern, s->ffn.gate, n);
        break;
    case GATE_GELU:
        op_gelu(s->o.kern, s->ffn.gate, n);
        break;
    case GATE_SWIGLU:
    case GATE_GEGLU:
    case GATE_GEGLU_EXACT:
        assert(s->o.model->family->xielu); /* which has no gate_kind of its own */
        op_xielu(s->o.kern, s->ffn.gate, w->xielu, n);
    }
}

static bool is_ungated(enum gate_kind gate)
{
    switch (gate) {
    case GATE_RELU2:
    case GATE_GELU:
        return true;
    case GATE_SWIGLU:
    case GATE_GEGLU:
    case GATE_GEGLU_EXACT:
        break;
    }
    return false;
}

/* s->ffn.gate [T, F] = the inner rows `rows` of BitNet's FFN, from s->ffn.gate and s->ffn.up. */
static void norm_inner(struct stage *s, const struct ffn_weights *w, const struct inner_rows *rows)
{
    op_relu2_gate(s->o.kern, s->ffn.gate, s->ffn.up, rows->n_rows * range_count(rows->held));
    stage_norm_whole(s, &(struct whole_norm){.x = s->ffn.gate,
                                             .w = w->down_norm,
                                             .n_rows = rows->n_rows,
                                             .held = rows->held,
                                             .n_all = rows->n_all,
                                             .unit = WORKSPACE_INNER_UNIT,
                                             .sums = s->ffn.sums});
}

/* Returns the limit of the gates and ups of a layer's dense FFN or shared experts; 0: none. */
static float limit_of(const struct arch *m, const struct layer *layer)
{
    const float cap = m->layer.ffn_cap[layer->index];
    if (cap > 0) return cap;
    return m->swiglu.everywhere || m->swiglu.alpha == 0 ? m->swiglu.limit : 0;
}

/* s->ffn.gate [n_rows, n] = the inner rows of a layer's FFN, from s->ffn.gate and s->ffn.up. */
static void gate_inner(struct stage *s, const struct layer *layer, size_t n_rows, size_t n)
{
    const struct arch *m = s->o.model;
    if (m->swiglu.everywhere) {
        op_swiglu_clamped(s->o.kern, s->ffn.gate, s->ffn.up, n_rows * n, m->swiglu.alpha,
                          m->swiglu.limit);
        return;
    }
    op_swiglu(s->o.kern, &(struct swiglu_args){.kind = m->gate,
                                               .limit = limit_of(m, layer),
                                               .caps = m->layer.ffn_cap[layer->index] > 0,
                                               .gate = s->ffn.gate,
                                               .up = s->ffn.up,
                                               .stride = n,
                                               .n_rows = n_rows,
                                               .n = n,
                                               .y = s->ffn.gate,
                                               .y_stride = n});
}

/* Computes the FFN's intermediate activations for the rows `in`, and returns them as the input of
 * the down projection: in s->ffn.gate [T, F], or as quantized values alone. */
static struct act_rows inner_activations(struct stage *s, const struct layer *layer,
                                         struct act_rows *in, const struct part *p)
{
    const struct ffn_weights *w = &layer->ffn;
    const struct layout *l = s->o.layout;
    const size_t f = w->gate.n_out, n_rows = in->n_rows;
    const uint32_t tp = s->o.weights->place.tp;
    const bool is_shared = layer->is_moe && !layer->starts_shortcut;
    const struct inner_rows rows = {
        .x = s->ffn.gate,
        .n_rows = n_rows,
        .held = is_shared ? layout_shared_ffn(l, tp) : layout_ffn(l, tp),
        .n_all = is_shared ? s->o.model->moe.shared_ffn : s->o.model->ffn,
        .memory = s->inner_codes};
    struct act_rows inner = s->row_sum->input(s, &rows);
    const struct column gate_up[] = {{&w->gate, s->ffn.gate, w->gate_bias},
                                     {&w->up, s->ffn.up, w->up_bias}};
    const bool is_adapted = stage_adapts_ffn(s, layer, p);
    const struct adapter_columns adapted = {layer, ADAPTER_GATE, gate_up, 2};
    if ((s->o.model->family->xielu && !is_shared) || is_ungated(s->o.model->gate)) {
        stage_columns(s, gate_up, 1, in);
        activate(s, w, n_rows * f);
        stage_show(s, TAP_DOWN, s->ffn.gate, n_rows, f);
        return inner;
    }
    act_codes(s->o.kern, in, &w->gate);
    const bool apart = act_codes_replace(in, &w->up);
    const bool is_normed = s->o.model->sub_norms;
    if (f > 0 && !apart && !is_adapted && !is_normed && limit_of(s->o.model, layer) == 0 &&
        w->gate_bias == NULL && w->up_bias == NULL) {
        stage_gated(s, gate_up, in, act_codes_to_make(&inner, &w->down));
    } else {
        stage_columns(s, gate_up, 2, in);
        if (is_adapted) stage_adapt_columns(s, &adapted, p, in);
        if (is_normed)
            norm_inner(s, w, &rows);
        else if (f > 0)
            gate_inner(s, layer, n_rows, f);
    }
    stage_show(s, TAP_DOWN, s->ffn.gate, n_rows, f);
    return inner;
}

/* Multiplies h by the layer's scalar, if it has one, in the rows that this rank holds. */
static void scale_stream(struct stage *s, const struct layer *layer, const struct part *p)
{
    const size_t d = s->o.model->width, first = p->own.begin * d;
    if (s->o.model->layer_scale)
        op_scale(s->o.kern, p->hidden.h + first, layer->scale, range_count(p->own) * d);
}

static void dense_block(struct stage *s, const struct layer *layer, struct act_rows *in,
                        struct part *p)
{
    struct act_rows inner = inner_activations(s, layer, in, p);
    const struct block_output out = {.w = &layer->ffn.down,
                                     .bias = layer->ffn.down_bias,
                                     .norm = layer->ffn_out_norm,
                                     .layer = layer,
                                     .site = ADAPTER_DOWN};
    stage_add(s, &out, &inner, p);
    scale_stream(s, layer, p);
}

/* Returns the output of the shared experts for the rows that this rank holds, in the part's rows of
 * s->ffn.shared; NULL: the model has none. */
static const float *shared_block(struct stage *s, const struct layer *layer, struct act_rows *in,
                                 struct part *p)
{
    const size_t n_rows = range_count(p->own), d = s->o.model->width, first = p->own.begin;
    float *shared = s->ffn.shared + p->row0 * d;
    if (s->o.model->moe.shared_ffn == 0) return NULL;
    struct act_rows inner = inner_activations(s, layer, in, p);
    s->row_sum->assign(s, &layer->ffn.down, &inner, shared, p);
    const struct block_output out = {.w = &layer->ffn.down, .layer = layer, .site = ADAPTER_DOWN};
    stage_adapt_output(s, &out, &inner, p, 1, shared);
    if (layer->ffn.mix.n_out == 0) return shared;
    const struct column mix = {&layer->ffn.mix, s->ffn.mix, NULL};
    stage_columns(s, &mix, 1, in);
    op_sigmoid_rows(s->o.kern, shared + first * d, s->ffn.mix + first, n_rows, d);
    return shared;
}

/* Returns the linear for which the norm quantizes rows; NULL: it quantizes none. If each rank
 * quantizes a slice, the linear must be the same on all ranks, and a rank that holds no part of it
 * has no format to quantize for. Experts read rows that the norm quantized only if these are
 * slices. */
static const struct packed *first_linear(const struct stage *s, const struct layer *layer,
                                         const struct part *p)
{
    const struct layout *l = s->o.layout;
    const bool is_cut = part_is_cut(p);
    if (!layer->is_moe) {
        const bool all_have = range_count(layout_ffn(l, l->tp - 1)) > 0;
        return !is_cut || all_have ? &layer->ffn.gate : NULL;
    }
    const bool all_have = range_count(layout_experts(l, l->ep - 1)) > 0 &&
                          range_count(layout_expert_ffn(l, l->etp - 1)) > 0;
    return is_cut && all_have ? &layer->moe.gate[0] : NULL;
}

/* True when the experts' output is not added to h at once. */
static bool is_apart(const struct stage *s, const struct layer *layer)
{
    return layer->starts_shortcut || layer->moe.out_norm != NULL || s->o.model->streams.n > 0;
}

/* Returns the part's rows of the experts' output if it is not added to h at once (is_apart). */
static float *shortcut_of(const struct stage *s, const struct part *p)
{
    return s->ffn.shortcut + p->row0 * s->o.model->width;
}

/* Returns the part's rows for the MoE block. Member `shared` is NULL: the caller may set it. */
static struct moe_rows moe_rows_of(const struct stage *s, const struct layer *layer,
                                   struct act_rows *in, const struct part *p)
{
    const struct hidden *hidden = &p->hidden;
    return (struct moe_rows){.n_tokens = hidden->n_rows,
                             .own = p->own,
                             .x = in->x,
                             .in = in,
                             .router_x = layer->moe.router_norm != NULL ? s->ffn.routed : NULL,
                             .h = is_apart(s, layer) ? shortcut_of(s, p) : hidden->h,
                             .tokens = s->tokens != NULL ? s->tokens + p->row0 : NULL,
                             .adapters = p->adapters,
                             .bad = hidden->bad,
                             .dropped = hidden->dropped,
                             .load = s->expert_load +
                                     (size_t)layer->in_stage * s->o.model->moe.n_experts};
}

static struct act_rows normed_rows(struct stage *s, const struct layer *layer, const struct part *p)
{
    const struct packed *first = first_linear(s, layer, p);
    const struct act_rows in =
        s->row_sum->norm(s, p, stage_norm(layer->ffn_norm, layer->ffn_norm_bias), first);
    stage_keep_normed(s, p, false, in.x);
    stage_show(s, TAP_FFN, in.x, p->hidden.n_rows, s->o.model->width);
    return in;
}

/* h += the experts' output of the layer before, in the rows that this rank holds. */
static void add_shortcut(struct stage *s, const struct part *p)
{
    const size_t d = s->o.model->width, first = p->own.begin * d;
    op_add(s->o.kern, p->hidden.h + first, shortcut_of(s, p) + first, range_count(p->own) * d);
}

static void clear_shortcut(struct stage *s, const struct part *p)
{
    mem_ops_fill(s->o.kern, shortcut_of(s, p), 0,
                 p->hidden.n_rows * s->o.model->width * sizeof(float));
}

static void norm_in_place(struct stage *s, const float *w, size_t n_rows, float *x)
{
    op_rmsnorm(s->o.kern, &(struct norm_args){.x = x,
                                              .w = w,
                                              .n_rows = n_rows,
                                              .n = s->o.model->width,
                                              .eps = s->o.model->norm_eps,
                                              .y = x});
}

/* s->ffn.routed = the router's input. */
static void route_rows(struct stage *s, const struct layer *layer, struct part *p)
{
    const size_t d = s->o.model->width;
    const struct act_rows in =
        s->row_sum->norm(s, p, stage_norm(layer->moe.router_norm, NULL), NULL);
    op_place_rows(s->o.kern, &(struct place_args){.from = in.x,
                                                  .n_rows = p->hidden.n_rows,
                                                  .width = d,
                                                  .to_stride = d,
                                                  .to = s->ffn.routed});
    if (part_is_cut(p)) comm_barrier(s->o.comm, COMM_TP); /* all ranks have read the shared rows */
}

/* Runs the dense FFN of a layer with experts beside it, and sets p->at_experts for moe_start, with
 * rows normed for the experts: *in, which it borrows. */
static void begin_joined(struct stage *s, const struct layer *layer, struct act_rows *in,
                         struct part *p)
{
    const size_t d = s->o.model->width;
    const struct layout *l = s->o.layout;
    const bool all_have = range_count(layout_shared_ffn(l, l->tp - 1)) > 0;
    const struct packed *first = !part_is_cut(p) || all_have ? &layer->ffn.gate : NULL;
    *in = s->row_sum->norm(s, p, stage_norm(layer->ffn_norm, NULL), first);
    shared_block(s, layer, in, p);
    norm_in_place(s, layer->moe.shared_out_norm, range_count(p->own),
                  s->ffn.shared + (p->row0 + p->own.begin) * d);
    route_rows(s, layer, p);
    *in = s->row_sum->norm(s, p, stage_norm(layer->moe.norm, NULL), first_linear(s, layer, p));
    clear_shortcut(s, p);
    p->at_experts = moe_rows_of(s, layer, in, p);
}

/* Adds the outputs of the dense FFN and of the experts to h, each normed, and their sum normed. */
static void end_joined(struct stage *s, const struct layer *layer, const struct part *p)
{
    const size_t d = s->o.model->width, n_rows = range_count(p->own), first = p->own.begin * d;
    float *out = shortcut_of(s, p) + first;
    norm_in_place(s, layer->moe.out_norm, n_rows, out);
    op_add(s->o.kern, out, s->ffn.shared + p->row0 * d + first, n_rows * d);
    norm_in_place(s, layer->ffn_out_norm, n_rows, out);
    op_add(s->o.kern, p->hidden.h + first, out, n_rows * d);
    scale_stream(s, layer, p);
}

/* The FFN block of a layer with experts beside a dense FFN. */
static struct status joined_block(struct stage *s, const struct layer *layer, struct part *p)
{
    struct act_rows in;
    begin_joined(s, layer, &in, p);
    TRY(moe_forward(s->moe, layer, &p->at_experts));
    end_joined(s, layer, p);
    return status_ok();
}

/* Starts the FFN block of a model with several residual streams: *in = the normed sum of the
 * streams, and the rows for the experts, whose output goes to the part's rows of s->ffn.shortcut.
 */
static struct moe_rows begin_streams(struct stage *s, const struct layer *layer,
                                     struct act_rows *in, struct part *p)
{
    const struct part block = stage_collapse(s, &layer->ffn_streams, p);
    *in = normed_rows(s, layer, &block);
    clear_shortcut(s, p);
    return moe_rows_of(s, layer, in, p);
}

static struct status streams_block(struct stage *s, const struct layer *layer, struct part *p)
{
    struct act_rows in;
    struct moe_rows rows = begin_streams(s, layer, &in, p);
    rows.shared = shared_block(s, layer, &in, p);
    TRY(moe_forward(s->moe, layer, &rows));
    stage_expand(s, p, shortcut_of(s, p));
    return status_ok();
}

struct status stage_ffn(struct stage *s, const struct layer *layer, struct part *p)
{
    if (layer->moe.out_norm != NULL) return joined_block(s, layer, p);
    if (s->o.model->streams.n > 0) return streams_block(s, layer, p);
    struct act_rows in = normed_rows(s, layer, p);
    if (layer->ends_shortcut) {
        TRY(stage_take_results(s, p));
        add_shortcut(s, p);
    }
    if (!layer->is_moe) {
        dense_block(s, layer, &in, p);
        return status_ok();
    }
    struct moe_rows rows = moe_rows_of(s, layer, &in, p);
    if (layer->starts_shortcut) {
        clear_shortcut(s, p);
        TRY(moe_forward(s->moe, layer, &rows));
        dense_block(s, layer, &in, p);
        return status_ok();
    }
    rows.shared = shared_block(s, layer, &in, p);
    return moe_forward(s->moe, layer, &rows);
}

struct status stage_send_rows(struct stage *s, const struct layer *layer, struct part *p)
{
    struct act_rows in;
    p->calls_experts = true;
    p->calls = layer;
    if (layer->moe.out_norm != NULL) {
        begin_joined(s, layer, &in, p);
        const struct status st = moe_start(s->moe, layer, &p->at_experts, p->number);
        p->at_experts.in = NULL; /* no longer read */
        return st;
    }
    if (s->o.model->streams.n > 0) {
        p->at_experts = begin_streams(s, layer, &in, p);
    } else {
        in = normed_rows(s, layer, p);
        p->at_experts = moe_rows_of(s, layer, &in, p);
        if (layer->starts_shortcut) clear_shortcut(s, p);
    }
    TRY(moe_start(s->moe, layer, &p->at_experts, p->number));
    p->at_experts.in = NULL; /* no longer read */
    if (layer->starts_shortcut) {
        dense_block(s, layer, &in, p);
        return status_ok();
    }
    p->at_experts.shared = shared_block(s, layer, &in, p);
    return status_ok();
}

struct status stage_run_experts(struct stage *s, struct part *p)
{
    return moe_run(s->moe, p->number);
}

struct status stage_take_results(struct stage *s, struct part *p)
{
    if (!p->calls_experts) return status_ok();
    p->calls_experts = false;
    TRY(moe_finish(s->moe, p->number));
    if (p->calls->moe.out_norm != NULL) end_joined(s, p->calls, p);
    if (s->o.model->streams.n > 0) stage_expand(s, p, shortcut_of(s, p));
    return status_ok();
}

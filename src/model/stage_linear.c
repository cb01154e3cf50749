/* The linears of a stage: column-parallel, row-parallel with its sum over ranks. */
#include "kernels/device.h"
#include "kernels/grid_sum.h"
#include "kernels/ops.h"
#include "model/stage_private.h"

struct act_rows stage_input(const struct stage *s, const float *x, size_t n_rows, size_t n)
{
    return (struct act_rows){.x = x, .stride = n, .n_rows = n_rows, .n = n, .memory = s->codes};
}

static struct linear_args linear_of(const struct stage *s, const struct column *c,
                                    struct act_rows *in, struct linear_group *group)
{
    *group = (struct linear_group){.w = c->w, .row0 = 0, .n_rows = in->n_rows};
    return (struct linear_args){.groups = group,
                                .n_groups = 1,
                                .x = in->x,
                                .x_stride = in->stride,
                                .xq = act_codes(s->o.kern, in, c->w),
                                .y = c->y,
                                .y_stride = c->w->n_out};
}

void stage_gated(struct stage *s, const struct column gate_up[2], struct act_rows *in,
                 const struct quant_rows *codes)
{
    struct linear_group groups[2];
    struct gated_args a = {.n_rows = in->n_rows, .codes = codes, .codes_alone = s->o.tap == NULL};
    a.gate = linear_of(s, &gate_up[0], in, &groups[0]);
    a.up = linear_of(s, &gate_up[1], in, &groups[1]);
    op_gated(s->o.kern, &a);
    comm_poll(s->o.comm);
}

void stage_columns(struct stage *s, const struct column *columns, size_t n, struct act_rows *in)
{
    struct linear_group groups[3];
    struct linear_args args[3] = {{0}};
    size_t n_args = 0;
    for (size_t i = 0; i < n; i++) {
        const struct packed *w = columns[i].w;
        if (w->n_out == 0) continue;
        if (act_codes_replace(in, w)) {
            op_linears(s->o.kern, args, n_args);
            n_args = 0;
        }
        args[n_args] = linear_of(s, &columns[i], in, &groups[n_args]);
        n_args++;
    }
    op_linears(s->o.kern, args, n_args);
    for (size_t i = 0; i < n; i++) {
        if (columns[i].bias != NULL)
            op_add_bias(s->o.kern, columns[i].y, columns[i].bias, in->n_rows, columns[i].w->n_out);
    }
    comm_poll(s->o.comm);
}

bool stage_has_all_leaves(const struct stage *s)
{
    return s->o.kern->device == NULL && comm_size(s->o.comm, COMM_TP) == 1;
}

/* sums [T, D + 1] = this rank's leaves of x w^T; or, sums NULL, y [T, D] and the rows' counters. */
static void leaves(struct stage *s, const struct packed *w, struct act_rows *in, int64_t *sums,
                   float *y, const struct part *p)
{
    const struct linear_group group = {.w = w, .row0 = 0, .n_rows = p->hidden.n_rows};
    const struct linear_args args = {.groups = &group,
                                     .n_groups = 1,
                                     .x = in->x,
                                     .x_stride = w->n_in,
                                     .xq = act_codes(s->o.kern, in, w),
                                     .y = y,
                                     .y_stride = s->o.model->width,
                                     .sums = sums,
                                     .bad = p->hidden.bad};
    op_linear_leaf(s->o.kern, &args);
}

/* This rank's sums, to be added over ranks into y. */
static struct grid_sum leaf_sums(struct stage *s, const struct packed *w, struct act_rows *in,
                                 float *y, const struct part *p)
{
    const size_t n_rows = p->hidden.n_rows, d = s->o.model->width;
    if (w->n_in > 0)
        leaves(s, w, in, p->sums, NULL, p);
    else
        mem_ops_fill(s->o.kern, p->sums, 0, n_rows * (d + 1) * sizeof *p->sums);
    return (struct grid_sum){.kern = s->o.kern,
                             .sums = p->sums,
                             .n_rows = n_rows,
                             .n_out = d,
                             .grid_bits = w->grid_bits,
                             .y = y,
                             .bad = p->hidden.bad};
}

void stage_row_parallel_to(struct stage *s, const struct packed *w, struct act_rows *in, float *y,
                           struct part *p)
{
    if (s->o.layout->cuts_outputs) {
        stage_outputs(s, w, in, y, false, p);
    } else if (stage_has_all_leaves(s)) {
        leaves(s, w, in, NULL, y, p);
    } else {
        const struct grid_sum sum = leaf_sums(s, w, in, y, p);
        grid_sum_to_f32(&sum, s->o.comm, COMM_TP);
    }
    comm_poll(s->o.comm);
}

/* What follows a sum in y, once. */
static void add_rest(struct stage *s, float *y, const struct part *p)
{
    const size_t n_rows = range_count(p->own), d = s->o.model->width, first = p->own.begin * d;
    const float scale = s->o.model->residual_scale;
    if (p->bias != NULL) op_add_bias(s->o.kern, y + first, p->bias, n_rows, d);
    if (scale != 1.0f) op_axpy(s->o.kern, scale, y + first, n_rows * d, p->hidden.h + first);
    comm_poll(s->o.comm);
}

void stage_row_parallel(struct stage *s, const struct packed *w, const float *bias,
                        struct act_rows *in, struct part *p)
{
    const bool scaled = s->o.model->residual_scale != 1.0f;
    float *y = scaled ? s->x : p->hidden.h; /* x of the block was read */
    p->bias = bias;
    if (stage_has_all_leaves(s)) {
        leaves(s, w, in, NULL, s->x, p);
        if (!scaled) op_add(s->o.kern, y, s->x, p->hidden.n_rows * s->o.model->width);
        add_rest(s, y, p);
        return;
    }
    if (s->o.layout->cuts_outputs) {
        stage_outputs(s, w, in, y, !scaled, p);
        add_rest(s, y, p);
        return;
    }
    p->sum = leaf_sums(s, w, in, y, p);
    grid_sum_start(&p->sum, s->o.comm, COMM_TP, p->lane);
    if (p->lane == GRID_SUM_NOW) stage_leave(s, p);
}

void stage_leave(struct stage *s, struct part *p)
{
    if (p->sum.sums == NULL) return;
    if (s->o.model->residual_scale != 1.0f) {
        grid_sum_finish_to_f32(&p->sum, s->o.comm, COMM_TP, p->lane);
    } else {
        grid_sum_finish_add(&p->sum, s->o.comm, COMM_TP, p->lane);
    }
    add_rest(s, p->sum.y, p);
    p->sum.sums = NULL;
}

void stage_enter(struct stage *s, struct part *p)
{
    op_step_part(s->o.kern, p->row0, p->hidden.n_rows);
    stage_leave(s, p);
}

void stage_show(const struct stage *s, enum tap_site site, const float *x, size_t n_rows, size_t n)
{
    if (s->o.tap != NULL) s->o.tap->see(s->o.tap->ctx, site, 0, x, n_rows, n);
}

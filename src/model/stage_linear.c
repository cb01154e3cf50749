/* The linears of a stage: column-parallel ones, where each rank has some of the outputs and reads
 * all inputs; the row-parallel one at the end of a block, which is added to h; and norms of rows
 * that are split over ranks. */
#include "collective/device_comm.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "model/stage_private.h"

#include <assert.h>

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
    struct gated_args a = {.n_rows = in->n_rows,
                           .codes = codes,
                           .codes_alone = s->o.tap == NULL,
                           .kind = s->o.model->gate};
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

void stage_add(struct stage *s, const struct block_output *out, struct act_rows *in, struct part *p)
{
    if (out->norm == NULL) {
        stage_adapt_output(s, out, in, p, s->o.model->scale.residual, p->hidden.h);
        s->row_sum->add(s, out->w, out->bias, in, p);
        return;
    }
    const size_t d = s->o.model->width, n_rows = range_count(p->own), first = p->own.begin * d;
    float *y = s->x + first; /* free for the sum: nothing reads the block's input x any more */
    s->row_sum->assign(s, out->w, in, s->x, p);
    stage_adapt_output(s, out, in, p, 1, s->x);
    if (out->bias != NULL) op_add_bias(s->o.kern, y, out->bias, n_rows, d);
    op_rmsnorm(
        s->o.kern,
        &(struct norm_args){
            .x = y, .w = out->norm, .n_rows = n_rows, .n = d, .eps = s->o.model->norm_eps, .y = y});
    op_axpy(s->o.kern, s->o.model->scale.residual, y, n_rows * d, p->hidden.h + first);
}

/* Rounds the rows of a norm with the largest element of the whole row: each rank that holds a part
 * supplies its own largest in the place of the part's first unit. */
static void round_whole(struct stage *s, const struct whole_norm *a, size_t n_sums)
{
    const size_t n = range_count(a->held);
    mem_ops_fill(s->o.kern, a->sums, 0, a->n_rows * n_sums * sizeof *a->sums);
    if (n > 0)
        op_row_maxima(s->o.kern, a->x, a->n_rows, n, a->sums + a->held.begin / a->unit, n_sums);
    device_or_u32(s->o.kern, s->o.comm, COMM_TP, a->sums, a->n_rows * n_sums);
    if (n > 0)
        op_round_rows(s->o.kern, &(struct round_rows){.x = a->x,
                                                      .n_rows = a->n_rows,
                                                      .n = n,
                                                      .maxima = a->sums,
                                                      .n_maxima = n_sums,
                                                      .stride = n_sums});
}

void stage_norm_whole(struct stage *s, const struct whole_norm *a)
{
    const size_t n = range_count(a->held), n_sums = (a->n_all + a->unit - 1) / a->unit;
    assert(n == 0 || a->held.begin % a->unit == 0);
    mem_ops_fill(s->o.kern, a->sums, 0, a->n_rows * n_sums * sizeof *a->sums);
    if (n > 0)
        op_head_square_sums(s->o.kern,
                            &(struct square_sums_args){.x = a->x,
                                                       .n_rows = a->n_rows,
                                                       .n_heads = (n + a->unit - 1) / a->unit,
                                                       .head_dim = a->unit,
                                                       .width = n,
                                                       .sums = a->sums + a->held.begin / a->unit,
                                                       .stride = n_sums});
    device_or_u32(s->o.kern, s->o.comm, COMM_TP, a->sums, a->n_rows * n_sums);
    if (n > 0)
        op_norm_whole(s->o.kern, &(struct norm_whole){.x = a->x,
                                                      .w = a->w,
                                                      .sums = a->sums,
                                                      .n_rows = a->n_rows,
                                                      .n = n,
                                                      .n_whole = a->n_all,
                                                      .n_sums = n_sums,
                                                      .stride = n_sums,
                                                      .eps = s->o.model->norm_eps});
    if (s->o.model->rounds_inputs) round_whole(s, a, n_sums);
}

void stage_show(const struct stage *s, enum tap_site site, const float *x, size_t n_rows, size_t n)
{
    if (s->o.tap != NULL) s->o.tap->see(s->o.tap->ctx, site, 0, x, n_rows, n);
}

/* Row-parallel linears for one tp rank: it has all inputs and all outputs.
 *
 *               inputs (K-blocks)          outputs
 *     rank 0    [ b0 | b1 | b2 | b3 ]  ->  y [T, D]
 *
 * The kernels round a sum where its last K-block ends, so that no 8-byte sums are written. */
#include "kernels/ops.h"
#include "model/stage_private.h"

static struct status row_sum_whole_create(struct stage *s)
{
    (void)s;
    return status_ok();
}

static void row_sum_whole_assign(struct stage *s, const struct packed *w, struct act_rows *in,
                                 float *y, struct part *p)
{
    row_sum_blocks(s, w, in, &(struct block_sums){.y = y}, p);
    comm_poll(s->o.comm);
}

static void row_sum_whole_add(struct stage *s, const struct packed *w, const float *bias,
                              struct act_rows *in, struct part *p)
{
    const bool scaled = row_sum_is_scaled(s), adds = !scaled && s->o.kern->device != NULL;
    /* the attention or FFN block that ends here needs its normed input, s->x, no longer */
    row_sum_blocks(s, w, in, &(struct block_sums){.y = adds ? p->hidden.h : s->x, .adds = adds}, p);
    if (!scaled && !adds)
        op_add(s->o.kern, p->hidden.h, s->x, p->hidden.n_rows * s->o.model->width);
    row_sum_add_rest(s, scaled ? s->x : p->hidden.h, bias, p);
}

const struct row_sum row_sum_whole = {.name = "whole",
                                      .create = row_sum_whole_create,
                                      .destroy = row_sum_no_step,
                                      .begin_step = row_sum_no_step,
                                      .begin_part = row_sum_whole_part,
                                      .norm = row_sum_norm_all,
                                      .input = row_sum_own_input,
                                      .assign = row_sum_whole_assign,
                                      .add = row_sum_whole_add,
                                      .complete = row_sum_no_part,
                                      .gather = row_sum_no_part};

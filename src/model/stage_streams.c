/* Several residual streams (hyper-connections with doubly stochastic matrices; mHC, Xie et al.,
 * 2025, arXiv 2512.24880): a row of h is n streams [n, D]. A block reads their weighted sum and its
 * output is added to each, after they are mixed:
 *
 *     h [n, D] --- norm, linear ---> pre [n], post [n], comb [n, n]
 *         |
 *         +--- sum of pre_j h_j ---> block ---> y [D]
 *         |                                       |
 *         +--- comb^T h ------------------------- + --- post_k y ---> h [n, D]
 *
 * Each rank computes the weights of the rows that it holds. */
#include "kernels/ops.h"
#include "model/stage_private.h"

/* s->streams.mix [n_rows, outputs of w] = the normed rows h times w. */
static void stage_streams_weigh(struct stage *s, const struct packed *w, const float *h,
                                size_t n_rows)
{
    const size_t width = arch_row_width(s->o.model);
    const struct linear_group group = {.w = w, .row0 = 0, .n_rows = n_rows};
    op_rmsnorm(s->o.kern, &(struct norm_args){.x = h,
                                              .w = s->ones,
                                              .n_rows = n_rows,
                                              .n = width,
                                              .eps = s->o.model->norm_eps,
                                              .y = s->streams.normed});
    op_linear(s->o.kern, &(struct linear_args){.groups = &group,
                                               .n_groups = 1,
                                               .x = s->streams.normed,
                                               .x_stride = width,
                                               .y = s->streams.mix,
                                               .y_stride = w->n_out,
                                               .exact = true});
}

struct part stage_collapse(struct stage *s, const struct stream_weights *w, const struct part *p)
{
    const struct arch *m = s->o.model;
    const size_t d = m->width, n = m->streams.n, first = p->own.begin, row = p->row0 + first;
    const size_t n_rows = range_count(p->own);
    const float *h = p->hidden.h + first * n * d;
    struct part block = *p;
    block.hidden.h = s->streams.rows + p->row0 * d;
    stage_streams_weigh(s, &w->mix, h, n_rows);
    op_stream_weights(s->o.kern,
                      &(struct stream_weights_args){.mix = s->streams.mix,
                                                    .base = w->base,
                                                    .scale = w->scale,
                                                    .n_rows = n_rows,
                                                    .n = m->streams.n,
                                                    .iterations = m->streams.iterations,
                                                    .eps = m->streams.eps,
                                                    .pre = s->streams.pre,
                                                    .post = s->streams.post + row * n,
                                                    .comb = s->streams.comb + row * n * n});
    op_stream_sum(s->o.kern, &(struct stream_sum_args){.h = h,
                                                       .pre = s->streams.pre,
                                                       .n_rows = n_rows,
                                                       .n = m->streams.n,
                                                       .width = m->width,
                                                       .y = block.hidden.h + first * d});
    return block;
}

void stage_expand(struct stage *s, const struct part *p, const float *y)
{
    const struct arch *m = s->o.model;
    const size_t n = m->streams.n, first = p->own.begin, row = p->row0 + first;
    op_stream_add(s->o.kern, &(struct stream_add_args){.h = p->hidden.h + first * n * m->width,
                                                       .y = y + first * m->width,
                                                       .post = s->streams.post + row * n,
                                                       .comb = s->streams.comb + row * n * n,
                                                       .n_rows = range_count(p->own),
                                                       .n = m->streams.n,
                                                       .width = m->width});
}

void stage_sum_streams(struct stage *s, const float *h, size_t n, float *out)
{
    const struct arch *m = s->o.model;
    const struct stream_weights *w = &s->o.weights->final_streams;
    op_gather_rows(s->o.kern, &(struct gather_args){.from = h,
                                                    .rows = s->final_rows,
                                                    .n_rows = n,
                                                    .width = arch_row_width(m),
                                                    .to = s->streams.normed});
    stage_streams_weigh(s, &w->mix, s->streams.normed, n);
    op_stream_weights(s->o.kern, &(struct stream_weights_args){.mix = s->streams.mix,
                                                               .base = w->base,
                                                               .scale = w->scale,
                                                               .n_rows = n,
                                                               .n = m->streams.n,
                                                               .eps = m->streams.eps,
                                                               .pre = s->streams.pre});
    op_stream_sum(s->o.kern, &(struct stream_sum_args){.h = h,
                                                       .pre = s->streams.pre,
                                                       .n_rows = n,
                                                       .n = m->streams.n,
                                                       .width = m->width,
                                                       .rows = s->final_rows,
                                                       .y = out});
}

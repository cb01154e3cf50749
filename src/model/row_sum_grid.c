/* Row-parallel linears for several tp ranks whose layout does not cut them by outputs, as on
 * devices and where ranks share no memory: each rank has some K-blocks of all outputs, and the
 * ranks add integers on the grid.
 *
 *               inputs (K-blocks)          8-byte sums of all outputs
 *     rank 0    [ b0 | b1 ]            ->  [T, D + counter] --+-- integer sum --> y [T, D]
 *     rank 1              [ b2 | b3 ]  ->  [T, D + counter] --+-- over ranks ---> y [T, D]
 *
 * Integer sums do not depend on the order, so the result is that of one rank. When a step has two
 * parts, a device computes one while the sums of the other are exchanged: `add` starts the
 * exchange, `complete` finishes it. */
#include "kernels/device.h"
#include "model/stage_private.h"

/* Allocates the sums of all parts: on the CPU in a shared segment if the tp ranks have one, else in
 * this rank's own memory or its device's. */
static struct status row_sum_grid_create(struct stage *s)
{
    const size_t d = s->o.model->width, room = grid_sum_room(0, d, s->o.comm, COMM_TP);
    const size_t n = s->o.max_rows * (d + 1) + STAGE_PARTS * room;
    struct grid_sums *g = &s->grid;
    if (s->o.kern->device == NULL)
        g->sums = comm_lane(s->o.comm, COMM_TP, COMM_LANE_SUMS, n * sizeof *g->sums);
    if (g->sums == NULL) {
        TRY(mem_ops_alloc(s->o.kern, &g->owned, n, sizeof *g->owned, "workspace"));
        g->sums = g->owned;
    }
    s->workspace_bytes += n * sizeof *g->sums;
    return status_ok();
}

static void row_sum_grid_destroy(struct stage *s)
{
    mem_ops_free(s->o.kern, &s->grid.owned);
}

static void row_sum_grid_begin_part(struct stage *s, struct part *p)
{
    const size_t d = s->o.model->width;
    const size_t room = p->lane > 0 ? grid_sum_room(p->row0, d, s->o.comm, COMM_TP) : 0;
    row_sum_whole_part(s, p);
    p->under_way = (struct part_sum){.sums = s->grid.sums + room};
}

/* Computes this rank's sums; the result describes how they are added over ranks into y. */
static struct grid_sum sum_blocks(struct stage *s, const struct packed *w, struct act_rows *in,
                                  float *y, const struct part *p)
{
    const size_t n_rows = p->hidden.n_rows, d = s->o.model->width;
    int64_t *sums = p->under_way.sums;
    if (w->n_in > 0)
        row_sum_blocks(s, w, in, &(struct block_sums){.sums = sums}, p);
    else
        mem_ops_fill(s->o.kern, sums, 0, n_rows * (d + 1) * sizeof *sums);
    return (struct grid_sum){.kern = s->o.kern,
                             .sums = sums,
                             .n_rows = n_rows,
                             .n_out = d,
                             .grid_bits = w->grid_bits,
                             .y = y,
                             .bad = p->hidden.bad};
}

static void row_sum_grid_assign(struct stage *s, const struct packed *w, struct act_rows *in,
                                float *y, struct part *p)
{
    const struct grid_sum sum = sum_blocks(s, w, in, y, p);
    grid_sum_to_f32(&sum, s->o.comm, COMM_TP);
    comm_poll(s->o.comm);
}

static void complete(struct stage *s, struct part *p)
{
    struct part_sum *u = &p->under_way;
    if (!u->is_open) return;
    if (row_sum_is_scaled(s)) {
        grid_sum_finish_to_f32(&u->sum, s->o.comm, COMM_TP, p->lane);
    } else {
        grid_sum_finish_add(&u->sum, s->o.comm, COMM_TP, p->lane);
    }
    row_sum_add_rest(s, u->sum.y, u->bias, p);
    u->is_open = false;
}

static void row_sum_grid_add(struct stage *s, const struct packed *w, const float *bias,
                             struct act_rows *in, struct part *p)
{
    struct part_sum *u = &p->under_way;
    u->sum = sum_blocks(s, w, in, row_sum_is_scaled(s) ? s->x : p->hidden.h, p);
    u->bias = bias;
    u->is_open = true;
    grid_sum_start(&u->sum, s->o.comm, COMM_TP, p->lane);
    if (p->lane == GRID_SUM_NOW) complete(s, p);
}

const struct row_sum row_sum_by_grid = {.name = "by grid sums",
                                        .create = row_sum_grid_create,
                                        .destroy = row_sum_grid_destroy,
                                        .begin_step = row_sum_no_step,
                                        .begin_part = row_sum_grid_begin_part,
                                        .norm = row_sum_norm_all,
                                        .input = row_sum_own_input,
                                        .assign = row_sum_grid_assign,
                                        .add = row_sum_grid_add,
                                        .complete = complete,
                                        .gather = row_sum_no_part};

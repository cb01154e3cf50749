/* Row-parallel linears for tp ranks that share a host's memory: inputs are read in place and
 * outputs are divided, so that a rank adds all K-blocks of its outputs itself and no 8-byte sums
 * are exchanged.
 *
 *               inputs, shared by all         outputs (columns of D), offered as floats
 *     rank 0    writes [ b0 | b1 ]            columns 0 .. D/2   reads all K-blocks
 *     rank 1    writes [ b2 | b3 ]            columns D/2 .. D   reads all K-blocks
 *
 * Two barriers per linear: after all inputs are written, and after all outputs are. The same
 * integers are added as by grid sums, so the bits are the same.
 *
 * With 8 rows or more per rank, each rank holds a slice of the rows of h, unless the experts'
 * exchange takes no slices (sequence parallelism, Korthikanti et al., 2022, arXiv 2205.05198,
 * section 4.2.2). Only that rank adds outputs to these rows, norms and quantizes them; all ranks
 * read the normed rows in place.
 *
 *     rank 0    h, counters of rows 0 .. T/2      normed and quantized rows: one
 *     rank 1    h, counters of rows T/2 .. T      shared array that all ranks read */
#include "base/mem.h"
#include "kernels/ops.h"
#include "model/stage_private.h"

#include <string.h>

enum { ROWS_WORTH_CUTTING = 8 /* with fewer rows in a slice every rank holds all rows */ };

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static struct status row_sum_outputs_create(struct stage *s)
{
    struct by_outputs *b = &s->by_outputs;
    const struct layout *l = s->o.layout;
    const size_t n = range_count(layout_outputs(l, s->o.weights->place.tp));
    const size_t n_bytes = s->o.max_rows * (n * sizeof(float) + sizeof(int32_t));
    b->outputs = comm_lane(s->o.comm, COMM_TP, COMM_LANE_SUMS, n_bytes);
    if (b->outputs == NULL)
        return status_make(STATUS_MEMORY,
                           "workspace: no room for %zu bytes to share with the "
                           "ranks of this host",
                           n_bytes);
    s->workspace_bytes += n_bytes;
    b->slices = s->moe == NULL || moe_takes_slices(s->moe);
    TRY(mem_alloc(&b->counts, l->tp, sizeof *b->counts, "workspace"));
    return mem_alloc(&b->displs, l->tp, sizeof *b->displs, "workspace");
}

static void row_sum_outputs_destroy(struct stage *s)
{
    mem_free(&s->by_outputs.counts);
    mem_free(&s->by_outputs.displs);
}

/* Gets the shared segments for inputs, and for the normed and quantized rows of slices. Does so in
 * the first step, because all ranks must ask together. */
static void row_sum_outputs_begin_step(struct stage *s)
{
    struct by_outputs *b = &s->by_outputs;
    const struct arch *m = s->o.model;
    const size_t rows = s->o.max_rows, d = m->width;
    if (b->inputs != NULL) return;
    const size_t n_o = (size_t)arch_mixed_inputs(m);
    const size_t n = larger(n_o, larger(m->ffn, m->moe.shared_ffn));
    const size_t n_bytes = larger(act_codes_bytes(rows, n), rows * n * sizeof(float));
    b->inputs = comm_common_lane(s->o.comm, COMM_TP, COMM_LANE_INPUTS, n_bytes);
    if (!b->slices) return;
    const size_t n_floats = (rows * d * sizeof(float) + 63) / 64 * 64;
    b->normed =
        comm_common_lane(s->o.comm, COMM_TP, COMM_LANE_NORMED, n_floats + act_codes_bytes(rows, d));
    b->normed_codes = (char *)b->normed + n_floats;
}

static void row_sum_outputs_begin_part(struct stage *s, struct part *p)
{
    const uint32_t tp = s->o.layout->tp, n = (uint32_t)p->hidden.n_rows;
    row_sum_whole_part(s, p);
    if (s->by_outputs.slices && n >= ROWS_WORTH_CUTTING * tp)
        p->own = layout_split(n, 1, tp, s->o.weights->place.tp);
}

static struct act_rows norm_slices(struct stage *s, const struct part *p, struct norm_weights norm,
                                   const struct packed *first)
{
    struct by_outputs *b = &s->by_outputs;
    if (!part_is_cut(p)) return row_sum_norm_all(s, p, norm, first);
    struct act_rows rows = stage_input(s, b->normed, p->hidden.n_rows, s->o.model->width);
    if (rows.memory != NULL) rows.memory = b->normed_codes;
    row_sum_norm_own(s, p, norm, first, b->normed, &rows);
    comm_barrier(s->o.comm, COMM_TP); /* all rows are written */
    rows.memory = s->codes; /* for a second quantization group, because other ranks still read the
                               shared rows */
    return rows;
}

/* Describes this rank's inputs, which are some columns of the shared inputs. */
static struct act_rows share_input(const struct stage *s, const struct inner_rows *x)
{
    struct act_rows in = row_sum_own_input(s, x);
    in.first = x->held.begin;
    in.n_all = x->n_all;
    if (x->memory != NULL) in.memory = s->by_outputs.inputs;
    return in;
}

/* A rank's outputs in its shared segment: [max_rows, N] floats, then [max_rows] counters. */
struct outputs {
    const float *y;
    const int32_t *bad;
    struct range columns;
};

static struct outputs row_sum_outputs_of(const struct stage *s, uint32_t tp)
{
    const struct range columns = layout_outputs(s->o.layout, tp);
    const float *y = comm_lane_of(s->o.comm, COMM_TP, COMM_LANE_SUMS, (int)tp);
    const void *bad = y + s->o.max_rows * range_count(columns);
    return (struct outputs){y, bad, columns};
}

/* Copies the outputs that all ranks have for rows `own` to y [T, D], or adds them to y. */
static void row_sum_outputs_take(const struct stage *s, struct range own, float *y, bool adds)
{
    const size_t d = s->o.model->width;
    for (uint32_t r = 0; r < s->o.layout->tp; r++) {
        const struct outputs from = row_sum_outputs_of(s, r);
        const size_t width = range_count(from.columns);
        const struct place_args rows = {.from = from.y + own.begin * width,
                                        .n_rows = range_count(own),
                                        .width = width,
                                        .to_stride = d,
                                        .to = y + own.begin * d + from.columns.begin};
        (adds ? op_add_rows : op_place_rows)(s->o.kern, &rows);
    }
}

/* Adds the counters that all ranks have for rows `own` to `bad`, up to INT32_MAX. */
static void row_sum_outputs_count_bad(const struct stage *s, struct range own, int32_t *bad)
{
    for (uint32_t r = 0; r < s->o.layout->tp; r++) {
        const struct outputs from = row_sum_outputs_of(s, r);
        for (size_t t = own.begin; t < own.end; t++) {
            const int32_t room = INT32_MAX - bad[t];
            bad[t] += from.bad[t] < room ? from.bad[t] : room;
        }
    }
}

/* Computes this rank's outputs of all rows into its shared segment. */
static void row_sum_outputs_compute(struct stage *s, const struct packed *w, struct act_rows *in)
{
    float *out = s->by_outputs.outputs;
    int32_t *bad = (int32_t *)(void *)(out + s->o.max_rows * w->n_out);
    const struct linear_group group = {.w = w, .row0 = 0, .n_rows = in->n_rows};
    const struct linear_args args = {.groups = &group,
                                     .n_groups = 1,
                                     .x = s->by_outputs.inputs,
                                     .x_stride = in->n_all,
                                     .xq = act_codes(s->o.kern, in, w),
                                     .y = out,
                                     .y_stride = w->n_out,
                                     .bad = bad};
    memset(bad, 0, in->n_rows * sizeof *bad);
    op_linear_leaf(s->o.kern, &args);
}

/* y [T, D] = x w^T, or y += x w^T, for the rows that this rank holds; adds their counters to the
 * part's. */
static void row_sum_outputs_run(struct stage *s, const struct packed *w, struct act_rows *in,
                                float *y, bool adds, const struct part *p)
{
    if (act_codes(s->o.kern, in, w) == NULL && in->n > 0) {
        const struct place_args floats = {.from = in->x,
                                          .n_rows = in->n_rows,
                                          .width = in->n,
                                          .to_stride = in->n_all,
                                          .to = (float *)s->by_outputs.inputs + in->first};
        op_place_rows(s->o.kern, &floats);
    }
    comm_barrier(s->o.comm, COMM_TP); /* all inputs are written */
    row_sum_outputs_compute(s, w, in);
    comm_barrier(s->o.comm, COMM_TP); /* all outputs are written and all inputs read */
    row_sum_outputs_take(s, p->own, y, adds);
    row_sum_outputs_count_bad(s, p->own, p->hidden.bad);
}

static void row_sum_outputs_assign(struct stage *s, const struct packed *w, struct act_rows *in,
                                   float *y, struct part *p)
{
    row_sum_outputs_run(s, w, in, y, false, p);
    comm_poll(s->o.comm);
}

static void row_sum_outputs_add(struct stage *s, const struct packed *w, const float *bias,
                                struct act_rows *in, struct part *p)
{
    const bool scaled = row_sum_is_scaled(s);
    float *y = scaled ? s->x : p->hidden.h; /* the block's input s->x is no longer needed */
    row_sum_outputs_run(s, w, in, y, !scaled, p);
    row_sum_add_rest(s, y, bias, p);
}

/* Gives all ranks every rank's own rows of an array [T, width] of 4-byte words. */
static void gather_words(struct stage *s, const struct part *p, void *words, size_t width)
{
    const struct by_outputs *b = &s->by_outputs;
    const uint32_t tp = s->o.layout->tp;
    for (uint32_t r = 0; r < tp; r++) {
        const struct range own = layout_split((uint32_t)p->hidden.n_rows, 1, tp, r);
        b->counts[r] = (int)(range_count(own) * width);
        b->displs[r] = (int)(own.begin * width);
    }
    comm_gather_words(s->o.comm, COMM_TP, words, b->counts, b->displs);
}

static void row_sum_outputs_gather(struct stage *s, struct part *p)
{
    if (!part_is_cut(p)) return;
    gather_words(s, p, p->hidden.h, arch_row_width(s->o.model));
    gather_words(s, p, p->hidden.bad, 1);
}

const struct row_sum row_sum_by_outputs = {.name = "by outputs",
                                           .create = row_sum_outputs_create,
                                           .destroy = row_sum_outputs_destroy,
                                           .begin_step = row_sum_outputs_begin_step,
                                           .begin_part = row_sum_outputs_begin_part,
                                           .norm = norm_slices,
                                           .input = share_input,
                                           .assign = row_sum_outputs_assign,
                                           .add = row_sum_outputs_add,
                                           .complete = row_sum_no_part,
                                           .gather = row_sum_outputs_gather};

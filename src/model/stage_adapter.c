/* Low-rank adapters (weights/adapters.h): adds B (A x) in the rows of sequences that have an
 * adapter, and leaves all other rows alone. W is not touched, so rows of several adapters and of
 * none share its linears.
 *
 *     rows    | seq 0: a | seq 1: none | seq 2: b | seq 3: a |
 *     runs    |    a     |             |    b     |    a     |      one group of the linears each
 *
 * Column-parallel (q, k, v, gate, up): every rank computes A x of all inputs, and B's rows for its
 * own outputs. Row-parallel (o, down): the K-blocks of A x are added on the integer grid, as those
 * of the weight are (docs/numerics.md): every rank adds those of its inputs and the ranks add their
 * sums, or, where linears are cut by outputs, every rank reads all inputs. Then each rank computes
 * B times A x for the rows of h that it holds. A row of A x, and of B times it, never depends on
 * another.
 *
 * Latent attention: the latents of q and of the keys, and the rotated key, are columns that every
 * rank computes whole; each head has a linear for q and one for its output (struct adapter_layer).
 */
#include "base/mem.h"
#include "kernels/ops.h"
#include "model/stage_private.h"

#include <string.h>

struct status stage_make_adapters(struct stage *s)
{
    struct adapter_work *w = &s->adapt;
    const size_t t = s->o.max_rows;
    if (s->o.adapters == NULL) return status_ok();
    const size_t r = s->o.adapters->max_rank, wide = s->o.adapters->max_outputs;
    const size_t n_sums = grid_sum_room(t, r, s->o.comm, COMM_TP);
    s->workspace_bytes += t * (r + wide) * sizeof(float) + n_sums * sizeof *w->sums;
    TRY(mem_alloc(&w->low, t * r, sizeof *w->low, "adapters"));
    TRY(mem_alloc(&w->wide, t * wide, sizeof *w->wide, "adapters"));
    TRY(mem_alloc(&w->sums, n_sums, sizeof *w->sums, "adapters"));
    TRY(mem_alloc(&w->groups, t, sizeof *w->groups, "adapters"));
    TRY(mem_alloc(&w->of_row, t, sizeof *w->of_row, "adapters"));
    return mem_alloc(&w->runs, t + STAGE_PARTS, sizeof *w->runs, "adapters");
}

void stage_free_adapters(struct stage *s)
{
    mem_free(&s->adapt.low);
    mem_free(&s->adapt.wide);
    mem_free(&s->adapt.sums);
    mem_free(&s->adapt.groups);
    mem_free(&s->adapt.runs);
    mem_free(&s->adapt.of_row);
}

/* Adds rows [begin, end) of the step to the runs of a part, as far as they are in it. */
static void add_run_rows(struct part *p, struct adapter_run *runs, uint32_t adapter, size_t begin,
                         size_t end)
{
    const size_t part_end = p->row0 + p->hidden.n_rows;
    if (begin < p->row0) begin = p->row0;
    if (end > part_end) end = part_end;
    if (begin >= end) return;
    struct adapter_run *last = p->n_runs > 0 ? &runs[p->n_runs - 1] : NULL;
    if (last != NULL && last->adapter == adapter && last->row0 + last->n_rows == begin - p->row0)
        last->n_rows += end - begin;
    else
        runs[p->n_runs++] = (struct adapter_run){adapter, begin - p->row0, end - begin};
}

void stage_adapters_begin(struct stage *s, const struct seq_rows *seqs, size_t n_seqs,
                          const uint32_t *adapters, size_t n_parts)
{
    struct adapter_run *runs = s->adapt.runs;
    uint32_t *of_row = s->adapt.of_row;
    for (size_t k = 0; s->o.adapters != NULL && k < n_seqs; k++)
        for (size_t i = 0; i < seqs[k].n_rows; i++) of_row[seqs[k].row0 + i] = adapters[k];
    for (size_t i = 0; s->o.adapters != NULL && i < n_parts; i++) {
        struct part *p = &s->parts[i];
        p->runs = runs;
        p->adapters = of_row + p->row0;
        for (size_t k = 0; k < n_seqs; k++) {
            const struct seq_rows *q = &seqs[k];
            if (adapters[k] > 0)
                add_run_rows(p, runs, adapters[k] - 1, q->row0, q->row0 + q->n_rows);
        }
        runs += p->n_runs;
    }
}

/* The linears, at one site of a layer, of the runs whose adapters have LoRA rank `rank`. */
struct adapting {
    const struct layer *layer;
    const struct part *p;
    enum adapter_site site;
    uint32_t rank;
    uint32_t head; /* among this MPI rank's heads; at ADAPTER_K_B and ADAPTER_V_B */
};

static const struct adapter_linear *linear_of_run(const struct stage *s, const struct adapting *at,
                                                  const struct adapter_run *run)
{
    static const struct adapter_linear none;
    const struct adapter_layer *layer =
        &s->o.adapters->all[run->adapter].layers[at->layer->in_stage];
    if (at->site < ADAPTER_SITE_COUNT) return &layer->at[at->site];
    const struct adapter_linear *heads = at->site == ADAPTER_K_B ? layer->k_b : layer->v_b;
    return heads != NULL ? &heads[at->head] : &none;
}

/* Goes on to the next larger adapter rank among the part's runs; false: there is none. */
static bool next_rank(const struct stage *s, struct adapting *at)
{
    uint32_t least = 0;
    for (size_t i = 0; i < at->p->n_runs; i++) {
        const uint32_t rank = linear_of_run(s, at, &at->p->runs[i])->rank;
        if (rank > at->rank && (least == 0 || rank < least)) least = rank;
    }
    at->rank = least;
    return least > 0;
}

bool stage_adapts_ffn(const struct stage *s, const struct layer *layer, const struct part *p)
{
    for (enum adapter_site site = ADAPTER_GATE; site <= ADAPTER_DOWN; site++) {
        struct adapting at = {.layer = layer, .p = p, .site = site};
        if (next_rank(s, &at)) return true;
    }
    return false;
}

/* Fills s->adapt.groups with one group for each run whose adapter has rank at->rank: its A, or its
 * B (is_b), and those of its rows that lie in `rows`. Returns the number of groups. */
static size_t make_adapter_groups(struct stage *s, const struct adapting *at, bool is_b,
                                  struct range rows)
{
    size_t n = 0;
    for (size_t i = 0; i < at->p->n_runs; i++) {
        const struct adapter_run *run = &at->p->runs[i];
        const struct adapter_linear *linear = linear_of_run(s, at, run);
        const size_t run_end = run->row0 + run->n_rows;
        const size_t begin = run->row0 > rows.begin ? run->row0 : rows.begin;
        const size_t end = run_end < rows.end ? run_end : rows.end;
        if (linear->rank != at->rank || begin >= end) continue;
        s->adapt.groups[n++] =
            (struct linear_group){is_b ? &linear->b : &linear->a, begin, end - begin};
    }
    return n;
}

/* s->adapt.wide [T, n] = B times s->adapt.low, in the runs' rows within `rows`. Returns the number
 * of groups in s->adapt.groups. */
static size_t compute_outputs(struct stage *s, const struct adapting *at, struct range rows)
{
    struct adapter_work *w = &s->adapt;
    const size_t n_groups = make_adapter_groups(s, at, true, rows);
    if (n_groups == 0) return 0;
    op_linear(s->o.kern, &(struct linear_args){.groups = w->groups,
                                               .n_groups = n_groups,
                                               .x = w->low,
                                               .x_stride = at->rank,
                                               .y = w->wide,
                                               .y_stride = w->groups[0].w->n_out});
    return n_groups;
}

/* y [T, n] += scale * B times s->adapt.low, in the runs' rows within `rows`. */
static void add_outputs(struct stage *s, const struct adapting *at, struct range rows, float scale,
                        float *y)
{
    const struct adapter_work *w = &s->adapt;
    const size_t n_groups = compute_outputs(s, at, rows);
    const size_t n = n_groups > 0 ? w->groups[0].w->n_out : 0;
    for (size_t i = 0; i < n_groups; i++) {
        const size_t first = w->groups[i].row0 * n;
        op_axpy(s->o.kern, scale, w->wide + first, w->groups[i].n_rows * n, y + first);
    }
}

/* s->adapt.low = A x of the runs' rows. */
static void compute_low(struct stage *s, const struct adapting *at, const float *x, size_t stride)
{
    const struct range all = {0, (uint32_t)at->p->hidden.n_rows};
    const size_t n_groups = make_adapter_groups(s, at, false, all);
    op_linear(s->o.kern, &(struct linear_args){.groups = s->adapt.groups,
                                               .n_groups = n_groups,
                                               .x = x,
                                               .x_stride = stride,
                                               .y = s->adapt.low,
                                               .y_stride = at->rank});
}

/* y += B times s->adapt.low of one head, in the runs' rows. */
static void add_head(struct stage *s, const struct adapting *at, float *y, size_t stride)
{
    const struct adapter_work *w = &s->adapt;
    const struct range all = {0, (uint32_t)at->p->hidden.n_rows};
    const size_t n_groups = compute_outputs(s, at, all);
    for (size_t i = 0; i < n_groups; i++) {
        const size_t n = w->groups[i].w->n_out, first = w->groups[i].row0;
        op_add_rows(s->o.kern, &(struct place_args){.from = w->wide + first * n,
                                                    .n_rows = w->groups[i].n_rows,
                                                    .width = n,
                                                    .to_stride = stride,
                                                    .to = y + first * stride});
    }
}

void stage_adapt_heads(struct stage *s, const struct adapter_heads *a, const struct part *p)
{
    const uint32_t n_heads = (uint32_t)s->attention.n_heads;
    for (uint32_t h = 0; p->n_runs > 0 && h < n_heads; h++) {
        struct adapting at = {.layer = a->layer, .p = p, .site = a->site, .head = h};
        while (next_rank(s, &at)) {
            compute_low(s, &at, a->x.rows + h * a->x.stride, n_heads * a->x.stride);
            add_head(s, &at, a->y.rows + h * a->y.stride, n_heads * a->y.stride);
        }
    }
}

void stage_adapt_columns(struct stage *s, const struct adapter_columns *c, const struct part *p,
                         const struct act_rows *in)
{
    const struct range all = {0, (uint32_t)p->hidden.n_rows};
    for (size_t i = 0; p->n_runs > 0 && i < c->n; i++) {
        struct adapting at = {.layer = c->layer, .p = p, .site = c->first + (int)i};
        while (c->columns[i].w->n_out > 0 && next_rank(s, &at)) {
            compute_low(s, &at, in->x, in->stride);
            add_outputs(s, &at, all, 1, c->columns[i].y);
        }
    }
}

/* Describes A times the inputs of a row-parallel linear, for the rows of s->adapt.groups. */
static struct linear_args low_args(struct stage *s, const struct adapting *at, size_t n_groups,
                                   const float *x, size_t stride)
{
    return (struct linear_args){.groups = s->adapt.groups,
                                .n_groups = n_groups,
                                .x = x,
                                .x_stride = stride,
                                .y = s->adapt.low,
                                .y_stride = at->rank,
                                .bad = at->p->hidden.bad};
}

/* s->adapt.low = A x of the runs' rows that this rank holds, where linears are cut by outputs: the
 * tp ranks put their inputs into the memory that they share, in which the linear itself will put
 * them again, perhaps quantized. */
static void share_inputs(struct stage *s, const struct adapting *at, const struct act_rows *in)
{
    float *all = s->by_outputs.inputs;
    if (in->n > 0)
        op_place_rows(s->o.kern, &(struct place_args){.from = in->x,
                                                      .n_rows = in->n_rows,
                                                      .width = in->n,
                                                      .to_stride = in->n_all,
                                                      .to = all + in->first});
    comm_barrier(s->o.comm, COMM_TP); /* all inputs are written */
    const size_t n_groups = make_adapter_groups(s, at, false, at->p->own);
    const struct linear_args args = low_args(s, at, n_groups, all, in->n_all);
    if (n_groups > 0) op_linear_leaf(s->o.kern, &args);
    comm_barrier(s->o.comm, COMM_TP); /* all inputs are read */
}

/* s->adapt.low = A x of the runs' rows: each tp rank adds the K-blocks of its inputs. */
static void sum_inputs(struct stage *s, const struct adapting *at, const struct act_rows *in)
{
    int64_t *sums = s->adapt.sums;
    const size_t n_rows = at->p->hidden.n_rows;
    const size_t n_groups = make_adapter_groups(s, at, false, (struct range){0, (uint32_t)n_rows});
    const struct packed *a = s->adapt.groups[0].w;
    struct linear_args args = low_args(s, at, n_groups, in->x, in->stride);
    if (comm_size(s->o.comm, COMM_TP) == 1) {
        op_linear_leaf(s->o.kern, &args);
        return;
    }
    args.sums = sums;
    memset(sums, 0, n_rows * (at->rank + 1) * sizeof *sums);
    if (a->n_in > 0) op_linear_leaf(s->o.kern, &args);
    const struct grid_sum sum = {.kern = s->o.kern,
                                 .sums = sums,
                                 .n_rows = n_rows,
                                 .n_out = at->rank,
                                 .grid_bits = a->grid_bits,
                                 .y = s->adapt.low,
                                 .bad = at->p->hidden.bad};
    grid_sum_to_f32(&sum, s->o.comm, COMM_TP);
}

void stage_adapt_output(struct stage *s, const struct block_output *out, const struct act_rows *in,
                        const struct part *p, float scale, float *y)
{
    struct adapting at = {.layer = out->layer, .p = p, .site = out->site};
    while (p->n_runs > 0 && next_rank(s, &at)) {
        (s->o.layout->cuts_outputs ? share_inputs : sum_inputs)(s, &at, in);
        add_outputs(s, &at, p->own, scale, y);
    }
}

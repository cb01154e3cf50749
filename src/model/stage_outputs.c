/* Row-parallel linears of tp ranks that share a host's memory: cut by outputs, so that a rank
 * adds all leaves of its outputs itself. Each puts its inputs where all read them, then takes the
 * others' outputs, 4 bytes each, where the cut by inputs has every rank write sums of 8 bytes of
 * all outputs. The same integers are added, so the bits are the same. */
#include "kernels/device.h"
#include "kernels/ops.h"
#include "model/stage_private.h"

#include <string.h>

enum { HUGE_PAGE_BYTES = 2 << 20 };

/* Weights in small pages would cost more than others' help brings. */
static bool has_huge_lane(struct comm *c)
{
    return comm_lane(c, COMM_EP, COMM_LANE_EXPERTS, HUGE_PAGE_BYTES) != NULL &&
           comm_lane_is_huge(c, COMM_EP, COMM_LANE_EXPERTS);
}

void stage_choose_cuts(const struct kern_table *kern, struct comm *c, enum capacity_policy policy,
                       struct layout *l)
{
    const bool on_cpu = kern->device == NULL;
    const bool experts_together =
        on_cpu && policy == CAPACITY_DROPLESS && comm_shares_memory(c, COMM_EP);
    uint64_t apart[3]; /* whether some ranks cannot: of dense linears, of experts; lend experts */
    apart[0] = !(on_cpu && layout_may_cut_outputs(l) && comm_shares_memory(c, COMM_TP));
    apart[1] =
        !(experts_together && layout_may_cut_expert_outputs(l) && comm_shares_memory(c, COMM_ETP));
    apart[2] = !(experts_together && layout_may_lend_experts(l) && has_huge_lane(c));
    comm_max_u64(c, COMM_WORLD, apart, 3);
    l->cuts_outputs = apart[0] == 0;
    l->cuts_expert_outputs = apart[1] == 0;
    l->lends_experts = apart[2] == 0 && (l->etp == 1 || l->cuts_expert_outputs);
    if (!l->lends_experts) comm_release_lane(c, COMM_EP, COMM_LANE_EXPERTS);
}

struct act_rows stage_row_input(const struct stage *s, const float *x, size_t n_rows,
                                struct range held, size_t n_all, void *memory)
{
    const size_t n = range_count(held);
    struct act_rows in = {.x = x, .stride = n, .n_rows = n_rows, .n = n, .memory = memory};
    if (!s->o.layout->cuts_outputs) return in;
    in.first = held.begin;
    in.n_all = n_all;
    if (memory != NULL) in.memory = s->inputs;
    return in;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

void stage_share_inputs(struct stage *s)
{
    const struct model_config *m = s->o.model;
    if (!s->o.layout->cuts_outputs || s->inputs != NULL) return;
    const size_t n_o = (size_t)m->n_heads * m->value_dim;
    const size_t n = larger(n_o, larger(m->ffn, m->shared_ffn));
    const size_t n_bytes =
        larger(act_codes_bytes(s->o.max_rows, n), s->o.max_rows * n * sizeof(float));
    s->inputs = comm_common_lane(s->o.comm, COMM_TP, COMM_LANE_INPUTS, n_bytes);
}

/* A rank's outputs in its lane: [T, N] floats, and behind those of max_rows rows [T] counters. */
struct outputs {
    const float *y;
    const int32_t *bad;
    struct range columns;
};

static struct outputs outputs_of(const struct stage *s, uint32_t tp)
{
    const struct range columns = layout_outputs(s->o.layout, tp);
    const float *y = comm_lane_of(s->o.comm, COMM_TP, COMM_LANE_SUMS, (int)tp);
    const void *bad = y + s->o.max_rows * range_count(columns);
    return (struct outputs){y, bad, columns};
}

size_t stage_outputs_bytes(const struct stage *s)
{
    const size_t n = range_count(layout_outputs(s->o.layout, s->o.weights->place.tp));
    return s->o.max_rows * (n * sizeof(float) + sizeof(int32_t));
}

/* y [T, D] = all ranks' outputs of rows `own`, or adds them. */
static void take(const struct stage *s, struct range own, float *y, bool adds)
{
    const size_t d = s->o.model->width;
    for (uint32_t r = 0; r < s->o.layout->tp; r++) {
        const struct outputs from = outputs_of(s, r);
        const size_t width = range_count(from.columns);
        const struct place_args rows = {.from = from.y + own.begin * width,
                                        .n_rows = range_count(own),
                                        .width = width,
                                        .to_stride = d,
                                        .to = y + own.begin * d + from.columns.begin};
        (adds ? op_add_rows : op_place_rows)(s->o.kern, &rows);
    }
}

/* Counts saturate. */
static void count_bad(const struct stage *s, struct range own, int32_t *bad)
{
    for (uint32_t r = 0; r < s->o.layout->tp; r++) {
        const struct outputs from = outputs_of(s, r);
        for (size_t t = own.begin; t < own.end; t++) {
            const int32_t room = INT32_MAX - bad[t];
            bad[t] += from.bad[t] < room ? from.bad[t] : room;
        }
    }
}

/* This rank's outputs of all rows, into its lane. */
static void compute(struct stage *s, const struct packed *w, struct act_rows *in)
{
    float *out = s->outputs;
    int32_t *bad = (int32_t *)(void *)(out + s->o.max_rows * w->n_out);
    const struct linear_group group = {.w = w, .row0 = 0, .n_rows = in->n_rows};
    const struct linear_args args = {.groups = &group,
                                     .n_groups = 1,
                                     .x = s->inputs,
                                     .x_stride = in->n_all,
                                     .xq = act_codes(s->o.kern, in, w),
                                     .y = out,
                                     .y_stride = w->n_out,
                                     .bad = bad};
    memset(bad, 0, in->n_rows * sizeof *bad);
    op_linear_leaf(s->o.kern, &args);
}

void stage_outputs(struct stage *s, const struct packed *w, struct act_rows *in, float *y,
                   bool adds, struct part *p)
{
    if (act_codes(s->o.kern, in, w) == NULL && in->n > 0) {
        const struct place_args floats = {.from = in->x,
                                          .n_rows = in->n_rows,
                                          .width = in->n,
                                          .to_stride = in->n_all,
                                          .to = (float *)s->inputs + in->first};
        op_place_rows(s->o.kern, &floats);
    }
    comm_barrier(s->o.comm, COMM_TP); /* all inputs are there */
    compute(s, w, in);
    comm_barrier(s->o.comm, COMM_TP); /* all outputs are there, and all inputs were read */
    take(s, p->own, y, adds);
    count_bad(s, p->own, p->hidden.bad);
}

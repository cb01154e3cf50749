/* The FFN of experts, over the rows that a rank computes: those of the experts that it holds, and
 * of experts that other ranks of its host lend it. */
#include "collective/grid_sum.h"
#include "kernels/act.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "moe/moe_private.h"

#include <string.h>

/* Describes the rows that this rank computes as groups of one grouped linear, with the experts'
 * `weights`. */
static void make_groups(const struct moe *m, const struct packed *weights,
                        struct linear_group *groups)
{
    size_t row = 0;
    for (size_t i = 0; i < m->n_work; i++) {
        const ptrdiff_t at = (ptrdiff_t)m->work[i].expert - (ptrdiff_t)m->experts.begin;
        groups[i] =
            (struct linear_group){.w = &weights[at], .row0 = row, .n_rows = m->work[i].n_rows};
        row += m->work[i].n_rows;
    }
}

/* Shows each local expert's rows to the tap. */
static void moe_experts_show(const struct moe *m, const struct pass *p, enum tap_site site,
                             const float *x, size_t n)
{
    for (size_t i = 0; m->o.tap != NULL && i < m->n_work; i++) {
        const struct linear_group *g = &m->groups[i];
        const uint32_t at = m->work[i].expert;
        m->o.tap->see(m->o.tap->ctx, site, p->w->expert_at != NULL ? p->w->expert_at[at] : at,
                      x + g->row0 * n, g->n_rows, n);
    }
}

/* Adds to each row of y [n_in, n] its expert's row of bias [n_local, n]; NULL: nothing. */
static void add_biases(const struct moe *m, const float *bias, size_t n, float *y)
{
    for (size_t i = 0; bias != NULL && i < m->n_work; i++) {
        const size_t at = m->work[i].expert - m->experts.begin;
        op_add_bias(m->o.kern, y + m->groups[i].row0 * n, bias + at * n, m->work[i].n_rows, n);
    }
}

/* Sets gate [n_in, F] to the activation function of gate and up. */
static void activate(const struct moe *m, const struct pass *p, size_t f, float *gate, float *up)
{
    add_biases(m, p->w->gate_bias, f, gate);
    add_biases(m, p->w->up_bias, f, up);
    if (m->o.model->swiglu.limit > 0 && m->o.model->swiglu.alpha > 0) {
        op_swiglu_clamped(m->o.kern, gate, up, p->n_in * f, m->o.model->swiglu.alpha,
                          m->o.model->swiglu.limit);
    } else {
        op_swiglu(m->o.kern,
                  &(struct swiglu_args){.kind = m->o.model->gate,
                                        .limit = p->cap > 0 ? p->cap : m->o.model->swiglu.limit,
                                        .caps = p->cap > 0,
                                        .gate = gate,
                                        .up = up,
                                        .stride = f,
                                        .n_rows = p->n_in,
                                        .n = f,
                                        .y = gate,
                                        .y_stride = f});
    }
}

/* Gets memory for the quantized values of n_in rows of n inputs; NULL when no expert reads such
 * values. */
static struct status codes_memory(struct moe *m, const struct pass *p, enum buffer which, size_t n,
                                  void **out)
{
    *out = NULL;
    if (m->o.weight_only ||
        (p->w->gate[0].quant.kind == QUANT_NONE && p->w->up[0].quant.kind == QUANT_NONE &&
         p->w->down[0].quant.kind == QUANT_NONE))
        return status_ok();
    return moe_grow(m, which, act_codes_bytes(p->n_in, n), 1, out);
}

bool moe_takes_codes(const struct moe *m, const struct pass *p)
{
    return m->o.kern->device == NULL && m->o.tap == NULL && !m->o.weight_only &&
           p->n_in >= p->n_tokens && p->w->gate != NULL && !moe_is_adapted(m, p) &&
           range_count(m->experts) > 0 && act_codes_alike(&p->w->gate[0], &p->w->up[0]);
}

struct status moe_spread_codes(struct moe *m, const struct pass *p, struct act_rows *rows)
{
    struct act_rows own = {.x = p->rows->x,
                           .stride = m->o.model->width,
                           .n_rows = p->n_tokens,
                           .n = m->o.model->width};
    struct act_rows *tokens =
        p->rows->in != NULL && p->rows->in->memory != NULL ? p->rows->in : &own;
    if (tokens == &own)
        TRY(moe_grow(m, BUF_TOKEN_CODES, act_codes_bytes(p->n_tokens, m->o.model->width), 1,
                     &own.memory));
    const struct scatter_args slots = {.slots = p->to_slots,
                                       .n_slots = p->n_tokens * m->o.model->moe.n_chosen,
                                       .per_row = m->o.model->moe.n_chosen};
    const struct quant_rows *codes = act_codes(m->o.kern, tokens, &p->w->gate[0]);
    act_codes_scatter(m->o.kern, rows, &p->w->gate[0], codes, &slots);
    return status_ok();
}

/* Describes the inputs of the down projection, gate [n_in, f], where this rank has all of them. */
static struct status own_inner_rows(struct moe *m, const struct pass *p, const float *gate,
                                    size_t f, struct act_rows *out)
{
    *out = (struct act_rows){.x = gate, .stride = f, .n_rows = p->n_in, .n = f};
    return codes_memory(m, p, BUF_INNER_CODES, f, &out->memory);
}

static void read_own_inner(struct moe *m, const struct act_rows *inner, struct linear_args *a)
{
    (void)m;
    a->x = inner->x;
    a->x_stride = inner->stride;
}

static void adapt_own_inner(struct moe *m, const struct act_rows *inner)
{
    moe_adapt_inner(m, inner->x, inner->stride, inner->n);
}

static const struct expert_inner inner_own = {
    .rows = own_inner_rows, .read = read_own_inner, .adapt = adapt_own_inner};

/* As own_inner_rows, when the ranks of an expert share the inputs: each reads all columns, and gate
 * [n_in, f] holds this rank's columns. */
static struct status shared_inner_rows(struct moe *m, const struct pass *p, const float *gate,
                                       size_t f, struct act_rows *out)
{
    *out = (struct act_rows){.x = gate, .stride = f, .n_rows = p->n_in, .n = f};
    const size_t n = p->w->down[0].n_in, n_codes = act_codes_bytes(p->n_in, n);
    const size_t n_floats = p->n_in * n * sizeof(float),
                 n_bytes = n_codes > n_floats ? n_codes : n_floats;
    if (n_bytes > m->sharing.inputs_bytes) { /* all of these ranks have the same rows, so all of
                                                them come here together */
        m->sharing.inputs_bytes = n_bytes + n_bytes / 4;
        m->sharing.inputs =
            comm_common_lane(m->o.comm, COMM_ETP, COMM_LANE_EXPERT_INPUTS, m->sharing.inputs_bytes);
    }
    out->first = layout_expert_ffn(m->o.layout, m->place.etp).begin;
    out->n_all = n;
    if (!m->o.weight_only) out->memory = m->sharing.inputs;
    return status_ok();
}

static void share_floats(struct moe *m, const struct act_rows *inner)
{
    const struct place_args floats = {.from = inner->x,
                                      .n_rows = inner->n_rows,
                                      .width = inner->n,
                                      .to_stride = inner->n_all,
                                      .to = (float *)m->sharing.inputs + inner->first};
    op_place_rows(m->o.kern, &floats);
}

/* Puts this rank's columns into the shared inputs of the down projection and waits until the other
 * ranks of the experts have done the same. */
static void read_shared_inner(struct moe *m, const struct act_rows *inner, struct linear_args *a)
{
    if (a->xq == NULL) share_floats(m, inner);
    comm_barrier(m->o.comm, COMM_ETP);
    a->x = m->sharing.inputs;
    a->x_stride = inner->n_all;
}

/* Adapters read floats, which the linear may then replace by quantized values. */
static void adapt_shared_inner(struct moe *m, const struct act_rows *inner)
{
    share_floats(m, inner);
    comm_barrier(m->o.comm, COMM_ETP); /* all inputs are written */
    moe_adapt_inner(m, m->sharing.inputs, inner->n_all, inner->n_all);
    comm_barrier(m->o.comm, COMM_ETP); /* all inputs are read */
}

static const struct expert_inner inner_shared = {
    .rows = shared_inner_rows, .read = read_shared_inner, .adapt = adapt_shared_inner};

/* Describes the experts' inputs for the whole pass, with memory for their quantized values;
 * p->spread, if there is one, fills it. */
static struct status input_rows(struct moe *m, const struct pass *p, struct act_rows *in)
{
    const size_t d = m->o.model->width;
    *in = (struct act_rows){.x = p->x, .stride = d, .n_rows = p->n_in, .n = d};
    TRY(codes_memory(m, p, BUF_CODES, d, &in->memory));
    return p->spread != NULL ? p->spread(m, p, in) : status_ok();
}

/* Runs the gate and up projections and the activation: sets a->y [n_in, f], or inner's quantized
 * values. `a` has the arguments that both linears share; `up` is scratch of the same size. */
static void gated_linears(struct moe *m, const struct pass *p, struct act_rows *in,
                          const struct linear_args *a, struct act_rows *inner, float *up)
{
    struct linear_args both[2] = {*a, *a};
    both[0].xq = act_codes(m->o.kern, in, p->w->gate);
    both[1].groups = m->up_groups;
    both[1].y = up;
    const bool apart = act_codes_replace(in, p->w->up);
    if (apart) op_linear(m->o.kern, &both[0]);
    both[1].xq = act_codes(m->o.kern, in, p->w->up);
    const bool is_adapted = m->adapted.n_rows > 0, is_limited = m->o.model->swiglu.limit > 0;
    if (!apart && !is_adapted && !is_limited && p->cap == 0 && p->w->gate_bias == NULL &&
        p->w->up_bias == NULL) {
        const struct gated_args gated = {.gate = both[0],
                                         .up = both[1],
                                         .n_rows = p->n_in,
                                         .codes = act_codes_to_make(inner, p->w->down),
                                         .codes_alone = m->o.tap == NULL,
                                         .kind = m->o.model->gate};
        op_gated(m->o.kern, &gated);
    } else {
        op_linears(m->o.kern, both + apart, 2 - apart);
        if (is_adapted) moe_adapt_gate_up(m, p->x, a->y, up, a->y_stride);
        activate(m, p, a->y_stride, a->y, up);
    }
}

/* As gated_linears, for experts with GATE_RELU2: one linear, then squared ReLU. */
static void relu2_linear(struct moe *m, const struct pass *p, struct act_rows *in,
                         const struct linear_args *a)
{
    struct linear_args one = *a;
    one.xq = act_codes(m->o.kern, in, p->w->gate);
    op_linear(m->o.kern, &one);
    op_relu2(m->o.kern, one.y, p->n_in * one.y_stride);
}

/* Does the work of moe_expert_sums on a rank that holds experts, for the rows `in` of m->work. */
static struct status expert_linears(struct moe *m, const struct pass *p, struct act_rows *in,
                                    int64_t *sums)
{
    const float *x = p->x;
    const size_t d = m->o.model->width, f = p->w->gate[0].n_out;
    struct act_rows inner;
    float *gate, *up;
    TRY(moe_grow(m, BUF_GATE, p->n_in * f, sizeof(float), &gate));
    TRY(moe_grow(m, BUF_UP, p->n_in * f, sizeof(float), &up));
    TRY(m->inner->rows(m, p, gate, f, &inner));
    make_groups(m, p->w->gate, m->groups);
    make_groups(m, p->w->up, m->up_groups);
    moe_experts_show(m, p, TAP_EXPERT, x, d);
    struct linear_args a = {
        .groups = m->groups, .n_groups = m->n_work, .x = x, .x_stride = d, .y_stride = f};
    a.y = gate;
    if (m->o.model->gate == GATE_RELU2)
        relu2_linear(m, p, in, &a);
    else
        gated_linears(m, p, in, &a, &inner, up);
    make_groups(m, p->w->down, m->groups);
    moe_experts_show(m, p, TAP_EXPERT_DOWN, gate, f);
    if (m->adapted.n_rows > 0) m->inner->adapt(m, &inner);
    a.xq = act_codes(m->o.kern, &inner, p->w->down);
    m->inner->read(m, &inner, &a);
    a.sums = sums;
    a.y = sums == NULL ? p->y : NULL;
    a.y_stride = p->w->down[0].n_out;
    a.bad = sums == NULL ? p->bad : NULL;
    op_linear_leaf(m->o.kern, &a);
    return status_ok();
}

/* Returns the part of the rows `in`, from row0 on, that a run of streamed experts reads. */
static struct act_rows part_of_rows(const struct pass *part, const struct act_rows *in, size_t row0)
{
    struct act_rows rows = *in;
    rows.x = part->x;
    rows.n_rows = part->n_in;
    if (part->spread == NULL) return rows; /* quantized run by run, in the same memory */
    rows.codes.codes += row0 * rows.codes.n_groups * rows.codes.group;
    rows.codes.scales += row0 * rows.codes.n_groups;
    rows.codes.sums += row0 * rows.codes.n_groups;
    return rows;
}

/* As expert_linears, but for one run of m->work, whose rows begin at row0. */
static struct status run_linears(struct moe *m, const struct pass *p, const struct act_rows *in,
                                 struct expert_run run, size_t row0, int64_t *sums)
{
    struct expert_rows *const work = m->work;
    const size_t n_work = m->n_work, n_out = p->w->down[0].n_out;
    struct pass part = *p;
    part.n_in = 0;
    for (size_t i = 0; i < run.n; i++) part.n_in += work[run.first + i].n_rows;
    if (p->x != NULL) part.x = p->x + row0 * m->o.model->width;
    if (sums == NULL) part.y = p->y + row0 * n_out;
    if (sums == NULL) part.bad = p->bad + row0;
    struct act_rows rows = part_of_rows(&part, in, row0);
    m->work += run.first;
    m->n_work = run.n;
    m->adapted.run = (struct range){(uint32_t)run.first, (uint32_t)(run.first + run.n)};
    m->adapted.run_row0 = row0;
    const struct status st =
        expert_linears(m, &part, &rows, sums != NULL ? sums + row0 * (n_out + 1) : NULL);
    m->work = work;
    m->n_work = n_work;
    /* other ranks may still read the inputs that the next run overwrites */
    if (m->inner == &inner_shared) comm_barrier(m->o.comm, COMM_ETP);
    return st;
}

static size_t rows_of_work(const struct moe *m, size_t n)
{
    size_t n_rows = 0;
    for (size_t i = 0; i < n; i++) n_rows += m->work[i].n_rows;
    return n_rows;
}

/* Runs experts as their weights come from disk. */
static struct status stream_linears(struct moe *m, const struct pass *p, const struct act_rows *in,
                                    int64_t *sums)
{
    struct expert_stream *stream = p->w->stream;
    const bool in_order = comm_size(m->o.comm, COMM_ETP) > 1;
    for (size_t i = 0; i < m->n_work; i++)
        m->needs[i] = (struct expert_need){m->work[i].expert - m->experts.begin, m->work[i].n_rows};
    expert_stream_begin(stream, p->in_stage, m->needs, m->n_work, in_order, p->n_tokens);
    struct expert_run run = {0, 0};
    for (size_t n_done = 0; n_done < m->n_work; n_done += run.n) {
        TRY(expert_stream_next(stream, &run));
        TRY(run_linears(m, p, in, run, rows_of_work(m, run.first), sums));
    }
    return status_ok();
}

struct status moe_expert_sums(struct moe *m, struct pass *p, int64_t *sums)
{
    const bool has_weights = p->w->down != NULL && range_count(m->experts) > 0;
    const size_t f = has_weights ? p->w->gate[0].n_out : 0;
    if (f > 0) {
        struct act_rows in;
        TRY(input_rows(m, p, &in));
        return p->w->stream != NULL ? stream_linears(m, p, &in, sums)
                                    : expert_linears(m, p, &in, sums);
    }
    if (sums != NULL)
        mem_ops_fill(m->o.kern, sums, 0, p->n_in * (m->o.model->width + 1) * sizeof *sums);
    return status_ok();
}

/* Rounds the sums to floats at the last K-block, because this rank computes all K-blocks of its
 * experts' outputs. */
static struct status moe_experts_add_whole(struct moe *m, struct pass *p)
{
    return moe_expert_sums(m, p, NULL);
}

/* Adds integer sums over the ranks, then rounds. For experts that several ranks share, and for
 * devices. */
static struct status add_on_grid(struct moe *m, struct pass *p)
{
    const size_t d = m->o.model->width;
    int64_t *sums = NULL;
    TRY(moe_grow_shared(m, BUF_SUMS, COMM_ETP, COMM_LANE_EXPERT_SUMS,
                        grid_sum_room(p->n_in, d, m->o.comm, COMM_ETP) * sizeof *sums, &sums));
    TRY(moe_expert_sums(m, p, sums));
    const struct grid_sum sum = {.kern = m->o.kern,
                                 .sums = sums,
                                 .n_rows = p->n_in,
                                 .n_out = d,
                                 .grid_bits = p->w->grid_bits,
                                 .y = p->y,
                                 .bad = p->bad};
    grid_sum_to_f32(&sum, m->o.comm, COMM_ETP);
    return status_ok();
}

void moe_choose_sums(struct moe *m)
{
    const bool is_whole = m->o.kern->device == NULL && comm_size(m->o.comm, COMM_ETP) == 1;
    m->add_blocks = is_whole ? moe_experts_add_whole : add_on_grid;
    m->inner = m->o.layout->cuts_expert_outputs ? &inner_shared : &inner_own;
}

struct status moe_compute(struct moe *m, struct pass *p)
{
    TRY(moe_grow(m, BUF_Y, p->n_in * m->o.model->width, sizeof(float), &p->y));
    TRY(moe_grow(m, BUF_BAD, p->n_in, sizeof(int32_t), &p->bad));
    return moe_run_experts(m, p);
}

struct status moe_run_experts(struct moe *m, struct pass *p)
{
    mem_ops_fill(m->o.kern, p->bad, 0, p->n_in * sizeof *p->bad);
    TRY(moe_adapt_begin(m, p));
    TRY(m->add_blocks(m, p));
    moe_adapt_down(m, p);
    if (p->w->down != NULL && range_count(m->experts) > 0) {
        make_groups(m, p->w->down, m->groups); /* streaming has left the groups of its last run */
        add_biases(m, p->w->down_bias, m->o.model->width, p->y);
    }
    return status_ok();
}

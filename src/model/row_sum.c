/* Row-parallel linears (o_proj and the down projections): decides the cuts of the layout
 * (stage_choose_cuts), chooses one of three ways to add partial sums (row_sum_whole.c,
 * row_sum_outputs.c, row_sum_grid.c), and holds the functions that these three files share. */
#include "kernels/device.h"
#include "kernels/ops.h"
#include "model/stage_private.h"

enum { HUGE_PAGE_BYTES = 2 << 20 };

/* True when a shared segment for lent experts lies in huge pages. In small pages, reading another
 * rank's weights costs more time than the help saves. */
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
    /* nonzero: some rank cannot [0] cut dense linears by outputs, [1] cut experts by outputs, [2]
     * lend experts */
    uint64_t apart[3];
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

const struct row_sum *row_sum_choose(const struct stage *s)
{
    if (s->o.layout->cuts_outputs) return &row_sum_by_outputs;
    return comm_size(s->o.comm, COMM_TP) == 1 ? &row_sum_whole : &row_sum_by_grid;
}

void row_sum_blocks(struct stage *s, const struct packed *w, struct act_rows *in,
                    const struct block_sums *out, const struct part *p)
{
    const struct linear_group group = {.w = w, .row0 = 0, .n_rows = p->hidden.n_rows};
    const struct linear_args args = {.groups = &group,
                                     .n_groups = 1,
                                     .x = in->x,
                                     .x_stride = w->n_in,
                                     .xq = act_codes(s->o.kern, in, w),
                                     .y = out->y,
                                     .y_stride = s->o.model->width,
                                     .sums = out->sums,
                                     .bad = p->hidden.bad,
                                     .adds = out->adds};
    op_linear_leaf(s->o.kern, &args);
}

bool row_sum_is_scaled(const struct stage *s)
{
    return s->o.model->scale.residual != 1.0f;
}

void row_sum_add_rest(struct stage *s, float *y, const float *bias, const struct part *p)
{
    const size_t n_rows = range_count(p->own), d = s->o.model->width, first = p->own.begin * d;
    const float scale = s->o.model->scale.residual;
    if (bias != NULL) op_add_bias(s->o.kern, y + first, bias, n_rows, d);
    if (scale != 1.0f) op_axpy(s->o.kern, scale, y + first, n_rows * d, p->hidden.h + first);
    comm_poll(s->o.comm);
}

/* y = x, quantized too if the norm would have done so. */
static void row_sum_copy(struct stage *s, const struct norm_args *a)
{
    op_place_rows(
        s->o.kern,
        &(struct place_args){
            .from = a->x, .n_rows = a->n_rows, .width = a->n, .to_stride = a->n, .to = a->y});
    if (a->codes != NULL) op_quantize_rows(s->o.kern, a->x, a->n, a->n_rows, a->n, a->codes);
}

void row_sum_norm_own(struct stage *s, const struct part *p, struct norm_weights norm,
                      const struct packed *first, float *y, struct act_rows *rows)
{
    const size_t d = s->o.model->width, row0 = p->own.begin;
    const struct quant_rows *all = first != NULL ? act_codes_to_make(rows, first) : NULL;
    struct quant_rows codes;
    if (all != NULL) codes = act_codes_from(all, row0);
    const struct norm_args a = {.x = p->hidden.h + row0 * d,
                                .w = norm.w,
                                .bias = norm.bias,
                                .n_rows = range_count(p->own),
                                .n = d,
                                .eps = s->o.model->norm_eps,
                                .y = y + row0 * d,
                                .codes = all != NULL ? &codes : NULL};
    if (norm.w != NULL)
        op_rmsnorm(s->o.kern, &a);
    else
        row_sum_copy(s, &a);
    if (s->o.model->rounds_inputs)
        op_round_rows(s->o.kern, &(struct round_rows){.x = a.y, .n_rows = a.n_rows, .n = d});
}

struct act_rows row_sum_norm_all(struct stage *s, const struct part *p, struct norm_weights norm,
                                 const struct packed *first)
{
    struct act_rows rows = stage_input(s, s->x, p->hidden.n_rows, s->o.model->width);
    row_sum_norm_own(s, p, norm, first, s->x, &rows);
    return rows;
}

struct act_rows row_sum_own_input(const struct stage *s, const struct inner_rows *x)
{
    (void)s;
    const size_t n = range_count(x->held);
    return (struct act_rows){
        .x = x->x, .stride = n, .n_rows = x->n_rows, .n = n, .memory = x->memory};
}

void row_sum_whole_part(struct stage *s, struct part *p)
{
    (void)s;
    p->own = (struct range){0, (uint32_t)p->hidden.n_rows};
}

void row_sum_no_step(struct stage *s)
{
    (void)s;
}

void row_sum_no_part(struct stage *s, struct part *p)
{
    (void)s;
    (void)p;
}

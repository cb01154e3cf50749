/* Adapters of routed experts: A and B of every expert's linears, from a matrix for each expert, or
 * from the joined matrices of a parameter (adapter_is_joined). */
#include "weights/adapters_private.h"

#include <string.h>

/* Returns where the layer has the experts' linears of a target. */
static struct adapter_linear **experts_of(const struct adapter_loading *ld,
                                          const struct adapter_target *t)
{
    return &adapter_layer_of(ld, t)->experts[t->site - ADAPTER_OF_EXPERTS];
}

static struct packed *expert_matrix(const struct adapter_loading *ld,
                                    const struct adapter_target *t, uint64_t expert)
{
    struct adapter_linear *linear = &(*experts_of(ld, t))[expert];
    return t->is_b ? &linear->b : &linear->a;
}

static bool is_joined(const struct adapter_target *t)
{
    return adapter_is_joined(t->tensor, t->linear);
}

uint32_t adapter_n_outer(const struct adapter_loading *ld, const struct adapter_target *t)
{
    return adapter_is_of_experts(t) && !is_joined(t) ? ld->from->model->moe.n_experts : 1;
}

struct status adapter_experts_cut(struct adapter_loading *ld, struct adapter_target *t,
                                  const struct weight_spec *s)
{
    const uint32_t n = s->n_outer, rank = adapter_target_rank(ld, t);
    const bool has_leaves = t->linear->has_leaves;
    struct adapter_linear **experts = experts_of(ld, t);
    if (is_joined(t) && ld->from->model->family->weighs_inputs)
        return status_make(STATUS_INPUT,
                           "%s: tensor %s: adapters of experts that are one parameter are not "
                           "implemented for %s",
                           ckpt_path(ld->ckpt), t->tensor->name, ld->from->model->family->title);
    if (*experts == NULL) TRY(mem_alloc(experts, n, sizeof **experts, "an adapter"));
    t->outputs = s->rows;
    t->rows = t->is_b && !is_joined(t) ? s->rows
                                       : adapter_all_of(t->tensor->n_rows / adapter_n_outer(ld, t));
    t->cols = !t->is_b && has_leaves ? s->cols : adapter_all_of(t->tensor->n_cols);
    struct packed whole = {.dtype = DTYPE_F32,
                           .n_out = t->is_b ? range_count(s->rows) : rank,
                           .n_in = t->is_b ? rank : range_count(t->cols)};
    if (!t->is_b && has_leaves) TRY(adapter_take_leaves(ld, t, &whole));
    if (expert_matrix(ld, t, 0)->n_out > 0)
        return status_make(STATUS_INPUT, "%s: tensor %s: another one is of the same linears",
                           ckpt_path(ld->ckpt), t->tensor->name);
    for (uint32_t e = 0; e < n; e++) {
        (*experts)[e].rank = rank;
        *expert_matrix(ld, t, e) = whole;
    }
    return status_ok();
}

size_t adapter_experts_place(const struct adapter_loading *ld, const struct adapter_target *t,
                             char *memory)
{
    const size_t n = ld->from->model->moe.n_experts;
    const size_t n_bytes = adapter_packed_room(expert_matrix(ld, t, 0));
    for (size_t e = 0; memory != NULL && e < n; e++)
        expert_matrix(ld, t, e)->data = memory + e * n_bytes;
    return n * n_bytes;
}

/* Packs one row of A or B of an expert. */
static void take_row(const struct adapter_loading *ld, const struct adapter_target *t,
                     uint64_t expert, size_t row, const float *values)
{
    const struct packed *to = expert_matrix(ld, t, expert);
    const struct matrix_rows one = {
        .data = values, .stride_bytes = to->n_in * sizeof *values, .row0 = row, .n = 1};
    op_pack_rows(ld->from->kern, to, &one);
}

/* Returns the output of the linear, counted from this rank's first, that is row `row` of a joined
 * B; SIZE_MAX: another linear's, or not of this rank. The outputs of gate and up alternate in
 * gpt-oss; in other families gate's come first. */
static size_t output_of(const struct adapter_loading *ld, const struct adapter_target *t,
                        size_t row)
{
    const bool alternates = strcmp(ld->from->model->family->architecture, "GptOssForCausalLM") == 0;
    const size_t f = ld->from->model->moe.ffn;
    const size_t is_up = t->linear->role == WEIGHT_EXPERT_UP;
    size_t at = row;
    if (t->linear->role != WEIGHT_EXPERT_DOWN) {
        if ((alternates ? row % 2 : row / f) != is_up) return SIZE_MAX;
        at = alternates ? row / 2 : row % f;
    }
    return at >= t->outputs.begin && at < t->outputs.end ? at - t->outputs.begin : SIZE_MAX;
}

/* Packs rows of a joined B, each an output of all experts: [r, E]. */
static struct status take_outputs(const struct adapter_loading *ld, const struct adapter_target *t,
                                  const struct adapter_rows *rows)
{
    const size_t n_experts = ld->from->model->moe.n_experts, n_cols = t->tensor->n_cols;
    const size_t rank = n_cols / n_experts;
    float *by_expert = NULL;
    TRY(mem_alloc(&by_expert, n_cols, sizeof *by_expert, "rows of an adapter"));
    for (size_t i = 0; i < rows->n; i++) {
        const size_t output = output_of(ld, t, rows->row0 + i);
        if (output == SIZE_MAX) continue;
        for (size_t k = 0; k < n_cols; k++)
            by_expert[k % n_experts * rank + k / n_experts] = rows->values[i * n_cols + k];
        for (size_t e = 0; e < n_experts; e++) take_row(ld, t, e, output, by_expert + e * rank);
    }
    mem_free(&by_expert);
    return status_ok();
}

struct status adapter_experts_take(const struct adapter_loading *ld, const struct adapter_target *t,
                                   uint64_t expert, const struct adapter_rows *rows)
{
    const size_t n_cols = range_count(t->cols), rank = adapter_target_rank(ld, t);
    const struct matrix_rows all = {.data = rows->values,
                                    .stride_bytes = n_cols * sizeof *rows->values,
                                    .row0 = rows->row0,
                                    .n = rows->n};
    if (!is_joined(t)) {
        op_pack_rows(ld->from->kern, expert_matrix(ld, t, expert), &all);
        return status_ok();
    }
    if (t->is_b) return take_outputs(ld, t, rows);
    for (size_t i = 0; i < rows->n; i++) {
        const size_t row = rows->row0 + i;
        take_row(ld, t, row / rank, row % rank, rows->values + i * n_cols);
    }
    return status_ok();
}

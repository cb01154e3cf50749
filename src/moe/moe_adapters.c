/* Low-rank adapters of experts (weights/adapters.h): adds B (A x) to an expert's linears in the
 * rows of tokens that have an adapter. W is not changed.
 *
 *     rows of expert 3   | a | - | b | a |      rows that this rank computes
 *     pairs              | 3, a: 2 rows | 3, b: 1 row |   one group of the linears each
 *
 * The adapted rows are copied together, pair by pair; every rank holds the matrices of all experts,
 * so it does not matter where a row is computed. Gate and up read the expert's inputs, down the
 * inner rows, all as floats. A of down has the K-blocks of the weight: where the ranks of an expert
 * divide its inputs, they add integers, and where they divide its outputs, each reads all inputs. A
 * row's result depends on no other row. */
#include "base/mem.h"
#include "collective/grid_sum.h"
#include "kernels/ops.h"
#include "moe/moe_private.h"

#include <string.h>

bool moe_is_adapted(const struct moe *m, const struct pass *p)
{
    const struct adapters *a = m->o.adapters;
    if (a == NULL || p->in_stage >= a->n_layers) return false;
    for (size_t i = 0; i < a->n; i++)
        for (int which = 0; which < ADAPTER_EXPERT_LINEARS; which++)
            if (a->all[i].layers[p->in_stage].experts[which] != NULL) return true;
    return false;
}

int32_t moe_adapter_of(const struct pass *p, size_t token)
{
    return p->rows->adapters != NULL ? (int32_t)p->rows->adapters[token] : 0;
}

struct status moe_list_adapters(struct moe *m, struct pass *p, const int32_t *slots)
{
    const size_t k = m->o.model->moe.n_chosen, n = range_count(p->listed) * k;
    if (!moe_is_adapted(m, p)) return status_ok();
    TRY(moe_grow(m, BUF_ROW_ADAPTERS, p->n_in, sizeof *p->row_adapters, &p->row_adapters));
    for (size_t i = 0; i < n; i++)
        if (slots[i] >= 0) p->row_adapters[slots[i]] = moe_adapter_of(p, p->listed.begin + i / k);
    return status_ok();
}

/* ---- pairs ---- */

static const struct adapter_linear *linear_of_pair(const struct adapter_pair *pair, int which)
{
    static const struct adapter_linear none;
    const struct adapter_linear *experts = pair->layer->experts[which];
    return experts != NULL ? &experts[pair->expert] : &none;
}

/* Goes on to the next larger rank of a linear among all pairs; false: there is none. */
static bool next_expert_rank(const struct moe *m, int which, uint32_t *rank)
{
    uint32_t least = 0;
    for (size_t i = 0; i < m->adapted.n_pairs; i++) {
        const uint32_t r = linear_of_pair(&m->adapted.pairs[i], which)->rank;
        if (r > *rank && (least == 0 || r < least)) least = r;
    }
    *rank = least;
    return least > 0;
}

/* Appends the pairs of a piece of work whose rows begin at row0. */
static void add_pairs(struct moe *m, const struct pass *p, size_t work, size_t row0)
{
    struct adapted *a = &m->adapted;
    const uint32_t place = m->work[work].expert;
    for (size_t i = 0; i < m->o.adapters->n; i++) {
        const size_t first = a->n_rows;
        for (size_t r = row0; r < row0 + m->work[work].n_rows; r++)
            if (p->row_adapters[r] == (int32_t)i + 1) a->rows[a->n_rows++] = (int32_t)r;
        if (a->n_rows == first) continue;
        a->pairs[a->n_pairs++] = (struct adapter_pair){
            .work = work,
            .layer = &m->o.adapters->all[i].layers[p->in_stage],
            .expert = p->w->expert_at != NULL ? p->w->expert_at[place] : place,
            .row0 = first,
            .n_rows = a->n_rows - first};
    }
}

/* Returns where the sums of A x of rank `rank` begin in a->sums, or their end for a rank above all.
 */
static size_t sums_before(const struct moe *m, uint32_t rank)
{
    size_t n = 0;
    for (uint32_t r = 0; next_expert_rank(m, ADAPTER_EXPERT_DOWN, &r) && r < rank;)
        n += grid_sum_room(m->adapted.n_rows, r, m->o.comm, COMM_ETP);
    return n;
}

/* Makes room for the adapted rows. */
static struct status grow_adapted(struct moe *m)
{
    struct adapted *a = &m->adapted;
    const size_t n = a->n_rows, d = m->o.model->width, f = m->o.model->moe.ffn;
    const size_t wide = d > f ? d : f, r = m->o.adapters->max_expert_rank;
    TRY(moe_grow(m, BUF_ADAPTED_GROUPS, a->n_pairs, sizeof *a->groups, &a->groups));
    TRY(moe_grow(m, BUF_ADAPTED_X, n * wide, sizeof *a->x, &a->x));
    TRY(moe_grow(m, BUF_ADAPTED_LOW, n * r, sizeof *a->low, &a->low));
    TRY(moe_grow(m, BUF_ADAPTED_WIDE, n * (wide > r ? wide : r), sizeof *a->wide, &a->wide));
    TRY(moe_grow(m, BUF_ADAPTED_BAD, n, sizeof *a->bad, &a->bad));
    memset(a->bad, 0, n * sizeof *a->bad);
    if (comm_size(m->o.comm, COMM_ETP) == 1 || m->o.layout->cuts_expert_outputs) return status_ok();
    const size_t n_sums = sums_before(m, UINT32_MAX);
    TRY(moe_grow(m, BUF_ADAPTED_SUMS, n_sums, sizeof *a->sums, &a->sums));
    memset(a->sums, 0, n_sums * sizeof *a->sums);
    return status_ok();
}

struct status moe_adapt_begin(struct moe *m, const struct pass *p)
{
    struct adapted *a = &m->adapted;
    size_t n = 0, row = 0;
    *a = (struct adapted){.run = {0, (uint32_t)m->n_work}};
    if (p->row_adapters == NULL) return status_ok();
    for (size_t i = 0; i < p->n_in; i++) n += p->row_adapters[i] > 0;
    if (n == 0) return status_ok();
    TRY(moe_grow(m, BUF_ADAPTED_ROWS, n, sizeof *a->rows, &a->rows));
    TRY(moe_grow(m, BUF_ADAPTED_PAIRS, n, sizeof *a->pairs, &a->pairs));
    for (size_t i = 0; i < m->n_work; i++) {
        add_pairs(m, p, i, row);
        row += m->work[i].n_rows;
    }
    return grow_adapted(m);
}

/* ---- linears ---- */

/* Fills the groups with A or B (is_b) of the run's pairs whose linear has this rank. Returns how
 * many there are. */
static size_t make_pair_groups(const struct moe *m, int which, uint32_t rank, bool is_b)
{
    const struct adapted *a = &m->adapted;
    size_t n = 0;
    for (size_t i = 0; i < a->n_pairs; i++) {
        const struct adapter_pair *pair = &a->pairs[i];
        const struct adapter_linear *linear = linear_of_pair(pair, which);
        if (linear->rank != rank || pair->work < a->run.begin || pair->work >= a->run.end) continue;
        a->groups[n++] =
            (struct linear_group){is_b ? &linear->b : &linear->a, pair->row0, pair->n_rows};
    }
    return n;
}

/* a->x = the adapted rows of the run, of n inputs each. */
static void gather_adapted(const struct moe *m, const float *x, size_t stride, size_t n)
{
    const struct adapted *a = &m->adapted;
    for (size_t i = 0; i < a->n_pairs; i++) {
        const struct adapter_pair *pair = &a->pairs[i];
        if (pair->work < a->run.begin || pair->work >= a->run.end) continue;
        for (size_t r = pair->row0; r < pair->row0 + pair->n_rows; r++)
            memcpy(a->x + r * n, x + ((size_t)a->rows[r] - a->run_row0) * stride, n * sizeof *x);
    }
}

/* y += B times a->low, in the run's rows whose linear has this rank. */
static void add_adapted(const struct moe *m, int which, uint32_t rank, float *y, size_t stride)
{
    const struct adapted *a = &m->adapted;
    const size_t n_groups = make_pair_groups(m, which, rank, true);
    const size_t n = n_groups > 0 ? a->groups[0].w->n_out : 0;
    if (n == 0) return;
    op_linear(m->o.kern, &(struct linear_args){.groups = a->groups,
                                               .n_groups = n_groups,
                                               .x = a->low,
                                               .x_stride = m->o.adapters->max_expert_rank,
                                               .y = a->wide,
                                               .y_stride = n});
    for (size_t g = 0; g < n_groups; g++) {
        const struct linear_group *rows = &a->groups[g];
        for (size_t r = rows->row0; r < rows->row0 + rows->n_rows; r++)
            m->o.kern->add(y + ((size_t)a->rows[r] - a->run_row0) * stride, a->wide + r * n, n);
    }
}

static struct linear_args low_of_rank(const struct moe *m, size_t n_groups, size_t n_in)
{
    return (struct linear_args){.groups = m->adapted.groups,
                                .n_groups = n_groups,
                                .x = m->adapted.x,
                                .x_stride = n_in,
                                .y = m->adapted.low,
                                .y_stride = m->o.adapters->max_expert_rank};
}

void moe_adapt_gate_up(struct moe *m, const float *x, float *gate, float *up, size_t f)
{
    const size_t d = m->o.model->width;
    float *const y[] = {[ADAPTER_EXPERT_GATE] = gate, [ADAPTER_EXPERT_UP] = up};
    gather_adapted(m, x, d, d);
    for (int which = ADAPTER_EXPERT_GATE; which <= ADAPTER_EXPERT_UP; which++) {
        for (uint32_t rank = 0; next_expert_rank(m, which, &rank);) {
            const size_t n_groups = make_pair_groups(m, which, rank, false);
            const struct linear_args low = low_of_rank(m, n_groups, d);
            if (n_groups == 0) continue;
            op_linear(m->o.kern, &low);
            add_adapted(m, which, rank, y[which], f);
        }
    }
}

void moe_adapt_inner(struct moe *m, const float *x, size_t x_stride, size_t n_in)
{
    const struct adapted *a = &m->adapted;
    gather_adapted(m, x, x_stride, n_in);
    for (uint32_t rank = 0; next_expert_rank(m, ADAPTER_EXPERT_DOWN, &rank);) {
        const size_t n_groups = make_pair_groups(m, ADAPTER_EXPERT_DOWN, rank, false);
        struct linear_args low = low_of_rank(m, n_groups, n_in);
        if (n_groups == 0) continue;
        if (a->sums != NULL)
            low.sums = a->sums + sums_before(m, rank);
        else
            low.bad = a->bad;
        op_linear_leaf(m->o.kern, &low);
    }
}

/* a->low = the sums over the expert's ranks of those A x that have this rank. */
static void add_low_of_ranks(struct moe *m, const struct pass *p, uint32_t rank)
{
    const struct adapted *a = &m->adapted;
    const size_t r_max = m->o.adapters->max_expert_rank;
    const struct grid_sum sum = {.kern = m->o.kern,
                                 .sums = a->sums + sums_before(m, rank),
                                 .n_rows = a->n_rows,
                                 .n_out = rank,
                                 .grid_bits = p->w->grid_bits,
                                 .y = a->wide,
                                 .bad = a->bad};
    grid_sum_to_f32(&sum, m->o.comm, COMM_ETP);
    for (size_t r = 0; r < a->n_rows; r++)
        memcpy(a->low + r * r_max, a->wide + r * rank, rank * sizeof *a->low);
}

void moe_adapt_down(struct moe *m, struct pass *p)
{
    struct adapted *a = &m->adapted;
    a->run = (struct range){0, (uint32_t)m->n_work};
    a->run_row0 = 0;
    for (uint32_t rank = 0; next_expert_rank(m, ADAPTER_EXPERT_DOWN, &rank);) {
        const size_t n_groups = make_pair_groups(m, ADAPTER_EXPERT_DOWN, rank, true);
        const size_t stride = a->groups[n_groups - 1].w->n_out;
        if (a->sums != NULL) add_low_of_ranks(m, p, rank);
        add_adapted(m, ADAPTER_EXPERT_DOWN, rank, p->y, stride);
    }
    for (size_t r = 0; r < a->n_rows; r++) {
        int32_t *bad = &p->bad[a->rows[r]];
        *bad = a->bad[r] > INT32_MAX - *bad ? INT32_MAX : *bad + a->bad[r];
    }
}

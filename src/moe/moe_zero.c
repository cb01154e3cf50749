/* Zero-computation experts, which return their input (LongCat-Flash, 2025, arXiv 2509.01322,
 * section 2.1). No row is sent to them: the rank that completes a token's sum over experts
 * (moe_zero_rows) multiplies the token's row by the sum of the router's weights for these experts.
 * Order of the sums: docs/numerics.md, "MoE combine". Called by moe.c and exchange_hosts_combine.c.
 */
#include "kernels/ops.h"
#include "moe/moe_private.h"

struct range moe_zero_rows(const struct moe *m, const struct pass *p)
{
    return m->exchange->lists_all ? p->rows->own : p->listed;
}

/* Takes the choices of zero-computation experts out of a token's k choices: their ids become -1.
 * Returns the sum of the router's weights of these choices, in the order of the ids, from +0. */
static float take_choices(uint32_t n_experts, int32_t *ids, const float *weights, size_t k)
{
    float sum = 0;
    for (size_t i = 0; i < k; i++) {
        if (ids[i] < 0 || (uint32_t)ids[i] < n_experts) continue;
        sum += weights[i];
        ids[i] = -1;
    }
    return sum;
}

struct status moe_take_zero(struct moe *m, struct pass *p)
{
    const struct arch *a = m->o.model;
    const struct range rows = moe_zero_rows(m, p);
    const size_t k = a->moe.n_chosen, d = a->width;
    float *sums;
    if (a->moe.n_zero == 0) return status_ok();
    TRY(moe_grow(m, BUF_ZERO, p->n_tokens * d, sizeof *p->zero, &p->zero));
    TRY(moe_grow(m, BUF_ZERO_WEIGHTS, p->n_tokens, sizeof *sums, &sums));
    for (uint32_t t = p->listed.begin; t < p->listed.end; t++) {
        const size_t first = (t - p->listed.begin) * k;
        sums[t] = take_choices(a->moe.n_experts, p->ids + first, p->weights + first, k);
    }
    op_scale_rows(m->o.kern, p->rows->x + rows.begin * d, sums + rows.begin, range_count(rows), d,
                  p->zero + rows.begin * d);
    return status_ok();
}

void moe_add_zero(const struct moe *m, const struct pass *p)
{
    const struct range rows = moe_zero_rows(m, p);
    const size_t d = m->o.model->width;
    if (p->zero == NULL) return;
    op_add(m->o.kern, p->out + rows.begin * d, p->zero + rows.begin * d, range_count(rows) * d);
}

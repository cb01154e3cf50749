/* All experts on this rank: one tp rank, and no expert parallelism. No row travels.
 *
 *     rank 0   tokens  t0 t1 t2 ...                experts 0 .. E-1
 *              each token's row is read once for each expert that it chose:
 *              [ rows of expert 0 | rows of expert 1 | ... ]  ->  experts  ->  sum per token
 *
 * Replicas (dp) have experts of their own here. With a capacity factor they agree on its limit. */
#include "moe/moe_private.h"

static struct status exchange_local_create(struct moe *m)
{
    (void)m;
    return status_ok();
}

static void exchange_local_destroy(struct moe *m)
{
    (void)m;
}

static struct range exchange_local_routed(const struct moe *m, const struct pass *p)
{
    (void)m;
    return (struct range){0, (uint32_t)p->n_tokens};
}

static struct status exchange_local_dispatch(struct moe *m, struct pass *p)
{
    p->n_in = p->n_out;
    m->n_work = 0;
    for (uint32_t e = 0; e < m->o.model->moe.n_experts; e++) {
        const int32_t n_rows = m->per_expert[e] - moe_rows_before(m, e);
        if (n_rows > 0) m->work[m->n_work++] = (struct expert_rows){e, (size_t)n_rows};
    }
    TRY(moe_list_adapters(m, p, p->slots));
    if (moe_takes_codes(m, p)) {
        p->to_slots = p->slots;
        p->spread = moe_spread_codes;
        return status_ok();
    }
    TRY(moe_grow(m, BUF_X, p->n_in * m->o.model->width, sizeof(float), &p->x));
    moe_scatter(m, p, p->slots, p->x);
    return status_ok();
}

static struct status exchange_local_combine(struct moe *m, struct pass *p)
{
    const struct results here = {
        .y = p->y, .bad = p->bad, .y_stride = m->o.model->width, .bad_stride = 1};
    moe_combine(m, p, &here);
    return moe_add_output(m, p);
}

const struct expert_exchange exchange_local = {.name = "local",
                                               .create = exchange_local_create,
                                               .destroy = exchange_local_destroy,
                                               .routed = exchange_local_routed,
                                               .agree = moe_limit,
                                               .send = moe_sends_nothing,
                                               .dispatch = exchange_local_dispatch,
                                               .compute = moe_compute,
                                               .reply = moe_sends_nothing,
                                               .combine = exchange_local_combine};

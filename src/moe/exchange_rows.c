/* The plain exchange, for GPUs and wherever no other exchange works (choose_exchange): rows travel
 * to their experts by an all-to-all, once for each choice, and the results travel back.
 *
 *     source (a tp rank's slice of the tokens)              owner (an ep rank's experts)
 *     rank 0  [ rows for ep 0 | rows for ep 1 | ... ] --+--> rank 0  [ from 0 | from 1 | ... ]
 *     rank 1  [ rows for ep 0 | rows for ep 1 | ... ] --+--> rank 1  [ from 0 | from 1 | ... ]
 *             in the order of experts (send)                 by source (recv), moved by expert (X)
 *     rank 0  sum per token  <-- results in the send order <-- results by source (back)
 *
 * If etp ranks share each expert, all of them get its rows, and the first of them sends the
 * results back. At the end the tp ranks gather all tokens' outputs. */
#include "base/mem.h"
#include "collective/device_comm.h"
#include "kernels/ops.h"
#include "moe/moe_private.h"

#include <string.h>

static struct status exchange_rows_create(struct moe *m)
{
    struct travel *t = &m->travel;
    const size_t n = m->n_group, n_counts = n * m->n_local_max;
    TRY(word_counts_init(&t->send, n));
    TRY(word_counts_init(&t->recv, n));
    TRY(mem_alloc(&t->source_at, n, sizeof *t->source_at, "MoE counts"));
    TRY(mem_alloc(&t->rows_out, n_counts, sizeof *t->rows_out, "MoE counts"));
    return mem_alloc(&t->rows_in, n_counts, sizeof *t->rows_in, "MoE counts");
}

static void exchange_rows_destroy(struct moe *m)
{
    struct travel *t = &m->travel;
    word_counts_fini(&t->send);
    word_counts_fini(&t->recv);
    mem_free(&t->source_at);
    mem_free(&t->rows_out);
    mem_free(&t->rows_in);
}

static struct range exchange_rows_routed(const struct moe *m, const struct pass *p)
{
    (void)m;
    return p->own;
}

/* Returns how many rows of local expert e come from rank g of the group. */
static int32_t rows_of_peer(const struct moe *m, uint32_t g, uint32_t e)
{
    return m->travel.rows_in[(size_t)g * m->n_local_max + e];
}

static int32_t all_rows_from(const struct moe *m, uint32_t g)
{
    int32_t n = 0;
    for (uint32_t e = 0; e < m->n_local_max; e++) n += rows_of_peer(m, g, e);
    return n;
}

/* Tells each rank of the group how many rows this rank will send to each of that rank's experts.
 * Sets p->n_in and m->work from the numbers that the other ranks send. */
static void exchange_counts(struct moe *m, struct pass *p)
{
    const uint32_t etp = m->o.layout->etp;
    int32_t *out = m->travel.rows_out;
    memset(out, 0, (size_t)m->n_group * m->n_local_max * sizeof *out);
    for (uint32_t g = 0; g < m->n_group; g++) {
        const struct range e = layout_experts(m->o.layout, g / etp);
        for (uint32_t i = e.begin; i < e.end; i++) {
            out[g * m->n_local_max + i - e.begin] = m->per_expert[i] - moe_rows_before(m, i);
        }
    }
    comm_exchange_i32(m->o.comm, COMM_EP, out, m->travel.rows_in, m->n_local_max);
    p->n_in = 0;
    m->n_work = 0;
    for (uint32_t e = 0; e < range_count(m->experts); e++) {
        size_t n_rows = 0;
        for (uint32_t g = 0; g < m->n_group; g++) n_rows += (size_t)rows_of_peer(m, g, e);
        p->n_in += n_rows;
        if (n_rows > 0) m->work[m->n_work++] = (struct expert_rows){m->experts.begin + e, n_rows};
    }
}

/* Counts the rows to and from each rank of the group. With `back` it counts the results, which only
 * the first of an expert's etp ranks sends. */
static void exchange_rows_count_rows(struct moe *m, bool back)
{
    const uint32_t etp = m->o.layout->etp;
    const struct word_counts send = m->travel.send, recv = m->travel.recv;
    int at = 0;
    for (uint32_t g = 0; g < m->n_group; g++) {
        const struct range e = layout_experts(m->o.layout, g / etp);
        const int32_t first = moe_rows_before(m, e.begin);
        const int32_t n_out = range_count(e) == 0 ? 0 : m->per_expert[e.end - 1] - first;
        const int32_t n_in = all_rows_from(m, g);
        const bool silent_there = back && g % etp != 0;
        const bool silent_here = back && m->place.etp != 0;
        send.counts[g] = silent_there ? 0 : n_out;
        send.displs[g] = first;
        recv.counts[g] = silent_here ? 0 : n_in;
        recv.displs[g] = at;
        at += n_in;
    }
}

/* A permutation between the order in which rows arrive and the order in which experts compute them:
 * row by_source[i] of the first is row by_expert[i] of the second. */
struct run_lists {
    int32_t *by_expert, *by_source; /* [rows that arrived] */
    size_t n;
};

static struct status exchange_rows_list_runs(struct moe *m, const struct pass *p,
                                             struct run_lists *out)
{
    int32_t *const source_at = m->travel.source_at;
    *out = (struct run_lists){.n = 0};
    TRY(moe_grow(m, BUF_MOVE, 2 * p->n_in, sizeof(int32_t), &out->by_expert));
    out->by_source = out->by_expert + p->n_in;
    int32_t all = 0;
    for (uint32_t g = 0; g < m->n_group; g++) {
        source_at[g] = all;
        all += all_rows_from(m, g);
    }
    for (uint32_t e = 0; e < range_count(m->experts); e++) {
        for (uint32_t g = 0; g < m->n_group; g++) {
            for (int32_t n = rows_of_peer(m, g, e); n > 0; n--) {
                out->by_expert[out->n] = (int32_t)out->n;
                out->by_source[out->n++] = source_at[g]++;
            }
        }
    }
    return status_ok();
}

/* Sends the adapter of each row as the rows were sent. */
static struct status exchange_adapters(struct moe *m, struct pass *p, const struct run_lists *runs)
{
    const size_t n_choices = (size_t)range_count(p->listed) * m->o.model->moe.n_chosen;
    int32_t *send, *recv;
    TRY(moe_grow(m, BUF_SENT_ADAPTERS, p->n_out, sizeof *send, &send));
    TRY(moe_grow(m, BUF_CAME_ADAPTERS, p->n_in, sizeof *recv, &recv));
    TRY(moe_grow(m, BUF_ROW_ADAPTERS, p->n_in, sizeof *recv, &p->row_adapters));
    for (size_t i = 0; i < n_choices; i++)
        if (p->slots[i] >= 0)
            send[p->slots[i]] = moe_adapter_of(p, p->listed.begin + i / m->o.model->moe.n_chosen);
    const struct comm_exchange there = {.row_words = 1,
                                        .send = send,
                                        .send_counts = m->travel.send.counts,
                                        .send_displs = m->travel.send.displs,
                                        .recv = recv,
                                        .recv_counts = m->travel.recv.counts,
                                        .recv_displs = m->travel.recv.displs};
    device_exchange_rows(m->o.kern, m->o.comm, COMM_EP, &there);
    for (size_t i = 0; i < runs->n; i++)
        p->row_adapters[runs->by_expert[i]] = recv[runs->by_source[i]];
    return status_ok();
}

static struct status exchange_rows_dispatch(struct moe *m, struct pass *p)
{
    const size_t d = m->o.model->width;
    float *send, *recv;
    struct run_lists runs;
    exchange_counts(m, p);
    TRY(moe_grow(m, BUF_X, p->n_in * d, sizeof(float), &p->x));
    TRY(moe_grow_shared(m, BUF_SEND, COMM_EP, COMM_LANE_ROWS_OUT, p->n_out * d * sizeof *send,
                        &send));
    TRY(moe_grow(m, BUF_RECV, p->n_in * d, sizeof(float), &recv));
    moe_scatter(m, p, p->slots, send);
    exchange_rows_count_rows(m, false);
    const struct comm_exchange there = {.row_words = d,
                                        .send = send,
                                        .send_counts = m->travel.send.counts,
                                        .send_displs = m->travel.send.displs,
                                        .recv = recv,
                                        .recv_counts = m->travel.recv.counts,
                                        .recv_displs = m->travel.recv.displs};
    device_exchange_rows(m->o.kern, m->o.comm, COMM_EP, &there);
    TRY(exchange_rows_list_runs(m, p, &runs));
    const struct move_args rows = {.from = recv,
                                   .from_row = runs.by_source,
                                   .to_row = runs.by_expert,
                                   .n_rows = runs.n,
                                   .width = d,
                                   .to_stride = d,
                                   .to = p->x};
    op_move_rows(m->o.kern, &rows);
    return moe_is_adapted(m, p) ? exchange_adapters(m, p, &runs) : status_ok();
}

/* Sends the results of this rank's experts to the ranks that the rows came from. A counter follows
 * each row. */
static struct status send_back(struct moe *m, struct pass *p, struct results *out)
{
    const size_t d = m->o.model->width;
    int32_t *back, *result;
    struct run_lists runs;
    TRY(moe_grow_shared(m, BUF_BACK, COMM_EP, COMM_LANE_ROWS_BACK, p->n_in * (d + 1) * sizeof *back,
                        &back));
    TRY(moe_grow(m, BUF_RESULT, p->n_out * (d + 1), sizeof(int32_t), &result));
    TRY(exchange_rows_list_runs(m, p, &runs));
    const struct move_args rows = {.from = p->y,
                                   .from_row = runs.by_expert,
                                   .to_row = runs.by_source,
                                   .n_rows = runs.n,
                                   .width = d,
                                   .to_stride = d + 1,
                                   .extra = p->bad,
                                   .to = back};
    op_move_rows(m->o.kern, &rows);
    exchange_rows_count_rows(m, true);
    /* this rank sends where it received from, and receives where it sent to */
    const struct comm_exchange home = {.row_words = d + 1,
                                       .send = back,
                                       .send_counts = m->travel.recv.counts,
                                       .send_displs = m->travel.recv.displs,
                                       .recv = result,
                                       .recv_counts = m->travel.send.counts,
                                       .recv_displs = m->travel.send.displs};
    device_exchange_rows(m->o.kern, m->o.comm, COMM_EP, &home);
    *out = (struct results){
        .y = (const float *)result, .bad = result + d, .y_stride = d + 1, .bad_stride = d + 1};
    return status_ok();
}

static struct status exchange_rows_combine(struct moe *m, struct pass *p)
{
    struct results results;
    TRY(send_back(m, p, &results));
    moe_combine(m, p, &results);
    moe_gather_outputs(m, p);
    return moe_add_output(m, p);
}

const struct expert_exchange exchange_of_rows = {.name = "of rows",
                                                 .create = exchange_rows_create,
                                                 .destroy = exchange_rows_destroy,
                                                 .routed = exchange_rows_routed,
                                                 .agree = moe_limit,
                                                 .send = moe_sends_nothing,
                                                 .dispatch = exchange_rows_dispatch,
                                                 .compute = moe_compute,
                                                 .reply = moe_sends_nothing,
                                                 .combine = exchange_rows_combine};

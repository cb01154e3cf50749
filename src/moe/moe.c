/* The MoE block's way of the data. */
#include "base/mem.h"
#include "kernels/device.h"
#include "kernels/device_comm.h"
#include "kernels/ops.h"
#include "moe/moe_private.h"

#include <assert.h>
#include <string.h>

enum { WORTH_MAPPING = 4 << 20 /* bytes from which a buffer has huge pages */ };

static void drop(struct moe *m, struct grown *g)
{
    if (g->on_device) {
        mem_ops_free(m->o.kern, &g->data);
    } else if (g->is_mapped) {
        mem_unmap(&g->data, g->n_bytes);
    } else {
        mem_free(&g->data);
    }
    g->n_bytes = 0;
}

/* What the host reads and writes; all else stands where the ops work. */
static bool is_list(enum buffer which)
{
    return which == BUF_LIST_IDS || which == BUF_SLOT || which >= BUF_MOVE;
}

struct status moe_grow(struct moe *m, enum buffer which, size_t n, size_t elem_bytes, void *out)
{
    struct grown *g = &m->buffers[which];
    size_t n_bytes;
    if (!mem_mul(n, elem_bytes, &n_bytes))
        return status_make(STATUS_MEMORY, "MoE buffer: overflow");
    if (n_bytes > g->n_bytes || g->data == NULL) { /* also of nothing: never NULL */
        /* some air, so that slowly growing steps do not allocate each time */
        const size_t want = n_bytes + n_bytes / 4;
        drop(m, g);
        g->on_device = m->o.kern->device != NULL && !is_list(which);
        g->is_mapped = !g->on_device && want >= WORTH_MAPPING;
        if (g->on_device) {
            TRY(mem_ops_alloc(m->o.kern, &g->data, want, 1, "MoE buffer"));
        } else if (g->is_mapped) {
            TRY(mem_map(&g->data, want, "MoE buffer"));
        } else {
            TRY(mem_alloc(&g->data, want, 1, "MoE buffer"));
        }
        g->n_bytes = want;
    }
    memcpy(out, &g->data, sizeof g->data);
    return status_ok();
}

struct status moe_grow_shared(struct moe *m, enum buffer which, enum comm_axis axis,
                              enum comm_lane lane, size_t n_bytes, void *out)
{
    void *shared = m->o.kern->device == NULL ? comm_lane(m->o.comm, axis, lane, n_bytes) : NULL;
    if (shared == NULL) return moe_grow(m, which, n_bytes, 1, out);
    memcpy(out, &shared, sizeof shared);
    return status_ok();
}

static void find_homes(struct moe *m)
{
    const struct layout *l = m->o.layout;
    for (uint32_t ep = 0; ep < l->ep; ep++) {
        const struct range held = layout_experts(l, ep);
        for (uint32_t e = held.begin; e < held.end; e++) m->homes[e] = ep;
    }
}

struct status moe_create(const struct moe_options *o, struct moe **out)
{
    *out = NULL;
    struct moe *m = NULL;
    TRY(mem_alloc(&m, 1, sizeof *m, "MoE block"));
    m->o = *o;
    m->place = layout_place_of(o->layout, o->rank);
    m->experts = layout_experts(o->layout, m->place.ep);
    m->n_group = (uint32_t)comm_size(o->comm, COMM_EP);
    m->n_local_max = (o->n_experts + o->layout->ep - 1) / o->layout->ep;
    const size_t n_stage = (size_t)o->layout->dp * o->layout->tp;
    const size_t per_group = (size_t)m->n_group * m->n_local_max;
    struct status st;
    TRY_GOTO(st,
             mem_alloc(&m->ints, 4 * m->n_group + 2 * (o->layout->tp + n_stage), sizeof(int),
                       "MoE counts"),
             fail);
    TRY_GOTO(st,
             mem_alloc(&m->count_out, 2 * per_group + o->n_experts + n_stage, sizeof(int32_t),
                       "MoE counts"),
             fail);
    TRY_GOTO(st, mem_alloc(&m->source_at, m->n_group, sizeof *m->source_at, "MoE counts"), fail);
    const size_t n_pieces_max = (size_t)o->n_experts + o->layout->ep;
    TRY_GOTO(st, mem_alloc(&m->groups, 2 * n_pieces_max, sizeof *m->groups, "MoE groups"), fail);
    TRY_GOTO(st, mem_alloc(&m->work, n_pieces_max, sizeof *m->work, "MoE groups"), fail);
    TRY_GOTO(st, mem_alloc(&m->pieces, n_pieces_max, sizeof *m->pieces, "MoE groups"), fail);
    TRY_GOTO(
        st,
        mem_alloc(&m->piece_rows, n_pieces_max + o->n_experts, sizeof *m->piece_rows, "MoE groups"),
        fail);
    TRY_GOTO(st, mem_alloc(&m->part_load, o->layout->ep, sizeof *m->part_load, "MoE groups"), fail);
    TRY_GOTO(st, mem_alloc(&m->outputs, o->layout->etp, sizeof *m->outputs, "MoE outputs"), fail);
    TRY_GOTO(st, mem_alloc(&m->homes, o->n_experts, sizeof *m->homes, "MoE experts"), fail);
    for (uint32_t i = 0; i < o->layout->etp; i++)
        m->outputs[i] = layout_expert_outputs(o->layout, i);
    find_homes(m);
    m->up_groups = m->groups + n_pieces_max;
    m->first_piece = m->piece_rows + n_pieces_max;
    m->send_counts = m->ints;
    m->send_displs = m->send_counts + m->n_group;
    m->recv_counts = m->send_displs + m->n_group;
    m->recv_displs = m->recv_counts + m->n_group;
    m->tp_counts = m->recv_displs + m->n_group;
    m->tp_displs = m->tp_counts + o->layout->tp;
    m->stage_counts = m->tp_displs + o->layout->tp;
    m->stage_displs = m->stage_counts + n_stage;
    m->count_in = m->count_out + per_group;
    m->per_expert = m->count_in + per_group;
    m->stage_sizes = m->per_expert + o->n_experts;
    *out = m;
    return status_ok();
fail:
    moe_destroy(&m);
    return st;
}

void moe_destroy(struct moe **m)
{
    if (*m == NULL) return;
    for (int i = 0; i < BUF_COUNT; i++) drop(*m, &(*m)->buffers[i]);
    mem_free(&(*m)->groups);
    mem_free(&(*m)->work);
    mem_free(&(*m)->pieces);
    mem_free(&(*m)->piece_rows);
    mem_free(&(*m)->part_load);
    mem_free(&(*m)->source_at);
    mem_free(&(*m)->outputs);
    mem_free(&(*m)->homes);
    mem_free(&(*m)->count_out);
    mem_free(&(*m)->ints);
    mem_free(m);
}

static struct range slice_of(size_t n_tokens, uint32_t tp, uint32_t i)
{
    return layout_split((uint32_t)n_tokens, 1, tp, i);
}

/* Words of each tp rank's token slice, `per_token` words a token. */
static void slice_words(const struct moe *m, size_t n_tokens, size_t per_token, int *counts,
                        int *displs)
{
    for (uint32_t i = 0; i < m->o.layout->tp; i++) {
        const struct range r = slice_of(n_tokens, m->o.layout->tp, i);
        counts[i] = (int)(range_count(r) * per_token);
        displs[i] = (int)(r.begin * per_token);
    }
}

struct status moe_route(struct moe *m, struct pass *p, float **logits)
{
    const size_t n = range_count(p->slice), n_choices = n * m->o.n_chosen;
    TRY(moe_grow(m, BUF_LOGITS, n * m->o.n_experts, sizeof(float), logits));
    int32_t *ids;
    TRY(moe_grow(m, BUF_IDS, n_choices, sizeof(int32_t), &ids));
    TRY(moe_grow(m, BUF_LIST_IDS, n_choices, sizeof(int32_t), &p->ids));
    TRY(moe_grow(m, BUF_WEIGHTS, n_choices, sizeof(float), &p->weights));
    TRY(moe_grow(m, BUF_SLOT, n_choices, sizeof(int32_t), &p->slots));
    const struct linear_group group = {.w = p->w->router, .row0 = 0, .n_rows = n};
    const struct linear_args linear = {.groups = &group,
                                       .n_groups = 1,
                                       .x = p->x + (size_t)p->slice.begin * m->o.width,
                                       .x_stride = m->o.width,
                                       .y = *logits,
                                       .y_stride = m->o.n_experts,
                                       .exact = true};
    op_linear(m->o.kern, &linear);
    if (p->w->router_bias != NULL)
        op_add_bias(m->o.kern, *logits, p->w->router_bias, n, m->o.n_experts);
    const struct router_args router = {.logits = *logits,
                                       .ids = ids,
                                       .weights = p->weights,
                                       .n_experts = m->o.n_experts,
                                       .n_chosen = m->o.n_chosen,
                                       .rule = m->o.router,
                                       .bias = p->w->bias};
    op_router(m->o.kern, &router, n);
    mem_ops_get(m->o.kern, p->ids, ids, n_choices * sizeof *ids);
    return device_status(m->o.kern->device);
}

/* Gathers [n, per_token] words of each source of the stage into [all tokens, per_token]. */
static void gather_stage(struct moe *m, const int32_t *n_tokens_of, const void *mine,
                         size_t per_token, void *all)
{
    int at = 0;
    const int n_ranks = comm_size(m->o.comm, COMM_STAGE);
    for (int i = 0; i < n_ranks; i++) {
        m->stage_counts[i] = (int)((size_t)n_tokens_of[i] * per_token);
        m->stage_displs[i] = at;
        at += m->stage_counts[i];
    }
    const int me = comm_rank(m->o.comm, COMM_STAGE);
    memcpy((char *)all + (size_t)m->stage_displs[me] * 4, mine, (size_t)m->stage_counts[me] * 4);
    comm_gather_words(m->o.comm, COMM_STAGE, all, m->stage_counts, m->stage_displs);
}

/* An array of n bytes for the host to read: the array itself, or, of a device, a copy. */
static struct status to_host(struct moe *m, enum buffer which, const void *array, size_t n_bytes,
                             const void **out)
{
    void *copy;
    *out = array;
    if (m->o.kern->device == NULL) return status_ok();
    TRY(moe_grow(m, which, n_bytes, 1, &copy));
    mem_ops_get(m->o.kern, copy, array, n_bytes);
    *out = copy;
    return device_status(m->o.kern->device);
}

/* This rank's part of what was kept, and how many choices each of its tokens lost. */
static struct status take_kept(struct moe *m, struct pass *p, const struct capacity_work *work,
                               size_t first)
{
    const size_t n = range_count(p->slice), k = m->o.n_chosen;
    int32_t *marks;
    TRY(moe_grow(m, BUF_MARK_LIST, 2 * n, sizeof *marks, &marks));
    memcpy(p->ids, work->kept_ids + first * k, n * k * sizeof *p->ids);
    mem_ops_put(m->o.kern, p->weights, work->kept_weights + first * k, n * k * sizeof *p->weights);
    for (size_t t = 0; t < n; t++) {
        marks[2 * t] = 0;
        marks[2 * t + 1] = work->n_dropped[first + t];
    }
    mem_ops_put(m->o.kern, p->marks + 2 * (size_t)p->slice.begin, marks, 2 * n * sizeof *marks);
    return status_ok();
}

/* Applies the capacity over the whole microbatch; all ranks of the stage compute the same. */
static struct status limit(struct moe *m, struct pass *p, const float *logits, int32_t *counts)
{
    const int n_ranks = comm_size(m->o.comm, COMM_STAGE);
    const int32_t n = (int32_t)range_count(p->slice);
    comm_gather_bytes(m->o.comm, COMM_STAGE, &n, sizeof n, counts);
    size_t n_all = 0, first = 0;
    for (int i = 0; i < n_ranks; i++) {
        if (i == comm_rank(m->o.comm, COMM_STAGE)) first = n_all;
        n_all += (size_t)counts[i];
    }
    const size_t k = m->o.n_chosen;
    float *all_logits, *all_weights;
    int32_t *all_ids;
    struct capacity_work work = {
        .n_tokens = n_all, .n_experts = m->o.n_experts, .n_chosen = m->o.n_chosen};
    TRY(moe_grow(m, BUF_ALL_LOGITS, n_all * m->o.n_experts, sizeof(float), &all_logits));
    TRY(moe_grow(m, BUF_ALL_IDS, n_all * k, sizeof(int32_t), &all_ids));
    TRY(moe_grow(m, BUF_ALL_WEIGHTS, n_all * k, sizeof(float), &all_weights));
    TRY(moe_grow(m, BUF_KEPT_IDS, n_all * k, sizeof(int32_t), &work.kept_ids));
    TRY(moe_grow(m, BUF_KEPT_WEIGHTS, n_all * k, sizeof(float), &work.kept_weights));
    TRY(moe_grow(m, BUF_DROPPED, n_all, sizeof(int32_t), &work.n_dropped));
    TRY(moe_grow(m, BUF_LOAD, m->o.n_experts, sizeof(uint32_t), &work.load));
    const void *own;
    TRY(to_host(m, BUF_HOST_LOGITS, logits, (size_t)n * m->o.n_experts * sizeof *logits, &own));
    gather_stage(m, counts, own, m->o.n_experts, all_logits);
    gather_stage(m, counts, p->ids, k, all_ids);
    TRY(to_host(m, BUF_HOST_WEIGHTS, p->weights, (size_t)n * k * sizeof *p->weights, &own));
    gather_stage(m, counts, own, k, all_weights);
    work.logits = all_logits;
    work.ids = all_ids;
    work.weights = all_weights;
    const uint32_t capacity =
        capacity_of(m->o.capacity_factor, n_all, m->o.n_chosen, m->o.n_experts);
    capacity_apply(m->o.policy, capacity, &work);
    return take_kept(m, p, &work, first);
}

void moe_assign_slots(struct moe *m, struct pass *p)
{
    const size_t n_choices = (size_t)range_count(p->slice) * m->o.n_chosen;
    memset(m->per_expert, 0, m->o.n_experts * sizeof *m->per_expert);
    for (size_t i = 0; i < n_choices; i++) {
        if (p->ids[i] >= 0) m->per_expert[p->ids[i]]++;
    }
    int32_t at = 0;
    for (uint32_t e = 0; e < m->o.n_experts; e++) {
        const int32_t n = m->per_expert[e];
        m->per_expert[e] = at;
        at += n;
    }
    for (size_t i = 0; i < n_choices; i++) {
        p->slots[i] = p->ids[i] >= 0 ? m->per_expert[p->ids[i]]++ : -1;
    }
    /* per_expert[e] now stands at the end of e's rows, which is the start of e + 1's */
    p->n_out = (size_t)at;
}

static int32_t rows_before(const struct moe *m, uint32_t expert)
{
    return expert == 0 ? 0 : m->per_expert[expert - 1];
}

void moe_count_load(const struct pass *p, size_t first, size_t n_choices, uint64_t *load)
{
    for (size_t i = first; i < first + n_choices; i++)
        if (p->ids[i] >= 0) load[p->ids[i]]++;
}

void moe_take_places(const struct moe *m, struct pass *p)
{
    const size_t n_choices = (size_t)range_count(p->slice) * m->o.n_chosen;
    for (size_t i = 0; p->w->place != NULL && i < n_choices; i++)
        if (p->ids[i] >= 0) p->ids[i] = (int32_t)p->w->place[p->ids[i]];
}

/* Tells each rank of the group how many rows of each of its experts will come from here. */
static void exchange_counts(struct moe *m, struct pass *p)
{
    const uint32_t etp = m->o.layout->etp;
    memset(m->count_out, 0, (size_t)m->n_group * m->n_local_max * sizeof *m->count_out);
    for (uint32_t g = 0; g < m->n_group; g++) {
        const struct range e = layout_experts(m->o.layout, g / etp);
        for (uint32_t i = e.begin; i < e.end; i++) {
            m->count_out[g * m->n_local_max + i - e.begin] = m->per_expert[i] - rows_before(m, i);
        }
    }
    comm_exchange_i32(m->o.comm, COMM_EP, m->count_out, m->count_in, m->n_local_max);
    p->n_in = 0;
    m->n_work = 0;
    for (uint32_t e = 0; e < range_count(m->experts); e++) {
        size_t n_rows = 0;
        for (uint32_t g = 0; g < m->n_group; g++)
            n_rows += (size_t)m->count_in[(size_t)g * m->n_local_max + e];
        p->n_in += n_rows;
        if (n_rows > 0) m->work[m->n_work++] = (struct expert_rows){m->experts.begin + e, n_rows};
    }
}

/* Counts the rows to and from each rank of the group. `back`: the way of the results, which only
 * the first of an expert's etp ranks sends. */
static void count_rows(struct moe *m, bool back)
{
    const uint32_t etp = m->o.layout->etp;
    int at = 0;
    for (uint32_t g = 0; g < m->n_group; g++) {
        const struct range e = layout_experts(m->o.layout, g / etp);
        const int32_t first = rows_before(m, e.begin);
        const int32_t n_out = range_count(e) == 0 ? 0 : m->per_expert[e.end - 1] - first;
        int32_t n_in = 0;
        for (uint32_t i = 0; i < m->n_local_max; i++) n_in += m->count_in[g * m->n_local_max + i];
        const bool silent_there = back && g % etp != 0;
        const bool silent_here = back && m->place.etp != 0;
        m->send_counts[g] = silent_there ? 0 : n_out;
        m->send_displs[g] = first;
        m->recv_counts[g] = silent_here ? 0 : n_in;
        m->recv_displs[g] = at;
        at += n_in;
    }
}

/* The permutation between the order of arrival and the order of computation: row by_source[i] of
 * the one is row by_expert[i] of the other. */
struct run_lists {
    int32_t *by_expert, *by_source; /* [rows in] */
    size_t n;
};

static struct status list_runs(struct moe *m, const struct pass *p, struct run_lists *out)
{
    *out = (struct run_lists){.n = 0};
    TRY(moe_grow(m, BUF_MOVE, 2 * p->n_in, sizeof(int32_t), &out->by_expert));
    out->by_source = out->by_expert + p->n_in;
    int32_t all = 0;
    for (uint32_t g = 0; g < m->n_group; g++) {
        m->source_at[g] = all;
        for (uint32_t i = 0; i < m->n_local_max; i++)
            all += m->count_in[(size_t)g * m->n_local_max + i];
    }
    for (uint32_t e = 0; e < range_count(m->experts); e++) {
        for (uint32_t g = 0; g < m->n_group; g++) {
            for (int32_t n = m->count_in[(size_t)g * m->n_local_max + e]; n > 0; n--) {
                out->by_expert[out->n] = (int32_t)out->n;
                out->by_source[out->n++] = m->source_at[g]++;
            }
        }
    }
    return status_ok();
}

/* x of this rank's tokens, one row for each choice, in the order of experts: [n_out, D]. */
static void scatter(const struct moe *m, const struct pass *p, float *send)
{
    const struct scatter_args rows = {.x = p->x + (size_t)p->slice.begin * m->o.width,
                                      .slots = p->slots,
                                      .n_slots = (size_t)range_count(p->slice) * m->o.n_chosen,
                                      .per_row = m->o.n_chosen,
                                      .width = m->o.width,
                                      .to = send};
    op_scatter_rows(m->o.kern, &rows);
}

/* The rows that this rank's experts compute, by expert, then source: [n_in, D]. A rank that is the
 * only source has them in that order at once. */
static struct status dispatch(struct moe *m, struct pass *p, float **by_expert)
{
    const size_t d = m->o.width;
    float *send, *recv;
    *by_expert = NULL;
    if (m->n_group == 1 && range_count(p->slice) == p->n_tokens && moe_takes_codes(m, p)) {
        p->to_slots = p->slots;
        return status_ok();
    }
    TRY(moe_grow(m, BUF_X, p->n_in * d, sizeof(float), by_expert));
    if (m->n_group == 1) {
        scatter(m, p, *by_expert);
        return status_ok();
    }
    TRY(moe_grow_shared(m, BUF_SEND, COMM_EP, COMM_LANE_ROWS_OUT, p->n_out * d * sizeof *send,
                        &send));
    TRY(moe_grow(m, BUF_RECV, p->n_in * d, sizeof(float), &recv));
    scatter(m, p, send);
    count_rows(m, false);
    const struct comm_exchange there = {.row_words = d,
                                        .send = send,
                                        .send_counts = m->send_counts,
                                        .send_displs = m->send_displs,
                                        .recv = recv,
                                        .recv_counts = m->recv_counts,
                                        .recv_displs = m->recv_displs};
    device_exchange_rows(m->o.kern, m->o.comm, COMM_EP, &there);
    struct run_lists runs;
    TRY(list_runs(m, p, &runs));
    const struct move_args rows = {.from = recv,
                                   .from_row = runs.by_source,
                                   .to_row = runs.by_expert,
                                   .n_rows = runs.n,
                                   .width = d,
                                   .to_stride = d,
                                   .to = *by_expert};
    op_move_rows(m->o.kern, &rows);
    return status_ok();
}

/* The experts' rows at their source, in the order of the slots. */
struct results {
    const float *y;     /* [n_out] rows of D, y_stride apart */
    const int32_t *bad; /* [n_out] counters, bad_stride apart */
    size_t y_stride, bad_stride;
};

static struct status send_back(struct moe *m, struct pass *p, const float *y, const int32_t *bad,
                               struct results *out)
{
    const size_t d = m->o.width;
    int32_t *back, *result;
    if (m->n_group == 1) {
        *out = (struct results){.y = y, .bad = bad, .y_stride = d, .bad_stride = 1};
        return status_ok();
    }
    TRY(moe_grow_shared(m, BUF_BACK, COMM_EP, COMM_LANE_ROWS_BACK, p->n_in * (d + 1) * sizeof *back,
                        &back));
    TRY(moe_grow(m, BUF_RESULT, p->n_out * (d + 1), sizeof(int32_t), &result));
    struct run_lists runs;
    TRY(list_runs(m, p, &runs));
    const struct move_args rows = {.from = y,
                                   .from_row = runs.by_expert,
                                   .to_row = runs.by_source,
                                   .n_rows = runs.n,
                                   .width = d,
                                   .to_stride = d + 1,
                                   .extra = bad,
                                   .to = back};
    op_move_rows(m->o.kern, &rows);
    count_rows(m, true);
    /* the way back: what was received is sent, what was sent is received */
    const struct comm_exchange home = {.row_words = d + 1,
                                       .send = back,
                                       .send_counts = m->recv_counts,
                                       .send_displs = m->recv_displs,
                                       .recv = result,
                                       .recv_counts = m->send_counts,
                                       .recv_displs = m->send_displs};
    device_exchange_rows(m->o.kern, m->o.comm, COMM_EP, &home);
    *out = (struct results){
        .y = (const float *)result, .bad = result + d, .y_stride = d + 1, .bad_stride = d + 1};
    return status_ok();
}

/* out[t] = sum over t's experts, ascending ids, of weight * result. */
static void combine(struct moe *m, struct pass *p, const struct results *r)
{
    const struct combine_args rows = {.y = r->y,
                                      .y_stride = r->y_stride,
                                      .width = m->o.width,
                                      .slots = p->slots,
                                      .weights = p->weights,
                                      .n_rows = range_count(p->slice),
                                      .n_chosen = m->o.n_chosen,
                                      .out = p->out + (size_t)p->slice.begin * m->o.width,
                                      .bad = r->bad,
                                      .bad_stride = r->bad_stride,
                                      .marks = p->marks + 2 * (size_t)p->slice.begin};
    op_combine_rows(m->o.kern, &rows);
}

/* Every tp rank gets all tokens' outputs and marks. */
static void share(struct moe *m, struct pass *p)
{
    slice_words(m, p->n_tokens, m->o.width, m->tp_counts, m->tp_displs);
    device_gather_words(m->o.kern, m->o.comm, COMM_TP, p->out, m->tp_counts, m->tp_displs);
    slice_words(m, p->n_tokens, 2, m->tp_counts, m->tp_displs);
    device_gather_words(m->o.kern, m->o.comm, COMM_TP, p->marks, m->tp_counts, m->tp_displs);
}

static struct status prepare(struct moe *m, struct pass *p)
{
    TRY(moe_grow(m, BUF_OUT, p->n_tokens * m->o.width, sizeof(float), &p->out));
    TRY(moe_grow(m, BUF_MARKS, p->n_tokens * 2, sizeof(int32_t), &p->marks));
    mem_ops_fill(m->o.kern, p->marks, 0, p->n_tokens * 2 * sizeof *p->marks);
    p->slice = slice_of(p->n_tokens, m->o.layout->tp, m->place.tp);
    return status_ok();
}

struct status moe_forward(struct moe *m, const struct moe_weights *w, const struct moe_rows *rows)
{
    const size_t n = rows->n_tokens;
    struct pass p = {.w = w, .x = rows->x, .in = rows->in, .n_tokens = n};
    float *logits, *by_expert, *y;
    int32_t *row_bad;
    struct results results;
    if (moe_takes_slices(m)) return moe_forward_together(m, w, rows);
    TRY(prepare(m, &p));
    TRY(moe_route(m, &p, &logits));
    if (m->o.policy != CAPACITY_DROPLESS) TRY(limit(m, &p, logits, m->stage_sizes));
    moe_count_load(&p, 0, (size_t)range_count(p.slice) * m->o.n_chosen, rows->load);
    moe_take_places(m, &p);
    moe_assign_slots(m, &p);
    exchange_counts(m, &p);
    TRY(dispatch(m, &p, &by_expert));
    TRY(moe_run_experts(m, &p, by_expert, &y, &row_bad));
    TRY(send_back(m, &p, y, row_bad, &results));
    combine(m, &p, &results);
    share(m, &p);
    if (rows->shared != NULL) op_add(m->o.kern, p.out, rows->shared, n * m->o.width);
    const float scale = m->o.residual_scale != 0.0f ? m->o.residual_scale : 1.0f;
    op_axpy(m->o.kern, scale, p.out, n * m->o.width, rows->h);
    op_take_marks(m->o.kern, p.marks, n, rows->bad, rows->dropped);
    return device_status(m->o.kern->device);
}

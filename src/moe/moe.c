/* The MoE block of a layer, from the router to the residual stream. moe_create chooses the exchange
 * (exchange_*.c), which brings rows to their experts and results back. */
#include "base/log.h"
#include "base/mem.h"
#include "collective/device_comm.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "moe/moe_private.h"

#include <string.h>

enum { WORTH_MAPPING = 4 << 20 /* host buffers of at least this many bytes ask for huge pages */ };

static void moe_drop(struct moe *m, struct grown *g)
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

/* True for a buffer that the host reads and writes. The other buffers are in the device's memory,
 * if there is a device. */
static bool is_list(enum buffer which)
{
    return which == BUF_LIST_IDS || which == BUF_SLOT || which >= BUF_MOVE;
}

/* True for a buffer that must keep its content until moe_finish: each lane has one of its own. */
static bool is_kept(enum buffer which)
{
    return which == BUF_OUT || which == BUF_MARKS || which == BUF_ROW_OF ||
           which == BUF_HOST_SLOTS || which == BUF_ROW_WEIGHTS || which == BUF_ZERO;
}

struct status moe_grow(struct moe *m, enum buffer which, size_t n, size_t elem_bytes, void *out)
{
    struct grown *g = &m->buffers[is_kept(which) ? m->lane : 0][which];
    size_t n_bytes;
    if (!mem_mul(n, elem_bytes, &n_bytes))
        return status_make(STATUS_MEMORY, "MoE buffer: overflow");
    if (n_bytes > g->n_bytes || g->data == NULL) { /* a buffer for n = 0 is allocated too, so
                                                      that `out` is never NULL */
        const size_t want = exchange_grown_bytes(n_bytes);
        moe_drop(m, g);
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

struct status word_counts_init(struct word_counts *w, size_t n)
{
    TRY(mem_alloc(&w->counts, n, sizeof *w->counts, "MoE counts"));
    return mem_alloc(&w->displs, n, sizeof *w->displs, "MoE counts");
}

void word_counts_fini(struct word_counts *w)
{
    mem_free(&w->counts);
    mem_free(&w->displs);
}

static const struct expert_exchange *choose_exchange(const struct moe *m)
{
    if (m->n_group == 1) return &exchange_local;
    if (exchange_may_stay_in_host(m)) return &exchange_in_host;
    return exchange_may_go_by_host(m) ? &exchange_between_hosts : &exchange_of_rows;
}

static struct status make_lists(struct moe *m)
{
    const size_t n_work = m->n_work_max;
    TRY(mem_alloc(&m->per_expert, m->n_places, sizeof *m->per_expert, "MoE counts"));
    TRY(mem_alloc(&m->work, n_work, sizeof *m->work, "MoE groups"));
    TRY(mem_alloc(&m->needs, n_work, sizeof *m->needs, "MoE groups"));
    TRY(mem_alloc(&m->groups, n_work, sizeof *m->groups, "MoE groups"));
    TRY(mem_alloc(&m->up_groups, n_work, sizeof *m->up_groups, "MoE groups"));
    TRY(word_counts_init(&m->tp, m->o.layout->tp));
    TRY(moe_limit_create(m));
    TRY(moe_copies_create(m));
    return m->exchange->create(m);
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
    m->n_places = o->model->moe.n_experts + o->layout->n_expert_copies;
    m->n_local_max = (m->n_places + o->layout->ep - 1) / o->layout->ep;
    m->n_work_max = (size_t)m->n_places + o->layout->ep;
    struct status st = status_ok();
    m->by_host = &m->by_hosts[0];
    for (int i = 0; o->kern->device == NULL && i < MOE_LANES && !status_failed(&st); i++)
        st = comm_mail_open(o->comm, COMM_EP, i, &m->by_hosts[i].mail);
    m->exchange = choose_exchange(m);
    log_line(LOG_DEBUG, "experts' rows are exchanged: %s", m->exchange->name);
    moe_choose_sums(m);
    if (!status_failed(&st)) st = make_lists(m);
    if (status_failed(&st)) moe_destroy(&m);
    *out = m;
    return st;
}

void moe_destroy(struct moe **m)
{
    if (*m == NULL) return;
    (*m)->exchange->destroy(*m);
    for (int lane = 0; lane < MOE_LANES; lane++) {
        for (int i = 0; i < BUF_COUNT; i++) moe_drop(*m, &(*m)->buffers[lane][i]);
        comm_mail_close(&(*m)->by_hosts[lane].mail);
    }
    mem_free(&(*m)->row_counts.of_call);
    moe_copies_destroy(*m);
    moe_limit_destroy(*m);
    word_counts_fini(&(*m)->tp);
    mem_free(&(*m)->up_groups);
    mem_free(&(*m)->groups);
    mem_free(&(*m)->needs);
    mem_free(&(*m)->work);
    mem_free(&(*m)->per_expert);
    mem_free(m);
}

const char *moe_exchange_name(const struct moe *m)
{
    return m->exchange->name;
}

struct moe_traffic moe_traffic_of(const struct moe *m)
{
    return m->traffic;
}

uint64_t moe_memory_bytes(const struct moe *m)
{
    uint64_t n = 0;
    for (int lane = 0; lane < MOE_LANES; lane++) {
        const struct comm_mail *mail = m->by_hosts[lane].mail;
        if (mail != NULL) n += comm_mail_bytes(mail);
        for (int i = 0; i < BUF_COUNT; i++) n += m->buffers[lane][i].n_bytes;
    }
    return n;
}

bool moe_takes_slices(const struct moe *m)
{
    return m->exchange->takes_slices;
}

void moe_count_slices(struct moe *m, size_t n_tokens, size_t words_per_token)
{
    for (uint32_t i = 0; i < m->o.layout->tp; i++) {
        const struct range r = layout_split((uint32_t)n_tokens, 1, m->o.layout->tp, i);
        m->tp.counts[i] = (int)(range_count(r) * words_per_token);
        m->tp.displs[i] = (int)(r.begin * words_per_token);
    }
}

/* Sets *out to the experts that the layer's table gives to the listed tokens [n, K]; NULL: it has
 * no table. */
static struct status look_up(struct moe *m, const struct pass *p, const int32_t **out)
{
    const size_t k = m->o.model->moe.n_chosen, n = range_count(p->listed);
    int32_t *given;
    *out = NULL;
    if (p->w->table == NULL) return status_ok();
    TRY(moe_grow(m, BUF_GIVEN, n * k, sizeof *given, &given));
    for (size_t i = 0; i < n; i++) {
        const float *experts = p->w->table + (size_t)p->rows->tokens[p->listed.begin + i] * k;
        for (size_t j = 0; j < k; j++) given[i * k + j] = (int32_t)experts[j];
    }
    *out = given;
    return status_ok();
}

/* Runs the router over the tokens of p->listed: sets p->ids, p->weights and *logits, and makes room
 * for p->slots. */
static struct status route(struct moe *m, struct pass *p, float **logits)
{
    const size_t n = range_count(p->listed), n_choices = n * m->o.model->moe.n_chosen;
    const uint32_t n_routed = arch_n_routed(m->o.model);
    TRY(moe_grow(m, BUF_LOGITS, n * n_routed, sizeof(float), logits));
    int32_t *ids;
    TRY(moe_grow(m, BUF_IDS, n_choices, sizeof(int32_t), &ids));
    TRY(moe_grow(m, BUF_LIST_IDS, n_choices, sizeof(int32_t), &p->ids));
    TRY(moe_grow(m, BUF_WEIGHTS, n_choices, sizeof(float), &p->weights));
    TRY(moe_grow(m, BUF_SLOT, n_choices, sizeof(int32_t), &p->slots));
    const float *x = p->rows->router_x != NULL ? p->rows->router_x : p->rows->x;
    const struct linear_group group = {.w = &p->w->router, .row0 = 0, .n_rows = n};
    const struct linear_args linear = {.groups = &group,
                                       .n_groups = 1,
                                       .x = x + (size_t)p->listed.begin * m->o.model->width,
                                       .x_stride = m->o.model->width,
                                       .y = *logits,
                                       .y_stride = n_routed,
                                       .exact = true};
    op_linear(m->o.kern, &linear);
    if (p->w->router_bias != NULL) op_add_bias(m->o.kern, *logits, p->w->router_bias, n, n_routed);
    const int32_t *given;
    TRY(look_up(m, p, &given));
    const struct router_args router = {.logits = *logits,
                                       .given = given,
                                       .ids = ids,
                                       .weights = p->weights,
                                       .n_experts = n_routed,
                                       .n_chosen = m->o.model->moe.n_chosen,
                                       .rule = m->o.model->moe.router,
                                       .bias = p->w->select_bias};
    op_router(m->o.kern, &router, n);
    mem_ops_get(m->o.kern, p->ids, ids, n_choices * sizeof *ids);
    for (size_t i = 0; p->w->scale != NULL && i < n_choices; i++)
        p->weights[i] *= p->w->scale[p->ids[i]];
    return device_status(m->o.kern->device);
}

/* Counts how often this rank's own tokens chose each expert. */
static void count_load(const struct moe *m, const struct pass *p)
{
    const size_t k = m->o.model->moe.n_chosen, first = (p->own.begin - p->listed.begin) * k;
    for (size_t i = first; i < first + range_count(p->own) * k; i++)
        if (p->ids[i] >= 0) p->rows->load[p->ids[i]]++;
}

/* Sets p->slots to the number of each choice when choices are sorted by place, then by token.
 * m->per_expert[e] = the number of rows of places 0 to e. */
static void assign_slots(struct moe *m, struct pass *p)
{
    const size_t n_choices = (size_t)range_count(p->listed) * m->o.model->moe.n_chosen;
    memset(m->per_expert, 0, m->n_places * sizeof *m->per_expert);
    for (size_t i = 0; i < n_choices; i++) {
        if (p->ids[i] >= 0) m->per_expert[p->ids[i]]++;
    }
    int32_t at = 0;
    for (uint32_t e = 0; e < m->n_places; e++) {
        const int32_t n = m->per_expert[e];
        m->per_expert[e] = at;
        at += n;
    }
    for (size_t i = 0; i < n_choices; i++) {
        p->slots[i] = p->ids[i] >= 0 ? m->per_expert[p->ids[i]]++ : -1;
    }
    /* per_expert[e] is now the end of place e's rows, which is the start of those of e + 1 */
    p->n_out = (size_t)at;
}

int32_t moe_rows_before(const struct moe *m, uint32_t expert)
{
    return expert == 0 ? 0 : m->per_expert[expert - 1];
}

void moe_scatter(const struct moe *m, const struct pass *p, const int32_t *slots, float *to)
{
    const struct scatter_args rows = {.x = p->rows->x + (size_t)p->listed.begin * m->o.model->width,
                                      .slots = slots,
                                      .n_slots =
                                          (size_t)range_count(p->listed) * m->o.model->moe.n_chosen,
                                      .per_row = m->o.model->moe.n_chosen,
                                      .width = m->o.model->width,
                                      .to = to};
    op_scatter_rows(m->o.kern, &rows);
}

void moe_combine(struct moe *m, struct pass *p, const struct results *r)
{
    const struct combine_choices rows = {.y = r->y,
                                         .y_stride = r->y_stride,
                                         .width = m->o.model->width,
                                         .slots = p->slots,
                                         .weights = p->weights,
                                         .n_rows = range_count(p->listed),
                                         .n_chosen = m->o.model->moe.n_chosen,
                                         .grid_bits = p->w->grid_bits,
                                         .out =
                                             p->out + (size_t)p->listed.begin * m->o.model->width,
                                         .bad = r->bad,
                                         .bad_stride = r->bad_stride,
                                         .marks = p->marks + 2 * (size_t)p->listed.begin};
    op_combine_choices(m->o.kern, &rows);
    moe_add_zero(m, p);
}

void moe_gather_outputs(struct moe *m, struct pass *p)
{
    moe_count_slices(m, p->n_tokens, m->o.model->width);
    device_gather_words(m->o.kern, m->o.comm, COMM_TP, p->out, m->tp.counts, m->tp.displs);
    moe_count_slices(m, p->n_tokens, 2);
    device_gather_words(m->o.kern, m->o.comm, COMM_TP, p->marks, m->tp.counts, m->tp.displs);
}

struct status moe_add_output(struct moe *m, const struct pass *p)
{
    const struct moe_rows *rows = p->rows;
    const size_t n = p->n_tokens * m->o.model->width;
    const float scale = m->o.model->scale.residual;
    if (rows->shared != NULL) op_add(m->o.kern, p->out, rows->shared, n);
    op_axpy(m->o.kern, scale, p->out, n, rows->h);
    op_take_marks(m->o.kern, p->marks, p->n_tokens, rows->bad, rows->dropped);
    return device_status(m->o.kern->device);
}

/* For experts that read weighted rows: multiplies each listed token's row by the weight of its one
 * choice, whose result then has weight 1. */
static struct status weigh_inputs(struct moe *m, struct pass *p)
{
    const size_t n = range_count(p->listed), d = m->o.model->width, at = p->listed.begin * d;
    float *x, *ones;
    TRY(moe_grow(m, BUF_WEIGHED, p->n_tokens * d, sizeof *x, &x));
    TRY(moe_grow(m, BUF_ONES, n, sizeof *ones, &ones));
    op_scale_rows(m->o.kern, p->rows->x + at, p->weights, n, d, x + at);
    for (size_t i = 0; i < n; i++) ones[i] = 1;
    p->weighed = *p->rows;
    p->weighed.x = x;
    p->weighed.in = NULL;
    p->rows = &p->weighed;
    p->weights = ones;
    return status_ok();
}

struct status moe_sends_nothing(struct moe *m, struct pass *p)
{
    (void)m;
    (void)p;
    return status_ok();
}

bool moe_travels(const struct moe *m)
{
    return m->exchange == &exchange_between_hosts && m->by_host->at.n_hosts > 1;
}

/* Returns the call of a lane, and makes it the current one. */
static struct pass *enter(struct moe *m, int lane)
{
    m->lane = lane;
    m->by_host = &m->by_hosts[lane];
    return &m->passes[lane];
}

/* True when all ranks of the exchange may return at once: it stays among the tp ranks of one host,
 * and these have no token. In other exchanges ranks of other replicas may have tokens. */
static bool is_empty(const struct moe *m, const struct pass *p)
{
    return p->n_tokens == 0 && m->exchange->takes_slices;
}

struct status moe_start(struct moe *m, const struct layer *layer, const struct moe_rows *rows,
                        int lane)
{
    const uint32_t n = (uint32_t)rows->n_tokens;
    struct pass *p = enter(m, lane);
    float *logits;
    *p = (struct pass){.w = &layer->moe,
                       .in_stage = layer->in_stage,
                       .cap = m->o.model->layer.expert_cap[layer->index],
                       .given = rows,
                       .rows = rows,
                       .n_tokens = rows->n_tokens};
    if (is_empty(m, p)) return status_ok();
    p->own = layout_split(n, 1, m->o.layout->tp, m->place.tp);
    p->listed = m->exchange->routed(m, p);
    TRY(route(m, p, &logits));
    TRY(m->exchange->agree(m, p, logits));
    if (m->o.model->moe.weighs_inputs) TRY(weigh_inputs(m, p));
    TRY(moe_take_zero(m, p));
    count_load(m, p);
    moe_take_places(m, p);
    assign_slots(m, p);
    return m->exchange->send(m, p);
}

struct status moe_run(struct moe *m, int lane)
{
    struct pass *p = enter(m, lane);
    if (is_empty(m, p)) return status_ok();
    p->weighed.shared = p->given->shared;
    TRY(m->exchange->dispatch(m, p));
    TRY(moe_note_rows(m, p->n_in));
    TRY(m->exchange->compute(m, p));
    return m->exchange->reply(m, p);
}

struct status moe_finish(struct moe *m, int lane)
{
    struct pass *p = enter(m, lane);
    return is_empty(m, p) ? status_ok() : m->exchange->combine(m, p);
}

struct status moe_forward(struct moe *m, const struct layer *layer, const struct moe_rows *rows)
{
    TRY(moe_start(m, layer, rows, 0));
    TRY(moe_run(m, 0));
    return moe_finish(m, 0);
}

/* Experts on the tp ranks of one host, which all have the same rows and read each other's memory.
 * No row travels, and the ranks help each other.
 *
 *     rank 0 .. tp-1   all tokens' normed rows, all choices (gathered if each routes a slice)
 *     rank r           experts of its ep part -> outputs in a shared segment of its own
 *                      [ rows of expert a | rows of expert b | ... | counters ]
 *     rank r           sum per token, for its slice of the tokens, outputs read in place
 *
 * Work: each rank computes its own experts' rows, or, where all can read the experts' weights,
 * some rows of a rank that has more (balance.h). All plan the same from the same choices.
 * If etp ranks share each expert, each computes its columns of the outputs. If ep is 1 as well, and
 * h is cut into slices, a rank sums its columns of all tokens, and the owner of a row collects
 * them. */
#include "base/mem.h"
#include "kernels/ops.h"
#include "kernels/part.h"
#include "moe/moe_private.h"

#include <string.h>

enum {
    CHUNK = 256, /* columns of a token's rows that are prefetched while the columns before them are
                    added up */
    LINE = 64 / sizeof(float),
};

bool exchange_may_stay_in_host(const struct moe *m)
{
    const struct layout *l = m->o.layout;
    return m->n_group > 1 && l->ep * l->etp == l->tp && m->o.kern->device == NULL &&
           (l->etp == 1 || l->cuts_expert_outputs) && m->o.capacity->policy == CAPACITY_DROPLESS &&
           !l->model.arch->moe.bias && comm_shares_memory(m->o.comm, COMM_EP);
}

/* Notes, for each place, the ep number of the ranks that hold it. */
static void find_homes(struct moe *m)
{
    const struct layout *l = m->o.layout;
    for (uint32_t ep = 0; ep < l->ep; ep++) {
        const struct range held = layout_experts(l, ep);
        for (uint32_t e = held.begin; e < held.end; e++) m->sharing.homes[e] = ep;
    }
}

static struct status exchange_host_create(struct moe *m)
{
    struct sharing *s = &m->sharing;
    const struct layout *l = m->o.layout;
    TRY(mem_alloc(&s->pieces, m->n_work_max, sizeof *s->pieces, "MoE groups"));
    TRY(mem_alloc(&s->piece_rows, m->n_work_max, sizeof *s->piece_rows, "MoE groups"));
    TRY(mem_alloc(&s->first_piece, m->n_places, sizeof *s->first_piece, "MoE groups"));
    TRY(mem_alloc(&s->part_load, l->ep, sizeof *s->part_load, "MoE groups"));
    TRY(mem_alloc(&s->homes, m->n_places, sizeof *s->homes, "MoE experts"));
    TRY(mem_alloc(&s->outputs, l->etp, sizeof *s->outputs, "MoE outputs"));
    for (uint32_t i = 0; i < l->etp; i++) s->outputs[i] = layout_expert_outputs(l, i);
    find_homes(m);
    return status_ok();
}

static void exchange_host_destroy(struct moe *m)
{
    struct sharing *s = &m->sharing;
    mem_free(&s->outputs);
    mem_free(&s->homes);
    mem_free(&s->part_load);
    mem_free(&s->first_piece);
    mem_free(&s->piece_rows);
    mem_free(&s->pieces);
}

/* True when each rank holds only its slice of h (moe_rows.own). */
static bool is_cut(const struct pass *p)
{
    return range_count(p->rows->own) < p->n_tokens;
}

/* Returns the tokens whose rows of h this rank holds: its slice, or all. */
static struct range exchange_host_routed(const struct moe *m, const struct pass *p)
{
    (void)m;
    return p->rows->own;
}

/* Collects the choices of all tokens in p->ids and p->weights [T, K]. */
static struct status gather_choices(struct moe *m, struct pass *p)
{
    const size_t k = m->o.model->moe.n_chosen, n = range_count(p->listed);
    uint32_t *all;
    TRY(moe_grow(m, BUF_CHOICES, 2 * p->n_tokens * k, sizeof *all, &all));
    uint32_t *mine = all + 2 * k * p->listed.begin;
    memcpy(mine, p->ids, n * k * sizeof *all);
    memcpy(mine + n * k, p->weights, n * k * sizeof *all);
    moe_count_slices(m, p->n_tokens, 2 * k);
    comm_gather_words(m->o.comm, COMM_EP, all, m->tp.counts, m->tp.displs);
    TRY(moe_grow(m, BUF_LIST_IDS, p->n_tokens * k, sizeof *all, &p->ids));
    TRY(moe_grow(m, BUF_WEIGHTS, p->n_tokens * k, sizeof *all, &p->weights));
    TRY(moe_grow(m, BUF_SLOT, p->n_tokens * k, sizeof *all, &p->slots));
    for (uint32_t i = 0; i < m->o.layout->tp; i++) {
        const size_t n_words = (size_t)m->tp.counts[i] / 2, at = (size_t)m->tp.displs[i];
        memcpy(p->ids + at / 2, all + at, n_words * sizeof *all);
        memcpy(p->weights + at / 2, all + at + n_words, n_words * sizeof *all);
    }
    return status_ok();
}

static struct status exchange_host_agree(struct moe *m, struct pass *p, const float *logits)
{
    (void)logits; /* only a capacity factor needs them, and this exchange excludes one */
    if (is_cut(p)) TRY(gather_choices(m, p));
    p->listed = (struct range){0, (uint32_t)p->n_tokens};
    return status_ok();
}

/* Plans the work: each rank computes the rows of its own experts, or some rows of another rank's
 * experts whose weights it can read. */
static void share_work(struct moe *m, struct pass *p)
{
    struct sharing *s = &m->sharing;
    size_t n = 0;
    for (uint32_t e = 0; e < m->n_places; e++) {
        const uint32_t n_rows = (uint32_t)(m->per_expert[e] - moe_rows_before(m, e)),
                       ep = s->homes[e];
        if (n_rows > 0) s->pieces[n++] = (struct expert_piece){e, ep, 0, n_rows};
    }
    if (p->w->has_others) n = balance_pieces(s->pieces, n, m->o.layout->ep, s->part_load);
    memset(s->part_load, 0, m->o.layout->ep * sizeof *s->part_load);
    m->n_work = 0;
    for (size_t i = 0; i < n; i++) {
        const struct expert_piece *piece = &s->pieces[i];
        s->piece_rows[i] = s->part_load[piece->rank];
        s->part_load[piece->rank] += piece->n_rows;
        if (piece->first == 0) s->first_piece[piece->expert] = i;
        if (piece->rank == m->place.ep)
            m->work[m->n_work++] = (struct expert_rows){piece->expert, piece->n_rows};
    }
    p->n_in = s->part_load[m->place.ep];
}

/* The place of the result of one choice. The ranks whose ep number is `ep` hold it. */
struct choice {
    uint32_t ep;
    size_t row; /* in the shared segment of each of these ranks */
};

static struct choice exchange_host_find(const struct moe *m, int32_t id, int32_t slot)
{
    const struct sharing *s = &m->sharing;
    const uint32_t e = (uint32_t)id, at = (uint32_t)(slot - moe_rows_before(m, e));
    size_t i = s->first_piece[e];
    while (at - s->pieces[i].first >= s->pieces[i].n_rows) i++;
    return (struct choice){s->pieces[i].rank, s->piece_rows[i] + (at - s->pieces[i].first)};
}

/* Collects the rows that this rank computes, or lists them for p->spread, ordered by expert, then
 * by token. */
static struct status exchange_host_dispatch(struct moe *m, struct pass *p)
{
    const size_t n_choices = p->n_tokens * m->o.model->moe.n_chosen;
    int32_t *slots;
    TRY(moe_grow(m, BUF_MOVE, n_choices, sizeof *slots, &slots));
    share_work(m, p);
    for (size_t i = 0; i < n_choices; i++) {
        slots[i] = -1;
        if (p->ids[i] < 0) continue; /* a zero-computation expert */
        const struct choice choice = exchange_host_find(m, p->ids[i], p->slots[i]);
        if (choice.ep == m->place.ep) slots[i] = (int32_t)choice.row;
    }
    m->sharing.turn = 1 - m->sharing.turn;
    TRY(moe_list_adapters(m, p, slots));
    if (moe_takes_codes(m, p)) {
        p->to_slots = slots;
        p->spread = moe_spread_codes;
        return status_ok();
    }
    TRY(moe_grow(m, BUF_X, p->n_in * m->o.model->width, sizeof(float), &p->x));
    moe_scatter(m, p, slots, p->x);
    return status_ok();
}

/* Returns the segment for this block's outputs. Blocks use two segments in turn, so that the next
 * block may begin while another rank still reads the outputs of this block. */
static enum comm_lane outputs_lane(const struct moe *m)
{
    return m->sharing.turn == 0 ? COMM_LANE_EXPERT_SUMS : COMM_LANE_ROWS_OUT;
}

/* Returns this rank's shared segment. A rank that gets no memory ends the job, as a failed
 * collective does, because the other ranks wait for its outputs. */
static void *lane(const struct moe *m, enum comm_lane which, size_t n_bytes)
{
    void *at = comm_lane(m->o.comm, COMM_EP, which, n_bytes);
    if (at == NULL) comm_abort(m->o.comm, status_exit(STATUS_MEMORY));
    return at;
}

/* The outputs of a rank in its shared segment: [rows, columns] floats, then [rows] counters. */
struct outputs {
    const float *y;
    const int32_t *bad;
    struct range columns;
};

static struct outputs exchange_host_outputs_of(const struct moe *m, uint32_t ep, uint32_t etp)
{
    const struct range columns = m->sharing.outputs[etp];
    const float *y =
        comm_lane_of(m->o.comm, COMM_EP, outputs_lane(m), (int)(ep * m->o.layout->etp + etp));
    const void *bad = y + m->sharing.part_load[ep] * range_count(columns);
    return (struct outputs){y, bad, columns};
}

/* True: a rank sums its own columns of all tokens, which lie in its own memory, and the owner of a
 * row collects the columns from all ranks. False: each rank sums all columns of its own tokens. */
static bool by_columns(const struct moe *m, const struct pass *p)
{
    return is_cut(p) && m->o.layout->cuts_expert_outputs && m->o.layout->ep == 1;
}

static struct status exchange_host_compute(struct moe *m, struct pass *p)
{
    const size_t n = range_count(m->sharing.outputs[m->place.etp]);
    p->y = lane(m, outputs_lane(m), p->n_in * (n * sizeof(float) + sizeof(int32_t)));
    p->bad = (int32_t *)(void *)(p->y + p->n_in * n);
    memset(p->bad, 0, p->n_in * sizeof *p->bad);
    TRY(moe_adapt_begin(m, p));
    TRY(moe_expert_sums(m, p, NULL));
    moe_adapt_down(m, p);
    /* a rank that sums by columns reads only its own outputs here; the barrier before take_columns
     * protects the others */
    if (!by_columns(m, p)) comm_barrier(m->o.comm, COMM_EP);
    return status_ok();
}

/* A sum of some columns for some tokens. */
struct combine {
    const struct moe *m;
    const struct pass *p;
    struct range tokens, columns;
    uint32_t *lane; /* [T, columns + 1] with counters: sums that the rows' owners read; NULL:
                       this rank sums its own rows */
    float scale;
};

/* The choices of one token: their places and weights. */
struct token_choices {
    struct choice at[ROUTER_CHOSEN_MAX];
    float weights[ROUTER_CHOSEN_MAX];
    size_t n;
};

static void find_choices(const struct combine *c, size_t t, struct token_choices *out)
{
    const size_t n = c->m->o.model->moe.n_chosen, first = t * n;
    out->n = 0;
    for (size_t k = first; k < first + n; k++) {
        if (c->p->ids[k] < 0) continue;
        out->weights[out->n] = c->p->weights[k];
        out->at[out->n++] = exchange_host_find(c->m, c->p->ids[k], c->p->slots[k]);
    }
}

/* out [n] = the sum of n columns of the choices' rows. Prefetches each chunk of the rows while the
 * chunk before it is added up. Returns how many values are too large for the grid. */
static int64_t sum_chunks(const struct combine *c, const struct token_choices *t,
                          const float **rows, size_t n, float *out)
{
    int64_t n_bad = 0;
    for (size_t at = 0, step; at < n; at += step) {
        step = n - at < CHUNK ? n - at : CHUNK;
        for (size_t k = 0; k < t->n && at + step < n; k++)
            for (size_t i = 0; i < CHUNK; i += LINE) __builtin_prefetch(rows[k] + step + i);
        const struct weighted_rows w = {.rows = rows,
                                        .weights = t->weights,
                                        .n_rows = t->n,
                                        .n = step,
                                        .grid_bits = c->p->w->grid_bits};
        n_bad += c->m->o.kern->weighted_to_f32(&w, out + at);
        for (size_t k = 0; k < t->n; k++) rows[k] += step;
    }
    return n_bad;
}

/* out = the sum over the choices, in those of c->columns that rank `etp` of an expert's ranks has;
 * out[0] is column c->columns.begin. Returns how many values are too large for the grid. */
static int64_t sum_columns_of(const struct combine *c, const struct token_choices *t, uint32_t etp,
                              float *out)
{
    const float *rows[ROUTER_CHOSEN_MAX];
    const struct range held = c->m->sharing.outputs[etp];
    const size_t first = held.begin > c->columns.begin ? held.begin : c->columns.begin;
    const size_t last = held.end < c->columns.end ? held.end : c->columns.end;
    if (first >= last) return 0;
    for (size_t k = 0; k < t->n; k++) {
        const struct outputs o = exchange_host_outputs_of(c->m, t->at[k].ep, etp);
        rows[k] = o.y + t->at[k].row * range_count(held) + (first - held.begin);
    }
    return sum_chunks(c, t, rows, last - first, out + (first - c->columns.begin));
}

static int32_t counter(const struct combine *c, const struct choice *choice)
{
    const struct moe *m = c->m;
    const bool own = c->lane != NULL;
    const uint32_t first = own ? m->place.etp : 0, end = own ? first + 1 : m->o.layout->etp;
    int64_t n = 0;
    for (uint32_t i = first; i < end; i++)
        n += exchange_host_outputs_of(m, choice->ep, i).bad[choice->row];
    return n > INT32_MAX ? INT32_MAX : (int32_t)n;
}

/* h += c->scale * (out + p->zero + shared) in token t's row, the last two unless NULL. Changes
 * `out` [D], the sum of the token's experts. Adds n_bad to its counter. */
static void finish_row(const struct combine *c, size_t t, float *out, int32_t n_bad)
{
    const struct kern_table *kern = c->m->o.kern;
    const size_t d = c->m->o.model->width;
    if (c->p->zero != NULL) kern->add(out, c->p->zero + t * d, d);
    if (c->p->rows->shared != NULL) kern->add(out, c->p->rows->shared + t * d, d);
    kern->axpy(c->scale, out, d, c->p->rows->h + t * d);
    c->p->rows->bad[t] += n_bad;
}

/* out = the sum over token t's choices, in columns c->columns. Returns the token's counter. */
static int32_t combine_row(const struct combine *c, size_t t, float *out)
{
    struct token_choices choices;
    int64_t n_bad = 0;
    find_choices(c, t, &choices);
    for (uint32_t i = 0; i < c->m->o.layout->etp; i++) n_bad += sum_columns_of(c, &choices, i, out);
    for (size_t k = 0; k < choices.n; k++) n_bad += counter(c, &choices.at[k]);
    return n_bad > INT32_MAX ? INT32_MAX : (int32_t)n_bad;
}

static void exchange_host_combine_part(const void *job, struct part part)
{
    const struct combine *c = job;
    const size_t n = range_count(c->columns);
    size_t i, end;
    if (!part_take(&part, range_count(c->tokens), n * c->m->o.model->moe.n_chosen, &i, &end))
        return;
    for (size_t t = c->tokens.begin + i; t < c->tokens.begin + end; t++) {
        if (c->lane != NULL) {
            uint32_t *row = c->lane + t * (n + 1);
            row[n] = (uint32_t)combine_row(c, t, (float *)row);
        } else {
            float *out = c->p->out + t * n;
            finish_row(c, t, out, combine_row(c, t, out));
        }
    }
}

/* Puts together the columns that the ranks have summed, for the rows that this rank holds. */
static void take_columns(const void *job, struct part part)
{
    const struct combine *c = job;
    const struct moe *m = c->m;
    size_t i, end;
    if (!part_take(&part, range_count(c->p->rows->own), m->o.model->width, &i, &end)) return;
    for (size_t t = c->p->rows->own.begin + i; t < c->p->rows->own.begin + end; t++) {
        float *out = c->p->out + t * m->o.model->width;
        int32_t n_bad = 0;
        for (uint32_t r = 0; r < m->o.layout->tp; r++) {
            const struct range columns = m->sharing.outputs[r];
            const size_t n = range_count(columns);
            const uint32_t *row = comm_lane_of(m->o.comm, COMM_EP, COMM_LANE_ROWS_BACK, (int)r);
            row += t * (n + 1);
            memcpy(out + columns.begin, row, n * sizeof *row);
            n_bad += (int32_t)row[n];
        }
        finish_row(c, t, out, n_bad);
    }
}

static struct status exchange_host_combine(struct moe *m, struct pass *p)
{
    const float scale = m->o.model->scale.residual;
    const struct range own = p->rows->own;
    struct combine c = {
        .m = m, .p = p, .tokens = own, .columns = {0, m->o.model->width}, .scale = scale};
    TRY(moe_grow(m, BUF_OUT, p->n_tokens * m->o.model->width, sizeof(float), &p->out));
    if (by_columns(m, p)) {
        c.tokens = (struct range){0, (uint32_t)p->n_tokens};
        c.columns = m->sharing.outputs[m->place.etp];
        c.lane = lane(m, COMM_LANE_ROWS_BACK,
                      p->n_tokens * (range_count(c.columns) + (size_t)1) * sizeof *c.lane);
    }
    part_run(m->o.kern->team,
             (uint64_t)range_count(c.tokens) * range_count(c.columns) * m->o.model->moe.n_chosen,
             exchange_host_combine_part, &c);
    if (c.lane == NULL) return status_ok();
    comm_barrier(m->o.comm, COMM_EP);
    part_run(m->o.kern->team, (uint64_t)range_count(own) * m->o.model->width, take_columns, &c);
    return status_ok();
}

const struct expert_exchange exchange_in_host = {.name = "in one host",
                                                 .takes_slices = true,
                                                 .lists_all = true,
                                                 .create = exchange_host_create,
                                                 .destroy = exchange_host_destroy,
                                                 .routed = exchange_host_routed,
                                                 .agree = exchange_host_agree,
                                                 .send = moe_sends_nothing,
                                                 .dispatch = exchange_host_dispatch,
                                                 .compute = exchange_host_compute,
                                                 .reply = moe_sends_nothing,
                                                 .combine = exchange_host_combine};

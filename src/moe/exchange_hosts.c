/* Experts on ranks of several hosts, or of one host whose ranks have tokens of their own: a token
 * goes to a host once, however many of its experts are there, and one row of integers comes back.
 *
 *     host 0: rank a  [ tokens for host 0 | for 1 | for 2 ]   as the experts' first linear reads
 *             rank b  [ tokens for host 0 | for 1 | for 2 ]   them; written to shared memory
 *     wire    host 0 --- all of its tokens for host 1, one message ---> host 1     (comm_mail.h)
 *     host 1: every rank reads all tokens that came, takes those of its experts, runs them, and
 *             leaves the outputs in shared memory
 *     host 1: rank c  sums of the first half of host 0's tokens, over the outputs of all ranks
 *             rank d  of the second half          packed integers (wire_ints.h)
 *     wire    host 1 --- one row of sums for each of these tokens ---> host 0
 *     host 0: the token's rank adds the rows of the other hosts and the outputs of its own host's
 *             experts, and rounds once
 *
 * The sums are on the grid of docs/numerics.md, so this has the bits of any other exchange. Where
 * etp ranks share an expert, they are on one host, and the first of them has its outputs. At the
 * end the tp ranks gather all tokens' outputs. */
#include "base/log.h"
#include "base/mem.h"
#include "kernels/act.h"
#include "kernels/ops.h"
#include "kernels/part.h"
#include "moe/moe_private.h"

#include <assert.h>
#include <string.h>

bool exchange_may_go_by_host(const struct moe *m)
{
    const struct layout *l = m->o.layout;
    if (m->by_host->mail == NULL || l->cuts_expert_outputs) return false;
    const int *host_of = comm_mail_places_of(m->by_host->mail).host_of;
    for (uint32_t g = 0; g < m->n_group; g++)
        if (host_of[g] != host_of[g / l->etp * l->etp]) return false;
    return true;
}

static struct status create_lane(struct moe *m, struct by_host *b)
{
    const struct layout *l = m->o.layout;
    b->at = comm_mail_places_of(b->mail);
    const size_t n_hosts = (size_t)b->at.n_hosts;
    TRY(mem_alloc(&b->host_of, m->n_places, sizeof *b->host_of, "MoE hosts"));
    TRY(mem_alloc(&b->to, n_hosts, sizeof *b->to, "MoE hosts"));
    TRY(mem_alloc(&b->from, n_hosts + 1, sizeof *b->from, "MoE hosts"));
    TRY(mem_alloc(&b->blocks, m->n_group, sizeof *b->blocks, "MoE hosts"));
    TRY(mem_alloc(&b->results, m->n_group, sizeof *b->results, "MoE hosts"));
    TRY(mem_alloc(&b->outputs, (size_t)b->at.n_local, sizeof *b->outputs, "MoE hosts"));
    for (uint32_t g = 0; g < m->n_group; g++) {
        const struct range held = layout_experts(l, g / l->etp);
        const int host = b->at.host_of[g];
        if (g % l->etp != 0) continue; /* the first of an expert's ranks has its outputs */
        if (host == b->at.host) b->outputs[b->at.local_of[g]].experts = held;
        for (uint32_t e = held.begin; e < held.end; e++) b->host_of[e] = host;
    }
    return status_ok();
}

static struct status exchange_hosts_create(struct moe *m)
{
    for (int i = 0; i < MOE_LANES; i++) TRY(create_lane(m, &m->by_hosts[i]));
    return status_ok();
}

static void destroy_lane(struct by_host *b)
{
    mem_free(&b->host_of);
    mem_free(&b->to);
    mem_free(&b->from);
    mem_free(&b->blocks);
    mem_free(&b->results);
    mem_free(&b->outputs);
}

static void exchange_hosts_destroy(struct moe *m)
{
    for (int i = 0; i < MOE_LANES; i++) destroy_lane(&m->by_hosts[i]);
}

static struct range exchange_hosts_routed(const struct moe *m, const struct pass *p)
{
    (void)m;
    return p->own;
}

void moe_damaged(const struct moe *m, int host)
{
    log_line(LOG_ERROR, "exchange over ep: the message of host %d of the axis is damaged", host);
    comm_abort(m->o.comm, status_exit(STATUS_LOST));
}

/* --- tokens to hosts ---------------------------------------------------------------------------
 */

/* This rank's tokens as they are sent. */
struct own_rows {
    const char *values;  /* [n, value_bytes] */
    const float *scales; /* [n, groups] */
    size_t value_bytes, groups;
};

/* Returns the format that the layer's experts read, the same on all ranks. */
static struct token_format token_format_of(const struct moe *m, const struct pass *p)
{
    const struct packed *w = &p->w->reads;
    const bool is_adapted = moe_is_adapted(m, p);
    const bool as_codes =
        !m->o.weight_only && !is_adapted && m->o.tap == NULL && act_codes_alike(w, w);
    return (struct token_format){.width = m->o.model->width,
                                 .group = as_codes ? quant_kernel_group(w->quant) : 0,
                                 .has_adapters = is_adapted};
}

static struct status find_own_rows(struct moe *m, const struct pass *p, struct own_rows *out)
{
    const struct token_format *f = &m->by_host->format;
    const size_t d = f->width, first = p->listed.begin, n = range_count(p->listed);
    const float *x = p->rows->x + first * d;
    *out = (struct own_rows){.values = (const char *)x, .value_bytes = d * sizeof *x};
    if (f->group == 0) return status_ok();
    const struct act_rows *in = p->rows->in;
    struct act_rows own = {.x = x, .stride = d, .n_rows = n, .n = d};
    out->groups = token_row_groups(f);
    out->value_bytes = token_row_values(f);
    if (in != NULL && in->memory != NULL && in->codes.group == f->group) {
        out->values = (const char *)in->codes.codes + first * out->value_bytes;
        out->scales = in->codes.scales + first * out->groups;
        return status_ok();
    }
    TRY(moe_grow(m, BUF_TOKEN_CODES, act_codes_bytes(n, d), 1, &own.memory));
    const struct quant_rows *codes = act_codes(m->o.kern, &own, &p->w->reads);
    out->values = (const char *)codes->codes;
    out->scales = codes->scales;
    return status_ok();
}

/* Gives a buffer for an array of this call the size that `shoal plan` counts. */
static struct status grow_array(struct moe *m, enum buffer which, enum exchange_array array,
                                void *out)
{
    return moe_grow(m, which, exchange_array_bytes(&m->by_host->shape, array), 1, out);
}

/* Gives each of this rank's tokens a row in the block of each host that holds one of the token's
 * chosen experts (b->row_of; -1: none). Counts each block's rows and choices. */
static struct status number_rows(struct moe *m, const struct pass *p)
{
    struct by_host *b = m->by_host;
    const size_t n = range_count(p->listed), k = m->o.model->moe.n_chosen,
                 n_hosts = (size_t)b->at.n_hosts;
    b->shape = (struct exchange_shape){
        .format = b->format, .n_hosts = n_hosts, .n_chosen = k, .n_routed = n};
    TRY(grow_array(m, BUF_ROW_OF, EXCHANGE_ROW_OF, &b->row_of));
    for (size_t i = 0; i < n * n_hosts; i++) b->row_of[i] = -1;
    for (size_t h = 0; h < n_hosts; h++) b->to[h] = (struct block_to){.n_rows = 0};
    for (size_t i = 0; i < n * k; i++) {
        if (p->ids[i] < 0) continue;
        const int host = b->host_of[p->ids[i]];
        int32_t *row = &b->row_of[i / k * n_hosts + (size_t)host];
        if (*row < 0) *row = (int32_t)b->to[host].n_rows++;
        b->to[host].n_choices++;
    }
    for (size_t h = 0; h < n_hosts; h++) {
        b->shape.n_sent += b->to[h].n_rows;
        b->shape.n_choices += b->to[h].n_choices;
    }
    return status_ok();
}

/* Lays out the blocks for all hosts in this rank's shared memory, without rows and choices. */
static struct status lay_out_blocks(struct moe *m, struct comm_mail_piece **out)
{
    struct by_host *b = m->by_host;
    const size_t n_hosts = (size_t)b->at.n_hosts;
    size_t at = comm_mail_head_bytes(b->mail, 1);
    struct comm_mail_piece *pieces;
    TRY(moe_grow(m, BUF_PIECES, n_hosts, sizeof *pieces, &pieces));
    for (size_t h = 0; h < n_hosts; h++) {
        const struct block_to *to = &b->to[h];
        const size_t n = token_block_at(&b->format, to->n_rows, to->n_choices, NULL).n_bytes;
        pieces[h] = (struct comm_mail_piece){at, n};
        at += n;
    }
    const size_t n_bytes = exchange_array_bytes(&b->shape, EXCHANGE_TOKENS_OUT);
    assert(at <= n_bytes);
    char *memory = comm_mail_memory(b->mail, COMM_LANE_ROWS_OUT, n_bytes);
    for (size_t h = 0; h < n_hosts; h++) {
        struct block_to *to = &b->to[h];
        void *block = memory + pieces[h].offset;
        to->block = token_block_at(&b->format, to->n_rows, to->n_choices, block);
        token_block_write_head(&to->block, block);
        memset(to->block.n_chosen, 0, to->n_rows * sizeof *to->block.n_chosen);
        to->n_choices = 0;
    }
    *out = pieces;
    return status_ok();
}

/* Writes the tokens' choices to the blocks, token by token, so that the choices of each row are
 * contiguous and in the order of the rows. */
static void write_choices(struct moe *m, const struct pass *p)
{
    struct by_host *b = m->by_host;
    const size_t n = range_count(p->listed), k = m->o.model->moe.n_chosen;
    for (size_t t = 0; t < n; t++) {
        for (size_t i = t * k; i < (t + 1) * k; i++) {
            if (p->ids[i] < 0) continue;
            struct block_to *to = &b->to[b->host_of[p->ids[i]]];
            const size_t host = (size_t)(to - b->to);
            to->block.n_chosen[b->row_of[t * (size_t)b->at.n_hosts + host]]++;
            to->block.places[to->n_choices] = (uint16_t)p->ids[i];
            to->block.weights[to->n_choices++] = p->weights[i];
        }
    }
}

/* Writes the adapter of each row to the blocks. */
static void write_adapters(struct moe *m, const struct pass *p)
{
    const struct by_host *b = m->by_host;
    const size_t n_hosts = (size_t)b->at.n_hosts;
    for (size_t i = 0; b->format.has_adapters && i < range_count(p->listed) * n_hosts; i++) {
        const uint32_t adapter = (uint32_t)moe_adapter_of(p, p->listed.begin + i / n_hosts);
        if (b->row_of[i] >= 0) b->to[i % n_hosts].block.adapters[b->row_of[i]] = adapter;
    }
}

struct copy_job {
    const struct by_host *b;
    const struct own_rows *own;
    size_t n_tokens;
};

static void copy_rows_part(const void *job_, struct part part)
{
    const struct copy_job *job = job_;
    const struct own_rows *own = job->own;
    const size_t n_hosts = (size_t)job->b->at.n_hosts, bytes = own->value_bytes, g = own->groups;
    size_t t, end;
    if (!part_take(&part, job->n_tokens, n_hosts * bytes, &t, &end)) return;
    for (; t < end; t++) {
        for (size_t h = 0; h < n_hosts; h++) {
            const int32_t row = job->b->row_of[t * n_hosts + h];
            const struct token_block *to = &job->b->to[h].block;
            if (row < 0) continue;
            memcpy((char *)to->rows + (size_t)row * bytes, own->values + t * bytes, bytes);
            if (g > 0) memcpy(to->scales + (size_t)row * g, own->scales + t * g, g * sizeof(float));
        }
    }
}

/* For each host, counts the rows that earlier ranks of this host send to it. This rank's rows
 * follow them in the message and in the results that come back. */
static void find_first_rows(struct moe *m)
{
    struct by_host *b = m->by_host;
    for (int h = 0; h < b->at.n_hosts; h++) {
        b->to[h].first_row = 0;
        for (int r = 0; r < b->at.local; r++) {
            size_t n_bytes;
            const void *at = comm_mail_piece_of(b->mail, COMM_LANE_ROWS_OUT, r, h, &n_bytes);
            struct token_block other;
            if (!token_block_read(&b->format, at, n_bytes, &other)) moe_damaged(m, b->at.host);
            b->to[h].first_row += other.n_rows;
        }
    }
}

static struct status exchange_hosts_send(struct moe *m, struct pass *p)
{
    struct by_host *b = m->by_host;
    struct own_rows own;
    struct comm_mail_piece *pieces;
    b->format = token_format_of(m, p);
    TRY(find_own_rows(m, p, &own));
    TRY(number_rows(m, p));
    TRY(lay_out_blocks(m, &pieces));
    write_choices(m, p);
    write_adapters(m, p);
    const struct copy_job job = {b, &own, range_count(p->listed)};
    part_run(m->o.kern->team, (uint64_t)job.n_tokens * (size_t)b->at.n_hosts * own.value_bytes,
             copy_rows_part, &job);
    comm_mail_start(m->o.comm, b->mail, COMM_LANE_ROWS_OUT, pieces, 1);
    find_first_rows(m);
    return status_ok();
}

/* --- tokens at the experts' host -------------------------------------------------------------- */

/* Finds the blocks for this host, those of host 0's ranks first. Sets b->from[h] to the first block
 * and row of host h, and b->from[n_hosts] to the total numbers of blocks and rows. */
static void find_blocks(struct moe *m)
{
    struct by_host *b = m->by_host;
    size_t block = 0, row = 0;
    for (int h = 0; h < b->at.n_hosts; h++) {
        const char *at = NULL;
        size_t left = 0;
        b->from[h] = (struct host_rows){block, row};
        if (h != b->at.host) at = comm_mail_message(b->mail, h, &left);
        for (int r = 0; r < b->at.n_on[h]; r++) {
            if (h == b->at.host) at = comm_mail_piece_of(b->mail, COMM_LANE_ROWS_OUT, r, h, &left);
            struct token_block *in = &b->blocks[block++];
            if (!token_block_read(&b->format, at, left, in)) moe_damaged(m, h);
            at += in->n_bytes;
            left -= in->n_bytes;
            row += in->n_rows;
        }
    }
    b->from[b->at.n_hosts] = (struct host_rows){block, row};
}

/* Numbers all choices of this host by place, then in the order of the blocks: b->slots [rows, K],
 * negative after a row's choices. m->per_expert[e] = the choices of places 0 to e. */
static void number_choices(struct moe *m)
{
    struct by_host *b = m->by_host;
    const size_t k = m->o.model->moe.n_chosen, n_places = m->n_places;
    const size_t n_blocks = b->from[b->at.n_hosts].block;
    int32_t at = 0;
    memset(m->per_expert, 0, n_places * sizeof *m->per_expert);
    for (size_t i = 0; i < n_blocks; i++)
        for (size_t c = 0; c < b->blocks[i].n_choices; c++) m->per_expert[b->blocks[i].places[c]]++;
    for (size_t e = 0; e < n_places; e++) {
        const int32_t n = m->per_expert[e];
        m->per_expert[e] = at;
        at += n;
    }
    size_t row = 0;
    for (size_t i = 0; i < n_blocks; i++) {
        const struct token_block *in = &b->blocks[i];
        const uint16_t *place = in->places;
        const float *weight = in->weights;
        for (size_t r = 0; r < in->n_rows; r++, row++) {
            b->weights[row] = weight;
            for (size_t c = 0; c < k; c++)
                b->slots[row * k + c] = c < in->n_chosen[r] ? m->per_expert[place[c]]++ : -1;
            place += in->n_chosen[r];
            weight += in->n_chosen[r];
        }
    }
}

/* Ends the job unless all choices are of experts of this host and no row has more than K. */
static void assert_choices(const struct moe *m)
{
    const struct by_host *b = m->by_host;
    for (int h = 0; h < b->at.n_hosts; h++) {
        for (size_t i = b->from[h].block; i < b->from[h + 1].block; i++) {
            const struct token_block *in = &b->blocks[i];
            for (size_t c = 0; c < in->n_choices; c++)
                if (in->places[c] >= m->n_places || b->host_of[in->places[c]] != b->at.host)
                    moe_damaged(m, h);
            for (size_t r = 0; r < in->n_rows; r++)
                if (in->n_chosen[r] > m->o.model->moe.n_chosen) moe_damaged(m, h);
        }
    }
}

/* Sets m->work, p->n_in and b->to_slots [rows, K] for the rows of this rank's experts. */
static void take_own_choices(struct moe *m, struct pass *p)
{
    struct by_host *b = m->by_host;
    const int32_t first = moe_rows_before(m, m->experts.begin);
    m->n_work = 0;
    for (uint32_t e = m->experts.begin; e < m->experts.end; e++) {
        const int32_t n_rows = m->per_expert[e] - moe_rows_before(m, e);
        if (n_rows > 0) m->work[m->n_work++] = (struct expert_rows){e, (size_t)n_rows};
    }
    p->n_in = (size_t)(moe_rows_before(m, m->experts.end) - first);
    for (size_t i = 0; i < b->from[b->at.n_hosts].row * m->o.model->moe.n_chosen; i++) {
        const int32_t slot = b->slots[i] - first;
        b->to_slots[i] = b->slots[i] >= 0 && slot >= 0 && slot < (int32_t)p->n_in ? slot : -1;
    }
}

/* Sets p->row_adapters from the blocks. Ends the job if there is no such adapter. */
static struct status take_adapters(struct moe *m, struct pass *p)
{
    const struct by_host *b = m->by_host;
    const size_t k = m->o.model->moe.n_chosen;
    size_t row = 0;
    if (!b->format.has_adapters) return status_ok();
    TRY(moe_grow(m, BUF_ROW_ADAPTERS, p->n_in, sizeof *p->row_adapters, &p->row_adapters));
    for (int h = 0; h < b->at.n_hosts; h++) {
        for (size_t i = b->from[h].block; i < b->from[h + 1].block; i++) {
            const struct token_block *in = &b->blocks[i];
            for (size_t r = 0; r < in->n_rows; r++, row++) {
                if (in->adapters[r] > m->o.adapters->n) moe_damaged(m, h);
                for (size_t c = row * k; c < (row + 1) * k; c++)
                    if (b->to_slots[c] >= 0)
                        p->row_adapters[b->to_slots[c]] = (int32_t)in->adapters[r];
            }
        }
    }
    return status_ok();
}

/* Returns the arguments, without rows and outputs, of the scatter that copies a block's rows to the
 * rows of this rank's experts. row: the block's first row among all rows that came. */
static struct scatter_args slots_of(const struct moe *m, size_t block, size_t row)
{
    const size_t k = m->o.model->moe.n_chosen;
    return (struct scatter_args){.slots = m->by_host->to_slots + row * k,
                                 .n_slots = m->by_host->blocks[block].n_rows * k,
                                 .per_row = k};
}

struct sums_job {
    const struct quant_rows *rows;
    size_t n_rows;
};

/* Adds up the values of each group, because these sums do not travel. */
static void group_sums_part(const void *job_, struct part part)
{
    const struct sums_job *job = job_;
    const struct quant_rows *q = job->rows;
    size_t i, end;
    if (!part_take(&part, job->n_rows * q->n_groups, q->group, &i, &end)) return;
    for (; i < end; i++) {
        int32_t sum = 0;
        for (size_t j = 0; j < q->group; j++) sum += q->codes[i * q->group + j];
        q->sums[i] = sum;
    }
}

/* The `spread` of this exchange: copies the int8 values of all blocks to the experts' rows. */
static struct status spread_blocks(struct moe *m, const struct pass *p, struct act_rows *rows)
{
    struct by_host *b = m->by_host;
    size_t row = 0;
    act_codes_to_make(rows, &p->w->reads);
    for (size_t i = 0; i < b->from[b->at.n_hosts].block; i++) {
        const struct token_block *in = &b->blocks[i];
        const struct scatter_args slots = slots_of(m, i, row);
        struct quant_rows codes = {.group = b->format.group,
                                   .n_groups = token_row_groups(&b->format),
                                   .codes = in->rows,
                                   .scales = in->scales};
        const struct sums_job sums = {&codes, in->n_rows};
        const size_t n = in->n_rows * codes.n_groups;
        TRY(grow_array(m, BUF_GROUP_SUMS, EXCHANGE_GROUP_SUMS, &codes.sums));
        part_run(m->o.kern->team, (uint64_t)n * codes.group, group_sums_part, &sums);
        act_codes_scatter(m->o.kern, rows, &p->w->reads, &codes, &slots);
        row += in->n_rows;
    }
    return status_ok();
}

static struct status scatter_blocks(struct moe *m, struct pass *p)
{
    struct by_host *b = m->by_host;
    size_t row = 0;
    TRY(moe_grow(m, BUF_X, p->n_in * b->format.width, sizeof(float), &p->x));
    for (size_t i = 0; i < b->from[b->at.n_hosts].block; i++) {
        struct scatter_args rows = slots_of(m, i, row);
        rows.x = b->blocks[i].rows;
        rows.width = b->format.width;
        rows.to = p->x;
        op_scatter_rows(m->o.kern, &rows);
        row += b->blocks[i].n_rows;
    }
    return status_ok();
}

static struct status exchange_hosts_dispatch(struct moe *m, struct pass *p)
{
    struct by_host *b = m->by_host;
    size_t sent;
    comm_mail_finish(m->o.comm, b->mail, &sent);
    m->traffic.dispatch_bytes += sent;
    m->traffic.n_tokens += range_count(p->listed);
    find_blocks(m);
    assert_choices(m);
    b->shape.n_came = b->from[b->at.n_hosts].row;
    TRY(grow_array(m, BUF_HOST_SLOTS, EXCHANGE_HOST_SLOTS, &b->slots));
    TRY(grow_array(m, BUF_MOVE, EXCHANGE_TO_SLOTS, &b->to_slots));
    TRY(grow_array(m, BUF_ROW_WEIGHTS, EXCHANGE_ROW_WEIGHTS, &b->weights));
    number_choices(m);
    take_own_choices(m, p);
    TRY(take_adapters(m, p));
    if (b->format.group == 0) return scatter_blocks(m, p);
    p->spread = spread_blocks;
    return status_ok();
}

/* --- experts -----------------------------------------------------------------------------------
 */

static struct status exchange_hosts_compute(struct moe *m, struct pass *p)
{
    struct by_host *b = m->by_host;
    const size_t d = m->o.model->width;
    b->shape.n_in = p->n_in;
    p->y = comm_mail_memory(b->mail, COMM_LANE_EXPERT_OUTPUTS,
                            exchange_array_bytes(&b->shape, EXCHANGE_OUTPUTS));
    p->bad = (int32_t *)(void *)(p->y + p->n_in * d);
    TRY(moe_run_experts(m, p));
    comm_mail_barrier(b->mail); /* all outputs of this host are written */
    for (int r = 0; r < b->at.n_local; r++) {
        struct host_outputs *o = &b->outputs[r];
        o->first = moe_rows_before(m, o->experts.begin);
        o->n = moe_rows_before(m, o->experts.end) - o->first;
        o->y = comm_mail_memory_of(b->mail, COMM_LANE_EXPERT_OUTPUTS, r);
        o->bad = (const void *)(o->y + (size_t)o->n * d);
    }
    return status_ok();
}

const struct expert_exchange exchange_between_hosts = {.name = "between hosts",
                                                       .create = exchange_hosts_create,
                                                       .destroy = exchange_hosts_destroy,
                                                       .routed = exchange_hosts_routed,
                                                       .agree = moe_limit,
                                                       .send = exchange_hosts_send,
                                                       .dispatch = exchange_hosts_dispatch,
                                                       .compute = exchange_hosts_compute,
                                                       .reply = exchange_hosts_reply,
                                                       .combine = exchange_hosts_combine};

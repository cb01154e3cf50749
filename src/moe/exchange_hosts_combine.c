/* The way back of exchange_hosts.c, which has the drawing: sums of a token's experts on one host,
 * packed, and their sum at the token's rank. */
#include "kernels/fpenv.h"
#include "kernels/ops.h"
#include "kernels/part.h"
#include "moe/moe_private.h"
#include "parallel/wire/wire_ints.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

enum {
    TILE = 8 * WIRE_INTS_BLOCK, /* columns that are added up at once */
    LINE = 64,                  /* bytes; blocks begin at a multiple of this */
    WORTH_THREADS = 1 << 16,    /* with at least this many sums, several threads pack */
};

/* A row's choices on this host: their outputs and weights. */
struct host_choices {
    const float *rows[ROUTER_CHOSEN_MAX];
    const float *weights;
    size_t n;
    int64_t n_bad; /* the sum of the outputs' counters */
};

/* Finds the choices of row `row` among the rows that came to this host. */
static void find_host_choices(const struct moe *m, size_t row, struct host_choices *out)
{
    const struct by_host *b = m->by_host;
    const size_t k = m->o.model->moe.n_chosen, d = m->o.model->width;
    const int32_t *slots = b->slots + row * k;
    out->weights = b->weights[row];
    out->n_bad = 0;
    for (out->n = 0; out->n < k && slots[out->n] >= 0; out->n++) {
        const struct host_outputs *o = b->outputs; /* in the order of their slots */
        while (slots[out->n] - o->first >= o->n) o++;
        const size_t at = (size_t)(slots[out->n] - o->first);
        out->rows[out->n] = o->y + at * d;
        out->n_bad += o->bad[at];
    }
}

/* Returns the choices' rows with their weights, in columns [column, column + n). */
static struct weighted_rows columns_of(const struct host_choices *c, const float **rows,
                                       size_t column, size_t n, uint32_t grid_bits)
{
    for (size_t i = 0; i < c->n; i++) rows[i] = c->rows[i] + column;
    return (struct weighted_rows){rows, c->weights, c->n, n, grid_bits};
}

/* --- sums for other hosts ----------------------------------------------------------------------
 */

/* This rank's share of the rows of each host, cut into runs that threads pack. */
struct pack_job {
    const struct moe *m;
    uint32_t grid_bits;
    size_t n_runs;
    char *memory;
    struct comm_mail_piece *pieces; /* [n_hosts, 1 + n_runs] */
};

static struct range run_of(size_t n_rows, size_t n_runs, size_t run)
{
    return (struct range){(uint32_t)(n_rows * run / n_runs),
                          (uint32_t)(n_rows * (run + 1) / n_runs)};
}

/* Returns which of the rows from `host` are added up by rank `local` of this host. */
static struct range share_of(const struct by_host *b, int host, int local)
{
    const size_t n = b->from[host + 1].row - b->from[host].row;
    return run_of(n, (size_t)b->at.n_local, (size_t)local);
}

/* Packs the sums and the counter of a row. Returns the number of bytes. */
static size_t pack_row(const struct pack_job *job, size_t row, char *to)
{
    const struct moe *m = job->m;
    const size_t d = m->o.model->width;
    const float *rows[ROUTER_CHOSEN_MAX];
    int64_t sums[TILE + 1];
    struct host_choices c;
    size_t n_bytes = 0;
    find_host_choices(m, row, &c);
    for (size_t at = 0, n; at < d; at += n) {
        n = d - at < TILE ? d - at : TILE;
        const struct weighted_rows w = columns_of(&c, rows, at, n, job->grid_bits);
        memset(sums, 0, n * sizeof *sums);
        c.n_bad += m->o.kern->weighted_add(&w, sums);
        const bool is_last = at + n == d;
        if (is_last) sums[n] = c.n_bad;
        if (!is_last || n < TILE) {
            n_bytes += wire_ints_pack(sums, n + is_last, to + n_bytes);
        } else { /* the last tile is full, so the counter begins a block, as in wire_ints_pack of
                    the whole row */
            n_bytes += wire_ints_pack(sums, n, to + n_bytes);
            n_bytes += wire_ints_pack(sums + n, 1, to + n_bytes);
        }
    }
    return n_bytes;
}

/* Packs one run of each other host's rows. The ends of its rows are offsets from the start of the
 * run. */
static void pack_run(void *job_, uint32_t run)
{
    const struct pack_job *job = job_;
    const struct by_host *b = job->m->by_host;
    fpenv_set();
    for (int h = 0; h < b->at.n_hosts; h++) {
        struct comm_mail_piece *pieces = job->pieces + (size_t)h * (1 + job->n_runs);
        if (h == b->at.host) continue;
        const struct range share = share_of(b, h, b->at.local);
        const struct range rows = run_of(range_count(share), job->n_runs, run);
        uint64_t *ends = result_block_ends(job->memory + pieces[0].offset);
        char *to = job->memory + pieces[1 + run].offset;
        size_t n_bytes = 0;
        for (size_t i = rows.begin; i < rows.end; i++) {
            n_bytes += pack_row(job, b->from[h].row + share.begin + i, to + n_bytes);
            ends[i] = n_bytes;
        }
        pieces[1 + run].n_bytes = n_bytes;
    }
}

/* Joins the runs for a host to one block: turns the ends into offsets from the block's first row,
 * and pads the packed rows to whole lines. */
static void join_runs(const struct pack_job *job, int host)
{
    struct comm_mail_piece *pieces = job->pieces + (size_t)host * (1 + job->n_runs);
    const size_t n_rows = range_count(share_of(job->m->by_host, host, job->m->by_host->at.local));
    char *block = job->memory + pieces[0].offset;
    uint64_t *ends = result_block_ends(block), n_packed = 0;
    for (size_t run = 0; run < job->n_runs; run++) {
        const struct range rows = run_of(n_rows, job->n_runs, run);
        for (size_t i = rows.begin; i < rows.end; i++) ends[i] += n_packed;
        n_packed += pieces[1 + run].n_bytes;
    }
    struct comm_mail_piece *last = &pieces[job->n_runs];
    const size_t rest = (LINE - n_packed % LINE) % LINE;
    memset(job->memory + last->offset + last->n_bytes, 0, rest);
    last->n_bytes += rest;
    result_block_write_head(n_rows, result_head_bytes(n_rows) + n_packed + rest, block);
}

/* Places the blocks for all other hosts, with room for the longest form of each run, in this rank's
 * shared memory. */
static struct status lay_out_results(struct moe *m, struct pack_job *job)
{
    struct by_host *b = m->by_host;
    const size_t n_hosts = (size_t)b->at.n_hosts, bound = wire_ints_bound(m->o.model->width + 1);
    size_t at = comm_mail_head_bytes(b->mail, 1 + job->n_runs);
    TRY(moe_grow(m, BUF_PIECES, n_hosts * (1 + job->n_runs), sizeof *job->pieces, &job->pieces));
    memset(job->pieces, 0, n_hosts * (1 + job->n_runs) * sizeof *job->pieces);
    for (int h = 0; h < b->at.n_hosts; h++) {
        if (h == b->at.host) continue;
        struct comm_mail_piece *pieces = job->pieces + (size_t)h * (1 + job->n_runs);
        const size_t n = range_count(share_of(b, h, b->at.local));
        pieces[0] = (struct comm_mail_piece){at, result_head_bytes(n)};
        at += pieces[0].n_bytes;
        for (size_t run = 0; run < job->n_runs; run++) {
            pieces[1 + run].offset = at;
            at += (range_count(run_of(n, job->n_runs, run)) * bound + 2 * LINE) / LINE * LINE;
        }
    }
    b->shape.n_runs = job->n_runs;
    const size_t n_bytes = exchange_array_bytes(&b->shape, EXCHANGE_SUMS_OUT);
    assert(at <= n_bytes);
    job->memory = comm_mail_memory(b->mail, COMM_LANE_ROWS_BACK, n_bytes);
    return status_ok();
}

struct status exchange_hosts_reply(struct moe *m, struct pass *p)
{
    struct by_host *b = m->by_host;
    if (b->at.n_hosts == 1) return status_ok();
    struct team *team = m->o.kern->team;
    size_t n_rows = 0;
    for (int h = 0; h < b->at.n_hosts; h++)
        if (h != b->at.host) n_rows += range_count(share_of(b, h, b->at.local));
    b->shape.n_back = n_rows;
    if (n_rows * m->o.model->width < WORTH_THREADS) team = NULL;
    struct pack_job job = {.m = m, .grid_bits = p->w->grid_bits, .n_runs = team_size(team)};
    TRY(lay_out_results(m, &job));
    team_run(team, 1, pack_run, &job);
    for (int h = 0; h < b->at.n_hosts; h++)
        if (h != b->at.host) join_runs(&job, h);
    comm_mail_start(m->o.comm, b->mail, COMM_LANE_ROWS_BACK, job.pieces, 1 + job.n_runs);
    return status_ok();
}

/* --- sums at the token's rank --------------------------------------------------------------------
 */

/* Finds the blocks that came back, those of host 0's ranks first; b->to[h]: the first of host h. */
static void find_results(struct moe *m)
{
    struct by_host *b = m->by_host;
    size_t block = 0;
    for (int h = 0; h < b->at.n_hosts; h++) {
        size_t left, n_rows = 0;
        b->to[h].first_result = block;
        if (h == b->at.host) continue;
        const char *at = comm_mail_message(b->mail, h, &left);
        for (int r = 0; r < b->at.n_on[h]; r++) {
            struct result_block *in = &b->results[block++];
            if (!result_block_read(at, left, in)) moe_damaged(m, h);
            at += in->n_bytes;
            left -= in->n_bytes;
            n_rows += in->n_rows;
        }
        if (n_rows < b->to[h].first_row + b->to[h].n_rows) moe_damaged(m, h);
    }
}

/* The unread rest of a packed row that came back. */
struct packed_row {
    const char *at;
    size_t left;
};

/* Returns the packed row that host h sent back for row `row` of those that it got from this host.
 */
static struct packed_row result_of(const struct by_host *b, int h, size_t row)
{
    const struct result_block *in = &b->results[b->to[h].first_result];
    for (; row >= in->n_rows; in++) row -= in->n_rows;
    const uint64_t begin = row == 0 ? 0 : in->ends[row - 1];
    return (struct packed_row){in->rows + begin, (size_t)(in->ends[row] - begin)};
}

struct gather_job {
    const struct moe *m;
    const struct pass *p;
    atomic_int damaged; /* a host; -1: none */
};

/* The rows that came back from all other hosts for a token. */
struct token_results {
    struct packed_row rows[ROUTER_CHOSEN_MAX];
    int hosts[ROUTER_CHOSEN_MAX];
    size_t n;
};

static void find_token_results(const struct moe *m, size_t t, struct token_results *out)
{
    const struct by_host *b = m->by_host;
    out->n = 0;
    for (int h = 0; h < b->at.n_hosts; h++) {
        const int32_t row = b->row_of[t * (size_t)b->at.n_hosts + (size_t)h];
        if (row < 0 || h == b->at.host) continue;
        out->hosts[out->n] = h;
        out->rows[out->n++] = result_of(b, h, b->to[h].first_row + (size_t)row);
    }
}

static void add_results(struct gather_job *job, struct token_results *r, int64_t *sums, size_t n)
{
    for (size_t i = 0; i < r->n; i++) {
        const size_t n_bytes = wire_ints_add(r->rows[i].at, r->rows[i].left, sums, n);
        if (n_bytes == WIRE_INTS_BAD) {
            job->damaged = r->hosts[i];
            r->rows[i].left = 0;
            continue;
        }
        r->rows[i].at += n_bytes;
        r->rows[i].left -= n_bytes;
    }
}

/* out [D] = token t's sum over all hosts. Returns its counter. */
static int64_t gather_token(struct gather_job *job, size_t t, float *out)
{
    const struct moe *m = job->m;
    const struct by_host *b = m->by_host;
    const size_t d = m->o.model->width;
    const uint32_t grid_bits = job->p->w->grid_bits;
    const int32_t own = b->row_of[t * (size_t)b->at.n_hosts + (size_t)b->at.host];
    const float *rows[ROUTER_CHOSEN_MAX];
    int64_t sums[TILE + 1];
    struct host_choices c = {.n = 0};
    struct token_results r;
    find_token_results(m, t, &r);
    if (own >= 0)
        find_host_choices(m, b->from[b->at.host].row + b->to[b->at.host].first_row + (size_t)own,
                          &c);
    for (size_t at = 0, n; at < d; at += n) {
        n = d - at < TILE ? d - at : TILE;
        const bool is_last = at + n == d;
        const struct weighted_rows w = columns_of(&c, rows, at, n, grid_bits);
        memset(sums, 0, (n + 1) * sizeof *sums);
        c.n_bad += m->o.kern->weighted_add(&w, sums);
        if (is_last && n < TILE) {
            add_results(job, &r, sums, n + 1);
        } else {
            add_results(job, &r, sums, n);
            if (is_last) add_results(job, &r, sums + n, 1);
        }
        m->o.kern->grid_to_f32(sums, n, grid_bits, out + at);
        if (is_last) c.n_bad += sums[n];
    }
    return c.n_bad;
}

static void combine_gather_part(const void *job_, struct part part)
{
    struct gather_job *job = *(struct gather_job *const *)job_;
    const struct pass *p = job->p;
    const size_t d = job->m->o.model->width;
    size_t t, end;
    if (!part_take(&part, range_count(p->listed), d * job->m->o.model->moe.n_chosen, &t, &end))
        return;
    for (; t < end; t++) {
        const size_t token = p->listed.begin + t;
        const int64_t n_bad = gather_token(job, t, p->out + token * d);
        p->marks[2 * token] += n_bad > INT32_MAX ? INT32_MAX : (int32_t)n_bad;
    }
}

struct status exchange_hosts_combine(struct moe *m, struct pass *p)
{
    struct by_host *b = m->by_host;
    struct gather_job job = {.m = m, .p = p, .damaged = -1}, *at = &job;
    size_t sent;
    if (b->at.n_hosts > 1) {
        comm_mail_finish(m->o.comm, b->mail, &sent);
        m->traffic.combine_bytes += sent;
        find_results(m);
    }
    part_run(m->o.kern->team,
             (uint64_t)range_count(p->listed) * m->o.model->width * m->o.model->moe.n_chosen,
             combine_gather_part, &at);
    if (job.damaged >= 0) moe_damaged(m, job.damaged);
    moe_add_zero(m, p);
    moe_gather_outputs(m, p);
    return moe_add_output(m, p);
}

/* Divides attention among threads: a unit is a run of rows with one kv head. Neighbouring sequences
 * of a single row that begin with the same blocks are one run, which reads these blocks once. If
 * there are too few units for the threads and each sequence has a single row, the tiles of a row
 * are divided instead, and the results of its tiles are folded in order. */
#include "kernels/ops.h"

#include "kernels/body.h"
#include "kernels/device_ops.h"
#include "kernels/part.h"

#include <assert.h>

enum {
    RUN_QUERIES = 256, /* queries of a run (rows times heads); they share loaded keys and values */
    SHORT_QUERIES = 128,  /* queries of a run if long runs are too few for the threads */
    RUNS_PER_THREAD = 16, /* runs per thread that keep all threads busy */
    LOAD_COST = 8,        /* a key and value's load costs as much as this many queries' use */
    QUERY_COST = 8,       /* cost of a query besides its positions, in positions */
    UNITS_PER_THREAD = 4, /* with this many units per thread, tiles are not divided */
    WORTH_TILES = 4,      /* fewest tiles of a row worth dividing */
    WORTH_SHARING = 2,    /* sequences with fewer common first blocks are not joined */
};

struct attention_job {
    const struct kern_table *k;
    const struct attn_args *a;
    size_t n_kv, run_rows, n_heads; /* kv heads; rows of a run; query heads of a kv head */
    size_t group;                   /* most sequences of a run */
    size_t tiles;                   /* of each row in a round, when tiles are divided */
    size_t round;
    float *states; /* [n_seqs, H, 2] */
};

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Returns the rows of a run of at most n_queries queries: a multiple of four, or 1. */
static size_t rows_of_run(const struct attention_job *job, size_t n_queries)
{
    const size_t n = n_queries / job->n_heads / 4 * 4;
    return n < 4 ? 1 : min_size(n, n_queries / 2);
}

/* Rows that one unit computes: n rows of a sequence, from row0 on; or, with n_shared, the single
 * rows of n sequences that begin with the same n_shared blocks (struct attn_slice). */
struct run {
    size_t seq, row0, n, n_shared;
};

/* Returns the number of blocks, at most `most`, with which both sequences begin. The block of b's
 * own row is not counted. */
static size_t shared_blocks(const struct seq_rows *a, const struct seq_rows *b, size_t most)
{
    size_t n = 0;
    most = min_size(most, b->pos0 / KV_BLOCK_TOKENS);
    while (n < most && a->blocks[n] == b->blocks[n]) n++;
    return n;
}

/* Lets the single rows of the next sequences join r's, up to one that shares too few blocks or
 * would shorten the shared beginning to less than half. */
static void gather(const struct attention_job *job, struct run *r)
{
    const struct seq_rows *seq = &job->a->seqs[r->seq];
    const size_t n_left = job->a->n_seqs - r->seq;
    size_t most = seq->pos0 / KV_BLOCK_TOKENS;
    while (r->n < min_size(job->group, n_left) && seq[r->n].n_rows == 1) {
        const size_t n = shared_blocks(seq, seq + r->n, most);
        if (n < WORTH_SHARING || 2 * n < r->n_shared) return;
        most = r->n_shared = n;
        r->n++;
    }
}

/* Returns the run that begins at a row; past the last sequence, a run without rows. */
static struct run run_at(const struct attention_job *job, size_t seq, size_t row0)
{
    while (seq < job->a->n_seqs && job->a->seqs[seq].n_rows == 0) seq++;
    struct run r = {.seq = seq, .row0 = row0};
    if (seq == job->a->n_seqs) return r;
    r.n = min_size(job->a->seqs[seq].n_rows - row0, job->run_rows);
    if (job->a->seqs[seq].n_rows == 1) gather(job, &r);
    return r;
}

static struct run run_after(const struct attention_job *job, const struct run *r)
{
    if (r->n_shared > 0) return run_at(job, r->seq + r->n, 0);
    const size_t row0 = r->row0 + r->n;
    return row0 < job->a->seqs[r->seq].n_rows ? run_at(job, r->seq, row0)
                                              : run_at(job, r->seq + 1, 0);
}

static size_t count_runs(const struct attention_job *job)
{
    size_t n = 0;
    for (struct run r = run_at(job, 0, 0); r.n > 0; r = run_after(job, &r)) n++;
    return n * job->n_kv;
}

static struct attention_job job_of(const struct kern_table *k, const struct attn_args *a)
{
    struct attention_job job = {.k = k, .a = a};
    for (size_t h = 0; h < a->n_heads; h++)
        if (a->kv_of_head[h] >= job.n_kv) job.n_kv = a->kv_of_head[h] + 1u;
    job.n_heads = (a->n_heads + job.n_kv - 1) / job.n_kv;
    job.run_rows = rows_of_run(&job, RUN_QUERIES);
    const size_t n_threads = team_size(k->team);
    if (a->window == 0) {
        job.group = RUN_QUERIES / job.n_heads;
        if (n_threads > 1) /* every thread needs units */
            job.group = min_size(job.group, a->n_seqs * job.n_kv / (UNITS_PER_THREAD * n_threads));
    }
    if (n_threads > 1 && count_runs(&job) < RUNS_PER_THREAD * n_threads)
        job.run_rows = rows_of_run(&job, SHORT_QUERIES);
    return job;
}

/* Sets the query heads of kv head g, which are consecutive. */
static void set_heads(const struct attention_job *job, size_t g, struct attn_slice *s)
{
    const struct attn_args *a = job->a;
    s->head0 = 0;
    while (s->head0 < a->n_heads && a->kv_of_head[s->head0] != g) s->head0++;
    s->head1 = s->head0;
    while (s->head1 < a->n_heads && a->kv_of_head[s->head1] == g) s->head1++;
}

/* Returns the cost, in multiply-adds, of one kv head's queries in n rows that see `seen`
 * positions. */
static uint64_t queries_cost(const struct attention_job *job, size_t n, size_t seen)
{
    return (uint64_t)(seen + QUERY_COST) * (n * job->n_heads + LOAD_COST) * job->a->kv.head_dim * 2;
}

/* Returns the cost of one kv head in a run. */
static uint64_t run_cost(const struct attention_job *job, const struct run *r)
{
    const struct seq_rows *seq = &job->a->seqs[r->seq];
    if (r->n_shared > 0) {
        uint64_t cost = queries_cost(job, r->n, r->n_shared * KV_BLOCK_TOKENS);
        for (size_t i = 0; i < r->n; i++)
            cost += queries_cost(job, 1, seq[i].pos0 + 1 - r->n_shared * KV_BLOCK_TOKENS);
        return cost;
    }
    const size_t all = seq->pos0 + seq->n_rows, window = job->a->window;
    const size_t mean = job->a->ahead ? all : seq->pos0 + r->row0 + r->n - r->n / 2;
    const size_t most = job->a->ahead ? 2 * window : window;
    return queries_cost(job, r->n, window > 0 ? min_size(mean, most) : mean);
}

static void runs_part(const void *job_, struct part part)
{
    const struct attention_job *job = job_;
    size_t g0, g1;
    /* ends with the share: looking for further runs would read block tables for nothing */
    for (struct run r = run_at(job, 0, 0); r.n > 0 && part.at < part.end; r = run_after(job, &r)) {
        if (!part_take(&part, job->n_kv, run_cost(job, &r), &g0, &g1)) continue;
        for (size_t g = g0; g < g1; g++) {
            struct attn_slice slice = {
                .seq = r.seq, .row0 = r.row0, .row1 = r.row0 + r.n, .n_shared = r.n_shared};
            set_heads(job, g, &slice);
            job->k->attention[job->a->kv.dtype](job->a, &slice);
        }
    }
}

static void attend_runs(const struct attention_job *job)
{
    uint64_t cost = 0;
    for (struct run r = run_at(job, 0, 0); r.n > 0; r = run_after(job, &r))
        cost += job->n_kv * run_cost(job, &r);
    part_run(job->k->team, cost, runs_part, job);
}

/* Finds the tiles [*tile0, *tile1) of sequence s that belong to the job's round, and returns their
 * number. Rounds count from the first tile that the sequence's row sees. */
static size_t round_tiles(const struct attention_job *job, size_t s, size_t *tile0, size_t *tile1)
{
    const size_t p = job->a->seqs[s].pos0, last = p / KV_BLOCK_TOKENS + 1;
    const size_t first = kern_first_visible(p, job->a->window) / KV_BLOCK_TOKENS;
    *tile0 = min_size(first + job->round * job->tiles, last);
    *tile1 = min_size(*tile0 + job->tiles, last);
    return *tile1 - *tile0;
}

/* Returns the slice of sequence s in this round; the caller sets heads and tiles. */
static struct attn_slice round_slice(const struct attention_job *job, size_t s)
{
    const struct attn_args *a = job->a;
    const size_t stride = a->n_heads * kern_part_floats(a->kv.head_dim);
    return (struct attn_slice){.seq = s,
                               .row1 = 1,
                               .parts = a->parts + s * job->tiles * stride,
                               .states = job->states + s * a->n_heads * 2};
}

static void tiles_part(const void *job_, struct part part)
{
    const struct attention_job *job = job_;
    const struct attn_args *a = job->a;
    const size_t stride = a->n_heads * kern_part_floats(a->kv.head_dim);
    size_t first, end, n0, n1;
    for (size_t s = 0; s < a->n_seqs; s++) {
        const size_t n = round_tiles(job, s, &first, &end);
        for (size_t g = 0; g < job->n_kv; g++) {
            if (!part_take(&part, n, queries_cost(job, 1, KV_BLOCK_TOKENS), &n0, &n1)) continue;
            struct attn_slice slice = round_slice(job, s);
            set_heads(job, g, &slice);
            slice.parts += n0 * stride;
            slice.tile0 = first + n0;
            slice.tile1 = first + n1;
            job->k->attention[a->kv.dtype](a, &slice);
        }
    }
}

static void fold_part(const void *job_, struct part part)
{
    const struct attention_job *job = job_;
    const struct attn_args *a = job->a;
    for (size_t s = 0; s < a->n_seqs; s++) {
        struct attn_slice slice = round_slice(job, s);
        const size_t n = round_tiles(job, s, &slice.tile0, &slice.tile1);
        if (n > 0 && part_take(&part, a->n_heads, n * a->kv.head_dim, &slice.head0, &slice.head1))
            job->k->attention_fold(a, &slice);
    }
}

/* Returns the number of tiles per row and round for which the memory of `parts` suffices; 0: do
 * not divide tiles. */
static size_t tiles_of_round(const struct attention_job *job)
{
    const struct attn_args *a = job->a;
    const size_t n_threads = team_size(job->k->team), n_rows_heads = a->n_seqs * a->n_heads;
    size_t n_tiles = 0;
    if (n_threads == 1 || a->n_seqs * job->n_kv >= UNITS_PER_THREAD * n_threads) return 0;
    for (size_t s = 0; s < a->n_seqs; s++) {
        const size_t p = a->seqs[s].pos0, lo = kern_first_visible(p, a->window);
        const size_t n = p / KV_BLOCK_TOKENS - lo / KV_BLOCK_TOKENS + 1;
        if (a->seqs[s].n_rows != 1) return 0;
        if (n > n_tiles) n_tiles = n;
    }
    if (n_tiles < WORTH_TILES || a->n_part_floats < 2 * n_rows_heads) return 0;
    const size_t floats = a->n_part_floats - 2 * n_rows_heads;
    return min_size(n_tiles, floats / (n_rows_heads * kern_part_floats(a->kv.head_dim)));
}

static void attend_tiles(struct attention_job *job)
{
    const struct attn_args *a = job->a;
    const uint64_t tile_cost = queries_cost(job, 1, KV_BLOCK_TOKENS) * job->n_kv;
    job->states = a->parts + a->n_part_floats - 2 * a->n_seqs * a->n_heads;
    for (job->round = 0;; job->round++) {
        size_t n = 0, tile0, tile1;
        for (size_t s = 0; s < a->n_seqs; s++) n += round_tiles(job, s, &tile0, &tile1);
        if (n == 0) return;
        part_run(job->k->team, n * tile_cost, tiles_part, job);
        part_run(job->k->team, n * a->n_heads * a->kv.head_dim, fold_part, job);
    }
}

void op_attention(const struct kern_table *k, const struct attn_args *a)
{
    assert(!a->ahead || ((a->window & KERN_CHUNKS) == 0 && k->device == NULL));
    if (k->device != NULL) {
        device_ops_of(k->device)->attention(k->device, a);
        return;
    }
    struct attention_job job = job_of(k, a);
    job.tiles = tiles_of_round(&job);
    if (job.tiles > 0)
        attend_tiles(&job);
    else
        attend_runs(&job);
}

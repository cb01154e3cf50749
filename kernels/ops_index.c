/* Sparse attention: divides the scores of an index and the choice of positions among threads, and
 * attends to the chosen positions. These are gathered into blocks of a cache of their own, which
 * ordinary attention then reads. Chosen blocks are read where they are. */
#include "kernels/ops.h"
#include "kernels/ops_sparse.h"

#include "kernels/body.h"
#include "kernels/part.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum {
    CHOOSE_PASSES = 5, /* over the scores of a row */
    POOL_PASSES = 2,   /* likewise, to find the largest score of each block */
    QUERY_COST = 8,    /* cost of a query besides its positions, in positions */
};

/* A walk over the rows that see more positions than they choose, in the order of the sequences. */
struct sparse_walk {
    const struct seq_rows *seqs;
    size_t n_seqs;
    uint32_t n_chosen;
    size_t seq, row; /* the row at hand, counted in its sequence */
};

/* Moves to the next row of the walk, which may be the row at hand. False: no row is left. */
static bool walk_find(struct sparse_walk *w)
{
    for (; w->seq < w->n_seqs; w->seq++, w->row = 0) {
        const struct seq_rows *s = &w->seqs[w->seq];
        const size_t first = w->n_chosen > s->pos0 ? w->n_chosen - s->pos0 : 0;
        if (w->row < first) w->row = first;
        if (w->row < s->n_rows) return true;
    }
    return false;
}

static size_t walk_position(const struct sparse_walk *w)
{
    return w->seqs[w->seq].pos0 + w->row;
}

static size_t tiles_of(size_t n_positions)
{
    return (n_positions + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
}

/* Some rows of the walk, from `first` on. */
struct index_job {
    const struct kern_table *k;
    const struct index_args *a;
    struct sparse_walk first;
    size_t n_rows;
    float *scores;  /* [n_rows, n_lists, stride] */
    size_t n_lists; /* 1, or one for each head */
    size_t stride;
    int32_t *chosen;
    const struct block_choice *blocks; /* NULL: positions are chosen */
};

static uint64_t tile_cost(const struct index_args *a)
{
    return (uint64_t)KV_BLOCK_TOKENS * a->n_heads * a->keys.head_dim + 1;
}

static void scores_part(const void *job_, struct part part)
{
    const struct index_job *job = job_;
    struct sparse_walk w = job->first;
    for (size_t i = 0; i < job->n_rows && walk_find(&w); i++, w.row++) {
        struct index_slice s = {.seq = w.seq,
                                .row = w.row,
                                .scores = job->scores + i * job->n_lists * job->stride,
                                .stride = job->stride};
        const size_t n_tiles = tiles_of(walk_position(&w) + 1);
        if (part_take(&part, n_tiles, tile_cost(job->a), &s.tile0, &s.tile1))
            job->k->index_scores[job->a->keys.dtype](job->a, &s);
    }
}

static void choose_part(const void *job_, struct part part)
{
    const struct index_job *job = job_;
    const uint32_t n = job->a->n_chosen;
    struct sparse_walk w = job->first;
    size_t i0, i1;
    if (!part_take(&part, job->n_rows, CHOOSE_PASSES * job->stride, &i0, &i1)) return;
    for (size_t i = 0; i < i1 && walk_find(&w); i++, w.row++) {
        const size_t row = job->a->seqs[w.seq].row0 + w.row;
        if (i < i0) continue;
        job->k->index_choose(job->scores + i * job->stride, walk_position(&w) + 1, n,
                             job->chosen + row * n);
    }
}

/* Replaces the scores [n] of positions by those of their blocks. Returns the number of blocks. */
static size_t pool_scores(float *scores, size_t n, const struct block_choice *c)
{
    const size_t n_blocks = (n + c->block - 1) / c->block;
    for (size_t b = 0; b < n_blocks; b++) {
        float lanes[LANES], most = -INFINITY;
        const size_t end = (b + 1) * c->block < n ? (b + 1) * c->block : n;
        size_t j = b * c->block;
        for (size_t i = 0; i < LANES; i++) lanes[i] = -INFINITY;
        for (; j + LANES <= end; j += LANES)
            for (size_t i = 0; i < LANES; i++)
                lanes[i] = scores[j + i] > lanes[i] ? scores[j + i] : lanes[i];
        for (size_t i = 0; i < LANES; i++) most = lanes[i] > most ? lanes[i] : most;
        for (; j < end; j++) most = scores[j] > most ? scores[j] : most;
        scores[b] = most; /* of a position before the next block */
    }
    for (size_t i = 0; i < c->n_local && i < n_blocks; i++) scores[n_blocks - 1 - i] = INFINITY;
    return n_blocks;
}

static void choose_blocks_part(const void *job_, struct part part)
{
    const struct index_job *job = job_;
    const struct block_choice *c = job->blocks;
    struct sparse_walk w = job->first;
    size_t h0, h1;
    for (size_t i = 0; i < job->n_rows && walk_find(&w); i++, w.row++) {
        const size_t row = job->a->seqs[w.seq].row0 + w.row;
        if (!part_take(&part, job->n_lists, POOL_PASSES * job->stride, &h0, &h1)) continue;
        for (size_t h = h0; h < h1; h++) {
            float *scores = job->scores + (i * job->n_lists + h) * job->stride;
            const size_t n = pool_scores(scores, walk_position(&w) + 1, c);
            job->k->index_choose(scores, n, c->n_blocks,
                                 c->chosen + (row * job->n_lists + h) * c->n_blocks);
        }
    }
}

/* Makes the choices of all rows of `job`, as many rows at a time as n_floats scores allow. */
static void choose_all(struct index_job *job, size_t n_floats)
{
    const struct index_args *a = job->a;
    struct sparse_walk w = {.seqs = a->seqs, .n_seqs = a->n_seqs, .n_chosen = a->n_chosen};
    size_t most = 1;
    assert(job->k->device == NULL && a->keys.latent && a->keys.n_kv_heads == 1);
    for (size_t s = 0; s < a->n_seqs; s++) {
        const size_t n = a->seqs[s].pos0 + a->seqs[s].n_rows;
        if (n > most) most = n;
    }
    job->stride = tiles_of(most) * KV_BLOCK_TOKENS;
    const size_t n_most = n_floats / (job->stride * job->n_lists);
    const uint64_t passes = job->blocks != NULL ? POOL_PASSES : CHOOSE_PASSES;
    assert(n_most > 0);
    while (walk_find(&w)) {
        uint64_t cost = 0;
        job->first = w;
        for (job->n_rows = 0; job->n_rows < n_most && walk_find(&w); job->n_rows++, w.row++)
            cost += tiles_of(walk_position(&w) + 1) * tile_cost(a);
        part_run(job->k->team, cost, scores_part, job);
        part_run(job->k->team, job->n_rows * job->n_lists * passes * job->stride,
                 job->blocks != NULL ? choose_blocks_part : choose_part, job);
    }
}

void op_index(const struct kern_table *k, const struct index_args *a, int32_t *chosen,
              float *scores, size_t n_floats)
{
    struct index_job job = {.k = k, .a = a, .scores = scores, .n_lists = 1, .chosen = chosen};
    choose_all(&job, n_floats);
}

void op_index_blocks(const struct kern_table *k, const struct index_args *a,
                     const struct block_choice *to, float *scores, size_t n_floats)
{
    struct index_job job = {.k = k, .a = a, .scores = scores, .n_lists = a->n_heads, .blocks = to};
    assert(a->weights == NULL && a->n_chosen == to->n_blocks * to->block);
    choose_all(&job, n_floats);
}

size_t sparse_gather_bytes(const struct kv_view *kv, uint32_t n_chosen)
{
    const size_t halves = (size_t)kv->n_kv_heads * (kv->latent ? 1 : 2);
    return tiles_of(n_chosen) * halves * kv_half_bytes(kv->dtype, kv->head_dim);
}

struct gather_job {
    const struct sparse_args *a;
    struct sparse_walk first;
    struct kv_view to;
    size_t n_rows, n_tiles;
};

/* Copies the keys and values of one tile of a row's chosen positions, number 64 n to 64 n + 63, to
 * block `to` of job->to. */
static void gather_tile(const struct gather_job *job, const struct sparse_walk *w, size_t n,
                        size_t to)
{
    const struct kv_view *kv = &job->a->attention.kv;
    const struct seq_rows *seq = &w->seqs[w->seq];
    const size_t hd = kv->head_dim, bytes = hd * dtype_bytes(kv->dtype),
                 n_chosen = job->a->n_chosen;
    const int32_t *chosen = job->a->chosen + (seq->row0 + w->row) * n_chosen;
    for (size_t i = n * KV_BLOCK_TOKENS; i < n_chosen && i < (n + 1) * KV_BLOCK_TOKENS; i++) {
        const size_t p = (size_t)chosen[i], from_slot = p % KV_BLOCK_TOKENS,
                     slot = i % KV_BLOCK_TOKENS;
        for (int what = 0; what < (kv->latent ? 1 : 2); what++) {
            for (size_t g = 0; g < kv->n_kv_heads; g++) {
                const char *from = kern_kv_half(kv, seq->blocks[p / KV_BLOCK_TOKENS], what, g);
                char *half = kern_kv_half(&job->to, (int32_t)to, what, g);
                memcpy(half + slot * bytes, from + from_slot * bytes, bytes);
                if (kv->dtype == DTYPE_I8)
                    kern_kv_scales(half, hd)[slot] = kern_kv_scales(from, hd)[from_slot];
            }
        }
    }
}

static uint64_t gather_cost(const struct sparse_args *a)
{
    const struct kv_view *kv = &a->attention.kv;
    return (uint64_t)KV_BLOCK_TOKENS * kv->n_kv_heads * kv->head_dim + 1;
}

static void gather_part(const void *job_, struct part part)
{
    const struct gather_job *job = job_;
    struct sparse_walk w = job->first;
    size_t n0, n1;
    for (size_t i = 0; i < job->n_rows && walk_find(&w); i++, w.row++) {
        if (!part_take(&part, job->n_tiles, gather_cost(job->a), &n0, &n1)) continue;
        for (size_t n = n0; n < n1; n++) gather_tile(job, &w, n, i * job->n_tiles + n);
    }
}

/* Attends with the rows that see at most n_chosen positions; rows [n_seqs] is working memory. */
static void attend_all(const struct kern_table *k, const struct attn_args *a, uint32_t n_chosen,
                       struct seq_rows *rows)
{
    struct attn_args dense = *a;
    dense.n_seqs = 0;
    dense.seqs = rows;
    for (size_t s = 0; s < a->n_seqs; s++) {
        struct seq_rows seq = a->seqs[s];
        if (seq.pos0 >= n_chosen) continue;
        if (seq.n_rows > n_chosen - seq.pos0) seq.n_rows = n_chosen - seq.pos0;
        rows[dense.n_seqs++] = seq;
    }
    if (dense.n_seqs > 0) op_attention(k, &dense);
}

/* Makes each row of the job a sequence of its chosen positions, and attends. */
static void attend_gathered(const struct gather_job *job, const struct kern_table *k)
{
    const struct sparse_args *a = job->a;
    struct attn_args gathered = a->attention;
    struct sparse_walk w = job->first;
    for (size_t i = 0; i < job->n_rows && walk_find(&w); i++, w.row++) {
        a->rows[i] = (struct seq_rows){.row0 = w.seqs[w.seq].row0 + w.row,
                                       .n_rows = 1,
                                       .pos0 = a->n_chosen - 1,
                                       .blocks = a->blocks + i * job->n_tiles};
    }
    gathered.kv = job->to;
    gathered.seqs = a->rows;
    gathered.n_seqs = job->n_rows;
    op_attention(k, &gathered);
}

void op_sparse_attention(const struct kern_table *k, const struct sparse_args *a)
{
    struct sparse_walk w = {
        .seqs = a->attention.seqs, .n_seqs = a->attention.n_seqs, .n_chosen = a->n_chosen};
    const size_t n_tiles = tiles_of(a->n_chosen);
    assert(k->device == NULL && a->attention.window == 0);
    attend_all(k, &a->attention, a->n_chosen, a->rows);
    for (size_t i = 0; i < a->n_gather * n_tiles; i++) a->blocks[i] = (int32_t)i;
    while (walk_find(&w)) {
        struct gather_job job = {.a = a, .first = w, .to = a->attention.kv, .n_tiles = n_tiles};
        job.to.base = a->gathered;
        job.to.beside_bytes = 0;
        for (; job.n_rows < a->n_gather && walk_find(&w); job.n_rows++, w.row++) continue;
        part_run(k->team, job.n_rows * n_tiles * gather_cost(a), gather_part, &job);
        attend_gathered(&job, k);
    }
}

/* Makes the queries of the walk's row and KV head g a sequence of their chosen blocks, whose table
 * is `table`. */
static struct seq_rows block_sequence(const struct block_attention *a, const struct sparse_walk *w,
                                      size_t g, int32_t *table)
{
    const struct block_choice *c = &a->choice;
    const struct seq_rows *seq = &w->seqs[w->seq];
    const size_t row = seq->row0 + w->row, p = walk_position(w), own = p / c->block;
    const size_t n_tiles = c->block / KV_BLOCK_TOKENS;
    const int32_t *chosen = c->chosen + (row * a->attention.kv.n_kv_heads + g) * c->n_blocks;
    const size_t n_all = (size_t)c->n_blocks * c->block;
    const bool has_own = (size_t)chosen[c->n_blocks - 1] == own;
    for (size_t b = 0; b < c->n_blocks; b++) {
        for (size_t i = 0; i < n_tiles; i++) {
            const size_t n = (size_t)chosen[b] * n_tiles + i; /* the own block may be shorter */
            table[b * n_tiles + i] = n <= p / KV_BLOCK_TOKENS ? seq->blocks[n] : 0;
        }
    }
    return (struct seq_rows){.row0 = row,
                             .n_rows = 1,
                             .pos0 = has_own ? n_all - c->block + p % c->block : n_all - 1,
                             .blocks = table};
}

/* Units of one row and one KV head: args.seqs [n_units], G of each row. */
struct block_job {
    const struct kern_table *k;
    struct attn_args args;
    size_t n_units;
    uint64_t unit_cost;
};

static void blocks_part(const void *job_, struct part part)
{
    const struct block_job *job = job_;
    const struct attn_args *a = &job->args;
    size_t u0, u1;
    if (!part_take(&part, job->n_units, job->unit_cost, &u0, &u1)) return;
    for (size_t u = u0; u < u1; u++) {
        const size_t g = u % a->kv.n_kv_heads;
        struct attn_slice slice = {.seq = u, .row1 = 1};
        while (a->kv_of_head[slice.head0] != g) slice.head0++;
        slice.head1 = slice.head0;
        while (slice.head1 < a->n_heads && a->kv_of_head[slice.head1] == g) slice.head1++;
        job->k->attention[a->kv.dtype](a, &slice);
    }
}

void op_block_attention(const struct kern_table *k, const struct block_attention *a)
{
    const size_t n_kv = a->attention.kv.n_kv_heads;
    const uint32_t n_chosen = a->choice.n_blocks * a->choice.block;
    const size_t n_tiles = n_chosen / KV_BLOCK_TOKENS;
    struct sparse_walk w = {
        .seqs = a->attention.seqs, .n_seqs = a->attention.n_seqs, .n_chosen = n_chosen};
    struct block_job job = {.k = k, .args = a->attention};
    assert(k->device == NULL && a->attention.window == 0);
    attend_all(k, &a->attention, n_chosen, a->rows);
    for (; walk_find(&w); w.row++) {
        for (size_t g = 0; g < n_kv; g++, job.n_units++)
            a->rows[job.n_units] = block_sequence(a, &w, g, a->tables + job.n_units * n_tiles);
    }
    job.args.seqs = a->rows;
    job.args.n_seqs = job.n_units;
    job.unit_cost = (uint64_t)(n_chosen + QUERY_COST) * (a->attention.n_heads / n_kv + 1) *
                    a->attention.kv.head_dim * 2;
    part_run(k->team, job.n_units * job.unit_cost, blocks_part, &job);
}

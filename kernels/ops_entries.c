/* Compressed attention: makes entries from rows, and attends to a window and to entries. The keys
 * and entries of a row are gathered into blocks of a cache of their own, which ordinary attention
 * then reads. Called by model/stage_compressed.c. */
#include "kernels/body.h"
#include "kernels/elementary.h"
#include "kernels/ops.h"
#include "kernels/ops_sparse.h"
#include "kernels/part.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum {
    POOL_CHANNELS = 64, /* channels of a unit of work */
    POOL_COST = 64,     /* cost of a channel of a row, in multiply-adds */
    ROPE_MOST = 1024,   /* rotated elements of a head */
};

static size_t entry_places_of(uint32_t rate)
{
    return rate < KV_BLOCK_TOKENS ? KV_BLOCK_TOKENS / rate : 1;
}

/* Returns the block that holds entry w of a sequence. */
static int32_t block_of_entry(const struct seq_rows *seq, uint32_t rate, size_t w)
{
    return seq->blocks[(w * rate + rate - 1) / KV_BLOCK_TOKENS];
}

/* An element row of the cache and, for i8, its scale. */
struct kv_row {
    char *at;
    float *scale;
};

/* Returns the place of entry w of a sequence, or of its index key. */
static struct kv_row entry_place(const struct entry_view *v, const struct seq_rows *seq, size_t w,
                                 bool is_index)
{
    const struct kv_view *kv = &v->kv;
    const size_t n = entry_places_of(v->rate), slot = w % n, bytes = dtype_bytes(kv->dtype);
    const size_t entry = kv->head_dim * bytes, key = v->index_dim * bytes;
    char *block = (char *)kern_kv_half(kv, block_of_entry(seq, v->rate, w), 0, 0) +
                  kv_half_bytes(kv->dtype, kv->head_dim);
    return (struct kv_row){.at = block + (is_index ? n * entry + slot * key : slot * entry),
                           .scale = (float *)(void *)(block + n * (entry + key)) +
                                    (is_index ? n : 0) + slot};
}

/* Returns slot `slot` of a block of keys. */
static struct kv_row key_place(const struct kv_view *kv, int32_t block, size_t slot)
{
    char *half = kern_kv_half(kv, block, 0, 0);
    return (struct kv_row){half + slot * kv->head_dim * dtype_bytes(kv->dtype),
                           kern_kv_scales(half, kv->head_dim) + slot};
}

static void copy_row(enum dtype dtype, size_t dim, struct kv_row from, struct kv_row to)
{
    memcpy(to.at, from.at, dim * dtype_bytes(dtype));
    if (dtype == DTYPE_I8) *to.scale = *from.scale;
}

static struct pool_sums sums_at(float *state, uint32_t part, uint32_t dim, size_t channel)
{
    float *m = state + 3 * (size_t)part * dim + channel;
    return (struct pool_sums){m, m + dim, m + 2 * dim};
}

struct pool_job {
    const struct kern_table *k;
    const struct pool_args *a;
};

static void clear_sums(const struct pool_sums *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        p->m[i] = -INFINITY;
        p->l[i] = p->s[i] = 0;
    }
}

/* At the first row of an entry: with two parts, the sums that earlier rows made for it become its
 * own, and those for the entry after it begin; with one, its own begin. */
static void begin_entry(const struct pool_args *a, float *state, size_t channel, size_t n)
{
    const struct pool_sums own = sums_at(state, a->parts - 1, a->dim, channel);
    const struct pool_sums next = sums_at(state, 0, a->dim, channel);
    if (a->parts == 2) {
        memcpy(own.m, next.m, n * sizeof *own.m);
        memcpy(own.l, next.l, n * sizeof *own.l);
        memcpy(own.s, next.s, n * sizeof *own.s);
    }
    clear_sums(&next, n);
}

/* Runs the rows of a sequence through n channels. The quotient S / L of a finished entry goes to
 * the first part of v in the entry's last row. */
static void pool_channels(const struct pool_job *job, const struct seq_rows *seq, size_t channel,
                          size_t n)
{
    const struct pool_args *a = job->a;
    const uint32_t rate = a->to.rate;
    const size_t width = (size_t)a->parts * a->dim;
    float *state = a->states + seq->slot * a->state_stride;
    const struct pool_sums own = sums_at(state, a->parts - 1, a->dim, channel);
    const struct pool_sums next = sums_at(state, 0, a->dim, channel);
    if (seq->pos0 == 0) clear_sums(&next, n);
    for (size_t t = 0; t < seq->n_rows; t++) {
        const size_t p = seq->pos0 + t, at = (seq->row0 + t) * width + channel;
        const float *bias = a->bias + p % rate * width + channel;
        if (p % rate == 0) begin_entry(a, state, channel, n);
        for (uint32_t part = 0; part < a->parts; part++) {
            const struct pool_sums sums = sums_at(state, part, a->dim, channel);
            const size_t i = part * a->dim;
            job->k->pool_add(&sums, a->z + at + i, bias + i, a->v + at + i, n);
        }
        if (p % rate + 1 != rate) continue;
        for (size_t i = 0; i < n; i++) a->v[at + i] = own.s[i] / own.l[i];
    }
}

static size_t channel_units(const struct pool_args *a)
{
    return (a->dim + POOL_CHANNELS - 1) / POOL_CHANNELS;
}

static void channels_part(const void *job_, struct part part)
{
    const struct pool_job *job = job_;
    const struct pool_args *a = job->a;
    for (size_t s = 0; s < a->n_seqs; s++) {
        const struct seq_rows *seq = &a->seqs[s];
        const uint64_t cost = (uint64_t)seq->n_rows * a->parts * POOL_CHANNELS * POOL_COST;
        size_t unit, end;
        if (!part_take(&part, channel_units(a), cost, &unit, &end)) continue;
        for (; unit < end; unit++) {
            const size_t c = unit * POOL_CHANNELS, left = a->dim - c;
            pool_channels(job, seq, c, left < POOL_CHANNELS ? left : POOL_CHANNELS);
        }
    }
}

/* Norms and rotates an entry x [dim] in place, and stores it. */
static void finish_entry(const struct pool_job *job, const struct seq_rows *seq, size_t w, float *x)
{
    const struct pool_args *a = job->a;
    const struct kv_row to = entry_place(&a->to, seq, w, a->is_index);
    float cos[ROPE_MOST / 2], sin[ROPE_MOST / 2];
    for (uint32_t i = 0; i < a->rot / 2; i++) {
        el_sincosf((float)(w * a->to.rate) * a->inv_freq[i], &sin[i], &cos[i]);
        cos[i] *= a->rope_scale;
        sin[i] *= a->rope_scale;
    }
    job->k->rmsnorm(x, a->norm, a->dim, a->eps, x);
    rope_end(job->k, x + a->dim - a->rot, cos, sin, a->rot);
    job->k->kv_store[a->to.kv.dtype](x, a->dim, to.at, to.scale);
}

static void entries_part(const void *job_, struct part part)
{
    const struct pool_job *job = job_;
    const struct pool_args *a = job->a;
    const uint32_t rate = a->to.rate;
    for (size_t s = 0; s < a->n_seqs; s++) {
        const struct seq_rows *seq = &a->seqs[s];
        const size_t first = seq->pos0 / rate, n = (seq->pos0 + seq->n_rows) / rate - first;
        size_t i, end;
        if (!part_take(&part, n, (uint64_t)a->dim * POOL_COST, &i, &end)) continue;
        for (; i < end; i++) {
            const size_t row = seq->row0 + (first + i + 1) * rate - 1 - seq->pos0;
            finish_entry(job, seq, first + i, a->v + row * a->parts * a->dim);
        }
    }
}

void op_pool(const struct kern_table *k, const struct pool_args *a)
{
    const struct pool_job job = {k, a};
    uint64_t entries = 0;
    assert(k->device == NULL && (a->parts == 1 || a->parts == 2) && a->rot <= ROPE_MOST);
    part_run(k->team, (uint64_t)a->n_rows * a->parts * channel_units(a) * POOL_CHANNELS * POOL_COST,
             channels_part, &job);
    for (size_t s = 0; s < a->n_seqs; s++)
        entries +=
            (a->seqs[s].pos0 + a->seqs[s].n_rows) / a->to.rate - a->seqs[s].pos0 / a->to.rate;
    part_run(k->team, entries * a->dim * POOL_COST, entries_part, &job);
}

struct keys_job {
    const struct entry_view *from;
    const struct seq_rows *seq;
    const struct kv_view *to;
    size_t n;
};

static void keys_part(const void *job_, struct part part)
{
    const struct keys_job *job = job_;
    const struct kv_view *to = job->to;
    size_t w, end;
    if (!part_take(&part, job->n, to->head_dim, &w, &end)) return;
    for (; w < end; w++)
        copy_row(to->dtype, to->head_dim, entry_place(job->from, job->seq, w, true),
                 key_place(to, (int32_t)(w / KV_BLOCK_TOKENS), w % KV_BLOCK_TOKENS));
}

void op_entry_keys(const struct kern_table *k, const struct entry_view *from,
                   const struct seq_rows *seq, size_t n, const struct kv_view *to)
{
    const struct keys_job job = {from, seq, to, n};
    assert(k->device == NULL && to->head_dim == from->index_dim);
    part_run(k->team, (uint64_t)n * to->head_dim, keys_part, &job);
}

/* Some rows of the step, from a row of a sequence on. */
struct gather_rows {
    const struct entry_attention *a;
    size_t seq, row; /* the first one, counted in its sequence */
    size_t n_rows;
    struct kv_view to;
};

/* The positions and entries to which a row attends. */
struct seen {
    size_t first, n_window, n_entries; /* positions [first, first + n_window) */
    const int32_t *chosen;             /* NULL: the entries are 0, 1, ... */
};

static struct seen seen_by(const struct entry_attention *a, const struct seq_rows *seq, size_t row)
{
    const size_t p = seq->pos0 + row, n = (p + 1) / a->entries.rate;
    const size_t first = kern_first_visible(p, a->attention.window);
    const bool chooses = a->chosen != NULL && n > a->n_chosen;
    return (struct seen){.first = first,
                         .n_window = p - first + 1,
                         .n_entries = chooses ? a->n_chosen : n,
                         .chosen = chooses ? a->chosen + (seq->row0 + row) * a->n_chosen : NULL};
}

/* Copies number 64 tile to 64 tile + 63 of the keys and entries that a row sees to block `to`. */
static void gather_entries_tile(const struct gather_rows *g, const struct seq_rows *seq, size_t row,
                                size_t tile, size_t to)
{
    const struct entry_attention *a = g->a;
    const struct kv_view *kv = &a->attention.kv;
    const struct seen seen = seen_by(a, seq, row);
    const size_t n = seen.n_window + seen.n_entries, i0 = tile * KV_BLOCK_TOKENS;
    for (size_t i = i0; i < n && i < i0 + KV_BLOCK_TOKENS; i++) {
        const size_t p = seen.first + i, e = i - seen.n_window;
        const struct kv_row from =
            i < seen.n_window
                ? key_place(kv, seq->blocks[p / KV_BLOCK_TOKENS], p % KV_BLOCK_TOKENS)
                : entry_place(&a->entries, seq, seen.chosen != NULL ? (size_t)seen.chosen[e] : e,
                              false);
        copy_row(kv->dtype, kv->head_dim, from, key_place(&g->to, (int32_t)to, i - i0));
    }
}

/* Moves to the next row of the step; false: there is none. */
static bool next_gathered_row(const struct entry_attention *a, size_t *seq, size_t *row)
{
    while (*seq < a->attention.n_seqs && *row >= a->attention.seqs[*seq].n_rows) {
        ++*seq;
        *row = 0;
    }
    return *seq < a->attention.n_seqs;
}

static uint64_t gather_cost(const struct entry_attention *a)
{
    return (uint64_t)KV_BLOCK_TOKENS * a->attention.kv.head_dim;
}

static void gather_entries_part(const void *job_, struct part part)
{
    const struct gather_rows *g = job_;
    const struct entry_attention *a = g->a;
    size_t seq = g->seq, row = g->row, tile, end;
    for (size_t i = 0; i < g->n_rows && next_gathered_row(a, &seq, &row); i++, row++) {
        if (!part_take(&part, a->n_tiles, gather_cost(a), &tile, &end)) continue;
        for (; tile < end; tile++)
            gather_entries_tile(g, &a->attention.seqs[seq], row, tile, i * a->n_tiles + tile);
    }
}

/* Makes each row a sequence of what it sees, and attends. */
static void attend_rows(const struct kern_table *k, const struct gather_rows *g)
{
    const struct entry_attention *a = g->a;
    struct attn_args gathered = a->attention;
    size_t seq = g->seq, row = g->row;
    for (size_t i = 0; i < g->n_rows && next_gathered_row(a, &seq, &row); i++, row++) {
        const struct seq_rows *of = &a->attention.seqs[seq];
        const struct seen seen = seen_by(a, of, row);
        assert(seen.n_window + seen.n_entries <= a->n_tiles * KV_BLOCK_TOKENS);
        a->rows[i] = (struct seq_rows){.row0 = of->row0 + row,
                                       .n_rows = 1,
                                       .pos0 = seen.n_window + seen.n_entries - 1,
                                       .blocks = a->blocks + i * a->n_tiles};
    }
    gathered.kv = g->to;
    gathered.window = 0;
    gathered.seqs = a->rows;
    gathered.n_seqs = g->n_rows;
    op_attention(k, &gathered);
}

void op_entry_attention(const struct kern_table *k, const struct entry_attention *a)
{
    struct gather_rows g = {.a = a, .to = a->attention.kv};
    size_t seq = 0, row = 0;
    assert(k->device == NULL && a->attention.window > 0 && a->n_gather > 0);
    g.to.base = a->gathered;
    g.to.beside_bytes = 0;
    for (size_t i = 0; i < a->n_gather * a->n_tiles; i++) a->blocks[i] = (int32_t)i;
    while (next_gathered_row(a, &seq, &row)) {
        g.seq = seq;
        g.row = row;
        g.n_rows = 0;
        for (; g.n_rows < a->n_gather && next_gathered_row(a, &seq, &row); row++) g.n_rows++;
        part_run(k->team, g.n_rows * a->n_tiles * gather_cost(a), gather_entries_part, &g);
        attend_rows(k, &g);
    }
}

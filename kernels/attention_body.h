/* Attention, shared by the instruction sets: the walk of a block of queries over its tiles, and the
 * fold of tiles that were computed apart (attn_slice.parts). All query heads of a kv head use the
 * same keys and values, so a block of queries goes through a tile together, FOLD_ROWS queries at a
 * time. With many queries, keys and values are converted to floats once per tile, and keys are
 * transposed if that pays. With few queries they are read from the cache in the cache's own type.
 *
 * The including file defines what attention_fold_body.h needs and, with TURN_KEYS, v16_turn, which
 * transposes 16 vectors. */
#ifndef SHOAL_KERNELS_ATTENTION_BODY_H
#define SHOAL_KERNELS_ATTENTION_BODY_H

#include "kernels/attention_fold_body.h"

enum {
    BLOCK_QUERIES = 256,                    /* queries that share a converted tile */
    WORTH_QUERIES = 2 * FOLD_ROWS,          /* fewest queries for which a tile is converted */
    WORTH_TURNING = 8 * FOLD_ROWS,          /* fewest queries for which keys are transposed */
    SCRATCH_FLOATS = 640 * KV_BLOCK_TOKENS, /* a tile's keys and values, or its latents */
};

/* The positions [lo, p1] that queries see together, and the tiles [n0, n1) to fold. */
struct seen_tiles {
    size_t lo, p1, n0, n1;
};

/* At most BLOCK_QUERIES queries of a slice, from query `first` on, counted row by row and, in a
 * row, head by head. The block goes through the tiles in turns (block_turn): in one turn, queries
 * [from, until) go through the same tiles of seq. */
struct block {
    const struct attn_args *args;
    const struct attn_slice *slice;
    const struct seq_rows *seq;
    size_t n_heads, first, n, from, until;
    struct seen_tiles tiles;
    struct query {
        size_t at;     /* its first element in q and out */
        size_t lo, hi; /* the positions of the sequence that it sees, both included */
    } query[BLOCK_QUERIES];
    float max[BLOCK_QUERIES], sum[BLOCK_QUERIES];
};

static size_t query_head(const struct block *b, size_t i)
{
    return b->slice->head0 + (b->first + i) % b->n_heads;
}

/* Makes b a block of n queries, from query `first` on. */
static void block_begin(struct block *b, size_t first, size_t n)
{
    const size_t hd = b->args->kv.head_dim;
    const struct seq_rows *seqs = b->args->seqs + b->slice->seq;
    size_t row = b->slice->row0 + first / b->n_heads, head = query_head(b, first - b->first);
    b->first = first;
    b->n = n;
    for (size_t i = 0; i < n; i++) {
        const bool shared = b->slice->n_shared > 0;
        const size_t at = shared ? seqs[row].row0 : seqs->row0 + row;
        b->query[i].at = (at * b->args->n_heads + head) * hd;
        const size_t p = shared ? seqs[row].pos0 : seqs->pos0 + row;
        b->query[i].lo = kern_first_visible(p, b->args->window);
        b->query[i].hi = shared ? p : kern_last_visible(b->args, seqs, row);
        if (++head < b->slice->head1) continue;
        head = b->slice->head0;
        row++;
    }
}

/* Fills *row with query i and the slots of tile n that it sees. False: it sees none. */
ALWAYS_INLINE bool query_sees(struct block *b, size_t i, size_t n, struct seen_row *row)
{
    const struct attn_args *a = b->args;
    const size_t start = n * TILE, at = b->query[i].at;
    const size_t lo = b->query[i].lo, hi = b->query[i].hi;
    *row = (struct seen_row){.q = a->q + at,
                             .out = a->out + at,
                             .max = &b->max[i],
                             .sum = &b->sum[i],
                             .j0 = lo > start ? lo - start : 0,
                             .j1 = hi - start < TILE ? hi - start + 1 : TILE,
                             .is_first = n == lo / TILE};
    if (b->slice->parts != NULL) {
        const size_t part = (n - b->slice->tile0) * a->n_heads + query_head(b, i);
        row->out = b->slice->parts + part * kern_part_floats(a->kv.head_dim);
        row->max = row->out + a->kv.head_dim;
        row->sum = row->max + 1;
        row->is_first = true;
    }
    return hi >= start && lo < start + TILE;
}

/* Fills rows with query i and the queries after it, at most FOLD_ROWS, as long as they share a
 * visible slot of tile n. Returns their number. */
ALWAYS_INLINE size_t queries_that_see(struct block *b, size_t i, size_t n, struct seen_row *rows)
{
    size_t k = 0;
    for (; k < FOLD_ROWS && i + k < b->until; k++)
        if (!query_sees(b, i + k, n, &rows[k]) || rows[k].j0 >= rows[0].j1) break;
    return k;
}

/* Folds tile n into those queries of the turn that see it. turned: the tile's keys are
 * transposed. */
ALWAYS_INLINE void block_tile(enum dtype t, bool turned, struct block *b, size_t n,
                              const struct tile *tile)
{
    struct seen_row rows[FOLD_ROWS];
    for (size_t i = b->from; i < b->until;) {
        const size_t k = queries_that_see(b, i, n, rows);
        if (k == FOLD_ROWS)
            fold(t, turned, FOLD_ROWS, tile, rows, b->args);
        else if (FOLD_ROWS > 3 && k == 3)
            fold(t, turned, FOLD_ROWS > 3 ? 3 : 1, tile, rows, b->args);
        else if (k == 2)
            fold(t, turned, 2, tile, rows, b->args);
        else if (k == 1)
            fold(t, turned, 1, tile, rows, b->args);
        i += k > 0 ? k : 1;
    }
}

/* Runs block_tile for a tile of floats; compiled once for all cache types. */
static __attribute__((noinline)) void block_tile_floats(struct block *b, size_t n,
                                                        const struct tile *tile)
{
    block_tile(DTYPE_F32, false, b, n, tile);
}

#if TURN_KEYS
static __attribute__((noinline)) void block_tile_turned(struct block *b, size_t n,
                                                        const struct tile *tile)
{
    block_tile(DTYPE_F32, true, b, n, tile);
}

/* to [head_dim][TILE] = the keys of slots [j0, j1), transposed. Copies of slots j0 and j1 - 1 fill
 * up the vectors of 16 slots. */
ALWAYS_INLINE void turn_keys(enum dtype t, struct tile_slots s, float *to)
{
    for (size_t j = s.j0 / 16 * 16; j < s.j1; j += 16) {
        for (size_t d = 0; d < s.head_dim; d += 16) {
            struct v16 v[16];
#pragma GCC unroll 16
            for (size_t i = 0; i < 16; i++) {
                const size_t until = j + i < s.j1 ? j + i : s.j1 - 1;
                const size_t slot = until > s.j0 ? until : s.j0;
                v[i] = kv_load16(t, s.data, t == DTYPE_I8 ? s.scales[slot] : 1.0f,
                                 slot * s.head_dim + d);
            }
            v16_turn(v);
#pragma GCC unroll 16
            for (size_t i = 0; i < 16; i++) v16_store(to + (d + i) * TILE + j, v[i]);
        }
    }
}
#endif

/* to[slot][head_dim] = slots [j0, j1) as floats. */
ALWAYS_INLINE void make_floats(enum dtype t, struct tile_slots s, float *to)
{
    const size_t n = s.head_dim;
    for (size_t j = s.j0; j < s.j1; j++) {
        const float scale = t == DTYPE_I8 ? s.scales[j] : 1.0f;
        for (size_t i = j * n; i < (j + 1) * n; i += 16)
            v16_store(to + i, kv_load16(t, s.data, scale, i));
    }
}

/* Returns tile n as it lies in the cache. */
ALWAYS_INLINE struct tile cached_tile(enum dtype t, const struct block *b, size_t n)
{
    const struct kv_view *kv = &b->args->kv;
    const size_t g = b->args->kv_of_head[b->slice->head0];
    const void *keys = kern_kv_half(kv, b->seq->blocks[n], 0, g);
    const void *values = kern_kv_half(kv, b->seq->blocks[n], 1, g);
    return (struct tile){.keys = keys,
                         .values = values,
                         .key_scales = t == DTYPE_I8 ? kern_kv_scales(keys, kv->head_dim) : NULL,
                         .value_scales =
                             t == DTYPE_I8 ? kern_kv_scales(values, kv->head_dim) : NULL,
                         .head_dim = kv->head_dim};
}

/* Sets the tiles of queries [from, until), from tile n0 on. */
static void turn_sees(struct block *b, size_t n0)
{
    struct seen_tiles *s = &b->tiles;
    s->lo = b->query[b->from].lo;
    s->p1 = b->query[b->until - 1].hi;
    s->n0 = s->lo / TILE > n0 ? s->lo / TILE : n0;
    s->n1 = s->p1 / TILE + 1;
    if (b->slice->parts == NULL) return;
    s->n0 = b->slice->tile0;
    s->n1 = b->slice->tile1;
}

/* Begins a turn of the block. False: the turn before was the last one. A block whose queries are of
 * one sequence has one turn. Where sequences share their first tiles, turn 0 takes all queries
 * through the shared tiles, and each later turn takes one sequence's queries through its own tiles.
 */
static bool block_turn(struct block *b, size_t turn)
{
    const struct attn_slice *s = b->slice;
    b->seq = &b->args->seqs[s->seq];
    b->from = 0;
    b->until = b->n;
    if (s->n_shared == 0) {
        turn_sees(b, 0);
        return turn == 0;
    }
    if (turn == 0) {
        b->tiles = (struct seen_tiles){.p1 = s->n_shared * TILE - 1, .n1 = s->n_shared};
        return true;
    }
    const size_t row = b->first / b->n_heads + turn - 1, begin = row * b->n_heads;
    const size_t end = begin + b->n_heads - b->first;
    b->from = begin > b->first ? begin - b->first : 0;
    if (b->from >= b->n) return false;
    b->until = end < b->n ? end : b->n;
    b->seq += s->row0 + row;
    turn_sees(b, s->n_shared);
    return true;
}

ALWAYS_INLINE void block_cached(enum dtype t, struct block *b)
{
    const struct seen_tiles s = b->tiles;
    for (size_t n = s.n0; n < s.n1; n++) {
        const struct tile tile = cached_tile(t, b, n);
        if (t == DTYPE_F32)
            block_tile_floats(b, n, &tile);
        else
            block_tile(t, false, b, n, &tile);
    }
}

ALWAYS_INLINE void block_floats(enum dtype t, struct block *b)
{
    float floats[SCRATCH_FLOATS] __attribute__((aligned(64)));
    const struct seen_tiles s = b->tiles;
    for (size_t n = s.n0; n < s.n1; n++) {
        const size_t start = n * TILE, hd = b->args->kv.head_dim;
        const size_t j0 = s.lo > start ? s.lo - start : 0;
        const size_t j1 = s.p1 - start < TILE ? s.p1 - start + 1 : TILE;
        struct tile tile = cached_tile(t, b, n);
        if (!b->args->kv.latent) make_floats(t, values_of(&tile, j0, j1, 0), floats + TILE * hd);
        const struct tile_slots keys = {tile.keys, tile.key_scales, hd, j0, j1, 0};
        tile.keys = floats;
        tile.values = b->args->kv.latent ? floats : floats + TILE * hd;
#if TURN_KEYS
        if (!b->args->kv.latent && b->until - b->from >= WORTH_TURNING) {
            turn_keys(t, keys, floats);
            block_tile_turned(b, n, &tile);
            continue;
        }
#endif
        make_floats(t, keys, floats);
        block_tile_floats(b, n, &tile);
    }
}

ALWAYS_INLINE void divide(const struct attn_args *a, size_t head, float max, float l, float *out)
{
    const struct v16 sum = v16_set1(kern_attention_sum(a, head, max, l));
    for (size_t d = 0; d < a->kv.head_dim; d += 16)
        v16_store(out + d, v16_div(v16_load(DTYPE_F32, out, d), sum));
}

ALWAYS_INLINE void attention(enum dtype t, const struct attn_args *a, const struct attn_slice *s)
{
    const size_t n_heads = s->head1 - s->head0, n = (s->row1 - s->row0) * n_heads;
    const size_t floats = TILE * a->kv.head_dim * (a->kv.latent ? 1 : 2);
    struct block b = {.args = a, .slice = s, .n_heads = n_heads};
    for (size_t first = 0; first < n; first += BLOCK_QUERIES) {
        block_begin(&b, first, n - first < BLOCK_QUERIES ? n - first : BLOCK_QUERIES);
        for (size_t turn = 0; block_turn(&b, turn); turn++) {
            if (t != DTYPE_F32 && b.until - b.from >= WORTH_QUERIES && floats <= SCRATCH_FLOATS)
                block_floats(t, &b);
            else
                block_cached(t, &b);
        }
        for (size_t i = 0; s->parts == NULL && i < b.n; i++)
            divide(a, query_head(&b, i), b.max[i], b.sum[i], a->out + b.query[i].at);
    }
}

/* Up to 16 consecutive parts of a head, `stride` floats apart. */
struct part_run {
    const float *o; /* [n] parts: Hd outputs, max, sum */
    size_t stride, n;
    bool is_first; /* the run begins with the row's first tile */
};

/* Folds the states (max, sum) of a run into `total`, and sets the factors a and b [n] for the
 * outputs. The maxima depend on each other, but all exponentials are computed together. */
ALWAYS_INLINE void fold_part_states(const struct part_run *run, size_t hd, float total[2],
                                    float a[16], float b[16])
{
    for (size_t i = 0; i < 16; i++) a[i] = b[i] = 0.0f;
    for (size_t i = 0; i < run->n; i++) {
        const float part = run->o[i * run->stride + hd];
        const float old = i == 0 && run->is_first ? part : total[0];
        total[0] = part > old ? part : old;
        a[i] = old - total[0];
        b[i] = part - total[0];
    }
    v16_store(a, v16_exp(v16_load(DTYPE_F32, a, 0)));
    v16_store(b, v16_exp(v16_load(DTYPE_F32, b, 0)));
    for (size_t i = 0; i < run->n; i++) {
        const float part = run->o[i * run->stride + hd + 1];
        total[1] = i == 0 && run->is_first ? part : fmaf(part, b[i], total[1] * a[i]);
    }
}

/* Folds elements [d, d + 16 n_vectors) of the run's outputs into out. n_vectors is constant. */
ALWAYS_INLINE void fold_part_values(const struct part_run *run, size_t n_vectors, size_t d,
                                    const float a[16], const float b[16], float *out)
{
    struct v16 o[VALUE_VECTORS];
#pragma GCC unroll 4
    for (size_t v = 0; v < n_vectors; v++)
        o[v] = v16_load(DTYPE_F32, run->is_first ? run->o : out, d + 16 * v);
    for (size_t i = run->is_first ? 1 : 0; i < run->n; i++) {
#pragma GCC unroll 4
        for (size_t v = 0; v < n_vectors; v++) {
            const struct v16 part = v16_load(DTYPE_F32, run->o + i * run->stride, d + 16 * v);
            o[v] = v16_madd(part, v16_set1(b[i]), v16_mul(o[v], v16_set1(a[i])));
        }
    }
#pragma GCC unroll 4
    for (size_t v = 0; v < n_vectors; v++) v16_store(out + d + 16 * v, o[v]);
}

/* Folds a head's parts of tiles [tile0, tile1) into its output; after the row's last tile, divides
 * the output. */
ALWAYS_INLINE void fold_parts(const struct attn_args *args, const struct attn_slice *s, size_t head)
{
    const struct seq_rows *seq = &args->seqs[s->seq];
    const size_t hd = args->kv.head_dim, stride = args->n_heads * kern_part_floats(hd);
    const size_t p = seq->pos0 + s->row0, first = kern_first_visible(p, args->window) / TILE;
    float *out = args->out + ((seq->row0 + s->row0) * args->n_heads + head) * hd;
    float *total = s->states + 2 * head, a[16], b[16];
    for (size_t n = s->tile0; n < s->tile1; n += 16) {
        const struct part_run run = {.o = s->parts + (n - s->tile0) * stride +
                                          head * kern_part_floats(hd),
                                     .stride = stride,
                                     .n = s->tile1 - n < 16 ? s->tile1 - n : 16,
                                     .is_first = n == first};
        size_t d = 0;
        fold_part_states(&run, hd, total, a, b);
        for (; d + 16 * VALUE_VECTORS <= hd; d += 16 * VALUE_VECTORS)
            fold_part_values(&run, VALUE_VECTORS, d, a, b, out);
        for (; d < hd; d += 16) fold_part_values(&run, 1, d, a, b, out);
    }
    if (s->tile1 != p / TILE + 1) return;
    divide(args, head, total[0], total[1], out);
}

#endif

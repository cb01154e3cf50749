/* Known answers of the ops that read a sequence's past: attention and its index, which read a
 * cache, and the ops of recurrent layers, which have a state. Called by kat.c. */
#include "kernels/body.h"
#include "kernels/kat_private.h"

#include <assert.h>

enum {
    HEADS = 2,
    ROW = HEADS * HEAD_DIM,
    FIRST_POS = 70,
    SHARED_ROWS = 17, /* with HEADS queries each: enough to transpose keys (attention_body.h) */
    PART_TILES = 18,  /* more than attention_fold folds together */
    KEYS = 21,        /* key_dim of a recurrent state */
};
static_assert(SHARED_ROWS * ROW <= OUTS_PADDED * INS, "the queries fit w");
static_assert(SHARED_ROWS * ROW <= QUANT_ROWS * OUTS_PADDED, "the outputs fit y");

/* Fills the cache with values of type t, token by token. */
static void fill_cache(struct kat_bench *b, enum dtype t)
{
    const struct kv_view kv = {b->data, t, 1, HEAD_DIM, false, 0};
    for (size_t i = 0; i < CACHE / HEAD_DIM; i++) {
        const size_t half = i / KV_BLOCK_TOKENS, slot = i % KV_BLOCK_TOKENS;
        char *at = kern_kv_half(&kv, (int32_t)(half / 2), (int)(half % 2), 0);
        b->t->kv_store[t](b->kv + i * HEAD_DIM, HEAD_DIM, at + slot * HEAD_DIM * dtype_bytes(t),
                          kern_kv_scales(at, HEAD_DIM) + slot);
    }
}

/* Fills a cache of type t and the queries in b->w, and returns the arguments of attention over
 * them, with outputs in b->y. */
static struct attn_args attention_of(struct kat_bench *b, enum dtype t, const struct seq_rows *seqs,
                                     size_t n_seqs)
{
    static const uint8_t kv_of_head[HEADS] = {0, 0};
    kat_fill(3, b->kv, CACHE, 2.0f);
    kat_fill(4, b->w, SHARED_ROWS * ROW, 4.0f);
    fill_cache(b, t);
    return (struct attn_args){.q = b->w,
                              .out = b->y,
                              .kv = {b->data, t, 1, HEAD_DIM},
                              .kv_of_head = kv_of_head,
                              .n_heads = HEADS,
                              .scale = 0.25f,
                              .seqs = seqs,
                              .n_seqs = n_seqs};
}

/* With and without a window; includes storing into the cache. */
uint64_t kat_attention(struct kat_bench *b, enum dtype t)
{
    static const int32_t blocks[BLOCKS] = {1, 0};
    enum { T = 5 };
    uint64_t h = kat_hash_start;
    const struct seq_rows seq = {0, T, FIRST_POS, blocks, 0};
    struct attn_args a = attention_of(b, t, &seq, 1);
    for (a.window = 0; a.window <= 33; a.window += 33) {
        b->t->attention[t](&a, &(struct attn_slice){.head1 = HEADS, .row1 = T});
        h = kat_hash(h, b->y, T * ROW * sizeof *b->y);
        b->t->attention[t](&a, &(struct attn_slice){.head1 = HEADS, .row0 = T - 1, .row1 = T});
        h = kat_hash(h, b->y, T * ROW * sizeof *b->y);
    }
    return h;
}

/* Rows that see the last row of their sequence. */
uint64_t kat_ahead(struct kat_bench *b, enum dtype t)
{
    static const int32_t blocks[BLOCKS] = {1, 0};
    enum { T = 17 };
    const struct seq_rows seq = {0, T, FIRST_POS, blocks, 0};
    struct attn_args a = attention_of(b, t, &seq, 1);
    a.ahead = true;
    b->t->attention[t](&a, &(struct attn_slice){.head1 = HEADS, .row1 = T});
    return kat_hash(kat_hash_start, b->y, T * ROW * sizeof *b->y);
}

/* Rows of several sequences whose first tile is the same. */
uint64_t kat_shared(struct kat_bench *b, enum dtype t)
{
    static const int32_t blocks[2][BLOCKS] = {{1, 0}, {1, 1}};
    struct seq_rows seqs[SHARED_ROWS];
    for (size_t i = 0; i < SHARED_ROWS; i++)
        seqs[i] = (struct seq_rows){i, 1, KV_BLOCK_TOKENS + i * 5 % 64, blocks[i % 2], 0};
    const struct attn_args a = attention_of(b, t, seqs, SHARED_ROWS);
    b->t->attention[t](&a,
                       &(struct attn_slice){.head1 = HEADS, .row1 = SHARED_ROWS, .n_shared = 1});
    return kat_hash(kat_hash_start, b->y, SHARED_ROWS * ROW * sizeof *b->y);
}

/* One row, whose tiles are computed in two calls and folded in two others. */
uint64_t kat_parts(struct kat_bench *b, enum dtype t)
{
    enum { CUT = PART_TILES - 1, STRIDE = HEADS * (HEAD_DIM + 16) };
    float parts[PART_TILES * STRIDE] __attribute__((aligned(64))), states[2 * HEADS];
    int32_t blocks[PART_TILES];
    for (int32_t i = 0; i < PART_TILES; i++) blocks[i] = i % 3 % BLOCKS;
    assert(STRIDE == HEADS * kern_part_floats(HEAD_DIM));
    const struct seq_rows seq = {0, 1, CUT * KV_BLOCK_TOKENS + 6, blocks, 0};
    const struct attn_args a = attention_of(b, t, &seq, 1);
    const struct attn_slice slices[2] = {
        {.head1 = HEADS, .row1 = 1, .parts = parts, .tile1 = CUT, .states = states},
        {.head1 = HEADS,
         .row1 = 1,
         .parts = parts + CUT * STRIDE,
         .tile0 = CUT,
         .tile1 = PART_TILES,
         .states = states}};
    for (int i = 0; i < 2; i++) b->t->attention[t](&a, &slices[i]);
    for (int i = 0; i < 2; i++) b->t->attention_fold(&a, &slices[i]);
    return kat_hash(kat_hash_start, b->y, ROW * sizeof *b->y);
}

/* One row whose heads have a low and a high sink. */
static uint64_t sinks_of(struct kat_bench *b, enum dtype t, float softcap)
{
    static const int32_t blocks[BLOCKS] = {1, 0};
    static const float sinks[HEADS] = {-1.5f, 9.0f};
    const struct seq_rows seq = {0, 1, FIRST_POS, blocks, 0};
    struct attn_args a = attention_of(b, t, &seq, 1);
    a.sinks = sinks;
    a.softcap = softcap;
    b->t->attention[t](&a, &(struct attn_slice){.head1 = HEADS, .row1 = 1});
    return kat_hash(kat_hash_start, b->y, ROW * sizeof *b->y);
}

uint64_t kat_sinks(struct kat_bench *b, enum dtype t)
{
    return sinks_of(b, t, 0);
}

uint64_t kat_softcap(struct kat_bench *b, enum dtype t)
{
    return sinks_of(b, t, 3.0f);
}

/* The scores of an index over a cache of type t, and the positions that are chosen after two scores
 * were made equal; then the scores that each head has without weights. */
uint64_t kat_index(struct kat_bench *b, enum dtype t)
{
    static const int32_t blocks[BLOCKS] = {2, 0};
    enum { T = 2, INDEX_HEADS = 5, FEW = 37, STRIDE = BLOCKS * KV_BLOCK_TOKENS };
    float scores[INDEX_HEADS * STRIDE];
    int32_t chosen[FEW];
    uint64_t h = kat_hash_start;
    kat_fill(5, b->kv, CACHE, 2.0f);
    kat_fill(6, b->x, T * INDEX_HEADS * HEAD_DIM, 4.0f);
    kat_fill(7, b->w, T * INDEX_HEADS, 1.0f);
    fill_cache(b, t);
    const struct seq_rows seq = {0, T, FIRST_POS, blocks, 0};
    struct index_args a = {.q = b->x,
                           .weights = b->w,
                           .keys = {b->data, t, 1, HEAD_DIM, true, 0},
                           .n_heads = INDEX_HEADS,
                           .scale = 0.25f,
                           .n_chosen = FEW,
                           .seqs = &seq,
                           .n_seqs = 1};
    for (size_t row = 0; row < T; row++) {
        const size_t n = FIRST_POS + row + 1;
        b->t->index_scores[t](&a, &(struct index_slice){0, row, 0, BLOCKS, scores, 0});
        h = kat_hash(h, scores, n * sizeof *scores);
        scores[3] = scores[n - 2];
        b->t->index_choose(scores, n, FEW, chosen);
        h = kat_hash(h, chosen, sizeof chosen);
    }
    a.weights = NULL;
    b->t->index_scores[t](&a, &(struct index_slice){0, T - 1, 0, BLOCKS, scores, STRIDE});
    for (size_t i = 0; i < INDEX_HEADS; i++)
        h = kat_hash(h, scores + i * STRIDE, (FIRST_POS + T) * sizeof *scores);
    return h;
}

/* How the known answers of the recurrent ops differ. */
struct recurrence {
    void (*run)(const struct state_run *r);
    uint64_t seed;
    float magnitude; /* of q and k */
    float skip;
    size_t n_first; /* rows of the first call */
    bool by_channel;
};

/* Runs ROWS rows through a state of KEYS x N, in two calls, with decays and betas from 0.8 to 1. */
static uint64_t recurrent(struct kat_bench *b, const struct recurrence *c)
{
    float gates[2 * ROWS * KEYS];
    const size_t n_gates = c->by_channel ? KEYS : 1; /* decays of a row */
    kat_fill(c->seed, b->x, 2 * ROWS * KEYS, c->magnitude);
    kat_fill(c->seed + 1, b->w, ROWS * N, 2.0f);
    kat_fill(c->seed + 2, b->kv, KEYS * N, 1.0f);
    kat_fill(c->seed + 3, gates, 2 * ROWS * n_gates, 1.0f);
    for (size_t i = 0; i < 2 * ROWS * n_gates; i++) gates[i] = 0.9f + 0.1f * gates[i];
    for (size_t row = 0, n; row < ROWS; row += n) {
        n = row == 0 ? c->n_first : ROWS - c->n_first;
        c->run(&(struct state_run){.q = b->x + row * KEYS,
                                   .k = b->x + (ROWS + row) * KEYS,
                                   .v = b->w + row * N,
                                   .decay = gates + row * n_gates,
                                   .beta = gates + (ROWS + row) * n_gates,
                                   .out = b->y + row * N,
                                   .state = b->kv,
                                   .n_rows = n,
                                   .n = N,
                                   .key_dim = KEYS,
                                   .key_stride = KEYS,
                                   .value_stride = N,
                                   .gate_stride = n_gates,
                                   .out_stride = N,
                                   .state_stride = N,
                                   .skip = c->skip,
                                   .by_channel = c->by_channel});
    }
    const uint64_t h = kat_hash(kat_hash_start, b->y, ROWS * N * sizeof *b->y);
    return kat_hash(h, b->kv, KEYS * N * sizeof *b->kv);
}

uint64_t kat_delta(struct kat_bench *b, enum dtype t)
{
    (void)t;
    return recurrent(b, &(struct recurrence){b->t->delta_rule, 31, 0.4f, 0, 3, false});
}

uint64_t kat_delta_channels(struct kat_bench *b, enum dtype t)
{
    (void)t;
    return recurrent(b, &(struct recurrence){b->t->delta_rule, 41, 0.4f, 0, 3, true});
}

uint64_t kat_scan(struct kat_bench *b, enum dtype t)
{
    (void)t;
    return recurrent(b, &(struct recurrence){b->t->scan, 37, 0.8f, 0.75f, 2, false});
}

uint64_t kat_conv(struct kat_bench *b, enum dtype t)
{
    (void)t;
    enum { TAPS = 4 };
    const float *rows[TAPS];
    kat_fill(35, b->x, TAPS * N, 3.0f);
    kat_fill(36, b->w, TAPS * N, 1.0f);
    for (size_t j = 0; j < TAPS; j++) rows[j] = b->x + j * N;
    b->t->conv_silu(rows, TAPS, b->w, N, N, b->y);
    b->t->sigmoid_mul(b->x, N, b->w);
    const uint64_t h = kat_hash(kat_hash_start, b->y, N * sizeof *b->y);
    return kat_hash(h, b->w, N * sizeof *b->w);
}

uint64_t kat_pool(struct kat_bench *b, enum dtype t)
{
    enum { N_CHANNELS = 37, N_POOLED = 9 };
    float m[N_CHANNELS], l[N_CHANNELS] = {0}, s[N_CHANNELS] = {0};
    uint64_t h = kat_hash_start;
    (void)t;
    for (int i = 0; i < N_CHANNELS; i++) m[i] = -INFINITY;
    kat_fill(41, b->x, N_CHANNELS * N_POOLED, 30.0f);
    kat_fill(42, b->w, N_CHANNELS * N_POOLED, 4.0f);
    kat_fill(43, b->y, N_CHANNELS, 1.0f);
    for (int i = 0; i < N_POOLED; i++)
        b->t->pool_add(&(struct pool_sums){m, l, s}, b->x + i * N_CHANNELS, b->y,
                       b->w + i * N_CHANNELS, N_CHANNELS);
    h = kat_hash(kat_hash(h, m, sizeof m), l, sizeof l);
    return kat_hash(h, s, sizeof s);
}

/* Tests attention over the paged cache: the reference against a softmax in double, all other
 * instruction sets against the reference, division into slices and among threads, and that stale
 * slots are never read. */
#include "util_kernels.h"

#include "kernels/ops.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <stdlib.h>

enum { MAX_SEQS = 40, N_TYPES = 5 };

static const enum dtype types[N_TYPES] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_I8,
                                          DTYPE_F8_E4M3};

/* Sequences with their block tables over one cache whose invisible slots are NaN. */
struct world {
    size_t n_rows, n_blocks, q_floats;
    struct attn_args args;
    struct seq_rows seqs[MAX_SEQS];
    int32_t *blocks[MAX_SEQS];
    uint8_t kv_of_head[8];
    float sinks[8];                  /* used in half of the worlds */
    float *q, *out[2], *key, *value; /* key, value: of the step's rows */
};

/* With this head_dim, the cache of a world holds latents instead of keys and values. */
static const uint32_t latent_dim = 576;

/* The type and the sizes from which a world is made. */
struct shape {
    enum dtype t;
    uint32_t head_dim, n_kv, n_heads, window;
    size_t max_pos, max_rows; /* of a sequence: its first row is before max_pos */
    size_t n_seqs;            /* 0: one to three */
};

static void world_blocks(struct world *w)
{
    for (size_t s = 0, next = 0; s < w->args.n_seqs; s++) {
        struct seq_rows *seq = &w->seqs[s];
        const size_t n = (seq->pos0 + seq->n_rows + 63) / 64;
        w->blocks[s] = test_memory(n * sizeof(int32_t));
        /* from both ends, so that block tables are neither ascending nor dense */
        for (size_t i = 0; i < n; i++, next++)
            w->blocks[s][i] = (int32_t)(next % 2 ? next : w->n_blocks - 1 - next);
        seq->blocks = w->blocks[s];
    }
}

/* Stores random keys and values at every visible position that is not one of the step's rows. */
static void world_past(struct rng *r, struct world *w, const struct kern_table *k)
{
    const struct kv_view *kv = &w->args.kv;
    const size_t n = (size_t)kv->n_kv_heads * kv->head_dim;
    float *row = test_floats(n);
    for (size_t s = 0; s < w->args.n_seqs; s++) {
        for (size_t p = 0; p < w->seqs[s].pos0; p++) {
            const struct seq_rows one = {0, 1, p, w->blocks[s], 0};
            rng_floats(r, row, n, 1.5f);
            op_kv_write(k, row, row, kv, &one, 1);
        }
    }
    free(row);
}

static struct world *world_make(struct rng *r, const struct shape *of)
{
    const struct kern_table ref = table_ref();
    const enum dtype t = of->t;
    const uint32_t head_dim = of->head_dim, n_kv = of->n_kv, n_heads = of->n_heads;
    struct world *w = test_memory(sizeof *w);
    *w = (struct world){0};
    w->args.n_seqs = of->n_seqs > 0 ? of->n_seqs : 1 + rng_below(r, 3);
    for (size_t s = 0; s < w->args.n_seqs; s++) {
        w->seqs[s] = (struct seq_rows){w->n_rows, 1 + rng_below(r, of->max_rows),
                                       rng_below(r, of->max_pos), NULL, 0};
        w->n_rows += w->seqs[s].n_rows;
        w->n_blocks += 2 * ((w->seqs[s].pos0 + w->seqs[s].n_rows) / 64 + 1);
    }
    world_blocks(w);
    const size_t n_cache = w->n_blocks * 2 * n_kv * kv_half_bytes(t, head_dim);
    const size_t n_kv_floats = w->n_rows * n_kv * head_dim;
    w->args.kv =
        (struct kv_view){test_memory(n_cache), t, n_kv, head_dim, head_dim == latent_dim, 0};
    memset(w->args.kv.base, 0xFF, n_cache); /* NaN in every type, and as a scale */
    for (uint32_t h = 0; h < n_heads; h++) w->kv_of_head[h] = (uint8_t)(h * n_kv / n_heads);
    w->q_floats = w->n_rows * n_heads * head_dim;
    w->q = test_floats(w->q_floats);
    w->key = test_floats(n_kv_floats);
    w->value = test_floats(n_kv_floats);
    rng_floats(r, w->q, w->q_floats, 3.0f);
    rng_floats(r, w->key, n_kv_floats, 1.5f);
    rng_floats(r, w->value, n_kv_floats, 1.5f);
    for (int i = 0; i < 2; i++) w->out[i] = test_floats(w->q_floats);
    w->args.q = w->q;
    w->args.kv_of_head = w->kv_of_head;
    w->args.n_heads = n_heads;
    w->args.scale = 0.3f;
    w->args.window = of->window;
    rng_floats(r, w->sinks, n_heads, 6.0f);
    if (rng_below(r, 2) > 0) w->args.sinks = w->sinks;
    if (rng_below(r, 3) == 0) w->args.softcap = 4.0f;
    w->args.seqs = w->seqs;
    world_past(r, w, &ref);
    op_kv_write(&ref, w->key, w->value, &w->args.kv, w->seqs, w->args.n_seqs);
    return w;
}

static void world_free(struct world *w)
{
    for (size_t s = 0; s < w->args.n_seqs; s++) free(w->blocks[s]);
    free(w->args.kv.base);
    free(w->q);
    free(w->key);
    free(w->value);
    free(w->out[0]);
    free(w->out[1]);
    free(w);
}

/* Chooses some heads of one kv head, from head h on: sets slice->head0 and head1. */
static void some_heads(struct rng *r, const struct world *w, size_t h, struct attn_slice *slice)
{
    size_t end = h + 1;
    while (end < w->args.n_heads && w->kv_of_head[end] == w->kv_of_head[h]) end++;
    slice->head0 = h;
    slice->head1 = h + 1 + rng_below(r, end - h);
}

/* Computes all heads and rows through the table's entries, divided at random places. */
static void run_slices(struct rng *r, const struct kern_table *k, struct world *w, int which)
{
    w->args.out = w->out[which];
    for (size_t s = 0; s < w->args.n_seqs; s++) {
        for (size_t i = 0, j = 0; i < w->seqs[s].n_rows; i = j) {
            j = i + 1 + rng_below(r, w->seqs[s].n_rows - i);
            struct attn_slice slice = {.seq = s, .row0 = i, .row1 = j};
            for (size_t h = 0; h < w->args.n_heads; h = slice.head1) {
                some_heads(r, w, h, &slice);
                k->attention[w->args.kv.dtype](&w->args, &slice);
            }
        }
    }
}

/* The first position that position p sees. */
static size_t first_seen(const struct attn_args *a, size_t p)
{
    const size_t n = a->window & ~KERN_CHUNKS;
    if (n != a->window) return p / n * n;
    return n > 0 && p + 1 > n ? p + 1 - n : 0;
}

/* Computes row i of a sequence by tiles, in rounds and slices of random lengths. */
static void run_row_by_tiles(struct rng *r, const struct kern_table *k, struct world *w, size_t s,
                             size_t i, float *parts)
{
    const size_t p = w->seqs[s].pos0 + i, n_heads = w->args.n_heads;
    const size_t lo = first_seen(&w->args, p), end = p / 64 + 1;
    const size_t stride = n_heads * (w->args.kv.head_dim + 16);
    float states[2 * 8];
    for (size_t first = lo / 64, last = 0; first < end; first = last) {
        last = first + 1 + rng_below(r, end - first);
        struct attn_slice slice = {.seq = s, .row0 = i, .row1 = i + 1, .states = states};
        for (size_t h = 0; h < n_heads; h = slice.head1) {
            some_heads(r, w, h, &slice);
            for (size_t n = first; n < last; n = slice.tile1) {
                slice.parts = parts + (n - first) * stride;
                slice.tile0 = n;
                slice.tile1 = n + 1 + rng_below(r, last - n);
                k->attention[w->args.kv.dtype](&w->args, &slice);
            }
        }
        slice.parts = parts;
        slice.tile0 = first;
        slice.tile1 = last;
        for (size_t h = 0; h < n_heads; h = slice.head1) {
            slice.head0 = h;
            slice.head1 = h + 1 + rng_below(r, n_heads - h);
            k->attention_fold(&w->args, &slice);
        }
    }
}

static void run_tiles(struct rng *r, const struct kern_table *k, struct world *w, int which)
{
    const size_t stride = w->args.n_heads * (w->args.kv.head_dim + 16);
    float *parts = test_floats(w->n_blocks * stride);
    w->args.out = w->out[which];
    for (size_t s = 0; s < w->args.n_seqs; s++)
        for (size_t i = 0; i < w->seqs[s].n_rows; i++) run_row_by_tiles(r, k, w, s, i, parts);
    free(parts);
}

/* Element d of the key (what = 0) or the value (1) at a position. */
static double cached(const struct world *w, size_t s, size_t p, int what, size_t g, size_t d)
{
    const struct kv_view *kv = &w->args.kv;
    const size_t half = ((size_t)w->blocks[s][p / 64] * 2 + (size_t)what) * kv->n_kv_heads + g;
    const char *from = (const char *)kv->base + half * kv_half_bytes(kv->dtype, kv->head_dim);
    const char *at = from + (p % 64 * kv->head_dim + d) * dtype_bytes(kv->dtype);
    float x;
    if (kv->dtype == DTYPE_I8) {
        memcpy(&x, from + 64 * kv->head_dim + p % 64 * sizeof x, sizeof x);
        return (double)(float)(*(const int8_t *)at * x);
    }
    if (kv->dtype == DTYPE_F8_E4M3) return f32_from_e4m3(*(const uint8_t *)at);
    dtype_to_f32(kv->dtype, at, 1, &x);
    return x;
}

/* The largest difference from softmax(q k) v in double. */
static double softmax_error(const struct world *w, size_t s, size_t i, size_t h)
{
    const struct seq_rows *seq = &w->seqs[s];
    const size_t hd = w->args.kv.head_dim, g = w->kv_of_head[h], p = seq->pos0 + i;
    const size_t at = ((seq->row0 + i) * w->args.n_heads + h) * hd;
    const size_t lo = first_seen(&w->args, p);
    const size_t end = seq->pos0 + seq->n_rows - 1, after = p + w->args.window - 1;
    const size_t seen = w->args.window > 0 && after < end ? after : end;
    const size_t last = w->args.ahead ? seen : p;
    double total = w->args.sinks != NULL ? exp((double)w->sinks[h] - 20) : 0;
    double *sum = test_memory(hd * sizeof *sum), worst = 0;
    for (size_t d = 0; d < hd; d++) sum[d] = 0;
    for (size_t j = lo; j <= last; j++) {
        double dot = 0;
        for (size_t d = 0; d < hd; d++) dot += (double)w->q[at + d] * cached(w, s, j, 0, g, d);
        const double cap = (double)w->args.softcap, score = dot * 0.3;
        const double e = exp((cap > 0 ? cap * tanh(score / cap) : score) -
                             20); /* any constant would do: it cancels */
        total += e;
        for (size_t d = 0; d < hd; d++) sum[d] += e * cached(w, s, j, 1, g, d);
    }
    for (size_t d = 0; d < hd; d++) {
        const double error = fabs(w->out[0][at + d] - sum[d] / total);
        worst = error > worst || isnan(error) ? error : worst;
    }
    free(sum);
    return worst;
}

static void reference_is_softmax(void)
{
    const struct kern_table ref = table_ref();
    struct rng r = {1};
    for (int i = 0; i < 20; i++) {
        static const uint32_t windows[] = {0, 50, KERN_CHUNKS + 50};
        struct world *w = world_make(
            &r, &(struct shape){types[i % N_TYPES], 32, 2, 4, windows[i % 3], 150, 12, 0});
        w->args.ahead = i % 3 < 2 && i % 2 == 0;
        run_slices(&r, &ref, w, 0);
        for (size_t s = 0; s < w->args.n_seqs; s++)
            for (size_t row = 0; row < w->seqs[s].n_rows; row++)
                for (size_t h = 0; h < 4; h++) CU_ASSERT(softmax_error(w, s, row, h) < 2e-5);
        world_free(w);
    }
}

static void sets_agree(void)
{
    static const uint32_t dims[] = {16, 32, 48, 64, 80, 128, 336, latent_dim};
    static const uint32_t windows[] = {0,
                                       0,
                                       1,
                                       7,
                                       64,
                                       65,
                                       100,
                                       KERN_CHUNKS + 1,
                                       KERN_CHUNKS + 24,
                                       KERN_CHUNKS + 64,
                                       KERN_CHUNKS + 100};
    const struct kern_table ref = table_ref(), sets[] = {table_in_turn(0), table_in_turn(1)};
    struct rng r = {2};
    for (int i = 0; i < 180; i++) {
        const size_t max_rows = i % 3 == 0 ? 1 : i % 3 == 1 ? 5 : 150;
        struct world *w =
            world_make(&r, &(struct shape){types[i % 15 / 3], dims[rng_below(&r, 8)], 1 + i / 2 % 2,
                                           2 + (uint32_t)i / 2 % 2 * 4, windows[rng_below(&r, 11)],
                                           200, max_rows, 0});
        w->args.ahead = (w->args.window & KERN_CHUNKS) == 0 && rng_below(&r, 2) > 0;
        run_slices(&r, &ref, w, 0);
        run_slices(&r, &sets[i % 2], w, 1);
        CU_ASSERT_EQUAL(memcmp(w->out[0], w->out[1], w->q_floats * sizeof(float)), 0);
        for (size_t j = 0; j < w->q_floats; j++)
            if (!isfinite(w->out[0][j])) CU_FAIL("an invisible slot was used");
        world_free(w);
    }
}

/* Compares rows divided by tiles in random ways with rows that are not. */
static void tiles_do_not_change_bits(void)
{
    static const uint32_t dims[] = {16, 64, 80, latent_dim};
    static const uint32_t tile_windows[] = {150, 0, KERN_CHUNKS + 140};
    const struct kern_table ref = table_ref(), sets[] = {ref, table_in_turn(0), table_in_turn(1)};
    struct rng r = {5};
    for (int i = 0; i < 60; i++) {
        struct world *w = world_make(&r, &(struct shape){types[i % N_TYPES], dims[i / 3 % 4],
                                                         1 + (uint32_t)i / 2 % 2, i % 4 ? 6 : 8,
                                                         tile_windows[i % 3], 400, 3, 0});
        run_slices(&r, &ref, w, 0);
        run_tiles(&r, &sets[i % 3], w, 1);
        CU_ASSERT_EQUAL(memcmp(w->out[0], w->out[1], w->q_floats * sizeof(float)), 0);
        world_free(w);
    }
}

/* Compares single rows on one thread with the same on several threads, which have room for any
 * number of parts. */
static void room_for_parts_does_not_change_bits(void)
{
    struct kern_table best = table_best();
    struct team *teams[] = {test_team(2), test_team(3)};
    struct rng r = {6};
    for (int i = 0; i < 24; i++) {
        struct world *w = world_make(&r, &(struct shape){i % 2 ? DTYPE_F16 : DTYPE_I8, 64,
                                                         1 + (uint32_t)i / 3 % 2, 6,
                                                         i % 5 ? 0 : 200, 1500, 1, 0});
        const size_t row = 6 * (64 + 16), n = w->args.n_seqs * (12 + rng_below(&r, 26) * row);
        best.team = NULL;
        w->args.out = w->out[0];
        op_attention(&best, &w->args);
        best.team = teams[i % 4 / 2];
        w->args.out = w->out[1];
        w->args.parts = test_floats(n);
        w->args.n_part_floats = n;
        op_attention(&best, &w->args);
        CU_ASSERT_EQUAL(memcmp(w->out[0], w->out[1], w->q_floats * sizeof(float)), 0);
        free(w->args.parts);
        world_free(w);
    }
    for (int i = 0; i < 2; i++) team_destroy(&teams[i]);
}

static void sets_agree_on_special_values(void)
{
    const struct kern_table ref = table_ref(), sets[] = {table_in_turn(0), table_in_turn(1)};
    struct rng r = {3};
    for (int i = 0; i < 80; i++) {
        struct world *w = world_make(
            &r, &(struct shape){types[i % N_TYPES], 32, 1, 2, i % 2 ? 70 : 0, 130, 9, 0});
        rng_specials(&r, w->q, w->q_floats, 60);
        rng_specials(&r, w->key, w->n_rows * 32, 60);
        rng_specials(&r, w->value, w->n_rows * 32, 60);
        op_kv_write(&ref, w->key, w->value, &w->args.kv, w->seqs, w->args.n_seqs);
        run_slices(&r, &ref, w, 0);
        (i % 3 ? run_slices : run_tiles)(&r, &sets[i / 2 % 2], w, 1);
        CU_ASSERT_EQUAL(count_different(w->out[0], w->out[1], w->q_floats), 0);
        world_free(w);
    }
}

static void threads_do_not_change_bits(void)
{
    struct kern_table best = table_best();
    struct team *team = test_team(2);
    struct rng r = {4};
    for (int i = 0; i < 6; i++) {
        struct world *w =
            world_make(&r, &(struct shape){DTYPE_F16, 64, 2, 6, i % 2 ? 90 : 0, 300, 150, 0});
        w->args.ahead = i % 4 < 2;
        for (int n = 1; n <= 2; n++) {
            best.team = n == 1 ? NULL : team;
            w->args.out = w->out[n - 1];
            op_attention(&best, &w->args);
        }
        CU_ASSERT_EQUAL(memcmp(w->out[0], w->out[1], w->q_floats * sizeof(float)), 0);
        world_free(w);
    }
    team_destroy(&team);
}

/* Lets the sequences of each group of neighbours begin with the same blocks. Returns the fewest
 * blocks that a group shares. */
static size_t share_blocks(struct world *w, size_t group)
{
    size_t fewest = SIZE_MAX;
    for (size_t first = 0; first < w->args.n_seqs; first += group) {
        const size_t end = first + group < w->args.n_seqs ? first + group : w->args.n_seqs;
        size_t n = SIZE_MAX;
        for (size_t s = first; s < end; s++)
            n = w->seqs[s].pos0 / 64 < n ? w->seqs[s].pos0 / 64 : n;
        for (size_t s = first + 1; s < end; s++)
            memcpy(w->blocks[s], w->blocks[first], n * sizeof *w->blocks[s]);
        fewest = n < fewest ? n : fewest;
    }
    return fewest;
}

/* Compares slices of rows that share tiles, with all heads of a kv head or some, with rows that are
 * computed one by one. */
static void shared_tiles_do_not_change_bits(void)
{
    static const uint32_t dims[] = {16, 64, 80, latent_dim};
    const struct kern_table ref = table_ref(), sets[] = {ref, table_in_turn(0), table_in_turn(1)};
    struct rng r = {7};
    for (int i = 0, n_shared = 0; i < 60 || n_shared < 20; i++) {
        struct world *w = world_make(
            &r, &(struct shape){types[i % N_TYPES], dims[i / 3 % 4], 1 + (uint32_t)i / 2 % 2,
                                i % 4 ? 6 : 8, 0, 400, 1, 2 + rng_below(&r, i % 7 ? 6 : 39)});
        const size_t shared = share_blocks(w, w->args.n_seqs);
        run_slices(&r, &ref, w, 0);
        w->args.out = w->out[1];
        struct attn_slice slice = {.row1 = w->args.n_seqs, .n_shared = shared};
        for (size_t h = 0; shared > 0 && h < w->args.n_heads; h = slice.head1) {
            some_heads(&r, w, h, &slice);
            sets[i % 3].attention[w->args.kv.dtype](&w->args, &slice);
        }
        if (shared > 0)
            CU_ASSERT_EQUAL(memcmp(w->out[0], w->out[1], w->q_floats * sizeof(float)), 0);
        n_shared += shared > 0;
        world_free(w);
    }
}

/* op_attention finds by itself which sequences share blocks. Compares its rows, on one thread and
 * on several, with rows that are computed without sharing. */
static void shared_beginnings_do_not_change_bits(void)
{
    const struct kern_table ref = table_ref();
    struct kern_table best = table_best();
    struct team *teams[] = {NULL, test_team(2), test_team(3)};
    struct rng r = {8};
    for (int i = 0; i < 30; i++) {
        struct world *w = world_make(&r, &(struct shape){types[i % N_TYPES], 64,
                                                         1 + (uint32_t)i % 2, 4, i % 6 ? 0 : 100,
                                                         900, i % 5 ? 1 : 2, MAX_SEQS - (size_t)i});
        share_blocks(w, 1 + rng_below(&r, 9));
        run_slices(&r, &ref, w, 0);
        best.team = teams[i % 3];
        w->args.out = w->out[1];
        op_attention(&best, &w->args);
        CU_ASSERT_EQUAL(memcmp(w->out[0], w->out[1], w->q_floats * sizeof(float)), 0);
        world_free(w);
    }
    for (int i = 1; i < 3; i++) team_destroy(&teams[i]);
}

void suite_attention(CU_pSuite suite);
void suite_attention(CU_pSuite suite)
{
    CU_add_test(suite, "the reference is softmax", reference_is_softmax);
    CU_add_test(suite, "sets agree", sets_agree);
    CU_add_test(suite, "sets agree on special values", sets_agree_on_special_values);
    CU_add_test(suite, "threads do not change bits", threads_do_not_change_bits);
    CU_add_test(suite, "tiles do not change bits", tiles_do_not_change_bits);
    CU_add_test(suite, "room for parts does not change bits", room_for_parts_does_not_change_bits);
    CU_add_test(suite, "shared tiles do not change bits", shared_tiles_do_not_change_bits);
    CU_add_test(suite, "shared beginnings do not change bits",
                shared_beginnings_do_not_change_bits);
}

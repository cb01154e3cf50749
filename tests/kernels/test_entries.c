/* Tests the ops of compressed attention: the sums of entries of other instruction sets against the
 * reference, bit for bit; entries and index keys against sums in double, and cut into steps in any
 * way; and attention to a window and entries against its definition in double. */
#include "kernels/body.h"
#include "kernels/elementary.h"
#include "kernels/ops.h"
#include "kernels/ops_sparse.h"
#include "util_kernels.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void sets_agree_on_the_sums(void)
{
    const struct kern_table ref = table_ref();
    struct rng r = {31};
    for (size_t i = 0; i < 300; i++) {
        const struct kern_table t = table_in_turn(i);
        const size_t n = 1 + rng_below(&r, 90), n_rows = 1 + rng_below(&r, 6);
        float *rows = test_floats(3 * n), *sums[2] = {test_floats(3 * n), test_floats(3 * n)};
        for (size_t j = 0; j < 3 * n; j++) sums[0][j] = sums[1][j] = j < n ? -INFINITY : 0;
        for (size_t row = 0; row < n_rows; row++) {
            rng_floats(&r, rows, 3 * n, i % 2 ? 3.0f : 200.0f);
            if (i % 5 == 0) rng_specials(&r, rows, 3 * n, 9);
            for (int j = 0; j < 2; j++)
                (j == 0 ? &ref : &t)
                    ->pool_add(&(struct pool_sums){sums[j], sums[j] + n, sums[j] + 2 * n}, rows,
                               rows + n, rows + 2 * n, n);
        }
        CU_ASSERT_EQUAL(count_different(sums[0], sums[1], 3 * n), 0);
        free(rows);
        free(sums[0]);
        free(sums[1]);
    }
}

enum { N_ROWS = 150, DIM = 32, ROT = 8, KEY = 16, N_BLOCKS = 3 };

/* A sequence and the weights of its entries. */
struct world {
    uint32_t rate, parts, dim; /* rows of an entry; 1 or 2; DIM, or KEY for index keys */
    float *v, *z, *bias, *norm, *inv_freq, *state;
    char *cache;
    int32_t blocks[N_BLOCKS];
    struct entry_view view;
};

/* Bytes that a block has beside its keys: room for entries at any rate of the tests. */
static uint32_t beside(enum dtype t)
{
    return (uint32_t)kv_half_bytes(t, DIM + KEY);
}

static struct world world_make(struct rng *r, enum dtype t, uint32_t rate, uint32_t parts)
{
    struct world w = {.rate = rate, .parts = parts, .dim = DIM, .blocks = {2, 0, 1}};
    const size_t width = (size_t)parts * DIM, block = kv_half_bytes(t, DIM) + beside(t);
    w.v = test_floats(N_ROWS * width);
    w.z = test_floats(N_ROWS * width);
    w.bias = test_floats(rate * width);
    w.norm = test_floats(DIM);
    w.inv_freq = test_floats(ROT / 2);
    w.state = test_floats(pool_state_floats(parts, DIM));
    w.cache = test_memory(N_BLOCKS * block);
    memset(w.cache, 0xFF, N_BLOCKS * block);
    rng_floats(r, w.v, N_ROWS * width, 2.0f);
    rng_floats(r, w.z, N_ROWS * width, 4.0f);
    rng_floats(r, w.bias, rate * width, 1.0f);
    rng_floats(r, w.norm, DIM, 1.5f);
    for (int i = 0; i < ROT / 2; i++) w.inv_freq[i] = 1.0f / (float)(1 + i);
    w.view = (struct entry_view){.kv = {.base = w.cache,
                                        .dtype = t,
                                        .n_kv_heads = 1,
                                        .head_dim = DIM,
                                        .latent = true,
                                        .beside_bytes = beside(t)},
                                 .rate = rate,
                                 .index_dim = KEY};
    return w;
}

static void world_free(struct world *w)
{
    free(w->v);
    free(w->z);
    free(w->bias);
    free(w->norm);
    free(w->inv_freq);
    free(w->state);
    free(w->cache);
}

/* Makes the entries of rows [begin, end) of the sequence. */
static void pool_rows(const struct kern_table *k, const struct world *w, size_t begin, size_t end)
{
    const size_t width = (size_t)w->parts * w->dim;
    float *v = test_floats((end - begin) * width);
    const struct seq_rows seq = {0, end - begin, begin, w->blocks, 0};
    memcpy(v, w->v + begin * width, (end - begin) * width * sizeof *v);
    op_pool(k, &(struct pool_args){.v = v,
                                   .z = w->z + begin * width,
                                   .bias = w->bias,
                                   .norm = w->norm,
                                   .parts = w->parts,
                                   .dim = w->dim,
                                   .eps = 1e-6f,
                                   .inv_freq = w->inv_freq,
                                   .rot = ROT,
                                   .rope_scale = 1,
                                   .states = w->state,
                                   .state_stride = pool_state_floats(w->parts, w->dim),
                                   .to = w->view,
                                   .is_index = w->dim == KEY,
                                   .seqs = &seq,
                                   .n_seqs = 1,
                                   .n_rows = end - begin});
    free(v);
}

/* Adds row p's part to the sums of channel c, in double. */
static void add_row(const struct world *w, size_t p, uint32_t part, size_t c, double *l, double *s)
{
    const size_t width = (size_t)w->parts * w->dim, i = part * w->dim + c;
    const double e = exp((double)w->z[p * width + i] + (double)w->bias[p % w->rate * width + i]);
    *l += e;
    *s += e * (double)w->v[p * width + i];
}

/* out [w->dim] = entry n, or its index key, in double. */
static void entry_of(const struct world *w, size_t n, double *out)
{
    double squares = 0;
    for (size_t c = 0; c < w->dim; c++) {
        double l = 0, s = 0;
        for (size_t p = n * w->rate; p < (n + 1) * w->rate; p++) {
            if (w->parts == 2 && n > 0) add_row(w, p - w->rate, 0, c, &l, &s);
            add_row(w, p, w->parts - 1, c, &l, &s);
        }
        out[c] = s / l;
        squares += out[c] * out[c];
    }
    for (size_t c = 0; c < w->dim; c++)
        out[c] *= (double)w->norm[c] / sqrt(squares / w->dim + 1e-6);
    for (size_t i = 0; i < ROT / 2; i++) {
        double *x = out + w->dim - ROT + 2 * i;
        const double angle = (double)(n * w->rate) * (double)w->inv_freq[i], a = x[0], b = x[1];
        x[0] = a * cos(angle) - b * sin(angle);
        x[1] = b * cos(angle) + a * sin(angle);
    }
}

/* Returns element c of entry n in a cache of floats. */
static float stored(const struct world *w, size_t n, size_t c)
{
    const size_t per_block = w->rate < 64 ? 64 / w->rate : 1;
    const size_t block = kv_half_bytes(DTYPE_F32, DIM) + beside(DTYPE_F32);
    const int32_t at = w->blocks[(n * w->rate + w->rate - 1) / 64];
    const char *entries = w->cache + (size_t)at * block + kv_half_bytes(DTYPE_F32, DIM);
    return ((const float *)(const void *)entries)[n % per_block * DIM + c];
}

static void entries_are_weighted_sums(void)
{
    static const uint32_t rates[] = {2, 4, 32, 64, 128};
    const struct kern_table k = table_best();
    struct rng r = {32};
    for (int i = 0; i < 10; i++) {
        struct world w = world_make(&r, DTYPE_F32, rates[i / 2], 1 + i % 2);
        double want[DIM];
        pool_rows(&k, &w, 0, N_ROWS);
        for (size_t n = 0; n < N_ROWS / w.rate; n++) {
            entry_of(&w, n, want);
            for (size_t c = 0; c < DIM; c++)
                CU_ASSERT_DOUBLE_EQUAL(stored(&w, n, c), want[c], 1e-5 * (1 + fabs(want[c])));
        }
        world_free(&w);
    }
}

/* Index keys are weighted sums as entries are, and lie beside the entries in the cache.
 * op_entry_keys copies them in order. */
static void index_keys_are_sums_and_copied(void)
{
    static const uint32_t rates[] = {2, 4, 32, 64, 128};
    const struct kern_table k = table_best();
    struct rng r = {34};
    for (int i = 0; i < 20; i++) {
        const enum dtype t = i < 10 ? DTYPE_F32 : DTYPE_I8;
        struct world w = world_make(&r, t, rates[i / 2 % 5], 1 + i % 2);
        const struct seq_rows seq = {0, N_ROWS, 0, w.blocks, 0};
        const size_t half = kv_half_bytes(t, KEY);
        char *copy = test_memory(2 * half);
        const struct kv_view to = {
            .base = copy, .dtype = t, .n_kv_heads = 1, .head_dim = KEY, .latent = true};
        w.dim = KEY;
        pool_rows(&k, &w, 0, N_ROWS);
        op_entry_keys(&k, &w.view, &seq, N_ROWS / w.rate, &to);
        for (size_t n = 0; n < N_ROWS / w.rate; n++) {
            double want[KEY];
            entry_of(&w, n, want);
            for (size_t c = 0; c < KEY; c++) {
                const float got = kern_kv_load(t, copy + n / 64 * half, KEY, n % 64, c);
                CU_ASSERT_DOUBLE_EQUAL(got, want[c],
                                       (t == DTYPE_F32 ? 1e-5 : 0.03) * (1 + fabs(want[c])));
            }
        }
        free(copy);
        world_free(&w);
    }
}

/* The whole cache has the same bytes for any cut of the rows, instruction set and team. */
static void steps_change_no_bit(void)
{
    static const enum dtype types[] = {DTYPE_F16, DTYPE_I8, DTYPE_F8_E4M3, DTYPE_F32};
    struct team *team = test_team(3);
    for (uint64_t i = 0; i < 40; i++) {
        const enum dtype t = types[i % 4];
        const size_t n_bytes = N_BLOCKS * (kv_half_bytes(t, DIM) + beside(t));
        const uint32_t rate = i % 3 == 0 ? 128 : i % 3 == 1 ? 4 : 16;
        struct rng same = {40 + i}, again = {40 + i}, r = {90 + i};
        struct kern_table ref = table_ref(), other = table_in_turn(i);
        struct world whole = world_make(&same, t, rate, 1 + i % 2);
        struct world cut = world_make(&again, t, rate, 1 + i % 2);
        other.team = team;
        whole.dim = cut.dim = i % 5 == 0 ? KEY : DIM;
        pool_rows(&ref, &whole, 0, N_ROWS);
        for (size_t begin = 0, end; begin < N_ROWS; begin = end) {
            end = begin + 1 + rng_below(&r, 40);
            if (end > N_ROWS) end = N_ROWS;
            pool_rows(&other, &cut, begin, end);
        }
        CU_ASSERT_EQUAL(memcmp(whole.cache, cut.cache, n_bytes), 0);
        world_free(&whole);
        world_free(&cut);
    }
    team_destroy(&team);
}

enum { HEADS = 3, WINDOW = 20, FIRST = 100, N_LAST = 30, N_CHOSEN = 7, N_TILES = 2 };

/* Fills the cache with random keys and with entries. Sets chosen [N_LAST, N_CHOSEN] to random
 * entries that a row may see, in ascending order. */
static void fill(struct rng *r, const struct kern_table *k, struct world *w, int32_t *chosen)
{
    float x[DIM];
    for (size_t p = 0; p < N_ROWS; p++) {
        const struct seq_rows one = {0, 1, p, w->blocks, 0};
        rng_floats(r, x, DIM, 1.5f);
        op_kv_write(k, x, NULL, &w->view.kv, &one, 1);
    }
    pool_rows(k, w, 0, N_ROWS);
    for (size_t row = 0; row < N_LAST; row++) {
        const size_t n = (FIRST + row + 1) / w->rate;
        for (size_t i = 0, at = 0; i < N_CHOSEN; i++, at++) {
            at += rng_below(r, n - at - (N_CHOSEN - 1 - i));
            chosen[row * N_CHOSEN + i] = (int32_t)at;
        }
    }
}

/* out [DIM] = head 0 of a row by the definition of attention, in double. */
static void attention_of(const struct world *w, const float *q, float sink, size_t p,
                         const int32_t *chosen, double *out)
{
    const size_t n = (p + 1) / w->rate, n_seen = chosen != NULL ? N_CHOSEN : n;
    double sum = exp((double)sink), scores;
    memset(out, 0, DIM * sizeof *out);
    for (size_t i = 0; i < WINDOW + n_seen; i++) {
        const size_t at = p - WINDOW + 1 + i, e = i - WINDOW;
        const size_t block = kv_half_bytes(DTYPE_F32, DIM) + beside(DTYPE_F32);
        const float *key =
            (const float *)(const void *)(w->cache +
                                          (size_t)w->blocks[at / 64 % N_BLOCKS] * block) +
            at % 64 * DIM;
        float entry[DIM];
        for (size_t c = 0; i >= WINDOW && c < DIM; c++)
            entry[c] = stored(w, chosen != NULL ? (size_t)chosen[e] : e, c);
        scores = 0;
        for (size_t c = 0; c < DIM; c++)
            scores += (double)q[c] * (double)(i < WINDOW ? key : entry)[c];
        scores = exp(scores * 0.25);
        sum += scores;
        for (size_t c = 0; c < DIM; c++) out[c] += scores * (double)(i < WINDOW ? key : entry)[c];
    }
    for (size_t c = 0; c < DIM; c++) out[c] /= sum;
}

static void attend(const struct kern_table *k, const struct world *w, const float *q,
                   const float *sinks, const int32_t *chosen, size_t n_gather, float *out)
{
    static const uint8_t kv_of_head[HEADS] = {0};
    const struct seq_rows seq = {0, N_LAST, FIRST, w->blocks, 0};
    const size_t block = kv_half_bytes(w->view.kv.dtype, DIM);
    int32_t *blocks = test_memory(n_gather * N_TILES * sizeof *blocks);
    struct seq_rows *rows = test_memory(N_LAST * sizeof *rows);
    void *gathered = test_memory(n_gather * N_TILES * block);
    memset(gathered, 0xFF, n_gather * N_TILES * block);
    op_entry_attention(k, &(struct entry_attention){.attention = {.q = q,
                                                                  .out = out,
                                                                  .kv = w->view.kv,
                                                                  .kv_of_head = kv_of_head,
                                                                  .n_heads = HEADS,
                                                                  .scale = 0.25f,
                                                                  .sinks = sinks,
                                                                  .window = WINDOW,
                                                                  .seqs = &seq,
                                                                  .n_seqs = 1},
                                                    .entries = w->view,
                                                    .chosen = chosen,
                                                    .n_chosen = N_CHOSEN,
                                                    .gathered = gathered,
                                                    .n_gather = n_gather,
                                                    .n_tiles = N_TILES,
                                                    .blocks = blocks,
                                                    .rows = rows});
    free(blocks);
    free(rows);
    free(gathered);
}

static void rows_attend_to_window_and_entries(void)
{
    struct rng r = {33};
    for (int i = 0; i < 20; i++) {
        const struct kern_table ref = table_ref(), other = table_in_turn((size_t)i);
        struct world w = world_make(&r, DTYPE_F32, 4, 1 + i % 2);
        const bool chooses = i % 3 > 0;
        int32_t chosen[N_LAST * N_CHOSEN];
        float *q = test_floats(N_LAST * HEADS * DIM), sinks[HEADS] = {0.5f, -1, 2}, *out[2];
        double want[DIM];
        fill(&r, &ref, &w, chosen);
        rng_floats(&r, q, N_LAST * HEADS * DIM, 1.0f);
        for (int j = 0; j < 2; j++) {
            out[j] = test_floats(N_LAST * HEADS * DIM);
            attend(j == 0 ? &ref : &other, &w, q, sinks, chooses ? chosen : NULL,
                   j == 0 ? N_LAST : 1 + rng_below(&r, 9), out[j]);
        }
        CU_ASSERT_EQUAL(count_different(out[0], out[1], N_LAST * HEADS * DIM), 0);
        for (size_t row = 0; row < N_LAST; row++) {
            attention_of(&w, q + row * HEADS * DIM, sinks[0], FIRST + row,
                         chooses ? chosen + row * N_CHOSEN : NULL, want);
            for (size_t c = 0; c < DIM; c++)
                CU_ASSERT_DOUBLE_EQUAL(out[0][row * HEADS * DIM + c], want[c], 1e-4);
        }
        for (int j = 0; j < 2; j++) free(out[j]);
        free(q);
        world_free(&w);
    }
}

void suite_entries(CU_pSuite suite);
void suite_entries(CU_pSuite suite)
{
    CU_add_test(suite, "sets agree on the sums", sets_agree_on_the_sums);
    CU_add_test(suite, "entries are weighted sums", entries_are_weighted_sums);
    CU_add_test(suite, "index keys are sums and copied", index_keys_are_sums_and_copied);
    CU_add_test(suite, "steps change no bit", steps_change_no_bit);
    CU_add_test(suite, "rows attend to window and entries", rows_attend_to_window_and_entries);
}

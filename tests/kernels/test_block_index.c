/* Tests an index that chooses blocks for each KV head, and attention over the chosen blocks: other
 * instruction sets against the reference, bit for bit; the choice against a sort; attention against
 * a softmax in double; and that no division into steps, rows at a time or threads changes a bit. */
#include "kernels/ops.h"
#include "kernels/ops_sparse.h"
#include "util_kernels.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_TYPES = 5, MAX_SEQS = 3, GROUP = 3 /* query heads of a KV head */, POSITIONS = 620 };

static const enum dtype types[N_TYPES] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_I8,
                                          DTYPE_F8_E4M3};

/* Sequences over one pool of keys and values and one of index keys. */
struct block_world {
    struct index_args index;
    struct block_attention a;
    struct seq_rows seqs[MAX_SEQS];
    int32_t *blocks[MAX_SEQS], *chosen;
    uint8_t kv_of_head[4 * GROUP];
    size_t n_rows, n_out, n_scores;
    char *pool, *keys;
    float *q, *index_q;
};

/* Writes random keys, values and index keys at all positions. */
static void fill_positions(struct rng *r, const struct block_world *w, const struct kern_table *k)
{
    const struct kv_view *kv = &w->a.attention.kv;
    const size_t n_kv = (size_t)kv->n_kv_heads * kv->head_dim;
    float *x = test_floats(2 * n_kv + w->index.keys.head_dim);
    for (size_t s = 0; s < w->index.n_seqs; s++) {
        for (size_t p = 0; p < w->seqs[s].pos0 + w->seqs[s].n_rows; p++) {
            const struct seq_rows one = {0, 1, p, w->blocks[s], 0};
            rng_floats(r, x, 2 * n_kv + w->index.keys.head_dim, 1.5f);
            op_kv_write(k, x, x + n_kv, kv, &one, 1);
            op_kv_write(k, x + 2 * n_kv, NULL, &w->index.keys, &one, 1);
        }
    }
    free(x);
}

static void make_seqs(struct rng *r, struct block_world *w, size_t max_rows, size_t *n_blocks)
{
    w->index.n_seqs = 1 + rng_below(r, MAX_SEQS);
    for (size_t s = 0; s < w->index.n_seqs; s++) {
        const size_t n_rows = 1 + rng_below(r, max_rows), pos0 = rng_below(r, POSITIONS - n_rows);
        const size_t n = (pos0 + n_rows + 63) / 64;
        w->blocks[s] = test_memory(n * sizeof(int32_t));
        for (size_t i = 0; i < n; i++) w->blocks[s][n - 1 - i] = (int32_t)(*n_blocks)++;
        w->seqs[s] = (struct seq_rows){w->n_rows, n_rows, pos0, w->blocks[s], 0};
        w->n_rows += n_rows;
    }
}

static struct block_world *world_make(struct rng *r, enum dtype t, size_t max_rows)
{
    static const uint32_t widths[] = {16, 48, 128};
    const struct kern_table ref = table_ref();
    struct block_world *w = test_memory(sizeof *w);
    *w = (struct block_world){0};
    const uint32_t width = widths[rng_below(r, 3)], dim = widths[rng_below(r, 3)];
    const uint32_t n_kv = 1 + (uint32_t)rng_below(r, 4), block = 64u << rng_below(r, 2);
    const uint32_t n_chosen = 1 + (uint32_t)rng_below(r, 3);
    size_t n_blocks = 0;
    make_seqs(r, w, max_rows, &n_blocks);
    const size_t pool_bytes = n_blocks * 2 * n_kv * kv_half_bytes(t, width);
    const size_t key_bytes = n_blocks * kv_half_bytes(t, dim), n_q = w->n_rows * n_kv * dim;
    w->n_out = w->n_rows * n_kv * GROUP * width;
    w->n_scores = (size_t)n_kv * POSITIONS / 64 * 64 + n_kv * 64;
    w->pool = test_memory(pool_bytes);
    w->keys = test_memory(key_bytes);
    memset(w->pool, 0xFF, pool_bytes); /* NaN in every type */
    memset(w->keys, 0xFF, key_bytes);
    w->q = test_floats(w->n_out);
    w->index_q = test_floats(n_q);
    rng_floats(r, w->q, w->n_out, 3.0f);
    rng_floats(r, w->index_q, n_q, 3.0f);
    w->chosen = test_memory(w->n_rows * n_kv * n_chosen * sizeof *w->chosen);
    for (size_t h = 0; h < n_kv * GROUP; h++) w->kv_of_head[h] = (uint8_t)(h / GROUP);
    w->index = (struct index_args){.q = w->index_q,
                                   .keys = {w->keys, t, 1, dim, true, 0},
                                   .n_heads = n_kv,
                                   .scale = 1,
                                   .n_chosen = n_chosen * block,
                                   .seqs = w->seqs,
                                   .n_seqs = w->index.n_seqs};
    w->a = (struct block_attention){
        .attention = {.q = w->q,
                      .kv = {w->pool, t, n_kv, width, false, 0},
                      .kv_of_head = w->kv_of_head,
                      .n_heads = n_kv * GROUP,
                      .scale = 0.2f,
                      .seqs = w->seqs,
                      .n_seqs = w->index.n_seqs},
        .choice = {n_chosen, block, (uint32_t)rng_below(r, n_chosen + 1), w->chosen}};
    fill_positions(r, w, &ref);
    return w;
}

static void world_free(struct block_world *w)
{
    for (size_t s = 0; s < w->index.n_seqs; s++) free(w->blocks[s]);
    free(w->pool);
    free(w->keys);
    free(w->q);
    free(w->index_q);
    free(w->chosen);
    free(w);
}

/* Writes scores [H, stride] of row i of sequence s, its tiles cut in two. */
static void score_row(const struct kern_table *k, const struct block_world *w, size_t s, size_t i,
                      size_t cut, float *scores)
{
    const size_t n_tiles = (w->seqs[s].pos0 + i) / 64 + 1;
    struct index_slice slice = {s, i, 0, cut < n_tiles ? cut : n_tiles, scores, n_tiles * 64};
    k->index_scores[w->index.keys.dtype](&w->index, &slice);
    slice.tile0 = slice.tile1;
    slice.tile1 = n_tiles;
    k->index_scores[w->index.keys.dtype](&w->index, &slice);
}

static void sets_agree_on_each_heads_scores(void)
{
    const struct kern_table ref = table_ref(), sets[] = {table_in_turn(0), table_in_turn(1)};
    struct rng r = {61};
    for (int n = 0; n < 60; n++) {
        struct block_world *w = world_make(&r, types[n % N_TYPES], 4);
        const size_t stride = (POSITIONS + 63) / 64 * 64;
        float *x = test_floats(w->index.n_heads * stride),
              *y = test_floats(w->index.n_heads * stride);
        if (n >= 30) rng_specials(&r, w->index_q, w->n_rows * w->index.n_heads * 16, 90);
        for (size_t s = 0; s < w->index.n_seqs; s++) {
            for (size_t i = 0; i < w->seqs[s].n_rows; i++) {
                const size_t p = w->seqs[s].pos0 + i, own = (p / 64 + 1) * 64;
                score_row(&ref, w, s, i, 0, x);
                score_row(&sets[n / 2 % 2], w, s, i, rng_below(&r, 5), y);
                for (size_t h = 0; h < w->index.n_heads; h++)
                    CU_ASSERT_EQUAL(count_different(x + h * own, y + h * own, p + 1), 0);
            }
        }
        free(x);
        free(y);
        world_free(w);
    }
}

/* Runs both ops over the rows, in steps of at most n_step rows of each sequence. */
static void run(struct block_world *w, const struct kern_table *k, size_t n_step, size_t n_at_once,
                float *out)
{
    const uint32_t n_kv = w->index.n_heads;
    const size_t n_tiles = (size_t)w->index.n_chosen / 64, n_scores = w->n_scores * n_at_once;
    int32_t *tables = test_memory(w->n_rows * n_kv * n_tiles * sizeof *tables);
    struct seq_rows *rows = test_memory(w->n_rows * n_kv * sizeof *rows), step[MAX_SEQS];
    float *scores = test_floats(n_scores), *parts = test_floats(1 << 16);
    for (size_t i = 0, n = 1; n > 0; i += n_step) {
        struct index_args index = w->index;
        struct block_attention a = w->a;
        n = 0;
        for (size_t s = 0; s < w->index.n_seqs; s++) {
            const struct seq_rows *seq = &w->seqs[s];
            if (i >= seq->n_rows) continue;
            const size_t left = seq->n_rows - i;
            step[n++] = (struct seq_rows){seq->row0 + i, left < n_step ? left : n_step,
                                          seq->pos0 + i, seq->blocks, 0};
        }
        index.seqs = a.attention.seqs = step;
        index.n_seqs = a.attention.n_seqs = n;
        a.attention.out = out;
        a.attention.parts = parts;
        a.attention.n_part_floats = 1 << 16;
        a.tables = tables;
        a.rows = rows;
        op_index_blocks(k, &index, &a.choice, scores, n_scores);
        op_block_attention(k, &a);
    }
    free(tables);
    free(rows);
    free(scores);
    free(parts);
}

static void divisions_do_not_change_bits(void)
{
    struct kern_table sets[] = {table_ref(), table_in_turn(0), table_in_turn(1)};
    struct team *team = test_team(3);
    struct rng r = {62};
    for (int n = 0; n < 60; n++) {
        struct block_world *w = world_make(&r, types[n % N_TYPES], n % 3 ? 40 : 2);
        float *x = test_floats(w->n_out), *y = test_floats(w->n_out);
        struct kern_table *k = &sets[n % 3];
        run(w, &sets[0], 1000, 100, x);
        k->team = n % 2 ? team : NULL;
        run(w, k, n % 5 ? 1 + rng_below(&r, 20) : 1, 1 + rng_below(&r, 3), y);
        k->team = NULL;
        CU_ASSERT_EQUAL(count_different(x, y, w->n_out), 0);
        for (size_t i = 0; i < w->n_out; i++) CU_ASSERT_FATAL(isfinite(x[i]));
        free(x);
        free(y);
        world_free(w);
    }
    team_destroy(&team);
}

/* Returns the score of a row's block b: +infinity if it is one of the last n_local. */
static float block_score(const struct block_world *w, const float *scores, size_t p, size_t b)
{
    const struct block_choice *c = &w->a.choice;
    float most = -INFINITY;
    if (b + c->n_local > p / c->block) return INFINITY;
    for (size_t j = b * c->block; j < (b + 1) * c->block && j <= p; j++)
        most = fmaxf(most, scores[j]);
    return most;
}

/* True when block b is among the n_blocks best of those that position p sees. */
static bool is_chosen(const struct block_world *w, const float *scores, size_t p, size_t b)
{
    size_t n_better = 0;
    const float own = block_score(w, scores, p, b);
    for (size_t i = 0; i <= p / w->a.choice.block; i++) {
        const float other = block_score(w, scores, p, i);
        n_better += other > own || (other == own && i < b);
    }
    return n_better < w->a.choice.n_blocks;
}

/* The choice of a row and KV head, as op_index_blocks left it, ascends through the best blocks. A
 * row that sees no more than n_chosen positions has no choice. */
static void check_choice(const struct block_world *w, const float *scores, size_t s, size_t i,
                         size_t g)
{
    const size_t p = w->seqs[s].pos0 + i, row = w->seqs[s].row0 + i;
    const uint32_t n = w->a.choice.n_blocks;
    const int32_t *chosen = w->chosen + (row * w->index.n_heads + g) * n;
    size_t at = 0;
    if (p < w->index.n_chosen) return;
    for (size_t b = 0; b <= p / w->a.choice.block; b++)
        if (is_chosen(w, scores, p, b)) CU_ASSERT_EQUAL(chosen[at++], (int32_t)b);
    CU_ASSERT_EQUAL(at, n);
}

/* True when the row's queries of KV head g attend to position j. */
static bool attends(const struct block_world *w, const float *scores, size_t p, size_t j)
{
    return p < w->index.n_chosen || is_chosen(w, scores, p, j / w->a.choice.block);
}

/* Compares the output of head h of a sequence's first row with a softmax in double. */
static void check_output(const struct block_world *w, const float *scores, size_t s, size_t h,
                         const float *out)
{
    const struct kv_view *kv = &w->a.attention.kv;
    const size_t dim = kv->head_dim, p = w->seqs[s].pos0, g = h / GROUP;
    const size_t at = (w->seqs[s].row0 * w->a.attention.n_heads + h) * dim;
    double total = 0, *sum = test_memory(dim * sizeof *sum);
    for (size_t d = 0; d < dim; d++) sum[d] = 0;
    for (size_t j = 0; j <= p; j++) {
        if (!attends(w, scores, p, j)) continue;
        const size_t half = (size_t)w->blocks[s][j / 64] * 2 * kv->n_kv_heads + g;
        const float *pool = (const float *)(const void *)w->pool;
        const float *key = pool + (half * 64 + j % 64) * dim;
        const float *value = key + kv->n_kv_heads * 64 * dim;
        double dot = 0;
        for (size_t d = 0; d < dim; d++) dot += (double)w->q[at + d] * key[d];
        const double e = exp(dot * (double)0.2f - 10);
        total += e;
        for (size_t d = 0; d < dim; d++) sum[d] += e * value[d];
    }
    for (size_t d = 0; d < dim; d++) CU_ASSERT_DOUBLE_EQUAL(out[at + d], sum[d] / total, 5e-5);
    free(sum);
}

static void the_best_blocks_are_attended(void)
{
    const struct kern_table k = table_best();
    struct rng r = {63};
    size_t n_sparse = 0;
    for (int n = 0; n < 40; n++) {
        struct block_world *w = world_make(&r, DTYPE_F32, 1);
        float *out = test_floats(w->n_out);
        float *scores = test_floats(w->index.n_heads * ((POSITIONS + 63) / 64 * 64));
        run(w, &k, 1, 1, out);
        for (size_t s = 0; s < w->index.n_seqs; s++) {
            const size_t stride = (w->seqs[s].pos0 / 64 + 1) * 64;
            n_sparse += w->seqs[s].pos0 >= w->index.n_chosen;
            score_row(&k, w, s, 0, 0, scores);
            for (size_t g = 0; g < w->index.n_heads; g++) {
                check_choice(w, scores + g * stride, s, 0, g);
                for (size_t h = g * GROUP; h < (g + 1) * GROUP; h++)
                    check_output(w, scores + g * stride, s, h, out);
            }
        }
        free(out);
        free(scores);
        world_free(w);
    }
    CU_ASSERT(n_sparse > 20);
}

void suite_block_index(CU_pSuite suite);
void suite_block_index(CU_pSuite suite)
{
    CU_add_test(suite, "sets agree on each head's scores", sets_agree_on_each_heads_scores);
    CU_add_test(suite, "divisions do not change bits", divisions_do_not_change_bits);
    CU_add_test(suite, "the best blocks are attended", the_best_blocks_are_attended);
}

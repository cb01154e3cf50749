/* Tests the index of sparse attention and attention over chosen positions: other instruction sets
 * against the reference, bit for bit; scores against sums in double; the choice against a sort; and
 * that no division into steps, groups of rows or threads changes a bit. */
#include "kernels/ops.h"
#include "kernels/ops_sparse.h"
#include "util_kernels.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_TYPES = 5, MAX_SEQS = 3 };

static const enum dtype types[N_TYPES] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_I8,
                                          DTYPE_F8_E4M3};

/* Sequences over one pool of blocks, each with the latents [64, width] of its positions and then
 * their index keys [64, dim]. */
struct world {
    struct index_args index;
    struct sparse_args sparse;
    struct seq_rows seqs[MAX_SEQS];
    int32_t *blocks[MAX_SEQS];
    uint8_t kv_of_head[8];
    size_t n_rows, n_out;
    char *pool;
    float *q, *index_q, *mix;
};

static void world_seqs(struct rng *r, struct world *w, size_t max_pos, size_t max_rows,
                       size_t *n_blocks)
{
    w->index.n_seqs = 1 + rng_below(r, MAX_SEQS);
    for (size_t s = 0; s < w->index.n_seqs; s++) {
        struct seq_rows *seq = &w->seqs[s];
        *seq = (struct seq_rows){w->n_rows, 1 + rng_below(r, max_rows), rng_below(r, max_pos), NULL,
                                 0};
        const size_t n = (seq->pos0 + seq->n_rows + 63) / 64;
        w->blocks[s] = test_memory(n * sizeof(int32_t));
        for (size_t i = 0; i < n; i++) w->blocks[s][n - 1 - i] = (int32_t)(*n_blocks)++;
        seq->blocks = w->blocks[s];
        w->n_rows += seq->n_rows;
    }
}

/* Writes random latents and index keys at all positions. */
static void world_fill(struct rng *r, struct world *w, const struct kern_table *k)
{
    const uint32_t width = w->sparse.attention.kv.head_dim, dim = w->index.keys.head_dim;
    float *x = test_floats(width > dim ? width : dim);
    for (size_t s = 0; s < w->index.n_seqs; s++) {
        for (size_t p = 0; p < w->seqs[s].pos0 + w->seqs[s].n_rows; p++) {
            const struct seq_rows one = {0, 1, p, w->blocks[s], 0};
            rng_floats(r, x, width, 1.5f);
            op_kv_write(k, x, x, &w->sparse.attention.kv, &one, 1);
            rng_floats(r, x, dim, 1.5f);
            op_kv_write(k, x, x, &w->index.keys, &one, 1);
        }
    }
    free(x);
}

static struct world *world_make(struct rng *r, enum dtype t, uint32_t n_chosen, size_t max_pos,
                                size_t max_rows)
{
    static const uint32_t widths[] = {32, 96, 336}, dims[] = {16, 48, 128};
    const struct kern_table ref = table_ref();
    struct world *w = test_memory(sizeof *w);
    *w = (struct world){0};
    const uint32_t width = widths[rng_below(r, 3)], dim = dims[rng_below(r, 3)];
    const uint32_t n_heads = 1 + (uint32_t)rng_below(r, 8), n_index = 1 + (uint32_t)rng_below(r, 9);
    const uint32_t kv_bytes = (uint32_t)kv_half_bytes(t, width);
    const uint32_t index_bytes = (uint32_t)kv_half_bytes(t, dim);
    size_t n_blocks = 0;
    world_seqs(r, w, max_pos, max_rows, &n_blocks);
    w->n_out = w->n_rows * n_heads * width;
    w->pool = test_memory(n_blocks * (kv_bytes + index_bytes));
    memset(w->pool, 0xFF, n_blocks * (kv_bytes + index_bytes)); /* NaN in every type */
    w->q = test_floats(w->n_out);
    w->index_q = test_floats(w->n_rows * n_index * dim);
    w->mix = test_floats(w->n_rows * n_index);
    rng_floats(r, w->q, w->n_out, 3.0f);
    rng_floats(r, w->index_q, w->n_rows * n_index * dim, 3.0f);
    rng_floats(r, w->mix, w->n_rows * n_index, 1.0f);
    w->index = (struct index_args){.q = w->index_q,
                                   .weights = w->mix,
                                   .keys = {w->pool + kv_bytes, t, 1, dim, true, kv_bytes},
                                   .n_heads = n_index,
                                   .scale = 0.3f,
                                   .n_chosen = n_chosen,
                                   .seqs = w->seqs,
                                   .n_seqs = w->index.n_seqs};
    w->sparse.n_chosen = n_chosen;
    w->sparse.attention = (struct attn_args){.q = w->q,
                                             .kv = {w->pool, t, 1, width, true, index_bytes},
                                             .kv_of_head = w->kv_of_head,
                                             .n_heads = n_heads,
                                             .scale = 0.2f,
                                             .seqs = w->seqs,
                                             .n_seqs = w->index.n_seqs};
    world_fill(r, w, &ref);
    return w;
}

static void world_free(struct world *w)
{
    for (size_t s = 0; s < w->index.n_seqs; s++) free(w->blocks[s]);
    free(w->pool);
    free(w->q);
    free(w->index_q);
    free(w->mix);
    free(w);
}

static size_t position_of(const struct world *w, size_t s, size_t i)
{
    return w->seqs[s].pos0 + i;
}

/* ---- scores ---- */

static void sets_agree_on_scores(void)
{
    const struct kern_table ref = table_ref(), sets[] = {table_in_turn(0), table_in_turn(1)};
    struct rng r = {51};
    for (int n = 0; n < 100; n++) {
        struct world *w = world_make(&r, types[n % N_TYPES], 10, 200, 5);
        if (n >= 50) rng_specials(&r, w->mix, w->n_rows * w->index.n_heads, 20);
        if (n >= 50) rng_specials(&r, w->index_q, w->n_rows * w->index.n_heads * 16, 90);
        for (size_t s = 0; s < w->index.n_seqs; s++) {
            for (size_t i = 0; i < w->seqs[s].n_rows; i++) {
                const size_t p = position_of(w, s, i), n_tiles = p / 64 + 1;
                float *x = test_floats(n_tiles * 64), *y = test_floats(n_tiles * 64);
                const size_t cut = rng_below(&r, n_tiles + 1);
                ref.index_scores[types[n % N_TYPES]](&w->index,
                                                     &(struct index_slice){s, i, 0, n_tiles, x, 0});
                for (int part = 0; part < 2; part++)
                    sets[n / 2 % 2].index_scores[types[n % N_TYPES]](
                        &w->index,
                        &(struct index_slice){s, i, part ? cut : 0, part ? n_tiles : cut, y, 0});
                CU_ASSERT_EQUAL(count_different(x, y, p + 1), 0);
                free(x);
                free(y);
            }
        }
        world_free(w);
    }
}

static void scores_are_weighted_sums(void)
{
    const struct kern_table ref = table_ref();
    struct rng r = {52};
    for (int n = 0; n < 20; n++) {
        struct world *w = world_make(&r, DTYPE_F32, 10, 150, 1);
        const size_t dim = w->index.keys.head_dim, p = position_of(w, 0, 0);
        float *x = test_floats((p / 64 + 1) * 64);
        ref.index_scores[DTYPE_F32](&w->index, &(struct index_slice){0, 0, 0, p / 64 + 1, x, 0});
        for (size_t j = 0; j <= p; j++) {
            const char *block =
                (const char *)w->index.keys.base +
                (size_t)w->blocks[0][j / 64] *
                    (kv_half_bytes(DTYPE_F32, (uint32_t)dim) + w->index.keys.beside_bytes);
            const float *key = (const float *)(const void *)block + j % 64 * dim;
            double sum = 0;
            for (size_t h = 0; h < w->index.n_heads; h++) {
                double dot = 0;
                for (size_t d = 0; d < dim; d++) dot += (double)w->index_q[h * dim + d] * key[d];
                sum += dot > 0 ? dot * (double)w->index.scale * w->mix[h] : 0;
            }
            CU_ASSERT_DOUBLE_EQUAL(x[j], sum, 1e-4);
        }
        free(x);
        world_free(w);
    }
}

/* ---- the choice ---- */

/* True when position i is better than j. */
static bool is_better(const float *scores, size_t i, size_t j)
{
    const float a = scores[i], b = scores[j];
    if (a != a || b != b) return b != b && (a == a || i < j);
    return a > b || (a == b && i < j);
}

static void choice_is_the_head_of_a_sort(void)
{
    static const float values[] = {1.5f,    -2.0f,    0.0f, -0.0f,    3.25f,
                                   -1e-40f, INFINITY, NAN,  -INFINITY};
    const struct kern_table t = table_best();
    struct rng r = {53};
    for (int n = 0; n < 300; n++) {
        const size_t n_scores = 1 + rng_below(&r, 200);
        const uint32_t n_chosen = 1 + (uint32_t)rng_below(&r, n_scores);
        float *scores = test_floats(n_scores);
        int32_t *chosen = test_memory(n_chosen * sizeof *chosen);
        rng_floats(&r, scores, n_scores, 2.0f);
        for (size_t i = 0; n % 2 && i < n_scores; i++) scores[i] = values[rng_below(&r, 9)];
        t.index_choose(scores, n_scores, n_chosen, chosen);
        for (size_t j = 0, at = 0; j < n_scores; j++) {
            size_t n_better = 0;
            for (size_t i = 0; i < n_scores; i++) n_better += is_better(scores, i, j);
            if (n_better < n_chosen) CU_ASSERT_EQUAL(chosen[at++], (int32_t)j);
        }
        free(scores);
        free(chosen);
    }
}

/* ---- the ops ---- */

/* Runs op_index and op_sparse_attention over the rows, in steps of at most n_step rows of each
 * sequence. */
static void run(struct world *w, const struct kern_table *k, size_t n_step, size_t n_gather,
                float *out)
{
    const struct sparse_args *a = &w->sparse;
    const size_t n_tiles = (a->n_chosen + 63) / 64,
                 n_most = n_gather < w->n_rows ? n_gather : w->n_rows;
    const size_t n_scores = n_gather * 64 * 10;
    int32_t *chosen = test_memory(w->n_rows * a->n_chosen * sizeof *chosen);
    int32_t *blocks = test_memory(n_most * n_tiles * sizeof *blocks);
    struct seq_rows *rows = test_memory(w->n_rows * sizeof *rows), step[MAX_SEQS];
    void *gathered = test_memory(n_most * sparse_gather_bytes(&a->attention.kv, a->n_chosen));
    float *scores = test_floats(n_scores), *parts = test_floats(1 << 16);
    for (size_t i = 0, n = 1; n > 0; i += n_step) {
        struct index_args index = w->index;
        struct sparse_args sparse = *a;
        n = 0;
        for (size_t s = 0; s < w->index.n_seqs; s++) {
            const struct seq_rows *seq = &w->seqs[s];
            if (i >= seq->n_rows) continue;
            const size_t left = seq->n_rows - i;
            step[n++] = (struct seq_rows){seq->row0 + i, left < n_step ? left : n_step,
                                          seq->pos0 + i, seq->blocks, 0};
        }
        index.seqs = sparse.attention.seqs = step;
        index.n_seqs = sparse.attention.n_seqs = n;
        sparse.attention.out = out;
        sparse.attention.parts = parts;
        sparse.attention.n_part_floats = 1 << 16;
        sparse.chosen = chosen;
        sparse.gathered = gathered;
        sparse.n_gather = n_most;
        sparse.blocks = blocks;
        sparse.rows = rows;
        op_index(k, &index, chosen, scores, n_scores);
        op_sparse_attention(k, &sparse);
    }
    free(chosen);
    free(blocks);
    free(rows);
    free(gathered);
    free(scores);
    free(parts);
}

static void divisions_do_not_change_bits(void)
{
    struct kern_table sets[] = {table_ref(), table_in_turn(0), table_in_turn(1)};
    struct team *team = test_team(3);
    struct rng r = {54};
    for (int n = 0; n < 60; n++) {
        static const uint32_t few[] = {5, 64, 70, 130};
        struct world *w = world_make(&r, types[n % N_TYPES], few[n % 4], 300, n % 3 ? 40 : 2);
        float *x = test_floats(w->n_out), *y = test_floats(w->n_out);
        struct kern_table *k = &sets[n % 3];
        run(w, &sets[0], 1000, 1000, x);
        k->team = n % 2 ? team : NULL;
        run(w, k, n % 5 ? 1 + rng_below(&r, 20) : 1, 1 + rng_below(&r, 6), y);
        k->team = NULL;
        CU_ASSERT_EQUAL(count_different(x, y, w->n_out), 0);
        for (size_t i = 0; i < w->n_out; i++) CU_ASSERT_FATAL(isfinite(x[i]));
        free(x);
        free(y);
        world_free(w);
    }
    team_destroy(&team);
}

static void few_positions_are_ordinary_attention(void)
{
    const struct kern_table k = table_best();
    struct rng r = {55};
    for (int n = 0; n < 20; n++) {
        struct world *w = world_make(&r, types[n % N_TYPES], 240, 200, 30);
        float *x = test_floats(w->n_out), *y = test_floats(w->n_out);
        run(w, &k, 7, 2, x);
        w->sparse.attention.out = y;
        op_attention(&k, &w->sparse.attention);
        CU_ASSERT_EQUAL(count_different(x, y, w->n_out), 0);
        free(x);
        free(y);
        world_free(w);
    }
}

/* Compares attention over chosen positions with a softmax over them in double. */
static void chosen_positions_are_attended(void)
{
    const struct kern_table k = table_best();
    struct rng r = {56};
    for (int n = 0; n < 12; n++) {
        struct world *w = world_make(&r, DTYPE_F32, 20 + 60 * (n % 2), 300, 1);
        const size_t dim = w->sparse.attention.kv.head_dim, p = position_of(w, 0, 0);
        const size_t few = p + 1 < w->index.n_chosen ? p + 1 : w->index.n_chosen;
        float *out = test_floats(w->n_out), *scores = test_floats((p / 64 + 1) * 64);
        int32_t *chosen = test_memory(few * sizeof *chosen);
        run(w, &k, 1, 1, out);
        k.index_scores[DTYPE_F32](&w->index, &(struct index_slice){0, 0, 0, p / 64 + 1, scores, 0});
        k.index_choose(scores, p + 1, (uint32_t)few, chosen);
        double total = 0, *sum = test_memory(dim * sizeof *sum);
        for (size_t d = 0; d < dim; d++) sum[d] = 0;
        for (size_t i = 0; i < few; i++) {
            const size_t j = (size_t)chosen[i];
            const char *block =
                w->pool + (size_t)w->blocks[0][j / 64] * (kv_half_bytes(DTYPE_F32, (uint32_t)dim) +
                                                          w->sparse.attention.kv.beside_bytes);
            const float *latent = (const float *)(const void *)block + j % 64 * dim;
            double dot = 0;
            for (size_t d = 0; d < dim; d++) dot += (double)w->q[d] * latent[d];
            const double e = exp(dot * 0.2 - 10);
            total += e;
            for (size_t d = 0; d < dim; d++) sum[d] += e * latent[d];
        }
        for (size_t d = 0; d < dim; d++) CU_ASSERT_DOUBLE_EQUAL(out[d], sum[d] / total, 3e-5);
        free(sum);
        free(out);
        free(scores);
        free(chosen);
        world_free(w);
    }
}

void suite_index(CU_pSuite suite);
void suite_index(CU_pSuite suite)
{
    CU_add_test(suite, "sets agree on scores", sets_agree_on_scores);
    CU_add_test(suite, "scores are weighted sums", scores_are_weighted_sums);
    CU_add_test(suite, "choice is the head of a sort", choice_is_the_head_of_a_sort);
    CU_add_test(suite, "divisions do not change bits", divisions_do_not_change_bits);
    CU_add_test(suite, "few positions are ordinary attention",
                few_positions_are_ordinary_attention);
    CU_add_test(suite, "chosen positions are attended", chosen_positions_are_attended);
}

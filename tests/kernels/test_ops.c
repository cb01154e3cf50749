/* Tests the threaded ops other than linears and attention: 1 and 2 threads give the same bytes,
 * strides and tables are right, and the floating-point environment of every thread is set. */
#include "util_kernels.h"
#include "util_quant.h"

#include "kernels/elementary.h"
#include "kernels/ops.h"
#include "kernels/part.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <stdlib.h>
#include <xmmintrin.h>

enum { ROWS = 61, N = 2000 };

/* The shares of any number of threads take every unit of every strip exactly once. */
static void parts_cover_all_units_once(void)
{
    enum { STRIPS = 9 };
    static const size_t units[STRIPS] = {2, 1, 7, 0, 5, 1000, 4, 3, 6};
    static const uint64_t costs[STRIPS] = {0, 100, 1, 5, 0, 3, 0, 700, 0};
    uint64_t total = 0;
    for (size_t s = 0; s < STRIPS; s++) total += units[s] * costs[s];
    for (uint64_t n_threads = 1; n_threads < 40; n_threads++) {
        unsigned seen[STRIPS][1000] = {0};
        for (uint64_t t = 0; t < n_threads; t++) {
            struct part part = {total * t / n_threads, total * (t + 1) / n_threads, 0};
            for (size_t s = 0, u0, u1; s < STRIPS; s++)
                if (part_take(&part, units[s], costs[s], &u0, &u1))
                    for (size_t u = u0; u < u1; u++) seen[s][u]++;
        }
        size_t n_wrong = 0;
        for (size_t s = 0; s < STRIPS; s++)
            for (size_t u = 0; u < units[s]; u++) n_wrong += seen[s][u] != 1;
        CU_ASSERT_EQUAL(n_wrong, 0);
    }
}

static void a_single_share_takes_work_without_cost(void)
{
    struct part all = {0, 0, 0};
    size_t u0, u1;
    CU_ASSERT_FALSE(part_take(&all, 0, 0, &u0, &u1));
    CU_ASSERT(part_take(&all, 3, 0, &u0, &u1) && u0 == 0 && u1 == 3);
    CU_ASSERT(part_take(&all, 4, 0, &u0, &u1) && u0 == 0 && u1 == 4);
}

/* Runs op_rope_kv on q, which has 32 heads of 48 elements of which 40 are rotated, and on k and v
 * with 4 heads. y holds q, then k, then the cache; v is w. Returns the end of the cache. */
static float *run_rope_kv(const struct kern_table *k, const float *w, float *y)
{
    enum { HD = 48, HEADS = 32, KV_HEADS = 4, BLOCKS = 2 };
    static const int32_t blocks[BLOCKS] = {1, 0};
    const struct kv_view kv = {.dtype = DTYPE_I8, .n_kv_heads = KV_HEADS, .head_dim = HD};
    const size_t n_cache = BLOCKS * 2 * KV_HEADS * kv_half_bytes(DTYPE_I8, HD);
    const struct seq_rows seqs[2] = {{0, 3, 60, blocks, 0}, {3, ROWS - 3, 0, blocks, 0}};
    struct rope_kv_args a = {.q = y,
                             .k = y + ROWS * HEADS * HD,
                             .v = w,
                             .q_norm = w,
                             .eps = 1e-6f,
                             .cos = w,
                             .sin = w + ROWS * 20,
                             .n_rows = ROWS,
                             .n_heads = HEADS,
                             .rot = 40,
                             .kv = kv,
                             .seqs = seqs,
                             .n_seqs = 2};
    a.kv.base = a.k + ROWS * KV_HEADS * HD;
    memset(a.kv.base, 0, n_cache);
    op_rope_kv(k, &a);
    return (float *)((char *)a.kv.base + n_cache);
}

/* Runs the other threaded ops with the team. Writes their results to `out` one after the other, and
 * returns how many floats they are. */
static size_t run_all(struct team *team, float *out)
{
    struct kern_table k = table_best();
    struct rng r = {1};
    float *x = test_floats(ROWS * N), *w = test_floats(ROWS * N);
    int64_t *sums = test_memory(ROWS * (N + 1) * sizeof *sums);
    int32_t bad[ROWS] = {0}, ids[ROWS * 4];
    rng_floats(&r, x, ROWS * N, 3.0f);
    rng_floats(&r, w, ROWS * N, 2.0f);
    for (size_t i = 0; i < ROWS * (N + 1); i++) sums[i] = (int64_t)rng_next(&r) >> 30;
    float *y = out;
    k.team = team;
    op_rmsnorm(&k,
               &(struct norm_args){.x = x, .w = w, .n_rows = ROWS, .n = N, .eps = 1e-6f, .y = y});
    y += ROWS * N;
    op_swiglu(&k, &(struct swiglu_args){.gate = x,
                                        .up = w,
                                        .stride = N,
                                        .n_rows = ROWS,
                                        .n = N - 5,
                                        .y = y,
                                        .y_stride = N - 5});
    y += ROWS * (N - 5);
    op_grid(&k, &(struct grid_args){
                    .sums = sums, .n_rows = ROWS, .n_out = N, .grid_bits = 32, .y = y, .bad = bad});
    y += ROWS * N;
    op_add(&k, x, w, ROWS * N);
    op_grid(&k, &(struct grid_args){.sums = sums,
                                    .n_rows = ROWS,
                                    .n_out = N,
                                    .grid_bits = 20,
                                    .adds = true,
                                    .y = x,
                                    .bad = bad});
    memcpy(y, x, ROWS * N * sizeof *y);
    y = run_rope_kv(&k, w, y);
    const struct router_args router = {x,    ids, y, N, 4, {.kind = ROUTER_SOFTMAX_RENORM},
                                       NULL, NULL};
    op_router(&k, &router, ROWS);
    y += ROWS * 4;
    for (size_t i = 0; i < ROWS * 4; i++) *y++ = (float)ids[i];
    for (size_t i = 0; i < ROWS; i++) *y++ = f32_from_bits((uint32_t)bad[i]);
    free(x);
    free(w);
    free(sums);
    return (size_t)(y - out);
}

/* Compares op_rmsnorm with quantization to the two separate ops: floats, quantized values, scales
 * and sums. */
static void check_norm_codes(struct kern_table *k, struct team *team, size_t n,
                             struct quant_format f)
{
    struct rng r = {n};
    float *x = test_floats(ROWS * n), *w = test_floats(n);
    float *y[2] = {test_floats(ROWS * n), test_floats(ROWS * n)};
    struct quant_rows q[2] = {quant_rows_make(ROWS, n, f), quant_rows_make(ROWS, n, f)};
    const size_t n_params = ROWS * q[0].n_groups;
    rng_floats(&r, x, ROWS * n, 3.0f);
    rng_floats(&r, w, n, 2.0f);
    k->team = NULL;
    op_rmsnorm(
        k, &(struct norm_args){.x = x, .w = w, .n_rows = ROWS, .n = n, .eps = 1e-6f, .y = y[0]});
    op_quantize_rows(k, y[0], n, ROWS, n, &q[0]);
    k->team = team;
    const struct norm_args a = {
        .x = x, .w = w, .n_rows = ROWS, .n = n, .eps = 1e-6f, .y = y[1], .codes = &q[1]};
    op_rmsnorm(k, &a);
    CU_ASSERT(memcmp(y[0], y[1], ROWS * n * sizeof(float)) == 0);
    CU_ASSERT(memcmp(q[0].codes, q[1].codes, n_params * q[0].group) == 0);
    CU_ASSERT(memcmp(q[0].scales, q[1].scales, n_params * sizeof(float)) == 0);
    CU_ASSERT(memcmp(q[0].sums, q[1].sums, n_params * sizeof(int32_t)) == 0);
    free(x);
    free(w);
    for (size_t i = 0; i < 2; i++) {
        free(y[i]);
        quant_rows_free(&q[i]);
    }
}

static void normed_codes_are_codes_of_the_normed(void)
{
    static const size_t ns[] = {1, 100, 576, 2050};
    struct team *team = test_team(2);
    struct kern_table k[1 + FAST_SETS];
    const size_t n_tables = 1 + tables_fast(k);
    k[n_tables - 1] = table_ref();
    for (size_t t = 0; t < n_tables; t++)
        for (size_t i = 0; i < 8; i++) {
            const struct quant_format f = {QUANT_INT4, false, DTYPE_F16, i % 2 ? 32 : 128};
            check_norm_codes(&k[t], team, ns[i / 2], f);
        }
    team_destroy(&team);
}

static void threads_do_not_change_bits(void)
{
    struct team *team = test_team(2);
    float *out[2] = {test_floats(ROWS * (5 * N + 100)), test_floats(ROWS * (5 * N + 100))};
    const size_t n = run_all(NULL, out[0]);
    CU_ASSERT_EQUAL(run_all(team, out[1]), n);
    CU_ASSERT_EQUAL(memcmp(out[0], out[1], n * sizeof(float)), 0);
    team_destroy(&team);
    free(out[0]);
    free(out[1]);
}

/* If a library has set flush-to-zero in this thread, an op undoes it. */
static void subnormals_survive_a_changed_environment(void)
{
    const struct kern_table k = table_best();
    const unsigned before = _mm_getcsr();
    float h[9], x[9];
    for (size_t i = 0; i < 9; i++) h[i] = x[i] = 0x1p-140f;
    _mm_setcsr(before | 0x8040u | 0x6000u); /* FTZ, DAZ, round to zero */
    op_add(&k, h, x, 9);
    _mm_setcsr(before);
    for (size_t i = 0; i < 9; i++) CU_ASSERT_EQUAL(f32_bits(h[i]), f32_bits(0x1p-139f));
}

static void rope_table_holds_sin_and_cos(void)
{
    static const int32_t positions[2] = {0, 70001};
    static const float inv_freq[3] = {1.0f, 0.1f, 1e-5f};
    float c[6], s[6];
    const struct kern_table ref = table_ref();
    op_rope_table(&ref, &(struct rope_table_args){.positions = positions,
                                                  .n_rows = 2,
                                                  .inv_freq = inv_freq,
                                                  .rot = 6,
                                                  .scale = 1.5f,
                                                  .cos = c,
                                                  .sin = s});
    for (size_t t = 0; t < 2; t++) {
        for (size_t i = 0; i < 3; i++) {
            const double angle = (double)((float)positions[t] * inv_freq[i]);
            CU_ASSERT_DOUBLE_EQUAL(c[t * 3 + i], 1.5 * cos(angle), 2e-7);
            CU_ASSERT_DOUBLE_EQUAL(s[t * 3 + i], 1.5 * sin(angle), 2e-7);
        }
    }
}

static void bad_rows_saturate(void)
{
    const struct kern_table k = table_best();
    const int64_t sums[4] = {5, (int64_t)1 << 40, 6, 2};
    float y[2];
    int32_t bad[2] = {0, 3};
    op_grid(&k, &(struct grid_args){
                    .sums = sums, .n_rows = 2, .n_out = 1, .grid_bits = 0, .y = y, .bad = bad});
    CU_ASSERT(bad[0] == INT32_MAX && bad[1] == 5);
    CU_ASSERT(y[0] == 5.0f && y[1] == 6.0f);
}

void suite_ops(CU_pSuite suite);
void suite_ops(CU_pSuite suite)
{
    CU_add_test(suite, "parts cover all units once", parts_cover_all_units_once);
    CU_add_test(suite, "a single share takes work without cost",
                a_single_share_takes_work_without_cost);
    CU_add_test(suite, "threads do not change bits", threads_do_not_change_bits);
    CU_add_test(suite, "normed codes are codes of the normed",
                normed_codes_are_codes_of_the_normed);
    CU_add_test(suite, "subnormals survive a changed environment",
                subnormals_survive_a_changed_environment);
    CU_add_test(suite, "the rope table holds sin and cos", rope_table_holds_sin_and_cos);
    CU_add_test(suite, "bad rows saturate", bad_rows_saturate);
}

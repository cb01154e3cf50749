/* Tests the float linear: the reference against independent arithmetic, and all other instruction
 * sets against the reference, bit for bit, over odd shapes, special values, slices and threads. */
#include "util_kernels.h"

#include "kernels/ops.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <stdlib.h>

/* One linear with its arrays, and the outputs of two runs. */
struct problem {
    struct packed w;
    struct linear_group group;
    struct linear_args args;
    float *x, *y[2];
    int64_t *sums[2];
    size_t n_rows, x_stride, y_stride;
};

static struct problem problem_make(struct rng *r, enum dtype t, size_t n_rows, size_t n_out,
                                   size_t n_in, size_t leaf, size_t every)
{
    struct problem p = {.n_rows = n_rows, .x_stride = rng_stride(r, n_in), .y_stride = n_out + 5};
    p.w = random_packed(r, t, n_out, n_in, leaf, 32, every);
    p.x = test_floats(n_rows * p.x_stride);
    rng_floats(r, p.x, n_rows * p.x_stride, 2.0f);
    if (every > 0) rng_specials(r, p.x, n_rows * p.x_stride, every);
    for (int i = 0; i < 2; i++) {
        p.y[i] = test_floats(n_rows * p.y_stride);
        p.sums[i] = test_memory(n_rows * (n_out + 1) * sizeof(int64_t));
    }
    return p;
}

static void problem_free(struct problem *p)
{
    free(packed_memory(&p->w));
    free(p->x);
    for (int i = 0; i < 2; i++) {
        free(p->y[i]);
        free(p->sums[i]);
    }
}

static struct linear_args problem_args(struct problem *p, int which)
{
    p->group = (struct linear_group){&p->w, 0, p->n_rows};
    return (struct linear_args){.groups = &p->group,
                                .n_groups = 1,
                                .x = p->x,
                                .x_stride = p->x_stride,
                                .y = p->y[which],
                                .y_stride = p->y_stride,
                                .sums = p->sums[which]};
}

/* Calls the table's entries on rows and panels divided at random places. */
static void run_slices(struct rng *r, const struct kern_table *k, struct problem *p, int which)
{
    const struct linear_args a = problem_args(p, which);
    const size_t n_panels = (p->w.n_out + 15) / 16;
    for (size_t row = 0; row < p->n_rows; row++)
        p->sums[which][row * (p->w.n_out + 1) + p->w.n_out] = 0;
    for (size_t r0 = 0, r1 = 0; r0 < p->n_rows; r0 = r1) {
        r1 = r0 + 1 + rng_below(r, p->n_rows - r0);
        for (size_t p0 = 0, p1 = 0; p0 < n_panels; p0 = p1) {
            p1 = p0 + 1 + rng_below(r, n_panels - p0);
            const struct linear_slice s = {0, p0, p1, r0, r1};
            if (p->w.leaf > 0)
                k->linear_leaf[p->w.dtype](&a, &s);
            else
                k->linear[p->w.dtype](&a, &s);
        }
    }
}

static size_t differences(const struct problem *p)
{
    if (p->w.leaf == 0) return count_different(p->y[0], p->y[1], p->n_rows * p->y_stride);
    size_t n = 0;
    for (size_t i = 0; i < p->n_rows * ((size_t)p->w.n_out + 1); i++)
        n += p->sums[0][i] != p->sums[1][i];
    return n;
}

static void compare_sets(size_t every, uint64_t seed)
{
    static const size_t outs[] = {1, 15, 16, 17, 48, 63, 64, 65, 100, 130};
    static const size_t ins[] = {0, 1, 7, 64, 255, 256, 257, 515, 600};
    static const size_t rows[] = {0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 11, 13, 258};
    static const size_t leaves[] = {0, 0, 1, 16, 96, 100, 256, 300, 1000};
    const struct kern_table ref = table_ref(), sets[] = {table_in_turn(0), table_in_turn(1)};
    struct rng r = {seed};
    for (int i = 0; i < 240; i++) {
        struct problem p = problem_make(&r, (enum dtype)(i % DTYPE_COUNT), rows[rng_below(&r, 13)],
                                        outs[rng_below(&r, 10)], ins[rng_below(&r, 9)],
                                        leaves[rng_below(&r, 9)], every);
        run_slices(&r, &ref, &p, 0);
        run_slices(&r, &sets[i / DTYPE_COUNT % 2], &p, 1);
        const size_t n = differences(&p);
        CU_ASSERT_EQUAL(n, 0);
        if (n > 0)
            printf("%zu of [%zu, %u] differ: %s, K %u, leaf %u\n", n, p.n_rows, p.w.n_out,
                   dtype_name(p.w.dtype), p.w.n_in, p.w.leaf);
        problem_free(&p);
    }
}

static void sets_agree(void)
{
    compare_sets(0, 1);
}

static void sets_agree_on_special_values(void)
{
    compare_sets(300, 2);
    compare_sets(20, 3);
}

static void reference_is_a_dot_product(void)
{
    const struct kern_table ref = table_ref();
    struct rng r = {4};
    for (int i = 0; i < 3; i++) {
        struct problem p = problem_make(&r, (enum dtype)i, 3, 37, 300, i == 1 ? 64 : 0, 0);
        run_slices(&r, &ref, &p, 0);
        for (size_t row = 0; row < 3; row++) {
            for (size_t n = 0; n < 37; n++) {
                double dot = 0, size = 0;
                for (size_t k = 0; k < 300; k++) {
                    const double term = (double)p.x[row * p.x_stride + k] * packed_at(&p.w, n, k);
                    dot += term;
                    size += fabs(term);
                }
                const double y = p.w.leaf > 0 ? (double)p.sums[0][row * 38 + n] * 0x1p-32
                                              : p.y[0][row * p.y_stride + n];
                CU_ASSERT_DOUBLE_EQUAL(y, dot, size * 300 * 0x1p-24);
            }
        }
        problem_free(&p);
    }
}

/* 2^24 + 1 - 2^24 + 1 is 1 if it is added from the left in f32, but 2 if each input is a leaf,
 * whose sums are added exactly. */
static void chain_runs_in_ascending_order(void)
{
    const struct kern_table tables[] = {table_ref(), table_best()};
    const float x[4] = {0x1p24f, 1.0f, -0x1p24f, 1.0f}, one[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    static const struct {
        uint32_t leaf;
        float want;
    } cases[] = {{0, 1.0f}, {4, 1.0f}, {1, 2.0f}, {3, 1.0f}, {2, 1.0f}};
    for (size_t i = 0; i < 10; i++) {
        float data[4 * PANEL_COLUMNS] = {0}, y = 0.0f;
        int64_t sums[2];
        int32_t bad = 0;
        packed_put_rows(DTYPE_F32, data, 4, &(struct matrix_rows){one, sizeof one, 0, 1});
        const struct packed w = {.dtype = DTYPE_F32,
                                 .n_out = 1,
                                 .n_in = 4,
                                 .leaf = cases[i / 2].leaf,
                                 .grid_bits = 20,
                                 .data = data};
        const struct linear_group group = {&w, 0, 1};
        const struct linear_args a = {.groups = &group,
                                      .n_groups = 1,
                                      .x = x,
                                      .x_stride = 4,
                                      .y = &y,
                                      .y_stride = 1,
                                      .sums = sums};
        if (w.leaf == 0) {
            op_linear(&tables[i % 2], &a);
        } else {
            op_linear_leaf(&tables[i % 2], &a);
            op_grid(&tables[i % 2], &(struct grid_args){.sums = sums,
                                                        .n_rows = 1,
                                                        .n_out = 1,
                                                        .grid_bits = w.grid_bits,
                                                        .y = &y,
                                                        .bad = &bad});
        }
        CU_ASSERT_EQUAL(bad, 0);
        CU_ASSERT_EQUAL(y, cases[i / 2].want);
    }
}

static void grid_counts_what_does_not_fit(void)
{
    const struct kern_table tables[] = {table_ref(), table_best()};
    /* |p| < 2^19 fits the grid of 2^-32; each input is a leaf of its own */
    const float x[8] = {0x1.fffffep18f, 0x1p19f,    -0x1p19f,    NAN,
                        INFINITY,       0x1.8p-33f, -0x1.8p-32f, 1.0f};
    float one[8];
    for (size_t i = 0; i < 8; i++) one[i] = 1.0f;
    for (size_t i = 0; i < 2; i++) {
        float data[8 * PANEL_COLUMNS] = {0}, h[2] = {1.0f, 0.0f};
        int64_t sums[3];
        int32_t bad[1] = {INT32_MAX - 7};
        packed_put_rows(DTYPE_F32, data, 8, &(struct matrix_rows){one, sizeof one, 0, 1});
        packed_put_rows(DTYPE_F32, data, 8, &(struct matrix_rows){one, sizeof one, 1, 1});
        const struct packed w = {
            .dtype = DTYPE_F32, .n_out = 2, .n_in = 8, .leaf = 1, .grid_bits = 32, .data = data};
        const struct linear_group group = {&w, 0, 1};
        const struct linear_args a = {.groups = &group,
                                      .n_groups = 1,
                                      .x = x,
                                      .x_stride = 8,
                                      .y = NULL,
                                      .y_stride = 0,
                                      .sums = sums};
        op_linear_leaf(&tables[i], &a);
        const int64_t want = (int64_t)0x1fffffe << 26 | 0;
        /* 1.5 * 2^-33 = 0.75 units rounds to 1, -1.5 units to the even -2 */
        CU_ASSERT_EQUAL(sums[0], want + 1 - 2 + ((int64_t)1 << 32));
        CU_ASSERT_EQUAL(sums[1], sums[0]);
        CU_ASSERT_EQUAL(sums[2], 8);
        op_grid(&tables[i], &(struct grid_args){.sums = sums,
                                                .n_rows = 1,
                                                .n_out = 2,
                                                .grid_bits = 32,
                                                .adds = true,
                                                .y = h,
                                                .bad = bad});
        CU_ASSERT_EQUAL(h[1], (float)((double)sums[0] * 0x1p-32));
        CU_ASSERT_EQUAL(h[0], 1.0f + h[1]);
        CU_ASSERT_EQUAL(bad[0], INT32_MAX);
    }
}

/* Without linear_args.sums, y gets the sums as floats, and the counts of sums that do not fit the
 * grid are added to the rows' counters. */
static void leaves_round_at_once(void)
{
    static const size_t rows[] = {1, 3, 6, 7, 29, 64, 258};
    const struct kern_table tables[] = {table_ref(), table_in_turn(0), table_in_turn(1)};
    const struct kern_table ref = table_ref();
    struct rng r = {7};
    for (int i = 0; i < 63; i++) {
        const struct kern_table *k = &tables[i % 3];
        const size_t n = rows[i / 9], n_out = i % 2 ? 70 : 129;
        struct problem p = problem_make(&r, (enum dtype)(i / 3 % DTYPE_COUNT), n, n_out, 300,
                                        i % 4 == 0 ? 128 : 96, i % 5 == 0 ? 200 : 0);
        run_slices(&r, &ref, &p, 0);
        int32_t *bad = test_memory(n * sizeof *bad);
        float *value = test_floats(n_out);
        for (size_t row = 0; row < n; row++) bad[row] = 3;
        struct linear_args a = problem_args(&p, 1);
        a.sums = NULL;
        a.bad = bad;
        op_linear_leaf(k, &a);
        for (size_t row = 0; row < n; row++) {
            const int64_t *sums = p.sums[0] + row * (n_out + 1);
            ref.grid_to_f32(sums, n_out, 32, value);
            CU_ASSERT_EQUAL(memcmp(value, p.y[1] + row * p.y_stride, n_out * sizeof *value), 0);
            CU_ASSERT_EQUAL(bad[row], 3 + sums[n_out]);
        }
        free(value);
        free(bad);
        problem_free(&p);
    }
}

/* Groups (experts) with different numbers of rows, one without any: 1 and 2 threads, the reference
 * and the best instruction set. */
static void threads_and_groups_do_not_change_bits(void)
{
    enum { N_GROUPS = 5, N_ROWS = 150, N_OUT = 200, N_IN = 320 };
    static const size_t n_rows[N_GROUPS] = {1, 0, 108, 9, 32};
    struct kern_table tables[] = {table_ref(), table_best()};
    struct team *team = test_team(2);
    struct rng r = {5};
    for (uint32_t leaf = 0; leaf <= 96; leaf += 96) {
        struct packed w[N_GROUPS];
        struct linear_group groups[N_GROUPS];
        float *x = test_floats(N_ROWS * N_IN), *y[4];
        int64_t *sums[4];
        rng_floats(&r, x, N_ROWS * N_IN, 1.0f);
        for (size_t g = 0, row = 0; g < N_GROUPS; row += n_rows[g++]) {
            w[g] = random_packed(&r, DTYPE_BF16, N_OUT, N_IN, leaf, 32, 0);
            groups[g] = (struct linear_group){&w[g], row, n_rows[g]};
        }
        for (int i = 0; i < 4; i++) {
            y[i] = test_floats(N_ROWS * N_OUT);
            sums[i] = test_memory(N_ROWS * (N_OUT + 1) * sizeof(int64_t));
            const struct linear_args a = {.groups = groups,
                                          .n_groups = N_GROUPS,
                                          .x = x,
                                          .x_stride = N_IN,
                                          .y = y[i],
                                          .y_stride = N_OUT,
                                          .sums = sums[i]};
            tables[i % 2].team = i < 2 ? NULL : team;
            (leaf > 0 ? op_linear_leaf : op_linear)(&tables[i % 2], &a);
            CU_ASSERT_EQUAL(memcmp(y[i], y[0], N_ROWS * N_OUT * sizeof(float)), 0);
            CU_ASSERT_EQUAL(memcmp(sums[i], sums[0], N_ROWS * (N_OUT + 1) * sizeof(int64_t)), 0);
        }
        free(x);
        for (int g = 0; g < N_GROUPS; g++) free(packed_memory(&w[g]));
        for (int i = 0; i < 4; i++) {
            free(y[i]);
            free(sums[i]);
        }
    }
    team_destroy(&team);
}

/* The leaf sums of shards add up to those of the whole weight. */
static void shards_of_whole_leaves_add_up(void)
{
    const struct kern_table best = table_best();
    struct rng r = {6};
    struct problem whole = problem_make(&r, DTYPE_F16, 9, 50, 300, 64, 0);
    run_slices(&r, &best, &whole, 0);
    memset(whole.sums[1], 0, 9 * 51 * sizeof(int64_t));
    for (size_t k0 = 0; k0 < 300; k0 += 128) {
        const size_t n_in = 300 - k0 < 128 ? 300 - k0 : 128;
        uint16_t *rows = test_memory(50 * n_in * 2);
        for (size_t n = 0; n < 50; n++)
            for (size_t k = 0; k < n_in; k++)
                rows[n * n_in + k] = f16_from_f32(packed_at(&whole.w, n, k0 + k));
        void *data = test_memory(packed_bytes(DTYPE_F16, 50, n_in));
        memset(data, 0, packed_bytes(DTYPE_F16, 50, n_in));
        packed_put_rows(DTYPE_F16, data, n_in, &(struct matrix_rows){rows, n_in * 2, 0, 50});
        const struct packed w = {.dtype = DTYPE_F16,
                                 .n_out = 50,
                                 .n_in = (uint32_t)n_in,
                                 .leaf = 64,
                                 .grid_bits = 32,
                                 .data = data};
        const struct linear_group group = {&w, 0, 9};
        int64_t *sums = test_memory(9 * 51 * sizeof(int64_t));
        const struct linear_args a = {.groups = &group,
                                      .n_groups = 1,
                                      .x = whole.x + k0,
                                      .x_stride = whole.x_stride,
                                      .y = NULL,
                                      .y_stride = 0,
                                      .sums = sums};
        op_linear_leaf(&best, &a);
        for (size_t i = 0; i < 9 * 51; i++) whole.sums[1][i] += sums[i];
        free(sums);
        free(data);
        free(rows);
    }
    CU_ASSERT_EQUAL(differences(&whole), 0);
    problem_free(&whole);
}

void suite_linear(CU_pSuite suite);
void suite_linear(CU_pSuite suite)
{
    CU_add_test(suite, "the reference is a dot product", reference_is_a_dot_product);
    CU_add_test(suite, "the chain runs in ascending order", chain_runs_in_ascending_order);
    CU_add_test(suite, "the grid counts what does not fit", grid_counts_what_does_not_fit);
    CU_add_test(suite, "sets agree", sets_agree);
    CU_add_test(suite, "sets agree on special values", sets_agree_on_special_values);
    CU_add_test(suite, "threads and groups do not change bits",
                threads_and_groups_do_not_change_bits);
    CU_add_test(suite, "leaves round at once", leaves_round_at_once);
    CU_add_test(suite, "shards of whole leaves add up", shards_of_whole_leaves_add_up);
}

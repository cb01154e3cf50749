/* Tests the rounding of rows to 8 bits with one scale for a whole row, against its equation in
 * double, and over parts of rows. */
#include "kernels/ops.h"
#include "util_kernels.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 5, N = 1003, CUT = 401 };

static void copy_columns(const float *from, size_t from_width, float *to, size_t to_width, size_t n)
{
    for (size_t t = 0; t < ROWS; t++)
        memcpy(to + t * to_width, from + t * from_width, n * sizeof *to);
}

static void rows_have_steps_of_their_largest(void)
{
    struct kern_table k = table_best();
    struct rng r = {41};
    float *x = test_floats(ROWS * N), *y = test_floats(ROWS * N);
    rng_floats(&r, x, ROWS * N, 3.0f);
    x[7] = -9.0f; /* the largest is negative */
    for (size_t i = 0; i < N; i++) x[N + i] = 0.0f;
    for (size_t i = 0; i < N; i++) x[2 * N + i] *= 1e-9f; /* below the least scale */
    memcpy(y, x, ROWS * N * sizeof *x);
    k.team = test_team(3);
    op_round_rows(&k, &(struct round_rows){.x = y, .n_rows = ROWS, .n = N});
    for (size_t t = 0; t < ROWS; t++) {
        double most = 1e-5f, n_full = 0;
        for (size_t i = 0; i < N; i++) most = fmax(most, fabs(x[t * N + i]));
        for (size_t i = 0; i < N; i++) {
            const double step = most / 127, q = y[t * N + i] / step;
            CU_ASSERT_DOUBLE_EQUAL(q, nearbyint(q), 1e-4);
            CU_ASSERT_DOUBLE_EQUAL(y[t * N + i], x[t * N + i], step * 0.50001);
            n_full += fabs(q) > 126.9;
        }
        CU_ASSERT_EQUAL(n_full > 0, t != 1 && t != 2);
    }
    CU_ASSERT_DOUBLE_EQUAL(y[7], -9.0, 1e-6);
    CU_ASSERT_EQUAL(y[N], 0.0f);
    team_destroy(&k.team);
    free(x);
    free(y);
}

/* Halves between two steps go to the even one. */
static void halves_go_to_even(void)
{
    const struct kern_table k = table_best();
    float x[6] = {127.0f, 0.5f, 1.5f, 2.5f, -0.5f, -3.5f};
    op_round_rows(&k, &(struct round_rows){.x = x, .n_rows = 1, .n = 6});
    CU_ASSERT(x[0] == 127 && x[1] == 0 && x[2] == 2 && x[3] == 2 && x[4] == 0 && x[5] == -4);
}

static void parts_of_a_row_share_its_largest(void)
{
    const struct kern_table k = table_best();
    struct rng r = {42};
    float *x = test_floats(ROWS * N), *y = test_floats(ROWS * N), *part = test_floats(ROWS * N);
    uint32_t maxima[ROWS * 2];
    rng_floats(&r, x, ROWS * N, 3.0f);
    x[3 * N + 500] = 20.0f;
    for (size_t first = 0, n = CUT, i = 0; first < N; first += n, n = N - first, i++) {
        copy_columns(x + first, N, part, n, n);
        op_row_maxima(&k, part, ROWS, n, maxima + i, 2);
    }
    for (size_t first = 0, n = CUT; first < N; first += n, n = N - first) {
        copy_columns(x + first, N, part, n, n);
        op_round_rows(&k, &(struct round_rows){part, ROWS, n, maxima, 2, 2});
        copy_columns(part, n, y + first, N, n);
    }
    op_round_rows(&k, &(struct round_rows){.x = x, .n_rows = ROWS, .n = N});
    CU_ASSERT_EQUAL(memcmp(x, y, ROWS * N * sizeof *x), 0);
    free(x);
    free(y);
    free(part);
}

static void a_nan_takes_its_row(void)
{
    const struct kern_table k = table_best();
    float x[6] = {1.0f, NAN, 2.0f, 1.0f, INFINITY, 0.0f};
    op_round_rows(&k, &(struct round_rows){.x = x, .n_rows = 2, .n = 3});
    for (size_t i = 0; i < 6; i++) CU_ASSERT(isnan(x[i]));
}

void suite_round(CU_pSuite suite);
void suite_round(CU_pSuite suite)
{
    CU_add_test(suite, "rows have steps of their largest", rows_have_steps_of_their_largest);
    CU_add_test(suite, "halves go to even", halves_go_to_even);
    CU_add_test(suite, "parts of a row share its largest", parts_of_a_row_share_its_largest);
    CU_add_test(suite, "a NaN takes its row", a_nan_takes_its_row);
}

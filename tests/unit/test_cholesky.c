/* Second moments and Cholesky factors: small residuals, and bits that depend neither on how the
 * work is cut nor on the number of threads. */
#include "base/mem.h"
#include "quant/auto_policy.h"
#include "quant/cholesky.h"
#include "quant/hessian.h"
#include "quant/power.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <string.h>

/* A random number in [-1, 1). */
static float noise(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)((double)(*state >> 8) * 0x1p-23 - 1.0);
}

static void *memory(size_t n, size_t elem_bytes)
{
    void *p = NULL;
    const struct status st = mem_alloc(&p, n, elem_bytes, "test");
    CU_ASSERT_FATAL(!status_failed(&st));
    return p;
}

enum { N_TOKENS = 300, STRIDE_MORE = 3 };

static float *tokens(size_t n, uint32_t seed)
{
    float *x = memory(N_TOKENS * (n + STRIDE_MORE), sizeof *x);
    for (size_t i = 0; i < N_TOKENS * (n + STRIDE_MORE); i++) x[i] = noise(&seed);
    return x;
}

/* Compares each element with its definition. */
static void second_moments_are_one_chain_per_element(void)
{
    const size_t n = 53;
    float *x = tokens(n, 1);
    struct hessian h;
    struct status st = hessian_init(&h, (uint32_t)n, 0, (uint32_t)n);
    CU_ASSERT_FATAL(!status_failed(&st));
    hessian_add(NULL, &h, x, n + STRIDE_MORE, 129);
    hessian_add(NULL, &h, x + 129 * (n + STRIDE_MORE), n + STRIDE_MORE, N_TOKENS - 129);
    CU_ASSERT_EQUAL(h.n_tokens, N_TOKENS);
    size_t n_wrong = 0;
    for (size_t i = 0; i < n; i++) {
        double sum = 0;
        float most = 0;
        for (size_t j = i; j < n; j++) {
            double chain = 0;
            for (size_t t = 0; t < N_TOKENS; t++) {
                const float *row = x + t * (n + STRIDE_MORE);
                chain += (double)row[i] * (double)row[j];
            }
            n_wrong += chain != h.h[i * n + j];
        }
        for (size_t t = 0; t < N_TOKENS; t++) {
            const float a = fabsf(x[t * (n + STRIDE_MORE) + i]);
            sum += (double)a;
            most = a > most ? a : most;
        }
        n_wrong += sum != h.sum_abs[i] || most != h.max_abs[i];
    }
    CU_ASSERT_EQUAL(n_wrong, 0);
    hessian_fini(&h);
    mem_free(&x);
}

static void cuts_cover_all_rows_and_change_no_bit(void)
{
    const uint32_t n = 70;
    float *x = tokens(n, 2);
    double *parts = memory((size_t)n * n, sizeof *parts);
    struct hessian whole;
    struct team *team;
    struct status st = hessian_init(&whole, n, 0, n);
    CU_ASSERT_FATAL(!status_failed(&st));
    st = team_create(3, &team);
    CU_ASSERT_FATAL(!status_failed(&st));
    hessian_add(team, &whole, x, n + STRIDE_MORE, N_TOKENS);
    for (uint32_t n_parts = 1; n_parts < 90; n_parts += 8) {
        CU_ASSERT_EQUAL(hessian_cut(n, n_parts, 0), 0);
        CU_ASSERT_EQUAL(hessian_cut(n, n_parts, n_parts), n);
        for (uint32_t i = 0; i < n_parts; i++) {
            struct hessian part;
            const uint32_t begin = hessian_cut(n, n_parts, i), end = hessian_cut(n, n_parts, i + 1);
            CU_ASSERT_FATAL(begin <= end);
            st = hessian_init(&part, n, begin, end);
            CU_ASSERT_FATAL(!status_failed(&st));
            hessian_add(NULL, &part, x, n + STRIDE_MORE, N_TOKENS);
            memcpy(parts + (size_t)begin * n, part.h, (size_t)(end - begin) * n * sizeof *parts);
            hessian_fini(&part);
        }
        hessian_mirror(parts, n);
        size_t n_wrong = 0;
        for (size_t i = 0; i < n; i++) {
            for (size_t j = i; j < n; j++) {
                n_wrong += parts[i * n + j] != whole.h[i * n + j];
                n_wrong += parts[j * n + i] != whole.h[i * n + j];
            }
        }
        CU_ASSERT_EQUAL(n_wrong, 0);
    }
    team_destroy(&team);
    hessian_fini(&whole);
    mem_free(&parts);
    mem_free(&x);
}

static double *moments(uint32_t n, uint32_t seed, double ridge)
{
    float *x = tokens(n, seed);
    struct hessian h;
    const struct status st = hessian_init(&h, n, 0, n);
    CU_ASSERT_FATAL(!status_failed(&st));
    hessian_add(NULL, &h, x, n + STRIDE_MORE, N_TOKENS);
    double *full = memory((size_t)n * n, sizeof *full);
    memcpy(full, h.h, (size_t)n * n * sizeof *full);
    hessian_mirror(full, n);
    for (size_t i = 0; i < n; i++) full[i * n + i] += ridge;
    hessian_fini(&h);
    mem_free(&x);
    return full;
}

/* max |A - L L^T| over max |A| */
static double factor_residual(const double *a, const double *l, size_t n)
{
    double worst = 0, largest = 0;
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j <= i; j++) {
            double sum = 0;
            for (size_t k = 0; k <= j; k++) sum += l[i * n + k] * l[j * n + k];
            worst = fmax(worst, fabs(sum - a[i * n + j]));
            largest = fmax(largest, fabs(a[i * n + j]));
        }
    }
    return worst / largest;
}

static void factors_leave_no_residual_at_any_size(void)
{
    static const uint32_t sizes[] = {1, 2, 15, 16, 17, 47, 48, 49, 96, 97, 130, 211};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        const uint32_t n = sizes[s];
        double *a = moments(n, 7 + n, 0.5);
        double *l = memory((size_t)n * n, sizeof *l);
        bool definite = false;
        memcpy(l, a, (size_t)n * n * sizeof *l);
        const struct status st = cholesky_factor(NULL, l, n, &definite);
        CU_ASSERT(!status_failed(&st));
        CU_ASSERT(definite);
        CU_ASSERT(factor_residual(a, l, n) < 1e-14 * (double)n);
        mem_free(&l);
        mem_free(&a);
    }
}

/* U^T U A = 1, and U is upper triangular with a positive diagonal. */
static void inverse_factors_invert_at_any_size(void)
{
    static const uint32_t sizes[] = {1, 3, 16, 33, 48, 95, 144, 200};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        const size_t n = sizes[s];
        double *a = moments((uint32_t)n, 5, 3.0);
        double *u = memory(n * n, sizeof *u), *ua = memory(n * n, sizeof *ua);
        bool definite = false;
        memcpy(u, a, n * n * sizeof *u);
        const struct status st = cholesky_inverse_factor(NULL, u, n, &definite);
        CU_ASSERT(!status_failed(&st));
        CU_ASSERT(definite);
        double worst = 0;
        for (size_t i = 0; i < n; i++) {
            CU_ASSERT(u[i * n + i] > 0);
            for (size_t j = 0; j < i; j++) CU_ASSERT_EQUAL(u[i * n + j], 0);
            for (size_t j = 0; j < n; j++) {
                for (size_t k = i; k < n; k++) ua[i * n + j] += u[i * n + k] * a[k * n + j];
            }
        }
        for (size_t i = 0; i < n; i++) {
            for (size_t j = 0; j < n; j++) {
                double sum = 0;
                for (size_t k = 0; k <= i; k++) sum += u[k * n + i] * ua[k * n + j];
                worst = fmax(worst, fabs(sum - (i == j ? 1.0 : 0.0)));
            }
        }
        CU_ASSERT(worst < 1e-10);
        mem_free(&ua);
        mem_free(&u);
        mem_free(&a);
    }
}

static void factors_do_not_depend_on_threads(void)
{
    const size_t n = 201;
    double *a = moments((uint32_t)n, 3, 1.0), *u[2];
    for (int i = 0; i < 2; i++) {
        bool definite;
        struct team *team;
        struct status st = team_create(i == 0 ? 1 : 4, &team);
        CU_ASSERT_FATAL(!status_failed(&st));
        u[i] = memory(n * n, sizeof *u[i]);
        memcpy(u[i], a, n * n * sizeof *a);
        st = cholesky_inverse_factor(team, u[i], n, &definite);
        CU_ASSERT(!status_failed(&st) && definite);
        team_destroy(&team);
    }
    CU_ASSERT_EQUAL(memcmp(u[0], u[1], n * n * sizeof *a), 0);
    mem_free(&u[0]);
    mem_free(&u[1]);
    mem_free(&a);
}

static void indefinite_matrices_are_found_out(void)
{
    double indefinite[4] = {1, 2, 2, 1}, not_a_number[4] = {1, 0, 0, NAN}, zero[1] = {0};
    bool definite = true;
    struct status st = cholesky_factor(NULL, indefinite, 2, &definite);
    CU_ASSERT(!status_failed(&st) && !definite);
    st = cholesky_factor(NULL, not_a_number, 2, &definite);
    CU_ASSERT(!status_failed(&st) && !definite);
    st = cholesky_inverse_factor(NULL, zero, 1, &definite);
    CU_ASSERT(!status_failed(&st) && !definite);
}

static void powers_are_the_librarys(void)
{
    for (unsigned k = 0; k <= POWER_ONE; k++) {
        for (double x = 1e-9; x < 1e9; x *= 7) {
            CU_ASSERT_DOUBLE_EQUAL(power_64ths(x, k) / pow(x, k / 64.0), 1, 1e-13);
        }
    }
    CU_ASSERT_EQUAL(power_64ths(0, 0), 1);
    CU_ASSERT_EQUAL(power_64ths(0, 1), 0);
    CU_ASSERT_EQUAL(power_64ths(5, 64), 5);
}

static void bits_go_where_they_take_away_most_error(void)
{
    struct auto_item items[3] = {
        {.n_weights = 100, .error = {0.10, 0.01, 0.0}, .n_bits = {400, 800, 1600}},
        {.n_weights = 100, .error = {0.02, 0.01, 0.0}, .n_bits = {400, 800, 1600}},
        {.n_weights = 10, .error = {0.90, 0.10, 0.0}, .n_bits = {40, 80, 160}},
    };
    struct status st = auto_policy_choose(items, 3, 3, 840 + 40);
    CU_ASSERT(!status_failed(&st)); /* only item 2 gets more bits: 40 bits there remove an error
                                       of 8 (10 weights x 0.8) */
    CU_ASSERT(items[0].choice == 0 && items[1].choice == 0 && items[2].choice == 1);
    st = auto_policy_choose(items, 3, 3, 840 + 40 + 400);
    CU_ASSERT(items[0].choice == 1 && items[1].choice == 0 && items[2].choice == 1);
    st = auto_policy_choose(items, 3, 3, 3360);
    CU_ASSERT(items[0].choice == 2 && items[1].choice == 2 && items[2].choice == 2);
    st = auto_policy_choose(items, 3, 3, 839);
    CU_ASSERT_EQUAL(st.code, STATUS_USAGE);
}

void suite_cholesky(CU_pSuite suite);
void suite_cholesky(CU_pSuite suite)
{
    CU_ADD_TEST(suite, second_moments_are_one_chain_per_element);
    CU_ADD_TEST(suite, cuts_cover_all_rows_and_change_no_bit);
    CU_ADD_TEST(suite, factors_leave_no_residual_at_any_size);
    CU_ADD_TEST(suite, inverse_factors_invert_at_any_size);
    CU_ADD_TEST(suite, factors_do_not_depend_on_threads);
    CU_ADD_TEST(suite, indefinite_matrices_are_found_out);
    CU_ADD_TEST(suite, powers_are_the_librarys);
    CU_ADD_TEST(suite, bits_go_where_they_take_away_most_error);
}

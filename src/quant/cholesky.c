/* Blocked Cholesky factor and triangular inverse. A block continues the sums where the previous
 * block left them, so neither blocking nor threading changes the order of additions. */
#include "quant/cholesky.h"

#include "base/mem.h"
#include "quant/fp_reset.h"
#include "quant/share.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum { BLOCK = 48, STRIP = 16, PIECE_ROWS = 8 };

static size_t cholesky_least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Computes row i of the factor in columns [k0, k1) from the rows of the diagonal block. The
 * products of columns before k0 are already subtracted. Columns from the row's own diagonal on do
 * not change. */
static void solve_row(double *a, size_t n, size_t i, size_t k0, size_t k1)
{
    double *row = a + i * n;
    for (size_t k = k0; k < cholesky_least(k1, i); k++) {
        const double *pivot_row = a + k * n;
        double x = row[k];
        for (size_t m = k0; m < k; m++) x -= row[m] * pivot_row[m];
        row[k] = x / pivot_row[k];
    }
}

/* Factors the diagonal block. False when a pivot is not positive and finite. */
static bool factor_block(double *a, size_t n, size_t k0, size_t k1)
{
    for (size_t i = k0; i < k1; i++) {
        solve_row(a, n, i, k0, k1);
        double x = a[i * n + i];
        for (size_t m = k0; m < i; m++) x -= a[i * n + m] * a[i * n + m];
        if (!(x > 0) || !isfinite(x)) return false;
        a[i * n + i] = sqrt(x);
    }
    return true;
}

/* row[j] -= l[k] * panel[k][j] for each k in [0, n_k), ascending, and each j in [j0, j1) */
QUANT_CLONES static void subtract_panel(double *row, const double *l, const double *panel,
                                        size_t stride, size_t n_k, size_t j0, size_t j1)
{
    size_t j = j0;
    for (; j + STRIP <= j1; j += STRIP) {
        double acc[STRIP];
        for (size_t c = 0; c < STRIP; c++) acc[c] = row[j + c];
        for (size_t k = 0; k < n_k; k++) {
            for (size_t c = 0; c < STRIP; c++) acc[c] -= l[k] * panel[k * stride + j + c];
        }
        for (size_t c = 0; c < STRIP; c++) row[j + c] = acc[c];
    }
    for (; j < j1; j++) {
        for (size_t k = 0; k < n_k; k++) row[j] -= l[k] * panel[k * stride + j];
    }
}

/* The job for columns [k0, k1) of the factor; it is divided into runs of the rows from k1 on. */
struct factor_job {
    double *a, *panel; /* panel [k1 - k0, n]: these columns, transposed */
    size_t n, k0, k1;
};

static void solve_piece(void *ctx, size_t begin, size_t end)
{
    const struct factor_job *j = ctx;
    for (size_t i = j->k1 + begin; i < j->k1 + end; i++) {
        solve_row(j->a, j->n, i, j->k0, j->k1);
        for (size_t k = j->k0; k < j->k1; k++) {
            j->panel[(k - j->k0) * j->n + i] = j->a[i * j->n + k];
        }
    }
}

static void subtract_piece(void *ctx, size_t begin, size_t end)
{
    const struct factor_job *j = ctx;
    for (size_t i = j->k1 + begin; i < j->k1 + end; i++) {
        double *row = j->a + i * j->n;
        subtract_panel(row, row + j->k0, j->panel, j->n, j->k1 - j->k0, j->k1, i + 1);
    }
}

/* Computes columns [k0, k1) of the rows from k1 on, then subtracts their products from the columns
 * to the right. */
static void factor_rest(struct team *team, struct factor_job *j)
{
    share_run(team, j->n - j->k1, PIECE_ROWS, solve_piece, j);
    share_run(team, j->n - j->k1, PIECE_ROWS, subtract_piece, j);
}

struct status cholesky_factor(struct team *team, double *a, size_t n, bool *definite)
{
    double *panel = NULL;
    TRY(mem_alloc(&panel, n * BLOCK, sizeof *panel, "Cholesky factor"));
    *definite = true;
    for (size_t k0 = 0; k0 < n && *definite; k0 += BLOCK) {
        const size_t k1 = cholesky_least(k0 + BLOCK, n);
        *definite = factor_block(a, n, k0, k1);
        struct factor_job j = {a, panel, n, k0, k1};
        if (*definite) factor_rest(team, &j);
    }
    mem_free(&panel);
    return status_ok();
}

/* Writes columns [j0, j1) of the inverse to m [n, STRIP]:
 * m[i] = (e_i - sum over k in [j0, i) of l[i][k] m[k]) / l[i][i], k ascending. */
QUANT_CLONES static void invert_strip(const double *l, size_t n, size_t j0, size_t j1, double *m)
{
    for (size_t i = j0; i < n; i++) {
        double acc[STRIP] = {0};
        if (i < j1) acc[i - j0] = 1;
        for (size_t k = j0; k < i; k++) {
            for (size_t c = 0; c < STRIP; c++) acc[c] -= l[i * n + k] * m[k * STRIP + c];
        }
        for (size_t c = 0; c < STRIP; c++) m[i * STRIP + c] = acc[c] / l[i * n + i];
    }
}

struct invert_job {
    const double *l;
    size_t n;
    double *inverse;
    atomic_bool failed;
};

/* Computes columns [j0, j1) of the inverse, at most STRIP. */
static void invert_piece(void *ctx, size_t j0, size_t j1)
{
    struct invert_job *job = ctx;
    const size_t n = job->n;
    double *m = NULL;
    const struct status st = mem_alloc(&m, n * STRIP, sizeof *m, "triangular inverse");
    if (status_failed(&st)) {
        atomic_store(&job->failed, true);
        return;
    }
    invert_strip(job->l, n, j0, j1, m);
    for (size_t i = j0; i < n; i++) {
        for (size_t j = j0; j < j1 && j <= i; j++) {
            job->inverse[i * n + j] = m[i * STRIP + j - j0];
        }
    }
    mem_free(&m);
}

struct status cholesky_invert_lower(struct team *team, const double *l, size_t n, double *inverse)
{
    struct invert_job job = {.l = l, .n = n, .inverse = inverse};
    share_run(team, n, STRIP, invert_piece, &job);
    if (!job.failed) return status_ok();
    return status_make(STATUS_MEMORY, "triangular inverse of %zu columns: no memory", n);
}

/* Reverses the order of rows and columns: swaps elements (i, j) and (n - 1 - i, n - 1 - j). */
static void reverse(double *a, size_t n)
{
    for (size_t i = 0, j = n * n; i + 1 < j; i++) {
        j--;
        const double x = a[i];
        a[i] = a[j];
        a[j] = x;
    }
}

struct status cholesky_inverse_factor(struct team *team, double *a, size_t n, bool *definite)
{
    double *inverse = NULL;
    struct status st;
    /* reversing turns the given upper triangle into a lower one, which cholesky_factor needs */
    reverse(a, n);
    TRY_GOTO(st, cholesky_factor(team, a, n, definite), out);
    if (!*definite) goto out;
    TRY_GOTO(st, mem_alloc(&inverse, n * n, sizeof *inverse, "inverse factor"), out);
    TRY_GOTO(st, cholesky_invert_lower(team, a, n, inverse), out);
    memcpy(a, inverse, n * n * sizeof *a);
    reverse(a, n);
out:
    mem_free(&inverse);
    return st;
}

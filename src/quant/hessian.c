/* Accumulates second moments: tiles of H in registers, tokens in their order. */
#include "quant/hessian.h"

#include "base/mem.h"
#include "quant/fp_reset.h"
#include "quant/share.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum { TILE_ROWS = 4, TILE_COLUMNS = 16, CHUNK_TOKENS = 128 };

uint64_t hessian_bytes(uint32_t n, uint32_t begin, uint32_t end)
{
    return (uint64_t)(end - begin) * n * sizeof(double) + (uint64_t)n * 12;
}

uint32_t hessian_cut(uint32_t n, uint32_t n_parts, uint32_t i)
{
    const uint64_t total = (uint64_t)n * (n + 1) / 2;
    const uint64_t want = total / n_parts * i + total % n_parts * i / n_parts;
    if (i >= n_parts) return n;
    /* rows [0, r) have r (2n - r + 1) / 2 elements */
    uint32_t low = 0, high = n;
    while (low < high) {
        const uint32_t r = low + (high - low) / 2;
        if ((uint64_t)r * (2 * (uint64_t)n - r + 1) / 2 < want) {
            low = r + 1;
        } else {
            high = r;
        }
    }
    return low;
}

struct status hessian_init(struct hessian *h, uint32_t n, uint32_t begin, uint32_t end)
{
    *h = (struct hessian){.n = n, .begin = begin, .end = end};
    size_t n_elems;
    struct status st = mem_mul(end - begin, n, &n_elems)
                           ? mem_alloc(&h->h, n_elems, sizeof *h->h, "second moments")
                           : status_make(STATUS_MEMORY, "second moments of %u inputs: overflow", n);
    if (!status_failed(&st)) st = mem_alloc(&h->sum_abs, n, sizeof *h->sum_abs, "second moments");
    if (!status_failed(&st)) st = mem_alloc(&h->max_abs, n, sizeof *h->max_abs, "second moments");
    if (status_failed(&st)) hessian_fini(h);
    return st;
}

void hessian_fini(struct hessian *h)
{
    mem_free(&h->h);
    mem_free(&h->sum_abs);
    mem_free(&h->max_abs);
}

/* Adds tokens to rows [i, i + n_i) and columns [j, j + n_j) of H. Constant sizes keep the tile in
 * registers. */
static inline __attribute__((always_inline)) void hessian_tile(double *h, size_t n, const float *x,
                                                               size_t stride, size_t n_tokens,
                                                               size_t i, size_t n_i, size_t j,
                                                               size_t n_j)
{
    double acc[TILE_ROWS][TILE_COLUMNS];
    for (size_t r = 0; r < n_i; r++) {
        for (size_t c = 0; c < n_j; c++) acc[r][c] = h[r * n + j + c];
    }
    for (size_t t = 0; t < n_tokens; t++) {
        const float *row = x + t * stride;
        for (size_t r = 0; r < n_i; r++) {
            const double a = (double)row[i + r];
            for (size_t c = 0; c < n_j; c++) acc[r][c] += a * (double)row[j + c];
        }
    }
    for (size_t r = 0; r < n_i; r++) {
        for (size_t c = 0; c < n_j; c++) h[r * n + j + c] = acc[r][c];
    }
}

/* Adds tokens to rows [i, i + n_i) of H from column i on, in whole tiles: some elements left of
 * the diagonal are computed but never used. */
QUANT_CLONES static void hessian_strip(double *h, size_t n, const float *x, size_t stride,
                                       size_t n_tokens, size_t i, size_t n_i)
{
    size_t j = i / TILE_COLUMNS * TILE_COLUMNS;
    for (; j + TILE_COLUMNS <= n && n_i == TILE_ROWS; j += TILE_COLUMNS) {
        hessian_tile(h, n, x, stride, n_tokens, i, TILE_ROWS, j, TILE_COLUMNS);
    }
    for (; j < n; j += TILE_COLUMNS) {
        hessian_tile(h, n, x, stride, n_tokens, i, n_i, j,
                     n - j < TILE_COLUMNS ? n - j : TILE_COLUMNS);
    }
}

static void add_magnitudes(struct hessian *h, const float *x, size_t stride, size_t n_tokens)
{
    for (size_t t = 0; t < n_tokens; t++) {
        const float *row = x + t * stride;
        for (uint32_t k = 0; k < h->n; k++) {
            const float a = fabsf(row[k]);
            h->sum_abs[k] += (double)a;
            if (a > h->max_abs[k]) h->max_abs[k] = a;
        }
    }
}

struct add_job {
    struct hessian *h;
    const float *x;
    size_t x_stride, n_tokens;
};

/* Adds tokens to rows [begin, end) of H, counted from h->begin: TILE_ROWS rows, fewer at the end.
 */
static void hessian_add_piece(void *ctx, size_t begin, size_t end)
{
    const struct add_job *j = ctx;
    struct hessian *h = j->h;
    hessian_strip(h->h + begin * h->n, h->n, j->x, j->x_stride, j->n_tokens, h->begin + begin,
                  end - begin);
}

void hessian_add(struct team *team, struct hessian *h, const float *x, size_t x_stride,
                 size_t n_tokens)
{
    add_magnitudes(h, x, x_stride, n_tokens);
    h->n_tokens += n_tokens;
    for (size_t t = 0; t < n_tokens; t += CHUNK_TOKENS) {
        const size_t n = n_tokens - t < CHUNK_TOKENS ? n_tokens - t : CHUNK_TOKENS;
        struct add_job j = {h, x + t * x_stride, x_stride, n};
        share_run(team, h->end - h->begin, TILE_ROWS, hessian_add_piece, &j);
    }
}

void hessian_mirror(double *full, uint32_t n)
{
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < i; j++) full[i * n + j] = full[j * n + i];
    }
}

QUANT_CLONES void hessian_norms(const double *full, uint32_t n, const double *v, double *out)
{
    double sum[HESSIAN_LANES] = {0};
    for (size_t i = 0; i < n; i++) {
        double chain[HESSIAN_LANES] = {0};
        const double *row = full + i * n;
        for (size_t k = 0; k < n; k++) {
            for (int c = 0; c < HESSIAN_LANES; c++) {
                chain[c] += row[k] * v[k * HESSIAN_LANES + c];
            }
        }
        for (int c = 0; c < HESSIAN_LANES; c++) sum[c] += v[i * HESSIAN_LANES + c] * chain[c];
    }
    memcpy(out, sum, sizeof sum);
}

/* Interleaves rows [row, row + n_lanes) of d; lanes without a row get zeros. */
static void interleave(const float *d, uint32_t n, size_t row, size_t n_lanes, double *v)
{
    for (size_t k = 0; k < n; k++) {
        for (size_t c = 0; c < HESSIAN_LANES; c++) {
            v[k * HESSIAN_LANES + c] = c < n_lanes ? (double)d[(row + c) * n + k] : 0.0;
        }
    }
}

struct error_job {
    const double *full;
    uint32_t n;
    const float *d;
    double *sums;
    atomic_bool failed;
};

/* Computes the errors of at most HESSIAN_LANES rows. */
static void hessian_error_piece(void *ctx, size_t begin, size_t end)
{
    struct error_job *j = ctx;
    double *v = NULL;
    const struct status st =
        mem_alloc(&v, (size_t)j->n * HESSIAN_LANES, sizeof *v, "output errors");
    if (status_failed(&st)) {
        atomic_store(&j->failed, true);
        return;
    }
    interleave(j->d, j->n, begin, end - begin, v);
    hessian_norms(j->full, j->n, v, j->sums + begin);
    mem_free(&v);
}

struct status hessian_error(struct team *team, const double *full, uint32_t n, const float *d,
                            size_t n_rows, double *out)
{
    struct error_job j = {.full = full, .n = n, .d = d};
    TRY(mem_alloc(&j.sums, n_rows + HESSIAN_LANES, sizeof *j.sums, "output errors"));
    share_run(team, n_rows, HESSIAN_LANES, hessian_error_piece, &j);
    *out = 0;
    for (size_t i = 0; i < n_rows; i++) *out += j.sums[i];
    mem_free(&j.sums);
    if (!j.failed) return status_ok();
    return status_make(STATUS_MEMORY, "output errors of %u inputs: no memory", n);
}

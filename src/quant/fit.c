/* Searches for the clipping range of each quantization group. */
#include "quant/fit.h"

#include "quant/share.h"

#include <math.h>

/* Returns d^T H d of one block of at most FIT_BLOCK inputs. */
static double block_error(const float *d, size_t n, const double *h, size_t stride)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        double chain = 0;
        for (size_t k = 0; k < i; k++) chain += h[i * stride + k] * (double)d[k];
        sum += (double)d[i] * (2 * chain + h[i * stride + i] * (double)d[i]);
    }
    return sum;
}

static double group_error(struct quant_format f, struct quant_param p, const float *x, size_t n,
                          const double *h, size_t stride)
{
    double sum = 0;
    for (size_t b = 0; b < n; b += FIT_BLOCK) {
        const size_t m = n - b < FIT_BLOCK ? n - b : FIT_BLOCK;
        float d[FIT_BLOCK];
        for (size_t k = 0; k < m; k++) {
            d[k] = quant_decode(f, p, quant_encode(f, p, x[b + k])) - x[b + k];
        }
        sum += block_error(d, m, h + b * stride + b, stride);
    }
    return sum;
}

/* Returns quant_fit's parameters for values clipped to [-limit, limit]; quant_fit looks only at
 * the extremes. */
static struct quant_param fit_limited(struct quant_format f, const float *x, size_t n, float limit)
{
    float low = 0, high = 0, largest = 0;
    for (size_t k = 0; k < n; k++) {
        if (x[k] < low) low = x[k];
        if (x[k] > high) high = x[k];
        if (fabsf(x[k]) > fabsf(largest)) largest = x[k];
    }
    const float cut[3] = {largest < 0 ? -limit : limit, low < -limit ? -limit : low,
                          high > limit ? limit : high};
    return quant_fit(f, cut, 3);
}

struct quant_param quant_fit_clipped(struct quant_format f, const float *x, size_t n,
                                     const double *h, size_t stride)
{
    float most = 0;
    for (size_t k = 0; k < n; k++) most = fabsf(x[k]) > most ? fabsf(x[k]) : most;
    struct quant_param best = quant_fit(f, x, n);
    double least = group_error(f, best, x, n, h, stride);
    for (int step = 1; step < FIT_TRIED; step++) {
        const float limit = most * (float)(FIT_STEPS - step) / (float)FIT_STEPS;
        const struct quant_param p = fit_limited(f, x, n, limit);
        const double error = group_error(f, p, x, n, h, stride);
        if (error < least) {
            least = error;
            best = p;
        }
    }
    return best;
}

struct clipped_job {
    struct quant_format f;
    const float *rows;
    size_t n_in;
    const double *h;
    const struct quant_block *out;
};

static void clipped_row(const struct clipped_job *j, size_t row)
{
    const struct quant_format f = j->f;
    const float *x = j->rows + row * j->n_in;
    const size_t n_in = j->n_in;
    const size_t group = f.group == 0 ? n_in : f.group;
    for (size_t g = 0; g * group < n_in; g++) {
        const size_t begin = g * group, end = begin + group < n_in ? begin + group : n_in;
        const struct quant_param p =
            quant_fit_clipped(f, x + begin, end - begin, j->h + begin * n_in + begin, n_in);
        quant_put_param(f, j->out, n_in, row, g, p);
        for (size_t k = begin; k < end; k++) {
            quant_put_code(f, j->out, n_in, row, k, quant_encode(f, p, x[k]));
        }
    }
}

static void clipped_piece(void *ctx, size_t begin, size_t end)
{
    for (size_t row = begin; row < end; row++) clipped_row(ctx, row);
}

void quant_clipped_rows(struct team *team, struct quant_format f, const float *rows, size_t n_rows,
                        size_t n_in, const double *h, const struct quant_block *out)
{
    struct clipped_job j = {f, rows, n_in, h, out};
    share_run(team, n_rows, 4, clipped_piece, &j);
}

/* AWQ's scales and their output error. */
#include "quant/awq.h"

#include "base/mem.h"
#include "quant/fp_reset.h"
#include "quant/hessian.h"
#include "quant/power.h"
#include "quant/quantize.h"

#include <math.h>

static const double least_scale = 1e-4;

void awq_scales(const double *sum_abs, uint64_t n_tokens, uint32_t n, int step, float *s)
{
    double low = INFINITY, high = 0;
    const unsigned power = (unsigned)step * (POWER_ONE / (AWQ_TRIED - 1));
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t k = 0; k < n; k++) {
            const double mean = n_tokens > 0 ? sum_abs[k] / (double)n_tokens : 1;
            double x = power_64ths(mean, power);
            if (!(x > least_scale)) x = least_scale;
            if (pass == 1) s[k] = (float)(x / sqrt(high * low));
            if (x < low) low = x;
            if (x > high) high = x;
        }
    }
}

/* d = Q(w s) / s - w of one row. */
static void difference(struct quant_format f, const float *w, uint32_t n, const float *s,
                       float *scaled, float *d)
{
    const uint32_t group = f.group == 0 ? n : f.group;
    for (uint32_t k = 0; k < n; k++) scaled[k] = w[k] * s[k];
    for (uint32_t begin = 0; begin < n; begin += group) {
        const uint32_t end = n - begin < group ? n : begin + group;
        const struct quant_param p = quant_fit(f, scaled + begin, end - begin);
        for (uint32_t k = begin; k < end; k++) {
            d[k] = quant_decode(f, p, quant_encode(f, p, scaled[k])) / s[k] - w[k];
        }
    }
}

struct status awq_error(struct quant_format f, const float *rows, size_t n_rows, uint32_t n,
                        const double *full, const float *s, double *error)
{
    float *d = NULL, *scaled = NULL;
    struct status st;
    TRY_GOTO(st, mem_alloc(&d, n_rows * n, sizeof *d, "AWQ rows"), out);
    TRY_GOTO(st, mem_alloc(&scaled, n_rows * n, sizeof *scaled, "AWQ rows"), out);
#pragma omp parallel
    {
        fp_reset();
#pragma omp for schedule(static)
        for (size_t r = 0; r < n_rows; r++) {
            difference(f, rows + r * n, n, s, scaled + r * n, d + r * n);
        }
    }
    st = hessian_error(full, n, d, n_rows, error);
out:
    mem_free(&scaled);
    mem_free(&d);
    return st;
}

int awq_best(const double errors[AWQ_TRIED])
{
    int best = 0;
    for (int i = 1; i < AWQ_TRIED; i++) {
        if (errors[i] < errors[best]) best = i;
    }
    return best;
}

void awq_scale_moments(double *full, uint32_t n, const float *s)
{
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < n; j++) full[i * n + j] /= (double)s[i] * (double)s[j];
    }
}

/* AWQ's scales and their output error. */
#include "quant/awq.h"

#include "base/mem.h"
#include "quant/hessian.h"
#include "quant/power.h"
#include "quant/quantize.h"
#include "quant/share.h"

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

/* Computes d = Q(w s) / s - w for one row. */
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

struct error_job {
    const struct awq_linear *l;
    const float *s;
    float *scaled, *d; /* [n_rows, n] */
};

static void awq_error_piece(void *ctx, size_t begin, size_t end)
{
    const struct error_job *j = ctx;
    for (size_t r = begin; r < end; r++) {
        const size_t at = r * j->l->n;
        difference(j->l->format, j->l->rows + at, j->l->n, j->s, j->scaled + at, j->d + at);
    }
}

struct status awq_error(struct team *team, const struct awq_linear *l, const float *s,
                        double *error)
{
    const size_t n_elems = l->n_rows * l->n;
    struct error_job j = {.l = l, .s = s};
    struct status st;
    TRY_GOTO(st, mem_alloc(&j.d, n_elems, sizeof *j.d, "AWQ rows"), out);
    TRY_GOTO(st, mem_alloc(&j.scaled, n_elems, sizeof *j.scaled, "AWQ rows"), out);
    share_run(team, l->n_rows, 16, awq_error_piece, &j);
    st = hessian_error(team, l->full, l->n, j.d, l->n_rows, error);
out:
    mem_free(&j.scaled);
    mem_free(&j.d);
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

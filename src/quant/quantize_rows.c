/* Whole rows to codes and back, threads over rows. */
#include "quant/quantize.h"

#include "quant/fp_reset.h"

#include <float.h>

/* The inputs of group g: [begin, end). */
static void group_bounds(struct quant_format f, size_t n_in, size_t g, size_t *begin, size_t *end)
{
    *begin = f.group == 0 ? 0 : g * f.group;
    *end = f.group == 0 || *begin + f.group > n_in ? n_in : *begin + f.group;
}

static uint64_t count_bad(const float *x, size_t n)
{
    uint64_t n_bad = 0;
    for (size_t i = 0; i < n; i++) n_bad += !(__builtin_fabsf(x[i]) <= FLT_MAX);
    return n_bad;
}

static void rtn_row(struct quant_format f, const float *x, size_t n_in,
                    const struct quant_block *out, size_t row)
{
    const size_t n_groups = quant_groups(f, n_in);
    for (size_t g = 0; g < n_groups; g++) {
        size_t begin, end;
        group_bounds(f, n_in, g, &begin, &end);
        const struct quant_param p = quant_fit(f, x + begin, end - begin);
        quant_put_param(f, out, n_in, row, g, p);
        for (size_t k = begin; k < end; k++) {
            quant_put_code(f, out, n_in, row, k, quant_encode(f, p, x[k]));
        }
    }
}

uint64_t quant_rtn_rows(struct quant_format f, const float *rows, size_t n_rows, size_t n_in,
                        const struct quant_block *out)
{
    uint64_t n_bad = 0;
#pragma omp parallel reduction(+ : n_bad)
    {
        fp_reset();
#pragma omp for schedule(static)
        for (size_t row = 0; row < n_rows; row++) {
            n_bad += count_bad(rows + row * n_in, n_in);
            rtn_row(f, rows + row * n_in, n_in, out, row);
        }
    }
    return n_bad;
}

static void dequantize_row(struct quant_format f, const struct quant_block *b, size_t n_in,
                           size_t row, float *out)
{
    const size_t n_groups = quant_groups(f, n_in);
    for (size_t g = 0; g < n_groups; g++) {
        size_t begin, end;
        group_bounds(f, n_in, g, &begin, &end);
        const struct quant_param p = quant_get_param(f, b, n_in, row, g);
        for (size_t k = begin; k < end; k++) {
            out[k] = quant_decode(f, p, quant_get_code(f, b, n_in, row, k));
        }
    }
}

void quant_dequantize_rows(struct quant_format f, const struct quant_block *b, size_t n_rows,
                           size_t n_in, float *out)
{
#pragma omp parallel
    {
        fp_reset();
#pragma omp for schedule(static)
        for (size_t row = 0; row < n_rows; row++) {
            dequantize_row(f, b, n_in, row, out + row * n_in);
        }
    }
}

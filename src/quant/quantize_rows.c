/* Quantizes and dequantizes whole rows; threads share the rows. */
#include "quant/quantize.h"

#include "quant/share.h"

#include <float.h>
#include <stdatomic.h>

enum { PIECE_ELEMS = 1 << 14 }; /* elements that a thread takes at once, about */

/* Rows that a thread takes at once. */
static size_t quantize_piece_rows(size_t n_in)
{
    return n_in < PIECE_ELEMS ? PIECE_ELEMS / n_in : 1;
}

/* The inputs of group g: [begin, end). */
static void group_bounds(struct quant_format f, size_t n_in, size_t g, size_t *begin, size_t *end)
{
    *begin = f.group == 0 ? 0 : g * f.group;
    *end = f.group == 0 || *begin + f.group > n_in ? n_in : *begin + f.group;
}

static uint64_t quantize_rows_count_bad(const float *x, size_t n)
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

struct rtn_job {
    struct quant_format f;
    const float *rows;
    size_t n_in;
    const struct quant_block *out;
    atomic_uint_fast64_t n_bad;
};

static void rtn_piece(void *ctx, size_t begin, size_t end)
{
    struct rtn_job *j = ctx;
    for (size_t row = begin; row < end; row++) {
        const float *x = j->rows + row * j->n_in;
        const uint64_t n_bad = quantize_rows_count_bad(x, j->n_in);
        if (n_bad > 0) atomic_fetch_add(&j->n_bad, n_bad);
        rtn_row(j->f, x, j->n_in, j->out, row);
    }
}

uint64_t quant_rtn_rows(struct team *team, struct quant_format f, const float *rows, size_t n_rows,
                        size_t n_in, const struct quant_block *out)
{
    struct rtn_job j = {.f = f, .rows = rows, .n_in = n_in, .out = out};
    share_run(team, n_rows, quantize_piece_rows(n_in), rtn_piece, &j);
    return j.n_bad;
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

struct dequantize_job {
    struct quant_format f;
    const struct quant_block *b;
    size_t n_in;
    float *out;
};

static void dequantize_piece(void *ctx, size_t begin, size_t end)
{
    const struct dequantize_job *j = ctx;
    for (size_t row = begin; row < end; row++) {
        dequantize_row(j->f, j->b, j->n_in, row, j->out + row * j->n_in);
    }
}

void quant_dequantize_rows(struct team *team, struct quant_format f, const struct quant_block *b,
                           size_t n_rows, size_t n_in, float *out)
{
    struct dequantize_job j = {f, b, n_in, out};
    share_run(team, n_rows, quantize_piece_rows(n_in), dequantize_piece, &j);
}

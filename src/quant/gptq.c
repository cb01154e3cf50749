/* GPTQ: factors the inverse, then goes through the columns for a few outputs at a time. */
#include "quant/gptq.h"

#include "base/mem.h"
#include "quant/cholesky.h"
#include "quant/fit.h"
#include "quant/fp_reset.h"
#include "quant/quantize.h"
#include "quant/share.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum {
    BLOCK =
        128, /* columns between two updates of all later columns; a multiple of every group size */
    LANES = 8, /* outputs quantized together, so that a row of U is read once for all of them */
    DAMPING_TRIES = 40,
};

/* ---- the factor ---- */

/* Orders the columns by number or, by_moment, by descending diagonal (a stable insertion sort). */
static void order_columns(const double *full, uint32_t n, bool by_moment, uint32_t *order)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = i;
        const double d = full[(size_t)i * n + i];
        while (by_moment && at > 0 && full[(size_t)order[at - 1] * n + order[at - 1]] < d) at--;
        memmove(order + at + 1, order + at, (i - at) * sizeof *order);
        order[at] = i;
    }
}

static void fill_damped(struct gptq *g, const double *full, double lambda)
{
    const size_t n = g->n;
    for (size_t i = 0; i < n; i++) {
        const double *row = full + g->order[i] * n;
        for (size_t j = 0; j < n; j++) g->u[i * n + j] = row[g->order[j]];
        g->u[i * n + i] = (g->dead[g->order[i]] ? 1.0 : g->u[i * n + i]) + lambda;
    }
}

/* Factors H + lambda I, doubling lambda until the matrix is positive definite in spite of
 * rounding. */
static struct status factor(struct gptq *g, const double *full)
{
    double mean = 0;
    for (size_t i = 0; i < g->n; i++) {
        mean += g->dead[i] ? 1.0 : full[i * g->n + i];
    }
    mean /= (double)g->n;
    if (!isfinite(mean)) {
        return status_make(STATUS_INPUT, "second moments of %u inputs: not finite", g->n);
    }
    g->damped = (g->options.damping > 0 ? g->options.damping : 1e-8) * mean;
    for (int i = 0; i < DAMPING_TRIES; i++) {
        bool definite;
        fill_damped(g, full, g->damped);
        TRY(cholesky_inverse_factor(g->team, g->u, g->n, &definite));
        if (definite) return status_ok();
        g->damped *= 2;
    }
    return status_make(STATUS_INPUT, "second moments of %u inputs: not positive definite", g->n);
}

struct status gptq_create(struct team *team, const double *full, uint32_t n,
                          const struct gptq_options *options, struct gptq *out)
{
    *out = (struct gptq){.options = *options, .team = team, .n = n};
    const size_t n_elems = (size_t)n * n;
    struct status st;
    TRY_GOTO(st, mem_alloc(&out->order, n, sizeof *out->order, "column order"), fail);
    TRY_GOTO(st, mem_alloc(&out->dead, n, sizeof *out->dead, "dead columns"), fail);
    TRY_GOTO(st, mem_alloc(&out->u, n_elems, sizeof *out->u, "inverse factor"), fail);
    if (options->clip) {
        TRY_GOTO(st, mem_alloc(&out->moments, n_elems, sizeof *out->u, "second moments"), fail);
        memcpy(out->moments, full, n_elems * sizeof *full);
    }
    for (size_t i = 0; i < n; i++) out->dead[i] = full[i * n + i] == 0;
    order_columns(full, n, options->act_order, out->order);
    TRY_GOTO(st, factor(out, full), fail);
    return st;
fail:
    gptq_destroy(out);
    return st;
}

void gptq_destroy(struct gptq *g)
{
    mem_free(&g->order);
    mem_free(&g->dead);
    mem_free(&g->moments);
    mem_free(&g->u);
}

/* ---- outputs ---- */

/* The state of a few outputs, with columns in GPTQ's order and outputs interleaved. */
struct walk {
    const struct gptq *g;
    struct quant_format f;
    const struct quant_block *out;
    size_t row0, n_rows; /* outputs [row0, row0 + n_rows), at most LANES */
    double *w;           /* [n, LANES] values with the corrections so far */
    double *error;       /* [BLOCK, LANES] rounding errors of a block, divided by U's diagonal */
    struct quant_param *params; /* [groups, LANES] */
    float *values;              /* [n] values of one group */
    uint32_t *place;            /* [n]: a column's position in the order */
};

static size_t gptq_group_of(const struct walk *k, size_t column)
{
    return k->f.group == 0 ? 0 : column / k->f.group;
}

/* Fits group `group` of each output to the current values. */
static void fit_group(const struct walk *k, size_t group)
{
    const size_t n = k->g->n, size = k->f.group == 0 ? n : k->f.group;
    const size_t begin = group * size, end = begin + size < n ? begin + size : n;
    for (size_t r = 0; r < k->n_rows; r++) {
        for (size_t c = begin; c < end; c++) {
            k->values[c - begin] = (float)k->w[k->place[c] * LANES + r];
        }
        struct quant_param *p = &k->params[group * LANES + r];
        *p = k->g->moments == NULL ? quant_fit(k->f, k->values, end - begin)
                                   : quant_fit_clipped(k->f, k->values, end - begin,
                                                       k->g->moments + begin * n + begin, n);
        quant_put_param(k->f, k->out, n, k->row0 + r, group, *p);
    }
}

/* Quantizes the i-th column of the order. error [LANES] gets the rounding errors, divided by
 * U[i][i]. */
static void quantize_column(const struct walk *k, size_t i, double *error)
{
    const size_t n = k->g->n, column = k->g->order[i], group = gptq_group_of(k, column);
    const double pivot = k->g->u[i * n + i];
    for (size_t r = 0; r < k->n_rows; r++) {
        const struct quant_param p = k->params[group * LANES + r];
        const uint8_t code = quant_encode(k->f, p, (float)k->w[i * LANES + r]);
        quant_put_code(k->f, k->out, n, k->row0 + r, column, code);
        error[r] = (k->w[i * LANES + r] - (double)quant_decode(k->f, p, code)) / pivot;
    }
}

/* w[j] -= (error of column i) * U[i][j], for the block's columns i, ascending, and j in [j0, j1).
 */
QUANT_CLONES static void correct(double *w, const double *error, const double *u, size_t n,
                                 size_t i0, size_t n_i, size_t j0, size_t j1)
{
    for (size_t j = j0; j < j1; j++) {
        double acc[LANES];
        for (size_t c = 0; c < LANES; c++) acc[c] = w[j * LANES + c];
        for (size_t i = 0; i < n_i; i++) {
            const double x = u[(i0 + i) * n + j];
            for (size_t c = 0; c < LANES; c++) acc[c] -= error[i * LANES + c] * x;
        }
        for (size_t c = 0; c < LANES; c++) w[j * LANES + c] = acc[c];
    }
}

static void walk_columns(const struct walk *k)
{
    const size_t n = k->g->n;
    for (size_t b = 0; b < n; b += BLOCK) {
        const size_t end = b + BLOCK < n ? b + BLOCK : n;
        for (size_t i = b; i < end; i++) {
            const bool begins = k->f.group == 0 ? i == 0 : i % k->f.group == 0;
            if (!k->g->options.act_order && begins) fit_group(k, gptq_group_of(k, i));
            quantize_column(k, i, k->error + (i - b) * LANES);
            correct(k->w, k->error + (i - b) * LANES, k->g->u, n, i, 1, i + 1, end);
        }
        correct(k->w, k->error, k->g->u, n, b, end - b, end, n);
    }
}

static void load_rows(const struct walk *k, const float *rows)
{
    const size_t n = k->g->n;
    memset(k->w, 0, n * LANES * sizeof *k->w);
    memset(k->error, 0, BLOCK * LANES * sizeof *k->error);
    for (size_t i = 0; i < n; i++) {
        const uint32_t column = k->g->order[i];
        for (size_t r = 0; r < k->n_rows && !k->g->dead[column]; r++) {
            k->w[i * LANES + r] = (double)rows[(k->row0 + r) * n + column];
        }
    }
}

static struct status gptq_walk_init(struct walk *k)
{
    const size_t n = k->g->n;
    TRY(mem_alloc(&k->w, n * LANES, sizeof *k->w, "GPTQ rows"));
    TRY(mem_alloc(&k->error, BLOCK * LANES, sizeof *k->error, "GPTQ errors"));
    TRY(mem_alloc(&k->params, quant_groups(k->f, n) * LANES, sizeof *k->params, "GPTQ groups"));
    TRY(mem_alloc(&k->values, n, sizeof *k->values, "GPTQ groups"));
    TRY(mem_alloc(&k->place, n, sizeof *k->place, "GPTQ order"));
    for (uint32_t i = 0; i < n; i++) k->place[k->g->order[i]] = i;
    return status_ok();
}

static void walk_fini(struct walk *k)
{
    mem_free(&k->place);
    mem_free(&k->values);
    mem_free(&k->params);
    mem_free(&k->error);
    mem_free(&k->w);
}

struct rows_job {
    const struct gptq *g;
    struct quant_format f;
    const float *rows;
    const struct quant_block *out;
    atomic_bool failed;
};

/* Quantizes at most LANES outputs. */
static void rows_piece(void *ctx, size_t begin, size_t end)
{
    struct rows_job *j = ctx;
    struct walk k = {.g = j->g, .f = j->f, .out = j->out, .row0 = begin, .n_rows = end - begin};
    const struct status st = gptq_walk_init(&k);
    if (status_failed(&st)) {
        atomic_store(&j->failed, true);
    } else {
        load_rows(&k, j->rows);
        const size_t n_groups = j->g->options.act_order ? quant_groups(j->f, j->g->n) : 0;
        for (size_t i = 0; i < n_groups; i++) fit_group(&k, i);
        walk_columns(&k);
    }
    walk_fini(&k);
}

struct status gptq_rows(const struct gptq *g, struct quant_format f, const float *rows,
                        size_t n_rows, const struct quant_block *out)
{
    struct rows_job j = {.g = g, .f = f, .rows = rows, .out = out};
    share_run(g->team, n_rows, LANES, rows_piece, &j);
    if (!j.failed) return status_ok();
    return status_make(STATUS_MEMORY, "GPTQ of %u inputs: no memory", g->n);
}

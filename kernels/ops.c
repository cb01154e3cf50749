/* The ops. An op runs on the table's device if there is one, else on the threads of the team (a few
 * small ops on the calling thread alone). This file and ops_*.c define the units into which an op
 * is divided, and the cost of a unit. */
#include "kernels/ops.h"

#include "kernels/body.h"
#include "kernels/device_ops.h"
#include "kernels/elementary.h"
#include "kernels/linear_strips.h"

#include <assert.h>

enum { EXP_COST = 8 /* an exp or a division, in multiply-adds */ };

struct linear_job {
    const struct kern_table *k;
    const struct linear_args *args;
    size_t n_args;
    bool leafy;
};

static void linear_part(const void *job_, struct part part)
{
    const struct linear_job *job = job_;
    for (size_t i = 0; i < job->n_args; i++) {
        const struct linear_args *a = &job->args[i];
        for (size_t g = 0; g < a->n_groups; g++) {
            const struct linear_group *group = &a->groups[g];
            linear_slice_fn *run = slice_of(job->k, group->w, job->leafy);
            for (size_t row = 0; row < group->n_rows; row += LINEAR_ROWS) {
                const struct strip s = strip_of(a, group, row, 0);
                struct linear_slice slice = {.group = g, .row0 = row, .row1 = row + s.n_rows};
                if (strip_take(&part, &s, &slice.panel0, &slice.panel1)) run(a, &slice);
            }
        }
    }
}

static uint64_t linear_cost(const struct linear_args *a)
{
    uint64_t cost = 0;
    for (size_t g = 0; g < a->n_groups; g++) {
        for (size_t row = 0; row < a->groups[g].n_rows; row += LINEAR_ROWS) {
            const struct strip s = strip_of(a, &a->groups[g], row, 0);
            cost += s.n_units * s.unit_cost;
        }
    }
    return cost;
}

void op_step_begin(const struct kern_table *k, const struct seq_rows *seqs, size_t n_seqs,
                   size_t n_rows)
{
    if (k->device != NULL) device_ops_of(k->device)->step_begin(k->device, seqs, n_seqs, n_rows);
}

void op_step_part(const struct kern_table *k, size_t row0, size_t n_rows)
{
    if (k->device != NULL) device_ops_of(k->device)->step_part(k->device, row0, n_rows);
}

void op_linears(const struct kern_table *k, const struct linear_args *a, size_t n)
{
    if (k->device != NULL) {
        device_ops_of(k->device)->linears(k->device, a, n);
        return;
    }
    uint64_t cost = 0;
    for (size_t i = 0; i < n; i++) cost += linear_cost(&a[i]);
    const struct linear_job job = {k, a, n, false};
    if (cost > 0) part_run(k->team, cost, linear_part, &job);
}

void op_linear(const struct kern_table *k, const struct linear_args *a)
{
    op_linears(k, a, 1);
}

void op_linear_leaf(const struct kern_table *k, const struct linear_args *a)
{
    if (k->device != NULL) {
        device_ops_of(k->device)->linear_leaf(k->device, a);
        return;
    }
    if (a->n_groups == 0) return;
    const struct packed *w = a->groups[0].w;
    assert(w->leaf > 0 && !a->adds);
    for (size_t g = 0; a->sums != NULL && g < a->n_groups; g++) {
        const struct linear_group *group = &a->groups[g];
        for (size_t row = group->row0; row < group->row0 + group->n_rows; row++)
            a->sums[row * ((size_t)w->n_out + 1) + w->n_out] = 0;
    }
    const struct linear_job job = {k, a, 1, true};
    part_run(k->team, linear_cost(a), linear_part, &job);
}

struct quantize_job {
    const struct kern_table *k;
    const float *x;
    size_t x_stride, n_rows, n;
    const struct quant_rows *out;
};

static void quantize_part(const void *job_, struct part part)
{
    const struct quantize_job *job = job_;
    size_t row0, row1;
    if (!part_take(&part, job->n_rows, job->n + 1, &row0, &row1)) return;
    struct quant_rows one = *job->out;
    const size_t n_groups = (job->n + one.group - 1) / one.group, row_groups = one.n_groups;
    one.n_groups = n_groups;
    for (size_t row = row0; row < row1; row++) {
        const size_t i = row * row_groups;
        one.codes = job->out->codes + i * one.group;
        one.scales = job->out->scales + i;
        one.sums = job->out->sums + i;
        job->k->quantize_row(job->x + row * job->x_stride, job->n, &one, 0);
    }
}

void op_quantize_rows(const struct kern_table *k, const float *x, size_t x_stride, size_t n_rows,
                      size_t n, const struct quant_rows *out)
{
    if (k->device != NULL) {
        device_ops_of(k->device)->quantize_rows(k->device, x, x_stride, n_rows, n, out);
        return;
    }
    const struct quantize_job job = {k, x, x_stride, n_rows, n, out};
    part_run(k->team, (uint64_t)n_rows * (n + 1), quantize_part, &job);
}

struct grid_job {
    const struct kern_table *k;
    const struct grid_args *a;
};

static void grid_part(const void *job_, struct part part)
{
    const struct grid_job *job = job_;
    const struct grid_args *a = job->a;
    size_t row0, row1;
    if (!part_take(&part, a->n_rows, a->n_out + 1, &row0, &row1)) return;
    for (size_t row = row0; row < row1; row++) {
        const int64_t *sums = a->sums + row * (a->n_out + 1);
        const int64_t room = INT32_MAX - (int64_t)a->bad[row], n_bad = sums[a->n_out];
        float *y = a->y + row * a->n_out;
        if (a->adds) {
            job->k->grid_add(sums, a->n_out, a->grid_bits, y);
        } else {
            job->k->grid_to_f32(sums, a->n_out, a->grid_bits, y);
        }
        a->bad[row] = n_bad > room ? INT32_MAX : (int32_t)(a->bad[row] + n_bad);
    }
}

void op_grid(const struct kern_table *k, const struct grid_args *a)
{
    if (k->device != NULL) {
        device_ops_of(k->device)->grid(k->device, a);
        return;
    }
    const struct grid_job job = {k, a};
    part_run(k->team, (uint64_t)a->n_rows * (a->n_out + 1), grid_part, &job);
}

struct norm_job {
    const struct kern_table *k;
    const struct norm_args *a;
    uint64_t row_cost;
};

static void norm_part(const void *job_, struct part part)
{
    const struct norm_job *job = job_;
    const struct norm_args *a = job->a;
    size_t row0, row1;
    if (!part_take(&part, a->n_rows, job->row_cost, &row0, &row1)) return;
    for (size_t row = row0; row < row1; row++) {
        float *y = a->y + row * a->n;
        if (a->bias != NULL)
            job->k->layernorm(a->x + row * a->n, a->w, a->bias, a->n, a->eps, y);
        else
            job->k->rmsnorm(a->x + row * a->n, a->w, a->n, a->eps, y);
        if (a->codes != NULL) job->k->quantize_row(y, a->n, a->codes, row);
    }
}

void op_rmsnorm(const struct kern_table *k, const struct norm_args *a)
{
    if (k->device != NULL) {
        device_ops_of(k->device)->rmsnorm(k->device, a);
        return;
    }
    const struct norm_job job = {k, a, (uint64_t)(a->n + 1) * (a->codes != NULL ? 2 : 1)};
    part_run(k->team, a->n_rows * job.row_cost, norm_part, &job);
}

struct swiglu_job {
    const struct kern_table *k;
    const struct swiglu_args *a;
};

enum { LIMIT_BLOCK = 256 }; /* columns at a time */

/* y [n] = min(activation(g), limit) * u. The kernel gets ones as its second factor, by which it
 * multiplies exactly; n is at most LIMIT_BLOCK. */
static void gate_capped(const struct swiglu_job *job, const float *g, const float *u, size_t n,
                        float *y)
{
    const float most = job->a->limit;
    float ones[LIMIT_BLOCK];
    for (size_t i = 0; i < LIMIT_BLOCK; i++) ones[i] = 1;
    kern_gate(job->k, job->a->kind, g, ones, n, y);
    for (size_t i = 0; i < n; i++) y[i] = (most < y[i] ? most : y[i]) * u[i];
}

/* y = the gated product of gate and up, within the limit. */
static void swiglu_limited(const struct swiglu_job *job, const float *gate, const float *up,
                           float *y)
{
    const float most = job->a->limit;
    const bool caps = job->a->caps;
    float g[LIMIT_BLOCK], u[LIMIT_BLOCK];
    for (size_t i0 = 0; i0 < job->a->n; i0 += LIMIT_BLOCK) {
        const size_t rest = job->a->n - i0, n = rest < LIMIT_BLOCK ? rest : LIMIT_BLOCK;
        for (size_t i = 0; i < n; i++) {
            const float below = most < up[i0 + i] ? most : up[i0 + i];
            g[i] = most < gate[i0 + i] && !caps ? most : gate[i0 + i];
            u[i] = -most > below ? -most : below;
        }
        if (caps)
            gate_capped(job, g, u, n, y + i0);
        else
            kern_gate(job->k, job->a->kind, g, u, n, y + i0);
    }
}

static void swiglu_part(const void *job_, struct part part)
{
    const struct swiglu_job *job = job_;
    const struct swiglu_args *a = job->a;
    size_t row0, row1;
    if (!part_take(&part, a->n_rows, a->n * EXP_COST + 1, &row0, &row1)) return;
    for (size_t row = row0; row < row1; row++) {
        const float *gate = a->gate + row * a->stride, *up = a->up + row * a->stride;
        float *y = a->y + row * a->y_stride;
        if (a->limit > 0)
            swiglu_limited(job, gate, up, y);
        else
            kern_gate(job->k, a->kind, gate, up, a->n, y);
    }
}

void op_swiglu(const struct kern_table *k, const struct swiglu_args *a)
{
    if (k->device != NULL) {
        assert(a->kind != GATE_GEGLU_EXACT && a->limit == 0);
        device_ops_of(k->device)->swiglu(k->device, a);
        return;
    }
    const struct swiglu_job job = {k, a};
    part_run(k->team, (uint64_t)a->n_rows * (a->n * EXP_COST + 1), swiglu_part, &job);
}

struct add_job {
    const struct kern_table *k;
    float *h;
    const float *x;
    size_t n;
};

static void add_part(const void *job_, struct part part)
{
    const struct add_job *job = job_;
    size_t i0, i1;
    if (part_take(&part, job->n, 1, &i0, &i1)) job->k->add(job->h + i0, job->x + i0, i1 - i0);
}

void op_add(const struct kern_table *k, float *h, const float *x, size_t n)
{
    if (k->device != NULL) {
        device_ops_of(k->device)->add(k->device, h, x, n);
        return;
    }
    const struct add_job job = {k, h, x, n};
    part_run(k->team, n, add_part, &job);
}

struct axpy_job {
    const struct kern_table *k;
    float w;
    const float *x;
    size_t n;
    float *acc;
};

static void axpy_part(const void *job_, struct part part)
{
    const struct axpy_job *job = job_;
    size_t i0, i1;
    if (part_take(&part, job->n, 1, &i0, &i1))
        job->k->axpy(job->w, job->x + i0, i1 - i0, job->acc + i0);
}

void op_axpy(const struct kern_table *k, float w, const float *x, size_t n, float *acc)
{
    if (k->device != NULL) {
        device_ops_of(k->device)->axpy(k->device, w, x, n, acc);
        return;
    }
    const struct axpy_job job = {k, w, x, n, acc};
    part_run(k->team, n, axpy_part, &job);
}

struct scale_job {
    float *x, w;
    size_t n;
};

static void scale_part(const void *job_, struct part part)
{
    const struct scale_job *job = job_;
    size_t i0, i1;
    if (!part_take(&part, job->n, 1, &i0, &i1)) return;
    for (size_t i = i0; i < i1; i++) job->x[i] *= job->w;
}

void op_scale(const struct kern_table *k, float *x, float w, size_t n)
{
    if (k->device != NULL) {
        device_ops_of(k->device)->scale(k->device, x, w, n);
        return;
    }
    const struct scale_job job = {x, w, n};
    part_run(k->team, n, scale_part, &job);
}

struct router_job {
    const struct kern_table *k;
    const struct router_args *a;
    size_t n_rows;
};

static uint64_t router_cost(const struct router_args *a)
{
    return (uint64_t)a->n_experts * (EXP_COST + a->n_chosen) + 1;
}

static void router_part(const void *job_, struct part part)
{
    const struct router_job *job = job_;
    size_t row0, row1;
    if (!part_take(&part, job->n_rows, router_cost(job->a), &row0, &row1)) return;
    for (size_t row = row0; row < row1; row++) job->k->router(job->a, row);
}

void op_router(const struct kern_table *k, const struct router_args *a, size_t n_rows)
{
    if (k->device != NULL) {
        device_ops_of(k->device)->router(k->device, a, n_rows);
        return;
    }
    const struct router_job job = {k, a, n_rows};
    part_run(k->team, n_rows * router_cost(a), router_part, &job);
}

void op_rope_table(const struct kern_table *k, const struct rope_table_args *a)
{
    if (k->device != NULL) {
        device_ops_of(k->device)->rope_table(k->device, a);
        return;
    }
    const size_t half = a->rot / 2;
    for (size_t t = 0; t < a->n_rows; t++) {
        for (size_t i = 0; i < half; i++) {
            float s, c;
            el_sincosf((float)a->positions[t] * a->inv_freq[i], &s, &c);
            a->cos[t * half + i] = c * a->scale;
            a->sin[t * half + i] = s * a->scale;
        }
    }
}

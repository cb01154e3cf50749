/* The threaded ops that move and mix whole rows between tokens and experts. */
#include "kernels/ops.h"

#include "kernels/part.h"

#include <string.h>

enum { CLAMPED_COST = 10 /* of one value of a clamped SwiGLU, in multiply-adds */ };

static void scatter_part(const void *job, struct part part)
{
    const struct scatter_args *a = job;
    size_t i, end;
    if (!part_take(&part, a->n_slots, a->width, &i, &end)) return;
    for (; i < end; i++) {
        if (a->slots[i] < 0) continue;
        memcpy(a->to + (size_t)a->slots[i] * a->width, a->x + i / a->per_row * a->width,
               a->width * sizeof *a->to);
    }
}

void op_scatter_rows(const struct kern_table *k, const struct scatter_args *a)
{
    part_run(k->team, (uint64_t)a->n_slots * a->width, scatter_part, a);
}

struct clamped_job {
    const struct kern_table *k;
    float *gate;
    const float *up;
    size_t n;
    float alpha, limit;
};

static void clamped_part(const void *job_, struct part part)
{
    const struct clamped_job *job = job_;
    size_t i0, i1;
    if (part_take(&part, job->n, CLAMPED_COST, &i0, &i1))
        job->k->swiglu_clamped(job->gate + i0, job->up + i0, i1 - i0, job->alpha, job->limit,
                               job->gate + i0);
}

void op_swiglu_clamped(const struct kern_table *k, float *gate, const float *up, size_t n,
                       float alpha, float limit)
{
    const struct clamped_job job = {k, gate, up, n, alpha, limit};
    part_run(k->team, (uint64_t)n * CLAMPED_COST, clamped_part, &job);
}

struct bias_job {
    const struct kern_table *k;
    float *y;
    const float *bias;
    size_t n_rows, n;
};

static void bias_part(const void *job_, struct part part)
{
    const struct bias_job *job = job_;
    size_t row0, row1;
    if (!part_take(&part, job->n_rows, job->n + 1, &row0, &row1)) return;
    for (size_t row = row0; row < row1; row++)
        job->k->add(job->y + row * job->n, job->bias, job->n);
}

void op_add_bias(const struct kern_table *k, float *y, const float *bias, size_t n_rows, size_t n)
{
    const struct bias_job job = {k, y, bias, n_rows, n};
    part_run(k->team, (uint64_t)n_rows * (n + 1), bias_part, &job);
}

struct combine_job {
    const struct kern_table *k;
    const struct combine_args *args;
};

static void combine_part(const void *job_, struct part part)
{
    const struct combine_job *job = job_;
    const struct combine_args *a = job->args;
    size_t t, end;
    if (!part_take(&part, a->n_rows, a->width * a->n_chosen, &t, &end)) return;
    for (; t < end; t++) {
        float *acc = a->out + t * a->width;
        memset(acc, 0, a->width * sizeof *acc);
        for (size_t i = t * a->n_chosen; i < (t + 1) * a->n_chosen; i++) {
            if (a->slots[i] < 0) continue;
            job->k->axpy(a->weights[i], a->y + (size_t)a->slots[i] * a->y_stride, a->width, acc);
        }
    }
}

void op_combine_rows(const struct kern_table *k, const struct combine_args *a)
{
    const struct combine_job job = {k, a};
    part_run(k->team, (uint64_t)a->n_rows * a->width * a->n_chosen, combine_part, &job);
}

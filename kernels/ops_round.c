/* Rounds rows of activations to 8 bits with one scale for a whole row, as BitNet's linears do. */
#include "kernels/ops.h"

#include "kernels/part.h"

#include <assert.h>

enum { ROUND_COST = 4 /* multiply-adds of an element: a product, two roundings, a quotient */ };

/* Returns the bits of the largest |x|. As integers they are in the order of the numbers, with NaN
 * above infinity. */
static uint32_t largest_of(const float *x, size_t n)
{
    uint32_t most = 0;
    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = f32_bits(x[i]) & 0x7FFFFFFFu;
        most = bits > most ? bits : most;
    }
    return most;
}

/* Rounds x, |x| < 2^22, to the nearest integer, ties to even: from 2^23 on floats are integers. */
static inline float nearest(float x)
{
    const float shift = 0x1.8p23f;
    return (x + shift) - shift;
}

static void round_row(float *x, size_t n, float largest)
{
    const float r = 127.0f / (largest < 1e-5f ? 1e-5f : largest);
    for (size_t i = 0; i < n; i++) {
        const float q = nearest(x[i] * r);
        x[i] = (q < -128.0f ? -128.0f : q > 127.0f ? 127.0f : q) / r;
    }
}

static void round_part(const void *job, struct part part)
{
    const struct round_rows *a = job;
    size_t t, end;
    if (!part_take(&part, a->n_rows, a->n * ROUND_COST, &t, &end)) return;
    for (; t < end; t++) {
        float *x = a->x + t * a->n;
        uint32_t most = a->maxima == NULL ? largest_of(x, a->n) : 0;
        for (size_t i = 0; i < a->n_maxima; i++) {
            const uint32_t other = a->maxima[t * a->stride + i];
            most = other > most ? other : most;
        }
        round_row(x, a->n, f32_from_bits(most));
    }
}

void op_round_rows(const struct kern_table *k, const struct round_rows *a)
{
    assert(k->device == NULL);
    part_run(k->team, (uint64_t)a->n_rows * a->n * ROUND_COST, round_part, a);
}

struct maxima_job {
    const float *x;
    size_t n_rows, n;
    uint32_t *maxima;
    size_t stride;
};

static void maxima_part(const void *job_, struct part part)
{
    const struct maxima_job *job = job_;
    size_t t, end;
    if (!part_take(&part, job->n_rows, job->n, &t, &end)) return;
    for (; t < end; t++) job->maxima[t * job->stride] = largest_of(job->x + t * job->n, job->n);
}

void op_row_maxima(const struct kern_table *k, const float *x, size_t n_rows, size_t n,
                   uint32_t *maxima, size_t stride)
{
    const struct maxima_job job = {x, n_rows, n, maxima, stride};
    assert(k->device == NULL);
    part_run(k->team, (uint64_t)n_rows * n, maxima_part, &job);
}

/* The threaded ops of hyper-connections (several residual streams), and the rotation of the ends of
 * heads. Called by model/stage_streams.c and model/stage_compressed.c. */
#include "kernels/elementary.h"
#include "kernels/ops.h"
#include "kernels/part.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum {
    STREAMS_MOST = 8,
    STREAMS_EXP_COST = 16, /* cost of an exp, in multiply-adds */
    STREAMS_BLOCK = 256,   /* elements of a stream that are added at a time */
    ROPE_END_MOST = 1024,
};

/* Divides each element of a matrix [n, n] by the sum of its row (by_row) or column, plus eps. */
static void normalise(float *comb, uint32_t n, bool by_row, float eps)
{
    const uint32_t step = by_row ? 1 : n, next = by_row ? n : 1;
    for (uint32_t i = 0; i < n; i++) {
        float *line = comb + i * next, sum = 0;
        for (uint32_t j = 0; j < n; j++) sum += line[j * step];
        for (uint32_t j = 0; j < n; j++) line[j * step] /= sum + eps;
    }
}

/* line [n] = its softmax, plus eps. */
static void soften(float *line, uint32_t n, float eps)
{
    float max = line[0], sum = 0;
    for (uint32_t j = 1; j < n; j++) max = line[j] > max ? line[j] : max;
    for (uint32_t j = 0; j < n; j++) {
        line[j] = el_expf(line[j] - max);
        sum += line[j];
    }
    for (uint32_t j = 0; j < n; j++) line[j] = line[j] / sum + eps;
}

static float sigmoid_of(float x, float scale, float base)
{
    return 1.0f / (1.0f + el_expf(-(x * scale + base)));
}

static void weigh_row(const struct stream_weights_args *a, size_t row)
{
    const uint32_t n = a->n;
    const float *mix = a->mix + row * (a->comb != NULL ? (2 + n) * n : n);
    for (uint32_t j = 0; j < n; j++)
        a->pre[row * n + j] = sigmoid_of(mix[j], a->scale[0], a->base[j]) + a->eps;
    if (a->comb == NULL) return;
    float *comb = a->comb + row * n * n;
    for (uint32_t j = 0; j < n; j++)
        a->post[row * n + j] = 2.0f * sigmoid_of(mix[n + j], a->scale[1], a->base[n + j]);
    for (uint32_t i = 0; i < n * n; i++)
        comb[i] = mix[2 * n + i] * a->scale[2] + a->base[2 * n + i];
    for (uint32_t j = 0; j < n; j++) soften(comb + j * n, n, a->eps);
    normalise(comb, n, false, a->eps);
    for (uint32_t i = 1; i < a->iterations; i++) {
        normalise(comb, n, true, a->eps);
        normalise(comb, n, false, a->eps);
    }
}

static uint64_t weights_cost(const struct stream_weights_args *a)
{
    const uint64_t n = a->n;
    return (2 + n) * n * STREAMS_EXP_COST + (a->comb != NULL ? 4 * n * n * a->iterations : 0);
}

static void weights_part(const void *job, struct part part)
{
    const struct stream_weights_args *a = job;
    size_t row, end;
    if (!part_take(&part, a->n_rows, weights_cost(a), &row, &end)) return;
    for (; row < end; row++) weigh_row(a, row);
}

void op_stream_weights(const struct kern_table *k, const struct stream_weights_args *a)
{
    assert(k->device == NULL && a->n <= STREAMS_MOST);
    part_run(k->team, a->n_rows * weights_cost(a), weights_part, a);
}

struct stream_sum_job {
    const struct kern_table *k;
    const struct stream_sum_args *a;
};

static void sum_part(const void *job_, struct part part)
{
    const struct stream_sum_job *job = job_;
    const struct stream_sum_args *a = job->a;
    const size_t width = a->width;
    size_t row, end;
    if (!part_take(&part, a->n_rows, a->n * width, &row, &end)) return;
    for (; row < end; row++) {
        const size_t from = a->rows != NULL ? (size_t)a->rows[row] : row;
        const float *h = a->h + from * a->n * width;
        float *y = a->y + row * width;
        memset(y, 0, width * sizeof *y);
        for (uint32_t j = 0; j < a->n; j++)
            job->k->axpy(a->pre[row * a->n + j], h + j * width, width, y);
    }
}

void op_stream_sum(const struct kern_table *k, const struct stream_sum_args *a)
{
    const struct stream_sum_job job = {k, a};
    assert(k->device == NULL);
    part_run(k->team, (uint64_t)a->n_rows * a->n * a->width, sum_part, &job);
}

struct stream_add_job {
    const struct kern_table *k;
    const struct stream_add_args *a;
};

/* Mixes elements [i, i + n) of a row's streams and adds the block's output. */
static void add_block(const struct stream_add_job *job, size_t row, size_t i, size_t n)
{
    const struct stream_add_args *a = job->a;
    const float *comb = a->comb + row * a->n * a->n, *post = a->post + row * a->n;
    float *h = a->h + row * a->n * a->width + i, mixed[STREAMS_MOST][STREAMS_BLOCK];
    for (uint32_t k = 0; k < a->n; k++) {
        memset(mixed[k], 0, n * sizeof mixed[k][0]);
        for (uint32_t j = 0; j < a->n; j++)
            job->k->axpy(comb[j * a->n + k], h + j * a->width, n, mixed[k]);
        job->k->axpy(post[k], a->y + row * a->width + i, n, mixed[k]);
    }
    for (uint32_t k = 0; k < a->n; k++) memcpy(h + k * a->width, mixed[k], n * sizeof mixed[k][0]);
}

static void add_streams_part(const void *job_, struct part part)
{
    const struct stream_add_job *job = job_;
    const struct stream_add_args *a = job->a;
    size_t row, end;
    if (!part_take(&part, a->n_rows, (a->n + 1) * a->n * a->width, &row, &end)) return;
    for (; row < end; row++) {
        for (size_t i = 0; i < a->width; i += STREAMS_BLOCK)
            add_block(job, row, i, a->width - i < STREAMS_BLOCK ? a->width - i : STREAMS_BLOCK);
    }
}

void op_stream_add(const struct kern_table *k, const struct stream_add_args *a)
{
    const struct stream_add_job job = {k, a};
    assert(k->device == NULL && a->n <= STREAMS_MOST);
    part_run(k->team, (uint64_t)a->n_rows * (a->n + 1) * a->n * a->width, add_streams_part, &job);
}

struct rope_ends_job {
    const struct kern_table *k;
    const struct rope_ends_args *a;
};

void rope_end(const struct kern_table *k, float *x, const float *cos, const float *sin, size_t rot)
{
    float halves[ROPE_END_MOST];
    for (size_t i = 0; i < rot / 2; i++) {
        halves[i] = x[2 * i];
        halves[rot / 2 + i] = x[2 * i + 1];
    }
    k->rope(halves, cos, sin, rot);
    for (size_t i = 0; i < rot / 2; i++) {
        x[2 * i] = halves[i];
        x[2 * i + 1] = halves[rot / 2 + i];
    }
}

static void rope_ends_part(const void *job_, struct part part)
{
    const struct rope_ends_job *job = job_;
    const struct rope_ends_args *a = job->a;
    const size_t half = a->rot / 2;
    float sin[ROPE_END_MOST / 2];
    size_t row, end;
    if (!part_take(&part, a->n_rows, a->n_heads * a->rot, &row, &end)) return;
    for (; row < end; row++) {
        for (size_t i = 0; i < half; i++)
            sin[i] = a->back ? -a->sin[row * half + i] : a->sin[row * half + i];
        for (size_t h = 0; h < a->n_heads; h++) {
            float *x = a->x + (row * a->n_heads + h) * a->width + a->width - a->rot;
            rope_end(job->k, x, a->cos + row * half, sin, a->rot);
        }
    }
}

void op_rope_ends(const struct kern_table *k, const struct rope_ends_args *a)
{
    const struct rope_ends_job job = {k, a};
    assert(k->device == NULL && a->rot <= ROPE_END_MOST);
    part_run(k->team, (uint64_t)a->n_rows * a->n_heads * a->rot, rope_ends_part, &job);
}

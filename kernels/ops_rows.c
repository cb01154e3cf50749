/* The threaded ops on whole rows: moving and combining rows of tokens and experts, norms over
 * heads of several ranks, rotary parts, gates, clamps and scales. */
#include "kernels/ops.h"

#include "kernels/device_ops.h"
#include "kernels/elementary.h"
#include "kernels/part.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { CLAMPED_COST = 10 /* multiply-adds of a value of softcap, xIELU, GELU, clamped SwiGLU */ };

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
    if (k->device != NULL) {
        device_ops_of(k->device)->scatter_rows(k->device, a);
        return;
    }
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
    if (k->device != NULL) {
        device_ops_of(k->device)->swiglu_clamped(k->device, gate, up, n, alpha, limit);
        return;
    }
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
    if (k->device != NULL) {
        device_ops_of(k->device)->add_bias(k->device, y, bias, n_rows, n);
        return;
    }
    const struct bias_job job = {k, y, bias, n_rows, n};
    part_run(k->team, (uint64_t)n_rows * (n + 1), bias_part, &job);
}

struct choices_job {
    const struct kern_table *k;
    const struct combine_choices *args;
};

/* Those choices of a token that have a result: their rows and weights, and the sum of their
 * counters. */
struct chosen_rows {
    const float *rows[ROUTER_CHOSEN_MAX];
    float weights[ROUTER_CHOSEN_MAX];
    size_t n;
    int64_t n_bad;
};

static void find_chosen(const struct combine_choices *a, size_t token, struct chosen_rows *out)
{
    out->n = 0;
    out->n_bad = 0;
    for (size_t i = token * a->n_chosen; i < (token + 1) * a->n_chosen; i++) {
        if (a->slots[i] < 0) continue;
        const size_t slot = (size_t)a->slots[i];
        out->rows[out->n] = a->y + slot * a->y_stride;
        out->weights[out->n++] = a->weights[i];
        if (a->bad != NULL) out->n_bad += a->bad[slot * a->bad_stride];
    }
}

static void combine_token(const struct kern_table *k, const struct combine_choices *a, size_t token)
{
    struct chosen_rows chosen;
    find_chosen(a, token, &chosen);
    const struct weighted_rows w = {.rows = chosen.rows,
                                    .weights = chosen.weights,
                                    .n_rows = chosen.n,
                                    .n = a->width,
                                    .grid_bits = a->grid_bits};
    if (a->sums != NULL) {
        int64_t *sums = a->sums + token * (a->width + 1);
        sums[a->width] += chosen.n_bad + k->weighted_add(&w, sums);
    } else {
        const int64_t n_bad = k->weighted_to_f32(&w, a->out + token * a->width);
        a->marks[2 * token] += (int32_t)(chosen.n_bad + n_bad);
    }
}

static void choices_part(const void *job_, struct part part)
{
    const struct choices_job *job = job_;
    const struct combine_choices *a = job->args;
    size_t t, end;
    if (!part_take(&part, a->n_rows, a->width * a->n_chosen, &t, &end)) return;
    for (; t < end; t++) combine_token(job->k, a, t);
}

void op_combine_choices(const struct kern_table *k, const struct combine_choices *a)
{
    if (k->device != NULL) {
        device_ops_of(k->device)->combine_choices(k->device, a);
        return;
    }
    const struct choices_job job = {k, a};
    part_run(k->team, (uint64_t)a->n_rows * a->width * a->n_chosen, choices_part, &job);
}

struct square_sums_job {
    const struct kern_table *k;
    const struct square_sums_args *a;
};

static void square_sums_part(const void *job_, struct part part)
{
    const struct square_sums_job *job = job_;
    const struct square_sums_args *a = job->a;
    const size_t width = a->width > 0 ? a->width : a->n_heads * a->head_dim;
    size_t t, end;
    if (!part_take(&part, a->n_rows, a->n_heads * a->head_dim, &t, &end)) return;
    for (; t < end; t++) {
        for (size_t h = 0; h < a->n_heads; h++) {
            const size_t first = h * a->head_dim, rest = width - first;
            const float *head = a->x + t * width + first;
            const size_t n = rest < a->head_dim ? rest : a->head_dim;
            a->sums[t * a->stride + h] = f32_bits(job->k->square_sum(head, n));
        }
    }
}

void op_head_square_sums(const struct kern_table *k, const struct square_sums_args *a)
{
    if (k->device != NULL) {
        assert(a->width == 0);
        device_ops_of(k->device)->head_square_sums(k->device, a);
        return;
    }
    const struct square_sums_job job = {k, a};
    part_run(k->team, (uint64_t)a->n_rows * a->n_heads * a->head_dim, square_sums_part, &job);
}

static void norm_whole_part(const void *job, struct part part)
{
    const struct norm_whole *a = job;
    size_t t, end;
    if (!part_take(&part, a->n_rows, a->n, &t, &end)) return;
    for (; t < end; t++) {
        float sum = 0.0f, *x = a->x + t * a->n;
        for (size_t i = 0; i < a->n_sums; i++) sum += f32_from_bits(a->sums[t * a->stride + i]);
        const float r = 1.0f / sqrtf(sum / (float)a->n_whole + a->eps);
        for (size_t i = 0; i < a->n; i++) x[i] = (x[i] * r) * a->w[i];
    }
}

void op_norm_whole(const struct kern_table *k, const struct norm_whole *a)
{
    if (k->device != NULL) {
        device_ops_of(k->device)->norm_whole(k->device, a);
        return;
    }
    part_run(k->team, (uint64_t)a->n_rows * a->n, norm_whole_part, a);
}

struct clamp_job {
    float *x, limit;
    size_t n;
};

static void clamp_part(const void *job_, struct part part)
{
    const struct clamp_job *job = job_;
    size_t i, end;
    if (!part_take(&part, job->n, 1, &i, &end)) return;
    for (; i < end; i++) {
        if (job->x[i] > job->limit) job->x[i] = job->limit;
        if (job->x[i] < -job->limit) job->x[i] = -job->limit;
    }
}

void op_clamp(const struct kern_table *k, float *x, float limit, size_t n)
{
    if (k->device != NULL) {
        device_ops_of(k->device)->clamp(k->device, x, limit, n);
        return;
    }
    const struct clamp_job job = {x, limit, n};
    part_run(k->team, n, clamp_part, &job);
}

struct softcap_job {
    const struct kern_table *k;
    float *x, cap;
    size_t n;
};

static void softcap_part(const void *job_, struct part part)
{
    const struct softcap_job *job = job_;
    size_t i, end;
    if (part_take(&part, job->n, CLAMPED_COST, &i, &end))
        job->k->softcap(job->x + i, end - i, job->cap);
}

void op_softcap(const struct kern_table *k, float *x, float cap, size_t n)
{
    if (k->device != NULL) {
        device_ops_of(k->device)->softcap(k->device, x, cap, n);
        return;
    }
    const struct softcap_job job = {k, x, cap, n};
    part_run(k->team, n * CLAMPED_COST, softcap_part, &job);
}

struct xielu_job {
    const struct kern_table *k;
    float *x;
    const float *law;
    size_t n;
};

static void xielu_part(const void *job_, struct part part)
{
    const struct xielu_job *job = job_;
    size_t i, end;
    if (part_take(&part, job->n, CLAMPED_COST, &i, &end))
        job->k->xielu(job->x + i, end - i, job->law);
}

void op_xielu(const struct kern_table *k, float *x, const float law[4], size_t n)
{
    if (k->device != NULL) {
        device_ops_of(k->device)->xielu(k->device, x, law, n);
        return;
    }
    const struct xielu_job job = {k, x, law, n};
    part_run(k->team, n * CLAMPED_COST, xielu_part, &job);
}

struct gelu_job {
    const struct kern_table *k;
    float *x;
    size_t n;
};

static void gelu_part(const void *job_, struct part part)
{
    const struct gelu_job *job = job_;
    size_t i, end;
    if (part_take(&part, job->n, CLAMPED_COST, &i, &end)) job->k->gelu(job->x + i, end - i);
}

void op_gelu(const struct kern_table *k, float *x, size_t n)
{
    const struct gelu_job job = {k, x, n};
    assert(k->device == NULL);
    part_run(k->team, n * CLAMPED_COST, gelu_part, &job);
}

struct relu2_job {
    float *x;
    const float *up; /* NULL: none */
    size_t n;
};

static void relu2_part(const void *job_, struct part part)
{
    const struct relu2_job *job = job_;
    size_t i, end;
    if (!part_take(&part, job->n, 1, &i, &end)) return;
    for (; i < end; i++) {
        const float x = job->x[i] < 0 ? 0 : job->x[i];
        job->x[i] = job->up != NULL ? (x * x) * job->up[i] : x * x;
    }
}

void op_relu2(const struct kern_table *k, float *x, size_t n)
{
    const struct relu2_job job = {x, NULL, n};
    assert(k->device == NULL);
    part_run(k->team, n, relu2_part, &job);
}

void op_relu2_gate(const struct kern_table *k, float *gate, const float *up, size_t n)
{
    const struct relu2_job job = {gate, up, n};
    assert(k->device == NULL);
    part_run(k->team, n, relu2_part, &job);
}

struct sigmoid_rows_job {
    float *x;
    const float *gate;
    size_t n_rows, n;
};

static void sigmoid_rows_part(const void *job_, struct part part)
{
    const struct sigmoid_rows_job *job = job_;
    size_t t, end;
    if (!part_take(&part, job->n_rows, job->n, &t, &end)) return;
    for (; t < end; t++) {
        const float scale = 1.0f / (1.0f + el_expf(-job->gate[t]));
        for (size_t i = 0; i < job->n; i++) job->x[t * job->n + i] *= scale;
    }
}

void op_sigmoid_rows(const struct kern_table *k, float *x, const float *gate, size_t n_rows,
                     size_t n)
{
    if (k->device != NULL) {
        device_ops_of(k->device)->sigmoid_rows(k->device, x, gate, n_rows, n);
        return;
    }
    const struct sigmoid_rows_job job = {x, gate, n_rows, n};
    part_run(k->team, (uint64_t)n_rows * n, sigmoid_rows_part, &job);
}

struct scale_rows_job {
    const float *x, *scale;
    size_t n_rows, n;
    float *y;
};

static void scale_rows_part(const void *job_, struct part part)
{
    const struct scale_rows_job *job = job_;
    size_t t, end;
    if (!part_take(&part, job->n_rows, job->n, &t, &end)) return;
    for (; t < end; t++) {
        for (size_t i = t * job->n; i < (t + 1) * job->n; i++)
            job->y[i] = job->x[i] * job->scale[t];
    }
}

void op_scale_rows(const struct kern_table *k, const float *x, const float *scale, size_t n_rows,
                   size_t n, float *y)
{
    assert(k->device == NULL);
    const struct scale_rows_job job = {x, scale, n_rows, n, y};
    part_run(k->team, (uint64_t)n_rows * n, scale_rows_part, &job);
}

struct rope_tails_job {
    const struct kern_table *k;
    const struct rope_tails *a;
};

static void rope_tails_part(const void *job_, struct part part)
{
    const struct rope_tails_job *job = job_;
    const struct rope_tails *a = job->a;
    const size_t half = a->rot / 2;
    size_t t, end;
    if (!part_take(&part, a->n_rows, a->n_heads * a->rot, &t, &end)) return;
    for (; t < end; t++) {
        for (size_t h = t * a->n_heads; h < (t + 1) * a->n_heads; h++) {
            const float *x = a->x + h * a->x_stride;
            float *out = a->out + h * a->out_stride;
            for (size_t i = 0; i < half; i++) {
                out[i] = a->pairs ? x[2 * i] : x[i];
                out[half + i] = a->pairs ? x[2 * i + 1] : x[half + i];
            }
            job->k->rope(out, a->cos + t * half, a->sin + t * half, a->rot);
        }
    }
}

void op_rope_tails(const struct kern_table *k, const struct rope_tails *a)
{
    if (k->device != NULL) {
        device_ops_of(k->device)->rope_tails(k->device, a);
        return;
    }
    const struct rope_tails_job job = {k, a};
    part_run(k->team, (uint64_t)a->n_rows * a->n_heads * a->rot, rope_tails_part, &job);
}

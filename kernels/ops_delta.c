/* The threaded ops of recurrent layers: the gated delta rule, from its projections to the inputs
 * of the output projection, and the gates of attention heads. */
#include "kernels/elementary.h"
#include "kernels/ops.h"
#include "kernels/part.h"
#include "kernels/state_tiles.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum {
    DELTA_CHANNEL_COST = 8, /* cost of a channel of the convolution, in multiply-adds */
    DELTA_ELEMENT_COST = 4, /* cost of a row and element of a state, in multiply-adds */
};

static const float unit_eps = 1e-6f;

struct delta_job {
    const struct kern_table *k;
    const struct delta_args *a;
};

/* Consecutive channels of one key head: of its q, its k or its v. */
struct channels {
    const struct head_view *from;
    size_t width; /* channels of a head */
    size_t first; /* first channel of this head */
};

static void list_channels(const struct delta_args *a, size_t head, struct channels out[3])
{
    const struct delta_shape *s = &a->shape;
    const size_t n_k = (size_t)s->n_heads * s->key_dim, n_v = (size_t)s->per_key * s->value_dim;
    out[0] = (struct channels){&a->q, s->key_dim, head * s->key_dim};
    out[1] = (struct channels){&a->k, s->key_dim, n_k + head * s->key_dim};
    out[2] = (struct channels){&a->v, n_v, 2 * n_k + head * n_v};
}

/* Returns row t of a sequence's inputs, counted from the sequence's first row in the step; a row
 * with negative t is in the state `past`. */
static const float *input_row(const struct delta_args *a, const struct seq_rows *seq,
                              const struct channels *c, size_t head, const float *past, int64_t t)
{
    const int64_t kept = (int64_t)a->shape.n_taps - 1;
    if (t < 0) return past + (size_t)(kept + t) * delta_channels(&a->shape) + c->first;
    return c->from->x + (seq->row0 + (size_t)t) * c->from->row_stride + head * c->from->head_stride;
}

/* Computes the convolution of one head's channels over the rows of a sequence, and the
 * convolution's state after them. */
static void convolve(const struct delta_job *job, const struct seq_rows *seq,
                     const struct channels *c, size_t head)
{
    const struct delta_args *a = job->a;
    const size_t n_taps = a->shape.n_taps, n = delta_channels(&a->shape);
    float *past = a->states.conv + (size_t)seq->slot * (n_taps - 1) * n;
    const float *rows[DELTA_TAPS_MAX];
    for (size_t j = 0; seq->pos0 == 0 && j + 1 < n_taps; j++)
        memset(past + j * n + c->first, 0, c->width * sizeof *past);
    for (size_t t = 0; t < seq->n_rows; t++) {
        for (size_t j = 0; j < n_taps; j++)
            rows[j] = input_row(a, seq, c, head, past, (int64_t)(t + j + 1) - (int64_t)n_taps);
        job->k->conv_silu(rows, n_taps, a->conv + c->first, n, c->width,
                          a->mixed + (seq->row0 + t) * n + c->first);
    }
    for (size_t j = 0; j + 1 < n_taps; j++) { /* a row moves to an earlier place, or is a new one */
        const int64_t t = (int64_t)(seq->n_rows + j + 1) - (int64_t)n_taps;
        memmove(past + j * n + c->first, input_row(a, seq, c, head, past, t),
                c->width * sizeof *past);
    }
}

/* Divides a head by its length and multiplies it by `scale`. */
static void make_unit(const struct kern_table *k, float *x, size_t n, float scale)
{
    const float r = 1.0f / sqrtf(k->square_sum(x, n) + unit_eps);
    for (size_t i = 0; i < n; i++) x[i] = (x[i] * r) * scale;
}

static float decay_of(const struct delta_shape *s, float rate, float x)
{
    if (!s->is_bounded) return el_expf(-(rate * el_softplusf(x)));
    return el_expf(s->least_log * (1.0f / (1.0f + el_expf(-(rate * x)))));
}

static void find_gates(const struct delta_args *a, size_t row, size_t head)
{
    const size_t n = a->shape.by_channel ? a->shape.key_dim : 1, per_key = a->shape.per_key;
    const float *raw_a = a->a.x + row * a->a.row_stride + head * a->a.head_stride;
    const float *raw_b = a->b.x + row * a->b.row_stride + head * a->b.head_stride;
    float *decays = a->gates + row * delta_gates(&a->shape);
    float *betas = decays + delta_decays(&a->shape);
    for (size_t i = 0; i < per_key; i++) {
        const size_t v = head * per_key + i;
        const float rate = el_expf(a->decay_log[v]);
        for (size_t j = 0; j < n; j++) {
            const float x = raw_a[i * n + j] + a->step_bias[v * n + j];
            decays[v * n + j] = decay_of(&a->shape, rate, x);
        }
        betas[v] = 1.0f / (1.0f + el_expf(-raw_b[i]));
    }
}

/* Computes q, k, v and the gates of a thread's key heads. */
static void inputs_part(const void *job_, struct part part)
{
    const struct delta_job *job = job_;
    const struct delta_args *a = job->a;
    const struct delta_shape *s = &a->shape;
    const size_t n = delta_channels(s), cost = n / s->n_heads * DELTA_CHANNEL_COST;
    for (size_t i = 0; i < a->n_seqs; i++) {
        const struct seq_rows *seq = &a->seqs[i];
        size_t head, end;
        if (!part_take(&part, s->n_heads, seq->n_rows * cost, &head, &end)) continue;
        for (; head < end; head++) {
            struct channels c[3];
            list_channels(a, head, c);
            for (int j = 0; j < 3; j++) convolve(job, seq, &c[j], head);
            for (size_t row = seq->row0; row < seq->row0 + seq->n_rows; row++) {
                float *x = a->mixed + row * n;
                make_unit(job->k, x + c[0].first, s->key_dim, a->query_scale);
                make_unit(job->k, x + c[1].first, s->key_dim, 1.0f);
                find_gates(a, row, head);
            }
        }
    }
}

static void delta_norm_part(const void *job_, struct part part)
{
    const struct delta_job *job = job_;
    const struct delta_args *a = job->a;
    const struct delta_shape *s = &a->shape;
    const size_t n = s->value_dim, n_v = delta_value_heads(s);
    size_t row, end;
    if (!part_take(&part, a->n_rows, n_v * n * DELTA_CHANNEL_COST, &row, &end)) return;
    for (; row < end; row++) {
        for (size_t v = 0; v < n_v; v++) {
            float *x = a->out + (row * n_v + v) * n;
            const float *z = a->z.x + row * a->z.row_stride + v / s->per_key * a->z.head_stride +
                             v % s->per_key * n;
            job->k->rmsnorm(x, a->norm, n, s->norm_eps, x);
            if (s->by_channel)
                job->k->sigmoid_mul(z, n, x);
            else
                job->k->swiglu(z, x, n, x);
        }
    }
}

void op_delta(const struct kern_table *k, const struct delta_args *a)
{
    const struct delta_shape *s = &a->shape;
    const struct delta_job job = {k, a};
    const uint64_t n = delta_channels(s), n_values = delta_value_heads(s) * s->value_dim;
    assert(k->device == NULL && s->n_taps >= 1 && s->n_taps <= DELTA_TAPS_MAX);
    if (s->n_heads == 0) return;
    part_run(k->team, a->n_rows * n * DELTA_CHANNEL_COST, inputs_part, &job);
    state_tiles_run(k->team, &(struct state_tiles){.run = k->delta_rule,
                                                   .element_cost = DELTA_ELEMENT_COST,
                                                   .shape = s,
                                                   .seqs = a->seqs,
                                                   .n_seqs = a->n_seqs,
                                                   .n_rows = a->n_rows,
                                                   .mixed = a->mixed,
                                                   .gates = a->gates,
                                                   .states = a->states.heads,
                                                   .out = a->out});
    part_run(k->team, a->n_rows * n_values * DELTA_CHANNEL_COST, delta_norm_part, &job);
}

struct sigmoid_heads_job {
    const struct kern_table *k;
    const struct sigmoid_heads *a;
};

static void sigmoid_heads_part(const void *job_, struct part part)
{
    const struct sigmoid_heads_job *job = job_;
    const struct sigmoid_heads *a = job->a;
    size_t row, end;
    if (!part_take(&part, a->n_rows, a->n_heads * a->width * DELTA_CHANNEL_COST, &row, &end))
        return;
    for (; row < end; row++) {
        for (size_t h = 0; h < a->n_heads; h++)
            job->k->sigmoid_mul(a->gate.x + row * a->gate.row_stride + h * a->gate.head_stride,
                                a->width, a->x + (row * a->n_heads + h) * a->width);
    }
}

void op_sigmoid_heads(const struct kern_table *k, const struct sigmoid_heads *a)
{
    const struct sigmoid_heads_job job = {k, a};
    assert(k->device == NULL);
    if (a->n_heads == 0) return;
    part_run(k->team, a->n_rows * a->n_heads * a->width * DELTA_CHANNEL_COST, sigmoid_heads_part,
             &job);
}

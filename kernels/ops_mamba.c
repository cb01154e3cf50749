/* The threaded ops of Mamba-2 layers, from the projections to the inputs of the output projection:
 * convolution, gates, scan, gate, and the norm. Called by model/stage_mamba.c. */
#include "kernels/elementary.h"
#include "kernels/ops.h"
#include "kernels/part.h"
#include "kernels/state_tiles.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum {
    MAMBA_BLOCK = 128,      /* channels of a unit of the convolution */
    MAMBA_CHANNEL_COST = 8, /* cost of a channel of the convolution, in multiply-adds */
    MAMBA_GATE_COST = 64,   /* cost of a head's gates, in multiply-adds */
    MAMBA_ELEMENT_COST = 3, /* cost of a row and element of a state, in multiply-adds */
};

struct mamba_job {
    const struct kern_table *k;
    const struct mamba_args *a;
};

/* Channels [first, first + width) of q, k or v, whose projections x are [T, stride]. */
struct mamba_block {
    const float *x;
    size_t stride, at, first, width; /* at: in x; first: among all channels */
};

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t mamba_blocks_in(size_t n)
{
    return (n + MAMBA_BLOCK - 1) / MAMBA_BLOCK;
}

static size_t keys_of(const struct delta_shape *s)
{
    return (size_t)s->n_heads * s->key_dim;
}

static size_t values_of(const struct delta_shape *s)
{
    return delta_value_heads(s) * s->value_dim;
}

/* Returns block `unit`, counted over the blocks of q, then of k, then of v. */
static struct mamba_block block_at(const struct mamba_args *a, size_t unit)
{
    const size_t n_k = keys_of(&a->shape), n_v = values_of(&a->shape);
    const float *const x[3] = {a->q, a->k, a->v};
    const size_t n[3] = {n_k, n_k, n_v};
    size_t before = 0, i = 0;
    for (; i < 2 && unit >= mamba_blocks_in(n[i]); i++) {
        unit -= mamba_blocks_in(n[i]);
        before += n[i];
    }
    const size_t at = unit * MAMBA_BLOCK;
    return (struct mamba_block){x[i], n[i], at, before + at, min_size(MAMBA_BLOCK, n[i] - at)};
}

/* Returns row t of a block's inputs, counted from the sequence's first row in the step; a row with
 * negative t is in the state `past`. */
static const float *block_row(const struct mamba_args *a, const struct seq_rows *seq,
                              const struct mamba_block *b, const float *past, int64_t t)
{
    const int64_t kept = (int64_t)a->shape.n_taps - 1;
    if (t < 0) return past + (size_t)(kept + t) * delta_channels(&a->shape) + b->first;
    return b->x + (seq->row0 + (size_t)t) * b->stride + b->at;
}

/* Computes the convolution of a block over the rows of a sequence, and its state after them. */
static void convolve_block(const struct mamba_job *job, const struct seq_rows *seq,
                           const struct mamba_block *b)
{
    const struct mamba_args *a = job->a;
    const size_t n_taps = a->shape.n_taps, n = delta_channels(&a->shape);
    float *past = a->states.conv + (size_t)seq->slot * (n_taps - 1) * n, ones[MAMBA_BLOCK];
    const float *rows[DELTA_TAPS_MAX + 1] = {ones};
    for (size_t i = 0; i < MAMBA_BLOCK; i++) ones[i] = 1;
    for (size_t j = 0; seq->pos0 == 0 && j + 1 < n_taps; j++)
        memset(past + j * n + b->first, 0, b->width * sizeof *past);
    for (size_t t = 0; t < seq->n_rows; t++) {
        for (size_t j = 0; j < n_taps; j++)
            rows[1 + j] = block_row(a, seq, b, past, (int64_t)(t + j + 1) - (int64_t)n_taps);
        job->k->conv_silu(rows, n_taps + 1, a->conv + b->first, n, b->width,
                          a->mixed + (seq->row0 + t) * n + b->first);
    }
    for (size_t j = 0; j + 1 < n_taps; j++) { /* a row moves to an earlier place, or is a new one */
        const int64_t t = (int64_t)(seq->n_rows + j + 1) - (int64_t)n_taps;
        memmove(past + j * n + b->first, block_row(a, seq, b, past, t), b->width * sizeof *past);
    }
}

static size_t n_conv_blocks(const struct delta_shape *s)
{
    return 2 * mamba_blocks_in(keys_of(s)) + mamba_blocks_in(values_of(s));
}

static void conv_part(const void *job_, struct part part)
{
    const struct mamba_job *job = job_;
    const struct mamba_args *a = job->a;
    for (size_t i = 0; i < a->n_seqs; i++) {
        const struct seq_rows *seq = &a->seqs[i];
        const uint64_t cost = (uint64_t)seq->n_rows * MAMBA_BLOCK * MAMBA_CHANNEL_COST;
        size_t unit, end;
        if (!part_take(&part, n_conv_blocks(&a->shape), cost, &unit, &end)) continue;
        for (; unit < end; unit++) {
            const struct mamba_block b = block_at(a, unit);
            convolve_block(job, seq, &b);
        }
    }
}

static void gates_part(const void *job_, struct part part)
{
    const struct mamba_args *a = ((const struct mamba_job *)job_)->a;
    const size_t n = delta_value_heads(&a->shape);
    size_t row, end;
    if (!part_take(&part, a->n_rows, n * MAMBA_GATE_COST, &row, &end)) return;
    for (; row < end; row++) {
        float *gates = a->gates + row * 2 * n;
        for (size_t v = 0; v < n; v++) {
            float step = el_softplusf(a->dt[row * n + v] + a->step_bias[v]);
            step = step < a->step_least ? a->step_least : step;
            step = step > a->step_most ? a->step_most : step;
            gates[v] = el_expf(-(el_expf(a->decay_log[v]) * step));
            gates[n + v] = step;
        }
    }
}

static void gate_part(const void *job_, struct part part)
{
    const struct mamba_job *job = job_;
    const struct mamba_args *a = job->a;
    const struct delta_shape *s = &a->shape;
    const size_t n = values_of(s), d = s->value_dim, n_all = (size_t)s->n_heads * s->per_key;
    size_t row, end;
    if (!part_take(&part, a->n_rows, n * MAMBA_CHANNEL_COST, &row, &end)) return;
    for (; row < end; row++) {
        float *x = a->out + row * n;
        job->k->swiglu(a->z + row * n, x, n, x);
        for (size_t v = 0; v < delta_value_heads(s); v++)
            a->sums[row * n_all + s->first_own + v] = f32_bits(job->k->square_sum(x + v * d, d));
    }
}

void op_mamba(const struct kern_table *k, const struct mamba_args *a)
{
    const struct delta_shape *s = &a->shape;
    const struct mamba_job job = {k, a};
    const uint64_t n_heads = delta_value_heads(s);
    const uint64_t conv_cost = (uint64_t)n_conv_blocks(s) * MAMBA_BLOCK * MAMBA_CHANNEL_COST;
    assert(k->device == NULL && s->n_taps >= 1 && s->n_taps <= DELTA_TAPS_MAX);
    if (n_heads == 0) return;
    part_run(k->team, a->n_rows * conv_cost, conv_part, &job);
    part_run(k->team, a->n_rows * n_heads * MAMBA_GATE_COST, gates_part, &job);
    state_tiles_run(k->team, &(struct state_tiles){.run = k->scan,
                                                   .element_cost = MAMBA_ELEMENT_COST,
                                                   .shape = s,
                                                   .seqs = a->seqs,
                                                   .n_seqs = a->n_seqs,
                                                   .n_rows = a->n_rows,
                                                   .mixed = a->mixed,
                                                   .gates = a->gates,
                                                   .skip = a->skip,
                                                   .states = a->states.heads,
                                                   .out = a->out});
    part_run(k->team, a->n_rows * values_of(s) * MAMBA_CHANNEL_COST, gate_part, &job);
}

struct mamba_norm_job {
    const struct mamba_norm *a;
};

/* Returns the factor by which a row's elements in a group are multiplied. */
static float group_factor(const struct mamba_norm *a, size_t row, size_t group)
{
    const struct delta_shape *s = &a->shape;
    const uint32_t *sums = a->sums + (row * s->n_heads + group) * s->per_key;
    float sum = 0;
    for (size_t i = 0; i < s->per_key; i++) sum += f32_from_bits(sums[i]);
    return 1.0f / sqrtf(sum / (float)((size_t)s->per_key * s->value_dim) + s->norm_eps);
}

static void mamba_norm_part(const void *job_, struct part part)
{
    const struct mamba_norm *a = ((const struct mamba_norm_job *)job_)->a;
    const struct delta_shape *s = &a->shape;
    const size_t n = delta_value_heads(s), d = s->value_dim;
    size_t row, end;
    if (!part_take(&part, a->n_rows, n * d, &row, &end)) return;
    for (; row < end; row++) {
        float r = 0;
        for (size_t v = 0; v < n; v++) {
            const size_t head = s->first_own + v;
            float *x = a->out + (row * n + v) * d;
            if (v == 0 || head % s->per_key == 0) r = group_factor(a, row, head / s->per_key);
            for (size_t i = 0; i < d; i++) x[i] = (x[i] * r) * a->norm[v * d + i];
        }
    }
}

void op_mamba_norm(const struct kern_table *k, const struct mamba_norm *a)
{
    const struct mamba_norm_job job = {a};
    const uint64_t n = values_of(&a->shape);
    assert(k->device == NULL);
    if (n > 0) part_run(k->team, a->n_rows * n, mamba_norm_part, &job);
}

/* The ops that write a step's keys and values into the cache, row by row, so that a normalized and
 * rotated row is stored while the core's first-level cache still holds it. */
#include "kernels/ops.h"

#include "kernels/body.h"
#include "kernels/device_ops.h"
#include "kernels/part.h"

struct kv_job {
    const struct kern_table *k;
    const float *key, *value;
    const struct kv_view *kv;
    const struct seq_rows *seqs;
    size_t n_seqs;
};

/* Writes one row's keys (what = 0) or values (what = 1) into its slot. */
static void kv_put(const struct kv_job *job, const float *x, size_t row, int what, int32_t block,
                   size_t slot)
{
    const struct kv_view *kv = job->kv;
    const size_t hd = kv->head_dim;
    for (size_t g = 0; g < kv->n_kv_heads; g++) {
        char *half = kern_kv_half(kv, block, what, g);
        float *scale = kv->dtype == DTYPE_I8 ? kern_kv_scales(half, hd) + slot : NULL;
        job->k->kv_store[kv->dtype](x + (row * kv->n_kv_heads + g) * hd, hd,
                                    half + slot * hd * dtype_bytes(kv->dtype), scale);
    }
}

/* Writes row i of a sequence. */
static void kv_put_row(const struct kv_job *job, const struct seq_rows *seq, size_t i)
{
    const size_t p = seq->pos0 + i, slot = p % KV_BLOCK_TOKENS;
    const int32_t block = seq->blocks[p / KV_BLOCK_TOKENS];
    kv_put(job, job->key, seq->row0 + i, 0, block, slot);
    if (!job->kv->latent) kv_put(job, job->value, seq->row0 + i, 1, block, slot);
}

static void kv_part(const void *job_, struct part part)
{
    const struct kv_job *job = job_;
    const uint64_t cost = (uint64_t)job->kv->n_kv_heads * job->kv->head_dim * 2 + 1;
    size_t i0, i1;
    for (size_t s = 0; s < job->n_seqs; s++) {
        const struct seq_rows *seq = &job->seqs[s];
        if (!part_take(&part, seq->n_rows, cost, &i0, &i1)) continue;
        for (size_t i = i0; i < i1; i++) kv_put_row(job, seq, i);
    }
}

void op_kv_write(const struct kern_table *k, const float *key, const float *value,
                 const struct kv_view *kv, const struct seq_rows *seqs, size_t n_seqs)
{
    if (k->device != NULL) {
        device_ops_of(k->device)->kv_write(k->device, key, value, kv);
        return;
    }
    const struct kv_job job = {k, key, value, kv, seqs, n_seqs};
    uint64_t cost = 0;
    for (size_t s = 0; s < n_seqs; s++)
        cost += seqs[s].n_rows * ((uint64_t)kv->n_kv_heads * kv->head_dim * 2 + 1);
    part_run(k->team, cost, kv_part, &job);
}

struct rope_kv_job {
    struct kv_job kv;
    const struct rope_kv_args *a;
};

static uint64_t rope_kv_cost(const struct rope_kv_args *a)
{
    return ((uint64_t)a->n_heads + 3 * (uint64_t)a->kv.n_kv_heads) * a->kv.head_dim + 1;
}

/* Normalizes and rotates the heads of one row in place. */
static void rope_heads(const struct rope_kv_job *job, float *x, const float *norm, size_t n_heads,
                       size_t row)
{
    const struct kern_table *k = job->kv.k;
    const struct rope_kv_args *a = job->a;
    const size_t hd = a->kv.head_dim, angle = row * (a->rot / 2);
    for (size_t i = row * n_heads; i < (row + 1) * n_heads; i++) {
        if (norm != NULL && !a->norms_last) k->rmsnorm(x + i * hd, norm, hd, a->eps, x + i * hd);
        k->rope(x + i * hd, a->cos + angle, a->sin + angle, a->rot);
        if (norm != NULL && a->norms_last) k->rmsnorm(x + i * hd, norm, hd, a->eps, x + i * hd);
    }
}

static void rope_kv_part(const void *job_, struct part part)
{
    const struct rope_kv_job *job = job_;
    const struct rope_kv_args *a = job->a;
    size_t i0, i1;
    for (size_t s = 0; s < a->n_seqs; s++) {
        const struct seq_rows *seq = &a->seqs[s];
        if (!part_take(&part, seq->n_rows, rope_kv_cost(a), &i0, &i1)) continue;
        for (size_t i = i0; i < i1; i++) {
            rope_heads(job, a->q, a->q_norm, a->n_heads, seq->row0 + i);
            rope_heads(job, a->k, a->k_norm, a->kv.n_kv_heads, seq->row0 + i);
            kv_put_row(&job->kv, seq, i);
        }
    }
}

void op_rope_kv(const struct kern_table *k, const struct rope_kv_args *a)
{
    if (k->device != NULL) {
        device_ops_of(k->device)->rope_kv(k->device, a);
        return;
    }
    const struct rope_kv_job job = {{k, a->k, a->v, &a->kv, a->seqs, a->n_seqs}, a};
    part_run(k->team, a->n_rows * rope_kv_cost(a), rope_kv_part, &job);
}

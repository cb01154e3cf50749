/* Attention over the heads that a rank holds: norm of q and k, RoPE, KV write, paged attention.
 * Never communicates; the output projection and its sum over ranks belong to the model room. */
#ifndef SHOAL_ATTENTION_ATTENTION_H
#define SHOAL_ATTENTION_ATTENTION_H

#include "kernels/kern.h"

/* Constant for a stage. */
struct attention_shape {
    uint32_t n_heads, n_kv_heads, head_dim; /* of this rank */
    const uint8_t *kv_of_head;              /* [n_heads], borrowed */
    float scale;                            /* of q.k */
    float softcap;                          /* of scores; 0: none */
    float norm_eps;                         /* of q and k norms */
    bool norms_last;                        /* q and k norms come after RoPE */
    bool ahead;                             /* as in attn_args */
};

/* One layer's work. Changes q in place and leaves k undefined; out overlaps none of q, k, v. */
struct attention_work {
    float *q;                     /* [T, H, Hd] */
    float *k, *v;                 /* [T, G, Hd] */
    float *out;                   /* [T, H, Hd] */
    const float *q_norm, *k_norm; /* [Hd] or NULL */
    const float *sinks;           /* [H] or NULL */
    uint32_t rotary;              /* elements of a head that are rotated; 0: none (NoPE) */
    const float *cos, *sin;       /* [T, rotary / 2] */
    uint32_t window;              /* as in attn_args */
    struct kv_view kv;
    const struct seq_rows *seqs; /* [n_seqs], covering all T rows */
    size_t n_seqs, n_rows;
    float *parts; /* scratch, as in attn_args */
    size_t n_part_floats;
};

/* Local. attention_enter norms and rotates q and k, and writes the rows' K and V to the cache;
 * attention_args describes the attention of these rows, which reads keys and values from the cache
 * alone; attention_run does both and attends. */
void attention_enter(const struct kern_table *kern, const struct attention_shape *shape,
                     const struct attention_work *work);
struct attn_args attention_args(const struct attention_shape *shape,
                                const struct attention_work *work);
void attention_run(const struct kern_table *kern, const struct attention_shape *shape,
                   const struct attention_work *work);

#endif

/* The router, one block per row. An expert is chosen when fewer than K experts have a larger key;
 * all threads compare in parallel, but one thread alone chooses by ROUTER_MIXER. A thread adds a
 * sum by itself, because the order is fixed. */
#include "kernels/choose_body.h"
#include "kernels/cuda/dialect.h"

/* A row's logits, and its arrays in shared memory, whose size op_router_cuda computes. */
struct router_part {
    const float *logits;
    float *keys;        /* [E] */
    float *p;           /* [E] exp(l - max), for softmax */
    float *group_keys;  /* [n_groups] */
    float *max;         /* [1] */
    uint8_t *chosen;    /* [E] */
    uint8_t *group_out; /* [n_groups] 1: the group's experts cannot be chosen */
};

BLOCK_INLINE struct router_part router_part_of(const struct router_args *a, size_t row,
                                               void *shared)
{
    struct router_part r;
    r.logits = a->logits + row * a->n_experts;
    r.keys = (float *)shared;
    r.p = r.keys + a->n_experts;
    r.group_keys = r.p + a->n_experts;
    r.max = r.group_keys + a->rule.n_groups;
    r.chosen = (uint8_t *)(r.max + 1);
    r.group_out = r.chosen + a->n_experts;
    return r;
}

/* Returns how many of the n keys are greater than key i. */
BLOCK_INLINE uint32_t router_n_before(const float *keys, uint32_t n, uint32_t i)
{
    const uint64_t key = kern_router_key(keys[i], i);
    uint32_t n_before = 0;
    for (uint32_t e = 0; e < n; e++) n_before += kern_router_key(keys[e], e) > key;
    return n_before;
}

/* Returns the sum of all experts' exponentials; 0 if each score depends on its own logit alone
 * (kern_router_is_apart). */
BLOCK_INLINE float router_sum(const struct router_args *a, const struct router_part *r)
{
    float sum = 0.0f;
    if (kern_router_is_apart(a)) return sum;
    for (uint32_t e = 0; e < a->n_experts; e++) sum += r->p[e];
    return sum;
}

/* Computes the largest logit, the exponentials and the keys. */
BLOCK_INLINE void router_keys(const struct router_args *a, const struct router_part *r)
{
    FOR_THREADS(t)
    {
        if (t == 0) {
            float m = -INFINITY;
            for (uint32_t e = 0; e < a->n_experts; e++) m = r->logits[e] > m ? r->logits[e] : m;
            *r->max = m;
        }
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        for (uint32_t e = t; e < a->n_experts; e += CUDA_THREADS)
            r->p[e] = kern_router_is_apart(a) ? 0.0f : el_exp_body(r->logits[e] - *r->max);
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        const float sum = kern_router_is_biased(a) ? router_sum(a, r) : 0.0f;
        for (uint32_t e = t; e < a->n_experts; e += CUDA_THREADS)
            r->keys[e] = kern_router_key_of(a, r->logits[e], e, *r->max, sum);
    }
    BLOCK_SYNC();
}

/* Sets the keys of experts outside the best groups to -infinity. */
BLOCK_INLINE void router_limit(const struct router_args *a, const struct router_part *r)
{
    const uint32_t n_groups = a->rule.n_groups, n = a->n_experts / n_groups;
    FOR_THREADS(t)
    {
        for (uint32_t g = t; g < n_groups; g += CUDA_THREADS)
            r->group_keys[g] = kern_router_group_key(r->keys + g * n, n, kern_router_is_sigmoid(a));
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        for (uint32_t g = t; g < n_groups; g += CUDA_THREADS)
            r->group_out[g] =
                router_n_before(r->group_keys, n_groups, g) >= a->rule.n_groups_chosen;
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        for (uint32_t e = t; e < n * n_groups; e += CUDA_THREADS)
            if (r->group_out[e / n]) r->keys[e] = -INFINITY;
    }
    BLOCK_SYNC();
}

BLOCK_INLINE void router_write(const struct router_args *a, size_t row, const struct router_part *r)
{
    int32_t *ids = a->ids + row * a->n_chosen;
    const float sum = router_sum(a, r);
    uint32_t n = 0;
    if (a->rule.kind == ROUTER_MIXER) {
        kern_router_mix(a, r->logits, ids, a->weights + row * a->n_chosen);
        return;
    }
    for (uint32_t e = 0; e < a->n_experts; e++)
        if (r->chosen[e]) ids[n++] = (int32_t)e;
    kern_router_weights(a, r->logits, ids, *r->max, sum, a->weights + row * a->n_chosen);
}

BLOCK_INLINE void router_block(const struct router_args *a, struct cuda_block b, void *shared)
{
    const struct router_part r = router_part_of(a, b.y, shared);
    router_keys(a, &r);
    if (a->rule.n_groups > 1) router_limit(a, &r);
    FOR_THREADS(t)
    {
        for (uint32_t e = t; e < a->n_experts; e += CUDA_THREADS)
            r.chosen[e] = router_n_before(r.keys, a->n_experts, e) < a->n_chosen;
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        if (t == 0) router_write(a, b.y, &r);
    }
}
CUDA_KERNEL(router, router_args)

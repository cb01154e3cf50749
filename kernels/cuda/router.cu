/* The router: one block a row. An expert is chosen when fewer than K have a larger key, which all
 * experts find out side by side; the sums are chains, so one thread adds. */
#include "kernels/cuda/dialect.h"
#include "kernels/elementary_body.h"

/* shared: [E] exp(l - max); [1] max */
BLOCK_INLINE void router_maximum(const float *logits, uint32_t n, float *max)
{
    FOR_THREADS(t)
    {
        if (t == 0) {
            float m = -INFINITY;
            for (uint32_t e = 0; e < n; e++) m = logits[e] > m ? logits[e] : m;
            *max = m;
        }
    }
    BLOCK_SYNC();
}

BLOCK_INLINE bool router_is_chosen(const float *logits, uint32_t n, uint32_t n_chosen, uint32_t e)
{
    const uint64_t key = kern_router_key(logits[e], e);
    uint32_t n_before = 0;
    for (uint32_t i = 0; i < n; i++) n_before += kern_router_key(logits[i], i) > key;
    return n_before < n_chosen;
}

BLOCK_INLINE void router_write(const struct router_args *a, size_t row, const float *p,
                               const uint8_t *chosen)
{
    int32_t *ids = a->ids + row * a->n_chosen;
    float *weights = a->weights + row * a->n_chosen;
    float sum = 0.0f, chosen_sum = 0.0f;
    uint32_t n = 0;
    for (uint32_t e = 0; e < a->n_experts; e++) sum += p[e];
    for (uint32_t e = 0; e < a->n_experts; e++) {
        if (!chosen[e]) continue;
        ids[n] = (int32_t)e;
        weights[n] = p[e] / sum;
        chosen_sum += weights[n++];
    }
    for (uint32_t i = 0; i < a->n_chosen; i++) {
        if (a->rule.kind == ROUTER_SOFTMAX_RENORM) weights[i] /= chosen_sum;
        if (a->rule.scale != 0.0f) weights[i] *= a->rule.scale;
    }
}

BLOCK_INLINE void router_block(const struct router_args *a, struct cuda_block b, void *shared)
{
    const float *logits = a->logits + (size_t)b.y * a->n_experts;
    float *p = (float *)shared, *max = p + a->n_experts;
    uint8_t *chosen = (uint8_t *)(max + 1);
    router_maximum(logits, a->n_experts, max);
    FOR_THREADS(t)
    {
        for (uint32_t e = t; e < a->n_experts; e += CUDA_THREADS) {
            p[e] = el_exp_body(logits[e] - *max);
            chosen[e] = router_is_chosen(logits, a->n_experts, a->n_chosen, e);
        }
    }
    BLOCK_SYNC();
    FOR_THREADS(t)
    {
        if (t == 0) router_write(a, b.y, p, chosen);
    }
}
CUDA_KERNEL(router, router_args)

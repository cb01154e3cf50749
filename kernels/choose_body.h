/* The router's choice of experts, shared by every instruction set. */
#ifndef SHOAL_KERNELS_CHOOSE_BODY_H
#define SHOAL_KERNELS_CHOOSE_BODY_H

#include "kernels/body.h"
#include "kernels/elementary_body.h"

/* ids[0..n) holds the best n so far, best first; puts `id` in its place and drops the last. */
static inline void kern_router_insert(const float *logits, int32_t *ids, uint32_t n, uint32_t n_max,
                                      uint32_t id)
{
    const uint64_t key = kern_router_key(logits[id], id);
    uint32_t at = n;
    while (at > 0 && kern_router_key(logits[ids[at - 1]], (uint32_t)ids[at - 1]) < key) {
        if (at < n_max) ids[at] = ids[at - 1];
        at--;
    }
    if (at < n_max) ids[at] = (int32_t)id;
}

/* ids[n_chosen] = the experts with the largest keys, by ascending id; n_chosen <= n_experts. */
static inline void kern_router_choose(const float *logits, uint32_t n_experts, uint32_t n_chosen,
                                      int32_t *ids)
{
    for (uint32_t e = 0; e < n_experts; e++)
        kern_router_insert(logits, ids, e < n_chosen ? e : n_chosen, n_chosen, e);
    for (uint32_t i = 1; i < n_chosen; i++) {
        const int32_t id = ids[i];
        uint32_t at = i;
        for (; at > 0 && ids[at - 1] > id; at--) ids[at] = ids[at - 1];
        ids[at] = id;
    }
}

/* weights[i] = exp(l - max) / sum of the chosen ones; renormalised, each divided by
 * their own sum. */
static inline void kern_router_weights(const struct router_args *a, const float *logits,
                                       const int32_t *ids, float max, float sum, float *weights)
{
    float chosen = 0.0f;
    for (uint32_t i = 0; i < a->n_chosen; i++) {
        weights[i] = el_exp_body(logits[ids[i]] - max) / sum;
        chosen += weights[i];
    }
    if (a->kind != ROUTER_SOFTMAX_RENORM) return;
    for (uint32_t i = 0; i < a->n_chosen; i++) weights[i] /= chosen;
}

#endif

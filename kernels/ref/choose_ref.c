/* The ops that choose: the router, the sampler's masses, the argmax. */
#include "kernels/ref/ref.h"

#include "kernels/body.h"
#include "kernels/elementary_body.h"

#include <math.h>

/* ids[0..n) holds the best n so far, best first; puts `id` in its place and drops the last. */
static void insert(const float *logits, int32_t *ids, uint32_t n, uint32_t n_max, uint32_t id)
{
    const uint64_t key = kern_router_key(logits[id], id);
    uint32_t at = n;
    while (at > 0 && kern_router_key(logits[ids[at - 1]], (uint32_t)ids[at - 1]) < key) {
        if (at < n_max) ids[at] = ids[at - 1];
        at--;
    }
    if (at < n_max) ids[at] = (int32_t)id;
}

static void sort_ascending(int32_t *ids, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) {
        const int32_t id = ids[i];
        uint32_t at = i;
        for (; at > 0 && ids[at - 1] > id; at--) ids[at] = ids[at - 1];
        ids[at] = id;
    }
}

void k_router_f32_ref(const struct router_args *a, size_t row)
{
    const float *logits = a->logits + row * a->n_experts;
    int32_t *ids = a->ids + row * a->n_chosen;
    float *weights = a->weights + row * a->n_chosen;
    float max = -INFINITY, sum = 0.0f, chosen = 0.0f;
    for (uint32_t e = 0; e < a->n_experts; e++) max = logits[e] > max ? logits[e] : max;
    for (uint32_t e = 0; e < a->n_experts; e++) {
        sum += el_exp_body(logits[e] - max);
        insert(logits, ids, e < a->n_chosen ? e : a->n_chosen, a->n_chosen, e);
    }
    sort_ascending(ids, a->n_chosen);
    for (uint32_t i = 0; i < a->n_chosen; i++) {
        weights[i] = el_exp_body(logits[ids[i]] - max) / sum;
        chosen += weights[i];
    }
    if (a->kind != ROUTER_SOFTMAX_RENORM) return;
    for (uint32_t i = 0; i < a->n_chosen; i++) weights[i] /= chosen;
}

uint64_t k_mass_f32_ref(const float *logits, size_t n, float max, float inv_t, uint64_t *mass)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        const float e = el_exp_body(((logits[i] + 0.0f) - max) * inv_t);
        const uint64_t m = e <= 1.0f ? (uint64_t)((double)e * 0x1p32) : 0;
        if (mass != NULL) mass[i] = m;
        sum += m;
    }
    return sum;
}

uint64_t k_argmax_f32_ref(const float *logits, size_t n, uint32_t id0, uint64_t *n_bad)
{
    uint64_t best = 0;
    *n_bad = 0;
    for (size_t i = 0; i < n; i++) {
        const float l = logits[i] + 0.0f;
        const uint32_t id = id0 + (uint32_t)i;
        const uint64_t key = (uint64_t)kern_ordered_bits(l) << 32 | (uint32_t)~id;
        best = key > best ? key : best;
        if ((f32_bits(l) & 0x7F800000u) == 0x7F800000u) (*n_bad)++;
    }
    return best;
}

/* Reference kernels of the router, the sampler's masses and the argmax. */
#include "kernels/ref/ref.h"

#include "kernels/choose_body.h"

#include <math.h>

static void k_router_f32_ref(const struct router_args *a, size_t row)
{
    const float *logits = a->logits + row * a->n_experts;
    int32_t *ids = a->ids + row * a->n_chosen;
    float max = -INFINITY, sum = 0.0f;
    if (a->rule.kind == ROUTER_MIXER) {
        kern_router_mix(a, logits, ids, a->weights + row * a->n_chosen);
        return;
    }
    for (uint32_t e = 0; e < a->n_experts; e++) max = logits[e] > max ? logits[e] : max;
    for (uint32_t e = 0; e < a->n_experts && !kern_router_is_apart(a); e++)
        sum += el_exp_body(logits[e] - max);
    kern_router_ids(a, logits, max, sum, ids);
    kern_router_weights(a, logits, ids, max, sum, a->weights + row * a->n_chosen);
}

static uint64_t k_mass_f32_ref(const float *logits, size_t n, float max, float inv_t,
                               uint64_t *mass)
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

static uint64_t k_argmax_f32_ref(const float *logits, size_t n, uint32_t id0, uint64_t *n_bad)
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

void fill_choose_ref(struct kern_table *t)
{
    t->router = k_router_f32_ref;
    t->mass = k_mass_f32_ref;
    t->argmax = k_argmax_f32_ref;
}

/* The router's choice of experts and their weights, shared by all instruction sets. The device
 * chooses with its own code (cuda/router.cu), but shares the keys, the weights and ROUTER_MIXER. */
#ifndef SHOAL_KERNELS_CHOOSE_BODY_H
#define SHOAL_KERNELS_CHOOSE_BODY_H

#include "kernels/body.h"
#include "kernels/elementary_body.h"

#include <stdbool.h>

/* Inserts `id` into ids[0..n), which is ordered by key, best first. If this
 * makes n_max + 1 ids, the last one is dropped. */
DEVICE_INLINE void kern_router_insert(const float *keys, int32_t *ids, uint32_t n, uint32_t n_max,
                                      uint32_t id)
{
    const uint64_t key = kern_router_key(keys[id], id);
    uint32_t at = n;
    while (at > 0 && kern_router_key(keys[ids[at - 1]], (uint32_t)ids[at - 1]) < key) {
        if (at < n_max) ids[at] = ids[at - 1];
        at--;
    }
    if (at < n_max) ids[at] = (int32_t)id;
}

/* ids[n_chosen] = those ids of [0, n) that have the largest keys, in ascending order; n_chosen <=
 * n. */
DEVICE_INLINE void kern_router_choose(const float *keys, uint32_t n, uint32_t n_chosen,
                                      int32_t *ids)
{
    for (uint32_t e = 0; e < n; e++)
        kern_router_insert(keys, ids, e < n_chosen ? e : n_chosen, n_chosen, e);
    for (uint32_t i = 1; i < n_chosen; i++) {
        const int32_t id = ids[i];
        uint32_t at = i;
        for (; at > 0 && ids[at - 1] > id; at--) ids[at] = ids[at - 1];
        ids[at] = id;
    }
}

/* Orders chosen ids and their weights by id. */
DEVICE_INLINE void kern_router_sort(int32_t *ids, float *weights, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) {
        const int32_t id = ids[i];
        const float weight = weights[i];
        uint32_t at = i;
        for (; at > 0 && ids[at - 1] > id; at--) {
            ids[at] = ids[at - 1];
            weights[at] = weights[at - 1];
        }
        ids[at] = id;
        weights[at] = weight;
    }
}

DEVICE_INLINE bool kern_router_has(const int32_t *ids, uint32_t n, uint32_t id)
{
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] == (int32_t)id) return true;
    return false;
}

/* Chooses the ids and weights of one row by ROUTER_MIXER. */
DEVICE_INLINE void kern_router_mix(const struct router_args *a, const float *l, int32_t *ids,
                                   float *weights)
{
    for (uint32_t n = 0; n < a->n_chosen; n++) {
        uint64_t best = 0;
        float sum = 0.0f;
        for (uint32_t e = 0; e < a->n_experts; e++) {
            const uint64_t key = kern_router_has(ids, n, e) ? 0 : kern_router_key(l[e], e);
            best = key > best ? key : best;
        }
        const uint32_t id = ~(uint32_t)best;
        const float m = l[id];
        for (uint32_t e = 0; e < a->n_experts; e++) {
            const float size = l[e] < 0 ? -l[e] : l[e], factor = size < m ? m : size;
            if (kern_router_has(ids, n, e) || (m - l[e]) / factor > a->rule.scale) continue;
            sum += el_exp_body(l[e] - m);
        }
        ids[n] = (int32_t)id;
        weights[n] = 1.0f / sum;
    }
    kern_router_sort(ids, weights, a->n_chosen);
}

DEVICE_INLINE bool kern_router_is_sigmoid(const struct router_args *a)
{
    return a->rule.kind == ROUTER_SIGMOID || a->rule.kind == ROUTER_SIGMOID_RENORM;
}

/* True when an expert's score depends on its own logit alone. */
DEVICE_INLINE bool kern_router_is_apart(const struct router_args *a)
{
    return kern_router_is_sigmoid(a) || a->rule.kind == ROUTER_ROOT_RENORM;
}

DEVICE_INLINE float kern_sigmoid(float x)
{
    return 1.0f / (1.0f + el_exp_body(-x));
}

/* Returns an expert's score by its own logit alone: the root of the softplus, or the sigmoid. */
DEVICE_INLINE float kern_router_apart(const struct router_args *a, float logit)
{
    return a->rule.kind == ROUTER_ROOT_RENORM ? sqrtf(el_softplus_body(logit))
                                              : kern_sigmoid(logit);
}

/* True when softmax scores with a bias choose the experts. */
DEVICE_INLINE bool kern_router_is_biased(const struct router_args *a)
{
    return a->rule.kind == ROUTER_BIASED || a->rule.kind == ROUTER_BIASED_RENORM;
}

/* Returns the key of a group of n experts: the largest key, or with `two` the sum of the two
 * largest. */
DEVICE_INLINE float kern_router_group_key(const float *keys, uint32_t n, bool two)
{
    float best = -INFINITY, second = -INFINITY;
    for (uint32_t e = 0; e < n; e++) {
        if (keys[e] > best) {
            second = best;
            best = keys[e];
        } else if (keys[e] > second) {
            second = keys[e];
        }
    }
    return two && n > 1 ? best + second : best;
}

/* Sets the keys of experts outside the best groups to -infinity. */
DEVICE_INLINE void kern_router_limit(const struct router_args *a, float *keys)
{
    const uint32_t n = a->n_experts / a->rule.n_groups;
    float groups[ROUTER_GROUPS_MAX];
    int32_t chosen[ROUTER_GROUPS_MAX];
    for (uint32_t g = 0; g < a->rule.n_groups; g++)
        groups[g] = kern_router_group_key(keys + g * n, n, kern_router_is_sigmoid(a));
    kern_router_choose(groups, a->rule.n_groups, a->rule.n_groups_chosen, chosen);
    for (uint32_t g = 0, i = 0; g < a->rule.n_groups; g++) {
        if (i < a->rule.n_groups_chosen && chosen[i] == (int32_t)g) {
            i++;
            continue;
        }
        for (uint32_t e = 0; e < n; e++) keys[g * n + e] = -INFINITY;
    }
}

/* Returns the key of an expert, before the choice is limited to the best groups. */
DEVICE_INLINE float kern_router_key_of(const struct router_args *a, float logit, uint32_t e,
                                       float max, float sum)
{
    const bool apart = kern_router_is_apart(a);
    if (!apart && !kern_router_is_biased(a)) return logit;
    const float score = apart ? kern_router_apart(a, logit) : el_exp_body(logit - max) / sum;
    return a->bias != NULL ? score + a->bias[e] : score;
}

/* Returns the keys of all experts: the logits themselves, or `own` [E], filled with keys. */
DEVICE_INLINE const float *kern_router_keys(const struct router_args *a, const float *logits,
                                            float max, float sum, float *own)
{
    const bool plain = a->rule.kind == ROUTER_SOFTMAX || a->rule.kind == ROUTER_SOFTMAX_RENORM ||
                       a->rule.kind == ROUTER_SIGMOID_AFTER;
    if (plain && a->rule.n_groups <= 1) return logits;
    for (uint32_t e = 0; e < a->n_experts; e++)
        own[e] = kern_router_key_of(a, logits[e], e, max, sum);
    if (a->rule.n_groups > 1) kern_router_limit(a, own);
    return own;
}

/* ids[n] = the given ids in ascending order. */
DEVICE_INLINE void kern_router_take(const int32_t *given, int32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = i;
        for (; at > 0 && ids[at - 1] > given[i]; at--) ids[at] = ids[at - 1];
        ids[at] = given[i];
    }
}

/* ids[n_chosen] = the experts chosen for one row, in ascending order. */
DEVICE_INLINE void kern_router_ids(const struct router_args *a, const float *logits, float max,
                                   float sum, int32_t *ids)
{
    float own[ROUTER_EXPERTS_MAX];
    if (a->given != NULL) {
        kern_router_take(a->given + (ids - a->ids), ids, a->n_chosen);
        return;
    }
    kern_router_choose(kern_router_keys(a, logits, max, sum, own), a->n_experts, a->n_chosen, ids);
}

/* Sets the weights of the chosen experts: their scores, renormalised and scaled as the rule says.
 * max is the largest logit of all experts, sum the sum of all exp(logit - max) (for softmax). */
DEVICE_INLINE void kern_router_weights(const struct router_args *a, const float *logits,
                                       const int32_t *ids, float max, float sum, float *weights)
{
    const bool after = a->rule.kind == ROUTER_SIGMOID_AFTER;
    const bool apart = after || kern_router_is_apart(a);
    const bool renormalised = a->rule.kind != ROUTER_SOFTMAX && a->rule.kind != ROUTER_SIGMOID &&
                              a->rule.kind != ROUTER_BIASED && !after;
    float chosen = 0.0f;
    for (uint32_t i = 0; i < a->n_chosen; i++) {
        const float l = logits[ids[i]];
        weights[i] = apart ? kern_router_apart(a, l) : el_exp_body(l - max) / sum;
        chosen += weights[i];
    }
    if (apart) chosen += 1e-20f;
    for (uint32_t i = 0; i < a->n_chosen; i++) {
        if (renormalised) weights[i] /= chosen;
        if (a->rule.scale != 0.0f) weights[i] *= a->rule.scale;
    }
}

#endif

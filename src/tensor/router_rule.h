/* How an MoE layer chooses and weighs experts: a part of a model's description. */
#ifndef SHOAL_TENSOR_ROUTER_RULE_H
#define SHOAL_TENSOR_ROUTER_RULE_H

#include <stdint.h>

/* How the router chooses experts from logits l[E] (f32). Each expert gets a score and a key:
 *   softmax:  p_e = exp(l_e - max); score = p_e / sum over all E (chain of plain adds, e
 *             ascending, from +0); key = l_e
 *   sigmoid:  score = 1 / (1 + exp(-l_e)); key = score, or score + bias_e if there is a bias
 *   after:    (Llama-4) score as for sigmoid; key = l_e
 *   root:     (DeepSeek-V4) score = sqrt(softplus(l_e)), with the softplus of kernels/elementary.h;
 *             key = score, or score + bias_e if there is a bias
 *   biased..: score as for softmax; key = score, or score + bias_e if there is a bias
 * If n_groups is above 1, the experts are divided into n_groups groups of consecutive ids and
 * equal size. The key of a group is its largest key, for sigmoid the sum of its two largest keys.
 * Only experts of the n_groups_chosen groups with the largest keys (ties: the first group) can be
 * chosen.
 *
 * The K experts with the largest keys (ties: the smallest id) are chosen and listed by ascending
 * id. Their weights are their scores.
 *   ..._RENORM: the weights are divided by their sum (chosen ids ascending, from +0; for sigmoid
 *               and root the sum + 1e-20)
 *   mixer:      (Phi-3.5-MoE) K times, among the experts not chosen yet: the expert with the
 *               largest l = m (ties: the smallest id) is chosen. Its weight is 1 / the sum of
 *               exp(l_e - m), e ascending, from +0, over the experts not chosen before for which
 *               (m - l_e) / max(|l_e|, m) > scale is false. There are no groups.
 * At the end all weights except the mixer's are multiplied by `scale` unless it is 0. */
enum router_kind {
    ROUTER_SOFTMAX,
    ROUTER_SOFTMAX_RENORM,
    ROUTER_SIGMOID,
    ROUTER_SIGMOID_RENORM,
    ROUTER_BIASED_RENORM,
    ROUTER_BIASED,
    ROUTER_MIXER,
    ROUTER_SIGMOID_AFTER,
    ROUTER_ROOT_RENORM,
    ROUTER_COUNT
};

enum { ROUTER_EXPERTS_MAX = 4096, ROUTER_CHOSEN_MAX = 256, ROUTER_GROUPS_MAX = 256 };

struct router_rule {
    enum router_kind kind;
    uint32_t n_groups, n_groups_chosen; /* up to 1: no groups */
    float scale;                        /* 0: none; for the mixer, twice the router's jitter */
};

#endif

/* How a MoE layer chooses experts and weighs them. A plain fact of a model; kernels compute by it.
 */
#ifndef SHOAL_TENSOR_ROUTER_RULE_H
#define SHOAL_TENSOR_ROUTER_RULE_H

#include <stdint.h>

/* Router scores to choices. From logits l[E] (f32) each expert gets a score and a key:
 *   softmax:  p_e = exp(l_e - max), score p_e / sum over all E (chain of plain adds, e ascending,
 *             from +0); key l_e
 *   sigmoid:  score 1 / (1 + exp(-l_e)); key = score, with a bias score + bias_e
 * With n_groups above 1 the experts stand in as many equal runs; a run's key is its largest key, of
 * sigmoids the sum of its two largest; only experts of the n_groups_chosen runs with the largest
 * keys (ties: the first) can be chosen. The K experts with the largest key (ties: the smallest id)
 * are chosen and listed by ascending id; their weight is their score.
 *   ..._RENORM: weights divided by their sum (chosen ids ascending, from +0; sigmoid: sum + 1e-20)
 * Last, a scale that is not 0 multiplies the weights. */
enum router_kind {
    ROUTER_SOFTMAX,
    ROUTER_SOFTMAX_RENORM,
    ROUTER_SIGMOID,
    ROUTER_SIGMOID_RENORM,
    ROUTER_COUNT
};

enum { ROUTER_EXPERTS_MAX = 4096, ROUTER_GROUPS_MAX = 256 };

struct router_rule {
    enum router_kind kind;
    uint32_t n_groups, n_groups_chosen; /* up to 1: no groups */
    float scale;                        /* 0: none */
};

#endif

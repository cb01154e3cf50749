/* The reference of the MoE block's suites: small cases, their weights and tokens, and the answer of
 * one process that computes each token by itself, by the numerics law. */
#ifndef SHOAL_TESTS_UTIL_MOE_REFERENCE_H
#define SHOAL_TESTS_UTIL_MOE_REFERENCE_H

#include "kernels/ops.h"
#include "moe/moe.h"

enum { D = 48, E = 6, ZERO = 5, K = 2, F = 40, LEAF = 16, GRID = 32, N_MAX = 80 };

/* The tokens of a case, and its options. */
struct moe_case {
    uint32_t n_tokens; /* of all replicas */
    bool first_replica_idle;
    bool same_experts;       /* all tokens choose experts 2 and 3; the others get none */
    bool huge;               /* expert 3's down projection leaves the grid */
    enum router_kind router; /* ROUTER_SIGMOID: with 3 groups, 2 of them chosen, and a bias */
    bool has_shared;
    float residual_scale;
    enum capacity_policy policy;
    double capacity_factor;
    bool placed;       /* experts are not placed by their ids */
    uint32_t n_copies; /* of experts, if they are placed */
    bool has_zero;     /* beside E experts there are ZERO that give back their input */
    bool only_zero;    /* all tokens choose two such experts */
};

struct moe_model {
    uint32_t n_zero;
    float router[E + ZERO][D], gate[E][F][D], up[E][F][D], down[E][D][F];
    float x[N_MAX][D], h[N_MAX][D], shared[N_MAX][D], bias[E];
};

struct moe_answer {
    float logits[N_MAX][E], h[N_MAX][D], weights[N_MAX][K];
    int32_t ids[N_MAX][K]; /* -1: dropped, or a zero-computation expert */
    float zero[N_MAX];     /* the sum of the router's weights for zero-computation experts */
    int32_t bad[N_MAX], dropped[N_MAX];
    uint64_t load[E];
};

/* Local. The weights and tokens of a case, always the same ones. */
void util_moe_model(const struct moe_case *c, struct moe_model *m);

/* Local. The answer for the first c->n_tokens tokens of m. */
void util_moe_answer(const struct moe_case *c, const struct moe_model *m, struct moe_answer *a);

/* Local. Whether expert e is among the first n experts that token t chose. */
bool util_moe_chosen(const struct moe_answer *a, size_t t, size_t n, int32_t e);

/* Local. The case's router and residual scale, as the block takes them. */
struct router_rule util_moe_rule_of(const struct moe_case *c);
float util_moe_scale_of(const struct moe_case *c);

#endif

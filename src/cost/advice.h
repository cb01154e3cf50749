/* Advice after a run: rules over the run's measurements. Each piece of advice names the bottleneck,
 * what to change or which command finds the cause, and the expected speedup. Pure. */
#ifndef SHOAL_COST_ADVICE_H
#define SHOAL_COST_ADVICE_H

#include "cost/step_cost.h"

enum { ADVICE_MAX = 16, ADVICE_BYTES = 400 };

/* The measurements at a run's end. Fractions are of the run's time. */
struct advice_facts {
    uint32_t tp, pp, dp, ep, ranks_of_host;
    bool has_experts, experts_cross_hosts;
    struct cost predicted; /* time by parts; all zeros: nothing was predicted */
    double predicted_s, measured_s;
    double communication, waiting; /* measured; waiting: of stages for each other */
    double planning, drafting;     /* of the lead; drafting: with --draft */
    double rows_of_step;           /* mean, of a replica */
    double max_batch;              /* 0: not given */
    double weight_bytes;           /* mean bytes of a weight of experts or FFN */
    double preempted,
        recomputed; /* preemptions per admission; fraction of the rows that were computed again */
    double expert_evenness; /* rows of the busiest rank over the mean; 0: not known */
    bool placed_by_load;    /* experts are not in the order of their ids */
};

struct advice {
    const char *rule; /* its name, for tests */
    double gain;      /* how many times as fast the job would be; at least 1.05 */
    char text[ADVICE_BYTES];
};

/* Local. Writes at most ADVICE_MAX pieces of advice, the largest gain first; returns how many. A
 * rule whose gain would be below 1.05 is silent. */
size_t advice_of(const struct advice_facts *f, struct advice out[ADVICE_MAX]);

#endif

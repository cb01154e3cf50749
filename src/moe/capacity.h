/* Capacity factors: an expert serves at most C tokens of a microbatch, on whichever ranks they are
 * (with CAPACITY_TOP1 also all first choices beyond C). A pure function: all ranks of a stage
 * compute the same from the gathered router logits. A token's result then depends on the other
 * tokens of its microbatch, so bytes may differ from those of another layout or batch; the report
 * says so. Source: GShard (Lepikhin et al., 2020), section 2.2: choices are served by rank of
 * preference, then by token order. */
#ifndef SHOAL_MOE_CAPACITY_H
#define SHOAL_MOE_CAPACITY_H

#include <stddef.h>
#include <stdint.h>

enum capacity_policy {
    CAPACITY_DROPLESS, /* no limit */
    CAPACITY_DROP,     /* a choice beyond the capacity is dropped */
    CAPACITY_NEXT,     /* the choice goes to the best expert with room that the token has not
                          chosen; without one it is dropped */
    CAPACITY_TOP1,     /* the choice is dropped, but a token's first choice is always kept */
};
/* The policies that --capacity-policy can name. */
#define CAPACITY_WORDS                                                                             \
    {"drop", CAPACITY_DROP}, {"next", CAPACITY_NEXT},                                              \
    {                                                                                              \
        "top1", CAPACITY_TOP1                                                                      \
    }

/* Local. Returns C = ceil(factor * n_tokens * n_chosen / n_experts), at least 1. */
uint32_t capacity_of(double factor, size_t n_tokens, uint32_t n_chosen, uint32_t n_experts);

/* The router's choices for a microbatch, and the choices that remain within the capacity. */
struct capacity_work {
    const float *logits;  /* [T, E] */
    const int32_t *ids;   /* [T, K] as the router chose, ascending */
    const float *weights; /* [T, K] */
    int32_t *kept_ids;    /* [T, K] out, ascending; -1 (at the end): dropped */
    float *kept_weights;  /* [T, K] out; a rerouted choice: its weight * exp(l_new - l_old) */
    int32_t *n_dropped;   /* [T] out */
    uint32_t *load;       /* [E] scratch */
    size_t n_tokens;
    uint32_t n_experts, n_chosen; /* K at most CAPACITY_CHOSEN_MAX */
};

enum { CAPACITY_CHOSEN_MAX = 256 };

/* Local. Serves all first choices in token order, then all second ones, and so on. */
void capacity_apply(enum capacity_policy policy, uint32_t capacity,
                    const struct capacity_work *work);

#endif

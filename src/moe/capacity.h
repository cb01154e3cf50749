/* Capacity factors: at most C tokens per expert, agreed over the whole microbatch. Pure; every rank
 * of a stage computes the same from the gathered router logits. Depends on the batch, so it stands
 * outside the same-bytes law; the run and its report say so.
 * Source: GShard (Lepikhin et al., 2020), section 2.2: choices are served by rank of preference,
 * then by token order. */
#ifndef SHOAL_MOE_CAPACITY_H
#define SHOAL_MOE_CAPACITY_H

#include <stddef.h>
#include <stdint.h>

enum capacity_policy {
    CAPACITY_DROPLESS, /* no limit */
    CAPACITY_DROP,     /* a choice beyond the capacity is dropped */
    CAPACITY_NEXT,     /* it goes to the best expert with room that the token has not chosen */
    CAPACITY_TOP1,     /* it is dropped, but a token's first choice is always kept */
};
/* The policies that --capacity-policy can name. */
#define CAPACITY_WORDS                                                                             \
    {"drop", CAPACITY_DROP}, {"next", CAPACITY_NEXT},                                              \
    {                                                                                              \
        "top1", CAPACITY_TOP1                                                                      \
    }

/* Local. C = ceil(factor * n_tokens * n_chosen / n_experts), at least 1. */
uint32_t capacity_of(double factor, size_t n_tokens, uint32_t n_chosen, uint32_t n_experts);

/* The router's choices of a whole microbatch, and what became of them. */
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

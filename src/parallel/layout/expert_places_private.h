/* Shared by expert_places.c, expert_deal.c, expert_replan.c and replan_ledger.c: one layer while
 * its experts are placed, and the lists of places. */
#ifndef SHOAL_PARALLEL_LAYOUT_EXPERT_PLACES_PRIVATE_H
#define SHOAL_PARALLEL_LAYOUT_EXPERT_PLACES_PRIVATE_H

#include "parallel/layout/expert_places.h"

/* An expert, or a copy of it, that needs a place. */
struct item {
    int64_t load; /* its share of the expert's load */
    uint32_t expert, part;
};

/* The state of one layer while its experts are placed. */
struct deal {
    const struct layout *l;
    const int64_t *load;     /* [E] */
    uint32_t n_hosts;        /* hosts that the parts are on */
    const uint32_t *host_of; /* [ep] the host of each part; hosts are numbered from 0 */
    uint32_t *n_copies;      /* [E] */
    struct item *items;      /* [n_items], with room for P; they are dealt in this order */
    uint32_t n_items;
    uint32_t *room;      /* [ep] items that a part may have */
    int64_t *of_part;    /* [ep] */
    int64_t *before;     /* [ep] load in the stage's layers before */
    uint32_t *n_in_part; /* [ep] */
    uint16_t *in_part;   /* [ep, E] copies of each expert */
    uint16_t *on_host;   /* [n_hosts, E] likewise */
};

/* Ways to place experts and copies. No way is the best for all loads, so expert_places_create tries
 * all and takes the one whose expected rows are the most even. */
enum deal_way {
    DEAL_EVENLY,        /* copies of the heaviest experts, each with an even share of the load */
    DEAL_OVERFLOW,      /* first one copy of each expert; then each further copy takes load that
                         the fullest part has above the mean, as far as the emptiest part with room
                         can take it. Copies of heavy experts fill the other places, so that their
                         hosts need not ask other hosts for these experts */
    DEAL_NEAR,          /* as DEAL_OVERFLOW, but a copy stays on the fullest part's host where
                           that helps */
    DEAL_OVERFLOW_ONLY, /* as DEAL_OVERFLOW, but the other places repeat an expert of their part
                           and get no rows */
    DEAL_NEAR_ONLY,     /* as DEAL_NEAR, with the other places as in DEAL_OVERFLOW_ONLY */
    DEAL_WAY_COUNT
};

static inline uint32_t deal_n_experts(const struct deal *d)
{
    return d->l->model.arch->moe.n_experts;
}

/* Return the address of the number of copies of an expert in a part, and on the part's host. */
static inline uint16_t *deal_in_part(const struct deal *d, uint32_t part, uint32_t e)
{
    return &d->in_part[(size_t)part * deal_n_experts(d) + e];
}

static inline uint16_t *deal_on_host(const struct deal *d, uint32_t part, uint32_t e)
{
    return &d->on_host[(size_t)d->host_of[part] * deal_n_experts(d) + e];
}

/* Local. Places the layer's experts and all of its copies: sets n_copies, items, in_part and
 * of_part. Without copies all ways give the same. */
void deal_layer(struct deal *d, enum deal_way way);

/* Local. Makes a layer's `first` and `place` from its `expert`. */
void expert_places_list(struct expert_places *p, uint32_t layer);

/* Local. Copies places, with another load [L, E]. Errors: STATUS_MEMORY. */
struct status expert_places_copy(const struct layout *l, const struct expert_places *from,
                                 const int64_t *load, struct expert_places **out);

/* Local. Sets *most to the expected rows of a layer's fullest part. of_part [ep]: scratch. Errors:
 * STATUS_MEMORY. */
struct status expert_places_fullest(const struct layout *l, const struct expert_places *p,
                                    const int64_t *load, uint32_t layer, int64_t *of_part,
                                    int64_t *most);

/* Local. Returns how many places of a layer have another expert than in `old`. */
uint64_t expert_places_moves(const struct expert_places *old, const struct expert_places *p,
                             uint32_t layer);

#endif

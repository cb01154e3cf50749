/* Places experts on ranks by a load that an earlier job counted, so that the ranks of a layer
 * compute about the same number of rows (as EPLB does, DeepSeek-V3, 2024, but without copies of
 * experts). A pure function of the load and the layout, in integers, so every rank gets the same
 * result. Sums over experts have no order, so results do not depend on the places. */
#ifndef SHOAL_PARALLEL_LAYOUT_EXPERT_PLACES_H
#define SHOAL_PARALLEL_LAYOUT_EXPERT_PLACES_H

#include "base/strbuf.h"
#include "parallel/layout/layout.h"

/* The places of experts. layout_experts cuts places 0 to E - 1 of a layer into parts. */
struct expert_places {
    uint32_t n_experts; /* E */
    uint32_t *place;    /* owned [L, E] of each expert of each layer */
    uint32_t *expert;   /* owned [L, E] at each place */
};

enum { EXPERT_LOAD_MAX = 1 << 30 /* of one expert; greater counts of a file are scaled down */ };

/* Local. The load of each expert, of a file that --metrics wrote: *out [L, E] in new memory, to be
 * freed with mem_free; layers without experts have zeros. Errors: STATUS_INPUT, naming the file,
 * when --metrics did not write it, or when its job did not end, had no experts or had another
 * model; STATUS_USAGE when m has no experts. */
struct status expert_load_read(const char *path, const struct layout_model *m, int64_t **out);

/* Local. Deals the experts of each layer, the heaviest first, to the part with the least load that
 * has room (longest processing time first, Graham 1969; of equal parts to the one with the least
 * in the layers before), then swaps experts of the fullest part with others' while that helps. A
 * part has as many experts as layout_experts says. load [L, E], each 0 to EXPERT_LOAD_MAX. Errors:
 * STATUS_MEMORY. destroy accepts NULL. */
struct status expert_places_create(const struct layout *l, const int64_t *load,
                                   struct expert_places **out);
void expert_places_destroy(struct expert_places **p);

/* Local. Load of each of the ep parts in a layer: of_part [ep]; p NULL: in the order of ids. */
void expert_part_loads(const struct layout *l, const struct expert_places *p, const int64_t *load,
                       uint32_t layer, int64_t *of_part);

/* How evenly the parts are loaded: the fullest by the mean, over the layers that have a load. */
struct expert_evenness {
    double mean, worst; /* 1: perfectly; 0: no layer has a load */
};

/* Local. p NULL: in the order of ids. Errors: STATUS_MEMORY. */
struct status expert_evenness_of(const struct layout *l, const struct expert_places *p,
                                 const int64_t *load, struct expert_evenness *out);

#endif

/* Places experts on ranks by a load that this job or an earlier one counted, so that the ranks of a
 * layer compute about the same number of rows, with copies of the experts that have the most (the
 * idea is EPLB's: DeepSeek-V3, 2024, section 3.4). A pure function of the load, the layout and the
 * ranks' hosts, in integers, so every rank gets the same result. Sums over experts have no order,
 * so results do not depend on the places. */
#ifndef SHOAL_PARALLEL_LAYOUT_EXPERT_PLACES_H
#define SHOAL_PARALLEL_LAYOUT_EXPERT_PLACES_H

#include "base/strbuf.h"
#include "parallel/layout/expert_copies.h"
#include "parallel/layout/layout.h"
#include "parallel/topology/topo.h"

/* The places of experts. layout_experts divides a layer's places, 0 to P - 1, between the parts. */
struct expert_places {
    uint32_t n_experts, n_places; /* E, P */
    uint32_t *expert;             /* owned [L, P] the expert at each place */
    /* owned [L, E + 1] and [L, P]: expert e of a layer is at place[first[e]] to
     * place[first[e + 1] - 1], ascending; without copies first[e] is e */
    uint32_t *first, *place;
    uint32_t *part_of; /* owned [P] the part of each place */
    uint32_t *host_of; /* owned [n_ranks] the host of each rank of the layout */
    int64_t *load;     /* owned [L, E] the load by which experts were placed */
};

enum {
    EXPERT_LOAD_MAX = 1 << 30 /* the largest load of an expert; a layer with larger counts is
                                 scaled down until all fit */
};

/* Local. Reads the load of each expert from a file that --metrics wrote: *out [L, E], which the
 * caller frees with mem_free; layers without experts have zeros. Errors: STATUS_INPUT, naming the
 * file, when it cannot be read, when --metrics did not write it, or when its job did not end, had
 * no experts or had another model; STATUS_USAGE when m has no experts; STATUS_MEMORY. */
struct status expert_load_read(const char *path, const struct layout_model *m, int64_t **out);

/* Local. As expert_load_read, for counts that a job keeps beside its journal (job/job_counts.h). A
 * file that is missing, torn or foreign is no error: *out is NULL and *unusable says why. Errors:
 * STATUS_INPUT when the counts are of another model; STATUS_USAGE, STATUS_MEMORY as above. */
struct status expert_load_read_kept(const char *path, const struct layout_model *m, int64_t **out,
                                    struct status *unusable);

/* Local. Halves the counts of a layer, load [n], until the largest is at most EXPERT_LOAD_MAX. */
void expert_load_fit(int64_t *load, size_t n);

/* Local. Places each layer's experts. Deals them, the heaviest first, to the part with the least
 * load that has room (longest processing time first, Graham 1969); of equal parts, to the one with
 * the least load in the stage's layers before. Then swaps experts of the fullest part with experts
 * of others while that helps. With copies (l->n_expert_copies in a layer) tries several ways (enum
 * deal_way) and keeps the one whose fullest part expects the fewest rows. A part has as many places
 * as layout_experts says. load [L, E]: each 0 to EXPERT_LOAD_MAX. host_of [n_ranks]: the host of
 * each rank of the layout; NULL: one host. Errors: STATUS_MEMORY. destroy accepts NULL. */
struct status expert_places_create(const struct layout *l, const int64_t *load,
                                   const uint32_t *host_of, struct expert_places **out);
void expert_places_destroy(struct expert_places **p);

/* Local. As expert_places_create, with the hosts of a topology. order [n_ranks]: the launcher's
 * number of each rank of the layout. */
struct status expert_places_on(const struct layout *l, const int64_t *load, const struct topo *t,
                               const uint32_t *order, struct expert_places **out);

/* Local. Returns a layer's places as input of expert_copies_share, with all parts equally near and
 * no rows from other sources. The arrays are borrowed from p. */
struct expert_copies expert_copies_of(const struct layout *l, const struct expert_places *p,
                                      uint32_t layer);

/* Local. Sets distance [ep] to the enum copy_distance of each part from a rank of the layout, in
 * the rank's own replica of the experts. */
void expert_distances(const struct layout *l, const struct expert_places *p, uint32_t rank,
                      uint8_t *distance);

/* Local. Computes sent [ep, ep]: the rows of a layer that a rank of each part sends to each part,
 * if all ranks have equally many tokens, which choose experts as often as the load [E] says. Each
 * source fills the parts that get the fewest rows from all sources. So every rank knows before a
 * step, without a message, how many rows each part gets from the others. Errors: STATUS_MEMORY. */
struct status expert_flow(const struct layout *l, const struct expert_places *p,
                          const int64_t *load, uint32_t layer, int64_t *sent);

/* The expected rows of a layer under that flow. */
struct expert_rows_expected {
    int64_t *of_part; /* [ep] */
    /* fraction of the choices that are computed on another host than the token's */
    double other_hosts;
    double hosts; /* mean number of other hosts that a token goes to, if its choices were
                     independent */
};

/* Local. Computes a layer's expected rows into *out; the caller provides out->of_part [ep]. load
 * [L, E]. With p NULL, experts are placed in the order of their ids, without copies. Then, and with
 * one host, all members but of_part are 0. Errors: STATUS_MEMORY. */
struct status expert_rows_expect(const struct layout *l, const struct expert_places *p,
                                 const int64_t *load, uint32_t layer,
                                 struct expert_rows_expected *out);

/* How evenly the parts are loaded: the fullest part's rows / the mean, over the layers that have a
 * load. */
struct expert_evenness {
    double mean, worst; /* 1: perfectly even; 0: no layer has a load */
};

/* Local. Computes the evenness of a placement under a load [L, E]. p NULL: experts are placed in
 * the order of their ids. Errors: STATUS_MEMORY. */
struct status expert_evenness_of(const struct layout *l, const struct expert_places *p,
                                 const int64_t *load, struct expert_evenness *out);

/* Local. Returns a lower bound, over all placements, of the fullest part's rows / the mean, given
 * that an expert's rows go to at most as many parts as it has copies. load [E]: of one layer.
 * n_copies: copies beyond the first of each expert, together. Returns 0 when there is no load. */
double expert_bound_of(const int64_t *load, uint32_t n_experts, uint32_t n_parts,
                       uint32_t n_copies);

/* Local. Returns the mean and the worst of this bound over the layers that have a load, for load
 * [L, E] and the layout's copies. */
struct expert_evenness expert_least_of(const struct layout *l, const int64_t *load);

#endif

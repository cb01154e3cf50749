/* Chooses tp, pp, ep, dp from the topology where flags leave them open, and orders the ranks: tp
 * inside an L3, NUMA node or host; ep inside a host before it crosses hosts; pp across hosts; dp
 * outermost or, where experts spread over replicas, pp. Pure: `shoal plan` and a running job
 * compute the same. */
#ifndef SHOAL_PARALLEL_LAYOUT_LAYOUT_CHOOSE_H
#define SHOAL_PARALLEL_LAYOUT_LAYOUT_CHOOSE_H

#include "parallel/layout/layout.h"
#include "parallel/topology/topo.h"

/* Local. Sets *out to the chosen layout, and order [n_ranks]: order[r] is the launcher's rank that
 * becomes rank r of the reordered world. A layout that cannot fit in memory is still returned, with
 * *fits = false and the shortfall in out->why. Errors: as in layout_build. */
struct status layout_choose(const struct layout_model *model, const struct topo *t,
                            const struct layout_flags *flags, const struct layout_budget *budget,
                            struct layout *out, uint32_t *order, bool *fits);

/* Local. Sets l->cuts_outputs and l->cuts_expert_outputs as a job of this layout would on CPUs that
 * share memory inside each host, so that a plan shows what ranks will hold. A job itself asks its
 * ranks (model/stage.h). */
void layout_expect_cuts(const struct topo *t, const uint32_t *order, struct layout *l);

#endif

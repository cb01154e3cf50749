/* The text of `shoal plan`: the machine, the layout and the reasons for it, the parts that each
 * rank holds, memory, and the pipeline's timeline. Formats only; decides nothing. */
#ifndef SHOAL_PARALLEL_LAYOUT_PLAN_REPORT_H
#define SHOAL_PARALLEL_LAYOUT_PLAN_REPORT_H

#include "base/strbuf.h"
#include "parallel/layout/expert_places.h"
#include "parallel/layout/layout_choose.h"
#include "parallel/layout/layout_cost.h"

/* Local. Appends the report to `out`. order [n_ranks] and l as layout_choose gave them. Ranks that
 * hold equal parts of the model share a line. If that makes more than 40 lines, the lines show
 * numbers of units instead of ranges. Errors: STATUS_MEMORY. */
struct status plan_report(const struct layout *l, const struct topo *t, const uint32_t *order,
                          const struct layout_budget *budget, struct strbuf *out);

/* Local. Appends how evenly the ep parts share a load [L, E] when experts are placed by id and by
 * l->expert_places, which may not be NULL. Errors: STATUS_MEMORY. */
struct status plan_report_experts(const struct layout *l, const int64_t *load, struct strbuf *out);

/* Local. Appends which part of the experts streams from disk, and how many rows of a step take as
 * long to compute as a disk of disk_bytes_s takes to read. Appends nothing when experts do not
 * stream, the layout does not fit or disk_bytes_s is 0. Errors: STATUS_MEMORY. */
struct status plan_report_stream(const struct layout *l, const struct topo *t,
                                 const uint32_t *order, const struct layout_budget *budget,
                                 double disk_bytes_s, struct strbuf *out);

/* Local. Returns which fraction of the worst rank's streamed experts a step reads from disk if
 * every expert has rows; fit as layout_fit_of gave it. 0: all are in memory. */
double plan_streamed_part(const struct layout *l, const struct layout_budget *budget,
                          const struct layout_fit *fit);

/* Local. Appends the rows of a step for each expert and, if experts of one replica are on several
 * hosts and not on devices, a token's bytes between hosts: for a router that chooses evenly and,
 * unless load is NULL, for the load [L, E], which needs l->expert_places. Appends nothing for a
 * dense model. Errors: STATUS_MEMORY. */
struct status plan_report_wire(const struct layout *l, const struct layout_budget *budget,
                               const int64_t *load, struct strbuf *out);

#endif

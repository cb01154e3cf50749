/* The forecast of a running job (--nodes): the layout is chosen by the node's measured speeds, each
 * step that the lead plans is also given to the cost model, and the end compares. */
#ifndef SHOAL_JOB_JOB_FORECAST_H
#define SHOAL_JOB_JOB_FORECAST_H

#include "job/job.h"

/* **Collective (world)**. With --nodes, reads the file on the lead and shares it, so that all ranks
 * choose the same layout: sets j->forecast. Call it before the layout is chosen. Errors, the same
 * on all ranks: node_read's. */
struct status job_forecast_read(struct job *j);

/* Local. Returns what layouts are compared by; NULL without --nodes. Borrowed. */
const struct layout_estimate *job_forecast_estimate(const struct job *j);

/* Local, lead. Begins the forecast of the layout that was chosen. Errors: cost_model_init's,
 * STATUS_MEMORY. */
struct status job_forecast_start(struct job *j);

/* Local, lead. Adds a plan that is about to be submitted. */
void job_forecast_step(struct job *j, const struct step_plan *plan);

/* Local, lead. Logs predicted beside measured times, and advice. all [ranks]. Without --nodes only
 * the advice that needs no prediction. */
void job_forecast_report(const struct job *j, const struct engine_stats *all);

/* Local. Accepts none. */
void job_forecast_destroy(struct job *j);

#endif

/* A job without a model's weights (dry_run.c). */
#ifndef SHOAL_JOB_DRY_RUN_H
#define SHOAL_JOB_DRY_RUN_H

#include "base/config.h"
#include "job/job_options.h"

struct serve_summary; /* serve/schedule/stats.h */
struct step_plan;     /* plan/step_plan.h */

/* Sees the steps of a dry run, for a forecast. */
struct dry_run_watch {
    void (*step)(void *user, uint32_t group, const struct step_plan *plan);
    void *user;
    double mean_answer; /* answers end at random after this many tokens on average, but never beyond
                           max_tokens; 0, or no end tokens: they have max_tokens each */
};

/* Local. Runs the job as a dry run and shows each plan to the watch. `options` gives the files,
 * --dp, --pp and --kv-blocks. Sets *out to the counts at the end, unless it fails. Errors: those of
 * the job's files and lines, STATUS_DRAINED (a signal), STATUS_MEMORY. */
struct status dry_run_simulate(const struct job_options *options, struct config env,
                               const struct dry_run_watch *watch, struct serve_summary *out);

/* Local. On the launcher's first process, runs the job and returns the exit status; on the others,
 * returns 0 at once. */
int dry_run(const struct job_options *options, struct config env);

#endif

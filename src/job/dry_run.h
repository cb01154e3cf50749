/* A job without a model (dry_run.c). */
#ifndef SHOAL_JOB_DRY_RUN_H
#define SHOAL_JOB_DRY_RUN_H

#include "base/config.h"
#include "job/job_options.h"

/* Local. Returns the process's exit status. */
int dry_run(const struct job_options *options, struct config env);

#endif

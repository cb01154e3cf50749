/* The files a job names on its command line, held against each other before any of them is touched:
 * a result file must not take the place of the model. Opens nothing. Called by job.c. */
#ifndef SHOAL_JOB_PATHS_H
#define SHOAL_JOB_PATHS_H

#include "job.h"

/* Local. Errors: STATUS_USAGE when two flags name one file and one of them would write it;
 * STATUS_IO when a file cannot be written where it should be. */
struct status job_paths_check(const struct job_options *options);

/* Local. Errors: STATUS_INPUT when the model is what `shoal convert` makes checkpoints of. */
struct status job_paths_check_model(const char *model);

#endif

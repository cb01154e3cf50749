/* The files a job names on its command line, held against each other before any of them is touched:
 * a result file must not take the place of the model. Opens nothing. Called by job.c, bench
 * and the commands that take or make checkpoints. */
#ifndef SHOAL_JOB_JOB_PATHS_H
#define SHOAL_JOB_JOB_PATHS_H

#include "job/job_options.h"

/* Local. Errors: STATUS_USAGE when a name is empty, or two flags name one file and one of them
 * would write it; STATUS_IO when a file cannot be written where it should be. */
struct status job_paths_check(const struct job_options *options);

/* Local. Whether a file can be written there at the end, hours later. Errors: STATUS_IO names the
 * flag. */
struct status job_paths_check_written(const char *flag, const char *path);

/* Local. Errors: STATUS_INPUT when the model is what `shoal convert` makes checkpoints of;
 * STATUS_USAGE when its name is empty. */
struct status job_paths_check_model(const char *model);

/* Local. For commands that make one file out of another: `to` is neither `from` nor `more` (NULL:
 * there is none), nor named like a source, nor a device or a pipe. Errors: STATUS_USAGE; STATUS_IO
 * when `to` is a folder. */
struct status job_paths_check_copy(const char *from, const char *to, const char *more);

#endif

/* Checks the files that a command line names, before any of them is written: for instance, a result
 * file must not replace the model. Called by job_open.c, job_draft.c, bench and the commands that
 * read or write checkpoints. */
#ifndef SHOAL_JOB_JOB_PATHS_H
#define SHOAL_JOB_JOB_PATHS_H

#include "job/job_options.h"
#include "serve/input/input_files.h"

/* Local. Checks the files of JOB_FILE_FLAGS except --journal, of --pair-template and of
 * --expert-load. Errors: STATUS_USAGE when a name is empty, when two flags name one file and one of
 * them would write it, or when the output cannot have this name or be a pipe; STATUS_IO when a file
 * cannot be written. */
struct status job_paths_check(const struct job_options *options);

/* Local. Refuses an output file that is one of `inputs`, once the patterns of --input are expanded,
 * or that a pattern will match when the job resumes. Errors: STATUS_USAGE. */
struct status job_paths_check_inputs(const struct job_options *options,
                                     const struct input_files *inputs);

/* Local. Checks that a file can be written at `path`, now rather than hours later. Errors:
 * STATUS_IO names the flag. */
struct status job_paths_check_written(const char *flag, const char *path);

/* Local. Checks a file that another flag writes, as job_paths_check checks its own. path NULL or
 * "-": no file. Errors: STATUS_USAGE, STATUS_IO. */
struct status job_paths_check_more(const struct job_options *options, const char *flag,
                                   const char *path);

/* Local. Checks the name of a checkpoint, which a flag gives. Errors: STATUS_INPUT when it is a
 * folder, or a file that `shoal convert` reads; STATUS_USAGE when it is empty. */
struct status job_paths_check_model(const char *flag, const char *model);

/* Local. For commands that make a checkpoint from another file: checks that `to` is neither `from`
 * nor `more` (NULL: none), does not have the suffix of a source, and is not a device or a pipe.
 * Errors: STATUS_USAGE; STATUS_IO when `to` is a folder; STATUS_MEMORY. */
struct status job_paths_check_copy(const char *from, const char *to, const char *more);

#endif

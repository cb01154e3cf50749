/* The path of a job's journal, and the settings on which its rows depend. Called by job_open.c and
 * job_counts.c on the lead. */
#ifndef SHOAL_JOB_JOB_JOURNAL_H
#define SHOAL_JOB_JOB_JOURNAL_H

#include "base/strbuf.h"
#include "job/job.h"

/* Local. *out = the journal's path, freed with mem_free, or NULL when the job has no journal:
 * --no-journal, --logits (which cannot be resumed), or an output that is not a file. Errors:
 * STATUS_USAGE (--journal or --retry-errors without a journal, or an empty name; --restart with
 * --retry-errors), STATUS_MEMORY. */
struct status job_journal_path(const struct job_options *o, char **out);

/* Local. Makes the folder of --journal if it is missing. *is_new: it was missing. Errors:
 * STATUS_IO. A job that is refused removes its new folder if it is empty; another job that is about
 * to use the folder may then fail with STATUS_IO. */
struct status job_journal_folder(const struct job_options *o, bool *is_new);

/* Local. Appends all settings that a resumed run must share, as "name=value" lines: the command,
 * hashes of the checkpoint, adapters and templates, how sums are made, the names of several inputs,
 * the input part, --input-field, --save-logprobs, --save-hidden, and the effective values of the
 * flags whose table rows have .journal. Layout, batch and threads are not among these. Errors:
 * STATUS_MEMORY. */
struct status job_journal_settings(const struct job *j, struct strbuf *out);

/* Local. Appends a description of the job, for `shoal status`: command, model, ranks and layout.
 * Errors: STATUS_MEMORY. */
struct status job_journal_session(const struct job *j, struct strbuf *out);

#endif

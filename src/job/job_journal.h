/* The journal of a job, as main sees it: where it stands, and which settings its rows depend on.
 * Called by job.c on the lead. */
#ifndef SHOAL_JOB_JOB_JOURNAL_H
#define SHOAL_JOB_JOB_JOURNAL_H

#include "base/strbuf.h"
#include "job/job.h"

/* Local. The journal's path in new memory, or NULL when the job has none: --no-journal, an output
 * that is no file, --logits (which cannot be resumed). --journal's folder is made. Errors:
 * STATUS_USAGE (--journal, --retry-errors or --restart without a journal), STATUS_IO,
 * STATUS_MEMORY. */
struct status job_journal_path(const struct job_options *o, char **out);

/* Local. All that changes a row's bytes, as "name=value" lines: the checkpoint's digest, effective
 * sampling defaults, context, KV type, capacity. Not the layout, batch, kernels or threads. */
struct status job_journal_settings(const struct job *j, struct strbuf *out);

/* Local. Who runs: ranks and layout, for `shoal status`. */
struct status job_journal_session(const struct job *j, struct strbuf *out);

#endif

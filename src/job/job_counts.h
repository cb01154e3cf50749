/* Counts of the tokens that chose each expert, kept beside a job's journal in JOURNAL.experts. The
 * same job begins with them when it resumes with --expert-replan, and another job when
 * --expert-load names the journal. The file is what --metrics writes, reduced to the fields that
 * --expert-load reads. It changes no byte of a result, so a job without it, or with a torn one,
 * goes on. Called by job_experts.c, job_open.c, job_report.c and `shoal plan`. */
#ifndef SHOAL_JOB_JOB_COUNTS_H
#define SHOAL_JOB_JOB_COUNTS_H

#include "parallel/layout/expert_places.h"

struct job;

/* Local. Reads --expert-load: *out [L, E], which the caller frees with mem_free. path: a file of
 * --metrics, or a journal, beside which the counts are. Unusable counts of a journal are no error:
 * *out is NULL and *unusable says why. Errors: expert_load_read's and expert_load_read_kept's. */
struct status job_counts_read_flag(const char *path, const struct layout_model *m, int64_t **out,
                                   struct status *unusable);

/* Local, lead. For a job with experts that writes a journal: sets j->experts.counts_path, and
 * j->experts.earlier to the counts of the job's earlier runs, unless it begins anew. Ignores counts
 * that cannot be used, also another model's, with a warning. Errors: STATUS_MEMORY;
 * job_journal_path's. */
struct status job_counts_open(struct job *j);

/* Local, lead. Called once the output is claimed: if the job begins anew, removes the counts that
 * an earlier job left. */
void job_counts_begin(const struct job *j);

/* Local, lead. Writes the counts of the earlier runs plus this run's, load [L, E]; nothing without
 * a journal or without tokens. Replaces the file by a rename, without fsync: a killed job leaves
 * the old file or the new one, a crash of the machine perhaps a torn one. The file may be older
 * than the journal, or have counted rows that are computed again. Only warns of a failure. */
void job_counts_save(const struct job *j, const int64_t *load);

#endif

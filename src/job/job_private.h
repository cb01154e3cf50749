/* Functions that the files of a job share; job.c and dry_run.c call them. */
#ifndef SHOAL_JOB_JOB_PRIVATE_H
#define SHOAL_JOB_JOB_PRIVATE_H

#include "job/job.h"

/* --- job_open.c --- */

/* Local. Checks and settles the flags that need no checkpoint. Errors: STATUS_USAGE. */
struct status job_check_options(struct job *j);

/* Local. Opens the checkpoint, reads its config.json into j->model and checks the flags against it.
 * Errors: STATUS_INPUT, STATUS_USAGE, STATUS_MEMORY. */
struct status job_read_model(struct job *j);

/* Local. The part of job_read_model that needs j->model alone: context, step size, caches. A dry
 * run without a checkpoint calls it by itself. Errors: STATUS_USAGE. */
struct status job_read_limits(struct job *j);

/* Local, lead. Opens the job's files and makes j->lead: before the weights are loaded, so that a
 * job that cannot run says so soon, and one that is done already loads nothing. Errors:
 * lead_create's. */
struct status job_open_lead(struct job *j);

/* --- job_device.c: nothing happens without --device cuda --- */

/* Local. Binds this rank near its GPU; before threads and large memory are made, which go where the
 * rank runs. Errors: device_locate's. */
struct status job_place_by_device(struct job *j);

/* Local. Opens this rank's GPU: j->device, j->kern.device. Errors: device_open's. */
struct status job_open_device(struct job *j);

/* **Collective (world)**. Opens the ways between GPUs and logs them and the GPU. Errors:
 * device_comm_open's, job_devices_same's. */
struct status job_open_device_comm(struct job *j);

/* **Collective (world)**. Whether the GPUs of all ranks compute alike: before the ways between them
 * are opened, and after loading, which chooses algorithms. Errors: device_comm_same's. */
struct status job_devices_same(struct job *j);

/* **Collective (world)**. Rows from which a step goes in halves (model/stage.h); 0: never. */
size_t job_halves_from(struct job *j);

/* --- job.c --- */

/* Local. Copies the options; nothing is open yet. */
void job_init(struct job *j, const struct job_options *options, struct config env);

/* Local. Gives everything back but comm and watchdog. */
void job_close(struct job *j);

/* --- job_report.c --- */

/* Local, lead. Says on stderr which layout was chosen and what was loaded. */
void job_report_start(const struct job *j);

/* **Collective (world)**. After the last step: the lead prints the summary, the time per stage, the
 * experts' load when asked for, and writes --metrics. Errors: STATUS_IO, STATUS_MEMORY. */
struct status job_report_end(struct job *j);

/* Times of the ranks of one pipeline stage: means over them in seconds, the largest peak. The parts
 * add up to about `elapsed`. */
struct stage_times {
    double compute_s, communication_s, waiting_s, planning_s, elapsed_s;
    uint64_t peak_bytes;
};

/* Local. all [ranks] */
struct stage_times job_stage_times(const struct layout *l, const struct engine_stats *all,
                                   uint32_t stage);

/* --- job_metrics.c --- */

/* Local, lead. Writes --metrics (docs/metrics.md) anew. all [ranks], load [L, E] of the experts;
 * both NULL while the run goes on, load also of dense models. Errors: STATUS_IO, STATUS_MEMORY. */
struct status job_metrics_write(const struct job *j, const struct serve_summary *m,
                                const struct engine_stats *all, const int64_t *load);

/* Local, lead. Between steps: writes --metrics when 10 s have passed. A failure is logged, not
 * more. */
void job_metrics_update(struct job *j);

/* --- job_trace.c --- */

/* **Collective (world)**. With --trace: start measures the clocks and begins the timeline; end ends
 * it and writes the file. Errors: STATUS_IO, STATUS_MEMORY. */
struct status job_trace_start(struct job *j);
struct status job_trace_end(struct job *j);

/* Local, any thread, before this rank leaves because another one is lost: writes what this rank did
 * until now to a file of its own. A failure is logged, not more. */
void job_trace_save(struct job *j);

/* Local, lead. A span is one call of lead_next or lead_commit: begin before it, plan or commit
 * after it add its time to j->times.plan_ns and, with --trace, an event to the timeline. */
struct lead_span {
    uint64_t begin_ns, cpu_ns, n_admissions;
};
struct lead_span job_span_begin(const struct job *j);
void job_span_plan(struct job *j, struct lead_span span, const struct step_plan *plan);
void job_span_commit(struct job *j, struct lead_span span, uint64_t step, uint32_t replica);

#endif

/* Functions that the files of a job share. */
#ifndef SHOAL_JOB_JOB_PRIVATE_H
#define SHOAL_JOB_JOB_PRIVATE_H

#include "job/job.h"

/* --- job_open.c --- */

/* Local. Checks and settles the flags that need no checkpoint. Errors: STATUS_USAGE. */
struct status job_check_options(struct job *j);

/* Local. Opens the checkpoint, reads its config.json into j->model and checks the flags against it.
 * Errors: STATUS_INPUT, STATUS_USAGE, STATUS_MEMORY. */
struct status job_read_model(struct job *j);

/* Local. Does the part of job_read_model that needs only j->model: context, draft model, caches,
 * step size. A dry run without a checkpoint, which has no draft model, calls it directly. Errors:
 * STATUS_USAGE, job_draft_open's. */
struct status job_read_limits(struct job *j);

/* Local, lead. Opens the job's files and creates j->lead. Called before the weights are loaded, so
 * that a job that cannot run fails early and a finished job loads nothing. Errors: those of the
 * files' checks, and lead_create's. */
struct status job_open_lead(struct job *j);

/* --- job_vectors.c --- */

/* Local, lead. Writes the file of --vectors from the rows of the finished output. The bytes depend
 * on the rows alone. Errors: STATUS_INPUT (no vectors, or vectors of several lengths), STATUS_USAGE
 * (no regular file), STATUS_IO, STATUS_MEMORY. */
struct status job_vectors_write(const struct job *j);

/* --- job_device.c: without --device cuda all but job_halves_from do nothing --- */

/* **Collective (world)**. Called before the layout is chosen. Sets j->compute.device_bytes: a
 * rank's part of its GPU's memory, the minimum over all ranks. Errors: device_locate's;
 * STATUS_USAGE if the GPU's kernels cannot run the model; STATUS_MEMORY. */
struct status job_measure_devices(struct job *j);

/* Local. Binds this rank near its GPU. Call it before threads and large memory are made, because
 * those are placed where the rank runs. Errors: device_locate's; STATUS_MEMORY. */
struct status job_place_by_device(struct job *j);

/* Local. Opens this rank's GPU: sets j->compute.device and j->compute.kern.device. Errors:
 * device_open's, STATUS_MEMORY. */
struct status job_open_device(struct job *j);

/* **Collective (world)**. Connects the GPUs, and logs the GPU and its connections. Errors:
 * device_comm_open's, job_devices_same's. */
struct status job_open_device_comm(struct job *j);

/* **Collective (world)**. Checks that the GPUs of all ranks compute alike: once before they are
 * connected, and again after loading, which chooses algorithms. Errors: device_comm_same's. */
struct status job_devices_same(struct job *j);

/* **Collective (world)**. Returns the number of a replica's rows from which a step runs in halves
 * (model/stage.h); 0: never. */
size_t job_halves_from(struct job *j);

/* --- job_memory.c --- */

/* **Collective (world)**. Records how much memory the program has before it loads weights. */
void job_measure_program(struct job *j);

/* Local. Chooses j->layout and j->order within --memory, whether experts stream, and, if no flag
 * fixes it (--step-tokens, --logits, --save-hidden), how many rows a step has. On success *fits is
 * false only without --memory. Errors: layout_choose's; STATUS_USAGE names the memory that is
 * needed if --memory is too small. */
struct status job_fit_layout(struct job *j, bool *fits);

/* **Collective (world)**. If experts stream, names their packed copy, j->experts.path, and makes it
 * if it is missing: first on rank 0, then on the first rank of each host that does not see that
 * file. Errors: expert_pack_make's. */
struct status job_pack_experts(struct job *j);

/* Local. Refuses --kv-tier and --prefix-store if they cannot work, before anything is loaded.
 * Errors: STATUS_USAGE, STATUS_IO (a folder). */
struct status job_check_tier(const struct job *j);

/* Local. root [2] = a hash of all that K and V depend on besides tokens and adapter: the
 * checkpoint, the context, the KV type and the flags that change the arithmetic. Errors:
 * STATUS_MEMORY. */
struct status job_store_root(const struct job *j, uint64_t *root);

/* Local. Returns the bytes that a rank may take for KV blocks, states and streamed experts without
 * --memory: an even part of six tenths of the host's free bytes. draft_bytes: those that the draft
 * model will still take there. */
uint64_t job_memory_part(uint64_t free_bytes, uint64_t draft_bytes, uint32_t n_ranks);

/* **Collective (world)**, once the weights are loaded. Divides the remaining memory: chooses
 * j->pools, the same on all ranks, so that every replica can run the same requests; gives the rest
 * to the stream of experts. Errors: STATUS_USAGE, STATUS_MEMORY. */
struct status job_size_memory(struct job *j);

/* --- job.c --- */

/* Local. Copies the options; opens nothing. */
void job_init(struct job *j, const struct job_options *options, struct config env);

/* Local. Frees everything except comm and watchdog. */
void job_close(struct job *j);

/* --- job_draft.c: without --draft nothing is done, and no bytes are needed --- */

/* Local. Opens the draft model: sets j->draft. A dry run only checks it, and does not if it has no
 * checkpoint of the model. Errors: STATUS_USAGE (flags and models with which it cannot be used,
 * other tokens), STATUS_INPUT, STATUS_MEMORY. */
struct status job_draft_open(struct job *j);

/* Local. Return the bytes that the lead needs for the draft model; those of them that
 * draft_model_load takes; and those that draft_model_start takes. The same on all ranks. */
uint64_t job_draft_bytes(const struct job *j);
uint64_t job_draft_loaded_bytes(const struct job *j);
uint64_t job_draft_later_bytes(const struct job *j);

/* Local. On the lead, load the draft model's weights, and make the rest once the memory is divided.
 * Errors: draft_model_load's, draft_model_start's. */
struct status job_draft_load(struct job *j);
struct status job_draft_start(struct job *j);

/* Local. Returns the draft model as the scheduler sees it. */
struct draft_source job_draft_source(const struct job *j);

/* --- job_experts.c --- */

/* Local. Reads the load for the first places on the lead, from the counts of the job's earlier runs
 * (with --expert-replan) or --expert-load. With either flag all ranks allocate memory for it.
 * Errors: job_counts_open's, job_counts_read_flag's. */
struct status job_read_expert_load(struct job *j);

/* **Collective (world)**. Places the experts, on every rank, by the load that the lead read; or,
 * without one, as if all experts had the same load where they have copies or will move. Makes the
 * memory to count with. Errors: STATUS_USAGE where --expert-replan cannot work, STATUS_MEMORY. */
struct status job_place_experts(struct job *j);

/* Local, lead. True when it is time to count the experts' load, after n_steps steps: for
 * --expert-replan, or to keep the counts beside the journal. */
bool job_count_is_due(const struct job *j, uint64_t n_steps);

/* **Collective (world)**, between steps, after PLAN_MOVE_EXPERTS. Sums the load that all ranks
 * counted so far, and keeps it beside the journal. When it is time for --expert-replan, also places
 * the experts anew by it, and reads those that move. Errors: weights_move_experts's; after an error
 * the job cannot go on. */
struct status job_count_experts(struct job *j);

/* **Collective (world)**. Sets load [L, E], zeros before, to the experts' load, summed over all
 * ranks. */
void job_sum_expert_load(struct job *j, int64_t *load);

/* --- job_report.c --- */

/* Local, lead. Logs the chosen layout and the loaded weights. */
void job_report_start(const struct job *j);

/* **Collective (world)**. Called after the last step: the lead prints the summary, the time per
 * stage, the forecast and, with --moe-stats, the experts' load; keeps the experts' counts; and
 * writes --metrics. Errors: STATUS_IO, STATUS_MEMORY. */
struct status job_report_end(struct job *j);

/* Times of the ranks of one pipeline stage: means over the ranks, in seconds; peak_bytes is their
 * maximum. The parts add up to about elapsed_s. */
struct stage_times {
    double compute_s, communication_s, waiting_s, planning_s, elapsed_s;
    uint64_t peak_bytes;
};

/* Local; all [ranks]. Return the mean times of a stage's ranks, and all ranks' MoE traffic. */
struct stage_times job_stage_times(const struct layout *l, const struct engine_stats *all,
                                   uint32_t stage);
struct moe_traffic job_moe_traffic(const struct layout *l, const struct engine_stats *all);

/* Local. Returns the rows of each call's busiest rank, summed over the counted calls of all MoE
 * blocks, divided by the sum of the mean rows of that rank's group. t: the traffic of all ranks. 0:
 * no rows. */
double job_rows_evenness(const struct moe_traffic *t);

/* Local. Returns the same for the calls after experts moved, up to those of t; 0: no rows. */
double job_rows_evenness_after(const struct job_replan *r, const struct moe_traffic *t);

/* --- job_metrics.c --- */

/* Local, lead. Replaces the file of --metrics (docs/metrics.md). all [ranks]; load [L, E]: the
 * experts' load. Both are NULL during the run, and load also for dense models. Errors: STATUS_IO,
 * STATUS_MEMORY. */
struct status job_metrics_write(const struct job *j, const struct serve_summary *m,
                                const struct engine_stats *all, const int64_t *load);

/* Local. Appends the member that --expert-load reads, without a comma behind it: load [L, E], plus
 * more [L, E] (NULL: none). */
void job_metrics_put_load(const struct job *j, const int64_t *load, const int64_t *more,
                          struct strbuf *s);

/* Local, lead. Called between steps: writes --metrics every 10 s. Only logs a failure. */
void job_metrics_update(struct job *j);

/* --- job_forecast.c: the forecast of --nodes. The layout is chosen by the node's measured speeds,
 * the cost model gets each step that the lead plans, and the report at the end compares predicted
 * with measured times --- */

/* **Collective (world)**. With --nodes, reads the file on the lead and shares it, so that all ranks
 * choose the same layout: sets j->forecast. Call it before the layout is chosen. Errors, the same
 * on all ranks: node_read's; STATUS_USAGE with --device cuda; STATUS_MEMORY. */
struct status job_forecast_read(struct job *j);

/* Local. Returns the estimate by which layouts are compared; NULL without --nodes. Borrowed. */
const struct layout_estimate *job_forecast_estimate(const struct job *j);

/* Local, lead. Begins the forecast of the layout that was chosen; drops it, with a warning, if
 * experts stream and the node's file does not know the disk. Errors: cost_model_init's,
 * STATUS_MEMORY. */
struct status job_forecast_start(struct job *j);

/* Local, lead. Adds a plan that is about to be submitted. */
void job_forecast_step(struct job *j, const struct step_plan *plan);

/* Local, lead. Logs predicted beside measured times and, in a job of lines, advice. all [ranks].
 * Without --nodes only the advice that needs no prediction. */
void job_forecast_report(const struct job *j, const struct engine_stats *all);

/* Local. Does nothing without a forecast. */
void job_forecast_destroy(struct job *j);

/* --- job_trace.c --- */

/* **Collective (world)**. With --trace, start measures the clocks and begins the timeline; end
 * stops it and writes the file. Errors: STATUS_IO, STATUS_MEMORY. */
struct status job_trace_start(struct job *j);
struct status job_trace_end(struct job *j);

/* Local, any thread; called before this rank ends the job, or leaves because another rank is lost.
 * With --trace, writes this rank's timeline so far to a file of its own. Only logs a failure. */
void job_trace_save(struct job *j);

/* Local, lead. A span is one call of lead_next or lead_commit. Call job_span_begin before it;
 * job_span_plan or job_span_commit after it adds its time to j->times.plan_ns and, with --trace,
 * events to the timeline. */
struct lead_span {
    uint64_t begin_ns, cpu_ns, n_admissions;
};
struct lead_span job_span_begin(const struct job *j);
void job_span_plan(struct job *j, struct lead_span span, const struct step_plan *plan);
void job_span_commit(struct job *j, struct lead_span span, uint64_t step, uint32_t replica);

#endif

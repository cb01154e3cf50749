/* Forecasts a running job's time, compares it with the measured time, and logs advice
 * (job_private.h). */
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "cost/advice.h"
#include "cost/forecast.h"
#include "job/job_private.h"
#include "weights/expert_stream.h"

/* Only the lead uses the members after `estimate`. */
struct job_forecast {
    struct node node;
    struct layout_estimate estimate;
    struct cost_model model;
    struct forecast forecast;
    enum forecast_phase phase; /* of the last step */
    uint64_t since_ns;         /* when the last step was planned; 0: no step is running */
    double measured_s[FORECAST_PHASE_COUNT];
};

struct status job_forecast_read(struct job *j)
{
    if (j->o->files.nodes == NULL) return status_ok();
    if (j->o->device.device != DEVICE_CPU)
        return status_make(STATUS_USAGE, "--nodes: not with --device cuda");
    TRY(comm_agree(j->comm, mem_alloc(&j->forecast, 1, sizeof *j->forecast, "forecast")));
    struct status st = status_ok();
    if (comm_rank(j->comm, COMM_WORLD) == 0) st = node_read(j->o->files.nodes, &j->forecast->node);
    TRY(comm_agree(j->comm, st));
    comm_broadcast(j->comm, COMM_WORLD, 0, &j->forecast->node, sizeof j->forecast->node);
    struct node *node = &j->forecast->node;
    const struct layout_network *network = &j->o->layout.network;
    if (flags_is_given(&j->o->given, "network") || node->network_bytes_s == 0)
        node->network_bytes_s = network->gbit_s * 1e9 / 8;
    if (network->latency_s > 0) node->network_s = network->latency_s;
    j->forecast->estimate = (struct layout_estimate){.step_s = cost_reference_s, .user = node};
    return status_ok();
}

const struct layout_estimate *job_forecast_estimate(const struct job *j)
{
    return j->forecast != NULL ? &j->forecast->estimate : NULL;
}

/* Returns the fraction of this rank's experts that a step reads from disk if all have rows. A
 * quarter of the memory for experts is the ring, which keeps none for the next step. */
static double streamed_part(const struct job *j)
{
    const struct layout_place place =
        layout_place_of(j->layout, (uint32_t)comm_rank(j->comm, COMM_WORLD));
    const struct layout_memory m = layout_memory_of(
        j->layout, place, kv_layout(j->o->model.kv_dtype), (uint32_t)j->o->schedule.step_tokens);
    if (j->weights->stream == NULL || m.on_disk_bytes == 0) return 1;
    const double held = (double)expert_stream_stats_of(j->weights->stream).held_bytes,
                 all = (double)m.on_disk_bytes;
    return held < all ? 1 - held / all / 4 * 3 : 0;
}

struct status job_forecast_start(struct job *j)
{
    struct job_forecast *f = j->forecast;
    if (f == NULL) return status_ok();
    if (j->layout_model.streams_experts && f->node.disk_bytes_s <= 0) {
        log_line(LOG_WARN, "no forecast: the node's file does not know the disk of streamed "
                           "experts; `shoal bench --disk DIR --save NODE.json` measures it");
        job_forecast_destroy(j);
        return status_ok();
    }
    TRY(cost_model_init(&f->model, &f->node, j->layout, j->topo, j->order));
    if (j->layout_model.streams_experts) f->model.streamed = streamed_part(j);
    return forecast_init(&f->forecast, &f->model);
}

static void end_phase(struct job_forecast *f, uint64_t now_ns)
{
    if (f->since_ns > 0) f->measured_s[f->phase] += (double)(now_ns - f->since_ns) * 1e-9;
}

void job_forecast_step(struct job *j, const struct step_plan *plan)
{
    struct job_forecast *f = j->forecast;
    if (f == NULL || plan->n_seqs == 0) return;
    const uint64_t now = clock_ns();
    end_phase(f, now);
    f->phase = forecast_phase_of(plan);
    f->since_ns = now;
    forecast_step(&f->forecast, (uint32_t)(plan->step % j->layout->pp), plan);
}

/* Logs the phases, and the parts of the predicted time. drafting_s: the draft model's part of the
 * measured time, which is not predicted. */
static void report_phases(struct job_forecast *f, double drafting_s)
{
    double measured = 0;
    end_phase(f, clock_ns());
    f->since_ns = 0;
    for (int p = 0; p < FORECAST_PHASE_COUNT; p++) {
        const double wanted = f->forecast.phase_s[p];
        measured += f->measured_s[p];
        if (wanted <= 0) continue;
        log_line(LOG_INFO, "forecast: steps of %s: %.2f s predicted, %.2f s measured, %.2f times",
                 forecast_phase_title((enum forecast_phase)p), wanted, f->measured_s[p],
                 f->measured_s[p] / wanted);
    }
    struct strbuf parts;
    strbuf_init(&parts);
    for (int p = 0; p < COST_PART_COUNT; p++) {
        const double part = f->forecast.by.s[p] / f->forecast.now_s;
        if (part >= 0.005)
            strbuf_printf(&parts, ", %s %.0f %%", cost_part_title((enum cost_part)p), 100 * part);
    }
    log_line(LOG_INFO, "forecast: %.2f s predicted, %.2f s measured%s", f->forecast.now_s, measured,
             parts.data != NULL ? parts.data : "");
    if (drafting_s > 0)
        log_line(LOG_INFO,
                 "forecast: %.2f s of the measured time are the draft model's, which is "
                 "not predicted",
                 drafting_s);
    strbuf_fini(&parts);
}

/* Returns the mean bytes of a weight of the experts or, in a dense model, of the FFN. */
static double mean_weight_bytes(const struct layout_model *m)
{
    const enum arch_class class = m->arch->moe.n_experts > 0 ? CLASS_EXPERTS : CLASS_FFN;
    return layout_weight_bytes(m, class);
}

static double drafting_s_of(const struct job *j)
{
    return (double)j->summary->model_drafts.ns * 1e-9;
}

static struct advice_facts facts_of(const struct job *j, const struct engine_stats *all)
{
    const struct layout *l = j->layout;
    const struct serve_summary *m = j->summary;
    const struct stage_times t = job_stage_times(l, all, 0);
    const double elapsed = t.elapsed_s > 0 ? t.elapsed_s : 1;
    const struct moe_traffic moe = job_moe_traffic(l, all);
    const double rows = (double)m->n_prompt_rows + (double)m->n_generated_tokens;
    const double steps = m->n_steps > 0 ? (double)m->n_steps : 1;
    const double drafting_s = drafting_s_of(j);
    struct advice_facts f = {
        .tp = l->tp,
        .pp = l->pp,
        .dp = l->dp,
        .ep = l->ep,
        .ranks_of_host = j->topo->ranks[0].n_local_ranks,
        .has_experts = l->model.arch->moe.n_experts > 0,
        .experts_cross_hosts = l->expert_hosts > 1,
        .communication = t.communication_s / elapsed,
        .waiting = t.waiting_s / elapsed,
        .planning = ((double)all[0].plan_ns * 1e-9 - drafting_s) / elapsed,
        .drafting = drafting_s / elapsed,
        .rows_of_step = rows / steps / l->dp,
        .max_batch = j->o->schedule.max_batch,
        .weight_bytes = mean_weight_bytes(&l->model),
        .preempted = m->n_admissions > 0 ? (double)m->n_preemptions / (double)m->n_admissions : 0,
        .recomputed = rows > 0 ? (double)m->n_recomputed_tokens / rows : 0,
        .expert_evenness = l->ep > 1 ? job_rows_evenness(&moe) : 0,
        .placed_by_load = j->experts.places != NULL};
    if (j->forecast == NULL) return f;
    f.predicted = j->forecast->forecast.by;
    f.predicted_s = j->forecast->forecast.now_s;
    for (int p = 0; p < FORECAST_PHASE_COUNT; p++) f.measured_s += j->forecast->measured_s[p];
    return f;
}

void job_forecast_report(const struct job *j, const struct engine_stats *all)
{
    struct advice advice[ADVICE_MAX];
    if (j->forecast != NULL && j->forecast->forecast.n_steps > 0)
        report_phases(j->forecast, drafting_s_of(j));
    if (j->o->serves) return; /* advice is for jobs of lines: a server also waits for calls */
    const struct advice_facts facts = facts_of(j, all);
    const size_t n = advice_of(&facts, advice);
    for (size_t i = 0; i < n; i++) log_line(LOG_INFO, "advice: %s", advice[i].text);
}

void job_forecast_destroy(struct job *j)
{
    if (j->forecast != NULL) forecast_fini(&j->forecast->forecast);
    mem_free(&j->forecast);
}

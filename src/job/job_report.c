/* Reports on a job on stderr, at its start and at its end. */
#include "job/job_private.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/strbuf.h"
#include "job/job_counts.h"

#include <stdio.h>
#include <string.h>

static void report_places(const struct job *j)
{
    struct expert_evenness by_id, by_load;
    if (j->experts.load_from == NULL) return;
    struct status st = expert_evenness_of(j->layout, NULL, j->experts.load, &by_id);
    if (!status_failed(&st))
        st = expert_evenness_of(j->layout, j->experts.places, j->experts.load, &by_load);
    if (status_failed(&st)) return; /* it is only a report */
    const struct expert_evenness least = expert_least_of(j->layout, j->experts.load);
    log_line(LOG_INFO,
             "experts are placed by the load in %s, with %u copies in each layer: the busiest rank "
             "of a layer gets %.2f times the mean of tokens, %.2f times in the worst layer (in the "
             "order of ids %.2f and %.2f; at best %.2f and %.2f)",
             j->experts.load_from, j->layout->n_expert_copies, by_load.mean, by_load.worst,
             by_id.mean, by_id.worst, least.mean, least.worst);
}

void job_report_start(const struct job *j)
{
    const struct layout *l = j->layout;
    log_line(LOG_INFO, "%s: %u ranks = dp %u x pp %u x tp %u%s, kernels %s, %u threads a rank",
             j->layout_model.name, l->n_ranks, l->dp, l->pp, l->tp,
             l->model.arch->moe.n_experts > 0 ? "" : " (dense)", j->compute.kern.name,
             j->compute.n_threads);
    if (l->model.arch->moe.n_experts > 0) {
        log_line(LOG_INFO, "experts: ep %u x etp %u, %u replicas%s", l->ep, l->etp,
                 l->n_expert_replicas, l->lends_experts ? ", ranks help each other" : "");
    }
    log_line(LOG_INFO, "layout: %s", l->why);
    report_places(j);
    if (j->experts.path != NULL) {
        struct expert_stream *s = j->weights->stream;
        log_line(LOG_INFO,
                 "experts stream from %s through %.1f MiB here, each %.2f MiB; steps of at most %d "
                 "rows",
                 j->experts.path, (double)expert_stream_stats_of(s).held_bytes / (1 << 20),
                 (double)expert_stream_one_bytes(s) / (1 << 20), j->o->schedule.step_tokens);
    }
    const double gb = (double)j->loaded.n_bytes_host / 1e9;
    log_line(LOG_INFO,
             "loaded %.3f GB on this host in %.2f s, %.2f GB/s; KV pool: %u blocks of %d tokens, "
             "%.2f GiB here",
             gb, j->loaded.seconds, j->loaded.seconds > 0 ? gb / j->loaded.seconds : 0,
             j->pools.n_kv_blocks, KV_BLOCK_TOKENS,
             (double)stage_kv_bytes(engine_stage(j->engine)) / (1 << 30));
    if (j->pools.n_state_slots == 0) return;
    log_line(LOG_INFO,
             "%s of %u sequences, %.2f GiB here; with such layers prompts share no KV blocks, and "
             "there is no speculative decoding",
             j->model.compression.o_groups > 0 ? "sums of unfinished entries" : "recurrent states",
             j->pools.n_state_slots,
             (double)stage_state_bytes(engine_stage(j->engine)) / (1 << 30));
}

struct stage_times job_stage_times(const struct layout *l, const struct engine_stats *all,
                                   uint32_t stage)
{
    struct stage_times t = {0};
    const double ns = 1e-9 / ((double)l->dp * l->tp);
    for (uint32_t r = 0; r < l->n_ranks; r++) {
        if (layout_place_of(l, r).pp != stage) continue;
        t.compute_s += (double)(all[r].busy_ns - all[r].comm_ns) * ns;
        t.communication_s += (double)all[r].comm_ns * ns;
        t.waiting_s += (double)all[r].wait_ns * ns;
        t.planning_s += (double)all[r].plan_ns * ns;
        t.elapsed_s += (double)all[r].elapsed_ns * ns;
        if (all[r].peak_bytes > t.peak_bytes) t.peak_bytes = all[r].peak_bytes;
    }
    return t;
}

static void print_stages(const struct job *j, const struct engine_stats *all)
{
    for (uint32_t s = 0; s < j->layout->pp; s++) {
        const struct stage_times t = job_stage_times(j->layout, all, s);
        log_line(LOG_INFO,
                 "stage %u: compute %.2f s, communication %.2f s, waiting %.2f s (%.1f %%), "
                 "planning %.2f s; peak memory %.0f MiB a rank",
                 s, t.compute_s, t.communication_s, t.waiting_s,
                 t.elapsed_s > 0 ? 100 * t.waiting_s / t.elapsed_s : 0, t.planning_s,
                 (double)t.peak_bytes / (1 << 20));
    }
}

/* Prints how many bytes of streamed experts all ranks read, and the longest time that a rank waited
 * for them. */
static void print_streaming(const struct job *j, const struct engine_stats *all)
{
    uint64_t n_bytes = 0, n_needed = 0, n_held = 0, n_rows = 0, wait_ns = 0, elapsed_ns = 0;
    for (uint32_t r = 0; r < j->layout->n_ranks; r++) {
        const struct expert_stream_stats *e = &all[r].experts;
        n_bytes += e->n_bytes;
        n_needed += e->n_needed;
        n_held += e->n_held;
        n_rows += e->n_rows;
        if (e->wait_ns > wait_ns) wait_ns = e->wait_ns;
        if (all[r].elapsed_ns > elapsed_ns) elapsed_ns = all[r].elapsed_ns;
    }
    if (n_needed == 0) return;
    const double s = (double)elapsed_ns * 1e-9, n = (double)n_needed;
    log_line(
        LOG_INFO,
        "experts from disk: %.3f GB, %.2f GB/s; a rank waited for the disk for at most %.2f s; "
        "%.1f rows per expert and step; %.0f %% of the needed experts were in memory",
        (double)n_bytes * 1e-9, s > 0 ? (double)n_bytes * 1e-9 / s : 0, (double)wait_ns * 1e-9,
        (double)n_rows / n, 100 * (double)n_held / n);
}

struct moe_traffic job_moe_traffic(const struct layout *l, const struct engine_stats *all)
{
    struct moe_traffic t = {0};
    for (uint32_t r = 0; r < l->n_ranks; r++) {
        t.n_tokens += all[r].moe.n_tokens;
        t.dispatch_bytes += all[r].moe.dispatch_bytes;
        t.combine_bytes += all[r].moe.combine_bytes;
        t.n_rows += all[r].moe.n_rows;
        t.busiest_rows += all[r].moe.busiest_rows;
    }
    return t;
}

double job_rows_evenness(const struct moe_traffic *t)
{
    /* each rank counted its group's busiest rank, so this is busiest over mean */
    return t->n_rows > 0 ? (double)t->busiest_rows / (double)t->n_rows : 0;
}

double job_rows_evenness_after(const struct job_replan *r, const struct moe_traffic *t)
{
    const struct moe_traffic after = {.n_rows = t->n_rows - r->n_rows,
                                      .busiest_rows = t->busiest_rows - r->busiest_rows};
    return job_rows_evenness(&after);
}

/* Prints how evenly the experts' work was spread. */
static void print_evenness(const struct job *j, const struct engine_stats *all)
{
    const struct moe_traffic t = job_moe_traffic(j->layout, all);
    if (j->layout->ep == 1 || t.n_rows == 0) return;
    log_line(LOG_INFO, "experts' rows: the busiest rank of a block had %.3f times the mean",
             job_rows_evenness(&t));
    const struct job_replans *r = &j->experts.replans;
    const double after = r->n > 0 ? job_rows_evenness_after(&r->at[0], &t) : 0;
    if (after > 0)
        log_line(LOG_INFO, "experts' rows: %.3f times the mean after --expert-replan", after);
}

static void print_traffic(const struct job *j, const struct engine_stats *all)
{
    const struct moe_traffic t = job_moe_traffic(j->layout, all);
    if (t.dispatch_bytes == 0) return;
    const double n = (double)t.n_tokens * 1e3;
    log_line(LOG_INFO,
             "experts on other hosts: %.2f KB there and %.2f KB back for each token and layer, "
             "%.3f GB in all",
             (double)t.dispatch_bytes / n, (double)t.combine_bytes / n,
             (double)(t.dispatch_bytes + t.combine_bytes) / 1e9);
}

/* Prints the costs that may grow with the number of ranks: the lead's time for a step, and the most
 * messages and collectives of a rank in a step. */
static void print_lead(const struct job *j, const struct engine_stats *all)
{
    double sent = 0, collectives = 0;
    if (all[0].n_steps == 0) return;
    for (uint32_t r = 0; r < j->layout->n_ranks; r++) {
        const double n = all[r].n_steps > 0 ? (double)all[r].n_steps : 1;
        if ((double)all[r].n_sent / n > sent) sent = (double)all[r].n_sent / n;
        if ((double)all[r].n_collectives / n > collectives)
            collectives = (double)all[r].n_collectives / n;
    }
    const double us = 1e-3 / (double)all[0].n_steps;
    const double drafting_ns = (double)j->summary->model_drafts.ns;
    char drafting[64] = "";
    if (drafting_ns > 0)
        snprintf(drafting, sizeof drafting, "%.1f us for the draft model, ", drafting_ns * us);
    log_line(LOG_INFO,
             "lead: %.1f us a step for planning and commits, %s%.1f us for plans and results; "
             "a rank sends at most %.1f messages and calls %.1f collectives a step",
             ((double)all[0].plan_ns - drafting_ns) * us, drafting, (double)all[0].lead_ns * us,
             sent, collectives);
}

static void print_expert_load(const struct job *j, const int64_t *load)
{
    for (uint32_t layer = 0; layer < j->model.n_layers; layer++) {
        if (!j->model.layer.is_moe[layer]) continue;
        const int64_t *row = load + (size_t)layer * j->model.moe.n_experts;
        int64_t sum = 0, most = 0;
        struct strbuf line;
        strbuf_init(&line);
        for (uint32_t e = 0; e < j->model.moe.n_experts; e++) {
            sum += row[e];
            if (row[e] > most) most = row[e];
            strbuf_printf(&line, " %lld", (long long)row[e]);
        }
        const double mean = (double)sum / j->model.moe.n_experts;
        log_line(LOG_INFO, "experts of layer %u: max/mean %.2f; tokens per expert:%s", layer,
                 mean > 0 ? (double)most / mean : 0, line.data);
        strbuf_fini(&line);
    }
}

static struct status report_as_lead(struct job *j, const struct engine_stats *all,
                                    const int64_t *load)
{
    if (!j->o->lead.quiet) {
        serve_summary_print(j->summary, stderr);
        print_stages(j, all);
        print_streaming(j, all);
        print_traffic(j, all);
        print_evenness(j, all);
        if (j->layout->n_ranks > 1) print_lead(j, all);
        job_forecast_report(j, all);
    }
    if (j->o->run.moe_stats && load != NULL) print_expert_load(j, load);
    return j->o->files.metrics != NULL ? job_metrics_write(j, j->summary, all, load) : status_ok();
}

struct status job_report_end(struct job *j)
{
    struct engine_stats *all = NULL;
    int64_t *load = NULL;
    engine_count_busiest(j->engine);
    struct engine_stats mine = engine_stats_of(j->engine);
    mine.plan_ns = j->times.plan_ns;
    mine.elapsed_ns = j->times.elapsed_ns;
    const size_t n_load = (size_t)j->model.n_layers * j->model.moe.n_experts;
    struct status st = mem_alloc(&all, j->layout->n_ranks, sizeof *all, "report");
    if (!status_failed(&st)) st = mem_alloc(&load, n_load, sizeof *load, "report");
    st = comm_agree(j->comm, st);
    if (!status_failed(&st)) {
        comm_gather_bytes(j->comm, COMM_WORLD, &mine, sizeof mine, all);
        if (n_load > 0) job_sum_expert_load(j, load);
        if (comm_rank(j->comm, COMM_WORLD) == 0) {
            if (n_load > 0) job_counts_save(j, load);
            st = report_as_lead(j, all, n_load > 0 ? load : NULL);
        }
        st = comm_agree(j->comm, st);
    }
    mem_free(&all);
    mem_free(&load);
    return st;
}

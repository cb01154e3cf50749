/* What a job says of itself: at the start, at the end, and as JSON in --report. */
#include "job_state.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/strbuf.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

void job_report_start(const struct job *j)
{
    const struct layout *l = j->layout;
    log_line(LOG_INFO, "%s: %u ranks = dp %u x pp %u x tp %u%s, kernels %s, %u threads a rank",
             j->layout_model.name, l->n_ranks, l->dp, l->pp, l->tp,
             l->model.n_experts > 0 ? "" : " (dense)", j->kern.name, j->n_threads);
    if (l->model.n_experts > 0) {
        log_line(LOG_INFO, "experts: ep %u x etp %u, %u replicas", l->ep, l->etp,
                 l->n_expert_replicas);
    }
    log_line(LOG_INFO, "layout: %s", l->why);
    const double gb = (double)j->loaded.n_bytes_host / 1e9;
    log_line(LOG_INFO,
             "loaded %.3f GB on this host in %.2f s, %.2f GB/s; KV pool: %u blocks of %d tokens, "
             "%.2f GiB here",
             gb, j->loaded.seconds, j->loaded.seconds > 0 ? gb / j->loaded.seconds : 0,
             j->n_kv_blocks, KV_BLOCK_TOKENS,
             (double)stage_kv_bytes(engine_stage(j->engine)) / (1 << 30));
}

/* Time per pipeline stage: the mean over its ranks, in seconds. */
static void print_stages(const struct job *j, const struct engine_stats *all)
{
    const struct layout *l = j->layout;
    for (uint32_t s = 0; s < l->pp; s++) {
        double busy = 0, comm = 0, wait = 0;
        uint64_t peak = 0;
        for (uint32_t r = 0; r < l->n_ranks; r++) {
            if (layout_place_of(l, r).pp != s) continue;
            busy += (double)all[r].busy_ns * 1e-9;
            comm += (double)all[r].comm_ns * 1e-9;
            wait += (double)all[r].wait_ns * 1e-9;
            if (all[r].peak_bytes > peak) peak = all[r].peak_bytes;
        }
        const double n = (double)l->dp * l->tp;
        log_line(LOG_INFO,
                 "stage %u: compute %.2f s, communication %.2f s, waiting %.2f s; peak memory %.0f "
                 "MiB a rank",
                 s, (busy - comm) / n, comm / n, wait / n, (double)peak / (1 << 20));
    }
}

/* **Collective (world)**. load [L, E] summed over all ranks. */
static void sum_expert_load(struct job *j, int64_t *load)
{
    const uint32_t n_experts = j->model.n_experts;
    const uint64_t *mine = stage_expert_load(engine_stage(j->engine));
    const struct range layers = j->weights->layers;
    for (uint32_t layer = layers.begin; layer < layers.end; layer++) {
        for (uint32_t e = 0; e < n_experts; e++) {
            load[(size_t)layer * n_experts + e] =
                (int64_t)mine[(size_t)(layer - layers.begin) * n_experts + e];
        }
    }
    comm_sum_i64(j->comm, COMM_WORLD, load, (size_t)j->model.n_layers * n_experts);
}

static void print_expert_load(const struct job *j, const int64_t *load)
{
    for (uint32_t layer = 0; layer < j->model.n_layers; layer++) {
        if (!j->model.layer_is_moe[layer]) continue;
        const int64_t *row = load + (size_t)layer * j->model.n_experts;
        int64_t sum = 0, most = 0;
        struct strbuf line;
        strbuf_init(&line);
        for (uint32_t e = 0; e < j->model.n_experts; e++) {
            sum += row[e];
            if (row[e] > most) most = row[e];
            strbuf_printf(&line, " %lld", (long long)row[e]);
        }
        const double mean = (double)sum / j->model.n_experts;
        log_line(LOG_INFO, "experts of layer %u: max/mean %.2f; tokens per expert:%s", layer,
                 mean > 0 ? (double)most / mean : 0, line.data);
        strbuf_fini(&line);
    }
}

static void write_json(const struct job *j, const struct engine_stats *all, struct strbuf *s)
{
    const struct layout *l = j->layout;
    const struct serve_summary *m = j->summary;
    strbuf_printf(s, "{\"shoal\":\"%s\",\"model\":", SHOAL_VERSION);
    strbuf_json_string(s, j->layout_model.name, strlen(j->layout_model.name));
    strbuf_printf(s,
                  ",\"layout\":{\"ranks\":%u,\"tp\":%u,\"pp\":%u,\"dp\":%u,\"ep\":%u,\"etp\":%u,"
                  "\"expert_replicas\":%u},\"kernels\":\"%s\",\"threads\":%u,\"kv_blocks\":%u,"
                  "\"kv_dtype\":\"%s\",\"max_batch\":%u,\"chunk\":%u,\"step_tokens\":%u,"
                  "\"prefix_cache\":%s,\"result_cache\":%s,\"order\":\"%s\",\"same_bytes_law\":%s,",
                  l->n_ranks, l->tp, l->pp, l->dp, l->ep, l->etp, l->n_expert_replicas,
                  j->kern.name, j->n_threads, j->n_kv_blocks, dtype_name(j->kv_dtype),
                  j->o->max_batch, j->o->chunk, j->step_tokens, j->prefix_cache ? "true" : "false",
                  j->result_cache ? "true" : "false", order_name(j->line_order),
                  j->policy == CAPACITY_DROPLESS ? "true" : "false");
    strbuf_printf(s,
                  "\"rows\":%llu,\"error_rows\":%llu,\"prompt_tokens\":%llu,"
                  "\"generated_tokens\":%llu,\"recomputed_tokens\":%llu,\"prefix_hits\":%llu,"
                  "\"prefix_hit_tokens\":%llu,\"result_hits\":%llu,\"result_hit_tokens\":%llu,"
                  "\"preemptions\":%llu,"
                  "\"peak_batch\":%llu,"
                  "\"dropped\":%llu,\"steps\":%llu,\"wall_s\":%.6f,\"load_s\":%.6f,",
                  (unsigned long long)m->n_rows, (unsigned long long)m->n_error_rows,
                  (unsigned long long)m->n_prompt_tokens, (unsigned long long)m->n_generated_tokens,
                  (unsigned long long)m->n_recomputed_tokens, (unsigned long long)m->n_prefix_hits,
                  (unsigned long long)m->n_prefix_hit_tokens, (unsigned long long)m->n_result_hits,
                  (unsigned long long)m->n_result_hit_tokens, (unsigned long long)m->n_preemptions,
                  (unsigned long long)m->n_peak_batch, (unsigned long long)m->n_dropped,
                  (unsigned long long)m->n_steps, m->wall_s,
                  (double)(j->ready_ns - j->start_ns) * 1e-9);
    strbuf_printf(s,
                  "\"ttft_p50_s\":%.6f,\"ttft_p99_s\":%.6f,\"tpot_p50_s\":%.6f,\"tpot_p99_s\":%.6f,"
                  "\"ranks\":[",
                  latency_percentile_s(&m->ttft, 0.5), latency_percentile_s(&m->ttft, 0.99),
                  latency_percentile_s(&m->tpot, 0.5), latency_percentile_s(&m->tpot, 0.99));
    for (uint32_t r = 0; r < l->n_ranks; r++) {
        const struct engine_stats *e = &all[r];
        strbuf_printf(
            s,
            "%s{\"busy_s\":%.6f,\"communication_s\":%.6f,\"waiting_s\":%.6f,\"steps\":%llu,"
            "\"rows\":%llu,\"peak_bytes\":%llu}",
            r > 0 ? "," : "", (double)e->busy_ns * 1e-9, (double)e->comm_ns * 1e-9,
            (double)e->wait_ns * 1e-9, (unsigned long long)e->n_steps,
            (unsigned long long)e->n_rows, (unsigned long long)e->peak_bytes);
    }
    strbuf_puts(s, "]}\n");
}

static struct status write_report(const struct job *j, const struct engine_stats *all)
{
    struct strbuf s;
    strbuf_init(&s);
    write_json(j, all, &s);
    struct status st = strbuf_status(&s);
    FILE *f = status_failed(&st) ? NULL : fopen(j->o->report, "we");
    bool written = f != NULL && fwrite(s.data, 1, s.n, f) == s.n;
    if (f != NULL && fclose(f) != 0) written = false;
    if (!written && !status_failed(&st)) {
        st = status_make(STATUS_IO, "--report %s: %s", j->o->report, strerror(errno));
    }
    strbuf_fini(&s);
    return st;
}

static struct status report_as_lead(struct job *j, const struct engine_stats *all,
                                    const int64_t *load)
{
    if (!j->o->quiet) {
        serve_summary_print(j->summary, stderr);
        print_stages(j, all);
    }
    if (j->o->moe_stats && load != NULL) print_expert_load(j, load);
    return j->o->report != NULL ? write_report(j, all) : status_ok();
}

struct status job_report_end(struct job *j)
{
    struct engine_stats *all = NULL;
    int64_t *load = NULL;
    const struct engine_stats mine = engine_stats_of(j->engine);
    const size_t n_load = (size_t)j->model.n_layers * j->model.n_experts;
    struct status st = mem_alloc(&all, j->layout->n_ranks, sizeof *all, "report");
    if (!status_failed(&st)) st = mem_alloc(&load, n_load, sizeof *load, "report");
    st = comm_agree(j->comm, st);
    if (!status_failed(&st)) {
        comm_gather_bytes(j->comm, COMM_WORLD, &mine, sizeof mine, all);
        if (n_load > 0) sum_expert_load(j, load);
        if (comm_rank(j->comm, COMM_WORLD) == 0) {
            st = report_as_lead(j, all, n_load > 0 ? load : NULL);
        }
        st = comm_agree(j->comm, st);
    }
    mem_free(&all);
    mem_free(&load);
    return st;
}

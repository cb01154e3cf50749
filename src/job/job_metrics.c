/* Writes --metrics: the settings and measurements of a run, as JSON. docs/metrics.md describes the
 * schema. */
#include "base/clock.h"
#include "base/file_replace.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/strbuf.h"
#include "job/job_private.h"

#include <inttypes.h>
#include <string.h>

static const uint64_t update_ns = 10000000000u;

/* Appends "name":value, */
static void job_metrics_put(struct strbuf *s, const char *name, uint64_t value)
{
    strbuf_printf(s, "\"%s\":%" PRIu64 ",", name, value);
}

static void put_real(struct strbuf *s, const char *name, double value)
{
    strbuf_printf(s, "\"%s\":%.9g,", name, value);
}

static void put_bool(struct strbuf *s, const char *name, bool value)
{
    strbuf_printf(s, "\"%s\":%s,", name, value ? "true" : "false");
}

/* Ends an object or array: replaces the comma after the last member by `close`. */
static void job_metrics_end(struct strbuf *s, const char *close)
{
    if (s->n > 0 && s->data[s->n - 1] == ',') s->data[--s->n] = '\0';
    strbuf_puts(s, close);
}

static void put_setup(const struct job *j, struct strbuf *s)
{
    const struct layout *l = j->layout;
    strbuf_printf(s, "\"shoal\":\"%s\",\"model\":", SHOAL_VERSION);
    strbuf_json_string(s, j->layout_model.name, strlen(j->layout_model.name));
    strbuf_puts(s, ",\"layout\":{");
    job_metrics_put(s, "ranks", l->n_ranks);
    job_metrics_put(s, "tp", l->tp);
    job_metrics_put(s, "pp", l->pp);
    job_metrics_put(s, "dp", l->dp);
    job_metrics_put(s, "ep", l->ep);
    job_metrics_put(s, "etp", l->etp);
    job_metrics_put(s, "expert_replicas", l->n_expert_replicas);
    job_metrics_put(s, "expert_copies", l->n_expert_copies);
    job_metrics_end(s, "},");
    strbuf_printf(s, "\"kernels\":\"%s\",\"kv_dtype\":\"%s\",", j->compute.kern.name,
                  kv_dtype_name(j->o->model.kv_dtype));
    strbuf_printf(s, "\"weights\":\"%s\",",
                  flag_word_of(FLAG_WORDS(WEIGHTS_PLACE_WORDS), j->layout_model.streams_experts
                                                                    ? WEIGHTS_STREAM
                                                                    : WEIGHTS_RESIDENT));
    job_metrics_put(s, "memory_bytes", j->o->weights.memory_bytes);
    job_metrics_put(s, "threads", j->compute.n_threads);
    job_metrics_put(s, "kv_blocks", j->pools.n_kv_blocks);
    job_metrics_put(s, "max_batch", (uint32_t)j->o->schedule.max_batch);
    job_metrics_put(s, "chunk", (uint32_t)j->o->schedule.chunk_tokens);
    job_metrics_put(s, "step_tokens", (uint32_t)j->o->schedule.step_tokens);
    job_metrics_put(s, "step_ms", j->o->schedule.step_ns / 1000000);
    put_bool(s, "prefix_cache", j->o->schedule.prefix_cache);
    put_bool(s, "result_cache", j->o->lead.result_cache);
    job_metrics_put(s, "speculate", (uint32_t)j->o->schedule.n_drafts);
    strbuf_printf(s, "\"order\":\"%s\",",
                  flag_word_of(FLAG_WORDS(ORDER_WORDS), (int32_t)j->o->schedule.order));
    put_bool(s, "same_bytes_law", j->o->capacity.policy == CAPACITY_DROPLESS);
}

static void put_counts(const struct serve_summary *m, struct strbuf *s)
{
    const double wall_s = m->wall_s > 0 ? m->wall_s : 1e-9;
    job_metrics_put(s, "rows", m->n_rows);
    job_metrics_put(s, "error_rows", m->n_error_rows);
    job_metrics_put(s, "resumed_rows", m->n_resumed_rows);
    job_metrics_put(s, "resumed_tokens", m->n_resumed_tokens);
    job_metrics_put(s, "prompt_tokens", m->n_prompt_tokens);
    job_metrics_put(s, "generated_tokens", m->n_generated_tokens);
    job_metrics_put(s, "recomputed_tokens", m->n_recomputed_tokens);
    job_metrics_put(s, "scored_tokens", m->n_scored);
    put_real(s, "prompt_tokens_per_s", (double)m->n_prompt_tokens / wall_s);
    put_real(s, "generated_tokens_per_s", (double)m->n_generated_tokens / wall_s);
    job_metrics_put(s, "prefix_hits", m->n_prefix_hits);
    job_metrics_put(s, "prefix_hit_tokens", m->n_prefix_hit_tokens);
    put_real(s, "prefix_hit_rate", serve_summary_hit_rate(m));
    job_metrics_put(s, "result_hits", m->n_result_hits);
    job_metrics_put(s, "result_hit_tokens", m->n_result_hit_tokens);
    job_metrics_put(s, "drafts", m->n_drafts);
    job_metrics_put(s, "right_drafts", m->n_right_drafts);
    job_metrics_put(s, "model_drafts", m->model_drafts.n);
    job_metrics_put(s, "right_model_drafts", m->model_drafts.n_right);
    put_real(s, "drafting_s", (double)m->model_drafts.ns * 1e-9);
    job_metrics_put(s, "guesses", m->n_guesses);
    job_metrics_put(s, "right_guesses", m->n_right_guesses);
    job_metrics_put(s, "preemptions", m->n_preemptions);
    job_metrics_put(s, "tier_blocks_out", m->tier.n_out);
    job_metrics_put(s, "tier_blocks_in", m->tier.n_in);
    job_metrics_put(s, "tier_tokens", m->tier.n_tokens);
    job_metrics_put(s, "store_blocks_out", m->store.n_out);
    job_metrics_put(s, "store_blocks_in", m->store.n_in);
    job_metrics_put(s, "store_tokens", m->store.n_tokens);
    job_metrics_put(s, "tier_failed", m->n_tier_failed);
    job_metrics_put(s, "admissions", m->n_admissions);
    job_metrics_put(s, "peak_batch", m->n_peak_batch);
    job_metrics_put(s, "dropped", m->n_dropped);
    job_metrics_put(s, "steps", m->n_steps);
    job_metrics_put(s, "least_step_rows", m->n_least_step_rows);
    job_metrics_put(s, "commits", m->n_commits);
    put_real(s, "wall_s", m->wall_s);
    strbuf_puts(s, "\"blocks\":{");
    job_metrics_put(s, "total", m->n_blocks);
    job_metrics_put(s, "peak_used", m->n_peak_used_blocks);
    put_real(s, "mean_used", m->n_steps == 0 ? 0 : (double)m->sum_used_blocks / (double)m->n_steps);
    job_metrics_end(s, "},");
}

static void put_latency(const struct latency *l, const char *name, struct strbuf *s)
{
    strbuf_printf(s, "\"%s\":{", name);
    job_metrics_put(s, "n", l->n);
    put_real(s, "min", (double)l->min_ns * 1e-9);
    put_real(s, "mean", latency_mean_s(l));
    for (size_t i = 0; i < LATENCY_QUANTILE_COUNT; i++) {
        char label[8];
        snprintf(label, sizeof label, "p%d", latency_quantiles[i]);
        put_real(s, label, latency_percentile_s(l, latency_quantiles[i] / 100.0));
    }
    put_real(s, "max", (double)l->max_ns * 1e-9);
    job_metrics_end(s, "},");
}

static void put_stages(const struct job *j, const struct engine_stats *all, struct strbuf *s)
{
    strbuf_puts(s, "\"stages\":[");
    for (uint32_t i = 0; i < j->layout->pp; i++) {
        const struct stage_times t = job_stage_times(j->layout, all, i);
        strbuf_puts(s, "{");
        put_real(s, "compute_s", t.compute_s);
        put_real(s, "communication_s", t.communication_s);
        put_real(s, "waiting_s", t.waiting_s);
        put_real(s, "planning_s", t.planning_s);
        put_real(s, "elapsed_s", t.elapsed_s);
        put_real(s, "bubble", t.elapsed_s > 0 ? t.waiting_s / t.elapsed_s : 0);
        job_metrics_put(s, "peak_bytes", t.peak_bytes);
        job_metrics_end(s, "},");
    }
    job_metrics_end(s, "],");
}

/* Appends the numbers of a rank's streamed experts. */
static void put_expert_rows(const struct expert_stream_stats *e, struct strbuf *s)
{
    strbuf_puts(s, "\"experts\":{");
    job_metrics_put(s, "memory_bytes", e->held_bytes);
    job_metrics_put(s, "disk_bytes", e->n_bytes);
    job_metrics_put(s, "disk_reads", e->n_reads);
    put_real(s, "disk_wait_s", (double)e->wait_ns * 1e-9);
    put_real(s, "disk_cpu_s", (double)e->cpu_ns * 1e-9);
    job_metrics_put(s, "passes", e->n_needed);
    job_metrics_put(s, "passes_in_memory", e->n_held);
    put_real(s, "rows_per_pass", e->n_needed > 0 ? (double)e->n_rows / (double)e->n_needed : 0);
    job_metrics_end(s, "},");
}

/* Appends the numbers of a rank's KV blocks on disk. */
static void put_tier(const struct kv_tier_stats *t, struct strbuf *s)
{
    strbuf_puts(s, "\"tier\":{");
    job_metrics_put(s, "blocks_out", t->n_out);
    job_metrics_put(s, "blocks_in", t->n_in);
    job_metrics_put(s, "bytes_out", t->out_bytes);
    job_metrics_put(s, "bytes_in", t->in_bytes);
    put_real(s, "out_s", (double)t->out_ns * 1e-9);
    put_real(s, "in_s", (double)t->in_ns * 1e-9);
    put_real(s, "wait_s", (double)t->wait_ns * 1e-9);
    job_metrics_put(s, "failed", t->n_failed);
    job_metrics_end(s, "},");
}

static void job_metrics_put_ranks(const struct job *j, const struct engine_stats *all,
                                  struct strbuf *s)
{
    strbuf_puts(s, "\"ranks\":[");
    for (uint32_t r = 0; r < j->layout->n_ranks; r++) {
        const struct layout_place place = layout_place_of(j->layout, r);
        const struct engine_stats *e = &all[r];
        strbuf_puts(s, "{");
        job_metrics_put(s, "stage", place.pp);
        job_metrics_put(s, "dp", place.dp);
        job_metrics_put(s, "tp", place.tp);
        put_real(s, "compute_s", (double)(e->busy_ns - e->comm_ns) * 1e-9);
        put_real(s, "communication_s", (double)e->comm_ns * 1e-9);
        put_real(s, "waiting_s", (double)e->wait_ns * 1e-9);
        put_real(s, "planning_s", (double)e->plan_ns * 1e-9);
        put_real(s, "lead_s", (double)e->lead_ns * 1e-9);
        put_real(s, "elapsed_s", (double)e->elapsed_ns * 1e-9);
        job_metrics_put(s, "steps", e->n_steps);
        job_metrics_put(s, "rows", e->n_rows);
        job_metrics_put(s, "messages", e->n_sent);
        job_metrics_put(s, "collectives", e->n_collectives);
        job_metrics_put(s, "peak_bytes", e->peak_bytes);
        if (j->layout_model.streams_experts) put_expert_rows(&e->experts, s);
        if (j->pools.n_tier_slots > 0 || j->o->tier.prefix_store.n_bytes > 0) put_tier(&e->tier, s);
        job_metrics_end(s, "},");
    }
    job_metrics_end(s, "],");
}

/* Appends how evenly the experts' work was spread; nothing without expert parallelism or rows. */
static void put_evenness(const struct job *j, const struct engine_stats *all, struct strbuf *s)
{
    const struct moe_traffic t = job_moe_traffic(j->layout, all);
    if (j->layout->ep == 1 || t.n_rows == 0) return;
    strbuf_puts(s, "\"expert_rows\":{");
    job_metrics_put(s, "rows", t.n_rows);
    put_real(s, "max_over_mean", job_rows_evenness(&t));
    strbuf_puts(s, "\"ranks\":[");
    for (uint32_t r = 0; r < j->layout->n_ranks; r++)
        strbuf_printf(s, "%" PRIu64 ",", all[r].moe.n_rows);
    job_metrics_end(s, "],");
    job_metrics_end(s, "},");
}

/* Appends the members of one re-plan: the rows before it are those since `last` (NULL: the start),
 * the rows after it those until `end`. */
static void put_moves(const struct job_replan *r, const struct job_replan *last,
                      const struct moe_traffic *end, struct strbuf *s)
{
    const struct moe_traffic begin = {.n_rows = r->n_rows, .busiest_rows = r->busiest_rows};
    job_metrics_put(s, "steps", r->n_steps);
    job_metrics_put(s, "moves", r->n_moves);
    job_metrics_put(s, "read_bytes", r->n_bytes_host);
    put_real(s, "max_over_mean_before",
             last != NULL ? job_rows_evenness_after(last, &begin) : job_rows_evenness(&begin));
    put_real(s, "max_over_mean_after", job_rows_evenness_after(r, end));
    put_real(s, "counted_before", r->before.mean);
    put_real(s, "counted_after", r->after.mean);
}

/* Appends what --expert-replan did; nothing if no expert has moved. */
static void put_replans(const struct job *j, const struct engine_stats *all, struct strbuf *s)
{
    const struct job_replans *r = &j->experts.replans;
    const struct moe_traffic t = job_moe_traffic(j->layout, all);
    if (r->n == 0) return;
    strbuf_puts(s, "\"expert_replan\":{");
    put_moves(&r->at[0], NULL, &t, s);
    strbuf_puts(s, "\"each\":[");
    for (uint32_t i = 0; i < r->n; i++) {
        const struct job_replan *next = i + 1 < r->n ? &r->at[i + 1] : NULL;
        const struct moe_traffic end = {.n_rows = next != NULL ? next->n_rows : t.n_rows,
                                        .busiest_rows =
                                            next != NULL ? next->busiest_rows : t.busiest_rows};
        strbuf_puts(s, "{");
        put_moves(&r->at[i], i > 0 ? &r->at[i - 1] : NULL, &end, s);
        job_metrics_end(s, "},");
    }
    job_metrics_end(s, "]");
    job_metrics_end(s, "},");
}

/* Appends the bytes of tokens between hosts; nothing if no token went to another host. */
static void put_traffic(const struct job *j, const struct engine_stats *all, struct strbuf *s)
{
    const struct moe_traffic t = job_moe_traffic(j->layout, all);
    if (t.dispatch_bytes == 0) return;
    strbuf_puts(s, "\"experts_between_hosts\":{");
    job_metrics_put(s, "tokens", t.n_tokens);
    job_metrics_put(s, "dispatch_bytes", t.dispatch_bytes);
    job_metrics_put(s, "combine_bytes", t.combine_bytes);
    put_real(s, "dispatch_bytes_per_token", (double)t.dispatch_bytes / (double)t.n_tokens);
    put_real(s, "combine_bytes_per_token", (double)t.combine_bytes / (double)t.n_tokens);
    job_metrics_end(s, "},");
}

void job_metrics_put_load(const struct job *j, const int64_t *load, const int64_t *more,
                          struct strbuf *s)
{
    strbuf_puts(s, "\"expert_load\":[");
    for (uint32_t layer = 0; layer < j->model.n_layers; layer++) {
        const uint32_t n = j->model.layer.is_moe[layer] ? j->model.moe.n_experts : 0;
        strbuf_puts(s, "[");
        for (uint32_t e = 0; e < n; e++) {
            const size_t i = (size_t)layer * j->model.moe.n_experts + e;
            strbuf_printf(s, "%" PRId64 ",", load[i] + (more != NULL ? more[i] : 0));
        }
        job_metrics_end(s, "],");
    }
    job_metrics_end(s, "]");
}

static void job_metrics_put_all(const struct job *j, const struct serve_summary *m,
                                const struct engine_stats *all, const int64_t *load,
                                struct strbuf *s)
{
    strbuf_puts(s, "{\"schema\":1,");
    put_bool(s, "finished", all != NULL);
    put_bool(s, "drained", j->is_drained);
    put_setup(j, s);
    put_counts(m, s);
    put_real(s, "load_s", (double)(j->times.ready_ns - j->times.start_ns) * 1e-9);
    strbuf_puts(s, "\"latency_s\":{");
    put_latency(&m->ttft, "ttft", s);
    put_latency(&m->tpot, "tpot", s);
    put_latency(&m->itl, "itl", s);
    put_latency(&m->e2e, "e2e", s);
    job_metrics_end(s, "},");
    if (all != NULL) put_stages(j, all, s);
    if (all != NULL) job_metrics_put_ranks(j, all, s);
    if (all != NULL) put_traffic(j, all, s);
    if (all != NULL) put_evenness(j, all, s);
    if (all != NULL) put_replans(j, all, s);
    if (load != NULL) job_metrics_put_load(j, load, NULL, s);
    job_metrics_end(s, "}\n");
}

struct status job_metrics_write(const struct job *j, const struct serve_summary *m,
                                const struct engine_stats *all, const int64_t *load)
{
    struct strbuf s;
    struct file_replace out = {0};
    strbuf_init(&s);
    job_metrics_put_all(j, m, all, load, &s);
    struct status st = strbuf_status(&s);
    if (!status_failed(&st)) st = file_replace_begin(&out, j->o->files.metrics);
    if (!status_failed(&st)) {
        fwrite(s.data, 1, s.n, out.file);
        st = file_replace_end(&out, st);
    }
    strbuf_fini(&s);
    return status_failed(&st) ? status_wrap(st, "--metrics") : st;
}

void job_metrics_update(struct job *j)
{
    if (j->o->files.metrics == NULL) return;
    const uint64_t now = clock_ns();
    if (now - (j->times.metrics_ns > 0 ? j->times.metrics_ns : j->times.ready_ns) < update_ns)
        return;
    j->times.metrics_ns = now;
    lead_summary(j->lead, j->summary);
    const struct status st = job_metrics_write(j, j->summary, NULL, NULL);
    if (status_failed(&st)) log_line(LOG_WARN, "%s", st.text);
}

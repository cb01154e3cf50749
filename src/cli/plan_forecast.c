/* Forecasts a job (plan_forecast.h): for each number of nodes, simulates the layouts that are
 * fastest by the estimate. */
#include "cli/plan_forecast.h"

#include "attention/kv_pool.h"
#include "base/mem.h"
#include "cli/plan_lines.h"
#include "cost/forecast_table.h"
#include "job/dry_run.h"
#include "job/job_paths.h"
#include "parallel/layout/kv_groups.h"
#include "parallel/layout/layout_choose.h"
#include "parallel/layout/layout_cost.h"
#include "parallel/layout/plan_report.h"
#include "serve/schedule/stats.h"
#include "weights/weights_fit.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum {
    TRIED_MAX = 3,    /* layouts that are simulated for each number of nodes */
    SAMPLE_TIMES = 4, /* lines in a good sample for each sequence that runs at once */
    COUNTS_MAX = 16,  /* numbers of nodes */
};
static const double model_error = 0.25; /* relative; not yet measured on a quiet machine */

/* One layout on n nodes. */
struct candidate_layout {
    struct layout l;
    struct layout_fit fit;
    double rows_s; /* rows per second, by the estimate */
};

struct forecasts {
    const struct forecast_flags *f;
    const struct job_options *job;
    struct config env;
    const struct forecast_subject *of;
    struct node node;
    struct layout_estimate estimate;
    struct layout_budget budget;
    struct plan_lines lines;
    double n_error_rows; /* of the lines that are simulated */
    struct forecast_row rows[COUNTS_MAX * TRIED_MAX];
    size_t n_rows;
};

/* The forecasts of one number of nodes. */
struct nodes {
    uint32_t n;
    struct topo *topo;
    uint32_t *order;
    struct candidate_layout best[TRIED_MAX];
    size_t n_best;
    struct layout_budget budget; /* the forecasts', with these nodes' step_tokens */
};

uint64_t plan_rank_bytes(uint64_t memory_bytes)
{
    enum { PROGRAM_BYTES = 40 << 20 /* before a rank loads anything; a job measures this */ };
    if (memory_bytes == 0) return 0;
    return memory_bytes > PROGRAM_BYTES + 4 ? memory_bytes - PROGRAM_BYTES : 4;
}

/* --- the layouts to try ------------------------------------------------------------------- */

static struct status nodes_init(const struct forecasts *f, uint32_t n, struct nodes *out)
{
    char spec[96];
    const uint32_t threads = (uint32_t)f->node.n_threads, ranks = (uint32_t)f->node.n_ranks;
    snprintf(spec, sizeof spec, "%ux\"pack:1 numa:%u core:%u pu:1\"", n, ranks,
             threads / ranks > 0 ? threads / ranks : 1);
    out->n = n;
    TRY(topo_describe(spec, n * ranks, 0, (uint64_t)f->node.memory_bytes, &out->topo));
    return mem_alloc(&out->order, out->topo->n_ranks, sizeof *out->order, "rank order");
}

static void nodes_fini(struct nodes *n)
{
    topo_destroy(&n->topo);
    mem_free(&n->order);
}

/* Keeps the candidate if it is among the best, fastest first. */
static void nodes_keep(struct nodes *n, const struct candidate_layout *c)
{
    size_t at = n->n_best;
    while (at > 0 && n->best[at - 1].rows_s < c->rows_s) at--;
    if (at == TRIED_MAX) return;
    if (n->n_best < TRIED_MAX) n->n_best++;
    for (size_t i = n->n_best - 1; i > at; i--) n->best[i] = n->best[i - 1];
    n->best[at] = *c;
}

/* Returns the rows per second by the estimate. --max-batch bounds the rows: the sequences of a
 * replica are divided into pp groups, each of which has a step of its own. */
static double estimate_rows_s(const struct forecasts *f, const struct nodes *n,
                              const struct candidate_layout *c)
{
    struct layout_budget budget = n->budget;
    const uint32_t batch = (uint32_t)f->job->schedule.max_batch;
    const uint64_t rows =
        (uint64_t)(batch / c->l.pp > 0 ? batch / c->l.pp : 1) * COST_REFERENCE_ROWS;
    if (batch > 0 && rows < budget.step_tokens) budget.step_tokens = (uint32_t)rows;
    return layout_rows_s(&c->l, n->topo, n->order, &budget, &c->fit);
}

/* Considers the layout with this tp and pp; layout_choose chooses dp and ep, as in a job. */
static struct status consider_nodes(const struct forecasts *f, struct nodes *n, uint32_t tp,
                                    uint32_t pp, struct candidate_layout *c)
{
    struct layout_flags flags = f->job->layout;
    bool fits = false;
    flags.tp = tp;
    flags.pp = pp;
    const struct status st =
        layout_choose(f->of->model, n->topo, &flags, &n->budget, &c->l, n->order, &fits);
    if (st.code == STATUS_USAGE || (!status_failed(&st) && !fits)) return status_ok();
    TRY(st);
    layout_expect_cuts(n->topo, n->order, &c->l);
    c->fit = layout_fit_of(&c->l, n->topo, &n->budget);
    if (!c->fit.fits) return status_ok();
    c->rows_s = estimate_rows_s(f, n, c);
    nodes_keep(n, c);
    return status_ok();
}

/* Decides, as a job does, whether experts stream on these nodes, and then how many rows a step
 * has. */
static struct status fit_weights(const struct forecasts *f, struct nodes *n,
                                 struct candidate_layout *c)
{
    const struct weights_fit fit = {.place = f->job->weights.place,
                                    .may_stream = true,
                                    .step_is_given = flags_is_given(&f->job->given, "step-tokens"),
                                    .topo = n->topo,
                                    .flags = &f->job->layout};
    bool fits;
    n->budget = f->budget;
    f->of->model->streams_experts = false;
    if (fit.place != WEIGHTS_STREAM && n->budget.rank_bytes == 0) return status_ok();
    const struct status st =
        weights_fit_layout(&fit, f->of->model, &n->budget, &c->l, n->order, &fits);
    /* the layout that was asked for may be impossible with this number of ranks */
    return st.code == STATUS_USAGE && f->of->model->arch->moe.n_experts > 0 ? status_ok() : st;
}

static struct status find_best(const struct forecasts *f, struct nodes *n)
{
    const struct layout_flags *asked = &f->job->layout;
    const uint32_t ranks = n->topo->n_ranks;
    struct candidate_layout *c = NULL;
    struct status st = mem_alloc(&c, 1, sizeof *c, "a layout");
    if (!status_failed(&st)) st = fit_weights(f, n, c);
    for (uint32_t pp = 1; pp <= ranks && pp <= COST_STAGES_MAX && !status_failed(&st); pp++) {
        if (ranks % pp != 0 || (asked->pp > 0 && asked->pp != pp)) continue;
        for (uint32_t tp = 1; tp <= ranks / pp && !status_failed(&st); tp++) {
            if (ranks / pp % tp != 0 || (asked->tp > 0 && asked->tp != tp)) continue;
            st = consider_nodes(f, n, tp, pp, c);
        }
    }
    mem_free(&c);
    return st;
}

/* --- one simulation ----------------------------------------------------------------------- */

struct simulation {
    struct cost_model model;
    struct forecast forecast;
    struct forecast_marks marks; /* `part` counts rows until the simulation ends */
    double every, next;          /* steps between two marks; the step of the next mark */
};

/* Adds a mark, the time and the rows so far, when the next mark's step is reached. When all marks
 * are used, keeps every second one, so that marks stay evenly spread over the steps. */
static void simulation_mark(struct simulation *s)
{
    const double n = s->forecast.n_steps;
    if (n < s->next) return;
    if (s->marks.n == FORECAST_MARKS) {
        for (size_t i = 0; i < FORECAST_MARKS / 2; i++) {
            s->marks.s[i] = s->marks.s[2 * i + 1];
            s->marks.part[i] = s->marks.part[2 * i + 1];
        }
        s->marks.n = FORECAST_MARKS / 2;
        s->every *= 2;
    }
    s->marks.s[s->marks.n] = s->forecast.now_s;
    s->marks.part[s->marks.n++] = s->forecast.n_rows;
    s->next = n + s->every;
}

static void simulation_step(void *user, uint32_t group, const struct step_plan *plan)
{
    struct simulation *s = user;
    forecast_step(&s->forecast, group, plan);
    simulation_mark(s);
}

/* Returns the KV blocks that a job would have. A job gives 6/10 of the memory beside the weights to
 * KV blocks, all of it under --memory, and half of that where experts stream; n_kv_blocks of the
 * fit counts 9/10, or all. A job takes at most the blocks that its running sequences can use, and
 * at least those of one context. */
static uint32_t kv_blocks_of(const struct forecasts *f, const struct nodes *nodes,
                             const struct candidate_layout *c)
{
    const struct kv_groups g = kv_groups_of(&c->l);
    const double tables = g.n_full + g.n_windowed;
    const uint64_t per_context = f->budget.min_kv_blocks;
    const int32_t batch = f->job->schedule.max_batch;
    const double running = batch > 0 ? batch : (double)nodes->budget.step_tokens * c->l.pp;
    double part = nodes->budget.rank_bytes > 0 ? 1 : 6.0 / 9;
    if (c->l.model.streams_experts) part /= 2;
    double n = (double)c->fit.n_kv_blocks / tables * part;
    if (n > (double)per_context * running) n = (double)per_context * running;
    if (n < (double)per_context) n = (double)per_context;
    return n < 1e9 ? (uint32_t)n : 1000000000u;
}

static struct status simulate(const struct forecasts *f, const struct nodes *nodes,
                              const struct candidate_layout *c, struct simulation *s,
                              struct serve_summary *sum)
{
    struct job_options o = *f->job;
    const size_t n = strlen(f->of->file);
    const bool has_file = n < 5 || strcmp(f->of->file + n - 5, ".json") != 0;
    o.mode = LEAD_GENERATE;
    o.files.model = has_file ? f->of->file : NULL; /* a config.json: prompts must be token ids */
    o.files.input = f->f->lines;
    if (f->lines.fd >= 0) o.files.input = (struct flag_list){.values = {f->lines.path}, .n = 1};
    o.files.output = "/dev/null";
    o.files.no_journal = true;
    o.files.draft = NULL; /* of made-up tokens no draft would be right */
    o.model.max_model_len = f->budget.min_kv_blocks * KV_BLOCK_TOKENS;
    if (o.model.max_model_len > f->of->model->arch->context)
        o.model.max_model_len = f->of->model->arch->context;
    o.layout.dp = c->l.dp;
    o.layout.pp = c->l.pp;
    o.layout.tp = o.layout.ep = 1;
    o.lead.quiet = true;
    o.run.dry_run = true;
    o.run.kv_blocks = kv_blocks_of(f, nodes, c);
    o.schedule.step_tokens = (int32_t)nodes->budget.step_tokens;
    const struct dry_run_watch watch = {
        .step = simulation_step, .user = s, .mean_answer = f->f->mean_answer};
    return dry_run_simulate(&o, f->env, &watch, sum);
}

static struct status forecast_one(struct forecasts *f, const struct nodes *n,
                                  const struct candidate_layout *c)
{
    struct simulation *s = NULL;
    struct serve_summary *sum = NULL;
    struct status st;
    TRY(mem_alloc(&s, 1, sizeof *s, "a simulation"));
    s->every = s->next = 1;
    TRY_GOTO(st, mem_alloc(&sum, 1, sizeof *sum, "a simulation"), done);
    TRY_GOTO(st, cost_model_init(&s->model, &f->node, &c->l, n->topo, n->order), done);
    if (c->l.model.streams_experts)
        s->model.streamed = plan_streamed_part(&c->l, &n->budget, &c->fit);
    TRY_GOTO(st, forecast_init(&s->forecast, &s->model), done);
    TRY_GOTO(st, simulate(f, n, c, s, sum), done);
    if (sum->n_generated_tokens == 0) {
        st = status_make(STATUS_INPUT,
                         "--input: no line would be answered (%llu of %llu would be error rows); a "
                         "bare config.json takes only prompts of token ids",
                         (unsigned long long)sum->n_error_rows, (unsigned long long)sum->n_rows);
        goto done;
    }
    f->n_error_rows = (double)sum->n_error_rows;
    for (size_t i = 0; i < s->marks.n; i++) s->marks.part[i] /= s->forecast.n_rows;
    struct forecast_row *row = &f->rows[f->n_rows++];
    *row = (struct forecast_row){.n_nodes = n->n,
                                 .n_ranks = c->l.n_ranks,
                                 .tp = c->l.tp,
                                 .pp = c->l.pp,
                                 .dp = c->l.dp,
                                 .ep = c->l.ep,
                                 .n_cores = n->topo->ranks[0].n_cores,
                                 .rank_bytes = (double)c->fit.needed_bytes,
                                 .by = s->forecast.by};
    row->end = forecast_extend(&s->marks, s->forecast.now_s, f->lines.n, f->lines.n_all,
                               f->lines.spread, model_error);
    row->tokens_s = (double)sum->n_generated_tokens * f->lines.n_all / f->lines.n / row->end.s;
done:
    forecast_fini(&s->forecast);
    mem_free(&sum);
    mem_free(&s);
    return st;
}

static struct status forecast_nodes(struct forecasts *f, uint32_t n_nodes)
{
    struct nodes *n = NULL;
    struct status st;
    TRY(mem_alloc(&n, 1, sizeof *n, "layouts"));
    TRY_GOTO(st, nodes_init(f, n_nodes, n), done);
    TRY_GOTO(st, find_best(f, n), done);
    for (size_t i = 0; i < n->n_best; i++) TRY_GOTO(st, forecast_one(f, n, &n->best[i]), done);
done:
    nodes_fini(n);
    mem_free(&n);
    return st;
}

/* --- all of it ---------------------------------------------------------------------------- */

static struct status write_svg(const struct forecasts *f)
{
    struct strbuf s;
    strbuf_init(&s);
    struct status st = forecast_svg(f->rows, f->n_rows, &s);
    FILE *file = status_failed(&st) ? NULL : fopen(f->f->svg, "we");
    const bool opened = file != NULL;
    bool written = opened && fwrite(s.data, 1, s.n, file) == s.n;
    if (opened && fclose(file) != 0) written = false;
    if (!status_failed(&st) && !written)
        st = status_make(STATUS_IO, "--svg %s: %s", f->f->svg, strerror(errno));
    strbuf_fini(&s);
    return st;
}

static struct status print_forecast(const struct forecasts *f)
{
    struct strbuf s;
    strbuf_init(&s);
    strbuf_printf(&s,
                  "forecast for %.0f lines (%.0f of them simulated) on nodes like %s (%s, %s)\n\n",
                  f->lines.n_all, f->lines.n, f->node.host, f->node.cpu, f->node.kernels);
    if (f->n_error_rows > 0)
        strbuf_printf(&s, "%.0f of the simulated lines are error rows\n\n", f->n_error_rows);
    if (f->of->lead_bytes > 0)
        strbuf_puts(&s, "the draft model (--draft) is counted with its memory alone: neither its "
                        "time nor the steps that right draft tokens save are in this forecast\n\n");
    double most = 0; /* sequences at a time */
    const int32_t batch = f->job->schedule.max_batch;
    for (size_t i = 0; i < f->n_rows; i++) {
        const double n = (double)f->rows[i].dp * f->rows[i].pp *
                         (batch > 0 ? batch : f->job->schedule.step_tokens);
        if (n > most) most = n;
    }
    if (f->lines.n < f->lines.n_all && f->lines.n < SAMPLE_TIMES * most)
        strbuf_printf(&s,
                      "up to %.0f sequences run at a time: --sample %.0f would make this more "
                      "certain\n\n",
                      most, SAMPLE_TIMES * most);
    struct status st = forecast_table(f->rows, f->n_rows, f->f->watts, &s);
    if (f->f->slurm) {
        strbuf_puts(&s, "\n");
        st = forecast_slurm(&f->rows[forecast_soonest(f->rows, f->n_rows)], &s);
    }
    if (!status_failed(&st)) fwrite(s.data, 1, s.n, stdout);
    strbuf_fini(&s);
    return st;
}

static struct status run_all(struct forecasts *f)
{
    size_t n_counts = 0;
    for (uint32_t n = 1; n_counts++<COUNTS_MAX; n = 2 * n> f->f->count ? f->f->count : 2 * n) {
        TRY(forecast_nodes(f, n));
        if (n == f->f->count) break;
    }
    if (f->n_rows == 0)
        return status_make(
            STATUS_USAGE,
            "no layout fits in %.4g GiB of memory per node on up to %u nodes; give a larger "
            "--count, or a smaller --max-model-len or --step-tokens",
            f->node.memory_bytes / (double)(1ull << 30), f->f->count);
    if (f->f->svg != NULL) TRY(write_svg(f));
    return print_forecast(f);
}

static struct status settle(struct forecasts *f)
{
    const struct job_options *job = f->job;
    const uint32_t asked = job->model.max_model_len,
                   context = asked > 0 ? asked : f->of->model->arch->context;
    if (f->f->lines.n == 0) return status_make(STATUS_USAGE, "--nodes: needs --input IN.jsonl");
    if (strcmp(f->f->lines.values[0], "-") == 0)
        return status_make(STATUS_USAGE,
                           "--input -: expected a file, whose lines can be read again");
    TRY(node_read(job->files.nodes, &f->node));
    const struct layout_network *network = &job->layout.network;
    const bool is_given = flags_is_given(&job->given, "network");
    if (f->node.network_bytes_s == 0 && !is_given && f->f->count > 1)
        return status_make(STATUS_USAGE,
                           "--count %u: %s has no network (it was measured on one host); give "
                           "--network, as 100Gbit,2us",
                           f->f->count, job->files.nodes);
    if (is_given || f->node.network_bytes_s == 0) {
        f->node.network_bytes_s = network->gbit_s * 1e9 / 8;
        if (network->latency_s > 0) f->node.network_s = network->latency_s;
    }
    if (f->of->disk_bytes_s > 0) f->node.disk_bytes_s = f->of->disk_bytes_s;
    f->estimate = (struct layout_estimate){.step_s = cost_reference_s, .user = &f->node};
    f->of->model->keeps_windows = context <= f->of->model->arch->attn.window;
    f->budget = (struct layout_budget){
        .kv = kv_layout(job->model.kv_dtype),
        .step_tokens = (uint32_t)job->schedule.step_tokens,
        .min_kv_blocks = (context + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS,
        .n_state_slots = layout_slots_wanted(f->of->model->arch, job->schedule.max_batch),
        .lead_bytes = f->of->lead_bytes,
        .network_bytes_s = f->node.network_bytes_s,
        .rank_bytes = plan_rank_bytes(job->weights.memory_bytes),
        .estimate = &f->estimate};
    struct input_files inputs;
    TRY(input_files_expand(f->f->lines.values, f->f->lines.n, &inputs));
    const struct status st = plan_lines_read(&inputs, f->f->sample, &f->lines);
    input_files_fini(&inputs);
    return st;
}

/* Refuses an --svg that would replace a file of the command line, before anything is run. */
static struct status check_svg(const struct forecast_flags *flags, const struct job_options *job,
                               const char *model)
{
    struct job_options named = *job;
    named.files.model = model;
    named.files.input = flags->lines;
    return job_paths_check_more(&named, "svg", flags->svg);
}

struct status plan_forecast(const struct forecast_flags *flags, const struct job_options *job,
                            struct config env, const struct forecast_subject *of)
{
    struct forecasts *f = NULL;
    struct job_options settled = *job;
    TRY(check_svg(flags, job, of->file));
    if (flags->answer_tokens > 0) settled.sampling.max_tokens = flags->answer_tokens;
    TRY(mem_alloc(&f, 1, sizeof *f, "forecasts"));
    f->f = flags;
    f->job = &settled;
    f->env = env;
    f->of = of;
    f->lines.fd = -1;
    struct status st = settle(f);
    if (!status_failed(&st)) st = run_all(f);
    plan_lines_fini(&f->lines);
    mem_free(&f);
    return st;
}

/* shoal plan: shows topology, layout and memory, or forecasts a job (plan_forecast.h), without
 * loading weights and without MPI. */
#include "attention/kv_pool.h"
#include "base/mem.h"
#include "cli/cmd.h"
#include "cli/plan_forecast.h"
#include "cli/plan_model.h"
#include "draft/draft_model.h"
#include "job/job_counts.h"
#include "job/job_options.h"
#include "job/job_paths.h"
#include "parallel/layout/layout_choose.h"
#include "parallel/layout/plan_report.h"
#include "weights/weights.h"
#include "weights/weights_fit.h"

#include <stddef.h>
#include <string.h>

#define PLAN_FLAGS(FLAG)                                                                           \
    FLAG(const char *, model, "model", OF_TEXT("FILE"), .commands = IN_PLAN,                       \
         .help = "a checkpoint, or a config.json (no weights needed)")                             \
    FLAG(uint32_t, n_ranks, "ranks", OF_COUNT(1, 65536, "N"), .commands = IN_PLAN,                 \
         .help = "ranks (default: one per NUMA node, or GPU)")                                     \
    FLAG(const char *, topology, "topology", OF_TEXT("SPEC"), .commands = IN_PLAN,                 \
         .help = "16x\"pack:2 numa:1 core:32 pu:1\", or a folder of hwloc XML (default: this "     \
                 "machine)")                                                                       \
    FLAG(uint32_t, gpus_per_node, "gpus-per-node", OF_COUNT(0, 64, "N"), .commands = IN_PLAN,      \
         .help = "GPUs of a node; without --ranks, one rank on each")                              \
    FLAG(double, gpu_memory_gib, "gpu-memory", OF_NUMBER(0, 1e6, "GIB"), .commands = IN_PLAN,      \
         .help = "with --gpus-per-node: memory of a GPU (default: what the topology says, or 80)") \
    FLAG(double, memory_gib, "memory-per-node", OF_NUMBER(0, 1e6, "GIB"), .commands = IN_PLAN,     \
         .help = "memory of a node (default: what the topology says; if it says nothing, 256, "    \
                 "with a warning)")                                                                \
    FLAG(double, disk_gb_s, "disk", OF_NUMBER(0, 1e6, "GB/S"), .preset = "2", .commands = IN_PLAN, \
         .help = "rate at which a host reads its disk, for streamed experts; with --nodes: "       \
                 "replaces that file's rate")                                                      \
    FLAG(enum dtype, dtype, "dtype", OF_CHOICE(FLOAT_WORDS), .preset = "bf16",                     \
         .commands = IN_PLAN, .help = "type of the weights if FILE is a config.json")              \
    FLAG(const char *, format, "format", OF_TEXT("F"), .commands = IN_PLAN,                        \
         .help = "format of the weights if FILE is a config.json, as shoal convert would make "    \
                 "them: int8, int4, fp8, mxfp4, ...")                                              \
    FLAG(const char *, policy, "policy", OF_TEXT("C=F,..."), .commands = IN_PLAN,                  \
         .help = "with --format: other formats for embedding, attention, ffn, experts, router, "   \
                 "head")

struct plan_flags {
    PLAN_FLAGS(FLAG_FIELD)
};

/* A plan takes the job flags that concern layout and memory. */
struct plan_options {
    struct job_options job; /* first: a job's flags keep their offsets */
    struct plan_flags flags;
    struct forecast_flags forecast;
};

#define FLAG_OWNER struct plan_flags
static const struct flag rows[] = {PLAN_FLAGS(FLAG_ROW)};
#undef FLAG_OWNER
#define FLAG_OWNER struct forecast_flags
static const struct flag forecast_rows[] = {FORECAST_FLAGS(FLAG_ROW)};
#undef FLAG_OWNER

enum { GPU_GIB_ASSUMED = 80 };

static struct status find_topology(const struct plan_flags *f, struct topo **out)
{
    const uint64_t memory = (uint64_t)(f->memory_gib * (double)(1ull << 30));
    if (f->topology != NULL) {
        return topo_describe(f->topology, f->n_ranks, f->gpus_per_node, memory, out);
    }
    /* this machine, with the given number of ranks */
    struct topo_self self;
    struct topo_self *all = NULL;
    const uint32_t n = f->n_ranks > 0 ? f->n_ranks : 1;
    TRY(topo_self_read(&self));
    if (memory > 0) self.node.memory_bytes = memory;
    TRY(mem_alloc(&all, n, sizeof *all, "topology"));
    for (uint32_t i = 0; i < n; i++) all[i] = self;
    const struct status st = topo_join(all, n, out);
    mem_free(&all);
    return st;
}

static void warn_of_memory(const struct topo *t)
{
    if (!t->nodes[0].memory_is_assumed) return;
    fprintf(stderr,
            "shoal plan: --topology does not say how much memory a node has: taken as %.4g GiB; "
            "give --memory-per-node GIB\n",
            (double)t->nodes[0].memory_bytes / (double)(1ull << 30));
}

/* Returns a GPU's memory in bytes: --gpu-memory, else the smallest GPU's, else GPU_GIB_ASSUMED. */
static uint64_t gpu_memory(const struct plan_flags *f, const struct topo_node *node)
{
    uint64_t least = 0;
    if (f->gpu_memory_gib > 0) return (uint64_t)(f->gpu_memory_gib * (double)(1ull << 30));
    for (uint32_t g = 0; g < node->n_gpus && g < TOPO_GPUS_MAX; g++) {
        const uint64_t n = node->gpus[g].memory_bytes;
        if (n > 0 && (least == 0 || n < least)) least = n;
    }
    return least > 0 ? least : (uint64_t)GPU_GIB_ASSUMED << 30;
}

/* Returns the bytes of GPU memory of the rank that has the least; 0: ranks compute on CPUs. */
static uint64_t gpu_bytes(const struct plan_flags *f, const struct topo *t)
{
    uint64_t least = UINT64_MAX;
    if (f->gpus_per_node == 0) return 0;
    for (uint32_t r = 0; r < t->n_ranks; r++) {
        const struct topo_node *node = &t->nodes[t->ranks[r].host];
        const uint32_t n_gpus = node->n_gpus > 0 ? node->n_gpus : f->gpus_per_node;
        const uint32_t sharers = (t->ranks[r].n_local_ranks + n_gpus - 1) / n_gpus;
        const uint64_t part = gpu_memory(f, node) / sharers;
        if (part < least) least = part;
    }
    return least;
}

static struct status no_fit(const struct layout_budget *b, const struct topo *t)
{
    const double gib = (double)(1ull << 30);
    if (b->rank_bytes > 0)
        return status_make(
            STATUS_USAGE, "no layout fits in the --memory of a rank; give more memory, more ranks, "
                          "or a smaller --max-model-len or --step-tokens");
    if (b->device_bytes > 0)
        return status_make(STATUS_USAGE,
                           "no layout fits in %.4g GiB of GPU memory per rank; give more GPUs, a "
                           "larger --gpu-memory, or a smaller --max-model-len or --step-tokens",
                           (double)b->device_bytes / gib);
    return status_make(STATUS_USAGE,
                       "no layout fits in %.4g GiB of memory per node; give more nodes, a larger "
                       "--memory-per-node, or a smaller --max-model-len or --step-tokens",
                       (double)t->nodes[0].memory_bytes / gib);
}

/* Returns the longest context of the job. */
static uint32_t context_of(const struct plan_options *o, const struct arch *model)
{
    return o->job.model.max_model_len > 0 ? o->job.model.max_model_len : model->context;
}

/* Sets *out to the memory of --draft on rank 0; zeros without it. */
static struct status plan_draft(const struct plan_options *o, const struct arch *model,
                                struct draft_memory *out)
{
    const char *path = o->job.files.draft;
    const struct draft_limits limits = {context_of(o, model), o->job.model.kv_dtype,
                                        o->job.schedule.max_batch};
    struct arch m;
    struct layout_model layout_model;
    *out = (struct draft_memory){0};
    if (path == NULL) return status_ok();
    if (o->flags.gpus_per_node > 0)
        return status_make(STATUS_USAGE, "--draft: not with --device cuda, nor with "
                                         "--gpus-per-node");
    TRY(job_paths_check_model("draft", path));
    TRY(status_wrap(draft_model_check(model), "--draft %s", path));
    const struct plan_source source = {path, o->flags.dtype, NULL, NULL};
    TRY(status_wrap(plan_model_read(&source, &m, &layout_model), "--draft"));
    TRY(status_wrap(draft_model_check(&m), "--draft %s", path));
    m.n_predict = 0;
    return draft_memory_of(&layout_model, &limits, out);
}

/* Appends what rank 0 needs besides its part of the model. */
static void report_draft(const char *path, const struct draft_memory *m, struct strbuf *out)
{
    const double mib = 1 << 20;
    if (path == NULL) return;
    strbuf_printf(out,
                  "\nDraft     rank 0 alone also holds %s: weights %.1f MiB + workspace %.1f MiB + "
                  "%u KV blocks %.1f MiB\n",
                  path, (double)m->weights_bytes / mib, (double)m->workspace_bytes / mib,
                  m->n_blocks, (double)m->kv_bytes / mib);
}

static struct status cmd_plan_report(const struct plan_options *o, struct layout_model *m,
                                     const struct draft_memory *draft, const struct topo *t)
{
    struct layout *layout = NULL;
    uint32_t *order = NULL;
    int64_t *load = NULL;
    struct expert_places *places = NULL;
    struct strbuf text;
    strbuf_init(&text);
    const struct layout_flags *flags = &o->job.layout;
    const uint32_t context = context_of(o, m->arch);
    struct layout_budget budget = {.kv = kv_layout(o->job.model.kv_dtype),
                                   .step_tokens = job_step_tokens(&o->job, m->arch, context),
                                   .min_kv_blocks = (context + 63) / 64,
                                   .n_state_slots =
                                       layout_slots_wanted(m->arch, o->job.schedule.max_batch),
                                   .rank_bytes = plan_rank_bytes(o->job.weights.memory_bytes),
                                   .lead_bytes = draft_memory_bytes(draft),
                                   .device_bytes = gpu_bytes(&o->flags, t),
                                   .network_bytes_s = flags->network.gbit_s * 1e9 / 8};
    const struct weights_fit fit = {.place = o->job.weights.place,
                                    .may_stream = o->flags.gpus_per_node == 0,
                                    .step_is_given = flags_is_given(&o->job.given, "step-tokens"),
                                    .topo = t,
                                    .flags = flags};
    struct status st;
    bool fits = true;
    m->keeps_windows =
        o->flags.gpus_per_node > 0 || context <= m->arch->attn.window || m->arch->encoder;
    TRY_GOTO(st, mem_alloc(&layout, 1, sizeof *layout, "layout"), done);
    TRY_GOTO(st, mem_alloc(&order, t->n_ranks, sizeof *order, "rank order"), done);
    TRY_GOTO(st, weights_fit_layout(&fit, m, &budget, layout, order, &fits), done);
    if (o->flags.gpus_per_node == 0) layout_expect_cuts(t, order, layout);
    if (flags->expert_load != NULL) {
        struct status unusable;
        TRY_GOTO(st, job_counts_read_flag(flags->expert_load, m, &load, &unusable), done);
        TRY_GOTO(st, unusable, done);
        TRY_GOTO(st, expert_places_on(layout, load, t, order, &places), done);
        layout->expert_places = places;
    }
    TRY_GOTO(st, plan_report(layout, t, order, &budget, &text), done);
    report_draft(o->job.files.draft, draft, &text);
    if (load != NULL) TRY_GOTO(st, plan_report_experts(layout, load, &text), done);
    TRY_GOTO(st, plan_report_stream(layout, t, order, &budget, o->flags.disk_gb_s * 1e9, &text),
             done);
    TRY_GOTO(st, plan_report_wire(layout, &budget, load, &text), done);
    fwrite(text.data, 1, text.n, stdout);
    if (!fits) st = no_fit(&budget, t);
done:
    strbuf_fini(&text);
    expert_places_destroy(&places);
    mem_free(&load);
    mem_free(&order);
    mem_free(&layout);
    return st;
}

/* Refuses flags that describe a machine, because the node's file describes it. */
static struct status check_nodes(const struct plan_flags *f)
{
    const char *flag = f->topology != NULL    ? "topology"
                       : f->n_ranks > 0       ? "ranks"
                       : f->gpus_per_node > 0 ? "gpus-per-node"
                       : f->memory_gib > 0    ? "memory-per-node"
                                              : NULL;
    if (flag == NULL) return status_ok();
    return status_make(STATUS_USAGE,
                       "--%s and --nodes: expected one of them; a forecast takes CPUs, ranks and "
                       "memory from the node's file",
                       flag);
}

/* Refuses flags that only a forecast reads. */
static struct status check_no_nodes(const struct job_options *job)
{
    static const char *const names[] = {"count",      "input", "sample", "mean-answer",
                                        "max-tokens", "watts", "svg",    "slurm"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (!flags_is_given(&job->given, names[i])) continue;
        return status_make(STATUS_USAGE, "--%s: needs --nodes NODE.json", names[i]);
    }
    return status_ok();
}

static struct status plan_run(const struct plan_options *o, struct config env)
{
    const struct plan_flags *f = &o->flags;
    if (f->model == NULL) return status_make(STATUS_USAGE, "--model FILE is missing");
    TRY(job_paths_check_model("model", f->model));
    if (f->policy != NULL && f->format == NULL)
        return status_make(STATUS_USAGE, "--policy: needs --format");
    const struct plan_source source = {f->model, f->dtype, f->format, f->policy};
    struct arch m;
    struct layout_model layout_model;
    struct draft_memory draft;
    struct topo *topo = NULL;
    TRY(plan_model_read(&source, &m, &layout_model));
    m.headless = m.encoder; /* its jobs give vectors, or scores by a head of their own */
    if (m.encoder && o->job.files.nodes != NULL)
        return status_make(STATUS_USAGE,
                           "--nodes: forecasts are for generation, and %s gives no "
                           "tokens",
                           m.family->title);
    if (o->job.model.fp8_activations == ACTIVATIONS_INT8 && layout_model.expert_fp8_group > 0)
        layout_model.expert_code_group = layout_model.expert_fp8_group;
    layout_model.on_device = f->gpus_per_node > 0;
    if (flags_is_given(&o->job.given, "disk") && f->disk_gb_s == 0)
        return status_make(STATUS_USAGE, "--disk: expected GB/s above 0, found 0");
    if (flags_is_given(&o->job.given, "gpu-memory") && f->gpus_per_node == 0)
        return status_make(STATUS_USAGE, "--gpu-memory: needs --gpus-per-node");
    if (o->job.model.max_model_len > m.context)
        return status_make(STATUS_USAGE, "--max-model-len: the model allows %u, found %u",
                           m.context, o->job.model.max_model_len);
    job_bound_context(o->job.model.max_model_len, &m);
    if (o->job.files.nodes == NULL) TRY(check_no_nodes(&o->job));
    if (o->job.files.nodes != NULL) TRY(check_nodes(f));
    TRY(plan_draft(o, &m, &draft));
    const bool has_disk = flags_is_given(&o->job.given, "disk");
    const struct forecast_subject of = {.model = &layout_model,
                                        .file = f->model,
                                        .disk_bytes_s = has_disk ? f->disk_gb_s * 1e9 : 0,
                                        .lead_bytes = draft_memory_bytes(&draft)};
    if (o->job.files.nodes != NULL) return plan_forecast(&o->forecast, &o->job, env, &of);
    TRY(find_topology(f, &topo));
    warn_of_memory(topo);
    const struct status st = cmd_plan_report(o, &layout_model, &draft, topo);
    topo_destroy(&topo);
    return st;
}

int cmd_plan(struct config env, int argc, char **argv)
{
    if (env.launcher_rank != 0) return 0; /* one process plans and prints */
    struct flag_group groups[JOB_GROUP_COUNT + 2];
    groups[0] = (struct flag_group)FLAG_GROUP(rows, offsetof(struct plan_options, flags));
    groups[1] =
        (struct flag_group)FLAG_GROUP(forecast_rows, offsetof(struct plan_options, forecast));
    memcpy(groups + 2, job_groups, sizeof job_groups);
    const struct flag_table table = {
        .groups = groups, .n_groups = JOB_GROUP_COUNT + 2, .command = IN_PLAN};
    struct plan_options o = {.flags = {.model = NULL}};
    struct flags_parsed parsed = {.ask = FLAGS_RUN};
    struct status st = flags_parse(&table, argc, argv, &o, &parsed);
    o.job.given = parsed.given;
    if (!status_failed(&st) && parsed.ask == FLAGS_RUN) st = plan_run(&o, env);
    if (status_failed(&st)) return flags_refuse(argv[0], 0, &st);
    if (parsed.ask == FLAGS_RUN) return 0;
    const struct flags_page page = {
        .command = argv[0],
        .arguments = "--model FILE [--ranks N] [--topology SPEC] [FLAGS]",
        .summary = "show topology, layout and memory without running",
        .description =
            "Chooses the layout that a job would choose, says why, which rank holds what, "
            "what a rank needs for weights, KV cache and workspace, and what does "
            "not fit (status 2). Loads no weights; a bare config.json will do for a "
            "model.\n"
            "With --nodes NODE.json --count N --input IN.jsonl: forecasts tokens per second, time "
            "and "
            "node-hours of the job on up to N such nodes, for the best layouts on each number of "
            "them, by running the job's scheduler over its lines (docs/forecast.md). With a bare "
            "config.json, prompts must be token ids.",
        .table = &table};
    flags_print(&page, parsed.ask, stdout);
    return 0;
}

/* shoal plan: topology, layout and memory, without loading weights and without MPI. */
#include "attention/kv_pool.h"
#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/file/ckpt.h"
#include "cli/cmd.h"
#include "job/job_options.h"
#include "job/job_paths.h"
#include "moe/wire_bytes.h"
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
         .help = "one rank per GPU")                                                               \
    FLAG(double, memory_gib, "memory-per-node", OF_NUMBER(0, 1e6, "GIB"), .commands = IN_PLAN,     \
         .help = "memory of a node (default: what the topology says; if it says nothing, 256, "    \
                 "with a warning)")                                                                \
    FLAG(double, disk_gb_s, "disk", OF_NUMBER(0, 1e6, "GB/S"), .preset = "2", .commands = IN_PLAN, \
         .help = "bytes that a host reads from its disk, for streamed experts")                    \
    FLAG(enum dtype, dtype, "dtype", OF_CHOICE(FLOAT_WORDS), .preset = "bf16",                     \
         .commands = IN_PLAN, .help = "weight type for a config.json")

struct plan_flags {
    PLAN_FLAGS(FLAG_FIELD)
};

/* A plan takes the job flags that concern layout and memory. */
struct plan_options {
    struct job_options job; /* first: a job's flags keep their offsets */
    struct plan_flags flags;
};

#define FLAG_OWNER struct plan_flags
static const struct flag rows[] = {PLAN_FLAGS(FLAG_ROW)};
#undef FLAG_OWNER

enum {
    CONFIG_BYTES_MAX = 16 << 20,
    PROGRAM_BYTES = 40 << 20, /* of a rank before it loads anything; a job measures it */
    WIRE_INDENT = 10,         /* as plan_report.h indents */
};

/* Describes the model: with a checkpoint's own K-blocks and types, or with those that convert would
 * choose for a bare config.json. */
static struct status plan_read_model(const struct plan_flags *f, struct arch *m,
                                     struct layout_model *out)
{
    const size_t n_path = strlen(f->model);
    if (n_path < 5 || strcmp(f->model + n_path - 5, ".json") != 0) {
        struct ckpt *c = NULL;
        TRY(ckpt_open(f->model, &c));
        size_t n;
        const char *config = ckpt_config_json(c, &n);
        struct status st = arch_parse(config, n, "config.json", m);
        if (!status_failed(&st)) st = weights_check(m, c, out);
        ckpt_close(&c);
        return status_wrap(st, "%s", f->model);
    }
    char *text = NULL;
    size_t n;
    TRY(file_read(f->model, CONFIG_BYTES_MAX, &text, &n));
    const struct status st = arch_parse(text, n, f->model, m);
    mem_free(&text);
    TRY(st);
    layout_describe(m, (uint32_t)dtype_bytes(f->dtype), out);
    return status_ok();
}

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

/* Bytes that --memory leaves beside the program, about; 0: no bound. */
static uint64_t plan_bound(const struct plan_options *o)
{
    const uint64_t all = o->job.weights.memory_bytes;
    if (all == 0) return 0;
    return all > PROGRAM_BYTES + 4 ? all - PROGRAM_BYTES : 4;
}

/* The hosts that hold the first stage's first replica of all experts. */
static uint32_t expert_hosts(const struct layout *l, const struct topo *t, const uint32_t *order)
{
    uint32_t n = 0;
    for (uint32_t node = 0; node < t->n_nodes; node++) {
        bool holds = false;
        for (uint32_t r = 0; r < l->n_ranks && !holds; r++) {
            const struct layout_place p = layout_place_of(l, r);
            holds = p.pp == 0 && p.expert_replica == 0 && t->ranks[order[r]].host == node;
        }
        n += holds;
    }
    return n;
}

/* The mean over the layers of the bytes of tokens between hosts, when they choose experts as the
 * load says. */
static struct status wire_by_load(const struct layout *l, const int64_t *load,
                                  const struct wire_shape *shape, struct wire_bytes *out)
{
    struct expert_rows_expected expected = {.of_part = NULL};
    struct status st = status_ok();
    double n = 0;
    *out = (struct wire_bytes){.hosts = 0};
    TRY(mem_alloc(&expected.of_part, l->ep, sizeof *expected.of_part, "experts' load"));
    for (uint32_t layer = 0; layer < l->model.arch->n_layers && !status_failed(&st); layer++) {
        if (!l->model.arch->layer_is_moe[layer]) continue;
        st = expert_rows_expect(l, l->expert_places, load, layer, &expected);
        const struct wire_bytes w = wire_bytes_for(shape, expected.hosts, expected.other_hosts);
        out->hosts += w.hosts;
        out->dispatch += w.dispatch;
        out->combine += w.combine;
        n++;
    }
    out->hosts /= n;
    out->dispatch /= n;
    out->combine /= n;
    mem_free(&expected.of_part);
    return st;
}

static void add_wire(const char *title, const struct wire_shape *shape, const char *how,
                     const struct wire_bytes *w, struct strbuf *out)
{
    strbuf_printf(out,
                  "%-*s%s: a token goes to %.2f others; %.3g KB there as %s, %.3g KB back, in each "
                  "layer\n",
                  WIRE_INDENT, title, how, w->hosts, w->dispatch / 1e3,
                  shape->format.group > 0 ? "int8 values" : "floats", w->combine / 1e3);
}

/* The bytes of tokens between hosts when a router chooses at random, and by the load [L, E]; NULL:
 * not known. */
static struct status report_wire(const struct layout *l, const struct topo *t,
                                 const uint32_t *order, const int64_t *load, struct strbuf *out)
{
    const struct arch *m = l->model.arch;
    const uint32_t n_hosts = m->n_experts > 0 ? expert_hosts(l, t, order) : 0;
    if (n_hosts < 2 || n_hosts > m->n_experts) return status_ok();
    const struct wire_shape shape = {.format = {m->width, l->model.expert_code_group},
                                     .n_experts = m->n_experts,
                                     .n_chosen = m->n_chosen,
                                     .router = m->router,
                                     .n_hosts = n_hosts};
    struct wire_bytes w = wire_bytes_of(&shape);
    char how[64];
    snprintf(how, sizeof how, "experts on %u hosts", n_hosts);
    add_wire("Wire", &shape, how, &w, out);
    if (load == NULL) return status_ok();
    TRY(wire_by_load(l, load, &shape, &w));
    snprintf(how, sizeof how, "by the load, with %u copies", l->n_expert_copies);
    add_wire("", &shape, how, &w, out);
    return status_ok();
}

static struct status cmd_plan_report(const struct plan_options *o, struct layout_model *m,
                                     const struct topo *t)
{
    struct layout *layout = NULL;
    uint32_t *order = NULL;
    int64_t *load = NULL;
    struct expert_places *places = NULL;
    struct strbuf text;
    strbuf_init(&text);
    const struct layout_flags *flags = &o->job.layout;
    const uint32_t asked = o->job.model.max_model_len,
                   context = asked > 0 ? asked : m->arch->context;
    struct layout_budget budget = {.kv = kv_layout(o->job.model.kv_dtype),
                                   .step_tokens = (uint32_t)o->job.schedule.step_tokens,
                                   .min_kv_blocks = (context + 63) / 64,
                                   .n_state_slots =
                                       layout_slots_wanted(m->arch, o->job.schedule.max_batch),
                                   .rank_bytes = plan_bound(o)};
    const struct weights_fit fit = {.place = o->job.weights.place,
                                    .may_stream = o->flags.gpus_per_node == 0,
                                    .step_is_given = flags_is_given(&o->job.given, "step-tokens"),
                                    .topo = t,
                                    .flags = flags};
    struct status st;
    bool fits = true;
    TRY_GOTO(st, mem_alloc(&layout, 1, sizeof *layout, "layout"), done);
    TRY_GOTO(st, mem_alloc(&order, t->n_ranks, sizeof *order, "rank order"), done);
    TRY_GOTO(st, weights_fit_layout(&fit, m, &budget, layout, order, &fits), done);
    if (o->flags.gpus_per_node == 0) layout_expect_cuts(t, order, layout);
    if (flags->expert_load != NULL) {
        TRY_GOTO(st, expert_load_read(flags->expert_load, m, &load), done);
        TRY_GOTO(st, expert_places_on(layout, load, t, order, &places), done);
        layout->expert_places = places;
    }
    TRY_GOTO(st, plan_report(layout, t, order, &budget, &text), done);
    if (load != NULL) TRY_GOTO(st, plan_report_experts(layout, load, &text), done);
    TRY_GOTO(st, plan_report_stream(layout, t, order, &budget, o->flags.disk_gb_s * 1e9, &text),
             done);
    if (o->flags.gpus_per_node == 0) TRY_GOTO(st, report_wire(layout, t, order, load, &text), done);
    TRY_GOTO(st, strbuf_status(&text), done);
    fwrite(text.data, 1, text.n, stdout);
    if (!fits) {
        st = budget.rank_bytes > 0
                 ? status_make(STATUS_USAGE,
                               "no layout fits in the --memory of a rank; expected more, more "
                               "ranks, or a smaller --max-model-len or --step-tokens")
                 : status_make(
                       STATUS_USAGE,
                       "no layout fits in %.4g GiB of memory a node; expected more "
                       "nodes, --memory-per-node, or a smaller --max-model-len or --step-tokens",
                       (double)t->nodes[0].memory_bytes / (double)(1ull << 30));
    }
done:
    strbuf_fini(&text);
    expert_places_destroy(&places);
    mem_free(&load);
    mem_free(&order);
    mem_free(&layout);
    return st;
}

static struct status plan_run(const struct plan_options *o)
{
    const struct plan_flags *f = &o->flags;
    if (f->model == NULL) return status_make(STATUS_USAGE, "--model FILE is missing");
    TRY(job_paths_check_model(f->model));
    struct arch m;
    struct layout_model layout_model;
    struct topo *topo = NULL;
    TRY(plan_read_model(f, &m, &layout_model));
    TRY(find_topology(f, &topo));
    warn_of_memory(topo);
    const struct status st = cmd_plan_report(o, &layout_model, topo);
    topo_destroy(&topo);
    return st;
}

int cmd_plan(struct config env, int argc, char **argv)
{
    if (env.launcher_rank != 0) return 0; /* one process plans and prints */
    struct flag_group groups[JOB_GROUP_COUNT + 1];
    groups[0] = (struct flag_group)FLAG_GROUP(rows, offsetof(struct plan_options, flags));
    memcpy(groups + 1, job_groups, sizeof job_groups);
    const struct flag_table table = {
        .groups = groups, .n_groups = JOB_GROUP_COUNT + 1, .command = IN_PLAN};
    struct plan_options o = {.flags = {.model = NULL}};
    struct flags_parsed parsed = {.ask = FLAGS_RUN};
    struct status st = flags_parse(&table, argc, argv, &o, &parsed);
    o.job.given = parsed.given;
    if (!status_failed(&st) && parsed.ask == FLAGS_RUN) st = plan_run(&o);
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
            "model.",
        .table = &table};
    flags_print(&page, parsed.ask, stdout);
    return 0;
}

/* shoal plan: topology, layout and memory, without loading weights and without MPI. */
#include "attention/kv_pool.h"
#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/file/ckpt.h"
#include "cli/cmd.h"
#include "job/job_paths.h"
#include "weights/weights.h"
#include "options/flags.h"
#include "parallel/layout/layout_choose.h"
#include "parallel/layout/plan_report.h"

#include <stddef.h>
#include <string.h>

struct plan_flags {
    const char *model, *topology, *kv_dtype, *dtype, *expert_load;
    uint32_t n_ranks, tp, pp, ep, dp, gpus_per_node, step_tokens, max_model_len;
    double memory_gib;
};

#define AT(field) offsetof(struct plan_flags, field)

static const struct flag table[] = {
    {"model", FLAG_STRING, AT(model), 0, 0, "FILE",
     "a checkpoint, or a config.json (no weights needed)"},
    {"ranks", FLAG_COUNT, AT(n_ranks), 1, 65536, "N", "ranks (default: one per NUMA node, or GPU)"},
    {"topology", FLAG_STRING, AT(topology), 0, 0, "SPEC",
     "16x\"pack:2 numa:1 core:32 pu:1\", or a folder of hwloc XML; default: this machine"},
    {"gpus-per-node", FLAG_COUNT, AT(gpus_per_node), 0, 64, "N", "one rank per GPU"},
    {"memory-per-node", FLAG_NUMBER, AT(memory_gib), 0, 1e6, "GIB",
     "memory of a node (default: what the topology says; if it says nothing, 256, with a warning)"},
    {"tp", FLAG_COUNT, AT(tp), 1, 65536, "N", "tensor parallel ranks (default: chosen)"},
    {"pp", FLAG_COUNT, AT(pp), 1, 65536, "N", "pipeline stages"},
    {"ep", FLAG_COUNT, AT(ep), 1, 65536, "N", "ranks the experts spread over"},
    {"dp", FLAG_COUNT, AT(dp), 1, 65536, "N", "replicas"},
    {"tensor-parallel-size", FLAG_COUNT, AT(tp), 1, 65536, NULL, NULL},
    {"pipeline-parallel-size", FLAG_COUNT, AT(pp), 1, 65536, NULL, NULL},
    {"expert-parallel-size", FLAG_COUNT, AT(ep), 1, 65536, NULL, NULL},
    {"data-parallel-size", FLAG_COUNT, AT(dp), 1, 65536, NULL, NULL},
    {"expert-load", FLAG_STRING, AT(expert_load), 0, 0, "FILE",
     "spread experts as shoal generate does with it, and show how evenly"},
    {"dtype", FLAG_STRING, AT(dtype), 0, 0, "T", "weight type for a config.json (default bf16)"},
    {"kv-dtype", FLAG_STRING, AT(kv_dtype), 0, 0, "T", "f16 (default), f32, int8 or fp8"},
    {"step-tokens", FLAG_COUNT, AT(step_tokens), 1, 1 << 20, "N",
     "rows of a replica in one step (default 512)"},
    {"max-model-len", FLAG_COUNT, AT(max_model_len), 1, 1 << 30, "N",
     "longest context (default: the model's)"},
};

enum { N_FLAGS = sizeof table / sizeof table[0], CONFIG_BYTES_MAX = 16 << 20 };

/* A checkpoint's own leaves and type, or what convert would choose for a bare config.json. */
static struct status read_model(const struct plan_flags *f, struct arch *m,
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
    enum dtype dtype = DTYPE_BF16;
    if (f->dtype != NULL && !dtype_parse(f->dtype, &dtype)) {
        return status_make(STATUS_USAGE, "--dtype: expected f32, f16 or bf16, found \"%s\"",
                           f->dtype);
    }
    layout_describe(m, (uint32_t)dtype_bytes(dtype), out);
    return status_ok();
}

static struct status find_topology(const struct plan_flags *f, struct topo **out)
{
    const uint64_t memory = (uint64_t)(f->memory_gib * (double)(1ull << 30));
    if (f->topology != NULL) {
        return topo_describe(f->topology, f->n_ranks, f->gpus_per_node, memory, out);
    }
    /* this machine, with so many ranks on it */
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

static struct status report(const struct plan_flags *f, const struct layout_model *m,
                            const struct topo *t)
{
    struct layout *layout = NULL;
    uint32_t *order = NULL;
    int64_t *load = NULL;
    struct expert_places *places = NULL;
    struct strbuf text;
    strbuf_init(&text);
    enum dtype kv = DTYPE_F16;
    struct status st;
    if (f->kv_dtype != NULL) TRY(kv_dtype_parse(f->kv_dtype, &kv));
    const uint32_t context = f->max_model_len > 0 ? f->max_model_len : m->context;
    const struct layout_budget budget = {.kv = kv_layout(kv),
                                         .step_tokens = f->step_tokens > 0 ? f->step_tokens : 512,
                                         .min_kv_blocks = (context + 63) / 64};
    const struct layout_flags flags = {.tp = f->tp, .pp = f->pp, .ep = f->ep, .dp = f->dp};
    bool fits = true;
    TRY_GOTO(st, mem_alloc(&layout, 1, sizeof *layout, "layout"), done);
    TRY_GOTO(st, mem_alloc(&order, t->n_ranks, sizeof *order, "rank order"), done);
    TRY_GOTO(st, layout_choose(m, t, &flags, &budget, layout, order, &fits), done);
    if (f->gpus_per_node == 0) layout_expect_cuts(t, order, layout);
    if (f->expert_load != NULL) {
        TRY_GOTO(st, expert_load_read(f->expert_load, m, &load), done);
        TRY_GOTO(st, expert_places_create(layout, load, &places), done);
        layout->expert_places = places;
    }
    TRY_GOTO(st, plan_report(layout, t, order, &budget, &text), done);
    if (load != NULL) TRY_GOTO(st, plan_report_experts(layout, load, &text), done);
    fwrite(text.data, 1, text.n, stdout);
    if (!fits) {
        st = status_make(STATUS_USAGE,
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

static struct status run(int argc, char **argv, enum flags_ask *ask)
{
    struct plan_flags f = {.model = NULL};
    struct positionals none = {.n_wanted = 0};
    TRY(flags_parse(table, N_FLAGS, argc, argv, &f, &none, ask));
    if (*ask != FLAGS_RUN) return status_ok();
    if (f.model == NULL) return status_make(STATUS_USAGE, "--model FILE is missing");
    TRY(job_paths_check_model(f.model));
    struct arch m;
    struct layout_model layout_model;
    struct topo *topo = NULL;
    TRY(read_model(&f, &m, &layout_model));
    TRY(find_topology(&f, &topo));
    warn_of_memory(topo);
    const struct status st = report(&f, &layout_model, topo);
    topo_destroy(&topo);
    return st;
}

int cmd_plan(struct config env, int argc, char **argv)
{
    if (env.launcher_rank != 0) return 0; /* said once */
    enum flags_ask ask = FLAGS_RUN;
    const struct status st = run(argc, argv, &ask);
    if (status_failed(&st)) {
        fprintf(stderr, "shoal plan: %s\n", st.text);
        return status_exit(st.code);
    }
    if (ask != FLAGS_RUN) {
        const struct flags_page page = {
            .command = argv[0],
            .arguments = "--model FILE [--ranks N] [--topology SPEC] [FLAGS]",
            .summary = "show topology, layout and memory without running",
            .description = "Chooses the layout that a job would choose, says why, who holds what, "
                           "what a rank needs for weights, KV cache and workspace, and what does "
                           "not fit. Loads no weights; a bare config.json will do for a model.",
            .table = table,
            .n_flags = N_FLAGS};
        flags_print(&page, ask, stdout);
    }
    return 0;
}

/* shoal quantize: a checkpoint with quantized weights from one with floats. */
#include "base/clock.h"
#include "base/mem.h"
#include "calibrate/quantize_file.h"
#include "cli/cmd.h"
#include "job/job_paths.h"
#include "job/quantize_job.h"
#include "options/flags.h"
#include "parallel/topology/topo.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct quantize_flags {
    const char *format, *method, *policy, *calibration;
    double damping, alpha, auto_bits;
    uint32_t max_tokens, min_tokens, memory_mib, n_threads;
    bool plain_order, quiet;
};

static const struct quantize_flags defaults = {.method = "rtn",
                                               .damping = 0.01,
                                               .alpha = 0.5,
                                               .max_tokens = 2048,
                                               .min_tokens = 64,
                                               .memory_mib = 4096};

#define AT(field) offsetof(struct quantize_flags, field)

static const struct flag table[] = {
    {"format", FLAG_STRING, AT(format), 0, 0, "F",
     "int8, int4 (with -asym, and -g32, -g64 or -g128), fp8 (with -g32, -g64 or -g128), mxfp4; or "
     "f32, f16, bf16, which turn codes back into floats"},
    {"method", FLAG_STRING, AT(method), 0, 0, "M",
     "rtn: round to nearest (default), with --calibration it is said what that does to the "
     "outputs; "
     "with --calibration: gptq, awq, smoothquant"},
    {"policy", FLAG_STRING, AT(policy), 0, 0, "C=F,...",
     "other formats, or keep, for embedding, attention, ffn, experts, router, head"},
    {"calibration", FLAG_STRING, AT(calibration), 0, 0, "IN.jsonl",
     "lines with a prompt, messages or prompt_token_ids, as shoal generate takes them; 128 texts "
     "like those that the model is to read are a good set"},
    {"calibration-tokens", FLAG_COUNT, AT(max_tokens), 1, 1 << 20, "N",
     "cut each of them to N tokens (default 2048)"},
    {"min-tokens", FLAG_COUNT, AT(min_tokens), 1, 1 << 30, "N",
     "an expert that fewer tokens choose is rounded to nearest (default 64)"},
    {"damping", FLAG_NUMBER, AT(damping), 1e-6, 1, "X",
     "gptq: added to the diagonal of the second moments, as a part of its mean (default 0.01)"},
    {"no-act-order", FLAG_SWITCH, AT(plain_order), 0, 0, NULL,
     "gptq: inputs in their order, groups fitted on the way; else those with large activations "
     "first, groups fitted before, in files of the same form"},
    {"alpha", FLAG_NUMBER, AT(alpha), 0, 1, "X",
     "smoothquant: how much of the activations' range goes to the weights (default 0.5; in 64ths)"},
    {"auto-policy", FLAG_NUMBER, AT(auto_bits), 2, 32, "BITS",
     "choose int4-g128, int4-g32, int8-g128 or keep for each linear of the layers by what rounding "
     "does to its outputs, at BITS per weight on average; --format and --policy decide the rest"},
    {"memory", FLAG_COUNT, AT(memory_mib), 1, 1 << 24, "MIB",
     "second moments at once, a rank (default 4096); less means more passes"},
    {"threads", FLAG_COUNT, AT(n_threads), 1, 4096, "N",
     "compute threads a rank (default: its share of the cores)"},
    {"quiet", FLAG_SWITCH, AT(quiet), 0, 0, NULL, "no progress"},
};

enum { N_FLAGS = sizeof table / sizeof table[0] };

static const char description[] =
    "SRC.h5 is a checkpoint with plain weights. DST.h5 appears only when all went well; the same "
    "source makes the same bytes on any number of ranks and threads. Memory stays bounded "
    "whatever the model's size.\n"
    "--format is for the attention, the dense FFN and the experts; int8 and int4 have a scale for "
    "each N inputs with -gN. Without: int4 for each 32; int8 for each 32 in the attention and each "
    "64 in FFN and experts, for activations are rounded in the same groups, and coarse ones cost "
    "more than the weights do; fp8 for each output. Embedding and head become int8, for each 32 "
    "inputs beside int8 and each 128 beside 4 bits (fp8 with --format fp8), for they decide about "
    "rare tokens; routers and norms stay as they are.\n"
    "--policy changes any of it; there int8 alone is one scale for each output.\n"
    "Where groups do not fit the heads of o_proj, or would leave too few parts of o_proj or "
    "down_proj for ranks to divide, those tensors get smaller groups.\n"
    "gptq, awq, smoothquant and --auto-policy run the calibration's prompts through the layers, "
    "one "
    "layer in memory at a time; start them under mpirun or srun to divide the work. Embedding and "
    "head are rounded to nearest always. smoothquant prepares int8 weights for int8 activations; "
    "for 4 bits gptq or awq is meant.";

static void show_progress(void *ctx, const char *tensor, uint64_t done, uint64_t total)
{
    (void)ctx;
    fprintf(stderr, "\r%5.1f %%  %-60.60s", 100.0 * (double)done / (double)total, tensor);
    if (done >= total) fprintf(stderr, "\n");
}

struct quantize_job {
    const struct quantize_flags *flags;
    const char *from, *to;
    struct ckpt *ckpt;
    struct arch model;
    struct quantize_policy policy;
    struct quantize_choice *choices; /* owned */
    struct ckpt_writer *writer;
    struct team *team;
};

static struct status start_threads(struct quantize_job *j, struct config env)
{
    struct topo_self self;
    struct topo *topo = NULL;
    TRY(topo_self_read(&self));
    TRY(topo_join(&self, 1, &topo));
    const uint32_t n = j->flags->n_threads > 0 ? j->flags->n_threads
                       : env.n_threads > 0     ? env.n_threads
                                               : topo_threads(topo, 0);
    const struct status st = team_create(n, &j->team);
    if (!status_failed(&st)) topo_bind_threads(topo, 0, j->team);
    topo_destroy(&topo);
    return st;
}

static struct status open_source(struct quantize_job *j)
{
    size_t n;
    TRY(quantize_policy_parse(j->flags->format, j->flags->policy, &j->policy));
    TRY(ckpt_open(j->from, &j->ckpt));
    const char *config = ckpt_config_json(j->ckpt, &n);
    TRY(status_wrap(arch_parse(config, n, "config.json", &j->model), "%s", j->from));
    return quantize_choose(j->ckpt, &j->model, &j->policy, &j->choices);
}

static struct status write_all(struct quantize_job *j, struct quantize_result *result)
{
    struct quantize_file q = {.c = j->ckpt, .choices = j->choices, .team = j->team};
    if (!j->flags->quiet && isatty(STDERR_FILENO)) q.progress = show_progress;
    TRY(ckpt_writer_create(j->to, ckpt_source(j->ckpt), &j->writer));
    q.writer = j->writer;
    TRY(quantize_rest(&q, NULL));
    *result = q.result;
    return ckpt_writer_finish(&j->writer);
}

static struct status run(const struct quantize_flags *flags, const struct positionals *paths,
                         struct config env)
{
    struct quantize_job j = {.flags = flags, .from = paths->values[0], .to = paths->values[1]};
    struct quantize_result r;
    const uint64_t start_ns = clock_ns();
    struct status st = open_source(&j);
    if (!status_failed(&st)) st = start_threads(&j, env);
    if (!status_failed(&st)) st = write_all(&j, &r);
    team_destroy(&j.team);
    ckpt_writer_destroy(&j.writer);
    mem_free(&j.choices);
    ckpt_close(&j.ckpt);
    TRY(st);
    printf("%s: %llu tensors quantized, %llu kept, %.1f MB, %.3f bits per weight, in %.2f s\n",
           j.to, (unsigned long long)r.n_quantized, (unsigned long long)r.n_kept,
           (double)r.n_bytes / 1e6, 8.0 * (double)r.n_bytes / (double)r.n_elems,
           (double)(clock_ns() - start_ns) * 1e-9);
    if (r.n_overflowed > 0) {
        fprintf(stderr, "shoal quantize: %llu values became infinite in the narrower type\n",
                (unsigned long long)r.n_overflowed);
    }
    return status_ok();
}

static bool is_calibrated(const struct quantize_flags *f)
{
    return strcmp(f->method, "rtn") != 0 || f->auto_bits > 0 || f->calibration != NULL;
}

/* Flags that mean nothing to this method are refused; one that repeats its default is not seen. */
static struct status check_method_flags(const struct quantize_flags *f,
                                        enum calibrate_method method)
{
    const struct {
        const char *flag, *needs;
        bool is_given, is_used;
    } flags[] = {
        {"--damping", "--method gptq", f->damping != defaults.damping, method == CALIBRATE_GPTQ},
        {"--no-act-order", "--method gptq", f->plain_order, method == CALIBRATE_GPTQ},
        {"--alpha", "--method smoothquant", f->alpha != defaults.alpha,
         method == CALIBRATE_SMOOTHQUANT},
        {"--calibration-tokens", "--calibration", f->max_tokens != defaults.max_tokens,
         is_calibrated(f)},
        {"--min-tokens", "--calibration", f->min_tokens != defaults.min_tokens, is_calibrated(f)},
        {"--memory", "--calibration", f->memory_mib != defaults.memory_mib, is_calibrated(f)},
    };
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        if (flags[i].is_given && !flags[i].is_used)
            return status_make(STATUS_USAGE, "%s: needs %s", flags[i].flag, flags[i].needs);
    }
    return status_ok();
}

static struct status check(const struct quantize_flags *f, const struct positionals *paths)
{
    enum calibrate_method method;
    if (paths->n != 2) {
        return status_make(STATUS_USAGE, "expected SRC.h5 and DST.h5, found %zu arguments",
                           paths->n);
    }
    if (f->format == NULL) return status_make(STATUS_USAGE, "--format F is missing");
    if (!quantize_method_parse(f->method, &method)) {
        return status_make(STATUS_USAGE,
                           "--method: expected rtn, gptq, awq or smoothquant, found \"%s\"",
                           f->method);
    }
    TRY(check_method_flags(f, method));
    if (is_calibrated(f) && f->calibration == NULL) {
        return status_make(STATUS_USAGE, "%s: --calibration IN.jsonl is missing",
                           f->auto_bits > 0 ? "--auto-policy" : f->method);
    }
    return job_paths_check_copy(paths->values[0], paths->values[1], f->calibration);
}

static int run_calibrated(const struct quantize_flags *f, const struct positionals *paths,
                          struct config env, int *argc, char ***argv)
{
    struct quantize_job_options o = {.source = paths->values[0],
                                     .path = paths->values[1],
                                     .format = f->format,
                                     .policy = f->policy,
                                     .calibration = f->calibration,
                                     .auto_bits = f->auto_bits,
                                     .damping = f->damping,
                                     .alpha = f->alpha,
                                     .act_order = !f->plain_order,
                                     .quiet = f->quiet,
                                     .max_tokens = f->max_tokens,
                                     .min_tokens = f->min_tokens,
                                     .memory_mib = f->memory_mib,
                                     .n_threads = f->n_threads};
    (void)quantize_method_parse(f->method, &o.method); /* check has seen to it */
    return quantize_job_run(&o, env, argc, argv);
}

/* Every rank reads the flags; what is wrong with them is the lead's to say and to return. */
int cmd_quantize(struct config env, int argc, char **argv)
{
    const bool is_lead = env.launcher_rank == 0;
    struct quantize_flags flags = defaults;
    struct positionals paths = {.n_wanted = 2};
    enum flags_ask ask = FLAGS_RUN;
    struct status st = flags_parse(table, N_FLAGS, argc, argv, &flags, &paths, &ask);
    if (ask != FLAGS_RUN) {
        const struct flags_page page = {.command = argv[0],
                                        .arguments = "SRC.h5 DST.h5 --format F",
                                        .summary = "make a checkpoint with quantized weights",
                                        .description = description,
                                        .table = table,
                                        .n_flags = N_FLAGS};
        if (is_lead) flags_print(&page, ask, stdout);
        return 0;
    }
    if (!status_failed(&st)) st = check(&flags, &paths);
    if (!status_failed(&st) && is_calibrated(&flags)) {
        return run_calibrated(&flags, &paths, env, &argc, &argv);
    }
    /* rounding needs one rank; its threads share the work */
    if (!status_failed(&st) && is_lead) st = run(&flags, &paths, env);
    /* a launcher ends the job at the first other status, maybe before the voice is heard */
    if (!status_failed(&st) || !is_lead) return 0;
    fprintf(stderr, "shoal quantize: %s\n", st.text);
    return status_exit(st.code);
}

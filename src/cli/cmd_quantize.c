/* shoal quantize: makes a checkpoint with quantized weights from another checkpoint. */
#include "base/background.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "calibrate/quantize_file.h"
#include "checkpoint/file/ckpt_room.h"
#include "cli/cmd.h"
#include "cli/cmd_team.h"
#include "job/job_paths.h"
#include "job/quantize_job.h"
#include "options/flags.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FLAG_OWNER struct quantize_flags
static const struct flag rows[] = {QUANTIZE_FLAGS(FLAG_ROW)};
#undef FLAG_OWNER

static const struct flag_group group = FLAG_GROUP(rows, 0);
static const struct flag_table table = {.groups = &group, .n_groups = 1};

static const char description[] =
    "SRC.h5 is a checkpoint; its quantized tensors are rounded a second time from the values of "
    "their "
    "codes (warned of once, with the error that it adds), or kept if they have the format already. "
    "DST.h5 appears only when all went well; the same "
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

static void quantize_show_progress(void *ctx, const char *tensor, uint64_t done, uint64_t total)
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
    struct background *background;
};

static struct status open_source(struct quantize_job *j)
{
    size_t n;
    TRY(quantize_policy_parse(j->flags->format, j->flags->policy, &j->policy));
    TRY(ckpt_open(j->from, &j->ckpt));
    const char *config = ckpt_config_json(j->ckpt, &n);
    TRY(status_wrap(arch_parse(config, n, "config.json", &j->model), "%s", j->from));
    return quantize_choose(j->ckpt, &j->model, &j->policy, &j->choices);
}

static struct status quantize_write_all(struct quantize_job *j, struct quantize_result *result)
{
    uint64_t n_free;
    struct quantize_file q = {
        .c = j->ckpt, .choices = j->choices, .team = j->team, .background = j->background};
    if (!j->flags->quiet && isatty(STDERR_FILENO)) q.progress = quantize_show_progress;
    TRY(ckpt_room_free(j->to, &n_free));
    TRY(ckpt_room_check(j->to, quantize_file_needed(&q), n_free));
    TRY(ckpt_writer_create(j->to, ckpt_source(j->ckpt), &j->writer));
    q.writer = j->writer;
    TRY(quantize_rest(&q, NULL));
    *result = q.result;
    return ckpt_writer_finish(&j->writer);
}

static struct status quantize_run(const struct quantize_flags *flags,
                                  const struct positionals *paths, struct config env)
{
    struct quantize_job j = {.flags = flags, .from = paths->values[0], .to = paths->values[1]};
    struct quantize_result r;
    const uint64_t start_ns = clock_ns();
    struct status st = open_source(&j);
    /* before the team binds this thread to a core, which the writing thread would inherit */
    if (!status_failed(&st)) st = background_create(&j.background);
    if (!status_failed(&st)) st = cmd_team_create(flags->threads, env, NULL, &j.team);
    if (!status_failed(&st)) st = quantize_write_all(&j, &r);
    background_destroy(&j.background);
    team_destroy(&j.team);
    ckpt_writer_destroy(&j.writer);
    mem_free(&j.choices);
    ckpt_close(&j.ckpt);
    TRY(st);
    printf("%s: %llu tensors quantized, %llu kept, %.1f MB, %.3f bits per weight, in %.2f s\n",
           j.to, (unsigned long long)r.n_quantized, (unsigned long long)r.n_kept,
           (double)r.n_bytes / 1e6, 8.0 * (double)r.n_bytes / (double)r.n_elems,
           (double)(clock_ns() - start_ns) * 1e-9);
    if (r.n_again > 0) {
        log_line(
            LOG_WARN,
            "%llu tensors were quantized already: rounding the values of their codes again adds "
            "an error of %.3g %% (relative, root mean square)",
            (unsigned long long)r.n_again, 100 * quant_loss_rms(&r.loss));
    }
    if (r.n_overflowed > 0) {
        fprintf(stderr, "shoal quantize: %llu values became infinite in the narrower type\n",
                (unsigned long long)r.n_overflowed);
    }
    return status_ok();
}

static bool is_calibrated(const struct quantize_flags *f)
{
    return f->method != CALIBRATE_RTN || f->auto_bits > 0 || f->calibration != NULL;
}

/* Refuses flags that the method does not use. */
static struct status check_method_flags(const struct quantize_flags *f,
                                        const struct flags_given *given)
{
    const bool is_gptq = f->method == CALIBRATE_GPTQ;
    const struct {
        const char *flag, *needs;
        bool is_used;
    } flags[] = {
        {"damping", "--method gptq", is_gptq},
        {"no-act-order", "--method gptq", is_gptq},
        {"alpha", "--method smoothquant", f->method == CALIBRATE_SMOOTHQUANT},
        {"calibration-tokens", "--calibration", is_calibrated(f)},
        {"min-tokens", "--calibration", is_calibrated(f)},
        {"memory", "--calibration", is_calibrated(f)},
    };
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        if (!flags_is_given(given, flags[i].flag) || flags[i].is_used) continue;
        return status_make(STATUS_USAGE, "--%s: needs %s", flags[i].flag, flags[i].needs);
    }
    return status_ok();
}

static struct status quantize_check(const struct quantize_flags *f,
                                    const struct flags_parsed *parsed)
{
    const struct positionals *paths = &parsed->positionals;
    if (paths->n != 2) {
        return status_make(STATUS_USAGE, "expected SRC.h5 and DST.h5, found %zu arguments",
                           paths->n);
    }
    if (f->format == NULL) return status_make(STATUS_USAGE, "--format F is missing");
    TRY(check_method_flags(f, &parsed->given));
    if (is_calibrated(f) && f->calibration == NULL) {
        return status_make(STATUS_USAGE, "%s: --calibration IN.jsonl is missing",
                           f->auto_bits > 0
                               ? "--auto-policy"
                               : flag_word_of(FLAG_WORDS(METHOD_WORDS), (int32_t)f->method));
    }
    return job_paths_check_copy(paths->values[0], paths->values[1], f->calibration);
}

/* Every rank reads the flags. Only the lead prints an error and returns its status, except that all
 * ranks return the status of a run with calibration. */
int cmd_quantize(struct config env, int argc, char **argv)
{
    const bool is_lead = env.launcher_rank == 0;
    struct quantize_flags flags = {.format = NULL};
    struct flags_parsed parsed = {.positionals = {.n_wanted = 2}};
    const struct positionals *paths = &parsed.positionals;
    struct status st = flags_parse(&table, argc, argv, &flags, &parsed);
    if (parsed.ask != FLAGS_RUN) {
        const struct flags_page page = {.command = argv[0],
                                        .arguments = "SRC.h5 DST.h5 --format F",
                                        .summary = "make a checkpoint with quantized weights",
                                        .description = description,
                                        .table = &table};
        if (is_lead) flags_print(&page, parsed.ask, stdout);
        return 0;
    }
    if (!status_failed(&st)) st = quantize_check(&flags, &parsed);
    if (!status_failed(&st) && is_calibrated(&flags)) {
        const struct quantize_job_options o = {
            .source = paths->values[0], .path = paths->values[1], .flags = flags};
        return quantize_job_run(&o, env, &argc, &argv);
    }
    /* rounding needs one rank; its threads share the work */
    if (!status_failed(&st) && is_lead) st = quantize_run(&flags, paths, env);
    /* the other ranks return 0: a launcher ends the job at the first nonzero status, perhaps before
     * the lead has printed its message */
    if (!status_failed(&st) || !is_lead) return 0;
    fprintf(stderr, "shoal quantize: %s\n", st.text);
    return status_exit(st.code);
}

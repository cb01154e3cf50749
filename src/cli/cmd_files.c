/* shoal convert, run by as many ranks as a launcher starts, and shoal inspect, run by one. */
#include "base/background.h"
#include "base/log.h"
#include "calibrate/quantize_plan.h"
#include "checkpoint/convert/convert.h"
#include "cli/cmd.h"
#include "cli/cmd_team.h"
#include "job/job_paths.h"
#include "options/flags.h"
#include "parallel/comm/comm.h"

#include <stddef.h>
#include <string.h>
#include <unistd.h>

#define KEEP_WORDS                                                                                 \
    {"dequantize", false},                                                                         \
    {                                                                                              \
        "keep", true                                                                               \
    }

#define CONVERT_FLAGS(FLAG)                                                                        \
    FLAG(enum dtype, dtype, "dtype", OF_CHOICE(FLOAT_WORDS),                                       \
         .help = "store all tensors that are not quantized in this type (default: the source's "   \
                 "own types; quantized tensors that become floats take config.json's type, "       \
                 "GGUF's f16)")                                                                    \
    FLAG(int32_t, keep, "quantized", OF_CHOICE(KEEP_WORDS), .preset = "keep",                      \
         .help = "keep: tensors in a format that shoal has stay quantized, code for code (GGUF's " \
                 "Q8_0, Q5_0, Q4_0, IQ4_NL, IQ4_XS, MXFP4; a Hugging Face folder's GPTQ without "  \
                 "act-order, AWQ, compressed-tensors, fp8, MXFP4), others become floats; "         \
                 "dequantize: all of them become floats")                                          \
    FLAG(const char *, format, "format", OF_TEXT("F"),                                             \
         .help = "round tensors to a format of shoal quantize (int8, int4, ..., mxfp4), the same " \
                 "file as convert and then quantize make; left out: as the source has them")       \
    FLAG(const char *, policy, "policy", OF_TEXT("C=F,..."),                                       \
         .help = "with --format: other formats, or keep, for embedding, attention, ffn, experts, " \
                 "router, head")                                                                   \
    FLAG(uint32_t, threads, "threads", OF_COUNT(1, 4096, "N"),                                     \
         .help = "with --format: threads per rank that round (default: its share of the cores)")   \
    FLAG(bool, quiet, "quiet", OF_SWITCH, .help = "no progress")

struct convert_flags {
    CONVERT_FLAGS(FLAG_FIELD)
};

#define INSPECT_FLAGS(FLAG)                                                                        \
    FLAG(bool, tensors, "tensors", OF_SWITCH, .help = "one line per tensor")                       \
    FLAG(bool, verify, "verify", OF_SWITCH, .help = "recompute every checksum")

#define FLAG_OWNER struct convert_flags
static const struct flag convert_rows[] = {CONVERT_FLAGS(FLAG_ROW)};
#undef FLAG_OWNER
#define FLAG_OWNER struct inspect_options
static const struct flag inspect_rows[] = {INSPECT_FLAGS(FLAG_ROW)};
#undef FLAG_OWNER

static const struct flag_group convert_group = FLAG_GROUP(convert_rows, 0);
static const struct flag_group inspect_group = FLAG_GROUP(inspect_rows, 0);
static const struct flag_table convert_table = {.groups = &convert_group, .n_groups = 1};
static const struct flag_table inspect_table = {.groups = &inspect_group, .n_groups = 1};

static const char convert_text[] =
    "SRC is a Hugging Face folder (config.json, *.safetensors with or without index, "
    "tokenizer.json "
    "and what stands beside them), a folder of a LoRA adapter as peft saves it "
    "(adapter_config.json, adapter_model.safetensors) or one .gguf file. DST.h5 appears only when "
    "all went well. The "
    "same source makes the same bytes, from one rank or, under mpirun, from many, which share the "
    "work. Memory stays bounded whatever the model's size.\n"
    "--format rounds while it converts, block by block: an fp8 checkpoint becomes int4 without a "
    "file "
    "in between. Formats and policies are those of shoal quantize (its help says what each class "
    "of "
    "tensor gets); tensors that are quantized in the source are rounded a second time, which is "
    "warned of with the error that it adds.\n"
    "Quantized tensors are stored as their own codes where shoal has the format; a line for each "
    "format says how many, and one how many became floats.";

static const char inspect_text[] =
    "Prints the config, sizes and types of a checkpoint; its structure is checked on the way.";

static int files_fail(const char *command, const struct status *st)
{
    fprintf(stderr, "shoal %s: %s\n", command, st->text);
    return status_exit(st->code);
}

static void files_show_progress(void *ctx, const char *tensor, uint64_t done_bytes,
                                uint64_t total_bytes)
{
    (void)ctx;
    const double percent = total_bytes > 0 ? 100.0 * (double)done_bytes / (double)total_bytes : 100;
    fprintf(stderr, "\r%5.1f %%  %-60.60s", percent, tensor);
    if (done_bytes >= total_bytes) fprintf(stderr, "\n");
}

static struct status convert_choose_formats(void *policy, struct ckpt *list,
                                            struct ckpt_tensor_spec *specs)
{
    return quantize_specs(list, policy, specs);
}

static struct status convert_check(const struct convert_flags *f, const struct flags_parsed *parsed,
                                   struct quantize_policy *policy, struct convert_options *o)
{
    const struct positionals *paths = &parsed->positionals;
    if (paths->n != 2) {
        return status_make(STATUS_USAGE, "expected SRC and DST.h5, found %zu arguments", paths->n);
    }
    o->dtype = f->dtype;
    o->keep_dtype = !flags_is_given(&parsed->given, "dtype");
    o->keep_codes = f->keep != 0;
    o->source = paths->values[0];
    o->path = paths->values[1];
    if (f->format == NULL && (f->policy != NULL || f->threads > 0)) {
        return status_make(STATUS_USAGE, "--%s: needs --format",
                           f->policy != NULL ? "policy" : "threads");
    }
    if (f->format != NULL) TRY(quantize_policy_parse(f->format, f->policy, policy));
    return job_paths_check_copy(o->source, o->path, NULL);
}

/* Prints a summary and warnings. For tensors that are quantized in the source or in the new file,
 * prints a line for each way of storing them (enum convert_way) and each format. */
static void convert_say(const struct convert_options *o, const struct convert_result *r)
{
    static const char *const ways[CONVERT_WAY_COUNT] = {
        [CONVERT_KEPT] = "kept quantized, code for code, in",
        [CONVERT_WIDENED] = "dequantized to",
        [CONVERT_ROUNDED] = "rounded to",
        [CONVERT_AGAIN] = "dequantized and rounded to",
    };
    printf("%s: %llu tensors, %.1f MB in %.2f s\n", o->path, (unsigned long long)r->n_tensors,
           (double)r->n_bytes / 1e6, r->seconds);
    for (size_t i = 0; i < r->n_counts; i++) {
        const struct convert_count *c = &r->counts[i];
        printf("  %s %s: %llu, the first is %s\n", ways[c->way], c->format,
               (unsigned long long)c->n_tensors, c->first);
    }
    if (r->loss.n_rows > 0) {
        log_line(LOG_WARN,
                 "tensors that were quantized already were rounded again from the values of their "
                 "codes, which adds an error of %.3g %% (relative, root mean square)",
                 100 * quant_loss_rms(&r->loss));
    }
    if (r->n_overflowed > 0) {
        fprintf(stderr, "shoal convert: %llu values became infinite in the narrower type\n",
                (unsigned long long)r->n_overflowed);
    }
}

/* Creates the threads that rounding needs, and converts. */
static struct status convert_with_team(struct convert_options *o, uint32_t n_threads,
                                       struct config env, struct comm *comm,
                                       struct convert_result *result)
{
    struct team *team = NULL;
    struct status st = background_create(&o->writer);
    if (!status_failed(&st) && o->choose != NULL) st = cmd_team_create(n_threads, env, comm, &team);
    if (comm != NULL) st = comm_agree(comm, st);
    o->team = team;
    if (!status_failed(&st)) st = convert_run(o, comm, result);
    team_destroy(&team);
    background_destroy(&o->writer);
    return st;
}

/* Converts with all ranks that the launcher started; a single rank does not start MPI. */
static struct status convert_shared(struct convert_options *o, uint32_t n_threads,
                                    struct config env, int *argc, char ***argv,
                                    struct convert_result *result)
{
    struct comm *comm = NULL;
    if (env.launcher_size <= 1) return convert_with_team(o, n_threads, env, NULL, result);
    TRY(comm_start(argc, argv, &comm));
    const int rank = comm_rank(comm, COMM_WORLD);
    log_init(rank, rank == 0 ? LOG_INFO : LOG_ERROR, false);
    const struct status st = convert_with_team(o, n_threads, env, comm, result);
    comm_stop(&comm);
    return st;
}

int cmd_convert(struct config env, int argc, char **argv)
{
    const bool is_lead = env.launcher_rank == 0;
    struct convert_flags flags = {.quiet = false};
    struct flags_parsed parsed = {.positionals = {.n_wanted = 2}};
    struct status st = flags_parse(&convert_table, argc, argv, &flags, &parsed);
    if (parsed.ask != FLAGS_RUN) {
        const struct flags_page page = {.command = argv[0],
                                        .arguments = "SRC DST.h5",
                                        .summary = "make a checkpoint file",
                                        .description = convert_text,
                                        .table = &convert_table};
        if (is_lead) flags_print(&page, parsed.ask, stdout);
        return 0;
    }
    struct quantize_policy policy;
    struct convert_options o = {
        .choose = flags.format != NULL ? convert_choose_formats : NULL,
        .choose_ctx = &policy,
        .progress = flags.quiet || !isatty(STDERR_FILENO) ? NULL : files_show_progress};
    struct convert_result result;
    if (!status_failed(&st)) st = convert_check(&flags, &parsed, &policy, &o);
    if (!status_failed(&st)) st = convert_shared(&o, flags.threads, env, &argc, &argv, &result);
    /* the other ranks return 0: a launcher ends the job at the first nonzero status, perhaps before
     * the lead has printed its message */
    if (!is_lead) return 0;
    if (status_failed(&st)) return files_fail("convert", &st);
    convert_say(&o, &result);
    return 0;
}

int cmd_inspect(struct config env, int argc, char **argv)
{
    if (env.launcher_rank != 0) return 0; /* one process inspects and prints */
    struct inspect_options o = {.tensors = false};
    struct flags_parsed parsed = {.positionals = {.n_wanted = 1}};
    struct status st = flags_parse(&inspect_table, argc, argv, &o, &parsed);
    if (parsed.ask != FLAGS_RUN) {
        const struct flags_page page = {.command = argv[0],
                                        .arguments = "FILE.h5",
                                        .summary = "show what a checkpoint holds",
                                        .description = inspect_text,
                                        .table = &inspect_table};
        flags_print(&page, parsed.ask, stdout);
        return 0;
    }
    if (!status_failed(&st) && parsed.positionals.n != 1) {
        st = status_make(STATUS_USAGE, "expected FILE.h5");
    }
    if (!status_failed(&st)) st = inspect_run(parsed.positionals.values[0], &o, stdout);
    return status_failed(&st) ? files_fail(argv[0], &st) : 0;
}

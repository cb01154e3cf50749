/* shoal convert, by as many ranks as a launcher starts, and shoal inspect, by one. */
#include "base/log.h"
#include "checkpoint/convert/convert.h"
#include "cli/cmd.h"
#include "job/job_paths.h"
#include "options/flags.h"
#include "parallel/comm/comm.h"

#include <stddef.h>
#include <string.h>
#include <unistd.h>

struct convert_flags {
    const char *dtype, *quantized;
    bool quiet;
};

static const struct flag convert_table[] = {
    {"dtype", FLAG_STRING, offsetof(struct convert_flags, dtype), 0, 0, "T",
     "store all tensors as f32, f16 or bf16 (default: the source's own types; quantized ones "
     "become "
     "config.json's type, GGUF's f16)"},
    {"quantized", FLAG_STRING, offsetof(struct convert_flags, quantized), 0, 0, "W",
     "dequantize (default), or keep: codes that shoal has a format for stay as they are (GGUF's "
     "Q8_0, Q5_0, Q4_0, IQ4_NL, IQ4_XS, MXFP4; a Hugging Face folder's GPTQ without act-order, "
     "AWQ, "
     "compressed-tensors, fp8, MXFP4); other quantized tensors become floats"},
    {"quiet", FLAG_SWITCH, offsetof(struct convert_flags, quiet), 0, 0, NULL, "no progress"},
};

static const struct flag inspect_table[] = {
    {"tensors", FLAG_SWITCH, offsetof(struct inspect_options, tensors), 0, 0, NULL,
     "one line per tensor"},
    {"verify", FLAG_SWITCH, offsetof(struct inspect_options, verify), 0, 0, NULL,
     "recompute every checksum"},
};

static const char convert_text[] =
    "SRC is a Hugging Face folder (config.json, *.safetensors with or without index, "
    "tokenizer.json "
    "and what stands beside them) or one .gguf file. DST.h5 appears only when all went well. The "
    "same source makes the same bytes, from one rank or, under mpirun, from many, which share the "
    "work. Memory stays bounded whatever the model's size.";

static const char inspect_text[] =
    "Prints the config, sizes and types of a checkpoint; its structure is checked on the way.";

static int fail(const char *command, const struct status *st)
{
    fprintf(stderr, "shoal %s: %s\n", command, st->text);
    return status_exit(st->code);
}

static void show_progress(void *ctx, const char *tensor, uint64_t done_bytes, uint64_t total_bytes)
{
    (void)ctx;
    const double percent = total_bytes > 0 ? 100.0 * (double)done_bytes / (double)total_bytes : 100;
    fprintf(stderr, "\r%5.1f %%  %-60.60s", percent, tensor);
    if (done_bytes >= total_bytes) fprintf(stderr, "\n");
}

static struct status convert_check(const struct convert_flags *f, const struct positionals *paths,
                                   struct convert_options *o)
{
    if (paths->n != 2) {
        return status_make(STATUS_USAGE, "expected SRC and DST.h5, found %zu arguments", paths->n);
    }
    if (f->dtype != NULL && !dtype_parse(f->dtype, &o->dtype)) {
        return status_make(STATUS_USAGE, "--dtype: expected f32, f16 or bf16, found \"%s\"",
                           f->dtype);
    }
    o->keep_codes = f->quantized != NULL && strcmp(f->quantized, "keep") == 0;
    if (f->quantized != NULL && !o->keep_codes && strcmp(f->quantized, "dequantize") != 0) {
        return status_make(STATUS_USAGE, "--quantized: expected keep or dequantize, found \"%s\"",
                           f->quantized);
    }
    o->keep_dtype = f->dtype == NULL;
    o->source = paths->values[0];
    o->path = paths->values[1];
    return job_paths_check_copy(o->source, o->path, NULL);
}

static void convert_say(const struct convert_options *o, const struct convert_result *r)
{
    char kept[64] = "";
    if (o->keep_codes) {
        snprintf(kept, sizeof kept, " (%llu kept as codes)", (unsigned long long)r->n_kept);
    }
    printf("%s: %llu tensors%s, %.1f MB in %.2f s\n", o->path, (unsigned long long)r->n_tensors,
           kept, (double)r->n_bytes / 1e6, r->seconds);
    if (r->n_overflowed > 0) {
        fprintf(stderr, "shoal convert: %llu values became infinite in the narrower type\n",
                (unsigned long long)r->n_overflowed);
    }
}

/* The ranks that the launcher started share the work; without one MPI stays out of it. */
static struct status convert_shared(const struct convert_options *o, struct config env, int *argc,
                                    char ***argv, struct convert_result *result)
{
    struct comm *comm = NULL;
    if (env.launcher_size <= 1) return convert_run(o, NULL, result);
    TRY(comm_start(argc, argv, &comm));
    const int rank = comm_rank(comm, COMM_WORLD);
    log_init(rank, rank == 0 ? LOG_INFO : LOG_ERROR, false);
    const struct status st = convert_run(o, comm, result);
    comm_stop(&comm);
    return st;
}

int cmd_convert(struct config env, int argc, char **argv)
{
    const bool is_lead = env.launcher_rank == 0;
    struct convert_flags flags = {.quiet = false};
    struct positionals paths = {.n_wanted = 2};
    enum flags_ask ask = FLAGS_RUN;
    const size_t n = sizeof convert_table / sizeof convert_table[0];
    struct status st = flags_parse(convert_table, n, argc, argv, &flags, &paths, &ask);
    if (ask != FLAGS_RUN) {
        const struct flags_page page = {.command = argv[0],
                                        .arguments = "SRC DST.h5",
                                        .summary = "make a checkpoint file",
                                        .description = convert_text,
                                        .table = convert_table,
                                        .n_flags = n};
        if (is_lead) flags_print(&page, ask, stdout);
        return 0;
    }
    struct convert_options o = {.progress =
                                    flags.quiet || !isatty(STDERR_FILENO) ? NULL : show_progress};
    struct convert_result result;
    if (!status_failed(&st)) st = convert_check(&flags, &paths, &o);
    if (!status_failed(&st)) st = convert_shared(&o, env, &argc, &argv, &result);
    /* a launcher ends the job at the first other status, maybe before the voice is heard */
    if (!is_lead) return 0;
    if (status_failed(&st)) return fail("convert", &st);
    convert_say(&o, &result);
    return 0;
}

int cmd_inspect(struct config env, int argc, char **argv)
{
    if (env.launcher_rank != 0) return 0; /* serial, and said once */
    struct inspect_options o = {.tensors = false};
    struct positionals paths = {.n_wanted = 1};
    enum flags_ask ask = FLAGS_RUN;
    const size_t n = sizeof inspect_table / sizeof inspect_table[0];
    struct status st = flags_parse(inspect_table, n, argc, argv, &o, &paths, &ask);
    if (ask != FLAGS_RUN) {
        const struct flags_page page = {.command = argv[0],
                                        .arguments = "FILE.h5",
                                        .summary = "show what a checkpoint holds",
                                        .description = inspect_text,
                                        .table = inspect_table,
                                        .n_flags = n};
        flags_print(&page, ask, stdout);
        return 0;
    }
    if (!status_failed(&st) && paths.n != 1) {
        st = status_make(STATUS_USAGE, "expected FILE.h5");
    }
    if (!status_failed(&st)) st = inspect_run(paths.values[0], &o, stdout);
    return status_failed(&st) ? fail(argv[0], &st) : 0;
}

/* shoal quantize: a checkpoint with quantized weights from one with floats. */
#include "base/clock.h"
#include "base/mem.h"
#include "calibrate/quantize_file.h"
#include "cmd.h"
#include "flags.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct quantize_flags {
    const char *format, *method, *policy;
    bool quiet;
};

#define AT(field) offsetof(struct quantize_flags, field)

static const struct flag table[] = {
    {"format", FLAG_STRING, AT(format), 0, 0, "F",
     "int8, int4 (with -asym, and -g32, -g64 or -g128), fp8 (with -g32, -g64 or -g128), mxfp4; or "
     "f32, f16, bf16, which turn codes back into floats"},
    {"method", FLAG_STRING, AT(method), 0, 0, "M", "rtn: round to nearest (default)"},
    {"policy", FLAG_STRING, AT(policy), 0, 0, "C=F,...",
     "other formats, or keep, for embedding, attention, ffn, experts, router, head"},
    {"quiet", FLAG_SWITCH, AT(quiet), 0, 0, NULL, "no progress"},
};

enum { N_FLAGS = sizeof table / sizeof table[0] };

static const char description[] =
    "SRC.h5 is a checkpoint with plain weights. DST.h5 appears only when all went well; the same "
    "source makes the same bytes on any number of ranks and threads. Memory stays bounded "
    "whatever the model's size.\n"
    "--format is for the attention, the dense FFN and the experts. Embedding and head become int8 "
    "in groups of 128 (fp8 with --format fp8), for they decide about rare tokens; routers and "
    "norms stay as they are. --policy changes any of it.\n"
    "int8 has one scale for each output, int4 one for each 32 inputs, if no group is said. Where "
    "groups do not fit the heads of o_proj, or would leave too few parts of o_proj or down_proj "
    "for ranks to divide, those tensors get smaller groups.";

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
    struct model_config model;
    struct quantize_policy policy;
    struct quantize_choice *choices; /* owned */
    struct ckpt_writer *writer;
};

static struct status open_source(struct quantize_job *j)
{
    size_t n;
    TRY(quantize_policy_parse(j->flags->format, j->flags->policy, &j->policy));
    TRY(ckpt_open(j->from, &j->ckpt));
    const char *config = ckpt_config_json(j->ckpt, &n);
    TRY(status_wrap(model_config_parse(config, n, "config.json", &j->model), "%s", j->from));
    return quantize_choose(j->ckpt, &j->model, &j->policy, &j->choices);
}

static struct status write_all(struct quantize_job *j, struct quantize_result *result)
{
    struct quantize_file q = {.c = j->ckpt, .choices = j->choices};
    if (!j->flags->quiet && isatty(STDERR_FILENO)) q.progress = show_progress;
    TRY(ckpt_writer_create(j->to, ckpt_source(j->ckpt), &j->writer));
    q.writer = j->writer;
    TRY(quantize_rest(&q, NULL));
    *result = q.result;
    return ckpt_writer_finish(&j->writer);
}

static struct status run(const struct quantize_flags *flags, const struct positionals *paths)
{
    struct quantize_job j = {.flags = flags, .from = paths->values[0], .to = paths->values[1]};
    struct quantize_result r;
    const uint64_t start_ns = clock_ns();
    struct status st = open_source(&j);
    if (!status_failed(&st)) st = write_all(&j, &r);
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

static struct status check(const struct quantize_flags *f, const struct positionals *paths)
{
    if (paths->n != 2) {
        return status_make(STATUS_USAGE, "expected SRC.h5 and DST.h5, found %zu arguments",
                           paths->n);
    }
    if (f->format == NULL) return status_make(STATUS_USAGE, "--format F is missing");
    if (f->method == NULL || strcmp(f->method, "rtn") == 0) return status_ok();
    return status_make(STATUS_USAGE, "--method: expected rtn, found \"%s\"", f->method);
}

int cmd_quantize(struct config env, int argc, char **argv)
{
    if (env.launcher_rank != 0) return 0; /* rounding needs one rank; its threads share the work */
    struct quantize_flags flags = {.format = NULL};
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
        flags_print(&page, ask, stdout);
        return 0;
    }
    if (!status_failed(&st)) st = check(&flags, &paths);
    if (!status_failed(&st)) st = run(&flags, &paths);
    if (!status_failed(&st)) return 0;
    fprintf(stderr, "shoal quantize: %s\n", st.text);
    return status_exit(st.code);
}

/* The flags of shoal bench. */
#include "bench/bench.h"
#include "cli/cmd.h"
#include "weights/weights_flags.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char description[] =
    "With --machine: measures the peak rates of this machine's memory and arithmetic, for 1, 2, 4, "
    "... and all threads of a rank, with all ranks at the same time, and how long sums over the "
    "ranks of a host take.\n"
    "With --model: runs every prompt length with every output length and concurrency. Prompts are "
    "synthetic tokens, and sampled tokens are replaced by synthetic ones, so that every answer has "
    "its full length. Shows the time to the first token from a request's start (TTFT), the "
    "time of each further token of a request on average (TPOT) and of every single one (ITL), the "
    "time of a whole request (E2E), tokens a second, peak memory, and beside the machine's own "
    "peaks the bytes that decoding read and the operations that prompts took. These peaks are "
    "measured once; with --paired-peaks they are measured again before and after each step of one "
    "sequence: memory reads beside decoding, f32 arithmetic beside prompts. The reads also empty "
    "the caches, so no cache holds weights when a step begins.\n"
    "With --model and --load: reads the file plainly into fresh memory by all threads, then loads "
    "it, --repetitions times in turn.\n"
    "With --disk: reads in blocks of several sizes, several at a time, past the system's file "
    "cache and with checksums, as streamed experts are read; shows the rate of a host whose ranks "
    "read at the same time, and the CPU time that it takes. The last line has the value for shoal "
    "plan --disk.\n"
    "Start it as it is for one rank, or under mpirun or srun for many, with the layout flags of "
    "shoal generate.";

static bool read_count_list(const char *text, uint32_t most, struct bench_list *out)
{
    const char *at = text;
    for (out->n = 0;; at++) {
        char *end;
        errno = 0;
        const unsigned long value = *at >= '0' && *at <= '9' ? strtoul(at, &end, 10) : 0;
        if (value < 1 || value > most || errno != 0 || out->n == BENCH_LIST_MAX ||
            (*end != ',' && *end != '\0'))
            return false;
        out->values[out->n++] = (uint32_t)value;
        at = end;
        if (*at == '\0') return true;
    }
}

static bool read_lengths(const char *text, void *list)
{
    return read_count_list(text, 1 << 24, list);
}

static bool read_counts(const char *text, void *list)
{
    return read_count_list(text, 1 << 20, list);
}

static bool read_disk_size(const char *text, void *bytes)
{
    return weights_size_parse(text, bytes);
}

#define FLAG_OWNER struct bench_flags
static const struct flag rows[] = {BENCH_FLAGS(FLAG_ROW)};
#undef FLAG_OWNER

static uint32_t largest_count(const struct bench_list *l)
{
    uint32_t most = 0;
    for (size_t i = 0; i < l->n; i++) most = l->values[i] > most ? l->values[i] : most;
    return most;
}

/* Sets the job flags that a benchmark of a model needs. */
static void bench_settle(struct bench_options *o)
{
    struct job_options *job = &o->job;
    const struct bench_flags *f = &o->flags;
    /* "-" makes the launcher's first rank the lead: only that rank gets stdin */
    job->files.input = (struct flag_list){.values = {f->turns ? "-" : ""}, .n = 1};
    job->files.output = "";
    job->run.watchdog_s = f->watchdog_s;
    job->schedule.max_batch = (int32_t)largest_count(&f->concurrency);
    if (job->model.max_model_len == 0)
        job->model.max_model_len = largest_count(&f->prompts) + largest_count(&f->outputs);
    job->run_instead = bench_run;
    job->bench = o;
}

static struct status bench_check(const struct bench_options *o)
{
    const struct bench_flags *f = &o->flags;
    const bool has_model = o->job.files.model != NULL;
    if (f->machine + has_model + (f->disk != NULL) > 1)
        return status_make(STATUS_USAGE, "--machine, --model and --disk: expected one of them");
    if (f->disk == NULL && flags_is_given(&o->job.given, "disk-size"))
        return status_make(STATUS_USAGE, "--disk-size: needs --disk");
    if (f->disk != NULL && (f->load || f->turns || f->paired_peaks))
        return status_make(STATUS_USAGE, "--disk: not with --load, --turns or --paired-peaks");
    if (f->load && (f->machine || f->turns || f->json != NULL || f->paired_peaks))
        return status_make(STATUS_USAGE,
                           "--load: not with --machine, --turns, --paired-peaks or --json");
    if (f->save != NULL && !f->machine && f->disk == NULL)
        return status_make(STATUS_USAGE, "--save: needs --machine or --disk");
    if (f->cold && !f->load) return status_make(STATUS_USAGE, "--cold: needs --load");
    if (f->paired_peaks && f->machine)
        return status_make(STATUS_USAGE, "--paired-peaks: needs --model");
    if (!f->machine && !has_model && f->disk == NULL)
        return status_make(STATUS_USAGE, "--machine, --disk or --model FILE.h5 is missing");
    if (f->n_requests > 0 && f->mode != BENCH_THROUGHPUT)
        return status_make(STATUS_USAGE, "--requests: needs --mode throughput");
    return status_ok();
}

int cmd_bench(struct config env, int argc, char **argv)
{
    struct flag_group groups[JOB_GROUP_COUNT + 1];
    groups[0] = (struct flag_group)FLAG_GROUP(rows, offsetof(struct bench_options, flags));
    memcpy(groups + 1, job_groups, sizeof job_groups);
    const struct flag_table table = {
        .groups = groups, .n_groups = JOB_GROUP_COUNT + 1, .command = IN_BENCH};
    struct bench_options o = {.job = {.mode = LEAD_GENERATE}};
    struct flags_parsed parsed = {.ask = FLAGS_RUN};
    struct status st = flags_parse(&table, argc, argv, &o, &parsed);
    o.job.given = parsed.given;
    if (!status_failed(&st) && parsed.ask == FLAGS_RUN) st = bench_check(&o);
    if (status_failed(&st)) return job_refuse(st, env, &argc, &argv);
    if (parsed.ask != FLAGS_RUN) {
        const struct flags_page page = {.command = argv[0],
                                        .arguments =
                                            "--machine | --disk DIR | --model FILE.h5 [FLAGS]",
                                        .summary = "measure the machine, and shoal on it",
                                        .description = description,
                                        .table = &table};
        if (env.launcher_rank == 0) flags_print(&page, parsed.ask, stdout);
        return 0;
    }
    if (o.flags.machine) return bench_machine_run(&o, &argc, &argv);
    if (o.flags.disk != NULL) return bench_disk_run(&o, &argc, &argv);
    bench_settle(&o);
    return job_run(&o.job, env, &argc, &argv);
}

/* shoal bench: its flags. */
#include "bench/bench.h"
#include "cli/cmd.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What flags are read into. */
struct bench_flags {
    struct bench_options o;
    const char *prompts, *outputs, *concurrency, *mode;
};

#define AT(field)  offsetof(struct bench_flags, field)
#define JOB(field) offsetof(struct bench_flags, o.job.field)

static const struct flag table[] = {
    {"machine", FLAG_SWITCH, AT(o.machine), 0, 0, NULL,
     "measure read bandwidth, f32 and int8 peaks, and sums over ranks; no model is needed"},
    {"model", FLAG_STRING, JOB(model), 0, 0, "FILE.h5", "the checkpoint (shoal convert makes one)"},
    {"load", FLAG_SWITCH, AT(o.load), 0, 0, NULL,
     "measure how long loading takes, beside a plain parallel read of the same file"},
    {"cold", FLAG_SWITCH, AT(o.cold), 0, 0, NULL,
     "with --load: the system forgets the file before each of the two, so that both read the disk"},
    {"json", FLAG_STRING, AT(o.json), 0, 0, "FILE",
     "also write everything as JSON; - is stdout, instead of the table"},
    {"prompt-lengths", FLAG_STRING, AT(prompts), 0, 0, "A,B,..",
     "tokens of a prompt (default 512)"},
    {"output-lengths", FLAG_STRING, AT(outputs), 0, 0, "A,B,..",
     "tokens of an answer (default 128)"},
    {"concurrency", FLAG_STRING, AT(concurrency), 0, 0, "A,B,..", "requests at a time (default 1)"},
    {"mode", FLAG_STRING, AT(mode), 0, 0, "M",
     "latency (default): the requests of a repetition start together; throughput: --requests of "
     "them, a new one when one is done"},
    {"requests", FLAG_COUNT, AT(o.n_requests), 1, 1 << 20, "N",
     "requests of a repetition, with --mode throughput (default: four times the concurrency)"},
    {"warmup", FLAG_COUNT, AT(o.n_warmup), 0, 1 << 20, "N",
     "repetitions that are not counted (default 1)"},
    {"repetitions", FLAG_COUNT, AT(o.n_repetitions), 1, 1 << 20, "N",
     "repetitions that are (default 5)"},
    {"turns", FLAG_SWITCH, AT(o.turns), 0, 0, NULL,
     "one repetition for each line of stdin, PROMPT OUTPUT CONCURRENCY, answered by a line of "
     "JSON: to take turns with another program"},
    {"paired-peaks", FLAG_SWITCH, AT(o.paired_peaks), 0, 0, NULL,
     "on one rank, for concurrency 1: --repetitions more, whose steps take turns with what the "
     "machine gives at most, by the same threads: reads of memory beside decoding, f32 arithmetic "
     "beside prompts; shows the steps' part of it. With --turns all repetitions of one request are "
     "such"},
    {"tp", FLAG_COUNT, JOB(tp), 1, 65536, "N", "tensor parallel ranks (default: chosen)"},
    {"tensor-parallel-size", FLAG_COUNT, JOB(tp), 1, 65536, NULL, NULL},
    {"pp", FLAG_COUNT, JOB(pp), 1, 65536, "N", "pipeline stages"},
    {"pipeline-parallel-size", FLAG_COUNT, JOB(pp), 1, 65536, NULL, NULL},
    {"ep", FLAG_COUNT, JOB(ep), 1, 65536, "N", "ranks the experts spread over"},
    {"expert-parallel-size", FLAG_COUNT, JOB(ep), 1, 65536, NULL, NULL},
    {"dp", FLAG_COUNT, JOB(dp), 1, 65536, "N", "replicas"},
    {"data-parallel-size", FLAG_COUNT, JOB(dp), 1, 65536, NULL, NULL},
    {"expert-load", FLAG_STRING, JOB(expert_load), 0, 0, "FILE", "as in shoal generate"},
    {"threads", FLAG_COUNT, JOB(n_threads), 1, 4096, "N",
     "compute threads a rank (default: its share of the cores)"},
    {"step-tokens", FLAG_COUNT, JOB(step_tokens), 1, 1 << 20, "N",
     "rows of a replica in one step (default 512)"},
    {"chunk", FLAG_COUNT, JOB(chunk), 1, 1 << 20, "N",
     "prompt rows of a sequence in one step (default: what the step leaves)"},
    {"kv-blocks", FLAG_COUNT, JOB(kv_blocks), 1, 1 << 30, "N",
     "KV blocks of 64 tokens in a replica (default: enough for the longest case)"},
    {"kv-dtype", FLAG_STRING, JOB(kv_dtype), 0, 0, "T", "the KV cache's type (default f16)"},
    {"activations", FLAG_STRING, JOB(activations), 0, 0, "T",
     "what quantized weights are multiplied with: int8 (default) or f32"},
    {"device", FLAG_STRING, JOB(device), 0, 0, "D", "cpu (default) or cuda, as in shoal generate"},
    {"device-comm", FLAG_STRING, JOB(device_comm), 0, 0, "auto|nccl|staged",
     "as in shoal generate"},
    {"device-overlap", FLAG_COUNT, JOB(device_overlap), 1, 1 << 30, "ROWS", "as in shoal generate"},
    {"device-parts", FLAG_COUNT, JOB(device_parts), 1, 1 << 20, "KIB", "as in shoal generate"},
    {"no-device-graphs", FLAG_SWITCH, JOB(no_device_graphs), 0, 0, NULL, "as in shoal generate"},
    {"exact-across-devices", FLAG_SWITCH, JOB(exact_across_devices), 0, 0, NULL,
     "as in shoal generate"},
    {"fast-reductions", FLAG_SWITCH, JOB(fast_reductions), 0, 0, NULL, "as in shoal generate"},
    {"max-model-len", FLAG_COUNT, JOB(max_model_len), 1, 1 << 30, "N",
     "longest context (default: the longest prompt and output)"},
    {"watchdog", FLAG_COUNT, JOB(watchdog_s), 0, 86400, "SECONDS",
     "as in shoal generate (default 0: off)"},
    {"quiet", FLAG_SWITCH, JOB(quiet), 0, 0, NULL, "nothing on stderr but warnings"},
    {"log-level", FLAG_STRING, JOB(log_level), 0, 0, "L", "error, warn, info (default) or debug"},
};

enum { N_FLAGS = sizeof table / sizeof table[0] };

static const char text[] =
    "With --machine: what memory and arithmetic of this machine give at most, for 1, 2, 4, ... and "
    "all threads of a rank, all ranks at work together, and how long sums over the ranks of a host "
    "take.\n"
    "With --model: runs every prompt length with every output length and concurrency. Prompts are "
    "synthetic tokens; what is sampled is exchanged for synthetic tokens, too, so that every "
    "answer "
    "has its full length. Shows the time to the first token from a request's start (TTFT), the "
    "time of each further token of a request on average (TPOT) and of every single one (ITL), the "
    "time of a whole request (E2E), tokens a second, peak memory, and beside the machine's own "
    "peaks the bytes that decoding read and the operations that prompts took. Those peaks are one "
    "moment's; with --paired-peaks each step of one sequence also stands beside passes before and "
    "after it: decoding beside reads of memory, prompts beside f32 arithmetic. A read empties the "
    "caches, so the steps are those of weights that no cache holds.\n"
    "With --model and --load: reads the file plainly into fresh memory by all threads, then loads "
    "it "
    "into memory of its own beside the first copy, --repetitions times in turn.\n"
    "Start it as it is for one rank, or under mpirun or srun for many, with the layout flags of "
    "shoal generate.";

static struct status parse_list(const char *name, const char *given, const char *otherwise,
                                uint32_t most, struct bench_list *out)
{
    const char *at = given != NULL ? given : otherwise;
    for (out->n = 0;; at++) {
        char *end;
        errno = 0;
        const unsigned long value = *at >= '0' && *at <= '9' ? strtoul(at, &end, 10) : 0;
        if (value < 1 || value > most || errno != 0 || out->n == BENCH_LIST_MAX ||
            (*end != ',' && *end != '\0')) {
            return status_make(STATUS_USAGE,
                               "--%s: expected up to %d numbers from 1 to %u, A,B,.., found \"%s\"",
                               name, BENCH_LIST_MAX, most, given);
        }
        out->values[out->n++] = (uint32_t)value;
        at = end;
        if (*at == '\0') return status_ok();
    }
}

static uint32_t largest(const struct bench_list *l)
{
    uint32_t most = 0;
    for (size_t i = 0; i < l->n; i++) most = l->values[i] > most ? l->values[i] : most;
    return most;
}

static struct status finish(struct bench_flags *f)
{
    struct bench_options *o = &f->o;
    TRY(parse_list("prompt-lengths", f->prompts, "512", 1 << 24, &o->prompts));
    TRY(parse_list("output-lengths", f->outputs, "128", 1 << 24, &o->outputs));
    TRY(parse_list("concurrency", f->concurrency, "1", 1 << 20, &o->concurrency));
    if (f->mode != NULL && strcmp(f->mode, "latency") != 0 && strcmp(f->mode, "throughput") != 0) {
        return status_make(STATUS_USAGE, "--mode: expected latency or throughput, found \"%s\"",
                           f->mode);
    }
    o->throughput = f->mode != NULL && strcmp(f->mode, "throughput") == 0;
    if (o->n_requests > 0 && !o->throughput) {
        return status_make(STATUS_USAGE, "--requests: needs --mode throughput");
    }
    o->job.input = o->turns ? "-" : ""; /* stdin belongs to the launcher's first rank */
    o->job.output = "";
    o->job.max_batch = largest(&o->concurrency);
    if (o->job.max_model_len == 0) {
        o->job.max_model_len = largest(&o->prompts) + largest(&o->outputs);
    }
    return status_ok();
}

static struct status parse(int argc, char **argv, struct bench_flags *f, enum flags_ask *ask)
{
    struct positionals none = {.n_wanted = 0};
    TRY(flags_parse(table, N_FLAGS, argc, argv, f, &none, ask));
    if (*ask != FLAGS_RUN) return status_ok();
    if (f->o.machine && f->o.job.model != NULL) {
        return status_make(STATUS_USAGE, "--machine and --model are asked for one at a time");
    }
    if (f->o.load && (f->o.machine || f->o.turns || f->o.json != NULL || f->o.paired_peaks)) {
        return status_make(STATUS_USAGE,
                           "--load: not with --machine, --turns, --paired-peaks or --json");
    }
    if (f->o.cold && !f->o.load) return status_make(STATUS_USAGE, "--cold: needs --load");
    if (f->o.paired_peaks && f->o.machine) {
        return status_make(STATUS_USAGE, "--paired-peaks: needs --model");
    }
    if (f->o.machine) return status_ok();
    if (f->o.job.model == NULL) {
        return status_make(STATUS_USAGE, "--machine or --model FILE.h5 is missing");
    }
    return finish(f);
}

int cmd_bench(struct config env, int argc, char **argv)
{
    struct bench_flags f = {.o = {.n_warmup = 1, .n_repetitions = 5}};
    enum flags_ask ask = FLAGS_RUN;
    const struct status st = parse(argc, argv, &f, &ask);
    if (status_failed(&st)) return flags_refuse(argv[0], env.launcher_rank, &st);
    if (ask != FLAGS_RUN) {
        const struct flags_page page = {.command = argv[0],
                                        .arguments = "--machine | --model FILE.h5 [FLAGS]",
                                        .summary = "measure the machine, and shoal on it",
                                        .description = text,
                                        .table = table,
                                        .n_flags = N_FLAGS};
        if (env.launcher_rank == 0) flags_print(&page, ask, stdout);
        return 0;
    }
    if (f.o.machine) return bench_machine_run(&f.o, &argc, &argv);
    f.o.job.run_instead = bench_run;
    f.o.job.bench = &f.o;
    return job_run(&f.o.job, env, &argc, &argv);
}

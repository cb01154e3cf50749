/* shoal generate and shoal score: their flags. */
#include "cli/cmd.h"
#include "job/drain.h"
#include "job/dry_run.h"
#include "job/job.h"

#include <stdio.h>
#include <string.h>

#define AT(field) offsetof(struct job_options, field)

static const struct flag files[] = {
    {"model", FLAG_STRING, AT(model), 0, 0, "FILE.h5", "the checkpoint (shoal convert makes one)"},
    {"input", FLAG_STRING, AT(input), 0, 0, "IN.jsonl", "request lines; - is stdin"},
    {"output", FLAG_STRING, AT(output), 0, 0, "OUT.jsonl",
     "result lines, in input order; - is stdout"},
    {"input-part", FLAG_STRING, AT(input_part), 0, 0, "K/N",
     "only the lines in the K-th of N equal ranges of the input's bytes, K from 1: for job arrays; "
     "`shoal merge` joins the outputs"},
};

static const struct flag layout_flags[] = {
    {"tp", FLAG_COUNT, AT(tp), 1, 65536, "N",
     "tensor parallel ranks (default: chosen from the topology); also --tensor-parallel-size, and "
     "--pipeline-, --expert- and --data-parallel-size for the next three"},
    {"tensor-parallel-size", FLAG_COUNT, AT(tp), 1, 65536, NULL, NULL},
    {"pp", FLAG_COUNT, AT(pp), 1, 65536, "N", "pipeline stages"},
    {"pipeline-parallel-size", FLAG_COUNT, AT(pp), 1, 65536, NULL, NULL},
    {"ep", FLAG_COUNT, AT(ep), 1, 65536, "N",
     "ranks the experts spread over (default: inside a host first; dp x tp when tp, pp and dp are "
     "given)"},
    {"expert-parallel-size", FLAG_COUNT, AT(ep), 1, 65536, NULL, NULL},
    {"dp", FLAG_COUNT, AT(dp), 1, 65536, "N", "replicas"},
    {"data-parallel-size", FLAG_COUNT, AT(dp), 1, 65536, NULL, NULL},
};

static const struct flag run_flags[] = {
    {"threads", FLAG_COUNT, AT(n_threads), 1, 4096, "N",
     "compute threads a rank (default: its share of the cores)"},
    {"max-batch", FLAG_COUNT, AT(max_batch), 1, 1 << 20, "N",
     "sequences running in a replica (default: as many as fit)"},
    {"step-tokens", FLAG_COUNT, AT(step_tokens), 1, 1 << 20, "N",
     "rows of a replica in one step (default 512)"},
    {"step-ms", FLAG_COUNT, AT(step_ms), 0, 1u << 30, "N",
     "fewer rows, but at least 64, in a step while steps take longer than this (default 2000; 0: "
     "never)"},
    {"chunk", FLAG_COUNT, AT(chunk), 1, 1 << 20, "N",
     "prompt rows of a sequence in one step (default: what the step leaves)"},
    {"kv-blocks", FLAG_COUNT, AT(kv_blocks), 1, 1 << 30, "N",
     "KV blocks of 64 tokens in a replica (default: from free memory)"},
    {"prefix-cache", FLAG_STRING, AT(prefix_cache), 0, 0, "on|off",
     "prompts that begin alike share KV blocks (default on; off when scoring or with a capacity "
     "factor)"},
    {"result-cache", FLAG_STRING, AT(result_cache), 0, 0, "on|off",
     "equal requests (prompt, sampling, seed or greedy) are computed once (default on; off when "
     "scoring or with a capacity factor)"},
    {"speculate", FLAG_STRING, AT(speculate), 0, 0, "auto|off|N",
     "guess tokens from where the last ones stood before in prompt or answer, and check them in "
     "one step, where few sequences run: N of each, or (auto) as many as were worth it of late; "
     "results are the same (default auto; off with cuda, when scoring or with a capacity factor)"},
    {"order", FLAG_STRING, AT(order), 0, 0, "auto|input|prefix",
     "in which lines run, within a window; rows are written in the order of the input (default "
     "auto: long and short, prompt-heavy and answer-heavy mixed, and together what begins alike "
     "where the KV pool could not hold it; prefix: sorted by prompt)"},
    {"kv-dtype", FLAG_STRING, AT(kv_dtype), 0, 0, "T", "f16 (default), f32, int8 or fp8"},
    {"device", FLAG_STRING, AT(device), 0, 0, "D",
     "cpu (default) or cuda: one GPU a rank, several ranks may share one"},
    {"exact-across-devices", FLAG_SWITCH, AT(exact_across_devices), 0, 0, NULL,
     "a device's results are the CPU's, byte for byte: no library adds, which is slower"},
    {"fast-reductions", FLAG_SWITCH, AT(fast_reductions), 0, 0, NULL,
     "with --device cuda: libraries add as they like (without TF32); leaves the same-bytes law"},
    {"no-device-graphs", FLAG_SWITCH, AT(no_device_graphs), 0, 0, NULL,
     "launch each kernel by itself instead of replaying steps of one shape as graphs; results are "
     "the same"},
    {"device-comm", FLAG_STRING, AT(device_comm), 0, 0, "auto|nccl|staged",
     "how GPUs exchange data: NCCL where every rank has a GPU of its own, else staged through host "
     "memory and MPI (default auto; nccl: an error where it cannot be)"},
    {"device-overlap", FLAG_COUNT, AT(device_overlap), 1, 1 << 30, "ROWS",
     "steps of so many rows and more go in two halves, one of which computes while NCCL adds the "
     "other's sums (default 1024; a large number: never); results are the same"},
    {"device-parts", FLAG_COUNT, AT(device_parts), 1, 1 << 20, "KIB",
     "sums of so many KiB and more, NCCL adds as parts (default 1024); results are the same"},
    {"activations", FLAG_STRING, AT(activations), 0, 0, "T",
     "what quantized weights are multiplied with: int8 (default) or f32, which is slower; fp8 "
     "weights always meet f32"},
    {"max-model-len", FLAG_COUNT, AT(max_model_len), 1, 1 << 30, "N",
     "longest context (default: the model's)"},
    {"capacity-factor", FLAG_NUMBER, AT(capacity_factor), 0.01, 1000, "F",
     "limit tokens per expert; leaves the same-bytes law"},
    {"capacity-policy", FLAG_STRING, AT(capacity_policy), 0, 0, "P",
     "drop (default), next or top1"},
    {"expert-load", FLAG_STRING, AT(expert_load), 0, 0, "FILE",
     "spread experts over ranks so that each has as many tokens, by what --metrics of an earlier "
     "job says; results are the same"},
    {"moe-stats", FLAG_SWITCH, AT(moe_stats), 0, 0, NULL, "print the load of each expert"},
    {"template-date", FLAG_STRING, AT(template_date), 0, 0, "DATE",
     "the date that chat templates see, YYYY-MM-DD (default " CHAT_DATE_DEFAULT ")"},
    {"strict", FLAG_SWITCH, AT(strict), 0, 0, NULL, "exit with 4 when a row is an error row"},
    {"watchdog", FLAG_COUNT, AT(watchdog_s), 0, 86400, "SECONDS",
     "name a rank that died, stopped or was cut off within this time, and leave with 76 (default "
     "30; 0: never)"},
    {"metrics", FLAG_STRING, AT(metrics), 0, 0, "FILE",
     "write what was run and measured as JSON: at the end, and every 10 s until then"},
    {"report", FLAG_STRING, AT(metrics), 0, 0, NULL, NULL},
    {"trace", FLAG_STRING, AT(trace), 0, 0, "FILE",
     "write a timeline of all ranks at the end, for chrome://tracing or ui.perfetto.dev; a long "
     "job's last events"},
    {"quiet", FLAG_SWITCH, AT(quiet), 0, 0, NULL, "no progress and no summary on stderr"},
    {"progress-bar", FLAG_SWITCH, AT(progress_bar), 0, 0, NULL,
     "draw a bar although stderr is no terminal (mpirun hands on a pipe)"},
    {"log-level", FLAG_STRING, AT(log_level), 0, 0, "L", "error, warn, info (default) or debug"},
    {"log-json", FLAG_SWITCH, AT(log_json), 0, 0, NULL, "log lines as JSON"},
};

static const struct flag journal_flags[] = {
    {"journal", FLAG_STRING, AT(journal), 0, 0, "DIR",
     "keep the journal there (default: OUT.jsonl.journal, beside the output)"},
    {"no-journal", FLAG_SWITCH, AT(no_journal), 0, 0, NULL,
     "keep none: a run that is ended early begins anew"},
    {"restart", FLAG_SWITCH, AT(restart), 0, 0, NULL,
     "forget what earlier runs did and overwrite the output"},
    {"retry-errors", FLAG_SWITCH, AT(retry_errors), 0, 0, NULL,
     "run the error rows of earlier runs again"},
    {"audit", FLAG_COUNT, AT(audit), 1, 1 << 24, "N",
     "write nothing: compute N rows of the output again, chosen by lot, and compare every byte; "
     "with the job's flags, on any ranks and layout. Status 4 when a row differs"},
    {"audit-seed", FLAG_U64, AT(audit_seed), 0, 0, "N", "other rows (default 0)"},
    {"checkpoint-tokens", FLAG_COUNT, AT(checkpoint_tokens), 0, 1e9, "N",
     "save the tokens of a running request every N (default 256; 0: only when the job is drained)"},
    {"time-limit", FLAG_STRING, AT(time_limit), 0, 0, "TIME",
     "drain and leave with 75 before it is over: seconds or H:M:S (in a Slurm job its limit counts "
     "too)"},
    {"failpoint", FLAG_STRING, AT(failpoint), 0, 0, NULL, NULL},
};

static const struct flag sampling_flags[] = {
    {"max-tokens", FLAG_I64, AT(max_tokens), 1, 1e9, "N", "tokens to generate (default 128)"},
    {"temperature", FLAG_NUMBER, AT(temperature), 0, 1e6, "X", "0: greedy (default 1)"},
    {"top-p", FLAG_NUMBER, AT(top_p), 0, 1, "X", "nucleus (default 1: off)"},
    {"top-k", FLAG_I64, AT(top_k), 0, 1e9, "N", "0: off (default)"},
    {"min-p", FLAG_NUMBER, AT(min_p), 0, 1, "X", "0: off (default)"},
    {"repetition-penalty", FLAG_NUMBER, AT(repetition_penalty), 0.001, 100, "X",
     "of all tokens so far, above 1 against repeating (default 1: off)"},
    {"presence-penalty", FLAG_NUMBER, AT(presence_penalty), -2, 2, "X",
     "taken from the logit of what the answer has (default 0)"},
    {"frequency-penalty", FLAG_NUMBER, AT(frequency_penalty), -2, 2, "X",
     "the same, times how often it has it (default 0)"},
    {"n", FLAG_I64, AT(n), 1, 128, "N", "answers to each line (default 1)"},
    {"logprobs", FLAG_I64, AT(logprobs), 0, 20, "N",
     "log-probabilities of each token and of the N most likely in its place (default 0: none)"},
    {"seed", FLAG_U64, AT(seed), 0, 0, "N", "hashed with each custom_id (default 0)"},
    {"dry-run", FLAG_SWITCH, AT(dry_run), 0, 0, NULL,
     "check, order, plan, journal and write all lines without a model's weights, with made-up "
     "answers of max_tokens each, for the ranks of --dp and --pp; without --model prompts must be "
     "token ids"},
    {"stop", FLAG_LIST, AT(stops), 0, 0, "STR", "a string that ends a text; may be repeated"},
};

static const struct flag score_flags[] = {
    {"logits", FLAG_STRING, AT(logits), 0, 0, "OUT.h5",
     "also write every logit, one dataset per line"},
};

static const char generate_text[] =
    "Reads one request a line (custom_id; prompt or prompt_token_ids; sampling values, which win "
    "over the flags; priority, smaller ones run first; OpenAI batch lines work as they are) and "
    "writes one result a line, in input "
    "order. A line that cannot be served becomes an error row; the others go on.\n"
    "Start it as it is for one rank, or under mpirun or srun for many. The bytes of a result "
    "depend "
    "on the checkpoint, the request and its seed alone: not on ranks, layout, batch or threads.\n"
    "What is done is kept in a journal beside the output. However a run ends, the same command "
    "goes "
    "on from there, on any number of ranks, and the output comes to the same bytes. SIGUSR1, "
    "SIGTERM "
    "or a time limit end a run in order with status 75, a second signal at once. `shoal status` "
    "reads the journal.";

static const char score_text[] =
    "Reads prompts as shoal generate does and writes the log-probability of each of their tokens "
    "(natural log; the first has none), their sum, and at the end the perplexity of the whole "
    "input.";

struct flag_table {
    struct flag flags[80];
    size_t n;
};

static void add(struct flag_table *t, const struct flag *flags, size_t n)
{
    memcpy(t->flags + t->n, flags, n * sizeof *flags);
    t->n += n;
}

#define ADD(table, list) add(table, list, sizeof(list) / sizeof((list)[0]))

/* An audit reads what a job wrote. */
static struct status check_audit(const struct job_options *o)
{
    const struct {
        const char *flag;
        bool is_given;
    } strangers[] = {{"restart", o->restart},
                     {"retry-errors", o->retry_errors},
                     {"dry-run", o->dry_run},
                     {"logits", o->logits != NULL},
                     {"capacity-factor", o->capacity_factor != 0},
                     {"fast-reductions", o->fast_reductions}};
    for (size_t i = 0; o->audit > 0 && i < sizeof strangers / sizeof strangers[0]; i++) {
        if (!strangers[i].is_given) continue;
        return status_make(STATUS_USAGE, "--audit and --%s: expected one of them",
                           strangers[i].flag);
    }
    return status_ok();
}

static struct status parse(const struct flag_table *t, int argc, char **argv, struct job_options *o,
                           enum flags_ask *ask)
{
    struct positionals none = {.n_wanted = 0};
    TRY(flags_parse(t->flags, t->n, argc, argv, o, &none, ask));
    if (*ask != FLAGS_RUN) return status_ok();
    if (o->model == NULL && !o->dry_run)
        return status_make(STATUS_USAGE, "--model FILE.h5 is missing");
    if (o->input == NULL) return status_make(STATUS_USAGE, "--input IN.jsonl is missing");
    if (o->output == NULL) return status_make(STATUS_USAGE, "--output OUT.jsonl is missing");
    return check_audit(o);
}

static int run_job(enum lead_mode mode, struct config env, int argc, char **argv)
{
    drain_hold_signals(env.is_launched);
    struct flag_table table = {.n = 0};
    ADD(&table, files);
    if (mode == LEAD_SCORE) ADD(&table, score_flags);
    ADD(&table, layout_flags);
    if (mode == LEAD_GENERATE) ADD(&table, sampling_flags);
    ADD(&table, run_flags);
    ADD(&table, journal_flags);
    struct job_options o = {.mode = mode,
                            .max_tokens = 128,
                            .watchdog_s = 30,
                            .step_ms = 2000,
                            .checkpoint_tokens = 256,
                            .temperature = -1,
                            .top_p = -1,
                            .top_k = -1,
                            .min_p = -1};
    enum flags_ask ask = FLAGS_RUN;
    const struct status st = parse(&table, argc, argv, &o, &ask);
    if (status_failed(&st) || ask != FLAGS_RUN) drain_let_signals();
    if (status_failed(&st)) return flags_refuse(argv[0], env.launcher_rank, &st);
    if (ask != FLAGS_RUN) {
        const struct flags_page page = {
            .command = argv[0],
            .arguments = "--model FILE.h5 --input IN.jsonl --output OUT.jsonl [FLAGS]",
            .summary = mode == LEAD_SCORE ? "log-probabilities of given texts, and their perplexity"
                                          : "offline bulk generation over MPI ranks",
            .description = mode == LEAD_SCORE ? score_text : generate_text,
            .table = table.flags,
            .n_flags = table.n};
        if (env.launcher_rank == 0) flags_print(&page, ask, stdout);
        return 0;
    }
    return o.dry_run ? dry_run(&o, env) : job_run(&o, env, &argc, &argv);
}

int cmd_generate(struct config env, int argc, char **argv)
{
    return run_job(LEAD_GENERATE, env, argc, argv);
}

int cmd_score(struct config env, int argc, char **argv)
{
    return run_job(LEAD_SCORE, env, argc, argv);
}

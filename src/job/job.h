/* What generate and score share: the flags of a job, and its life from MPI's start to the exit
 * status. Each start-up phase ends with all ranks agreeing, so that they leave together. */
#ifndef SHOAL_JOB_JOB_H
#define SHOAL_JOB_JOB_H

#include "base/config.h"
#include "base/status.h"
#include "options/flags.h"
#include "serve/lead/lead.h"

struct bench_options;
struct job;

struct job_options {
    enum lead_mode mode;
    const char *template_date;
    const char *model, *input, *output, *logits, *metrics, *trace;
    const char *expert_load; /* what --metrics of another job wrote; NULL: experts stand by id */
    const char *input_part;  /* "K/N"; NULL: the whole input */
    uint32_t tp, pp, ep, dp;
    uint32_t n_threads, max_batch, chunk, step_tokens, step_ms, kv_blocks, max_model_len;
    const char *kv_dtype;
    const char *activations;
    const char *device; /* "cpu", "cuda"; NULL: cpu */
    bool exact_across_devices, fast_reductions, no_device_graphs;
    const char *device_comm;               /* "auto", "nccl", "staged"; NULL: auto */
    uint32_t device_overlap, device_parts; /* rows; KiB; 0: the default */
    double capacity_factor;
    const char *capacity_policy;
    const char *prefix_cache; /* "on", "off"; NULL: on */
    const char *result_cache; /* the same */
    const char *speculate;    /* "auto", "off", a number; NULL: auto, with a device off */
    const char *order;        /* "auto", "input", "prefix"; NULL: auto */
    bool moe_stats, strict, quiet, progress_bar, log_json;
    const char *log_level;
    uint32_t watchdog_s; /* 0: off */
    bool dry_run;
    const char *journal; /* folder; NULL: beside the output */
    bool no_journal, restart, retry_errors;
    uint32_t audit; /* rows of the output to compute again; 0: a job */
    uint64_t audit_seed;
    uint32_t checkpoint_tokens;
    const char *time_limit;           /* NULL: none but Slurm's */
    const char *failpoint;            /* tests only */
    double temperature, top_p, min_p; /* below 0: not given, generation_config.json decides */
    int64_t top_k;                    /* the same */
    int64_t max_tokens;
    int64_t n, logprobs;       /* 0: as if not given */
    double repetition_penalty; /* 0: not given */
    double presence_penalty, frequency_penalty;
    uint64_t seed;
    struct flag_list stops;
    /* Runs in place of the lines, once the model is loaded, with options of its own (shoal bench);
       NULL: a job. */
    struct status (*run_instead)(struct job *j);
    const struct bench_options *bench;
};

/* **Collective (all processes of the launcher)**. Runs the job; argc and argv are for MPI. Returns
 * the process's exit status. */
int job_run(const struct job_options *options, struct config env, int *argc, char ***argv);

#endif

/* `shoal quantize` with calibration, from MPI's start to the exit status: reads the prompts, runs
 * them through the layers (calibrate), and writes the file on rank 0. All ranks leave together.
 * Quantizing without calibration needs no ranks and is cmd_quantize.c's own. */
#ifndef SHOAL_JOB_QUANTIZE_JOB_H
#define SHOAL_JOB_QUANTIZE_JOB_H

#include "base/config.h"
#include "calibrate/calibrate.h"
#include "calibrate/quantize_plan.h"

struct quantize_job_options {
    const char *source, *path;   /* SRC.h5, DST.h5 */
    const char *format, *policy; /* as quantize_policy_parse takes them */
    const char *calibration;     /* JSONL */
    enum calibrate_method method;
    double auto_bits; /* 0: the policy decides; else bits per weight of the layers' linears */
    double damping, alpha;
    bool act_order, clip, quiet;
    uint32_t max_tokens, min_tokens, memory_mib, n_threads; /* n_threads 0: shoal chooses */
};

/* Local. "rtn", "gptq", "awq", "smoothquant"; false for anything else. */
bool quantize_method_parse(const char *name, enum calibrate_method *out);
const char *quantize_method_name(enum calibrate_method method);

/* **Collective (all processes of the launcher)**. Returns the process's exit status. */
int quantize_job_run(const struct quantize_job_options *o, struct config env, int *argc,
                     char ***argv);

#endif

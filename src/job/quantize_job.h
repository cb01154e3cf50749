/* `shoal quantize` with calibration, from MPI's start to the exit status: reads the prompts, runs
 * them through the layers (calibrate), and writes the file on rank 0. All ranks leave together.
 * Quantizing without calibration needs one process; cmd_quantize.c does it. */
#ifndef SHOAL_JOB_QUANTIZE_JOB_H
#define SHOAL_JOB_QUANTIZE_JOB_H

#include "base/config.h"
#include "calibrate/calibrate.h"
#include "calibrate/quantize_plan.h"
#include "options/flags.h"

#define METHOD_WORDS                                                                               \
    {"rtn", CALIBRATE_RTN}, {"gptq", CALIBRATE_GPTQ}, {"awq", CALIBRATE_AWQ},                      \
    {                                                                                              \
        "smoothquant", CALIBRATE_SMOOTHQUANT                                                       \
    }

#define QUANTIZE_FLAGS(FLAG)                                                                       \
    FLAG(const char *, format, "format", OF_TEXT("F"),                                             \
         .help = "int8, int4 (with -asym, and -g32, -g64 or -g128), fp8 (with -g32, -g64 or "      \
                 "-g128), mxfp4; or f32, f16, bf16, which turn quantized values back into floats") \
    FLAG(enum calibrate_method, method, "method", OF_CHOICE(METHOD_WORDS), .preset = "rtn",        \
         .help = "rtn: round to nearest; with --calibration it also shows how much that changes "  \
                 "the outputs; the others need --calibration")                                     \
    FLAG(const char *, policy, "policy", OF_TEXT("C=F,..."),                                       \
         .help = "other formats, or keep, for embedding, attention, ffn, experts, router, head")   \
    FLAG(const char *, calibration, "calibration", OF_TEXT("IN.jsonl"),                            \
         .help = "lines with a prompt, messages or prompt_token_ids, as shoal generate takes "     \
                 "them; 128 texts like those that the model will read are enough")                 \
    FLAG(uint32_t, max_tokens, "calibration-tokens", OF_COUNT(1, 1 << 20, "N"), .preset = "2048",  \
         .help = "use at most N tokens of each calibration text")                                  \
    FLAG(uint32_t, min_tokens, "min-tokens", OF_COUNT(1, 1 << 30, "N"), .preset = "64",            \
         .help = "experts that fewer than N tokens choose are rounded to nearest")                 \
    FLAG(double, damping, "damping", OF_NUMBER(1e-6, 1, "X"), .preset = "0.01",                    \
         .help = "gptq: added to the diagonal of the second moments, as a fraction of its mean")   \
    FLAG(bool, plain_order, "no-act-order", OF_SWITCH,                                             \
         .help = "gptq: quantize inputs in their own order and fit groups on the way; otherwise "  \
                 "inputs with large activations come first and groups are fitted before; the "     \
                 "files have the same form")                                                       \
    FLAG(double, alpha, "alpha", OF_NUMBER(0, 1, "X"), .preset = "0.5",                            \
         .help = "smoothquant: how much of the activations' range goes to the weights; rounded "   \
                 "to 64ths")                                                                       \
    FLAG(double, auto_bits, "auto-policy", OF_NUMBER(2, 32, "BITS"),                               \
         .help = "choose int4-g128, int4-g32, int8-g128 or keep for each linear of the layers by " \
                 "what rounding does to its outputs, at BITS per weight on average; --format and " \
                 "--policy decide the rest")                                                       \
    FLAG(uint64_t, memory_bytes, "memory", OF_UNITS(1 << 20, 1, 1 << 24, "MIB"), .preset = "4096", \
         .help = "memory for second moments, per rank; less means more passes")                    \
    FLAG(uint32_t, threads, "threads", OF_COUNT(1, 4096, "N"),                                     \
         .help = "compute threads per rank (default: its share of the cores)")                     \
    FLAG(bool, quiet, "quiet", OF_SWITCH, .help = "no progress")

struct quantize_flags {
    QUANTIZE_FLAGS(FLAG_FIELD)
};

struct quantize_job_options {
    const char *source, *path; /* SRC.h5, DST.h5 */
    struct quantize_flags flags;
};

/* **Collective (all processes of the launcher)**. Returns the process's exit status. */
int quantize_job_run(const struct quantize_job_options *o, struct config env, int *argc,
                     char ***argv);

#endif

/* shoal plan --nodes: forecasts a job on measured nodes, by simulating it with the job's own lead
 * and scheduler over the lines of its input. */
#ifndef SHOAL_CLI_PLAN_FORECAST_H
#define SHOAL_CLI_PLAN_FORECAST_H

#include "base/config.h"
#include "job/job_options.h"
#include "parallel/layout/layout.h"

#define FORECAST_FLAGS(FLAG)                                                                       \
    FLAG(uint32_t, count, "count", OF_COUNT(1, 4096, "N"), .preset = "1", .commands = IN_PLAN,     \
         .help = "with --nodes: forecast for 1, 2, 4, ... and N such nodes")                       \
    FLAG(struct flag_list, lines, "input", OF_LIST("IN.jsonl"), .commands = IN_PLAN,               \
         .help = "with --nodes: the job's lines, as generate takes them, but not stdin")           \
    FLAG(uint32_t, sample, "sample", OF_COUNT(64, 1 << 24, "N"), .preset = "4096",                 \
         .commands = IN_PLAN,                                                                      \
         .help = "with --input: lines that are simulated for each layout, taken evenly from all "  \
                 "lines; the rest of the job is estimated from them")                              \
    FLAG(double, mean_answer, "mean-answer", OF_NUMBER(0, 1e9, "N"), .commands = IN_PLAN,          \
         .help = "with --input: answers end at random after N tokens on average, but not beyond "  \
                 "max_tokens, and not in lines with ignore_eos (default: all have max_tokens)")    \
    FLAG(int32_t, answer_tokens, "max-tokens", OF_COUNT(1, 1 << 30, "N"), .commands = IN_PLAN,     \
         .help = "with --input: max_tokens of lines that set none")                                \
    FLAG(double, watts, "watts", OF_NUMBER(0, 1e6, "W"), .commands = IN_PLAN,                      \
         .help = "power of a node at work: also forecast the energy")                              \
    FLAG(const char *, svg, "svg", OF_TEXT("FILE"), .commands = IN_PLAN,                           \
         .help = "with --nodes: draw the throughput over the number of nodes, stacked by what a "  \
                 "step's time is spent on")                                                        \
    FLAG(bool, slurm, "slurm", OF_SWITCH, .commands = IN_PLAN,                                     \
         .help = "with --nodes: end with the #SBATCH lines for the forecast that ends first")

struct forecast_flags {
    FORECAST_FLAGS(FLAG_FIELD)
};

/* Local. Returns roughly the bytes of --memory that the program leaves; 0: no bound. */
uint64_t plan_rank_bytes(uint64_t memory_bytes);

/* The model of a forecast, and numbers that the node's file does not have. */
struct forecast_subject {
    struct layout_model *model; /* as plan_model_read read it from `file` */
    const char *file;
    double disk_bytes_s; /* the speed of a node's disk; 0: as in the node's file */
    uint64_t lead_bytes; /* needed on rank 0 alone, for a draft model */
};

/* Local. Runs the forecast and prints it on stdout. Errors: STATUS_USAGE (no input; nothing fits),
 * STATUS_INPUT, STATUS_IO, STATUS_DRAINED (a signal), STATUS_MEMORY. */
struct status plan_forecast(const struct forecast_flags *flags, const struct job_options *job,
                            struct config env, const struct forecast_subject *of);

#endif
